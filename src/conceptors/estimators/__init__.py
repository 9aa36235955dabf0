"""Estimators in the manner of scikit-learn, which they need, and the formulas behind them."""

try:
    import sklearn  # noqa: F401
except ImportError:
    raise ImportError(
        "the estimators need scikit-learn: pip install 'conceptors[sklearn]'"
    ) from None

from conceptors.estimators.base import MemoryFullWarning

__all__ = ["MemoryFullWarning"]
