"""The numbers behind figures and page, on results small enough to compute by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from conceptors.report import data, sections, theme
from report import sample


def results(*accuracies: list[list[float]], **parts: list[Any]) -> dict[str, Any]:
    """Runs of one method, a seed for each accuracy matrix."""
    found = sample.make(len(accuracies[0][0]), len(accuracies), ("m",), bare=True)
    for k, (run, rows) in enumerate(zip(found["runs"], accuracies)):
        run |= {"accuracy": rows, "final_accuracy": float(np.mean(rows[-1]))}
        run |= {name: values[k] for name, values in parts.items()}
    return found


def over_seeds(frame: pd.DataFrame, *keys: str) -> list[tuple[Any, ...]]:
    rows = data.over_seeds(frame, *keys).drop(columns="sd").itertuples(index=False, name=None)
    return list(rows)


def test_only_learned_tasks_are_averaged() -> None:
    found = results([[90.0, 0.0], [80.0, 60.0]], [[94.0, 0.0], [80.0, 80.0]])
    means = data.over_seeds(data.accuracy_so_far(found), "after")
    np.testing.assert_allclose(means.value, [92.0, 75.0])
    np.testing.assert_allclose(means.sd, [np.sqrt(8), np.sqrt(50)])


def test_learning_everything_at_once_is_a_single_point() -> None:
    joint = results([[90.0, 70.0]])
    assert over_seeds(data.accuracy_so_far(joint), "after") == [(2, 80.0)]
    assert over_seeds(data.pairs(joint), "after", "task") == [(2, 1, 90.0), (2, 2, 70.0)]
    assert not sections.forgetting(joint).panels


def test_rows_may_end_at_the_diagonal() -> None:
    found = results([[90.0, 1.0], [80.0, 60.0]])
    found["runs"][0]["accuracy"][0].pop()
    rows = over_seeds(data.pairs(found), "after", "task")
    assert rows == [(1, 1, 90.0), (2, 1, 80.0), (2, 2, 60.0)]


def test_means_over_seeds() -> None:
    rows = [[90.0]]
    first = [{"task": 0, "step": [10, 20], "validation": [50.0, 70.0]}]
    second = [{"task": 0, "step": [10, 20], "validation": [60.0, None]}]
    found = results(
        rows,
        rows,
        history=[first, second],
        quota=[{"fc": [0.1]}, {"fc": [0.3]}],
        spectra=[{"fc": [[1.0, 0.0]]}, {"fc": [[1.0, 0.5]]}],
    )
    assert over_seeds(data.quotas(found), "layer", "after") == [("fc", 1, 0.2)]
    assert over_seeds(data.spectra(found), "after", "index") == [(1, 1, 1.0), (1, 2, 0.25)]
    assert over_seeds(data.learning(found), "task", "step") == [(1, 10, 55.0), (1, 20, 70.0)]


def test_another_history_is_refused() -> None:
    for history in ([5], [{"step": 1, "validation": [1.0]}], [[1, 2]]):
        with pytest.raises(ValueError, match="history of a run must have numbers"):
            data.learning(results([[90.0]], history=[history]))


def test_curves_differ_in_grey_and_ceilings_take_no_colour() -> None:
    assert len({theme.look(k) for k in range(28)}) == 28
    assert len({(look.dash, look.shape) for look in map(theme.look, range(7))}) == 7
    joint, cab = theme.method_looks(["joint", "cab"])
    assert (joint.colour, cab) == ("s7", theme.look(0))
