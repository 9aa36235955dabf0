"""Settings of methods: every field is an option of the command line, and explains itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar, get_type_hints

from conceptors._internal.suggest import nearest
from conceptors.experiments.networks import ACTIVATIONS

T = TypeVar("T")
INEFFECTIVE = {  # a setting -> another one, and whether that makes it so when it is on or off
    "epochs": ("steps", True),
    **dict.fromkeys(("aperture", "input_aperture", "norm_aperture"), ("energy", True)),
    **dict.fromkeys(("judged", "rate_factor", "least_rate"), ("patience", False)),
    "stop_above_later": ("stop_above", False),
    "fade": ("online", False),
    "mirrored": ("mirror", False),
}


def setting(
    default: T,
    about: str,
    choices: Iterable[str] = (),
    each: bool = False,
    before: T | None = None,
) -> T:
    """A field of a settings class: its default, what it does, and the words it may be.

    With `each`, members of a stack may differ in it: `settings_of_members` makes it a tuple of
    their values, and methods ask `Learner.each`. `before` is how it was before it was a setting,
    if that is not the default.
    """
    about_it = {"about": about, "choices": tuple(choices), "each": each, "before": before}
    made: T = field(default=default, metadata=about_it)
    return made


@dataclass(frozen=True)
class OwnSettings:
    """Settings of a method that trains no network: only what a subclass adds."""

    def check(self) -> None:
        """ValueError for a value that cannot be."""
        for entry in fields(self):
            value, allowed = getattr(self, entry.name), entry.metadata.get("choices")
            if allowed and value not in allowed:
                raise ValueError(f"{entry.name} must be one of {', '.join(allowed)}, got {value!r}")
        for name, value in asdict(self).items():
            if isinstance(value, (int, float)) and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number >= 0, got {value}")


@dataclass(frozen=True)
class Settings(OwnSettings):
    """How a network is trained."""

    hidden: str = setting("800", "neurons of the hidden layers, like 800 or 100,100")
    bias: bool = setting(True, "biases in the layers (AlexNet has none)")
    activation: str = setting("relu", "of the hidden neurons", ACTIVATIONS)
    loss: str = setting(
        "bce", "bce and mse are on sigmoid outputs", choices=("bce", "mse", "softmax")
    )
    init: str = setting(
        "uniform",
        "initial weights: uniform in ± scale / √fan-in, xavier: in ± scale √(6 / (fan-in + "
        "fan-out)), biases too, or truncated normal of sd scale",
        choices=("uniform", "xavier", "truncated"),
    )
    scale: float = setting(1.7, "size of the initial weights, see init")
    smooth: float = setting(
        0.0, "blur of the first layer's initial weights on images, in pixels, 0 for none"
    )
    local: float = setting(
        0.0,
        "window on the first layer's initial weights on images: each neuron begins with one place, "
        "of this sd in pixels, 0 for the whole image",
    )
    epochs: float = setting(10.0, "passes over a task's share of the data")
    steps: int = setting(0, "steps a task instead of epochs, 0 for epochs")
    batch: int = setting(64, "images a step")
    rate: float = setting(0.1, "learning rate", each=True)
    later_rate: float = setting(
        0.0, "learning rate from the second task on, 0 for the same", each=True
    )
    momentum: float = setting(0.0, "of the optimizer")
    average: float = setting(
        0.0, "a task ends with a running mean of its weights that keeps this share a step"
    )
    decay: float = setting(0.0, "weight decay")
    gradient: str = setting(
        "mean",
        "over the batch; unit: the sum, then each neuron's scaled to length 1",
        choices=("mean", "sum", "unit"),
    )
    patience: int = setting(
        0,
        "checks without a lower validation loss until the rate is divided by rate_factor, 0 for "
        "never; a task then ends with the weights of the lowest",
    )
    judged: str = setting(
        "loss",
        "what patience waits for on validation images: a lower loss, or a higher accuracy",
        choices=("loss", "accuracy"),
    )
    rate_factor: float = setting(2.0, "what the rate is divided by, see patience")
    least_rate: float = setting(1e-5, "a task ends when the rate falls below this, see patience")
    stop_above: float = setting(
        0.0, "end a task early at this validation accuracy in percent, 0 for never"
    )
    stop_above_later: float = setting(0.0, "the same from the second task on, if lower")
    dropout: float = setting(0.0, "of convolutional networks; on their first two layers 0.4 of it")
    norms: str = setting(
        "batch",
        "statistics of norms: of every batch, in tests too; first: of the first task's training "
        "images, held from its end on (fully connected networks have no norms)",
        choices=("batch", "first"),
    )
    mirror: bool = setting(False, "colour images are mirrored at random while training")
    shift: int = setting(0, "and shifted by up to so many pixels both ways")
    precision: str = setting(
        "auto",
        "of passes on a GPU; auto: tf32 for convolutional networks, else exact; with tf32 fully "
        "connected networks are tested in float16",
        choices=("auto", "exact", "tf32"),
    )
    check_every: int = setting(1000, "steps between checks on validation images")
    validation: int = setting(1000, "images of those checks")

    @property
    def sizes(self) -> list[int]:
        return [int(part) for part in str(self.hidden).split(",") if part]

    def check(self) -> None:
        try:
            sizes = self.sizes
        except ValueError:
            raise ValueError(f"hidden={self.hidden!r} is not like 800 or 100,100") from None
        at_least_one = {
            name: getattr(self, name) for name in ("batch", "check_every", "validation")
        }
        if self.patience and (self.momentum or self.decay):
            raise ValueError(
                f"patience is for plain SGD, got momentum={self.momentum}, decay={self.decay}; "
                f"set them to 0, or patience"
            )
        if self.rate_factor <= 1:
            raise ValueError(f"rate_factor must be above 1, got {self.rate_factor}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1[, got {self.dropout}")
        for name, value in {"hidden": min(sizes, default=1), **at_least_one}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.average >= 1:
            raise ValueError(f"average must be below 1, got {self.average:g}")
        if self.average and self.patience:
            raise ValueError(
                "average and patience are two ways to say which weights a task ends with; set one"
            )
        super().check()


def parse_settings(kind: type[OwnSettings], values: dict[str, Any]) -> OwnSettings:
    """Settings from names and values (also strings), checked.

    Raises:
        ValueError: unknown name (nearest ones suggested) or a value of the wrong type.
    """
    types = get_type_hints(kind)
    names = [f.name for f in fields(kind)]
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in names:
            raise ValueError(f"unknown setting {name!r}{nearest(name, names)}")
        parsed[name] = _parse(name, value, types[name])
    made = kind(**parsed)
    made.check()
    return made


def may_differ(kind: type[OwnSettings]) -> set[str]:
    """Settings in which members of a stack may differ."""
    return {entry.name for entry in fields(kind) if entry.metadata.get("each")}


def settings_of_members(members: list[OwnSettings]) -> OwnSettings:
    """One object for a stack: what differs is a tuple, a value for each member.

    Raises:
        ValueError: they differ in a setting that is one for all.
    """
    first, able = members[0], may_differ(type(members[0]))
    differing = {
        entry.name: tuple(getattr(one, entry.name) for one in members)
        for entry in fields(first)
        if any(getattr(one, entry.name) != getattr(first, entry.name) for one in members)
    }
    if stuck := sorted(set(differing) - able):
        raise ValueError(
            f"{stuck[0]} is one for all members of a stack, got {differing[stuck[0]]}; what may "
            f"differ: {', '.join(sorted(able))}"
        )
    if isinstance(first, Settings) and first.decay and {"rate", "later_rate"} & set(differing):
        raise ValueError(
            f"rates cannot differ within a stack with decay={first.decay:g}, which is at the "
            f"optimizer's own rate; set it to 0, or try them one by one"
        )
    return replace(first, **differing)


def recorded_settings(kind: type[OwnSettings], config: dict[str, Any]) -> dict[str, Any]:
    """All settings of a run whose record may be older than some of them."""
    older = {entry.name: entry.metadata["before"] for entry in fields(kind)}
    return {
        entry.name: entry.default if older[entry.name] is None else older[entry.name]
        for entry in fields(kind)
    } | config


def explain_settings(kind: type[OwnSettings]) -> list[str]:
    """A line a setting: its name, default, type or choices, and what it does."""
    types = get_type_hints(kind)
    common = {entry.name for entry in fields(Settings)} if issubclass(kind, Settings) else set()
    rows = [
        (
            entry.name,
            str(entry.default),
            "|".join(entry.metadata.get("choices", ())) or types[entry.name].__name__,
            entry.metadata.get("about", ""),
        )
        for entry in sorted(fields(kind), key=lambda entry: entry.name in common)  # own ones first
    ]
    heads = ("NAME", "DEFAULT", "CHOICES", "WHAT IT DOES")
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(3)]
    return [
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths)), row[3]]).rstrip()
        for row in [heads, *rows]
    ]


def _parse(name: str, value: Any, wanted: type) -> Any:
    try:
        if wanted is bool and isinstance(value, str):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                value.lower()
            ]
        if wanted is int and isinstance(value, float) and not value.is_integer():
            raise ValueError
        return wanted(value)
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{name}={value!r} is not a {wanted.__name__}") from None
