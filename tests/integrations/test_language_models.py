"""Samples of texts: tokenized for the callback, or drawn from the model itself."""

from pathlib import Path
from typing import Any

import pytest
import torch

from conceptors import Shield

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ["<end>", "<pad>", "the", "cat", "dog", "sees", "hears", "a", "bird"]
SIZE: dict[str, Any] = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}


def network() -> Any:
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=len(WORDS), **SIZE, **ends)
    return transformers.GPT2LMHeadModel(config)


def tokenizer(**special: str) -> Any:
    words = {word: i for i, word in enumerate(WORDS)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<end>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **special)


@pytest.mark.parametrize("special", [{}, {"pad_token": "<pad>"}], ids=["no padding", "padding"])
def test_the_callback_tokenizes_texts(special: dict[str, str], tmp_path: Path) -> None:
    from conceptors.integrations.transformers import ShieldCallback

    model, options = network(), {"report_to": [], "use_cpu": True, "max_steps": 1}
    shield, texts = Shield(model), ["the cat sees", "a dog hears the bird", "a bird"]
    data = [{"input_ids": torch.tensor([2, 3, 5]), "labels": torch.tensor([2, 3, 5])}] * 8
    callback = ShieldCallback(shield, sample=texts)
    arguments = transformers.TrainingArguments(str(tmp_path), disable_tqdm=True, **options)
    trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback])
    with pytest.raises(ValueError, match=r"has no tokenizer.*processing_class"):
        trainer.train()
    trainer.callback_handler.processing_class = tokenizer(**special)
    trainer.train()
    claimed = shield.conceptors()["transformer.wte"].singular_values[:, 0] > 0
    assert shield.n_tasks == 2
    assert claimed[2:].all()  # also the words that occur in the texts only


def test_a_model_writes_its_own_sample() -> None:
    from conceptors.integrations.transformers import generate_sample

    model, ends = network().train(), tokenizer(eos_token="<end>")
    state = torch.get_rng_state()
    batches = generate_sample(model, ends, 10, length=20, batch=4)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert [len(batch["input_ids"]) for batch in batches] == [4, 4, 2]
    again = generate_sample(model, ends, 10, length=20, batch=4)
    other = generate_sample(model, ends, 10, length=20, batch=4, seed=1)
    assert torch.equal(again[0]["input_ids"], batches[0]["input_ids"])
    assert not torch.equal(other[0]["input_ids"][:, :5], batches[0]["input_ids"][:, :5])
    for batch in batches:
        for tokens, mask in zip(batch["input_ids"], batch["attention_mask"]):
            count = int(mask.sum())
            assert mask[:count].all()
            assert tokens[0] == 0
            assert (tokens[1 : count - 1] != 0).all()  # it ends where its end was drawn
            assert count == 20 or tokens[count - 1] == 0
    assert Shield(model).remember(batches).n_tasks == 1
