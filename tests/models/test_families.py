"""`Shield(model)` on real families of models, at tiny size: nothing drifts, the new is learned."""

from __future__ import annotations

import pytest

from conceptors import Shield
from models.family import Family
from models.measure import HARD, play, standing_of
from models.registry import FAMILIES

every = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@pytest.fixture(autouse=True)
def _library(family: Family) -> None:
    pytest.importorskip(family.needs)


@every
def test_every_parameter_is_protected_or_frozen(family: Family) -> None:
    found = standing_of(family)
    assert bool(found.refused) == bool(family.refused)
    trained = {name for name, p in family.build().named_parameters() if p.requires_grad}
    assert found.protected | found.frozen | found.refused == trained
    assert not found.protected & found.frozen


@every
def test_a_refusal_says_what_to_do(family: Family) -> None:
    if not family.refused:
        Shield(family.build())
        return
    with pytest.raises(ValueError, match=r"choose unsupported='freeze' \(fixed"):
        Shield(family.build()).remember([family.old()])


@every
def test_what_is_remembered_stays_and_the_new_is_learned(family: Family) -> None:
    outcome = play(family, HARD)
    assert outcome.drift <= 1e-3
    assert outcome.last_loss < 0.6 * outcome.first_loss
    found = standing_of(family)
    assert not outcome.moved & (found.frozen | found.refused)
    assert outcome.moved


@every
def test_without_arguments_it_learns_and_drifts_less_than_without_a_shield(family: Family) -> None:
    shielded, plain = play(family, {}), play(family, None)
    assert shielded.last_loss < 0.7 * shielded.first_loss
    assert shielded.drift < 0.8 * plain.drift
