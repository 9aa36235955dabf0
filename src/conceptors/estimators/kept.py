"""A module that keeps sums: they move to its device, stay float64, and are part of its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from conceptors.estimators.lift import Lift
from conceptors.estimators.samples import KINDS
from conceptors.estimators.sums import Sums

_PARTS = ("gram", "cross", "squares", "count")


class KeepsSums(nn.Module):
    """Sums over all samples, those of named tasks apart, saved as plain tensors."""

    lift: nn.Module
    weighting: str
    _here: Tensor  # tells the device
    _solved: Any
    _limit: int | None  # of classes

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_here", torch.empty(0), persistent=False)
        self._sums = Sums(0, device=torch.device("cpu"))  # of samples without a task's name
        self._tasks: dict[str, Sums] = {}
        self._pass: Sums | None = None  # of samples that are added all together, or not at all
        self._kind = 0  # of targets; 0 before anything is learned
        self._loading: tuple[Callable[[], None], list[str], int, str] | None = None
        self.register_load_state_dict_post_hook(_settle)  # type: ignore[no-untyped-call]

    def _sums_of(self, task: str | None, width: int) -> Sums:
        """Where samples of a task are added, made if need be."""
        if self._pass is not None:
            if not self._pass.dim:
                self._pass = Sums(width, device=self._here.device)
            return self._pass
        if task is not None:
            return self._tasks.setdefault(task, Sums(width, device=self._here.device))
        if not self._sums.dim:
            self._sums = Sums(width, device=self._here.device)
        return self._sums

    @contextmanager
    def _one_pass(self, task: str | None) -> Iterator[None]:
        """What is learned inside is added at the end; if anything fails, nothing was learned."""
        kind, solved = self._kind, self._solved
        lift = self.lift if isinstance(self.lift, Lift) and not self.lift.is_calibrated else None
        self._pass = Sums(0, device=self._here.device)
        try:
            yield
        except BaseException:
            self._pass, self._kind, self._solved = None, kind, solved
            if lift is not None:
                lift.reset()
            raise
        found, self._pass = self._pass, None
        if task is not None and task not in self._tasks:
            self._tasks[task] = found
        elif task is None and not self._sums.dim:
            self._sums = found
        else:
            self._sums_of(task, found.dim).include(found)

    def _outputs(self) -> int:
        parts = (self._sums, *self._tasks.values(), self._pass or self._sums)
        return max(sums.outputs for sums in parts)

    def _total(self) -> Sums:
        """Of all tasks; with `weighting="tasks"` each counts as much as the average one."""
        parts = [sums for sums in (self._sums, *self._tasks.values()) if sums.dim]
        if not self._kind or not parts or not any(sums.count for sums in parts):
            raise RuntimeError("nothing was learned yet; call learn(features, targets) first")
        if len(parts) == 1:
            parts[0].check()
            return parts[0]
        total = Sums(parts[0].dim, self._outputs(), self._here.device)
        mean = sum(sums.count for sums in parts) / len(parts)
        for sums in parts:
            total.include(sums, mean / sums.count if self.weighting == "tasks" else 1.0)
        return total

    # --- as a module ----------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Only the device changes: `.half()` of a model around it would spoil the sums."""
        device = fn(self._here).device

        def move(tensor: Tensor) -> Tensor:
            return fn(tensor) if tensor.is_meta else tensor.to(device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        for sums in (self._sums, *self._tasks.values()):
            if sums.dim:
                sums.to(device)
        self._solved = None
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "kind"] = torch.tensor(self._kind)
        named = {"sums": self._sums} if self._sums.dim else {}
        named |= {f"tasks.{name}": sums for name, sums in self._tasks.items()}
        for name, sums in named.items():
            for part, value in sums.tensors().items():
                # A copy: learning goes on in place, and a state must stay what it was.
                destination[f"{prefix}{name}.{part}"] = value if keep_vars else value.clone()

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Take over a state, on any device. If anything is wrong, nothing changes.

        Raises:
            RuntimeError: the state is damaged, or of another readout.
        """
        undo = _undo(self)
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except BaseException:
            undo()
            raise

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        self._loading = (_undo(self), error_msgs, len(error_msgs), prefix)
        own = {k: v for k, v in state_dict.items() if _is_sum(k, prefix)}
        rest = {k: v for k, v in state_dict.items() if k not in own}
        super()._load_from_state_dict(
            rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if not own:
            missing_keys.append(prefix + "kind")
            return
        try:
            kind, found = self._read(own, prefix)
            self._check(kind, found, {k.removeprefix(prefix) for k in rest})
        except (ValueError, TypeError, RuntimeError) as error:  # RuntimeError: no dense tensors
            error_msgs.append(f"{prefix}sums cannot be used: {error}")
            return
        self._kind, self._solved = kind, None
        self._sums = found.pop("sums", Sums(0))
        self._tasks = {name.removeprefix("tasks."): sums for name, sums in found.items()}

    def _read(self, own: Mapping[str, Any], prefix: str) -> tuple[int, dict[str, Sums]]:
        kind, groups = None, dict[str, dict[str, Tensor]]()
        for key, value in own.items():
            if not isinstance(value, Tensor):
                raise TypeError(f"{key} is a {type(value).__name__}, not a tensor")
            name, _, part = key.removeprefix(prefix).rpartition(".")
            if not name:
                whole = value.dtype == torch.int64 and value.numel() == 1
                kind = int(value) if whole else -1
            else:
                groups.setdefault(name, {})[part] = value
        if kind is None or not 0 <= kind < len(KINDS) or (kind == 0) != (not groups):
            raise ValueError(f"kind {kind} does not fit {len(groups)} groups of sums")
        width: Any = self.lift.out_features
        here = self._here.device
        return kind, {name: Sums.of(group, int(width) + 1, here) for name, group in groups.items()}

    def _check(self, kind: int, found: dict[str, Sums], rest: set[str]) -> None:
        """Refuse sums that do not go together, or not with this readout."""
        outputs = {sums.outputs for sums in found.values()}
        if KINDS[kind] == "labels" and self._limit and max(outputs) > self._limit:
            raise ValueError(f"{max(outputs)} classes are more than this readout's {self._limit}")
        if KINDS[kind] == "numbers" and len(outputs) > 1:
            raise ValueError(f"tasks have different numbers of outputs: {sorted(outputs)}")
        if KINDS[kind] == "number" and outputs != {1}:
            raise ValueError(f"there are {max(outputs)} outputs where one number was learned")
        for sums in found.values():
            ones = float(sums.gram[-1, -1])
            if abs(ones - sums.count) > 1e-6 * sums.count:
                raise ValueError(f"sums of {ones:g} samples claim to be of {sums.count:g}")
        needed = {
            ".".join(filter(None, ("lift", path, name)))
            for path, part in self.lift.named_modules()
            if isinstance(part, Lift)
            for name in part.fitted
        }
        if kind and not needed <= rest:
            raise ValueError("the lift that they were made with is missing")


def _undo(module: KeepsSums) -> Callable[[], None]:
    """What puts a module back as it is now."""
    own = {name: vars(module)[name] for name in ("_sums", "_tasks", "_kind", "_solved")}
    places = [(part, dict(part._buffers), dict(part._parameters)) for part in module.modules()]
    contents = [(x, x.detach().clone()) for x in chain(module.parameters(), module.buffers())]

    def undo() -> None:
        vars(module).update(own)
        for part, buffers, parameters in places:
            part._buffers.update(buffers)
            part._parameters.update(parameters)
        with torch.no_grad():
            for tensor, content in contents:  # loading writes into them
                tensor.copy_(content)

    return undo


def _settle(module: KeepsSums, incompatible: Any) -> None:
    """A state is taken over as a whole or not at all, also as a part of a larger model's."""
    if module._loading is None:
        return
    undo, errors, before, prefix = module._loading
    module._loading = None
    if len(errors) > before or any(key.startswith(prefix) for key in incompatible.missing_keys):
        undo()


def _is_sum(key: str, prefix: str) -> bool:
    if not key.startswith(prefix):
        return False
    name, _, part = key.removeprefix(prefix).rpartition(".")
    if not name:
        return part == "kind"
    return part in _PARTS and (name == "sums" or name.startswith("tasks."))
