"""Conceptors as mathematics: values, their logic, similarity, and ways to choose an aperture."""
