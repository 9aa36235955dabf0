"""A classifier of conceptors: a class a conceptor, positive and negative evidence combined."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from conceptors._internal import checks
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.aperture import aperture_for_quota
from conceptors.algebra.conceptor import Conceptor
from conceptors.estimators.learner import all_or_nothing, input_rows

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError(
        "the estimators need scikit-learn: pip install 'conceptors[sklearn]'"
    ) from None


class ConceptorClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """One conceptor C_k a class. A sample x goes to the class of the largest evidence

        xᵀ C_k x  +  xᵀ ¬(∨_{j≠k} C_j) x

    that is, it lies in what the class claims, and not in what the other classes claim
    (Jaeger 2014). Adding a class touches no other class's conceptor.

    Parameters:
        aperture: α of all classes, or None to give every class the same `quota`.
        quota: share of the space every class claims, when `aperture` is None.
        evidence: "both", "positive" or "negative".
        fit_intercept: append a constant 1 to every sample. Without it x and -x look the same.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> clf = ConceptorClassifier().fit(X[:1000], y[:1000])
    >>> bool(clf.score(X[1000:], y[1000:]) > 0.93)
    True
    """

    def __init__(
        self,
        aperture: float | None = None,
        *,
        quota: float = 0.2,
        evidence: str = "both",
        fit_intercept: bool = True,
    ) -> None:
        self.aperture = aperture
        self.quota = quota
        self.evidence = evidence
        self.fit_intercept = fit_intercept

    def fit(self, X: Any, y: Any) -> Self:
        """One conceptor for each class in y."""
        with all_or_nothing(self):
            self._check_parameters()
            X, y = validate_data(self, X, y, dtype=np.float64)
            check_classification_targets(y)
            self.classes_ = np.unique(y)
            if len(self.classes_) < 2:
                only = self.classes_.tolist()[0]
                raise ValueError(f"at least 2 classes are needed, got 1 class: {only!r}")
            rows = input_rows(X, self.fit_intercept)
            self.conceptors_ = [self._conceptor(rows[y == label]) for label in self.classes_]
            self.others_ = [
                ~reduce(or_, [c for c in self.conceptors_ if c is not own])
                for own in self.conceptors_
            ]
        return self

    def decision_function(self, X: Any) -> npt.NDArray[Any]:
        """Evidence `[n, classes]`; for two classes the difference `[n]`."""
        evidence = self._evidence(X)
        return evidence[:, 1] - evidence[:, 0] if len(self.classes_) == 2 else evidence

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The class of the largest evidence."""
        evidence = self._evidence(X)
        return np.asarray(self.classes_[evidence.argmax(1)])

    def _evidence(self, X: Any) -> npt.NDArray[Any]:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        rows = input_rows(X, self.fit_intercept)
        evidence = torch.zeros(len(rows), len(self.classes_), dtype=torch.float64)
        if self.evidence != "negative":
            evidence += torch.stack([c.evidence(rows) for c in self.conceptors_], 1)
        if self.evidence != "positive":
            evidence += torch.stack([c.evidence(rows) for c in self.others_], 1)
        return np.asarray(evidence)

    def _check_parameters(self) -> None:
        if self.evidence not in ("both", "positive", "negative"):
            raise ValueError(
                f"evidence must be 'both', 'positive' or 'negative', got {self.evidence!r}"
            )
        if self.aperture is None:
            checks.number(self.quota, "quota", 0.0, 1.0, open_low=True)
        else:
            checks.aperture(self.aperture, torch.Size(()), torch.zeros(1, dtype=torch.float64))

    def _conceptor(self, rows: torch.Tensor) -> Conceptor:
        if self.aperture is not None:
            return Conceptor.from_states(rows, self.aperture)
        correlation = rows.mT @ rows / len(rows)
        dim = rows.shape[1]
        rounding = spectra.tolerance(dim, rows.dtype)
        rank = int(torch.linalg.matrix_rank(correlation, hermitian=True, rtol=rounding))
        if rank == 0:
            return Conceptor.zero(dim)
        quota = min(self.quota, 0.9 * rank / dim)  # few samples cannot claim more than their rank
        return Conceptor.from_correlation(correlation, aperture_for_quota(correlation, quota))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = not self.fit_intercept  # x and -x look the same
        return tags
