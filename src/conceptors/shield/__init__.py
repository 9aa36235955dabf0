"""The shield: a network learns one task after another, and keeps what it has learned."""

from conceptors.shield.room import ShieldFullWarning
from conceptors.shield.shield import Shield
from conceptors.shield.state import LoadReport
from conceptors.shield.watch import UnprotectedWarning

__all__ = ["LoadReport", "Shield", "ShieldFullWarning", "UnprotectedWarning"]
