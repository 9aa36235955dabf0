"""The numbers behind figures and page, on results small enough to do by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conceptors.report import measures
from conceptors.report.theme import look, method_looks, task_looks
from report import sample


def _results(*accuracies: list[list[float]], **parts: list[Any]) -> dict[str, Any]:
    """Runs of one method, a seed for each accuracy matrix."""
    results = sample.make(len(accuracies[0][0]), len(accuracies), ("m",), bare=True)
    for k, (run, rows) in enumerate(zip(results["runs"], accuracies)):
        run["accuracy"] = rows
        run["final_accuracy"] = float(np.mean(rows[-1]))
        run.update({name: values[k] for name, values in parts.items()})
    return results


def test_only_learned_tasks_are_averaged() -> None:
    first, second = [[90.0, 0.0], [80.0, 60.0]], [[94.0, 0.0], [80.0, 80.0]]
    band = measures.seen_so_far(_results(first, second), "m")
    assert band.tasks == [1, 2]
    np.testing.assert_allclose(band.mean, [92.0, 75.0])
    assert band.sd is not None
    np.testing.assert_allclose(band.sd, [np.sqrt(8), np.sqrt(50)])


def test_learning_everything_at_once_is_a_single_point() -> None:
    results = _results([[90.0, 70.0]])
    band = measures.seen_so_far(results, "m")
    assert (band.tasks, band.mean.tolist(), band.sd) == ([2], [80.0], None)
    matrix = measures.accuracy_matrix(results, "m").mean
    assert matrix.shape == (1, 2)
    assert measures.learned(matrix).all()


def test_rows_that_end_at_the_diagonal_leave_gaps() -> None:
    matrix = measures.accuracy_matrix(_results([[90.0], [80.0, 60.0]]), "m").mean
    np.testing.assert_array_equal(matrix, [[90.0, np.nan], [80.0, 60.0]])
    np.testing.assert_array_equal(measures.learned(matrix), [[True, False], [True, True]])


@pytest.mark.parametrize(("low", "floor"), [(0.0, 0), (47.0, 40), (89.9, 80), (99.0, 90)])
def test_colours_start_below_all_that_was_learned(low: float, floor: float) -> None:
    results = _results([[99.0, 0.0], [low, 99.0]])
    assert measures.floor_of([measures.accuracy_matrix(results, "m")]) == floor


def test_quotas_are_averaged_over_seeds() -> None:
    rows = [[90.0, 0.0], [80.0, 60.0]]
    results = _results(rows, rows, quota=[{"fc": [0.1, 0.2]}, {"fc": [0.3, 0.4]}])
    np.testing.assert_allclose(measures.quotas(results, "m")["fc"].mean, [0.2, 0.3])


def test_spectra_of_other_sizes_are_not_mixed() -> None:
    rows = [[90.0]]
    results = _results(rows, rows, spectra=[{"fc": [[1.0, 0.0]]}, {"fc": [[1.0, 0.5, 0.0]]}])
    (values,) = measures.spectra(results, "m")["fc"]
    assert values.tolist() == [1.0, 0.0]
    assert measures.claimed(results, "m", "fc", [values]) == [0.5]


def test_recorded_quotas_go_before_those_of_a_spectrum_cut_short() -> None:
    results = _results([[90.0]], spectra=[{"fc": [[1.0, 1.0]]}], quota=[{"fc": [0.25]}])
    found = measures.spectra(results, "m")["fc"]
    assert measures.claimed(results, "m", "fc", found) == [0.25]


def test_the_same_similarity_is_shown_once() -> None:
    results = sample.make(2, 1, ("cab", "gpm", "owm"), bare=True)
    for run, rho in zip(results["runs"], (0.5, 0.5, 0.7)):
        run["similarity"] = [[1.0, rho], [rho, 1.0]]
    assert list(measures.similarities(results)) == ["cab, gpm", "owm"]


def test_curves_differ_in_grey() -> None:
    looks = [look(k) for k in range(28)]
    assert len(set(looks)) == 28
    first = [(found.dash, found.shape) for found in looks[:7]]
    assert len(set(first)) == 7
    assert len({found.colour for found in task_looks(10)}) == 10


def test_the_ceiling_takes_no_colour_from_the_others() -> None:
    joint, cab = method_looks(["joint", "cab"])
    assert cab == look(0)
    assert joint.colour == "s7"


def test_one_measure_over_images() -> None:
    """Tasks with more test images count more, as in the final accuracy."""
    runs = [[[90.0, 0.0], [a, b]] for a, b in ((80.0, 60.0), (20.0, 90.0), (70.0, 50.0))]
    results = _results(*runs)
    for run in results["runs"]:
        run["final_accuracy"] = 0.75 * run["accuracy"][-1][0] + 0.25 * run["accuracy"][-1][1]
    np.testing.assert_allclose(measures.shares(results), [0.75, 0.25], atol=1e-6)
    band = measures.seen_so_far(results, "m")
    assert band.mean[-1] == np.mean([run["final_accuracy"] for run in results["runs"]])


def test_each_task_from_when_it_was_learned() -> None:
    found = measures.each_task(_results([[90.0, 0.0], [80.0, 60.0]]), "m")
    assert {t: (b.tasks, b.mean.tolist()) for t, b in found.items()} == {
        1: ([1, 2], [90.0, 80.0]),
        2: ([2], [60.0]),
    }


def test_learning_is_averaged_over_the_seeds_that_got_there() -> None:
    rows = [[90.0]]
    first = [{"task": 0, "step": [10, 20], "loss": [1.0, None], "validation": [50.0, 70.0]}]
    second = [{"task": 0, "step": [10], "loss": [3.0], "validation": [60.0]}]
    results = _results(rows, rows, history=[first, second])
    assert measures.learning(results, "m", "validation") == {1: {10: 55.0, 20: 70.0}}
    assert measures.learning(results, "m", "loss") == {1: {10: 2.0}}
