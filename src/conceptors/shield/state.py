"""The state of a shield as plain data: pack it, write it, read it, and check it."""

import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conceptors._internal import checks, storage
from conceptors._internal.distributed import cut_like, whole
from conceptors.algebra.checks import check_spectrum
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import OddsForm, SpectrumForm
from conceptors.algebra.spectrum import Spectrum, values_of
from conceptors.shield.blocks import Scan
from conceptors.shield.claims import Claims, Remembered, misfits, size_of
from conceptors.shield.health import excerpts

FORMAT = "conceptors.Shield"
VERSION = 1
_DAMAGED = ("the state is damaged: ", "; nothing was loaded. Load another copy")

Groups = dict[str, dict[str, dict[str, Tensor]]]  # tensors by kind, name and part, as in `pack`


def pack(
    scan: Scan, remembered: Remembered, anchors: Mapping[str, Tensor], resting: set[str]
) -> dict[str, Any]:
    """Return the state of a shield: numbers, names, and tensors by "kind/name/part".

    `anchors` are the weights after the last task; for `resting` see `Health`.
    """
    claimed = remembered.claimed.conceptors
    tensors = {f"anchors/{n}/value": whole(w).to("cpu", copy=True) for n, w in anchors.items()}
    tensors |= {f"weights/{n}/value": x for n, x in excerpts(scan.blocks, claimed).items()}
    for kind, claims in zip(_kinds(len(remembered.tasks)), [remembered.claimed, *remembered.tasks]):
        for name, conceptor in claims.conceptors.items():
            if isinstance(conceptor.form, OddsForm):
                parts = {"odds_matrix": conceptor.form.matrix}
            else:
                vectors, odds, rest = conceptor.form.spectrum()
                is_rest = torch.tensor(float(math.isinf(rest)))
                parts = {"vectors": vectors, "odds": odds, "rest": is_rest}
            if name in claims.stiffness:
                parts["stiffness"] = claims.stiffness[name]
            tensors |= {f"{kind}/{name}/{part}": x.clone() for part, x in parts.items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "n_tasks": remembered.n_tasks,
        "kept_tasks": len(remembered.tasks),
        "sizes": list(remembered.sizes),
        "layers": list(scan.blocks),
        "unclaimed": [name for name in scan.blocks if name not in claimed],
        "resting": sorted(resting),
        "tensors": tensors,
    }


def _kinds(kept_tasks: int) -> list[str]:
    """Return the kinds of conceptors: those of all tasks together, and of each task."""
    return ["claimed", *(f"task{i}" for i in range(kept_tasks))]


def read(
    state: Mapping[str, Any], scan: Scan, model: nn.Module, strict: bool
) -> tuple[Remembered, dict[str, Tensor], dict[str, Tensor], set[str]]:
    """Check a state, and adapt it to a model; see `Shield.load_state_dict`.

    Returns the tasks, and the anchors, excerpts of weights, and resting layers of `pack`.
    """
    remembered, groups = check(state)
    conceptors = remembered.claimed.conceptors
    with explaining(*_DAMAGED):
        known, unclaimed, resting = (
            set(state[label] or ()) for label in ("layers", "unclaimed", "resting")
        )
        lacking = sorted(known - unclaimed - conceptors.keys())
        if lacking:
            raise ValueError(f"the conceptors of layers {', '.join(lacking[:5])} are missing")
        anchors = {
            name: checks.finite(parts["value"], f"the anchor of {name}")
            for name, parts in groups["anchors"].items()
        }
        weights = {name: parts["value"] for name, parts in groups["weights"].items()}
    blocks = scan.blocks | {n: s for n, s in scan.resting.items() if n in conceptors}
    wrong = {name: "is not in the model" for name in conceptors if name not in blocks}
    wrong |= misfits(remembered.claimed, blocks)
    if wrong and (strict or len(wrong) == len(conceptors)):
        listed = "\n".join(f"  {name} {why}" for name, why in wrong.items())
        raise ValueError(
            f"the state does not fit this model; nothing was loaded. Layers of the state:\n{listed}"
            f"\nCreate the model as it was, or pass strict=False to load the layers that fit"
        )
    where = {n: blocks[n].parameters[0].device for n in conceptors if n not in wrong}
    claimed, *tasks = (
        claims.without(wrong).mapped(lambda name, conceptor: conceptor.to(where[name]))
        for claims in (remembered.claimed, *remembered.tasks)
    )
    remembered = Remembered(claimed, tasks, remembered.n_tasks, remembered.sizes)
    weights = {name: weight for name, weight in weights.items() if name in where}
    return remembered, _fitting(anchors, model), weights, resting


def check(state: Any) -> tuple[Remembered, Groups]:
    """Check the tasks of a state, and return them and all tensors."""
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        is_model = isinstance(state, Mapping) and any(isinstance(v, Tensor) for v in state.values())
        hint = "It looks like the state of a model, for model.load_state_dict. " * is_model
        raise ValueError(
            f"this is not the state of a Shield; nothing was loaded. {hint}Pass the result of "
            f"shield.state_dict()"
        )
    if state.get("version") != VERSION:
        raise ValueError(
            f"the state has version {state.get('version')!r}, but this release reads version "
            f"{VERSION}; nothing was loaded. Upgrade with pip install -U conceptors"
        )
    with explaining(*_DAMAGED):
        n_tasks = checks.whole(state["n_tasks"], "n_tasks", 0)
        most = min(n_tasks, len(state["tensors"]))  # a damaged number must not fill the memory
        kinds = _kinds(checks.whole(state["kept_tasks"], "kept_tasks", 0, most))
        groups: Groups = {kind: {} for kind in ("anchors", "weights", *kinds)}
        for key, tensor in state["tensors"].items():
            kind, _, rest = key.partition("/")
            name, _, part = rest.rpartition("/")
            is_real = isinstance(tensor, Tensor) and tensor.is_floating_point()
            if kind not in groups or not is_real:
                raise ValueError(f"{key!r:.80} is unknown, or not a tensor of floats")
            groups[kind].setdefault(name, {})[part] = tensor
        claimed, *tasks = (_claims(groups[kind]) for kind in kinds)
        if len(tasks) not in (0, n_tasks):
            raise ValueError(f"n_tasks is {n_tasks}, but {len(tasks)} tasks were stored separately")
        for name, conceptor in ((n, c) for task in tasks for n, c in task.conceptors.items()):
            joint = claimed.conceptors.get(name)
            if joint is None or size_of(joint) != size_of(conceptor):
                raise ValueError(f"layer {name!r} of a task has another shape than that of all")
        sizes = [checks.number(size, "a size", 0.0, math.inf) for size in state["sizes"]]
    return Remembered(claimed, tasks, n_tasks, sizes), groups


def _claims(layers: Mapping[str, Mapping[str, Tensor]]) -> Claims:
    """Check the conceptors and the stiffness of layers."""
    claims = Claims()
    for name, parts in layers.items():
        with explaining(f"layer {name!r}: "):
            conceptor = claims.conceptors[name] = Conceptor(_form(parts))
            if len(conceptor.batch_shape) != 1:
                raise ValueError(f"its conceptor is {list(conceptor.batch_shape)}, not [groups]")
            if "stiffness" in parts:
                stiffness = claims.stiffness[name] = checks.finite(parts["stiffness"], "stiffness")
                if stiffness.shape != conceptor.batch_shape or bool((stiffness < 0).any()):
                    raise ValueError("stiffness must be one number of at least 0 for each group")
    return claims


def _form(parts: Mapping[str, Tensor]) -> OddsForm | SpectrumForm:
    if "odds_matrix" in parts:
        matrix = checks.positive_semidefinite(parts["odds_matrix"].double(), "odds_matrix")
        return OddsForm(matrix, torch.float64)
    vectors, odds = parts["vectors"].double(), parts["odds"].double()
    if bool((odds.isnan() | (odds < 0)).any()):
        raise ValueError("odds must be at least 0, or infinite")
    vectors, _, rest = check_spectrum(vectors, values_of(odds), parts["rest"])
    spectrum = Spectrum(vectors.clone(), odds.clone(), math.inf if rest else 0.0)
    return SpectrumForm(spectrum, torch.float64)


def _fitting(anchors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return the anchors of parameters that have not grown since, sharded like these."""
    fitting, parameters = dict[str, Tensor](), dict(model.named_parameters())
    for name in [name for name in anchors if name in parameters]:  # the same on all processes
        anchor = anchors[name]
        before, now = list(anchor.shape), list(parameters[name].shape)
        if len(before) != len(now) or any(a > b for a, b in zip(before, now)):
            raise ValueError(
                f"the state does not fit this model: {name} had shape {before} when it was saved, "
                f"and has {now} now; nothing was loaded. Create the model as it was then"
            )
        if before == now:
            fitting[name] = cut_like(anchor, parameters[name].data)
    return fitting


@contextmanager
def explaining(before: str, after: str = "") -> Iterator[None]:
    """Raise every error of wrong content as a ValueError with these words around its message."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{before}{error}{after}") from error


def write_file(state: Mapping[str, Any], path: str | Path) -> None:
    """Write a state as a safetensors file."""
    header = {key: json.dumps(value) for key, value in state.items() if key != "tensors"}
    storage.write(state["tensors"], header, path)


def read_file(path: str | Path) -> dict[str, Any]:
    """Read a state from a file of `write_file`."""
    if zipfile.is_zipfile(path):
        raise ValueError(
            f"{path} was written by torch.save, but a shield is loaded from a file of shield.save. "
            f"If this is the model's file, call model.load_state_dict(torch.load(path))"
        )
    tensors, header = storage.read(path, "shield")
    try:
        return {key: json.loads(value) for key, value in header.items()} | {"tensors": tensors}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a shield file: {error}") from error


def read_claims(path: str | Path) -> tuple[int, dict[str, Conceptor]]:
    """Read the number of tasks and the conceptors of all tasks from a file, without a model."""
    state = read_file(path)
    with explaining(f"{path}: "):
        remembered, _ = check(state)
        layers = [str(name) for name in state["layers"]]
    conceptors = remembered.claimed.conceptors
    order = [name for name in layers if name in conceptors]  # as in the model
    return remembered.n_tasks, {n: conceptors[n] for n in dict.fromkeys([*order, *conceptors])}
