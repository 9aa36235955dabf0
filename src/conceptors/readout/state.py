"""A module that stores sums: they follow its device, stay float64, and are part of its state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from conceptors.readout.samples import KINDS
from conceptors.readout.solve import Solution
from conceptors.readout.sums import Sums


class SavedSums(nn.Module):
    """A lift, and sums over lifted samples. A damaged state is refused as a whole."""

    _here: Tensor  # on the module's device

    def __init__(self, lift: nn.Module, classes: int | None) -> None:
        super().__init__()
        self.lift = lift
        self.register_buffer("_here", torch.empty(0), persistent=False)
        self._limit = classes
        self._kind = 0  # of targets, an index into KINDS
        self._sums: Sums | None = None
        self._solved: Solution | None = None

    @property
    def _is_calibrated(self) -> bool:
        return bool(getattr(self.lift, "is_calibrated", True))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Only the device changes: `.half()` of a model around it would spoil the sums."""
        device = fn(self._here).device

        def move(tensor: Tensor) -> Tensor:
            return fn(tensor) if tensor.is_meta else tensor.to(device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        if self._sums:
            self._sums.to(device)
        self._solved = None
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "kind"] = torch.tensor(self._kind)
        if self._sums:
            for name, value in self._sums.tensors().items():  # `learn` changes them in place
                destination[f"{prefix}sums.{name}"] = value.clone()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """The last arguments are missing keys, unexpected keys and error messages."""
        state = {
            key[len(prefix) :]: state_dict[key] for key in state_dict if key.startswith(prefix)
        }
        if not state:
            args[-3].append(prefix + "kind")
            return
        own = {key: state[key] for key in state if key == "kind" or key.startswith("sums.")}
        for key in own:
            del state_dict[prefix + key]  # the others are the lift's
        try:
            kind, sums = self._read(own)
            lift: Any = copy.deepcopy(self.lift)
            lift.load_state_dict({k[5:]: v for k, v in state.items() if k.startswith("lift.")})
            if sums and not getattr(lift, "is_calibrated", True):
                raise ValueError("their lift is not calibrated")
            if not all(bool(value.isfinite().all()) for value in lift.state_dict().values()):
                raise ValueError("their lift has entries that are not finite")
        except (TypeError, ValueError, RuntimeError) as error:
            args[-1].append(f"{prefix}sums cannot be used: {error}")
            for key in [key for key in state_dict if key.startswith(prefix)]:
                del state_dict[key]  # so the lift stays, too
            return
        self._kind, self._sums, self._solved = kind, sums, None
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _read(self, own: dict[str, Any]) -> tuple[int, Sums | None]:
        """The kind of targets and the sums of a saved state."""
        for key, value in own.items():
            if not isinstance(value, Tensor):
                raise TypeError(f"{key} is a {type(value).__name__}, not a tensor")
        tensors = {key.removeprefix("sums."): own[key] for key in own if key != "kind"}
        saved = own.get("kind", torch.tensor(-1))
        kind = int(saved) if saved.dtype == torch.int64 and saved.numel() == 1 else -1
        if not 0 <= kind < len(KINDS) or (kind == 0) != (not tensors):
            raise ValueError(f"kind {saved.tolist()} does not fit {len(tensors)} tensors of sums")
        if not tensors:
            return 0, None
        width: Any = self.lift.out_features
        sums = Sums.from_tensors(tensors, width + 1, self._here.device)
        if KINDS[kind] == "labels" and self._limit and sums.outputs > self._limit:
            raise ValueError(f"{sums.outputs} classes are more than this readout's {self._limit}")
        if KINDS[kind] == "number" and sums.outputs != 1:
            raise ValueError(f"there are {sums.outputs} outputs where one number was learned")
        ones = float(sums.gram[-1, -1])
        if abs(ones - sums.count) > 1e-6 * sums.count:
            raise ValueError(f"sums of {ones:g} samples claim to be of {sums.count:g}")
        return kind, sums
