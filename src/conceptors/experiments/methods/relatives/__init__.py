"""Methods that, like CAB, keep steps out of directions that earlier tasks used."""
