"""Estimators in the manner of scikit-learn, which they need, and the formulas behind them."""

from conceptors.estimators.tasks import MemoryFullWarning

__all__ = ["MemoryFullWarning"]
