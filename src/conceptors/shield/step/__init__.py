"""What happens around a step of an optimizer: see `guard` for how, `choose` for which and why."""
