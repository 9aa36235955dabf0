"""Random features: many fixed, nonlinear views of an input, on which a linear readout learns.

h = f(z Wᵀ + b) with z = x - μ, where μ is the mean of the first data that are seen, and z Wᵀ has
mean square 1 over them: units are neither dead nor saturated, whatever the inputs' size. Weights
are drawn with the covariance of those data to the power `shape`, so that units look where data
vary; for images they are drawn smooth instead, which needs no data.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors._internal import checks
from conceptors._internal.outside import outside
from conceptors._internal.precision import exactly

Activation = Literal["relu", "tanh", "fourier"]
_ACTIVATIONS = ("relu", "tanh", "fourier")
_FOURIER = 0.7  # spread of frequencies: kernels a little wider than the data
_MOST = 10_000  # rows that are looked at
_LOST = 1e-4  # of the largest column's range: columns with less hardly influence a solution
_FEW = 0.02  # of the columns: so many with a tiny range are usual, like units that are nearly dead
_AT_ONCE = 1024  # rows whose features are held, to see how large they are


class Lift(nn.Module):
    """Features of inputs `[n, in_features]`, fixed once `calibrate` has seen some.

    Subclasses name the buffers that calibration makes in `fitted`, and their shapes. Buffers are
    float32, whatever the data are, so that a saved state is the lift to the last bit.
    """

    fitted: tuple[str, ...] = ()
    _here: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("_here", torch.empty(0), persistent=False)  # tells the device
        for name in self.fitted:
            self.register_buffer(name, None)

    @property
    def is_calibrated(self) -> bool:
        return all(getattr(self, name) is not None for name in self.fitted)

    @abstractmethod
    def calibrate(self, rows: Tensor) -> None:
        """Fix all features by the first data `[n, in_features]`."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all buffers that calibration makes."""

    def reset(self) -> None:
        """As if no data had been seen."""
        for name in self.fitted:
            setattr(self, name, None)

    def check_calibrated(self) -> None:
        if not self.is_calibrated:
            raise RuntimeError(
                f"{type(self).__name__} is not fixed by any data yet; call calibrate(rows) first"
            )

    def _fix(self, **found: Tensor) -> None:
        """Keep what calibration has found: all of it, or nothing."""
        kept = {name: value.detach().float() for name, value in found.items()}
        for name, value in kept.items():
            if not bool(value.isfinite().all()):
                raise ValueError(
                    f"the lift's {name} is beyond the range of float32 for features of this size; "
                    f"scale the features"
                )
        for name, value in kept.items():
            setattr(self, name, value)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Buffers that are not made yet are made for a state that has them, and the reverse."""
        given = {name: state_dict.get(prefix + name) for name in self.fitted}
        absent = [prefix + name for name, value in given.items() if value is None]
        if 0 < len(absent) < len(given):
            missing_keys.extend(absent)
            return
        for name, shape in self.shapes().items():
            value = given[name]
            fits = isinstance(value, Tensor) and tuple(value.shape) == shape
            if fits and not _finite(value):
                error_msgs.append(f"{prefix}{name} has entries that are not finite numbers")
                return
            if fits or value is None:
                made = self._here.new_empty(shape, dtype=torch.float32) if fits else None
                setattr(self, name, made)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


class Scaling(Lift):
    """No new features: the inputs, shifted and scaled by one number to mean square 1."""

    fitted = ("center", "scale")
    center: Tensor
    scale: Tensor

    def __init__(self, in_features: int) -> None:
        super().__init__(in_features, in_features)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"center": (self.in_features,), "scale": ()}

    @exactly()
    def calibrate(self, rows: Tensor) -> None:
        center = rows.mean(0, dtype=torch.float64).float()
        z = rows - center
        _warn_of_scales(rows)
        self._fix(center=center, scale=(rms(rows) if constant(z, rows) else rms(z)).reciprocal())

    def forward(self, x: Tensor) -> Tensor:
        self.check_calibrated()
        found: Tensor = (x - self.center) * self.scale
        return found

    def extra_repr(self) -> str:
        return f"{self.in_features}"


class RandomFeatures(Lift):
    """h = f(z Wᵀ + b) `[n, out_features]`.

    Args:
        in_features, out_features: sizes of inputs and of what comes out.
        activation: "relu", "tanh", or "fourier" for cosines with random phases, whose products
            approximate a Gaussian kernel (Rahimi & Recht 2007).
        shape: the power of the covariance of the first data that weights are drawn with: 0 is
            white, and weights with 1/2 are like the data themselves.
        spread: the size of z Wᵀ, that is, how nonlinear the features are; None is 1, for "fourier"
            0.7.
        unit: scale each row z to the same length first; what counts then is direction alone.
        image: (c, h, w), or (h, w), if inputs are images. Weights are then smooth instead of
            shaped, and each row is centred by its own mean instead of μ.
        smooth: standard deviation of the blur, in pixels.
        seed: of the draw.
    """

    fitted = ("center", "weight", "bias")
    center: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        activation: Activation = "relu",
        *,
        shape: float = 0.25,
        spread: float | None = None,
        unit: bool = False,
        image: tuple[int, ...] | None = None,
        smooth: float = 1.5,
        seed: int = 0,
    ) -> None:
        super().__init__(
            checks.whole(in_features, "in_features", 1),
            checks.whole(out_features, "out_features", 1),
        )
        if image is not None and (len(image) not in (2, 3) or math.prod(image) != in_features):
            raise ValueError(
                f"image must be (h, w) or (c, h, w) with {in_features} numbers in all, got {image}"
            )
        self.image = None if image is None else tuple(image)
        self.smooth = checks.number(smooth, "smooth", 0.0, 1e3)
        if activation not in _ACTIVATIONS:
            raise ValueError(f"activation must be one of {list(_ACTIVATIONS)}, got {activation!r}")
        self.activation = activation
        self.power = checks.number(shape, "shape", 0.0, 1.0)
        usual = _FOURIER if activation == "fourier" else 1.0
        self.spread = usual if spread is None else checks.number(spread, "spread", 0.0, 1e6)
        self.unit, self.seed = bool(unit), checks.whole(seed, "seed", 0)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        d, n = self.in_features, self.out_features
        return {"center": (d,), "weight": (n, d), "bias": (n,)}

    @exactly()
    def calibrate(self, rows: Tensor) -> None:
        rows = rows[:: max(1, len(rows) // _MOST)]
        center = rows.mean(0, dtype=torch.float64).float()
        z = self._shifted(rows, center)
        flat = constant(z, rows)
        z = self._scaled(z)
        draw = torch.Generator().manual_seed(self.seed)
        weight = torch.randn(self.out_features, self.in_features, generator=draw).to(rows)
        bias = torch.randn(self.out_features, generator=draw)
        if self.activation == "fourier":
            bias = 2 * math.pi * torch.rand(self.out_features, generator=draw)
        if self.image is not None:
            weight = blurred(weight, self.image, self.smooth)
        else:
            _warn_of_scales(rows)
            if self.power and not flat:
                weight = weight @ _root(z, self.power).to(weight)
        if flat:  # nothing tells how data vary: as much, then, as they are large
            size = (1.0 if self.unit else rms(rows)) * rms(weight) * self.in_features**0.5
        else:
            size = _size_of_products(z, weight)
        bias = bias.to(rows) * (1.0 if self.activation == "fourier" else self.spread)
        self._fix(center=center, weight=weight * (self.spread / size), bias=bias)

    def _shifted(self, x: Tensor, center: Tensor) -> Tensor:
        return x - (center if self.image is None else x.mean(-1, keepdim=True))

    def _scaled(self, z: Tensor) -> Tensor:
        if not self.unit:
            return z
        scaled: Tensor = functional.normalize(z, dim=-1, eps=1e-30) * self.in_features**0.5
        return scaled

    def forward(self, x: Tensor) -> Tensor:
        self.check_calibrated()
        z = self._scaled(self._shifted(x, self.center))
        found = functional.linear(z, self.weight.to(z.dtype), self.bias.to(z.dtype))
        if self.activation == "fourier":
            return found.cos()
        return found.relu() if self.activation == "relu" else found.tanh()

    def extra_repr(self) -> str:
        look = (
            f"image={self.image}, smooth={self.smooth:g}" if self.image else f"shape={self.power:g}"
        )
        return (
            f"{self.in_features}, {self.out_features}, {self.activation!r}, {look}, "
            f"spread={self.spread:g}, unit={self.unit}, seed={self.seed}"
        )


def _finite(value: Any) -> bool:
    return bool(value.is_floating_point() and value.isfinite().all())


def rms(values: Tensor) -> Tensor:
    """The root mean square, or 1 if all values are zero."""
    norm = torch.linalg.vector_norm(values, dtype=torch.float64)
    return torch.where(norm > 0, norm / values.numel() ** 0.5, 1.0)


def constant(z: Tensor, rows: Tensor) -> bool:
    """Whether rows differ from their mean by no more than rounding."""
    sizes = [torch.linalg.vector_norm(x, dtype=torch.float64) for x in (z, rows)]
    return bool(sizes[0] <= 4 * torch.finfo(rows.dtype).eps * sizes[1])


def _warn_of_scales(rows: Tensor) -> None:
    """Warn of columns that are lost beside others of a much larger scale.

    The range is the measure, not the mean square: a pixel that is hardly ever lit has a small one.
    One or two rows do not show a range.
    """
    if len(rows) < 3:
        return
    low, high = (found.double() for found in rows.aminmax(dim=0))
    ranges = high - low
    rounding = 4 * torch.finfo(rows.dtype).eps * torch.maximum(low.abs(), high.abs())
    ranges = ranges[ranges > rounding]  # without constant columns
    if len(ranges) and float((ranges < _LOST * ranges.max()).double().mean()) >= _FEW:
        warnings.warn(
            f"The columns of the inputs differ in scale by a factor of "
            f"{float(ranges.max() / ranges.min()):.0e}. Columns of a small scale hardly influence "
            f"predictions. Standardize the columns first, for example with "
            f"sklearn.preprocessing.StandardScaler.",
            stacklevel=outside(),
        )


def _size_of_products(z: Tensor, weight: Tensor) -> Tensor:
    """The root mean square of z Wᵀ."""
    parts = [
        torch.linalg.vector_norm(part @ weight.mT, dtype=torch.float64)
        for part in z.split(_AT_ONCE)
    ]
    found: Tensor = torch.stack(parts).norm() / (len(z) * len(weight)) ** 0.5
    return found


def _root(rows: Tensor, power: float) -> Tensor:
    """Σ to a power `[d, d]`, with Σ drawn towards a multiple of I, the fewer the rows the more."""
    rows = rows.double()
    n, d = rows.shape
    covariance = rows.mT @ rows / n
    share = d / (d + n)
    mean = covariance.diagonal().mean()
    covariance = (1 - share) * covariance
    covariance.diagonal().add_(share * mean)
    values, vectors = torch.linalg.eigh(covariance)
    found: Tensor = (vectors * values.clamp_min(0) ** power) @ vectors.mT
    return found


def blurred(weight: Tensor, image: tuple[int, ...], sigma: float) -> Tensor:
    """Each row `[n, c · h · w]` as an image, smoothed by a Gaussian, at the same mean square."""
    if not sigma:
        return weight
    h, w = image[-2:]
    pictures = weight.reshape(-1, 1, h, w)
    reach = math.ceil(4 * sigma)
    at = torch.arange(-reach, reach + 1, dtype=weight.dtype, device=weight.device)
    bell = torch.exp(-(at**2) / (2 * sigma**2))
    bell = bell / bell.square().sum().sqrt()
    across = functional.conv2d(pictures, bell.view(1, 1, 1, -1), padding=(0, reach))
    return functional.conv2d(across, bell.view(1, 1, -1, 1), padding=(reach, 0)).reshape_as(weight)


def lift_of(in_features: int, lift: Any, activation: Activation, seed: int) -> nn.Module:
    """The lift that is meant by a number of random features, or by a module."""
    if isinstance(lift, nn.Module):
        width = getattr(lift, "in_features", in_features)
        if width != in_features:
            raise ValueError(f"lift takes {width} features, the readout {in_features}")
        if not isinstance(getattr(lift, "out_features", None), int):
            raise TypeError(f"lift {type(lift).__name__} needs an attribute out_features")
        return lift
    count = checks.whole(lift, "lift", 0)
    if not count:
        return Scaling(in_features)
    return RandomFeatures(in_features, count, activation, seed=seed)
