"""Classes that come with any task, in any order, and labels as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from conceptors.estimators.learner import Array

try:
    from sklearn.utils.multiclass import check_classification_targets, unique_labels
except ImportError:
    raise ImportError(
        "the estimators need scikit-learn: pip install 'conceptors[sklearn]'"
    ) from None


def arrivals(known: Array | None, y: Array, classes: Any) -> tuple[Array, Array]:
    """All classes in the order in which they came, and the place of each label `[n]` there.

    Args:
        known: classes that came before, if any.
        classes: all that may come, or None for those in y.
    """
    check_classification_targets(y)
    named = unique_labels(y if classes is None else classes)
    if missing := set(np.unique(y).tolist()) - set(named.tolist()):
        raise ValueError(
            f"y has classes {sorted(missing)} that are not in classes={named.tolist()}; name "
            f"them too, or leave classes out"
        )
    arrived = named
    if known is not None:
        unique_labels(known, named)  # refuses strings among numbers
        arrived = np.concatenate([known, named[~np.isin(named, known)]])
    order = np.argsort(arrived)
    return np.asarray(arrived), np.asarray(order[np.searchsorted(arrived, y, sorter=order)])
