"""Remembering, how much is claimed, and what a shield reports about it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from conceptors import (
    Conceptor,
    Energy,
    Quota,
    Shield,
    UnprotectedWarning,
    similarity,
)
from conceptors.shield import ShieldFullWarning
from conceptors.shield.novelty import join_novel, stride
from shield.common import mlp, quiet, samples, train


def test_conceptors_are_those_of_the_layer_inputs_with_the_bias_unit() -> None:
    model, x = mlp(), samples()
    shield = quiet(model).remember(x)
    hidden = model[1](model[0](x)).detach()
    for name, states in {"0": x, "2": hidden}.items():
        rows = torch.cat([states, torch.ones(len(states), 1).double()], 1)
        expected = Conceptor.from_states(rows, 3.0)
        assert shield.conceptors()[name][0].allclose(expected, 1e-10)
        assert shield.quota()[name] == pytest.approx(float(expected.quota), abs=1e-10)
        torch.testing.assert_close(
            shield.spectra()[name], expected.singular_values, atol=1e-10, rtol=0
        )


@pytest.mark.parametrize(
    "batches",
    [
        lambda x: x,
        lambda x: [x[:7], x[7:30], x[30:]],
        lambda x: [(x[:20], torch.zeros(20)), (x[20:], torch.zeros(20))],
        lambda x: DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=16, shuffle=True),
        lambda x: (part for part in x.split(9)),
        lambda x: [{"input": x}],
        lambda x: [x[:0], x],
    ],
    ids=["tensor", "list", "pairs", "loader", "generator", "mapping", "empty-batch"],
)
def test_all_forms_of_batches_give_the_same(batches: Any) -> None:
    model, x = mlp(), samples()
    whole = quiet(model).remember(x)
    expected = whole.conceptors()
    whole.detach()
    shield = quiet(model).remember(batches(x))
    for name, conceptor in shield.conceptors().items():
        assert conceptor.allclose(expected[name], 1e-9)


def test_a_function_says_how_a_batch_is_fed_and_a_limit_how_many_samples() -> None:
    model, x = mlp(), samples()
    shield = quiet(model).remember(
        [{"pixels": x, "names": ["a"] * 40}], feed=lambda m, batch: m(batch["pixels"]), limit=100
    )
    expected = shield.conceptors()["0"]
    shield.detach()
    limited = quiet(model).remember(
        [(x[:25], torch.zeros(25)), (x[25:], torch.zeros(15))], limit=30
    )
    rows = torch.cat([x[:30], torch.ones(30, 1).double()], 1)
    assert limited.conceptors()["0"][0].allclose(Conceptor.from_states(rows, 3.0), 1e-9)
    assert not limited.conceptors()["0"].allclose(expected, 1e-9)


def test_remembering_disturbs_nothing() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        nn.Linear(10, 12), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.Linear(12, 3)
    ).double()
    model[1].eval()  # a flag that differs from the model's own
    flags = {name: module.training for name, module in model.named_modules()}
    before = copy.deepcopy(model.state_dict())
    shield = quiet(model)
    random = torch.get_rng_state()
    shield.remember(DataLoader(TensorDataset(samples()), batch_size=8, shuffle=True))
    assert torch.equal(random, torch.get_rng_state())
    assert flags == {name: module.training for name, module in model.named_modules()}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())


def test_a_failing_pass_loses_nothing() -> None:
    model, x = mlp(), samples()
    shield = quiet(model).remember(x)
    held = {name: c.matrix() for name, c in shield.conceptors().items()}

    def batches() -> Iterator[Tensor]:
        yield x
        raise RuntimeError("the disk is gone")

    model.train()
    with pytest.raises(RuntimeError, match="the disk is gone"):
        shield.remember(batches())
    bad = x.clone()
    bad[3, 2] = torch.nan
    with pytest.raises(ValueError, match=r"enter '0'.*in batch 1; nothing was remembered"):
        shield.remember([x, bad])
    empties: list[Any] = [[], iter([]), x[:0]]
    for empty in empties:
        with pytest.raises(ValueError, match="no batches"):
            shield.remember(empty)
    with pytest.raises(ValueError, match="no rows reached"):
        shield.remember([x], feed=lambda m, b: None)
    with pytest.raises(TypeError, match="DataLoader"):
        shield.remember(3)
    with pytest.raises(ValueError, match="limit"):
        shield.remember(x, limit=0)
    assert shield.n_tasks == 1
    assert model.training
    assert not any(m._forward_hooks for m in model.modules())
    for name, conceptor in shield.conceptors().items():
        assert torch.equal(conceptor.matrix(), held[name])


# --- how much ----------------------------------------------------------------------------


def test_apertures_by_layer_quota_and_energy() -> None:
    x = samples(rank=10)
    model = mlp()
    shield = quiet(model, {"0": 5.0, "*": Quota(0.25)}).remember(x)
    assert shield.quota()["2"] == pytest.approx(0.25, abs=1e-6)
    rows = torch.cat([x, torch.ones(len(x), 1).double()], 1)
    assert shield.conceptors()["0"][0].allclose(Conceptor.from_states(rows, 5.0), 1e-9)
    shield.detach()

    shield = quiet(model, Energy(0.9)).remember(x)
    conceptor = shield.conceptors()["0"][0]
    kept = (conceptor @ rows).square().sum() / rows.square().sum()
    assert float(kept) == pytest.approx(0.9, abs=1e-6)
    shield.detach()

    shield = quiet(model, Energy(0.9), hard=True).remember(x)
    projector = shield.conceptors()["0"][0]
    sigma = torch.linalg.eigvalsh(rows.T @ rows).flip(0)
    needed = int((sigma.cumsum(0) / sigma.sum() < 0.9).sum()) + 1
    assert int(projector.singular_values.sum()) == needed
    shield.detach()

    shield = quiet(model, Quota(0.5), hard=True).remember(x)
    assert int(shield.spectra()["0"].sum()) == round(0.5 * 11)


def test_hard_rank_caps_put_earlier_tasks_first() -> None:
    model = mlp(width=30)
    shield = quiet(model, 1e4, hard=True, rank=6)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.05))
    first = samples(1, rank=2)
    shield.remember(first)
    held = int(shield.spectra()["0"].sum())
    assert held == 3
    shield.remember(samples(2, rank=10))
    assert int(shield.spectra()["0"].sum()) == 6
    out = model[0](first).detach()
    train(model, optimizer, samples(3, rank=10))
    torch.testing.assert_close(model[0](first).detach(), out, rtol=1e-10, atol=1e-10)


def test_wide_layers_keep_a_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = mlp(inputs=60), samples(count=200, inputs=60, rank=5)
    exact = quiet(model).remember(x)
    expected = exact.conceptors()["0"].matrix()
    exact.detach()
    monkeypatch.setattr("conceptors.shield.options._DENSE", 40)
    shield = quiet(model, rank=12).remember(x)
    assert not shield.conceptors()["2"].is_factored
    assert float((shield.conceptors()["0"].matrix() - expected).abs().max()) < 1e-6
    shield.remember(samples(7, count=200, inputs=60, rank=9))
    assert shield.conceptors()["0"].rank <= 12
    bad = x.clone()
    bad[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"'0'.*in batch 0"):
        shield.remember(bad)
    shield.detach()
    whole = quiet(model, rank=1.0).remember(x)
    assert not whole.conceptors()["0"].is_factored


@pytest.mark.parametrize(
    ("options", "message"),
    [({"aperture": 1e3}, r"in: 0 \(9\d"), ({"hard": True}, r"in: 0 \(100.*use Energy\(0\.9\)")],
)
def test_full_layers_are_named_once(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conceptors.shield.room._FULL", 0.9)
    shield = Shield(mlp(inputs=4), **options)
    with pytest.warns(ShieldFullWarning, match=message):
        shield.remember(samples(inputs=4, rank=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shield.remember(samples(2, inputs=4, rank=4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rounding_is_not_claimed(dtype: torch.dtype) -> None:
    """More rows than inputs, in two directions and the bias: all others are noise."""
    model = nn.Sequential(nn.Linear(40, 96), nn.Linear(96, 96)).to(dtype)
    x = samples(count=400, inputs=40, rank=2).to(dtype)
    shield = Shield(model, hard=True).remember(x)
    assert [int(values.sum()) for values in shield.spectra().values()] == [3, 3]


# --- several tasks -----------------------------------------------------------------------


def test_similarity_forecasts_difficulty() -> None:
    model, x = mlp(), samples()
    shield = quiet(model).remember(x)
    held = {name: c.matrix() for name, c in shield.conceptors().items()}
    same, other = shield.similarity(x), shield.similarity(samples(9))
    assert same["0"] == pytest.approx(1.0)
    assert other["0"] < 0.9
    rows = torch.cat([samples(9), torch.ones(40, 1).double()], 1)
    expected = similarity(Conceptor.from_states(rows, 3.0), shield.conceptors()["0"][0])
    assert other["0"] == pytest.approx(float(expected), abs=1e-9)
    assert shield.n_tasks == 1
    assert all(torch.equal(c.matrix(), held[name]) for name, c in shield.conceptors().items())


@pytest.mark.parametrize("hard", [False, True])
def test_forgetting_a_task_frees_what_it_alone_claims(hard: bool) -> None:
    model = mlp()
    shield = quiet(model, 50.0, keep_tasks=True, hard=hard)
    shield.remember(samples(1)).remember(samples(2)).remember(samples(3))
    shield.forget(1)
    assert shield.n_tasks == 2
    found = shield.conceptors()
    shield.detach()
    expected = quiet(model, 50.0, hard=hard).remember(samples(1)).remember(samples(3))
    for name, conceptor in expected.conceptors().items():
        assert found[name].allclose(conceptor, 1e-9)
    with pytest.raises(ValueError, match="keep_tasks=True"):
        expected.forget(0)
    expected.detach()
    again = quiet(model, keep_tasks=True).remember(samples())
    with pytest.raises(ValueError, match="task 1 is not remembered; there are 1"):
        again.forget(1)
    again.forget(0)
    assert again.quota() == {"0": 0.0, "2": 0.0}


def test_known_tasks_claim_less_and_may_take_longer_steps() -> None:
    old, new = samples(1), samples(1) + 0.1 * samples(2)
    model = mlp()
    with_unit = [torch.cat([x, torch.ones(40, 1).double()], 1) for x in (old, new)]
    A, C = (Conceptor.from_states(x, 3.0) for x in with_unit)
    shield = quiet(model)
    assert shield.strides(new, known=1.0) == {}  # nothing is remembered yet
    shield.remember(old)
    stride_of_first = shield.strides(new, known=0.8)["0"]
    assert stride_of_first == pytest.approx(float(stride(A, C, 0.8)))
    assert stride_of_first > 1
    assert set(shield.strides(new, known=0.0).values()) == {1.0}
    for impossible in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="known"):
            shield.remember(new, known=impossible)
    shield.remember(new, known=0.8)
    joined = join_novel(A, C, 0.8).matrix()
    torch.testing.assert_close(shield.conceptors()["0"].matrix()[0], joined)


def test_a_mark_measures_how_far_old_answers_have_moved() -> None:
    model, x = nn.Sequential(nn.Linear(20, 64), nn.Linear(64, 3)).double(), samples(inputs=20)
    shield = quiet(model)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2))
    shield.remember(x)
    mark, before = shield.mark(), model[0](x).detach()
    assert shield.moved_since(mark) == {"0": 0.0, "1": 0.0}
    train(model, optimizer, samples(2, inputs=20, rank=20), steps=50)
    drift = float((model[0](x).detach() - before).norm() / before.norm())
    assert shield.moved_since(mark)["0"] == pytest.approx(drift, rel=0.5)
    model[1] = nn.Linear(64, 2).double()
    with pytest.warns(UnprotectedWarning, match="weights have moved in protected directions"):
        shield.refresh()
    assert shield.moved_since(mark)["1"] == float("inf")


class Unknown(nn.Module):
    """A layer the shield does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(2, 2).double())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor.prod(0)


def test_explain_tells_what_is_done_where() -> None:
    model = nn.Sequential(mlp(), nn.Linear(3, 2).double(), Unknown())
    shield = quiet(model, hard=True, unsupported="ignore", freeze=["1.bias"])
    assert {row.done for row in shield.explain()[:3]} == {"no protected directions"}
    optimizer = torch.optim.AdamW([*model[0].parameters(), *model[2].parameters()], lr=1e-3)
    shield.guard(optimizer).zero_grad()
    shield.remember(samples())
    model(samples(2)).sum().backward()
    optimizer.step()
    rows = {row.layer: row for row in shield.explain()}
    assert list(rows) == ["0.0", "0.2", "1", "1.bias", "2.factor"]
    assert rows["0.0"].done == "gradients and steps projected"
    assert (rows["0.0"].rank, rows["0.0"].dim) == (4, 11)
    assert rows["0.0"].quota == pytest.approx(4 / 11)
    assert 0 < (rows["0.0"].passing or 0) < 1
    assert rows["1"].done == "no guarded optimizer steps it"
    assert rows["1.bias"].done == "fixed after the first task"
    assert rows["2.factor"].done.startswith("not protected: Unknown")
    lines = str(shield.explain()).splitlines()
    assert lines[0].split() == ["layer", "done", "rank", "quota", "passing"]
    assert "4/11  36.4%" in lines[1]
    assert len(lines) == 6
