"""Random features: many fixed, nonlinear functions of an input, on which a linear readout learns.

h = f(z Wᵀ + b) with z = x - μ, where μ is the mean of the first data, and z Wᵀ has mean square 1
over those data: no unit is always off or saturated. Weights are drawn with the covariance of the
first data to the power `shape`, so most units look along directions in which the data vary.
"""

import math
import warnings
from abc import abstractmethod
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors._internal import checks
from conceptors._internal.checks import outside
from conceptors._internal.precision import exactly

Activation = Literal["relu", "tanh", "fourier"]
_FOURIER_SPREAD = 0.7  # kernels a little wider than the data
_BLUR = 1.5  # standard deviation in pixels
_CALIBRATION_ROWS = 10_000
_LOST = 1e-4  # of the largest column's range: smaller columns hardly influence a solution
_FEW = 0.02  # share of columns that may have a tiny range, as units that are nearly dead have
_ROWS_AT_ONCE = 1024


class Lift(nn.Module):
    """Features of inputs `[n, in_features]`, fixed by `calibrate` from the first data.

    `fitted` are the buffers that `calibrate` sets, by name, with their shapes. They are float32,
    whatever the dtype of the data, so a saved state restores the features to the last bit.
    """

    calibrated: Tensor  # the saved form of `is_calibrated`

    def __init__(self, in_features: int, out_features: int, **fitted: tuple[int, ...]) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.is_calibrated = False
        self.register_buffer("calibrated", torch.tensor(False))
        for name, shape in fitted.items():
            self.register_buffer(name, torch.zeros(shape))

    @abstractmethod
    def calibrate(self, rows: Tensor) -> None:
        """Fix all features by the first data `[n, in_features]`."""

    def check_calibrated(self) -> None:
        if not self.is_calibrated:
            raise RuntimeError(f"{type(self).__name__} is not fitted; call calibrate(rows) first")

    def _fix(self, **values: Tensor) -> None:
        """Set all fitted buffers, or none if one of them is out of range."""
        rounded = {name: value.detach().float() for name, value in values.items()}
        for name, value in rounded.items():
            if not bool(value.isfinite().all()):
                raise ValueError(
                    f"inputs of this size cannot calibrate {type(self).__name__}: its {name} is "
                    f"beyond the range of float32; scale the inputs"
                )
        for name, value in rounded.items():
            setattr(self, name, value)
        self.calibrated = torch.ones_like(self.calibrated)
        self.is_calibrated = True

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        if not self.calibrated.is_meta:
            self.is_calibrated = bool(self.calibrated)


class Scaling(Lift):
    """The inputs themselves, shifted and scaled: h = t (x - μ), with mean square 1."""

    center: Tensor
    scale: Tensor

    def __init__(self, in_features: int) -> None:
        super().__init__(in_features, in_features, center=(in_features,), scale=())

    @exactly()
    def calibrate(self, rows: Tensor) -> None:
        center = rows.mean(0, dtype=torch.float64).float()
        warn_of_scales(rows)
        self._fix(center=center, scale=typical_size(rows - center, rows).reciprocal())

    def forward(self, x: Tensor) -> Tensor:
        self.check_calibrated()
        scaled: Tensor = (x - self.center) * self.scale
        return scaled


class RandomFeatures(Lift):
    """Random features h = f(z Wᵀ + b) `[n, out_features]` of x `[n, in_features]`, z = x - μ.

    Args:
        in_features, out_features: widths of the inputs and of the features.
        activation: "relu", "tanh", or "fourier" for cosines with random phases, whose products
            approximate a Gaussian kernel (Rahimi & Recht 2007).
        shape: the power of the first data's covariance that the weights are drawn with: 0 draws
            white weights, and with 1/2 the weights vary like the data themselves.
        image: (c, h, w) or (h, w) if the inputs are images. The weights are then smooth instead of
            shaped. Each row is centred by its own mean instead of μ and scaled to the same length,
            so only its direction counts.
        seed: seed of the weights.

    >>> lift = RandomFeatures(5, 100)
    >>> lift.calibrate(torch.randn(50, 5))
    >>> lift(torch.randn(3, 5)).shape
    torch.Size([3, 100])
    """

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
        image: tuple[int, ...] | None = None,
        seed: int = 0,
    ) -> None:
        d = checks.whole(in_features, "in_features", 1)
        count = checks.whole(out_features, "out_features", 1)
        if image is not None and (len(image) not in (2, 3) or math.prod(image) != d):
            raise ValueError(
                f"image must be (h, w) or (c, h, w) with {d} numbers in all, got {image}"
            )
        if activation not in get_args(Activation):
            raise ValueError(
                f"activation must be one of {[*get_args(Activation)]}, got {activation!r}"
            )
        super().__init__(d, count, center=(d,), weight=(count, d), bias=(count,))
        self.image = None if image is None else tuple(image)
        self.activation = activation
        self.power = checks.number(shape, "shape", 0.0, 1.0)
        self.spread = _FOURIER_SPREAD if activation == "fourier" and image is None else 1.0
        self.seed = checks.whole(seed, "seed", 0)

    @exactly()
    def calibrate(self, rows: Tensor) -> None:
        rows = rows[:: max(1, len(rows) // _CALIBRATION_ROWS)]
        center = rows.mean(0, dtype=torch.float64).float()
        z = self._shifted(rows, center)
        is_flat = is_constant(z, rows)
        z = self._scaled(z)
        draw = torch.Generator().manual_seed(self.seed)
        weight = torch.randn(self.out_features, self.in_features, generator=draw).to(rows)
        bias = torch.randn(self.out_features, generator=draw).to(rows) * self.spread
        if self.activation == "fourier":
            bias = 2 * math.pi * torch.rand(self.out_features, generator=draw).to(rows)
        if self.image is not None:
            weight = blurred(weight, self.image, _BLUR)
        else:
            warn_of_scales(rows)
            if self.power and not is_flat:
                weight = weight @ _covariance_root(z, self.power).to(weight)
        if is_flat:  # nothing shows how much data vary: assume as much as their own size
            length = typical_size(z, rows) if self.image is None else 1.0
            size = length * weight.square().mean().sqrt() * self.in_features**0.5
        else:
            parts = (part @ weight.mT for part in z.split(_ROWS_AT_ONCE))
            norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts]
            size = torch.stack(norms).norm() / (len(z) * len(weight)) ** 0.5
        self._fix(center=center, weight=weight * (self.spread / size), bias=bias)

    def _shifted(self, x: Tensor, center: Tensor) -> Tensor:
        return x - (center if self.image is None else x.mean(-1, keepdim=True))

    def _scaled(self, z: Tensor) -> Tensor:
        if self.image is not None:
            z = functional.normalize(z, dim=-1, eps=1e-30) * self.in_features**0.5
        return z

    def forward(self, x: Tensor) -> Tensor:
        self.check_calibrated()
        z = self._scaled(self._shifted(x, self.center))
        products = functional.linear(z, self.weight.to(z.dtype), self.bias.to(z.dtype))
        if self.activation == "fourier":
            return products.cos()
        return products.relu() if self.activation == "relu" else products.tanh()

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, {self.activation!r}, image={self.image}, "
            f"shape={self.power:g}, seed={self.seed}"
        )


class SideBySide(Lift):
    """Features of the parts of `[x₁ | x₂ | …]`, side by side: `[f₁(x₁) | f₂(x₂) | …]`.

    Each part's features are scaled by one number to a mean variance of 1 over the first data, so
    parts of different size count alike. Parts that are calibrated already do not change. A
    `Readout` uses the first part alone where the others do not help.
    """

    scale: Tensor

    def __init__(self, *parts: Lift) -> None:
        if wrong := [type(part).__name__ for part in parts if not isinstance(part, Lift)]:
            raise TypeError(f"SideBySide takes lifts, such as RandomFeatures, got {wrong[0]}")
        self._columns = [part.in_features for part in parts]
        self.widths = [part.out_features for part in parts]
        super().__init__(sum(self._columns), sum(self.widths), scale=(len(parts),))
        self.parts = nn.ModuleList(parts)

    @exactly()
    def calibrate(self, rows: Tensor) -> None:
        part: Any
        sizes = []
        for part, columns in zip(self.parts, rows.split(self._columns, -1)):
            if not part.is_calibrated:
                part.calibrate(columns)
            features = part(columns[:: max(1, len(columns) // 2048)])
            center = features.mean(0, dtype=torch.float64).to(features)
            sizes.append(typical_size(features - center, features))
        self._fix(scale=torch.stack(sizes).reciprocal())

    def forward(self, x: Tensor) -> Tensor:
        self.check_calibrated()
        triples = zip(self.parts, x.split(self._columns, -1), self.scale)
        return torch.cat([part(columns) * scale for part, columns, scale in triples], -1)


def warn_of_scales(rows: Tensor) -> None:
    """Warn of columns with a tiny range. (A rarely lit pixel has only a small mean square.)"""
    if len(rows) < 3:  # which show no range
        return
    low, high = (bound.double() for bound in rows.aminmax(dim=0))
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


def blurred(weight: Tensor, image: tuple[int, ...], sigma: float) -> Tensor:
    """Each row `[n, c · h · w]` as an image, smoothed by a Gaussian, at the same mean square."""
    pictures = weight.reshape(-1, 1, *image[-2:])
    reach = math.ceil(4 * sigma)
    at = torch.arange(-reach, reach + 1, dtype=weight.dtype, device=weight.device)
    bell = torch.exp(-(at**2) / (2 * sigma**2))
    bell = bell / bell.square().sum().sqrt()
    across = functional.conv2d(pictures, bell.view(1, 1, 1, -1), padding=(0, reach))
    return functional.conv2d(across, bell.view(1, 1, -1, 1), padding=(reach, 0)).reshape_as(weight)


def is_constant(z: Tensor, rows: Tensor) -> bool:
    """Whether z = rows - mean is no more than rounding."""
    sizes = [torch.linalg.vector_norm(x, dtype=torch.float64) for x in (z, rows)]
    return bool(sizes[0] <= 4 * torch.finfo(rows.dtype).eps * sizes[1])


def typical_size(z: Tensor, rows: Tensor) -> Tensor:
    """The root mean square of z = rows - mean, of the rows if they do not vary, or else 1."""
    values = rows if is_constant(z, rows) else z
    norm = torch.linalg.vector_norm(values, dtype=torch.float64)
    return torch.where(norm > 0, norm / values.numel() ** 0.5, 1.0)


def _covariance_root(rows: Tensor, power: float) -> Tensor:
    """Σ to a power `[d, d]`. The fewer the rows, the more Σ is shrunk to a multiple of I."""
    rows = rows.double()
    n, d = rows.shape
    covariance = rows.mT @ rows / n
    share = d / (d + n)
    mean = covariance.diagonal().mean()
    covariance = (1 - share) * covariance
    covariance.diagonal().add_(share * mean)
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = (vectors * values.clamp_min(0) ** power) @ vectors.mT
    return root
