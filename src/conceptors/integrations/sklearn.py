"""A shielded network as a scikit-learn classifier."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from conceptors._internal import checks
from conceptors.estimators.learner import Array, all_or_nothing, refuse_changes
from conceptors.estimators.lift import Scaling
from conceptors.estimators.rows import lift_for
from conceptors.shield import Shield

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data

    from conceptors.estimators.labels import arrivals
except ImportError:
    raise ImportError(
        "the estimators need scikit-learn: pip install 'conceptors[sklearn]'"
    ) from None


class ContinualMLPClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A ReLU network that learns classes one task after another, with a shield inside.

    Each call of `partial_fit` is one task, trained by AdamW; it may bring new classes, one at a
    time if need be. Inputs are shifted and scaled as the first task's data say. One output more
    than there are classes stands for all that may still come: it learns to be low, and a new
    class starts as its copy, so that it is low on earlier tasks.

    Parameters:
        hidden_layer_sizes: widths of the hidden layers.
        aperture: how much of each task is protected, as in `Shield`.
        learning_rate, batch_size, epochs: how each task is trained.
        warn_at_quota: warn about layers that are fuller than this.
        device: where to compute, such as "cuda".
        random_state: of initial weights and the order of samples.

    Attributes:
        classes_: all classes that came or were named, sorted.
        quota_: how full each layer is, by name.
        n_tasks_: tasks learned.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> clf = ContinualMLPClassifier(random_state=0)
    >>> for task in (y < 5, y >= 5):
    ...     clf = clf.partial_fit(X[task][::2], y[task][::2])
    >>> clf.n_tasks_, bool(clf.score(X, y) > 0.85)
    (2, True)
    """

    _arrived: Array  # classes in the order of the network's outputs
    _scaling: Scaling
    _network: nn.Sequential  # in main memory, so that a copy by pickle is at home anywhere
    _remembered: dict[str, Any]  # the shield's state
    _fixed: dict[str, Any]
    n_tasks_: int

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] = (512,),
        *,
        aperture: Any = "auto",
        learning_rate: float = 1e-3,
        batch_size: int = 32,
        epochs: int = 30,
        warn_at_quota: float = 0.95,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.aperture = aperture
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.warn_at_quota = warn_at_quota
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything and learn one task."""
        with all_or_nothing(self):
            return self._fit(X, y, None, first=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn a further task; `classes` may name classes that come later."""
        with all_or_nothing(self):
            return self._fit(X, y, classes, first=not self.__sklearn_is_fitted__())

    def decision_function(self, X: Any) -> Array:
        """Outputs of all classes `[n, classes]`; for two classes the difference `[n]`."""
        found = self._outputs(X).numpy()
        return found[:, 1] - found[:, 0] if found.shape[1] == 2 else found

    def predict_proba(self, X: Any) -> Array:
        """Softmax of the outputs `[n, classes]`."""
        return np.asarray(self._outputs(X).softmax(1))

    def predict(self, X: Any) -> Array:
        """The class of the largest output."""
        largest = self._outputs(X).argmax(1).numpy()
        return np.asarray(self.classes_[largest])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_network")

    def _fit(self, X: Any, y: Any, classes: Any, first: bool) -> Self:
        widths, device = self._checked_settings()
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        self._arrived, places = arrivals(None if first else self._arrived, y, classes)
        fixed = {"hidden_layer_sizes": widths}
        if not first:
            refuse_changes(self._fixed, fixed)
        self._fixed, self.classes_ = fixed, np.sort(self._arrived)
        self.n_tasks_ = 1 if first else self.n_tasks_ + 1
        seed = int(check_random_state(self.random_state).randint(2**31 - 1)) + self.n_tasks_
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            if first:
                found = lift_for(X, None, 0, "relu", 0, scaled=True, shifted=True)
                assert isinstance(found, Scaling)  # no random features were asked for
                self._scaling = found
                network = _network([X.shape[1], *widths, 1])
            else:
                network = deepcopy(self._network)  # or a failure would leave a task half learned
            _grow(network, len(self._arrived))
            network, rows = network.to(device, _precision(device)), self._scaled(X, device)
            self._learn(network, rows, torch.as_tensor(places).to(device), first)
        self._network = network.cpu()
        return self

    def _learn(self, network: nn.Sequential, rows: Tensor, labels: Tensor, first: bool) -> None:
        """Train the network on one task, and remember it."""
        shield = Shield(network, self.aperture, warn_at_quota=self.warn_at_quota)
        if not first:
            # the head may have grown; what is claimed belongs to its inputs, which are the same
            shield.load_state_dict(self._remembered)
        optimizer = shield.guard(torch.optim.AdamW(network.parameters(), lr=self.learning_rate))
        for _ in range(self.epochs):
            for batch in torch.randperm(len(rows)).to(rows.device).split(self.batch_size):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(rows[batch]), labels[batch]).backward()
                optimizer.step()
        if not all(bool(torch.isfinite(p).all()) for p in network.parameters()):
            raise ValueError(
                f"the weights diverged with learning_rate={self.learning_rate}; use a smaller one"
            )
        shield.remember(rows)
        self._remembered, self.quota_ = shield.state_dict(), shield.quota()
        shield.detach()

    def _outputs(self, X: Any) -> Tensor:
        """Of all classes that came, in the order of `classes_`."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        device = torch.device(self.device)
        network = deepcopy(self._network).to(device, _precision(device))
        with torch.no_grad():
            found = network(self._scaled(X, device)).cpu()
        ordered: Tensor = found[:, np.argsort(self._arrived)]
        return ordered

    def _scaled(self, X: Array, device: torch.device) -> Tensor:
        found: Tensor = self._scaling(torch.tensor(X)).to(device, _precision(device))
        return found

    def _checked_settings(self) -> tuple[tuple[int, ...], torch.device]:
        sizes = self.hidden_layer_sizes
        if isinstance(sizes, (str, bytes)) or not np.iterable(sizes):
            raise TypeError(
                f"hidden_layer_sizes must be whole numbers such as (512,), got {sizes!r}"
            )
        widths = tuple(checks.whole(size, "hidden_layer_sizes", 1) for size in sizes)
        limit = float(np.finfo(np.float64).max)
        checks.number(self.learning_rate, "learning_rate", 0.0, limit, open_low=True)
        checks.whole(self.batch_size, "batch_size", 1)
        checks.whole(self.epochs, "epochs", 1)
        return widths, torch.device(self.device)


def _precision(device: torch.device) -> torch.dtype:
    """Double where it costs little: outputs then do not depend on the batch they are in."""
    return torch.float64 if device.type == "cpu" else torch.float32


def _network(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _grow(network: nn.Sequential, classes: int) -> None:
    """Outputs for so many classes and one more, new ones as copies of that one."""
    head = network[-1]
    assert isinstance(head, nn.Linear)
    grown = nn.Linear(head.in_features, classes + 1, dtype=head.weight.dtype)
    places = torch.arange(classes + 1).clamp(max=head.out_features - 1)
    with torch.no_grad():
        grown.weight.copy_(head.weight[places])
        grown.bias.copy_(head.bias[places])
    network[-1] = grown
