"""Settings of methods: every field is an option of the command line, and explains itself."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from conceptors._internal.checks import nearest
from conceptors.experiments.networks import ACTIVATIONS

T = TypeVar("T")


def setting(
    default: T, about: str, choices: Iterable[str] = (), least: float = 0, below: float = math.inf
) -> T:
    """A field of a settings class: its default, what it does, and its possible values."""
    facts = {"about": about, "choices": tuple(choices), "limits": (least, below)}
    entry: T = field(default=default, metadata=facts)
    return entry


@dataclass(frozen=True)
class OwnSettings:
    """Settings of a method that trains no network: only what a subclass adds."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value, choices = getattr(self, entry.name), entry.metadata.get("choices")
            low, high = entry.metadata.get("limits", (-math.inf, math.inf))
            if choices and value not in choices:
                raise ValueError(f"{entry.name} must be one of {', '.join(choices)}, got {value!r}")
            if isinstance(value, (int, float)) and not low <= value < high:
                limit = f" and below {high:g}" if high < math.inf else ""
                raise ValueError(
                    f"{entry.name} must be a finite number >= {low:g}{limit}, got {value}"
                )


@dataclass(frozen=True)
class Settings(OwnSettings):
    """How a network is trained."""

    hidden: str = setting("800", "neurons of the hidden layers, such as 800 or 100,100")
    activation: str = setting("relu", "activation of the hidden neurons", ACTIVATIONS)
    loss: str = setting("bce", "bce and mse use sigmoid outputs", ("bce", "mse", "softmax"))
    init: str = setting("uniform", "distribution of the initial weights", ("uniform", "truncated"))
    scale: float = setting(1.7, "initial weights: uniform ± scale / √fan-in, or sd of a normal")
    smooth: float = setting(0.0, "images: blur the first layer's initial weights by so many pixels")
    local: float = setting(0.0, "images: window on these weights, with this sd in pixels")
    epochs: float = setting(10.0, "passes over a task's share of the data")
    steps: int = setting(0, "steps per task, instead of epochs; 0 to use epochs")
    batch: int = setting(64, "samples per step", least=1)
    rate: float = setting(0.1, "learning rate")
    later_rate: float = setting(0.0, "learning rate from the second task on; 0 for the same")
    average: float = setting(
        0.0, "decay per step of a running mean of the weights; 0 for none", below=1
    )
    gradient: str = setting("mean", "unit: length 1 for each neuron", ("mean", "sum", "unit"))
    stop_above: float = setting(0.0, "validation accuracy in percent that ends a task; 0 for none")
    stop_above_later: float = setting(0.0, "the same from the second task on; 0 for the same")
    dropout: float = setting(0.0, "AlexNet's dropout; its first two layers use 0.4 of it", below=1)
    mirror: bool = setting(False, "mirror colour images at random in training")
    shift: int = setting(0, "shift colour images at random by up to so many pixels in training")
    check_every: int = setting(1000, "steps between checks on validation samples", least=1)
    validation: int = setting(1000, "samples per check", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sizes()

    def sizes(self) -> list[int]:
        """Neurons of the hidden layers."""
        parts = [part.strip() for part in self.hidden.split(",") if part]
        if not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise ValueError(f"hidden={self.hidden!r} is not like 800 or 100,100")
        return [int(part) for part in parts]


def parse_settings(kind: type[OwnSettings], values: dict[str, Any]) -> OwnSettings:
    """Settings from names and values (also strings), checked.

    Raises:
        ValueError: unknown name (the nearest ones are suggested) or a value of the wrong type.
    """
    types = get_type_hints(kind)
    for name in values:
        if name not in types:
            raise ValueError(f"unknown setting {name!r}{nearest(name, types)}")
    return kind(**{name: _parse(name, value, types[name]) for name, value in values.items()})


def explain_settings(kind: type[OwnSettings]) -> list[str]:
    """One line per setting, those of the method first: name, default, choices, what it does."""
    types, common = get_type_hints(kind), get_type_hints(Settings)
    rows = [("NAME", "DEFAULT", "CHOICES", "WHAT IT DOES")]
    for entry in sorted(fields(kind), key=lambda entry: entry.name in common):
        choices = "|".join(entry.metadata["choices"]) or types[entry.name].__name__
        rows.append((entry.name, str(entry.default), choices, entry.metadata["about"]))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return ["  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows]


def _parse(name: str, value: Any, wanted: type) -> Any:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        if wanted is bool and isinstance(value, str):
            return words[value.lower()]
        if wanted is int and isinstance(value, float) and not value.is_integer():
            raise ValueError
        return wanted(value)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}={value!r} is not of type {wanted.__name__}") from None
