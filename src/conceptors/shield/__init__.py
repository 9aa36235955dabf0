"""The shield: train a network on one task after another without forgetting."""

from conceptors.shield.room import ShieldFullWarning
from conceptors.shield.shield import Shield
from conceptors.shield.state import LoadReport
from conceptors.shield.watch import UnprotectedWarning

__all__ = ["LoadReport", "Shield", "ShieldFullWarning", "UnprotectedWarning"]
