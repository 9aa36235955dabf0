"""What the shield needs for a model of given layer shapes: bytes and operations, before it is run.

All numbers are for one GPU. With `gpus` > 1 the weights are cut by rows, as FSDP2 does: notes and
products of a step divide by their number; factors, second moments and claims are whole on each.
Nothing here is measured; `conceptors.bench` measures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from conceptors._internal import checks
from conceptors.shield.remember.recorder import enough

DENSE_LIMIT = 8192  # the shield's: layers of more inputs keep a sketch
FACTORS = 3  # d x r matrices a large layer holds on a GPU: U, and U cut in two for tensor cores
_SINGLE, _DOUBLE = 4, 8  # bytes of a number
_ADAM = 16  # bytes a parameter: weight, gradient and two moments, in float32


@dataclass(frozen=True)
class LayerShape:
    """Linear layers `inputs -> outputs`, `copies` of them. A bias counts as one more input.

    `shares` layers have the same input, this one included, like queries, keys and values. An
    embedding is one layer of a single input for each token, a norm layer one for each channel.

    >>> LayerShape("key", inputs=4096, outputs=1024, copies=32, shares=3).parameters
    134217728
    """

    name: str
    inputs: int
    outputs: int
    copies: int = 1
    shares: int = 1

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "copies", "shares"):
            checks.whole(getattr(self, name), f"{name} of {self.name!r}", 1)

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs * self.copies

    @property
    def is_matrix(self) -> bool:
        """Whether rows are multiplied with it; if not, it is corrected number by number."""
        return self.inputs > 1


@dataclass(frozen=True)
class Needs:
    """What one GPU holds and does; they add up over layers.

    Attributes:
        parameters: of the whole model.
        training_bytes: weights, gradients and Adam's moments, in float32; no activations.
        correlation_bytes: d x d totals in float64, or sketches, while a task is remembered.
        shared_correlation_bytes: the same, if layers with one input had one total.
        claim_bytes: what stays of all tasks, in main memory for layers of 2048 inputs or more.
        factor_bytes: U and what is made of it, in float32, as the library holds them.
        least_factor_bytes: U alone.
        note_bytes: W U, and with a pull W_before U; where d is 1, copies of the weights.
        gradient_bytes: the copies that the optimizer is given.
        anchor_bytes: W_before for a pull, in main memory; on the GPU where weights are cut.
        training_flops: of a step, 6 for each token and weight of a matrix.
        sharp_flops: of products W U, to float32's precision.
        rough_flops: of the other products of a step.
        step_bytes: least that a shielded step reads and writes beyond a plain one.
        collect_flops: 2 rows d² for layers with d x d totals.
        sketch_flops: of sketches, in float64.
        eigenproblems: of sketches, each of twice their rank.
    """

    parameters: int = 0
    training_bytes: float = 0.0
    correlation_bytes: float = 0.0
    shared_correlation_bytes: float = 0.0
    claim_bytes: float = 0.0
    factor_bytes: float = 0.0
    least_factor_bytes: float = 0.0
    note_bytes: float = 0.0
    gradient_bytes: float = 0.0
    anchor_bytes: float = 0.0
    training_flops: float = 0.0
    sharp_flops: float = 0.0
    rough_flops: float = 0.0
    step_bytes: float = 0.0
    collect_flops: float = 0.0
    sketch_flops: float = 0.0
    eigenproblems: int = 0

    def __add__(self, other: Needs) -> Needs:
        return Needs(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    @property
    def shield_flops(self) -> float:
        """That a shielded step has more than a plain one: 8 out d r (see `needs`)."""
        return self.sharp_flops + self.rough_flops

    def overhead(self, *, half: float, tf32: float, bandwidth: float) -> float:
        """Least time added to a step, as a share of the least time of a plain one.

        Args:
            half: operations a second of the training's products, in bfloat16.
            tf32: of TF32 products; three of them make one of float32's precision.
            bandwidth: bytes a second.

        >>> needs([LayerShape("up", 4096, 14336)], rank=512, tokens=16384).overhead(
        ...     half=600e12, tf32=300e12, bandwidth=4e12)
        0.125
        """
        work = (3 * self.sharp_flops + self.rough_flops) / tf32
        return max(work, self.step_bytes / bandwidth) / (self.training_flops / half)


def needs(
    layers: Iterable[LayerShape],
    rank: int,
    tokens: int,
    *,
    gpus: int = 1,
    once: bool = False,
    pulled: bool = True,
    rows: int | None = None,
    dense_limit: int = DENSE_LIMIT,
) -> Needs:
    """What a shield on these layers needs on each GPU.

    Args:
        rank: directions that are protected, at most, in every layer.
        tokens: rows that one GPU trains on in a step.
        gpus: over which the weights are cut; 1 for whole weights.
        once: only steps are projected, as for SGD with momentum where nothing is pulled: 4 out d r
            instead of 8.
        pulled: as with `aperture="auto"`.
        rows: that each layer takes when a task is remembered; by default the least that
            `rows="auto"` takes if there are so many, max(16384, 8 d). It may be four times that.
        dense_limit: as the shield's.

    >>> one = [LayerShape("fc", inputs=1000, outputs=200)]
    >>> found = needs(one, rank=10, tokens=64)
    >>> found.shield_flops, found.training_flops        # 8 out d r, 6 tokens out d
    (16000000.0, 76800000.0)
    >>> found.correlation_bytes, found.note_bytes       # 8 d², twice 4 out r
    (8000000.0, 16000.0)
    """
    for value, name in ((rank, "rank"), (tokens, "tokens"), (gpus, "gpus")):
        checks.whole(value, name, 1)
    if rows is not None:
        checks.whole(rows, "rows", 1)
    total = Needs()
    for layer in layers:
        taken = enough(layer.inputs) if rows is None else rows
        total += _of_training(layer, tokens, gpus)
        total += _of_steps(layer, min(rank, layer.inputs), gpus, once, pulled)
        total += _of_remembering(layer, rank, taken, dense_limit)
    return total


def _of_training(layer: LayerShape, tokens: int, gpus: int) -> Needs:
    numbers = layer.parameters
    return Needs(
        parameters=numbers,
        training_bytes=_ADAM * numbers / gpus,
        training_flops=6.0 * tokens * numbers if layer.is_matrix else 0.0,
    )


def _of_steps(layer: LayerShape, rank: int, gpus: int, once: bool, pulled: bool) -> Needs:
    """Products, and what they need. The least that is moved counts every tensor once a kernel."""
    # what is no matrix is gathered where it is sharded, so that every GPU does all of it
    own = layer.parameters / (gpus if layer.is_matrix else 1)
    held = Needs(
        gradient_bytes=_SINGLE * own, anchor_bytes=pulled * _SINGLE * layer.parameters / gpus
    )
    notes = 1 + pulled
    if not layer.is_matrix:
        moved = 4 if once else 6 + 2 * notes
        return held + Needs(note_bytes=notes * _SINGLE * own, step_bytes=moved * _SINGLE * own)
    thin = _SINGLE * layer.copies * layer.inputs * rank
    note = _SINGLE * layer.outputs * layer.copies * rank / gpus
    steps = 2 * thin + 3 * _SINGLE * own + 2 * note
    gradients = 0.0 if once else 2 * thin + 5.0 * _SINGLE * own + 2 * pulled * note
    return held + Needs(
        factor_bytes=FACTORS * thin,
        least_factor_bytes=thin,
        note_bytes=notes * note,
        sharp_flops=2.0 * own * rank,
        rough_flops=2.0 * (1 if once else 3) * own * rank,
        step_bytes=steps + gradients,
    )


def _of_remembering(layer: LayerShape, rank: int, rows: int, dense_limit: int) -> Needs:
    """Second moments, and what is kept of them."""
    d, copies = layer.inputs, layer.copies
    if d > dense_limit and rank < d:
        sketch = 2.0 * _DOUBLE * copies * d * rank
        return Needs(
            correlation_bytes=sketch,
            shared_correlation_bytes=sketch / layer.shares,
            claim_bytes=sketch / 2,
            # after every `rank` rows: B Bᵀ of B [2 rank, d], and the turned rows
            sketch_flops=12.0 * copies * rows * rank * d,
            eigenproblems=copies * (rows // rank),
        )
    total = float(_DOUBLE * copies * d**2)
    return Needs(
        correlation_bytes=total,
        shared_correlation_bytes=total / layer.shares,
        claim_bytes=total,
        collect_flops=2.0 * copies * rows * d**2 / layer.shares if layer.is_matrix else 0.0,
    )


def llama_8b() -> list[LayerShape]:
    """The shapes of a Llama-like language model of eight billion parameters, output not tied.

    >>> sum(layer.parameters for layer in llama_8b())
    8030261248
    """
    width, inner, depth, vocabulary = 4096, 14336, 32, 128256
    return [
        LayerShape("embedding", 1, width, copies=vocabulary),
        LayerShape("query", width, width, depth, shares=3),
        LayerShape("key", width, width // 4, depth, shares=3),
        LayerShape("value", width, width // 4, depth, shares=3),
        LayerShape("out", width, width, depth),
        LayerShape("gate", width, inner, depth, shares=2),
        LayerShape("up", width, inner, depth, shares=2),
        LayerShape("down", inner, width, depth),
        LayerShape("norm", 1, 1, copies=(2 * depth + 1) * width),
        LayerShape("head", width, vocabulary),
    ]
