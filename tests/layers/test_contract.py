"""What every layer type must do: one suite over the whole table in `cases.py`."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from conceptors import Shield
from conceptors._internal.batches import undisturbed
from conceptors.layers import Rows, find_rule
from conceptors.layers.base import _RULES
from conceptors.shield.blocks import WeightBlock
from layers.cases import CASES, REMARKS, Case, Draw, Inputs, flat, run
from layers.probe import captured, close, in_some_order, joined
from shield.common import moments, put, weight_blocks

pytestmark = REMARKS


def over(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


every = over(CASES)


def with_ones(rows: Tensor, block: WeightBlock) -> Tensor:
    ones = torch.ones(*rows.shape[:2], len(block.biases), dtype=rows.dtype)
    return torch.cat([rows, ones], -1)


def test_every_registered_type_has_a_case() -> None:
    rules = {kind: type(find_rule(object.__new__(kind))) for kind in _RULES}
    built_in = {k for k, rule in rules.items() if rule.__module__.startswith("conceptors.layers.")}
    covered = {type(part) for case in CASES for part in case.make().modules()}
    assert built_in <= covered, f"no case for {[kind.__name__ for kind in built_in - covered]}"


@over([case for case in CASES if case.outputs is not None])
def test_rows_times_blocks_are_the_outputs(case: Case) -> None:
    """For any weights: rows do not depend on them."""
    assert case.outputs is not None
    inputs = case.inputs(Draw(0))
    (parts,) = captured(case.build(), inputs).values()
    assert all(isinstance(part, Rows) and part.weight == 1.0 for part in parts)
    for seed in range(4):
        layer = case.build(seed=seed)
        *_, block = weight_blocks(layer).values()  # the last block gives the output
        outputs = with_ones(joined(parts), block) @ block.matrix(block.parameters).mT
        wanted = case.outputs(layer, run(layer, inputs))
        torch.testing.assert_close(in_some_order(outputs), in_some_order(wanted))


def gradients_of(output: Tensor, blocks: dict[str, WeightBlock]) -> dict[str, Tensor]:
    """Rows `[g, n, d]` of the gradients of random sums of outputs, which span all that shows."""
    parameters = {id(p): p for block in blocks.values() for p in block.parameters}
    rows: dict[str, list[Tensor]] = {name: [] for name in blocks}
    for seed in range(20):
        weights = Draw(seed).normal(len(output))
        grads = torch.autograd.grad(output, list(parameters.values()), weights, retain_graph=True)
        by_id = {key: grad.to_dense() for key, grad in zip(parameters, grads)}
        for name, block in blocks.items():
            rows[name].append(block.matrix(block.parameters, by_id))
    return {name: torch.cat(parts, 1) for name, parts in rows.items()}


@every
def test_weights_are_free_across_the_rows_and_nowhere_else(case: Case) -> None:
    """Weights may change across the rows, all at once; in each direction of the rows it shows."""
    layer, inputs = case.build(), (case.old or case.inputs)(Draw(0))
    blocks, found = weight_blocks(layer), moments(layer, [inputs], feed=run)
    assert set(found) == set(blocks)
    covered = {id(p) for block in blocks.values() for p in block.parameters}
    assert covered == {id(p) for p in layer.parameters()}
    output, free, draw = flat(run(layer, inputs)), 0, Draw(1)
    shown = gradients_of(output, blocks)
    for name, block in blocks.items():
        values, vectors = torch.linalg.eigh(found[name].correlation())
        met = values > 1e-12 * values[..., -1:].clamp_min(1e-12)
        if not block.spec.layout.startswith("attention"):  # masks hide rows of q, k and v
            rank = torch.linalg.matrix_rank(shown[name], atol=1e-9 * float(shown[name].norm()))
            assert torch.equal(rank, met.sum(-1)), name
        free += int((~met).sum())
        matrix = block.matrix(block.parameters)
        change = draw.normal(*matrix.shape)
        change -= change @ (vectors * met.unsqueeze(-2)) @ vectors.mT
        put(block, {id(p): p.data for p in block.parameters}, matrix + change)
    assert free > 0, "this case leaves no room: give it other inputs"
    torch.testing.assert_close(flat(run(layer, inputs)), output.detach(), rtol=1e-9, atol=1e-9)


@over([case for case in CASES if case.rows])
def test_second_moments_are_those_of_rows_found_by_hand_and_of_the_bias_unit(case: Case) -> None:
    assert case.rows is not None
    layer, batches = case.build(), [case.inputs(Draw(seed)) for seed in (0, 1)]
    found = moments(layer, batches, feed=run)
    with undisturbed(layer):
        rows = [case.rows(layer, inputs, run(layer, inputs)) for inputs in batches]
    assert len(found) == len(weight_blocks(layer)) == len(rows[0])
    for name, block in weight_blocks(layer).items():
        key = name if name in rows[0] else ""
        wide = with_ones(torch.cat([r[key] for r in rows], 1), block)
        expected = wide.mT @ wide / wide.shape[1]
        if block.spec.layout == "tokens":  # each that was met counts alike
            expected = (expected > 0).double()
        torch.testing.assert_close(found[name].correlation(), expected)
        assert found[name].sums.weight == wide.shape[1]


def trace(layer: nn.Module) -> list[Any]:
    """All that could be seen of a visit: attributes, hooks, flags, values, gradients."""
    seen: list[Any] = [torch.get_rng_state().tolist(), torch.is_grad_enabled()]
    seen.append(torch.backends.mha.get_fastpath_enabled())
    for name, part in layer.named_modules():
        hooks = {key: list(value) for key, value in vars(part).items() if "hook" in key and value}
        seen.append((name, part.training, sorted(vars(part)), hooks))
    for name, value in layer.state_dict(keep_vars=True).items():
        values = value.detach().tolist()
        attributes = sorted(getattr(value, "__dict__", {}))
        seen.append((name, id(value), value.requires_grad, value.grad, attributes, values))
    return seen


def uneven(layer: nn.Module) -> nn.Module:
    """Training flags that differ from part to part."""
    for i, part in enumerate(layer.modules()):
        part.training = i % 2 == 0
    return layer


@every
def test_a_visit_leaves_no_trace(case: Case) -> None:
    layer, inputs = uneven(case.build()), case.inputs(Draw(0))
    torch.backends.mha.set_fastpath_enabled(True)
    before = trace(layer)

    def fails_after(model: nn.Module, batch: Inputs) -> None:
        run(model, batch)
        raise KeyError("the caller's own mistake")

    moments(layer, [inputs], feed=run)
    assert trace(layer) == before
    with pytest.raises(KeyError, match="own mistake"):
        moments(layer, [inputs], feed=fails_after)
    assert trace(layer) == before
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    shield = Shield(layer, 5.0)
    shield.guard(optimizer)
    shield.remember([inputs], feed=run)
    shield.detach()
    assert trace(layer) == before
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    def one(value: Any) -> Any:
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(dtype) if floating else value

    return Inputs(*tree_map(one, tuple(inputs)))


@every
def test_half_precision_tells_the_same(case: Case) -> None:
    layer, inputs = case.build(torch.bfloat16), case.inputs(Draw(0, torch.bfloat16))
    found = moments(layer, [inputs], feed=run)
    wanted = moments(layer.double(), [cast(inputs, torch.float64)], feed=run)
    for name, moment in wanted.items():
        assert found[name].correlation().dtype == torch.float64
        assert close(found[name].correlation(), moment.correlation(), 0.05), name


@over([case for case in CASES if case.empty])
def test_an_empty_batch_adds_nothing(case: Case) -> None:
    layer, inputs = case.build(), case.inputs(Draw(0))
    nothing = case.inputs(Draw(0, batch=0))
    found = moments(layer, [nothing, inputs, nothing], feed=run)
    wanted = moments(layer, [inputs], feed=run)
    for name, moment in wanted.items():
        torch.testing.assert_close(found[name].correlation(), moment.correlation())
        assert found[name].sums.weight == moment.sums.weight
    with pytest.raises(ValueError, match="no rows reached any"):
        moments(layer, [nothing], feed=run)
