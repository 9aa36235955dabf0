"""Who is ahead, whether goals are reached, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conceptors.experiments.benchmarks import BENCHMARKS
from conceptors.experiments.results import Failure
from conceptors.report.shortfalls import shortfalls
from conceptors.report.standings import Standing, Table, read_tables, table, verdict
from report import compared
from report.compared import Finals, spread


def tabled(name: str, finals: Finals, lost: dict[str, float] | None = None) -> Table:
    return table(BENCHMARKS[name], compared.results(name, finals, lost).to_json())


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (Standing("cab", 97.0, 0.4, 4), Standing("ewc", 96.5, 0.4, 4), "ahead"),
        (Standing("cab", 97.0, 0.4, 4), Standing("ewc", 96.7, 0.4, 4), "level"),
        (Standing("cab", 97.0, 0.4, 4), Standing("ewc", 97.5, 0.4, 4), "behind"),
        (Standing("cab", 97.0, 0.4, 4), Standing("owm", 96.7), "ahead"),  # published
        (Standing("cab", 97.0, 0.4, 4), Standing("owm", 96.9, 0.9), "level"),
        (Standing("cab", 97.0, 0.4, 4), Standing("owm", 97.3), "behind"),
        (Standing("cab", 97.0, None, 1), Standing("ewc", 50.0, 0.1, 4), "unclear"),
        (Standing("cab", 97.0, 0.1, 4), Standing("ewc", 50.0, None, 1), "unclear"),
    ],
)
def test_ahead_is_more_than_both_standard_errors(
    own: Standing, other: Standing, expected: str
) -> None:
    assert verdict(own, other) == expected


def test_the_numbers_of_a_method() -> None:
    found = tabled("permuted-mnist-10", {"sgd": [60.0, 62.0], "cab": spread(95.0)}, {"sgd": 9.0})
    assert [one.method for one in found.reached] == ["cab", "sgd"]
    plain, own = found.of("sgd"), found.of("cab")
    assert plain is not None
    assert own is not None
    assert (plain.mean, plain.n) == (61.0, 2)
    assert plain.sd == pytest.approx(2**0.5, abs=1e-4)
    assert plain.error == pytest.approx(1.0, abs=1e-4)
    assert plain.learned == pytest.approx(61.0 + 8.1)  # nine of ten tasks
    assert (plain.forgetting, plain.transfer) == (9.0, -9.0)
    assert plain.step is None
    assert own is found.own
    assert [one.method for one in found.rivals] == ["owm", "sgd"]
    assert found.seeds["sgd"] == [(0, 60.0), (1, 62.0)]


def test_what_ours_is_held_against() -> None:
    found = tabled(
        "disjoint-mnist-2",
        {"cab": spread(97.0), "joint": spread(98.5), "readout": spread(98.0), "ewc": spread(90.0)},
    )
    assert [(r.method, r.n) for r in found.rivals] == [
        *(("owm", None), ("cab", None), ("imm", None), ("ewc", 10))
    ]
    assert [one.method for one in found.against("ahead")] == ["owm", "cab", "imm", "ewc"]
    assert [one.name for one in found.reached] == ["joint‡", "readout†", "cab", "ewc"]


@pytest.mark.parametrize(
    ("name", "finals", "lost", "missed"),
    [
        ("disjoint-mnist-2", {"cab": [97.3, 97.3]}, 0.0, []),
        ("disjoint-mnist-2", {"cab": [97.0, 97.0]}, 0.0, ["97.3 is missed by 0.30"]),
        ("disjoint-mnist-2", {"sgd": [97.0, 97.0]}, 0.0, None),
        ("disjoint-fashion-2", {"cab": [85.0], "joint": [87.0]}, 0.0, []),
        (
            "disjoint-fashion-2",
            {"cab": [84.5], "joint": [87.0]},
            0.0,
            ["2 points below joint is missed by 0.50"],
        ),
        ("disjoint-fashion-2", {"cab": [84.5]}, 0.0, None),
        ("split-cifar100-heads", {"cab": [79.0]}, 0.5, []),
        (
            "split-cifar100-heads",
            {"cab": [77.0]},
            1.5,
            ["78 is missed by 1.00", "the backward transfer is missed by 1.00"],
        ),
        ("split-cifar100-single", {"cab": [40.0], "ewc": [34.0], "joint": [60.0]}, 0.0, []),
        (
            "split-cifar100-single",
            {"cab": [36.0], "ewc": [34.0], "readout": [50.0]},
            0.0,
            ["5 points above the best other is missed by 3.00"],
        ),
        ("split-cifar100-single", {"cab": [36.0]}, 0.0, None),
    ],
)
def test_goals(name: str, finals: Finals, lost: float, missed: list[str] | None) -> None:
    assert tabled(name, finals, {"cab": lost}).missed() == missed


def test_where_ours_is_not_ahead() -> None:
    said = shortfalls(
        [
            tabled("disjoint-mnist-2", {"cab": spread(97.5), "ewc": spread(90.0)}),
            tabled(
                "disjoint-mnist-10",
                {"cab": spread(94.0), "gpm": spread(95.0), "ewc": spread(93.99)},
                {"cab": 3.0, "gpm": 1.0},
            ),
            tabled("permuted-mnist-10", {"cab": spread(95.0), "gpm": spread(96.5)}, {"gpm": 1.0}),
            tabled("permuted-mnist-10-deep", {"cab": [97.0], "ewc": [90.0]}),
            tabled("split-cifar100-heads", {"sgd": [50.0]}),
        ]
    ).split("\n- ")
    assert said[0] == (
        "- `disjoint-mnist-10`: cab has 94.00 ± 0.11. It is 1.00 behind gpm, mostly because it "
        "forgets more: right after a task it has 96.70 and gpm 95.90, and later tasks change that "
        "by −3.00 and −1.00. It is 0.36 behind owm as published (94.36). It is level with ewc: "
        "+0.01, standard errors 0.03 and 0.03. Of the goal, 95.5 is missed by 1.50."
    )
    assert "It is 1.50 behind gpm, mostly because it learns tasks less well: " in said[1]
    assert said[2] == (
        "`permuted-mnist-10-deep`: cab has 97.00 with 1 of 10 seeds. A single seed says nothing "
        "about cuber\\* as published (97.25), codecl\\* as published (96.56), trgp\\* as published "
        "(96.34), gpm as published (93.91), ewc."
    )
    assert said[3] == "Ahead of all others, and the goal is reached: `disjoint-mnist-2`."
    assert said[4] == "Ours was not run yet: `split-cifar100-heads`."
    alone = [tabled(f"disjoint-mnist-{n}", {"cab": spread(97.5)}) for n in (2, 5)]
    assert shortfalls(alone) == (
        "- Ahead of all that is published, nothing else was run, and the goal is reached: "
        "`disjoint-mnist-2`.\n"
        "- Nothing else was run or published, and the goal is reached: `disjoint-mnist-5`."
    )


def test_results_of_another_preset_are_refused(tmp_path: Path) -> None:
    other = compared.results("disjoint-mnist-5", {"cab": [95.0]})
    compared.write(tmp_path, {"disjoint-mnist-2": other})
    with pytest.raises(ValueError, match="settings of the preset 'disjoint-mnist-5', not of 'disj"):
        read_tables(tmp_path)
    assert all(not found.reached for found in read_tables(tmp_path, ["permuted-mnist-10"]))


def test_a_benchmark_whose_seeds_all_failed_has_no_results(tmp_path: Path) -> None:
    name = "permuted-mnist-10"
    none = compared.results(name, {})
    none.failed = [Failure("sgd", 0, "diverged in task 1 of 10", {})]
    compared.write(tmp_path, {name: none})
    (found,) = read_tables(tmp_path, [name])
    assert not found.reached
