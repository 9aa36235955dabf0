"""The shielded network as a scikit-learn classifier: its rules, and what it keeps."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from conceptors import ContinualMLPClassifier, ShieldFullWarning

Array = npt.NDArray[Any]


def small(**more: Any) -> ContinualMLPClassifier:
    options = {"epochs": 10, "learning_rate": 1e-2, "random_state": 0}
    return ContinualMLPClassifier((32,), **(options | more))


def blobs(*names: str) -> tuple[Array, Array]:
    """Forty samples of each class, far from those of others."""
    rng = np.random.default_rng(0)
    places = {"a": 0, "b": 1, "c": 2, "d": 3}
    X = rng.normal(size=(40 * len(names), 6)) / 3
    y = np.repeat(names, 40)
    X[np.arange(len(X)), [places[name] for name in y]] += 3
    return X, y


def told(clf: ContinualMLPClassifier) -> list[Array]:
    """Outputs for all classes."""
    X, _ = blobs("a", "b", "c", "d")
    return [clf.predict_proba(X), clf.classes_, np.array(list(clf.quota_.values()))]


def assert_equal(a: list[Array], b: list[Array]) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def test_scikit_learn_accepts_it() -> None:
    found = check_estimator(small(), on_skip=None)
    assert {check["status"] for check in found} <= {"passed", "skipped"}
    assert sum(check["status"] == "passed" for check in found) > 45


def test_it_works_with_the_tools_of_scikit_learn() -> None:
    pipeline = make_pipeline(StandardScaler(), small())
    grid = {"continualmlpclassifier__hidden_layer_sizes": [(16,), (16, 16), ()]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(*blobs("a", "b", "c"))
    assert search.best_score_ > 0.9


@pytest.mark.parametrize("classes", [2, 1])
def test_digits_a_few_classes_at_a_time(classes: int) -> None:
    X, y = load_digits(return_X_y=True)
    held_out = np.arange(len(X)) % 4 == 0
    clf = ContinualMLPClassifier(random_state=0, epochs=10)
    for start in range(0, 10, classes):
        own = (y >= start) & (y < start + classes) & ~held_out
        clf.partial_fit(X[own], y[own])
    assert clf.n_tasks_ == 10 // classes
    assert clf.score(X[held_out], y[held_out]) > 0.9


def test_new_classes_come_in_any_order() -> None:
    clf = small().partial_fit(*blobs("c", "b")).partial_fit(*blobs("d")).partial_fit(*blobs("a"))
    assert clf.classes_.tolist() == ["a", "b", "c", "d"]
    X, y = blobs("a", "b", "c", "d")
    assert clf.score(X, y) > 0.95
    np.testing.assert_allclose(clf.predict_proba(X).sum(1), 1)
    np.testing.assert_array_equal(clf.predict(X), clf.classes_[clf.predict_proba(X).argmax(1)])


def test_a_new_class_is_low_on_earlier_tasks_before_it_is_seen() -> None:
    clf = small().partial_fit(*blobs("a", "b"), classes=["a", "b", "c", "d"])
    X, y = blobs("a", "b")
    assert clf.classes_.tolist() == ["a", "b", "c", "d"]
    assert clf.predict_proba(X)[:, 2:].max() < 0.1
    assert clf.score(X, y) > 0.95


def test_fit_forgets_and_partial_fit_does_not() -> None:
    once = small().fit(*blobs("a", "b"))
    again = small().fit(*blobs("c", "d")).fit(*blobs("a", "b"))
    assert_equal(told(once), told(again))
    assert again.n_tasks_ == 1
    assert once.partial_fit(*blobs("c")).n_tasks_ == 2


def test_a_copy_by_pickle_goes_on_as_the_original() -> None:
    original = small().partial_fit(*blobs("a", "b"))
    restored = pickle.loads(pickle.dumps(original))
    assert_equal(told(restored), told(original))
    more = blobs("c")
    assert_equal(told(restored.partial_fit(*more)), told(original.partial_fit(*more)))


def test_a_seed_gives_the_same_and_global_randomness_is_left_alone() -> None:
    state = torch.random.get_rng_state()
    first = small().fit(*blobs("a", "b"))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(3)
    assert_equal(told(first), told(clone(first).fit(*blobs("a", "b"))))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"hidden_layer_sizes": (0,)}, ValueError, "hidden_layer_sizes must be .* got 0"),
        ({"hidden_layer_sizes": "wide"}, TypeError, "whole numbers such as .* got 'wide'"),
        ({"hidden_layer_sizes": 16}, TypeError, "whole numbers such as .* got 16"),
        ({"hidden_layer_sizes": (16,)}, ValueError, r"\(16,\) differs from the earlier tasks"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate must be .* got 0"),
        ({"learning_rate": 1e300}, ValueError, "diverged with learning_rate=1e[+]300"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"epochs": 1.5}, TypeError, "epochs must be a whole number, got 1.5"),
        ({"aperture": -1.0}, ValueError, "aperture"),
        ({"warn_at_quota": 2.0}, ValueError, "warn_at_quota"),
        ({"device": "nowhere"}, RuntimeError, "nowhere"),
    ],
)
def test_bad_settings_are_refused_and_change_nothing(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    clf = small().fit(*blobs("a", "b"))
    before, usual = told(clf), clf.get_params()
    with pytest.raises(error, match=message):
        clf.set_params(**settings).partial_fit(*blobs("c"))
    assert_equal(told(clf.set_params(**usual)), before)


def test_bad_data_is_refused_and_changes_nothing() -> None:
    clf = small().fit(*blobs("a", "b"))
    before = told(clf)
    X, y = blobs("c")
    for inputs, labels, message in [
        (X[:, :3], y, "3 features.* 6 "),
        (np.where(X > 3, np.nan, X), y, "NaN"),
        (X, np.arange(40) % 2, "(?i)mix of label input types|strings"),
        (X, np.linspace(0, 1, 40), "continuous"),
    ]:
        with pytest.raises(ValueError, match=message):
            clf.partial_fit(inputs, labels)
        assert_equal(told(clf), before)
    with pytest.raises(ValueError, match=r"y has classes \['c'\] that are not in classes="):
        clf.partial_fit(X, y, classes=["a", "b"])


def test_a_full_layer_is_said_and_may_be_made_an_error() -> None:
    clf = small(aperture=1e3, warn_at_quota=0.5).set_params(random_state=1)
    with pytest.raises(ShieldFullWarning, match="little space is left"):
        clf.fit(*blobs("a", "b"))
    assert not hasattr(clf, "classes_")
