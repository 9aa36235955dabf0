"""project="inputs": nothing else is touched, and what it is not for is refused."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors import Shield
from conceptors.algebra.targets import Auto
from shield.step.projected import Run, data, network

# --- nothing else is touched -----------------------------------------------------------------


def test_outputs_and_input_gradients_are_untouched() -> None:
    run, bare = Run(hard=False), network()
    x, y = data(4).requires_grad_(), data(4).requires_grad_()
    torch.testing.assert_close(run.model(x), bare(y), rtol=0, atol=0)
    run.loss(x).backward()
    (bare(y) - 1).square().mean().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=1e-15)


def test_copies_and_pickles_of_the_model_are_not_shielded() -> None:
    run, bare = Run(), network()
    file = io.BytesIO()
    torch.save(run.model, file)
    file.seek(0)
    for other in (copy.deepcopy(run.model), torch.load(file, weights_only=False)):
        bare.zero_grad()
        (other(data(3)) - 1).square().mean().backward()
        (bare(data(3)) - 1).square().mean().backward()
        torch.testing.assert_close(other[0].weight.grad, bare[0].weight.grad, rtol=0, atol=1e-15)


def test_torch_func_sees_the_plain_model() -> None:
    run = Run()
    parameters = dict(run.model.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        found: Tensor = (
            (torch.func.functional_call(run.model, parameters, (x,)) - 1).square().mean()
        )
        return found

    found = torch.func.grad(loss)(parameters, data(3))
    bare = network()
    (bare(data(3)) - 1).square().mean().backward()
    torch.testing.assert_close(found["0.weight"], bare[0].weight.grad, rtol=0, atol=1e-15)


def test_other_weights_in_their_place_get_plain_gradients() -> None:
    run, bare = Run(hard=False), network()
    others = {n: p.detach().clone().requires_grad_() for n, p in run.model.named_parameters()}
    out = torch.func.functional_call(run.model, others, (data(3),))
    (out - 1).square().mean().backward()
    (bare(data(3)) - 1).square().mean().backward()
    for name, parameter in bare.named_parameters():
        torch.testing.assert_close(others[name].grad, parameter.grad, rtol=0, atol=1e-15)


def test_detach_takes_the_hooks_off() -> None:
    run = Run()
    assert len(run.model[0]._forward_hooks) == 1
    run.shield.remember(data(2))
    assert len(run.model[0]._forward_hooks) == 1
    run.shield.detach()
    assert not run.model[0]._forward_hooks


def test_nothing_is_hooked_without_the_option() -> None:
    run = Run("gradients")
    assert not run.model[0]._forward_hooks
    assert run.done() == {"gradients projected"}


# --- what it is not for ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (torch.optim.AdamW, "torch.optim.SGD without weight decay, got AdamW"),
        (lambda p: torch.optim.SGD(p, weight_decay=0.1), "got SGD with weight decay"),
        (type("Own", (torch.optim.SGD,), {}), "got Own"),
    ],
    ids=["AdamW", "weight decay", "an optimizer of one's own"],
)
def test_other_optimizers_are_refused(make: Callable[[Any], Any], message: str) -> None:
    model = network()
    shield = Shield(model, 9.0, project="inputs")
    with pytest.raises(ValueError, match=message):
        shield.guard(make(model.parameters()))
    shield.remember(data(1))
    assert {row.done for row in shield.explain()} == {"no guarded optimizer steps it"}


@pytest.mark.parametrize("aperture", ["auto", {"0": 9.0, "*": Auto(pull=0.1)}])
def test_automatic_apertures_that_pull_are_refused(aperture: Any) -> None:
    model = network()
    with pytest.raises(ValueError, match=r"layer '\d' back.*aperture=9.0, or Auto\(pull=0\)"):
        Shield(model, aperture, project="inputs")
    Shield(model, project="gradients").detach()  # nothing of the refused one is left


@pytest.mark.parametrize(
    "options",
    [{"aperture": {"0": 9.0, "*": Auto(pull=0)}}, {"hard": True}],
    ids=["no pull", "hard conceptors, along which nothing moves"],
)
def test_automatic_apertures_that_do_not_are_fine(options: dict[str, Any]) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shield = Shield(model, project="inputs", warn_at_quota=1.0, **options).remember(data(1))
    shield.guard(optimizer)
    assert {row.done for row in shield.explain()} == {"inputs projected"}


def test_an_unknown_way_to_project_is_refused() -> None:
    with pytest.raises(ValueError, match="project must be one of"):
        Shield(network(), project="weights")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of the compiler
def test_compiled_models_are_done_without_the_compiler() -> None:
    """Or not at all, where they must be one graph."""
    run, other = Run(), Run()
    torch.compiler.reset()
    compiled: Any = torch.compile(run.model, backend="eager")
    (compiled(data(2)) - 1).square().mean().backward()
    other.loss(data(2)).backward()
    for mine, theirs in zip(run.model.parameters(), other.model.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-15)
    torch.compiler.reset()
    compiled = torch.compile(run.model, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="does not go with"):
        compiled(data(2))
    torch.compiler.reset()


def test_processes_that_share_gradients_do_it_by_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process knows only its own part of a sum."""
    run = Run()
    assert run.done() == {"inputs projected"}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    run.shield.load_state_dict(run.shield.state_dict())  # looks at everything anew
    assert run.done() == {"gradients projected"}
    assert not run.model[0]._forward_hooks
