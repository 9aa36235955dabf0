"""Methods that are known only while the tests of a file run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conceptors.experiments.methods import METHODS, import_methods
from experiments.engines.work import Own


@pytest.fixture(scope="module")
def methods_of_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    made = Own(tmp_path_factory.mktemp("own"))
    before = dict(METHODS)
    import_methods(made.file)
    yield made
    METHODS.clear()
    METHODS.update(before)


@pytest.fixture
def own(methods_of_own: Own) -> Own:
    methods_of_own.clear()
    return methods_of_own
