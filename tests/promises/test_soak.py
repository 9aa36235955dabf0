"""Drawn scenarios protect what they remember, or warn; `make soak` plays thousands."""

from promises.scenarios import play

SEEDS = 60


def test_drawn_scenarios_protect_what_they_remember_or_warn() -> None:
    outcomes = [play(seed) for seed in range(SEEDS)]
    failed = [outcome for outcome in outcomes if outcome.failed]
    assert not failed, "\n\n" + "\n\n".join(map(str, failed))
    # refusals and warnings are no way out: nearly all are protected, and learn
    assert sum(outcome.end == "kept" for outcome in outcomes) >= 0.9 * SEEDS
    assert sum(outcome.moved > 1e-4 for outcome in outcomes) >= 0.9 * SEEDS
    assert sum(outcome.learned for outcome in outcomes) >= 0.9 * SEEDS
