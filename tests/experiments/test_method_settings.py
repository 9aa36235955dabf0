"""What methods can be told, and what settings do that all of them share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS, parse_settings
from conceptors.experiments.scenarios import build
from experiments.learners import CPU, learner
from experiments.tasks import blobs
from helpers import weights


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("sgd", {"rat": 1}, "unknown setting 'rat'; did you mean 'rate'"),
        ("sgd", {"rate": "fast"}, "rate='fast' is not a float"),
        ("sgd", {"rate": -1}, "rate must be a finite number"),
        ("sgd", {"rate": "nan"}, "rate must be a finite number"),
        ("sgd", {"steps": "1.5"}, "steps='1.5' is not a int"),
        ("sgd", {"steps": 1.5}, "steps=1.5 is not a int"),
        ("sgd", {"steps": -3}, "steps must be a finite number >= 0"),
        ("sgd", {"batch": 0}, "batch must be at least 1"),
        ("sgd", {"check_every": 0}, "check_every must be at least 1"),
        ("sgd", {"validation": 0}, "validation must be at least 1"),
        ("sgd", {"hidden": "8,x"}, "hidden='8,x' is not like"),
        ("sgd", {"hidden": "0"}, "hidden must be at least 1"),
        ("sgd", {"average": 1.0}, "average must be below 1, got 1"),
        ("sgd", {"average": 0.9, "patience": 2}, "average and patience are two ways"),
        ("sgd", {"smooth": 1.0}, "smooth=1 needs images, which inputs of"),
        ("sgd", {"mirror": True}, "mirror=True, shift=0 are for images in colour"),
        ("sgd", {"shift": -1}, "shift must be a finite number >= 0"),
        ("sgd", {"local": 4.0}, "local=4 needs images, which inputs of .* not; use local=0"),
        ("sgd", {"activation": "swish"}, "activation must be one of"),
        ("sgd", {"loss": "hinge"}, "loss must be one of"),
        ("sgd", {"gradient": "max"}, "gradient must be one of"),
        ("cab", {"hard": "maybe"}, "hard='maybe' is not a bool"),
        ("cab", {"first_anchor": "last"}, "first_anchor must be"),
        ("cab", {"energy": 1.5}, "energy must be a share from 0 to 1, got 1.5"),
        ("ewc", {"labels": "some"}, "labels must be one of"),
        ("imm", {"mode": "median"}, "mode must be"),
        ("imm", {"share": 0.0}, "share must be in"),
        ("imm", {"drop": 1.0}, "drop in"),
        ("gpm", {"threshold": 1.01}, "threshold must be a share up to 1, got 1.01"),
        ("sgp", {"input_threshold": 2}, "input_threshold must be a share up to 1, got 2"),
        ("owm", {"alpha": "0"}, "alpha must be numbers above 0 like"),
        ("owm", {"alpha_decay": "1,x"}, "alpha_decay must be numbers above 0 like"),
        ("owm", {"alpha": "1,2,3"}, "alpha has 3 numbers for 2 layers; give one for all"),
        ("owm", {"update": "never"}, "update must be one of step, task"),
        ("trgp", {"trust": -1}, "trust must be a finite number"),
        ("codecl", {"kept": 1.0}, "kept and least must be below 1, got 1.0 and 0.2"),
        ("codecl", {"aperture": 0}, "aperture must be above 0, got 0"),
    ],
)
def test_bad_settings_are_refused(method: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learner(method, [0], **settings)


def test_settings_may_be_strings() -> None:
    kind = METHODS["cab"].settings_type
    made: Any = parse_settings(kind, {"hard": "yes", "rate": "1e-2", "steps": "7", "hidden": 30})
    assert (made.hard, made.rate, made.steps, made.sizes) == (True, 0.01, 7, [30])


def test_cab_claims_a_share_of_the_energy_where_asked() -> None:
    """Then every layer has an aperture of its own, whatever is said of apertures."""
    found = learner("cab", [0, 1], energy=0.8, aperture=1e4)
    found.learn(0)
    rows = torch.cat([x.flatten(2) for x, _ in found.batches(found.scenario.tasks[0].train, 0)], 1)
    claimed = next(iter(found.shield.conceptors().values())).matrix()  # of [W | b]
    rows = torch.cat([rows, torch.ones_like(rows[..., :1])], -1)
    kept = (rows @ claimed.to(rows)).square().sum((1, 2)) / rows.square().sum((1, 2))
    torch.testing.assert_close(kept, torch.full_like(kept, 0.8), rtol=1e-4, atol=1e-4)


def test_a_task_ends_with_the_running_mean_of_its_weights() -> None:
    """At first that is the plain mean: of 4 steps with a share of 1/4 or less."""
    settings: dict[str, Any] = {"steps": 4, "check_every": 1}
    averaged, plain = learner("sgd", [0, 1], average=0.8, **settings), []
    for steps in range(1, 5):
        found = learner("sgd", [0, 1], **{**settings, "steps": steps})
        # the same samples in the same order, whatever the number of steps
        found.learn(0)
        plain.append([p.detach().clone() for p in found.model.parameters()])
    averaged.learn(0)
    for found_p, *single in zip(averaged.model.parameters(), *plain):
        torch.testing.assert_close(found_p, torch.stack(single).mean(0))


def test_neurons_that_begin_with_a_place_see_little_else_at_the_same_size() -> None:
    kind = METHODS["sgd"]
    scenario = build("disjoint-mnist", [3, 5], arrays=blobs())
    found = [
        kind(scenario, parse_settings(kind.settings_type, given), CPU, quiet).model
        for given in ({"hidden": "200"}, {"hidden": "200", "local": 3.0})
    ]
    plain, close = (next(model.parameters()).detach() for model in found)
    torch.testing.assert_close(close.square().mean(-1), plain.square().mean(-1))
    pictures = close.square().unflatten(-1, (28, 28))
    pictures = pictures / pictures.sum((-1, -2), keepdim=True)
    at = torch.arange(28.0)
    for across in (pictures.sum(-1), pictures.sum(-2)):  # [seeds, neurons, 28]
        place = (across * at).sum(-1, keepdim=True)
        spread = ((at - place).square() * across).sum(-1).sqrt()
        assert 1.5 < float(spread.mean()) < 2.4  # of squares: 3 / √2
        assert float(place.std()) > 4  # all over the image
        assert not torch.equal(place[0], place[1])  # each seed draws its own


def test_smooth_initial_weights_are_blurred_at_the_same_size() -> None:
    scenario = build("disjoint-mnist", [0, 1], arrays=blobs())
    kind = METHODS["sgd"]
    (first, _, second, _), (blurred, _, same, _) = (
        weights(kind(scenario, parse_settings(kind.settings_type, given), CPU, quiet).model)
        for given in ({"hidden": "9"}, {"hidden": "9", "smooth": 1.5})
    )
    first, blurred = (w.view(2, 9, 28, 28) for w in (first, blurred))
    assert float(blurred.square().mean() / first.square().mean()) == pytest.approx(1, rel=0.1)
    steps = [float(w.diff(dim=-1).square().mean() / w.square().mean()) for w in (first, blurred)]
    assert steps[1] < 0.5 * steps[0]
    assert torch.equal(second, same)
