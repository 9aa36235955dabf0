"""What the shield promises holds, or it says so: every way to be unprotected that was found."""
