"""Methods that, like CAB, keep updates out of the directions that earlier tasks used."""
