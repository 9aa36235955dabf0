"""How tests run: one thread, seeded, and the same hypothesis examples on every run.

`--hypothesis-profile=search` looks for new ones.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)  # most matrices here are tiny; waiting for threads would take longer

common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", common, max_examples=40, derandomize=True, database=None)
settings.register_profile("search", common, max_examples=1000)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed all global generators, so that a test draws the same alone as after any others."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
