"""The shield: train a network on one task after another without forgetting."""

from conceptors.shield.health import ShieldFullWarning, UnprotectedWarning
from conceptors.shield.shield import Shield

__all__ = ["Shield", "ShieldFullWarning", "UnprotectedWarning"]
