"""Digits, loaded once."""

from __future__ import annotations

import pytest

from estimators.common import Digits


@pytest.fixture(scope="session")
def digits() -> Digits:
    return Digits()
