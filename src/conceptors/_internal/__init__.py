"""What the other packages share: checks, files, precision, recordings on a GPU."""
