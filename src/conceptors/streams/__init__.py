"""Second moments of data that comes in parts: exact, or in bounded memory."""

from conceptors.streams.correlation import Correlation
from conceptors.streams.frequent_directions import FrequentDirections

__all__ = ["Correlation", "FrequentDirections"]
