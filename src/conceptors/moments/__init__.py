"""Second moments Σ x xᵀ of data that comes in parts: exact, or in bounded memory."""

from conceptors.moments.correlation import Correlation
from conceptors.moments.frequent_directions import FrequentDirections

__all__ = ["Correlation", "FrequentDirections"]
