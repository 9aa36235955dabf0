"""The state of a shield as plain data: pack it, save it, read it, and check it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from conceptors._internal import checks, storage
from conceptors.algebra.checks import check_spectrum
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import OddsForm, SpectrumForm
from conceptors.algebra.spectrum import Spectrum
from conceptors.shield.blocks import WeightBlock, is_sharded
from conceptors.shield.claims import Claims, Remembered
from conceptors.shield.distributed import cut_like, cut_rows, gathered

if TYPE_CHECKING:
    from conceptors.shield.shield import Shield

FORMAT = "conceptors.Shield"
VERSION = 1
_TENSORS = ("anchors", "stiffness", "notes")
_SCALARS = ("format", "version", "n_tasks", "layers", "unclaimed", "resting")
_PADDED = 15  # the most directions that padding on a GPU adds to a note
_MOST_TASKS = 100_000  # in a file: a damaged header must not fill the memory


class LoadReport(NamedTuple):
    """The result of `Shield.load_state_dict`, as names of layers.

    Attributes:
        loaded: layers whose claims were loaded.
        missing: layers of the model that the state does not contain; nothing of them is protected.
        unexpected: layers of the state that the model does not have.
        mismatched: layers of different shapes in state and model, each with an explanation.
    """

    loaded: list[str]
    missing: list[str]
    unexpected: list[str]
    mismatched: dict[str, str]

    @property
    def fits(self) -> bool:
        """Whether all layers of state and model match."""
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} layers loaded"]
        if self.missing:
            lines.append(f"in the model but not in the state: {', '.join(self.missing)}")
        if self.unexpected:
            lines.append(f"in the state but not in the model: {', '.join(self.unexpected)}")
        lines += [f"different shapes: {name}: {why}" for name, why in self.mismatched.items()]
        return "\n".join(lines)


def pack(shield: Shield) -> dict[str, Any]:
    """Return the state of a shield; see `Shield.state_dict`."""
    remembered = shield._remembered
    return {
        "format": FORMAT,
        "version": VERSION,
        "n_tasks": shield.n_tasks,
        "layers": list(shield._scan.sites),
        "unclaimed": [n for n in shield._scan.sites if n not in remembered.claimed.conceptors],
        "resting": sorted(shield._watch.resting.names),
        "claimed": {name: _pack(c) for name, c in remembered.claimed.conceptors.items()},
        "tasks": [
            {name: _pack(c, task.stiffness.get(name)) for name, c in task.conceptors.items()}
            for task in remembered.tasks
        ],
        "anchors": {name: gathered(anchor) for name, anchor in shield._anchors.values.items()},
        "stiffness": {name: value.clone() for name, value in remembered.claimed.stiffness.items()},
        "notes": _notes(shield),
    }


def _notes(shield: Shield) -> dict[str, Tensor]:
    """Return the notes of optimizers in the middle of a task, for layers with one optimizer."""
    by_guard = [guard.plan.notes() for guard in shield._guards]
    counts = Counter(name for notes in by_guard for name in notes)
    return {n: note for notes in by_guard for n, note in notes.items() if counts[n] == 1}


class LoadedState(NamedTuple):
    """A checked state, before the shield adopts it."""

    remembered: Remembered
    resumed: dict[str, Tensor]
    anchors: dict[str, Tensor]
    resting: set[str]
    report: LoadReport


def read(
    shield: Shield, state: Mapping[str, Any], *, strict: bool, rename: Mapping[str, str]
) -> LoadedState:
    """Read a state for this shield without changing it; see `Shield.load_state_dict`."""
    n_tasks, claimed, tasks, anchors = _parsed(state, rename)
    notes = _tensors(state, "notes", rename)
    known, unclaimed, resting = (
        _names(state, label, rename) for label in ("layers", "unclaimed", "resting")
    )
    lacking = sorted(known - unclaimed - claimed.conceptors.keys())
    if lacking:
        raise _damaged(f"the conceptors of layers {', '.join(lacking[:5])} are missing")
    sites = dict(shield._scan.sites)
    sites |= {n: s for n, s in shield._scan.resting.items() if n in claimed.conceptors}
    sizes = {name: site.size for name, site in sites.items()}
    grown = {
        name: sizes[name][0]
        for name, conceptor in claimed.conceptors.items()
        if name in sites and sites[name].has_more_tokens(conceptor)
    }
    claimed, tasks = claimed.with_tokens(grown), [task.with_tokens(grown) for task in tasks]
    mismatched = {}
    for name, conceptor in claimed.conceptors.items():
        size = _size(conceptor)
        if name in sizes and size != sizes[name]:
            mismatched[name] = (
                f"the state has {size[0]} groups of {size[1]} inputs, the model {sizes[name][0]} "
                f"of {sizes[name][1]} (biases count as inputs)"
            )
    conceptors = claimed.conceptors
    report = LoadReport(
        loaded=[name for name in conceptors if name in sizes and name not in mismatched],
        missing=[name for name in sizes if name not in conceptors and name not in known],
        unexpected=[name for name in conceptors if name not in sizes],
        mismatched=mismatched,
    )
    if (strict and not report.fits) or (n_tasks and conceptors and not report.loaded):
        raise ValueError(
            f"the state does not fit this model; nothing was loaded.\n{report}\nPass rename="
            f"{{old: new}}{', or strict=False to load matching layers' if report.loaded else ''}"
        )
    devices = {name: s.parameters[0].device for name, s in sites.items()}
    where = {name: devices[name] for name in report.loaded}
    parameters = dict(shield.model.named_parameters())
    for name, note in notes.items():
        if name in where:
            _check_note(sites[name], note)
    for name, anchor in anchors.items():
        if name in parameters and not _has_grown(anchor.shape, parameters[name].shape):
            raise _damaged(
                f"the anchor of {name} has shape {list(anchor.shape)}, the parameter "
                f"{list(parameters[name].shape)}"
            )
    return LoadedState(
        Remembered(_placed(claimed, where), [_placed(task, where) for task in tasks], n_tasks),
        {n: _local_note(sites[n], note) for n, note in notes.items() if n in where},
        {
            name: cut_like(anchor, parameters[name].data)
            for name, anchor in anchors.items()
            if name in parameters and parameters[name].shape == anchor.shape
        },
        resting,
        report,
    )


def _has_grown(before: torch.Size, now: torch.Size) -> bool:
    """Whether a shape is equal to an earlier one, or larger in some dimensions."""
    return len(before) == len(now) and all(a <= b for a, b in zip(before, now))


def _check_note(site: WeightBlock, note: Tensor) -> None:
    """Check that a note W U `[g, out, r]` fits its layer, where only `out` may have grown."""
    groups, dim = site.size
    outputs = site.parameters[0].numel() // (groups * max(1, dim - len(site.biases)))
    most = torch.Size((groups, max(outputs, 1), dim + _PADDED))
    if note.ndim != 3 or len(note) != groups or not _has_grown(note.shape, most):
        raise _damaged(
            f"the note of layer {site.name!r} has shape {list(note.shape)}, but the layer has "
            f"{groups} groups of {outputs} outputs and {dim} inputs"
        )


def _local_note(site: WeightBlock, note: Tensor) -> Tensor:
    """Return the part of a note that this process needs."""
    first = site.parameters[0]
    return cut_rows(note, first) if site.block.rows_first and is_sharded(first.data) else note


def _placed(claims: Claims, where: Mapping[str, torch.device]) -> Claims:
    """Move the claims of these layers to their devices, and drop the others."""
    return Claims(
        {name: c.to(where[name]) for name, c in claims.conceptors.items() if name in where},
        {name: t for name, t in claims.stiffness.items() if name in where},
    )


def _size(conceptor: Conceptor) -> tuple[int, int]:
    return conceptor.batch_shape[0], conceptor.dim


def save(state: Mapping[str, Any], path: str | Path) -> None:
    """Write a state as a safetensors file."""
    tensors: dict[str, Tensor] = {}
    header = {key: state.get(key) for key in _SCALARS}
    groups = [("claimed", state["claimed"])]
    groups += [(f"task{i}", task) for i, task in enumerate(state["tasks"])]
    for label, conceptors in groups:
        for name, packed in conceptors.items():
            for key, value in packed.items():
                tensors[f"{label}/{name}/{key}"] = torch.as_tensor(value)
    for label in _TENSORS:
        for name, tensor in state.get(label, {}).items():
            tensors[f"{label}/{name}/value"] = tensor
    header["tasks"] = len(state["tasks"])
    storage.write(tensors, {k: json.dumps(v) for k, v in header.items()}, path)


def load(path: str | Path) -> dict[str, Any]:
    """Read a state from a file of `save`."""
    tensors, raw = storage.read(path, "shield")
    try:
        header = {key: json.loads(value) for key, value in raw.items()}
        count = checks.whole(header.get("tasks", 0), "tasks", 0, _MOST_TASKS)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a shield file: {error}") from error
    state: dict[str, Any] = {key: header.get(key) for key in _SCALARS}
    state |= {label: {} for label in _TENSORS}
    state |= {"claimed": {}, "tasks": [{} for _ in range(count)]}
    for key, tensor in tensors.items():
        label, _, rest = key.partition("/")
        name, _, part = rest.rpartition("/")
        if label in _TENSORS:
            state[label][name] = tensor
            continue
        tasks = state["tasks"]
        index = label.removeprefix("task")
        if label != "claimed" and not (
            index.isascii() and index.isdecimal() and len(index) < 9 and int(index) < len(tasks)
        ):
            raise ValueError(f"{path} is not a shield file: unknown entry {key!r:.80}")
        target = state["claimed"] if label == "claimed" else tasks[int(index)]
        target.setdefault(name, {})[part] = tensor if tensor.ndim else tensor.item()
    return state


def load_into(
    shield: Shield, path: str | Path, *, strict: bool, rename: Mapping[str, str] | None
) -> LoadReport:
    """Load a file into a shield; every error in its content raises ValueError."""
    state = load(path)
    try:
        return shield.load_state_dict(state, strict=strict, rename=rename)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error


def read_claims(path: str | Path) -> tuple[int, dict[str, Conceptor]]:
    """Read the number of tasks and the conceptors of all tasks from a file, without a model.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged, or not a shield file.
    """
    state = load(path)
    try:
        n_tasks, claimed, _, _ = _parsed(state, {})
        _names(state, "layers", {})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error
    conceptors = claimed.conceptors
    order = [name for name in state["layers"] or [] if name in conceptors]  # as in the model
    return n_tasks, {name: conceptors[name] for name in dict.fromkeys([*order, *conceptors])}


def _pack(conceptor: Conceptor, stiffness: Tensor | None = None) -> dict[str, Any]:
    """Return the exact odds matrix or the spectrum of a conceptor, and the stiffness if any."""
    packed = {} if stiffness is None else {"stiffness": stiffness.clone()}
    form = conceptor.form
    if isinstance(form, OddsForm):
        return packed | {"odds_matrix": form.matrix.clone()}
    parts = form.spectrum()
    return packed | {
        "vectors": parts.vectors.clone(),
        "odds": parts.odds.clone(),
        "rest": 1.0 if math.isinf(parts.rest) else 0.0,
    }


def _unpack(name: str, packed: Mapping[str, Any]) -> Conceptor:
    try:
        if "odds_matrix" in packed:
            odds = _real(packed["odds_matrix"], "odds_matrix")
            odds = checks.positive_semidefinite(odds.double(), f"odds_matrix of {name}")
            if odds.ndim != 3:
                raise ValueError(f"shape {list(odds.shape)} is not [groups, d, d]")
            return Conceptor.from_form(OddsForm(odds, torch.float64))
        vectors, odds = (_real(packed[key], key).double() for key in ("vectors", "odds"))
        if isinstance(packed["rest"], Tensor) and packed["rest"].ndim:
            raise ValueError(f"rest of shape {list(packed['rest'].shape)} is not one number")
        if bool((odds.isnan() | (odds < 0)).any()):
            raise ValueError("odds are not numbers in [0, inf]")
        values = torch.where(torch.isinf(odds), 1.0, odds / (1 + odds))
        vectors, values, rest = check_spectrum(vectors, values, packed["rest"])
        if vectors.ndim != 3:
            raise ValueError(f"shape {list(vectors.shape)} is not [groups, d, r]")
        spectrum = Spectrum(vectors.clone(), odds.clone(), math.inf if rest else 0.0)
        return Conceptor.from_form(SpectrumForm(spectrum, torch.float64))
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise _damaged(f"layer {name!r}: {error}") from error


def _parsed(
    state: Mapping[str, Any], rename: Mapping[str, str]
) -> tuple[int, Claims, list[Claims], dict[str, Tensor]]:
    """Check a state; return the number of tasks, all claims, those of each task, and anchors."""
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        kind = state.get("format") if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(
            f"this is not the state of a Shield (format {kind!r}); nothing was loaded. Pass the "
            f"result of shield.state_dict()"
        )
    if state.get("version") != VERSION:
        raise ValueError(
            f"the state has version {state.get('version')!r}, but this release reads version "
            f"{VERSION}; nothing was loaded. Upgrade with pip install -U conceptors"
        )
    n_tasks = checks.whole(state.get("n_tasks"), "n_tasks", 0)
    claimed = _claims(_mapping(state.get("claimed"), "claimed"), rename)
    claimed.stiffness.update(_tensors(state, "stiffness", rename))
    _check_stiffness(claimed)
    tasks = state.get("tasks")
    if not isinstance(tasks, (list, tuple)) or len(tasks) not in (0, n_tasks):
        raise _damaged(f"n_tasks is {n_tasks}, but tasks are {tasks!r:.60}")
    each = [_claims(_mapping(task, f"task {i}"), rename) for i, task in enumerate(tasks)]
    for task in each:
        for name, conceptor in task.conceptors.items():
            joint = claimed.conceptors.get(name)
            if joint is None or _size(joint) != _size(conceptor):
                raise _damaged(
                    f"layer {name!r} of one task has another shape than that of all tasks"
                )
    return n_tasks, claimed, each, _tensors(state, "anchors", {})


def _claims(packed: Mapping[str, Any], rename: Mapping[str, str]) -> Claims:
    """Check the conceptors and the stiffness of layers."""
    layers = {name: _mapping(parts, f"layer {name!r}") for name, parts in packed.items()}
    stiffness = {name: parts["stiffness"] for name, parts in layers.items() if "stiffness" in parts}
    claims = Claims(
        {rename.get(name, name): _unpack(name, parts) for name, parts in layers.items()},
        _tensors({"stiffness": stiffness}, "stiffness", rename),
    )
    _check_stiffness(claims)
    return claims


def _check_stiffness(claims: Claims) -> None:
    for name, stiffness in claims.stiffness.items():
        conceptor = claims.conceptors.get(name)
        if conceptor is None:
            continue
        shape = conceptor.batch_shape
        if stiffness.shape != shape or bool((stiffness < 0).any()):
            raise _damaged(
                f"the stiffness of layer {name!r} has shape {list(stiffness.shape)}, but must be "
                f"one number >= 0 for each of {list(shape)} groups"
            )


def _tensors(state: Mapping[str, Any], label: str, rename: Mapping[str, str]) -> dict[str, Tensor]:
    """Check a mapping from names to tensors."""
    tensors = _mapping(state.get(label) or {}, label)
    try:
        real = {name: _real(tensor, f"{label} of {name}") for name, tensor in tensors.items()}
        return {rename.get(n, n): checks.finite(t, f"{label} of {n}") for n, t in real.items()}
    except (TypeError, ValueError) as error:
        raise _damaged(str(error)) from error


def _real(value: Any, name: str) -> Tensor:
    """Check that a value is a tensor of real floats."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = f"{value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a tensor of floats, got {kind}")
    return value


def _names(state: Mapping[str, Any], label: str, rename: Mapping[str, str]) -> set[str]:
    """Check a list of names."""
    names = state.get(label) or []
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise _damaged(f"{label} must be names, got {names!r:.60}")
    return {rename.get(name, name) for name in names}


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _damaged(f"{what} must be a mapping of names, got {value!r:.60}")
    return value


def _damaged(why: str) -> ValueError:
    return ValueError(f"the state is damaged: {why}; nothing was loaded. Load another copy")
