"""Methods in closed form: one pass over a task, no gradients, nothing kept but sums."""
