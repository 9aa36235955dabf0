"""`Shield(model)` on real families of models, at tiny size: nothing drifts, the new is learned."""

from __future__ import annotations

import pytest

from models.family import Family
from models.measure import HARD, play, standing
from models.registry import FAMILIES

every = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@pytest.fixture(autouse=True)
def _library(family: Family) -> None:
    pytest.importorskip(family.needs)


@every
def test_every_parameter_is_protected_or_frozen(family: Family) -> None:
    model = family.build()
    found = standing(model)
    assert not found.refused
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert found.protected | found.frozen == trained
    assert not found.protected & found.frozen


@every
def test_what_is_remembered_stays_and_the_new_is_learned(family: Family) -> None:
    outcome = play(family, HARD)
    assert outcome.drift <= 1e-3
    assert outcome.last_loss < 0.6 * outcome.first_loss
    assert not outcome.moved & standing(family.build()).frozen
    assert outcome.moved


@every
def test_without_arguments_it_learns_and_drifts_less_than_without_a_shield(family: Family) -> None:
    shielded, plain = play(family, {}), play(family, None)
    assert shielded.last_loss < 0.7 * shielded.first_loss
    assert shielded.drift < 0.8 * plain.drift
