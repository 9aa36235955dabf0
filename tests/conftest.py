"""How tests run: one thread, seeded, and the same hypothesis examples on every run.

`--hypothesis-profile=search` looks for new ones.
"""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import distributed as dist

from experiments.tasks import blobs
from processes import Pair

torch.set_num_threads(1)  # most matrices here are tiny; waiting for threads would take longer

common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", common, max_examples=40, derandomize=True, database=None)
settings.register_profile("search", common, max_examples=1000)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed all global generators: a test draws the same alone as after any others."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def never_full(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no layer count as full, where tests use layers so small that they soon would."""
    if request.path.parent.name in ("shield", "promises", "layers", "models", "gpu"):
        monkeypatch.setattr("conceptors.shield.health._FULL", 1.0)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Forget what other tests have compiled, and what this one compiles."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def double() -> Iterator[None]:
    """Everything in float64, where formulas are to hold exactly."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the data sets by synthetic images."""
    monkeypatch.setattr("conceptors.experiments.scenarios.images.load", blobs)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("torch was built without gloo")
    processes = Pair(tmp_path_factory.mktemp("pair"))
    yield processes
    processes.stop()
