"""Split CIFAR-100 with seeds as one network, end to end at tiny size."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from conceptors.experiments.events import quiet
from conceptors.experiments.methods.lesson import varied
from conceptors.experiments.runner import Experiment, run
from experiments.learners import CPU, narrow
from experiments.tasks import blobs


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("sgd", {"gradient": "unit"}),
        ("shield", {}),
        ("cab", {"aperture": 3.0}),
        ("cab", {"aperture": 3.0, "rows": 50, "samples": 40, "project": "gradients"}),
        ("cab", {"aperture": 3.0, "momentum": 0.9}),
        ("cab", {"aperture": 30.0, "hard": True, "decay": 0.01}),
        ("ewc", {"fisher_samples": 3, "labels": "true"}),
        ("sgd", {"norms": "first"}),
        ("cab-readout", {"aperture": 3.0, "lift": 20, "norms": "first"}),
        ("cab-readout", {"aperture": 3.0, "lift": 20, "norms": "first", "reads": "all"}),
    ],
    ids=str,
)
def test_stacked_seeds_are_as_one_by_one(method: str, settings: dict[str, Any]) -> None:
    seeds = [0, 4]
    together = narrow(method, seeds, **settings)
    histories = [together.learn(k) for k in range(2)]
    for i, seed in enumerate(seeds):
        alone = narrow(method, [seed], **settings)
        for k in range(2):
            (history,) = alone.learn(k)
            assert histories[k][i]["loss"] == pytest.approx(history["loss"], rel=1e-5)
        for ours, theirs in zip(together.model.parameters(), alone.model.parameters()):
            torch.testing.assert_close(ours[i : i + 1], theirs, rtol=1e-6, atol=1e-8)
        assert together.test()[i].tolist() == alone.test()[0].tolist()
        for kind in ("quota", "similarity") if method == "cab" else ():
            ours, theirs = together.extras[i][kind], alone.extras[0][kind]
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)  # rounded


@pytest.mark.usefixtures("double")
def test_projecting_inputs_is_projecting_gradients() -> None:
    found = [narrow("cab", [0, 1], aperture=3.0, project=p) for p in ("auto", "gradients")]
    for made in found:
        made.learn(0)
        made.learn(1)
    for ours, theirs in zip(*(made.model.parameters() for made in found)):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_quotas_are_of_all_layers() -> None:
    found = narrow("cab", [0, 1], aperture=2.0, norm_aperture=50.0)
    found.learn(0)
    layers = {"conv1", "conv2", "conv3", "fc1", "fc2"}  # heads of tasks are left alone
    for extra in found.extras:
        assert "spectra" not in extra  # which take long to find
        assert set(extra["quota"]) == layers | {f"norms.{i}" for i in range(5)}
        assert all(0 < quota[0] < 1 for quota in extra["quota"].values())
        assert all(extra["quota"][f"norms.{i}"][0] > 0.99 for i in range(5))
    assert found.extras[0]["quota"] != found.extras[1]["quota"]


def test_cab_forgets_less_than_plain_training() -> None:
    kept = []
    settings: dict[str, dict[str, Any]] = {"sgd": {}, "cab": {"aperture": 8.0}}
    for method, own in settings.items():
        found = narrow(method, [0, 1], steps=40, batch=32, **own)
        found.learn(0)
        images, _ = found.scenario.tasks[0].train.take(torch.arange(60).expand(2, -1))
        before = found.model(images).detach()
        found.learn(1)
        change = found.model(images).detach() - before
        kept.append(float(change.norm() / before.norm()))
    assert kept[1] < 0.7 * kept[0]


def test_the_command_stacks_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conceptors.experiments.scenarios.images.load", partial(blobs, train=220))
    wanted = Experiment(
        "split-cifar100",
        ["sgd"],
        [0, 1],
        options={"tasks": 2},
        settings={"*": {"steps": 2, "batch": 8, "dropout": 0.2}},
        stacked=2,
    )
    assert wanted.groups("sgd", [0, 1], CPU) == [[0, 1]]
    results = run(wanted, tmp_path, progress=quiet)
    assert [r.seed for r in results.runs] == [0, 1]
    assert results.runs[0].accuracy != results.runs[1].accuracy
    assert replace(wanted, options={"class_order": "seed"}).groups("sgd", [0, 1], CPU) == [[0], [1]]


def test_no_sample_is_tested_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms that use the batch's statistics have none of one."""
    found = narrow("sgd", [0, 1])
    split = found.scenario.tasks[0].test
    at_once = min(split.sizes()) - 1
    monkeypatch.setattr("conceptors.experiments.methods.base._AT_ONCE", at_once)
    assert bool(found.accuracy(split, 0).isfinite().all())


# --- statistics of norms -----------------------------------------------------------------


def batch_matters(found: Any) -> bool:
    """Whether what is said of some images depends on those they are tested with."""
    images, _ = found.scenario.tasks[0].test.take(torch.arange(12).expand(2, -1))
    found.model.eval()
    with torch.no_grad():
        whole = found.outputs(images, 0)
        alone = found.outputs(images[:, :2], 0)
    return not torch.allclose(whole[:, :2], alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("sgd", {}),
        ("cab", {"aperture": 3.0}),
        ("cab-readout", {"aperture": 3.0, "lift": 20}),
        ("gpm", {"threshold": 0.9, "samples": 20}),
        ("ewc", {"fisher_samples": 3, "labels": "true", "strength": 0.1}),
    ],
    ids=str,
)
def test_norms_hold_statistics_of_the_first_task(method: str, settings: dict[str, Any]) -> None:
    found = narrow(method, [0, 1], heads=False, norms="first", steps=30, **settings)
    other = narrow(method, [0, 1], heads=False, steps=30, **settings)
    other.learn(0)
    assert batch_matters(other)
    first = found.learn(0)
    held = [norm.held for norm in found.model.norms]
    assert not batch_matters(found)
    later = found.learn(1)
    assert not batch_matters(found)
    assert all(norm.held is before for norm, before in zip(found.model.norms, held))
    for history in [*first, *later]:  # of single batches: one alone says little
        assert sum(history["loss"][-5:]) < sum(history["loss"][:5])


def test_norms_of_batches_hold_nothing() -> None:
    found = narrow("sgd", [0, 1], heads=False)
    found.learn(0)
    assert batch_matters(found)


@pytest.mark.usefixtures("double")
def test_held_statistics_are_those_of_all_samples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are looked at in parts of different lengths."""
    monkeypatch.setattr("conceptors.experiments.methods.norms._AT_ONCE", 37)
    found = narrow("sgd", [0, 1], norms="first")
    found.learn(0)
    split = found.scenario.tasks[0].train
    assert split.counts[0] == split.counts[1]
    images, _ = split.take(torch.arange(split.counts[0]).expand(2, -1))
    found.model.eval()
    with torch.no_grad():
        ours = found.model(images)
        for norm in found.model.norms:
            norm.held = None
        torch.testing.assert_close(ours, found.model(images), rtol=1e-9, atol=1e-11)


def test_images_are_mirrored_and_shifted_as_a_whole() -> None:
    torch.manual_seed(0)
    x = torch.arange(1.0, 2 * 9 * 3 * 5 * 4 + 1).reshape(2, 9, 3, 5, 4)  # no zeros, none alike
    assert torch.equal(varied(x, mirror=False, shift=0), x)
    mirrored = varied(x, mirror=True, shift=0)
    ways = {
        (torch.equal(new, old), torch.equal(new, old.flip(-1)))
        for new, old in zip(mirrored.flatten(0, 1), x.flatten(0, 1))
    }
    assert ways == {(True, False), (False, True)}
    seen = set()
    for new, old in zip(varied(x, mirror=False, shift=2).flatten(0, 1), x.flatten(0, 1)):
        wide = functional.pad(old, (2, 2, 2, 2))
        places = product(range(5), repeat=2)
        there = [(i, j) for i, j in places if torch.equal(new, wide[:, i : i + 5, j : j + 4])]
        assert len(there) == 1
        seen.update(there)
    assert len(seen) > 8


def test_varied_images_change_what_is_learned() -> None:
    plain, other = (
        [p.detach() for p in _after_a_task(given).parameters()] for given in ({}, {"mirror": True})
    )
    assert not torch.equal(plain[0], other[0])


def _after_a_task(given: dict[str, Any]) -> torch.nn.Module:
    torch.manual_seed(0)
    learner = narrow("sgd", [0], **given)
    learner.learn(0)
    model: torch.nn.Module = learner.model
    return model
