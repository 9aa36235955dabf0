"""Attaching, remembering, reporting and letting go."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from conceptors import Conceptor, Energy, Quota, Shield, ShieldFullWarning, similarity
from conceptors.layers import Block, Call, Rows, RowsByBlock, Sample, base, register


def mlp(width: int = 24, inputs: int = 10) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 3)).double()


def data(count: int = 40, inputs: int = 10, rank: int = 3, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(count, rank, generator=generator, dtype=torch.float64)
    return left @ torch.randn(rank, inputs, generator=generator, dtype=torch.float64)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, steps: int = 10) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - 1).square().sum().backward()
        optimizer.step()


def quiet(model: nn.Module, aperture: Any = 3.0, **options: Any) -> Shield:
    return Shield(model, aperture, **{"warn_at_quota": 1.0, **options})


# --- what is remembered ------------------------------------------------------------------


def test_conceptors_are_those_of_the_layer_inputs_with_the_bias_unit() -> None:
    model, x = mlp(), data()
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


def test_tasks_are_joined_by_or() -> None:
    model, first, second = mlp(), data(seed=1), data(seed=2)
    shield = quiet(model).remember(first).remember(second)
    rows = [torch.cat([x, torch.ones(40, 1).double()], 1) for x in (first, second)]
    expected = Conceptor.from_states(rows[0], 3.0) | Conceptor.from_states(rows[1], 3.0)
    assert shield.conceptors()["0"][0].allclose(expected, 1e-10)
    assert shield.n_tasks == 2


def test_hard_conceptors_are_joined_as_subspaces() -> None:
    model, first, second = mlp(), data(rank=2, seed=1), data(rank=3, seed=2)
    shield = quiet(model, 1e4, hard=True).remember(first).remember(second)
    values = shield.spectra()["0"]
    assert set(values.tolist()) == {0.0, 1.0}
    assert int(values.sum()) == 2 + 3 + 1  # and the bias unit


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
    model, x = mlp(), data()
    whole = quiet(model).remember(x)
    expected = whole.conceptors()
    whole.detach()
    shield = quiet(model).remember(batches(x))
    for name, conceptor in shield.conceptors().items():
        assert conceptor.allclose(expected[name], 1e-9)


def test_a_function_says_how_a_batch_is_fed_and_a_limit_how_many_samples() -> None:
    model, x = mlp(), data()
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
    shield.remember(DataLoader(TensorDataset(data()), batch_size=8, shuffle=True))
    assert torch.equal(random, torch.get_rng_state())
    assert flags == {name: module.training for name, module in model.named_modules()}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())


def test_a_failing_pass_loses_nothing() -> None:
    model, x = mlp(), data()
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


def test_nan_inside_the_model_names_the_layer() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).double()
    shield = quiet(model)
    with torch.no_grad():
        model[0].weight[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"enter '1' in batch 0"):
        shield.remember(torch.ones(3, 4).double())
    assert shield.n_tasks == 0


def test_rows_are_sampled_reproducibly_and_all_on_request() -> None:
    x = data(60000, rank=9)
    found = {}
    choices: dict[str, dict[str, Any]] = {
        "all": {"rows": None},
        "auto": {},
        "same": {},
        "other": {"seed": 5},
        "few": {"rows": 100},
    }
    for label, options in choices.items():
        model = mlp()
        shield = quiet(model, **options).remember([x])
        found[label] = shield.conceptors()["0"].matrix()
    assert torch.equal(found["auto"], found["same"])
    assert not torch.equal(found["auto"], found["other"])
    assert float((found["auto"] - found["all"]).norm()) < 0.05
    assert float((found["few"] - found["all"]).norm()) > 1e-3


# --- how much ----------------------------------------------------------------------------


def test_apertures_by_layer_quota_and_energy() -> None:
    x = data(rank=10)
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


def test_rank_caps_protect_the_strongest_directions() -> None:
    model, x = mlp(), data(rank=10)
    shield = quiet(model, 100.0, rank=4)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1))
    shield.remember(x)
    before = model[0].weight.detach().clone(), model[0].bias.detach().clone()
    train(model, optimizer, data(rank=10, seed=3), steps=1)
    change = torch.cat(
        [model[0].weight.detach() - before[0], (model[0].bias.detach() - before[1])[:, None]], 1
    )
    rows = torch.cat([x, torch.ones(len(x), 1).double()], 1)
    vectors = torch.linalg.eigh(rows.T @ rows)[1].flip(1)
    moved = (change @ vectors).norm(dim=0)
    assert float(moved[:4].max()) < 1e-3 * float(moved[4:].max())


def test_hard_rank_caps_put_earlier_tasks_first() -> None:
    model = mlp(width=30)
    shield = quiet(model, 1e4, hard=True, rank=6)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.05))
    first = data(rank=2, seed=1)
    shield.remember(first)
    held = int(shield.spectra()["0"].sum())
    assert held == 3
    shield.remember(data(rank=10, seed=2))
    assert int(shield.spectra()["0"].sum()) == 6
    out = model[0](first).detach()
    train(model, optimizer, data(rank=10, seed=3))
    torch.testing.assert_close(model[0](first).detach(), out, rtol=1e-10, atol=1e-10)


def test_wide_layers_keep_a_sketch() -> None:
    model, x = mlp(inputs=60), data(200, 60, rank=5)
    exact = quiet(model).remember(x)
    expected = {name: c.matrix() for name, c in exact.conceptors().items()}
    exact.detach()
    shield = quiet(model, dense_limit=40, rank=12)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2))
    shield.remember(x)
    assert shield.conceptors()["0"].rank <= 12
    assert not shield.conceptors()["2"].is_factored
    assert float((shield.conceptors()["0"].matrix() - expected["0"]).abs().max()) < 1e-6
    shield.remember(data(200, 60, rank=9, seed=7))
    assert shield.conceptors()["0"].rank <= 12
    train(model, optimizer, data(200, 60, rank=60, seed=8), steps=3)
    bad = x.clone()
    bad[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"'0'.*in batch 0"):
        shield.remember(bad)


def test_full_layers_are_named_once() -> None:
    model = mlp(inputs=4)
    shield = Shield(model, 1e3, warn_at_quota=0.9)
    with pytest.warns(ShieldFullWarning, match=r"in: 0 \(99"):
        shield.remember(data(inputs=4, rank=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shield.remember(data(inputs=4, rank=4, seed=2))


def test_similarity_forecasts_difficulty() -> None:
    model, x = mlp(), data()
    shield = quiet(model).remember(x)
    held = {name: c.matrix() for name, c in shield.conceptors().items()}
    same, other = shield.similarity(x), shield.similarity(data(seed=9))
    assert same["0"] == pytest.approx(1.0)
    assert other["0"] < 0.9
    rows = torch.cat([data(seed=9), torch.ones(40, 1).double()], 1)
    expected = similarity(Conceptor.from_states(rows, 3.0), shield.conceptors()["0"][0])
    assert other["0"] == pytest.approx(float(expected), abs=1e-9)
    assert shield.n_tasks == 1
    assert all(torch.equal(c.matrix(), held[name]) for name, c in shield.conceptors().items())


@pytest.mark.parametrize("hard", [False, True])
def test_forgetting_a_task_frees_what_it_alone_claims(hard: bool) -> None:
    model = mlp()
    shield = quiet(model, 50.0, keep_tasks=True, hard=hard)
    shield.remember(data(seed=1)).remember(data(seed=2)).remember(data(seed=3))
    shield.forget(1)
    assert shield.n_tasks == 2
    found = shield.conceptors()
    shield.detach()
    expected = quiet(model, 50.0, hard=hard).remember(data(seed=1)).remember(data(seed=3))
    for name, conceptor in expected.conceptors().items():
        assert found[name].allclose(conceptor, 1e-9)
    with pytest.raises(ValueError, match="keep_tasks=True"):
        expected.forget(0)
    expected.detach()
    again = quiet(model, keep_tasks=True).remember(data())
    with pytest.raises(ValueError, match="task 1 is not remembered; there are 1"):
        again.forget(1)
    again.forget(0)
    assert again.quota() == {"0": 0.0, "2": 0.0}


# --- which parameters --------------------------------------------------------------------


class Scale(nn.Module):
    """A layer the shield does not know."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(size).double())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def with_scale() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 24), Scale(24), nn.Linear(24, 3)).double()


def test_unsupported_parameters_are_listed_and_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.factor \(Scale, shape \[24\]\)(.|\n)*freeze"):
        Shield(with_scale())


def test_unsupported_parameters_can_be_frozen_or_ignored() -> None:
    for choice, moves in {"freeze": False, "ignore": True}.items():
        model = with_scale()
        shield = quiet(model, unsupported=choice)
        optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.1))
        train(model, optimizer, data(), steps=2)
        first = model[1].factor.detach().clone()
        assert not torch.equal(first, torch.ones(24).double())  # the first task is free
        shield.remember(data())
        train(model, optimizer, data(seed=4), steps=2)
        assert torch.equal(first, model[1].factor.detach()) != moves


def test_layers_can_be_excluded_or_frozen_by_name() -> None:
    model = mlp()
    shield = quiet(model, 1e4, hard=True, exclude=["2"], freeze="0.bias")
    assert list(shield.quota()) == ["0"]
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01))
    shield.remember(data())
    hidden, head = model[0](data()).detach(), model[2].weight.detach().clone()
    frozen = model[0].bias.detach().clone()
    train(model, optimizer, data(seed=2), steps=5)
    assert torch.equal(model[0].bias, frozen)
    assert not torch.equal(model[2].weight, head)
    assert not torch.equal(model[0].weight, mlp()[0].weight)
    torch.testing.assert_close(model[0](data()).detach(), hidden, rtol=1e-10, atol=1e-10)
    shield.detach()
    with pytest.raises(TypeError, match="exclude takes name patterns"):
        Shield(model, exclude=[3])  # type: ignore[list-item]


def test_models_without_anything_to_shield_are_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameters"):
        Shield(nn.Sequential(nn.ReLU()))
    frozen = mlp().requires_grad_(False)
    with pytest.raises(ValueError, match="is everything frozen"):
        Shield(frozen)


def test_heads_added_between_tasks_are_found() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(10, 24)
            self.heads = nn.ModuleList([nn.Linear(24, 2)])

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.heads[-1](self.body(x).tanh())
            return out

    torch.manual_seed(0)
    model = Heads().double()
    shield = quiet(model, 1e4, hard=True)
    train(model, shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01)), data(), steps=3)
    shield.remember(data())
    old = model(data()).detach()
    model.heads.append(nn.Linear(24, 2).double())
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01))
    assert shield.quota()["heads.1"] == 0.0
    train(model, optimizer, data(seed=2), steps=5)
    shield.remember(data(seed=2))
    assert set(shield.quota()) == {"body", "heads.0", "heads.1"}
    assert shield.quota()["heads.1"] > 0
    del model.heads[1]
    torch.testing.assert_close(model(data()).detach(), old, rtol=1e-9, atol=1e-9)


def test_partly_frozen_layers_are_protected_by_what_moves() -> None:
    for frozen in ("weight", "bias"):
        for hard in (True, False):
            model: Any = nn.Sequential(nn.Linear(10, 4)).double()
            getattr(model[0], frozen).requires_grad_(False)
            shield = quiet(model, 1e3, hard=hard)
            optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=1e-3))
            shield.remember(data())
            old = model(data()).detach()
            held = getattr(model[0], frozen).detach().clone()
            train(model, optimizer, data(rank=10, seed=2), steps=5)
            assert torch.equal(held, getattr(model[0], frozen))
            tolerance = 1e-9 if hard else 1e-2
            torch.testing.assert_close(model(data()).detach(), old, rtol=0, atol=tolerance)


def test_a_rule_of_ones_own_takes_ten_lines() -> None:
    @register(Scale)
    class ScaleRule:
        def blocks(self, layer: Any) -> list[Block]:
            return [
                Block(
                    "factor",
                    None,
                    view=lambda f: f[:, None, None],
                    layout="scale",
                    rows_first=False,
                )
            ]

        def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
            rows, weight = sample(call.args[0])
            yield "", Rows(rows[0].mT[..., None], weight)

    try:
        model = with_scale()
        shield = quiet(model, 1e4, hard=True)
        optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01))
        shield.remember(data())
        old = model(data()).detach()
        train(model, optimizer, data(seed=2))
        torch.testing.assert_close(model(data()).detach(), old, rtol=1e-9, atol=1e-9)
    finally:
        del base._RULES[Scale]


# --- no trace ----------------------------------------------------------------------------


def fingerprint(model: nn.Module) -> list[Any]:
    found: list[Any] = []
    for name, module in model.named_modules():
        state = {k: v for k, v in module.__dict__.items() if not k.startswith("_modules")}
        found.append((name, sorted(state), {k: len(v) for k, v in state.items() if "hooks" in k}))
    return found


def test_detach_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    before, keys = fingerprint(model), list(model.state_dict())
    values = copy.deepcopy(model.state_dict())
    shield = quiet(model)
    shield.guard(optimizer)
    shield.remember(data())
    assert list(model.state_dict()) == keys
    shield.detach()
    assert fingerprint(model) == before
    assert all(torch.equal(v, values[k]) for k, v in model.state_dict().items())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    with pytest.raises(ValueError, match="was detached"):
        shield.remember(data())
    Shield(model).detach()


def test_a_shielded_model_can_be_copied_and_pickled_the_shield_not() -> None:
    model = nn.Sequential(nn.Linear(10, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)).double()
    shield = quiet(model).remember(data())
    model.eval()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(data()), model(data()))
    for attempt in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match=r"save shield\.state_dict"):
            attempt(shield)


def test_a_second_shield_is_refused() -> None:
    model = mlp()
    shield = Shield(model)
    with pytest.raises(ValueError, match="already has a shield"):
        Shield(model)
    with pytest.raises(ValueError, match="already has a shield"):
        Shield(model[0])
    with pytest.raises(ValueError, match="already has a shield"):
        Shield(nn.Sequential(model))
    shield.detach()
    Shield(model[0])
    del shield
    gc.collect()


def test_foreign_optimizers_are_refused() -> None:
    model, other = mlp(), nn.Linear(2, 2)
    shield = Shield(model)
    with pytest.raises(ValueError, match=r"1 of 5 parameters that are not.*\[\[2\]\]"):
        shield.guard(torch.optim.SGD([*model.parameters(), other.bias], lr=0.1))
    with pytest.raises(TypeError, match="guard needs"):
        shield.guard(model)


# --- batch norm --------------------------------------------------------------------------


def with_batchnorm() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(10, 30), nn.BatchNorm1d(30), nn.Tanh(), nn.Linear(30, 3)
    ).double()


def test_batchnorm_keeps_the_statistics_of_remembered_tasks() -> None:
    for policy, moves in {"freeze": False, "follow": True}.items():
        model = with_batchnorm()
        shield = quiet(model, 1e4, hard=True, batchnorm=policy)
        optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=1e-3))
        train(model, optimizer, data(), steps=5)  # statistics follow the first task
        mean = model[1].running_mean.clone()
        assert float(mean.abs().max()) > 0.01
        shield.remember(data())
        model.eval()
        old = model(data()).detach()
        model.train()
        train(model, optimizer, data(seed=2), steps=5)
        assert model[1].training
        assert torch.equal(mean, model[1].running_mean) != moves
        model.eval()
        drift = float((model(data()).detach() - old).abs().max() / old.abs().max())
        assert (drift > 1e-3) == moves
        if not moves:
            assert drift < 1e-10


def test_batchnorm_recovers_its_flag_after_an_error() -> None:
    model = with_batchnorm()
    shield = quiet(model).remember(data())
    model.train()
    with pytest.raises((RuntimeError, ValueError)):
        model[1](torch.zeros(2, 7).double())
    assert model[1].training
    shield.detach()


def test_batchnorm_keeps_its_flag_where_another_hook_fails_first() -> None:
    model = with_batchnorm()

    def refuse(_layer: nn.Module, args: Any) -> None:
        if len(args[0]) == 1:
            raise RuntimeError("one row")

    model[1].register_forward_pre_hook(refuse)
    quiet(model).remember(data())
    model.train()
    model(data())
    model.eval()
    with pytest.raises(RuntimeError, match="one row"):
        model(data()[:1])
    assert not model[1].training


# --- options -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aperture": 0.0}, "aperture"),
        ({"aperture": float("inf")}, "aperture"),
        ({"aperture": {}}, "empty mapping"),
        ({"aperture": {"nothing": 2.0}}, r"no aperture for layer '0'.*\['nothing'\]"),
        ({"aperture": Quota}, "aperture"),
        ({"increment_decay": -1.0}, "increment_decay"),
        ({"unsupported": "drop"}, "unsupported must be one of"),
        ({"batchnorm": "off"}, "batchnorm must be one of"),
        ({"rank": 0}, "rank"),
        ({"rank": 1.5}, "rank"),
        ({"rows": 0}, "rows"),
        ({"warn_at_quota": 2}, "warn_at_quota"),
        ({"dtype": torch.float16}, "dtype"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    model = mlp()
    with pytest.raises((TypeError, ValueError), match=message):
        Shield(model, **options)
    Shield(model)  # nothing was attached


def test_a_dtype_too_small_for_the_aperture_is_refused() -> None:
    model = mlp()
    shield = quiet(model, 1e4, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"float32 is too small for aperture 10000.0 at layer '0'"):
        shield.remember(data())
    assert shield.n_tasks == 0
    shield.detach()
    quiet(model, 1e4).remember(data())


def test_targets_are_checked() -> None:
    for kind in (Quota, Energy):
        for share in (0.0, 1.1, float("nan")):
            with pytest.raises(ValueError, match=kind.__name__):
                kind(share)


def test_not_a_module() -> None:
    with pytest.raises(TypeError, match=r"needs an nn\.Module"):
        Shield([])  # type: ignore[arg-type]


# --- explaining --------------------------------------------------------------------------


def test_explain_tells_what_is_done_where() -> None:
    model = nn.Sequential(mlp(), nn.Linear(3, 2).double(), nn.PReLU().double())
    shield = quiet(model, hard=True, unsupported="ignore", freeze=["1.bias"])
    assert {row.done for row in shield.explain()[:3]} == {"nothing is claimed"}
    optimizer = torch.optim.AdamW([*model[0].parameters(), *model[2].parameters()], lr=1e-3)
    shield.guard(optimizer).zero_grad()
    shield.remember(data())
    model(data(seed=2)).sum().backward()
    optimizer.step()
    rows = {row.layer: row for row in shield.explain()}
    assert list(rows) == ["0.0", "0.2", "1", "1.bias", "2.weight"]
    assert rows["0.0"].done == "gradients and steps projected"
    assert (rows["0.0"].rank, rows["0.0"].dim) == (4, 11)
    assert rows["0.0"].quota == pytest.approx(4 / 11)
    assert 0 < (rows["0.0"].passing or 0) < 1
    assert rows["1"].done == "no guarded optimizer steps it"
    assert rows["1.bias"].done == "held fixed after the first task"
    assert rows["2.weight"].done.startswith("left alone: PReLU")
    lines = str(shield.explain()).splitlines()
    assert lines[0].split() == ["layer", "done", "there", "rank", "quota", "passing"]
    assert "4/11  36.4%" in lines[1]
    assert len(lines) == 6
