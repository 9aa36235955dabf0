"""The comparison with Avalanche's strategies: it runs, resumes, and its page says what it found."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from integrations.absent import stand_ins

ROOT = Path(__file__).parents[2]
SCRIPTS, COMMITTED = ROOT / "experiments", ROOT / "results" / "avalanche" / "results.json"
PAGE = ROOT / "docs" / "integrations.md"
ONLY_DIGITS = {"gem-128", "ewc-readout"}  # as the page says
TINY = ["--stream", "digits", "--limit", "10", "--epochs", "1"]
ALONE = """
import sys, runpy, torchmetrics
from integrations.absent import stand_ins
sys.argv = sys.argv[1:]
with stand_ins():
    runpy.run_path(sys.argv[0], run_name="__main__")
"""

pytestmark = [
    pytest.mark.skipif(not SCRIPTS.is_dir(), reason="the scripts are in the checkout"),
    pytest.mark.filterwarnings("ignore:No loggers specified"),
]


def script(name: str) -> Any:
    """A script as a module; its `main` is not called."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def peers() -> Any:
    pytest.importorskip("torchmetrics")  # before the stand-ins: it looks what is there
    with warnings.catch_warnings(), stand_ins():
        warnings.simplefilter("ignore")
        pytest.importorskip("avalanche")
        return script("avalanche_peers")


def run(peers: Any, out: Path, *more: str) -> dict[str, Any]:
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Avalanche's own
            peers.main([*TINY, "--out", str(out), *more])
    finally:
        torch.set_num_threads(threads)
    found: dict[str, Any] = json.loads((out / "results.json").read_text("utf-8"))
    return found


def killed_after(runs: int, out: Path, *more: str) -> list[dict[str, Any]]:
    """The runs that a process had finished when it was killed."""
    paths = [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    program = [sys.executable, "-c", ALONE, str(SCRIPTS / "avalanche_peers.py")]
    process = subprocess.Popen(
        [*program, *TINY, "--out", str(out), *more],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    path, until = out / "results.json", time.monotonic() + 300

    def finished() -> list[dict[str, Any]]:
        return list(json.loads(path.read_text("utf-8"))["runs"]) if path.exists() else []

    while len(finished()) < runs and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(finished()) >= runs
    return finished()


def test_a_killed_comparison_goes_on(peers: Any, tmp_path: Path) -> None:
    methods = ["--method", "naive", "--method", "shield"]
    finished = killed_after(2, tmp_path, *methods, "--seeds", "1000")
    seeds = len(finished) // 2 + 1
    runs = run(peers, tmp_path, *methods, "--seeds", str(seeds))["runs"]
    assert runs[: len(finished)] == finished  # with the same seconds: none was run again
    every = [(seed, method) for seed in range(seeds) for method in ("naive", "shield")]
    assert [(one["seed"], one["method"]) for one in runs] == every
    again = run(peers, tmp_path / "new", *methods, "--seeds", "1")["runs"]
    assert [one["accuracy"] for one in again] == [one["accuracy"] for one in runs[:2]]
    with pytest.raises(ValueError, match=r"results\.json was made with .* give another --out"):
        run(peers, tmp_path, "--limit", "11")


def test_settings_of_the_others_are_chosen_on_validation_images(peers: Any, tmp_path: Path) -> None:
    methods = ("naive", "gem-32", "replay", "shield-readout", "first-readout", "joint")
    asked = [word for name in methods for word in ("--method", name)]
    found = run(peers, tmp_path, *asked, "--seeds", "1")
    best = max(found["trials"], key=lambda trial: trial["validation"])
    assert len(found["trials"]) == 3
    rows = {one["method"]: one for one in found["runs"]}
    assert set(rows) == set(methods)
    assert rows["gem-32"]["settings"] == best["settings"]
    assert rows["gem-32"]["stored_samples"] == 100
    assert rows["replay"]["stored_samples"] == 100  # all there were
    assert rows["shield-readout"]["stored_samples"] == 0
    assert rows["shield-readout"]["settings"] == {}
    assert len(rows["joint"]["accuracy"]) == 1
    for row in rows.values():
        assert row["final_accuracy"] == pytest.approx(
            statistics.mean(row["accuracy"][-1]), abs=0.01
        )


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # Avalanche's own
def test_synaptic_intelligence_is_awake(peers: Any) -> None:
    train, _ = peers.digits()
    train = peers.first_of_each_class(train, 10)
    accuracy = [
        peers.learn(
            *(peers.STREAMS["digits"], "si", "AdamW, rate 0.001", 0, train, train),
            epochs=5,
            settings={"si_lambda": strength},
        )["accuracy"]
        for strength in (0.0, 1e6)
    ]
    assert accuracy[0] != accuracy[1]


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_projection_of_gem_is_least(peers: Any, strength: float) -> None:
    torch.manual_seed(0)
    plugin = peers.GEMWithoutQuadprog(patterns_per_experience=1, memory_strength=strength)
    plugin.G, g = torch.randn(3, 20), torch.randn(20)
    g -= plugin.G[0]  # one that is in conflict
    found = plugin.solve_quadprog(g).double()
    G, near = plugin.G.double(), (found - g.double()).unsqueeze(1)
    v = torch.linalg.lstsq(G.T, near).solution[:, 0]
    slope = G @ G.T @ v + 1e-3 * v + G @ g.double()
    assert float(v.min()) > strength - 1e-5
    assert float(slope.min()) > -1e-4  # no v that is larger would be better,
    assert float((slope * (v - strength)).abs().max()) < 1e-4  # and where it could be less, no less


def test_the_page_says_what_was_found() -> None:
    page = script("avalanche_page")
    results = json.loads(COMMITTED.read_text("utf-8"))
    held = PAGE.read_text("utf-8")
    assert page.between(held, page.body(results), PAGE) == held
    every = {*results["titles"]} - {"digits", "cifar"}
    for stream, methods in {"digits": every, "cifar": every - ONLY_DIGITS}.items():
        runs = [one for one in results["runs"] if one["stream"] == stream]
        cells = [(one["method"], one["seed"]) for one in runs]
        assert sorted(cells) == sorted((method, seed) for method in methods for seed in range(5))


def test_committed_runs_have_the_settings_that_did_best() -> None:
    results = json.loads(COMMITTED.read_text("utf-8"))
    for one in results["runs"]:
        key = one["stream"], one["method"]
        trials = [row for row in results["trials"] if (row["stream"], row["method"]) == key]
        if trials:
            best = max(trials, key=lambda row: float(row["validation"]))
            assert one["settings"] == best["settings"], key


def test_a_page_without_markers_is_left_alone() -> None:
    page = script("avalanche_page")
    with pytest.raises(ValueError, match="must have these two lines once"):
        page.between("text", "made", Path("page.md"))


def test_ahead_is_more_than_the_standard_errors() -> None:
    page = script("avalanche_page")
    assert page.verdict([97.0, 97.2], [96.0, 96.2]) == "ahead"
    assert page.verdict([96.0, 96.2], [97.0, 97.2]) == "behind"
    assert page.verdict([96.0, 97.0], [96.2, 96.6]) == "level"
    assert page.verdict([96.0], [97.0]) == "unclear"
