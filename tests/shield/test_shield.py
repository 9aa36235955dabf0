"""Remembering, how much is claimed, and what a shield reports about it."""

import re
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, TensorDataset

from conceptors import Conceptor, Energy, Quota, Shield, similarity
from conceptors.algebra.tasks import join_novel, stride
from conceptors.shield import ShieldFullWarning
from helpers import drift, eye
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
        ({"x": x}, {}, TypeError, r"got one mapping of \['x'\]; pass \[batch\]"),
        ((x, torch.zeros(40)), {}, TypeError, r"one tuple of tensors.*pass the inputs alone"),
        ([{"x": x}], {}, TypeError, r"unexpected keyword.*model\(batch\['x'\]\)"),
        (["a text"], {}, TypeError, "pass tensors: .*tokenizer"),
        ([x.numpy()], {}, TypeError, "pass tensors: torch.as_tensor"),
        ([x, x[:, 1:]], {}, RuntimeError, "shapes cannot be multiplied"),
        (x, {"limit": 0}, ValueError, "limit"),
        (x, {"known": -0.1}, ValueError, "known"),
        (x, {"known": float("nan")}, ValueError, "known"),
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


class Twins(nn.Module):
    """Two linear layers that share their weight or their bias."""

    def __init__(self, shared: str) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(9, 9), nn.Linear(9, 9)
        setattr(self.b, shared, getattr(self.a, shared))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh())  # type: ignore[no-any-return]


class Language(nn.Module):
    """Embeddings that are the output weights too: rows of one block and groups of another."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.mix, self.out = nn.Embedding(12, 8), nn.Linear(8, 8), nn.Linear(8, 12)
        self.out.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.mix(self.tokens(tokens)).tanh())  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["weight", "bias", "tied"])
def test_what_layers_share_is_protected(kind: str) -> None:
    """With two optimizers for the same parameters."""
    torch.manual_seed(0)
    model: Any = (Language() if kind == "tied" else Twins(kind)).double()
    tokens = torch.tensor([[0, 2, 4]]), torch.tensor([[1, 2, 3], [5, 7, 9]])
    old, new = tokens if kind == "tied" else (samples(0, 2, 9, 9), samples(1, 4, 9, 9))
    shield = Shield(model, 1e4, hard=True)
    optimizers = [shield.guard(make(model.parameters(), lr=0.02)) for make in (SGD, AdamW)]
    before, start = shield.remember(old).model(old).detach(), model(new).detach()
    for _ in range(25):
        for optimizer in optimizers:
            train(model, optimizer, new, 1)
    assert drift(model(old), before) < 1e-10
    assert (model(new) - 1).square().mean() < 0.99 * (start - 1).square().mean()


def test_each_user_of_a_shared_weight_has_its_own_bias_unit() -> None:
    model, x = Twins("weight").double(), samples(0, 7, 9)
    claimed = Shield(model, 2.0).remember(x).conceptors()["a"]
    hidden = model.a(x).tanh().detach()
    units = eye(2)[:, None].expand(2, 7, 2)
    rows = torch.cat([torch.stack([x, hidden]), units], -1).flatten(0, 1)
    odds = 2.0**2 * rows.mT @ rows / 14
    expected = odds @ torch.linalg.inv(odds + eye(11))
    torch.testing.assert_close(claimed.matrix()[0], expected, rtol=0, atol=1e-10)


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
def test_full_layers(
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


def correlation(dim: int, rank: int, *batch: int) -> Tensor:
    rows = torch.randn(*batch, rank, dim, dtype=torch.float64)
    return rows.mT @ rows / rank


@pytest.mark.parametrize("known", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rank", [3, 9])
def test_join_novel_is_its_formula(known: float, rank: int) -> None:
    old, more = correlation(6, rank), correlation(6, rank)
    A, C = Conceptor.from_correlation(old, 3.0), Conceptor.from_correlation(more, 2.0)
    joined = join_novel(A, C, known)
    if rank > 6:  # M with Mᵀ Q_A M diagonal and Mᵀ Q_C M = I, by Cholesky instead
        root = torch.linalg.cholesky(4 * more)
        inner = torch.linalg.solve(root, torch.linalg.solve(root, 9 * old).mT)
        ratios, turn = torch.linalg.eigh(inner)
        total = ratios + (1 - known * ratios).clamp_min(0)
        expected = root @ turn @ torch.diag(total) @ turn.mT @ root.mT
        odds = joined.matrix() @ torch.linalg.inv(eye(6) - joined.matrix())
        torch.testing.assert_close(odds, expected, rtol=1e-8, atol=1e-8)
    assert bool(joined >= A)  # at least what each claims
    assert bool(joined >= C)
    assert bool(joined <= (A | C))  # at most what OR claims


def test_nothing_known_and_hard_conceptors_are_joined_by_or_bit_for_bit() -> None:
    A, C = (Conceptor.from_correlation(correlation(5, 3), 3.0) for _ in range(2))
    for known, (left, right) in {0.0: (A, C), 1.0: (A.harden(), C.harden())}.items():
        assert torch.equal(join_novel(left, right, known).matrix(), (left | right).matrix())


@pytest.mark.parametrize("known", [0.0, 0.5, 1.0])
def test_stride_is_its_formula(known: float) -> None:
    old, new = correlation(6, 9), correlation(6, 9)
    free = torch.linalg.inv(eye(6) + 16 * old)
    A = Conceptor.from_correlation(old, 4.0)
    ratio = torch.linalg.eigvalsh(new)[-1] / torch.linalg.eigvals(free @ new).real.max()
    for aperture in (1.0, 9.0):  # it cancels
        longer = stride(A, Conceptor.from_correlation(new, aperture), known)
        torch.testing.assert_close(longer, ratio ** (known / 2))


def test_known_tasks_claim_less_and_allow_longer_steps() -> None:
    old, new = samples(1), samples(1) + 0.1 * samples(2)
    A, C = (Conceptor.from_states(with_unit(x), 3.0) for x in (old, new))
    shield = quiet(mlp())
    assert shield.strides(new, known=1.0) == {}  # nothing is remembered yet
    shield.remember(old)
    longer = shield.strides(new, known=0.8)["0"]
    assert longer == pytest.approx(float(stride(A, C, 0.8)))
    assert longer > 1
    assert set(shield.strides(new, known=0.0).values()) == {1.0}
    shield.remember(new, known=0.8)
    torch.testing.assert_close(matrices(shield)["0"][0], join_novel(A, C, 0.8).matrix())


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
    def table(depth: int) -> Any:
        widths = [8, *[6] * (depth - 1)]
        pairs: list[Any] = [OrderedDict(up=nn.Linear(4, w), down=nn.Linear(w, 4)) for w in widths]
        blocks = nn.Sequential(*(nn.Sequential(pair) for pair in pairs))
        model = nn.Sequential(OrderedDict(blocks=blocks, head=nn.Linear(4, 2)))
        return Shield(model).remember(samples(inputs=4).float()).explain()

    lines = str(table(20)).splitlines()[1:]
    names = [line.split("  ")[0] for line in lines]
    assert names == ["blocks.*.up (20)", "blocks.0.down", "blocks.*.down (19)", "head"]
    assert re.search(r"\d% \(\d+\.\d%\.\.\d+\.\d%\)", lines[0])  # the mean, and the range
    assert len(str(table(19)).splitlines()) == 1 + len(table(19)) == 40
