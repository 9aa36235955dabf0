"""Features of images without training: what small patches look like, pooled over the image.

Patches are brought to the same contrast and whitened; each unit answers to the patches that look
like its own filter, and answers are averaged over a grid of cells (Coates, Lee & Ng 2011). Filters
are centres of patches of the first data (k-means on the sphere), patches themselves, or random.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from conceptors._internal import checks
from conceptors._internal.precision import exactly
from conceptors.estimators.lift import Lift, constant, rms

Filters = Literal["kmeans", "patches", "random"]
_FILTERS = ("kmeans", "patches", "random")
_SEEN = 50_000  # patches that are looked at
_ROUNDS = 15  # of k-means
_CONTRAST = 0.04  # of the images' variance: patches with less are not blown up to the same contrast
_WHITE = 0.1  # added to the variances of patches, which are about 1
_ANSWERS = 2**27  # numbers held at once
_THRESHOLD = 0.5  # of an answer, in standard deviations


class PatchFeatures(Lift):
    """Images `[n, c · h · w]` (or `[n, c, h, w]`) to `filters · grid²` features.

    Args:
        image: (c, h, w).
        filters: how many.
        size: of a patch, in pixels.
        grid: cells that answers are averaged over, in each direction.
        kind: "kmeans", "patches" or "random".
        root: take the square root of the averages, which makes rare answers count more.
        seed: of the draw.
    """

    fitted = ("filters", "offset", "threshold", "floor")
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
        kind: Filters = "kmeans",
        root: bool = True,
        seed: int = 0,
    ) -> None:
        if len(image) != 3:
            raise ValueError(f"image must be (channels, height, width), got {image}")
        c, h, w = (checks.whole(part, "image", 1) for part in image)
        self.count = checks.whole(filters, "filters", 1)
        self.size = checks.whole(size, "size", 2, min(h, w))
        self.grid = checks.whole(grid, "grid", 1, min(h, w) - size + 1)
        if kind not in _FILTERS:
            raise ValueError(f"kind must be one of {list(_FILTERS)}, got {kind!r}")
        self.image, self.kind, self.root = (c, h, w), kind, bool(root)
        self.seed = checks.whole(seed, "seed", 0)
        super().__init__(c * h * w, self.count * self.grid**2)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.image[0] * self.size**2
        return {"filters": (self.count, d), "offset": (self.count,), "threshold": (), "floor": ()}

    @exactly()
    def calibrate(self, rows: Tensor) -> None:
        images = rows.reshape(-1, *self.image)
        varied = images - images.mean(dtype=torch.float64).to(images.dtype)
        flat = constant(varied, images)
        floor = _CONTRAST * rms(images if flat else varied).square()
        draw = torch.Generator().manual_seed(self.seed)
        patches = _contrasted(self._drawn(images, draw), floor)
        center = patches.mean(0)
        white = _whitening((patches - center).double()).to(patches)
        patches = (patches - center) @ white
        found = functional.normalize(self._found(patches, draw, flat), dim=1)
        filters = found @ white  # white is symmetric
        self._fix(
            filters=filters,
            offset=filters @ center,
            threshold=_THRESHOLD * (patches[:5000] @ found.mT).std(),
            floor=floor,
        )

    def _drawn(self, images: Tensor, draw: torch.Generator) -> Tensor:
        """Random patches `[k, c · size²]`."""
        n, _, h, w = images.shape
        p = self.size
        at = [
            torch.randint(most, (_SEEN,), generator=draw).to(images.device)
            for most in (n, h - p + 1, w - p + 1)
        ]
        along = torch.arange(p, device=images.device)
        down = (at[1][:, None] + along)[:, None, :, None]
        right = (at[2][:, None] + along)[:, None, None, :]
        channels = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
        return images[at[0][:, None, None, None], channels, down, right].flatten(1)

    def _found(self, patches: Tensor, draw: torch.Generator, flat: bool) -> Tensor:
        if self.kind == "random" or flat:  # flat images show no patches
            return torch.randn(self.count, patches.shape[1], generator=draw).to(patches)
        lengths = patches.norm(dim=1)
        loud = patches[lengths > 0.5 * lengths.median()]
        loud = loud if len(loud) else patches
        order = torch.randint(len(loud), (self.count,), generator=draw)
        if len(loud) >= self.count:
            order = torch.randperm(len(loud), generator=draw)[: self.count]
        found = loud[order.to(loud.device)]
        return found if self.kind == "patches" else _centres(loud, found)

    def forward(self, x: Tensor) -> Tensor:
        self.check_calibrated()
        images = x.reshape(-1, *self.image)
        _, h, w = self.image
        down, right = h - self.size + 1, w - self.size + 1
        at_once = max(1, _ANSWERS // (down * right * self.count))
        found = []
        # A program that is exported takes batches of any size, which it cannot count into parts.
        for part in [images] if torch.compiler.is_compiling() else images.split(at_once):
            patches = _contrasted(functional.unfold(part, self.size).mT, self.floor)
            weight, bias = self.filters.to(x.dtype), (-self.offset - self.threshold).to(x.dtype)
            answers = functional.linear(patches, weight, bias)  # [n, places, filters]
            answers = answers.relu_().mT.reshape(-1, self.count, down, right)
            pooled = functional.adaptive_avg_pool2d(answers, self.grid).flatten(1)
            found.append(pooled.sqrt() if self.root else pooled)
        return torch.cat(found) if found else x.new_zeros(0, self.out_features)

    def extra_repr(self) -> str:
        return (
            f"{self.image}, {self.count}, size={self.size}, grid={self.grid}, kind={self.kind!r}, "
            f"root={self.root}, seed={self.seed}"
        )


def _contrasted(patches: Tensor, floor: Tensor) -> Tensor:
    patches = patches - patches.mean(-1, keepdim=True)
    contrast = patches.square().mean(-1, keepdim=True) + floor.to(patches.dtype)
    return patches / contrast.sqrt()


def _whitening(rows: Tensor) -> Tensor:
    """(Σ + 0.1 I)^(-1/2), symmetric."""
    values, vectors = torch.linalg.eigh(rows.mT @ rows / len(rows))
    found: Tensor = (vectors * (values.clamp_min(0) + _WHITE).rsqrt()) @ vectors.mT
    return found


def _centres(rows: Tensor, start: Tensor) -> Tensor:
    """k-means by direction."""
    rows, centres = functional.normalize(rows, dim=1), functional.normalize(start, dim=1)
    for _ in range(_ROUNDS):
        nearest = (rows @ centres.mT).argmax(1)
        members = rows.new_zeros(len(rows), len(centres))
        members[torch.arange(len(rows), device=rows.device), nearest] = 1
        sums = members.mT @ rows
        lengths = sums.norm(dim=1, keepdim=True)
        centres = torch.where(lengths > 1e-12, sums / lengths.clamp_min(1e-12), centres)
    return centres
