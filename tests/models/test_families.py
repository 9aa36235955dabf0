"""`Shield(model)` on real families of models, at tiny size, and the page about them."""

import pytest
import torch

from conceptors import Shield
from models.measure import HARD, Batch, Family, play, standing_of
from models.page import PAGE, read
from models.senses import BY_NAME, FAMILIES

every = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@pytest.fixture
def transformers() -> None:
    pytest.importorskip("transformers")


needs_transformers = pytest.mark.usefixtures("transformers")


@needs_transformers
@every
def test_every_parameter_is_protected_or_frozen(family: Family) -> None:
    standing = standing_of(family)
    assert bool(standing.refused) == bool(family.refused)
    trained = {name for name, p in family.build().named_parameters() if p.requires_grad}
    assert standing.protected | standing.frozen | standing.refused == trained
    assert not standing.protected & standing.frozen
    if family.refused:
        with pytest.raises(ValueError, match=r"(?i)choose unsupported='freeze'"):
            Shield(family.build()).remember([family.old()])


@needs_transformers
@every
def test_what_is_remembered_stays_and_the_new_is_learned(family: Family) -> None:
    outcome, standing = play(family, HARD), standing_of(family)
    assert outcome.drift <= 1e-3
    assert outcome.last_loss < 0.6 * outcome.first_loss
    assert not outcome.moved & (standing.frozen | standing.refused)
    assert outcome.moved


@needs_transformers
@every
def test_by_default_it_learns_and_drifts_less_than_without_a_shield(family: Family) -> None:
    shielded, plain = play(family, {}), play(family, None)
    assert shielded.last_loss < 0.7 * shielded.first_loss
    assert shielded.drift < 0.8 * plain.drift


COMPILED = [(name, True) for name in ("GPT-2", "Mixtral", "ConvNeXt", "wav2vec2")]


@needs_transformers
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of the compiler itself
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize(("name", "compiled"), [*COMPILED, ("Llama", False), ("Mixtral", False)])
def test_compiled_models_and_gradient_checkpointing(name: str, compiled: bool) -> None:
    model = BY_NAME[name].build()
    if not compiled:
        model.train().gradient_checkpointing_enable()
    call = torch.compile(model, backend="eager") if compiled else model
    outcome = play(BY_NAME[name], HARD, model, call)
    assert outcome.drift <= 1e-3
    assert outcome.last_loss < 0.6 * outcome.first_loss


def test_the_page_lists_all_families_and_what_the_tests_require() -> None:
    text = PAGE.read_text("utf-8")
    assert [name for name, *_ in read(text)] == [family.name for family in FAMILIES]
    for name, protected, _frozen, refused, hard, learned, _soft, learned_too, *_ in read(text):
        assert int(protected) > 0, name
        assert bool(int(refused)) == bool(BY_NAME[name].refused), name
        assert BY_NAME[name].refused in text, name
        assert float(hard) <= 1e-3, name
        for losses in (learned, learned_too):
            first, last = map(float, losses.split(" → "))
            assert last < 0.7 * first, name


LENGTHS = (3, 7, 5, 12)
TOLERANCE = {"Mixtral": 1e-6, "Llama 4": 1e-6}  # experts and routers compute in float32
NAMES = ["GPT-2", "Llama", "Qwen3", "OPT", "BERT", "ModernBERT", *TOLERANCE]


def claimed(name: str, batches: list[Batch]) -> dict[str, torch.Tensor]:
    model = BY_NAME[name].build()
    shield = Shield(model if name == "Mixtral" else model.double(), 9.0).remember(batches)
    return {layer: conceptor.matrix() for layer, conceptor in shield.conceptors().items()}


@needs_transformers
@pytest.mark.parametrize("name", NAMES)
def test_padding_is_not_remembered(name: str) -> None:
    """A padded batch claims what its texts claim one by one."""
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(3, 40, (length,), generator=draw) for length in LENGTHS]
    alone = [{"input_ids": text[None]} for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    together = claimed(name, [{"input_ids": ids, "attention_mask": mask}])
    for layer, conceptor in claimed(name, alone).items():
        tolerance = TOLERANCE.get(name, 1e-10)
        torch.testing.assert_close(together[layer], conceptor, rtol=0, atol=tolerance)
