"""Estimators in the manner of scikit-learn, which they need, and the formulas behind them."""

from conceptors._internal.checks import needs

with needs("sklearn", "the estimators need scikit-learn"):
    from conceptors.estimators.base import MemoryFullWarning

__all__ = ["MemoryFullWarning"]
