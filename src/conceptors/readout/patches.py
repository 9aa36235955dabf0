"""Features of images without training: responses to small patches (Coates, Lee & Ng 2011).

Patches are normalised to the same contrast and whitened. Each unit responds to patches that look
like its filter, a cluster centre of the first data's patches (k-means on the sphere). Responses are
averaged over a grid of cells.
"""

import torch
from torch import Tensor
from torch.nn import functional

from conceptors._internal import checks
from conceptors._internal.precision import exactly
from conceptors.readout.features import Lift, is_constant, typical_size

_PATCHES = 50_000  # patches that filters are computed from
_ROUNDS = 15  # of k-means
_CONTRAST = 0.04  # of the images' variance: patches with less are not raised to full contrast
_WHITE = 0.1  # added to the variances of patches, which are about 1
_NUMBERS_AT_ONCE = 2**27
_THRESHOLD = 0.5  # of a response, in standard deviations


class PatchFeatures(Lift):
    """Features of images `[n, c · h · w]` (or `[n, c, h, w]`): `[n, filters · grid²]`.

    h = sqrt(mean over a cell of relu(v · p - θ)), for filters v and normalised patches p. The root
    gives rare responses more weight.

    Args:
        image: (c, h, w).
        filters: number of filters.
        size: width and height of a patch, in pixels.
        grid: number of cells in each direction.
        seed: seed of the random patches.

    >>> PatchFeatures((3, 32, 32), filters=100, grid=2).out_features
    400
    """

    filters: Tensor
    offset: Tensor
    threshold: Tensor
    floor: Tensor

    def __init__(
        self,
        image: tuple[int, int, int],
        filters: int = 1000,
        *,
        size: int = 6,
        grid: int = 3,
        seed: int = 0,
    ) -> None:
        if len(image) != 3:
            raise ValueError(f"image must be (channels, height, width), got {image}")
        c, h, w = (checks.whole(part, "image", 1) for part in image)
        count = checks.whole(filters, "filters", 1)
        size = checks.whole(size, "size", 2, min(h, w))
        grid = checks.whole(grid, "grid", 1, min(h, w) - size + 1)
        shapes: dict[str, tuple[int, ...]] = {"filters": (count, c * size**2), "offset": (count,)}
        super().__init__(c * h * w, count * grid**2, **shapes, threshold=(), floor=())
        self.image, self.count, self.size, self.grid = (c, h, w), count, size, grid
        self.seed = checks.whole(seed, "seed", 0)

    @exactly()
    def calibrate(self, rows: Tensor) -> None:
        images = rows.reshape(-1, *self.image)
        varied = images - images.mean(dtype=torch.float64).to(images.dtype)
        floor = _CONTRAST * typical_size(varied, images).square()
        draw = torch.Generator().manual_seed(self.seed)
        patches = _contrasted(self._drawn_patches(images, draw), floor)
        center = patches.mean(0)
        white = _whitening((patches - center).double()).to(patches)
        patches = (patches - center) @ white
        if is_constant(varied, images):  # flat images show no patches
            directions = torch.randn(self.count, patches.shape[1], generator=draw).to(patches)
        else:
            directions = _centres(patches, self.count, draw)
        directions = functional.normalize(directions, dim=1)
        filters = directions @ white  # white is symmetric
        self._fix(
            filters=filters,
            offset=filters @ center,
            threshold=_THRESHOLD * (patches[:5000] @ directions.mT).std(),
            floor=floor,
        )

    def _drawn_patches(self, images: Tensor, draw: torch.Generator) -> Tensor:
        """Random patches `[k, c · size²]`."""
        n, channels, h, w = images.shape
        p, device = self.size, images.device
        number, top, left = (
            torch.randint(most, (_PATCHES,), generator=draw).to(device)[:, None, None, None]
            for most in (n, h - p + 1, w - p + 1)
        )
        along = torch.arange(p, device=device)
        channel = torch.arange(channels, device=device)[None, :, None, None]
        return images[number, channel, top + along[:, None], left + along].flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        self.check_calibrated()
        images = x.reshape(-1, *self.image)
        _, h, w = self.image
        down, right = h - self.size + 1, w - self.size + 1
        at_once = max(1, _NUMBERS_AT_ONCE // (down * right * self.count))
        features = []
        # A program that is exported takes batches of any size, which it cannot count into parts.
        for part in [images] if torch.compiler.is_compiling() else images.split(at_once):
            patches = _contrasted(functional.unfold(part, self.size).mT, self.floor)
            weight, bias = self.filters.to(x.dtype), (-self.offset - self.threshold).to(x.dtype)
            responses = functional.linear(patches, weight, bias)  # [n, places, filters]
            responses = responses.relu_().mT.reshape(-1, self.count, down, right)
            pooled = functional.adaptive_avg_pool2d(responses, self.grid).flatten(1)
            features.append(pooled.sqrt())
        return torch.cat(features) if features else x.new_zeros(0, self.out_features)

    def extra_repr(self) -> str:
        return f"{self.image}, {self.count}, size={self.size}, grid={self.grid}, seed={self.seed}"


def _contrasted(patches: Tensor, floor: Tensor) -> Tensor:
    patches = patches - patches.mean(-1, keepdim=True)
    contrast = patches.square().mean(-1, keepdim=True) + floor.to(patches.dtype)
    return patches / contrast.sqrt()


def _whitening(rows: Tensor) -> Tensor:
    """(Σ + 0.1 I)^(-1/2), symmetric."""
    values, vectors = torch.linalg.eigh(rows.mT @ rows / len(rows))
    white: Tensor = (vectors * (values.clamp_min(0) + _WHITE).rsqrt()) @ vectors.mT
    return white


def _centres(patches: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Centres of patches by direction: k-means, from patches with enough contrast."""
    lengths = patches.norm(dim=1)
    loud = patches[lengths > 0.5 * lengths.median()]
    loud = loud if len(loud) else patches
    start = torch.randint(len(loud), (count,), generator=draw)
    if len(loud) >= count:
        start = torch.randperm(len(loud), generator=draw)[:count]
    rows = functional.normalize(loud, dim=1)
    centres = rows[start.to(rows.device)]
    for _ in range(_ROUNDS):
        nearest = (rows @ centres.mT).argmax(1)
        members = rows.new_zeros(len(rows), count)
        members[torch.arange(len(rows), device=rows.device), nearest] = 1
        sums = members.mT @ rows
        lengths = sums.norm(dim=1, keepdim=True)
        centres = torch.where(lengths > 1e-12, sums / lengths.clamp_min(1e-12), centres)
    return centres
