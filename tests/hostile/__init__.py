"""Files, data and folders that mean harm, or were damaged."""
