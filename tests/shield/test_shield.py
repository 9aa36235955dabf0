"""Remembering, how much is claimed, and what a shield reports about it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

from conceptors import Conceptor, Energy, Quota, Shield, UnprotectedWarning, similarity
from conceptors.shield import ShieldFullWarning
from helpers import drift
from shield.common import Unknown, mlp, quiet, samples, train, with_unit


def matrices(shield: Shield) -> dict[str, Tensor]:
    return {name: conceptor.matrix() for name, conceptor in shield.conceptors().items()}


def test_conceptors_are_those_of_the_layer_inputs_with_the_bias_unit() -> None:
    model, x = mlp(), samples()
    shield = quiet(model).remember(x)
    hidden = model[1](model[0](x)).detach()
    for name, states in {"0": x, "2": hidden}.items():
        expected = Conceptor.from_states(with_unit(states), 3.0)
        assert shield.conceptors()[name][0].allclose(expected, 1e-10)
        assert shield.quota()[name] == pytest.approx(float(expected.quota), abs=1e-10)
        spectrum = shield.spectra()[name]
        torch.testing.assert_close(spectrum, expected.singular_values, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    "batches",
    [
        lambda x: [x[:7], x[7:30], x[30:]],
        lambda x: [(x[:20], torch.zeros(20)), (x[20:], torch.zeros(20))],
        lambda x: DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=16, shuffle=True),
        lambda x: (part for part in x.split(9)),
        lambda x: [{"input": x}],
        lambda x: [x[:0], x],
    ],
    ids=["list", "pairs", "loader", "generator", "mapping", "empty-batch"],
)
def test_all_forms_of_batches_give_the_same(batches: Any) -> None:
    model, x = mlp(), samples()
    whole = quiet(model).remember(x)
    whole.detach()
    given, random = batches(x), torch.get_rng_state()
    shield = quiet(model).remember(given)
    assert torch.equal(random, torch.get_rng_state())  # also where a loader shuffles
    for name, conceptor in shield.conceptors().items():
        assert conceptor.allclose(whole.conceptors()[name], 1e-9)


def test_a_function_feeds_batches_and_a_limit_counts_samples() -> None:
    x = samples()
    shield = quiet(mlp()).remember(
        [{"pixels": x, "names": ["a"] * 40}], feed=lambda m, batch: m(batch["pixels"]), limit=100
    )
    limited = quiet(mlp()).remember([(x[:25], torch.zeros(25)), (x[25:], 0)], limit=30)
    for used, count in {shield: 40, limited: 30}.items():
        expected = Conceptor.from_states(with_unit(x[:count]), 3.0)
        assert used.conceptors()["0"][0].allclose(expected, 1e-9)


def test_a_failing_pass_loses_nothing() -> None:
    model, x = mlp(), samples()
    shield = quiet(model).remember(x)
    before = matrices(shield)

    def batches() -> Iterator[Tensor]:
        yield x
        raise RuntimeError("the disk is gone")

    bad = x.clone()
    bad[3, 2] = torch.nan
    cases: list[tuple[Any, dict[str, Any], Any, str]] = [
        (batches(), {}, RuntimeError, "the disk is gone"),
        ([x, bad], {}, ValueError, r"enter layer '0'.*in batch 1; nothing was remembered"),
        ([], {}, ValueError, "no batches"),
        (iter([]), {}, ValueError, "no batches"),
        (x[:0], {}, ValueError, "no batches"),
        ([x], {"feed": lambda m, b: None}, ValueError, "no rows reached"),
        (3, {}, TypeError, "DataLoader"),
        (["a text"], {}, TypeError, "pass tensors: .*tokenizer"),
        ([x.numpy()], {}, TypeError, "pass tensors: torch.as_tensor"),
        ([x, x[:, 1:]], {}, RuntimeError, "shapes cannot be multiplied"),
        (x, {"limit": 0}, ValueError, "limit"),
    ]
    for given, options, error, message in cases:
        with pytest.raises(error, match=message) as caught:
            shield.remember(given, **options)
        if message.startswith("shapes"):
            assert "remember stopped at batch 1" in caught.value.__notes__[0]
    assert shield.n_tasks == 1
    assert not any(m._forward_hooks for m in model.modules())
    for name, matrix in matrices(shield).items():
        assert torch.equal(matrix, before[name])


# --- how much ----------------------------------------------------------------------------


def claims(aperture: Any, **options: Any) -> Shield:
    return quiet(mlp(), aperture, **options).remember(samples(rank=10))


def test_apertures_by_layer_quota_and_energy() -> None:
    rows = with_unit(samples(rank=10))
    shield = claims({"0": 5.0, "*": Quota(0.25)})
    assert shield.quota()["2"] == pytest.approx(0.25, abs=1e-6)
    assert shield.conceptors()["0"][0].allclose(Conceptor.from_states(rows, 5.0), 1e-9)
    share = claims(Energy(0.9)).conceptors()["0"][0] @ rows
    assert float(share.square().sum() / rows.square().sum()) == pytest.approx(0.9, abs=1e-6)
    energies = torch.linalg.eigvalsh(rows.T @ rows).flip(0)
    needed = int((energies.cumsum(0) / energies.sum() < 0.9).sum()) + 1
    assert int(claims(Energy(0.9), hard=True).spectra()["0"].sum()) == needed
    assert int(claims(Quota(0.5), hard=True).spectra()["0"].sum()) == round(0.5 * 11)


def test_hard_rank_caps_put_earlier_tasks_first() -> None:
    model, first = mlp(width=30), samples(1, rank=2)
    shield = quiet(model, 1e4, hard=True, rank=6)
    optimizer = shield.guard(AdamW(model.parameters(), lr=0.05))
    for x, rank in {first: 3, samples(2, rank=10): 6}.items():
        shield.remember(x)
        assert int(shield.spectra()["0"].sum()) == rank
    before = model[0](first).detach()
    train(model, optimizer, samples(3, rank=10))
    assert drift(model[0](first), before) < 1e-10


def test_wide_layers_store_a_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = samples(count=200, inputs=60, rank=5)
    expected = matrices(quiet(mlp(inputs=60)).remember(x))["0"]
    monkeypatch.setattr("conceptors.shield.options._DENSE", 40)
    shield = quiet(mlp(inputs=60), rank=12).remember(x)
    assert not shield.conceptors()["2"].is_factored
    torch.testing.assert_close(matrices(shield)["0"], expected, rtol=0, atol=1e-6)
    shield.remember(samples(7, count=200, inputs=60, rank=9))
    assert shield.conceptors()["0"].rank <= 12
    with pytest.raises(ValueError, match=r"'0'.*in batch 0"):
        shield.remember(x / 0)
    assert not quiet(mlp(inputs=60), rank=1.0).remember(x).conceptors()["0"].is_factored


@pytest.mark.parametrize(
    ("options", "message"),
    [({"aperture": 1e3}, r"in: 0 \(9\d"), ({"hard": True}, r"in: 0 \(100.*=Energy\(0\.9\)")],
)
def test_full_layers_are_named_once(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conceptors.shield.health._FULL", 0.9)
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


def test_a_forecast_says_how_much_of_the_gradients_will_pass() -> None:
    shield = quiet(mlp()).remember(samples())
    rows = with_unit(samples(9))
    A = shield.conceptors()["0"][0]
    protected = (rows @ A.matrix() * rows).sum() / rows.square().sum()
    forecast = {row.layer: row.passing for row in shield.forecast(samples(9))}
    assert forecast["0"] == pytest.approx(1 - float(protected), abs=1e-9)
    assert shield.n_tasks == 1
    full = Shield(mlp(), hard=True).remember(samples())
    with pytest.warns(ShieldFullWarning, match=r"gradients will be applied in: 0 \(0.0%\)"):
        print(full.forecast(samples()))
    with pytest.raises(ValueError, match=r"nothing is; call shield\.remember\(sample\) first"):
        Shield(mlp()).forecast(samples())


def test_errors_of_comparisons_do_not_speak_of_remember() -> None:
    with pytest.raises(ValueError, match=r"similarity got no batches: .*used before\. Pass"):
        quiet(mlp()).remember(samples()).similarity([])
    with pytest.raises(ValueError, match=r"enter layer '0' in batch 0\. Check that batch"):
        quiet(mlp()).remember(samples()).forecast(samples() * torch.nan)


def test_similarity_forecasts_difficulty() -> None:
    shield = quiet(mlp()).remember(samples())
    before = matrices(shield)
    assert shield.similarity(samples())["0"] == pytest.approx(1.0)
    other = shield.similarity(samples(9))["0"]
    claimed = Conceptor.from_states(with_unit(samples(9)), 3.0)
    expected = float(similarity(claimed, shield.conceptors()["0"][0]))
    assert other == pytest.approx(expected, abs=1e-9)
    assert other < 0.9
    assert shield.n_tasks == 1
    assert all(torch.equal(matrix, before[name]) for name, matrix in matrices(shield).items())


@pytest.mark.parametrize("hard", [False, True])
def test_forgetting_a_task_frees_what_it_alone_claims(hard: bool) -> None:
    shield = quiet(mlp(), 50.0, keep_tasks=True, hard=hard)
    shield.remember(samples(1)).remember(samples(2)).remember(samples(3)).forget(1)
    assert shield.n_tasks == 2
    expected = quiet(mlp(), 50.0, hard=hard).remember(samples(1)).remember(samples(3))
    for name, conceptor in expected.conceptors().items():
        assert shield.conceptors()[name].allclose(conceptor, 1e-9)
    with pytest.raises(ValueError, match="keep_tasks=True"):
        expected.forget(0)
    with pytest.raises(ValueError, match="task 2 is not remembered; there are 2"):
        shield.forget(2)
    assert shield.forget(0).forget(0).quota() == {"0": 0.0, "2": 0.0}


def test_a_mark_measures_how_far_old_outputs_have_moved() -> None:
    model, x = nn.Sequential(nn.Linear(20, 64), nn.Linear(64, 3)).double(), samples(inputs=20)
    shield = quiet(model)
    optimizer = shield.guard(AdamW(model.parameters(), lr=1e-2))
    shield.remember(x)
    mark, before = shield.mark(), model[0](x).detach()
    assert shield.moved_since(mark) == {"0": 0.0, "1": 0.0}
    train(model, optimizer, samples(2, inputs=20, rank=20), steps=50)
    moved = shield.moved_since(mark)["0"]
    assert moved == pytest.approx(drift(model[0](x), before), rel=0.5)
    model[1] = nn.Linear(64, 2).double()
    with pytest.warns(UnprotectedWarning, match="weights have moved in protected directions"):
        shield.refresh()
    assert shield.moved_since(mark)["1"] == float("inf")


def test_explain_shows_what_is_done_where() -> None:
    model = nn.Sequential(mlp(), nn.Linear(3, 2).double(), Unknown(2))
    shield = quiet(model, hard=True, unsupported="ignore", freeze=["1.bias"])
    assert {row.done for row in shield.explain()[:3]} == {"no protected directions"}
    optimizer = AdamW([*model[0].parameters(), *model[2].parameters()], lr=1e-3)
    shield.guard(optimizer)
    shield.remember(samples())
    train(model, optimizer, samples(2), steps=1)
    rows = {row.layer: row for row in shield.explain()}
    assert list(rows) == ["0.0", "0.2", "1", "1.bias", "2.factor"]
    assert rows["0.0"].done == "gradients and steps projected"
    assert (rows["0.0"].rank, rows["0.0"].dim) == (4, 11)
    assert rows["0.0"].quota == pytest.approx(4 / 11)
    assert rows["1"].done == "no guarded optimizer steps it"
    assert rows["1.bias"].done == "fixed after the first task"
    assert rows["2.factor"].done.startswith("not protected: Unknown")
    lines = str(shield.explain()).splitlines()
    assert lines[0].split() == ["layer", "done", "rank", "quota", "passing"]
    assert "4/11  36.4%" in lines[1]
    assert len(lines) == 6


def test_explain_prints_one_line_per_kind_of_layer_of_deep_models() -> None:
    def block(width: int) -> nn.Module:
        return nn.ModuleDict({"up": nn.Linear(4, width), "down": nn.Linear(width, 4)})

    class Deep(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(block(6 if i else 8) for i in range(depth))
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            for layers in self.blocks:
                x = layers["down"](layers["up"](x).tanh())  # type: ignore[index]
            return self.head(x)  # type: ignore[no-any-return]

    shield = Shield(Deep(20)).remember(samples(inputs=4).float())
    table = shield.explain()
    assert len(table) == 41
    lines = [line.split("  ")[0] for line in str(table).splitlines()[1:]]
    assert lines == ["blocks.*.up (20)", "blocks.0.down", "blocks.*.down (19)", "head"]
    quotas = [row.quota for row in table if row.layer.endswith("up")]
    mean = f"{sum(quotas) / 20:.1%} ({min(quotas):.1%}..{max(quotas):.1%})"
    assert mean in str(table).splitlines()[1]
    few = Shield(Deep(19)).remember(samples(inputs=4).float()).explain()
    assert len(str(few).splitlines()) == 1 + len(few) == 40
