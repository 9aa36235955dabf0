"""Families of models: which parameters are protected, and how far old outputs drift."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from conceptors import Shield
from conceptors.layers.bare import is_bare
from conceptors.shield.blocks import scan
from helpers import drift

Batch = dict[str, Tensor]  # keyword arguments of the model, labels among them

SIZE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48}
SIZE |= {"num_hidden_layers": 2, "num_attention_heads": 2}
VOCABULARY = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TRANSLATOR: dict[str, Any] = {"d_model": 32}  # an encoder and a decoder
for side in ("encoder", "decoder"):
    TRANSLATOR |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 48}


@dataclass(frozen=True)
class Family:
    """A model that takes batches as keyword arguments and gives `.loss` and `.logits`.

    `old` must leave room: fewer rows than layers have inputs. What needs transformers is imported
    when `make` is called.
    """

    name: str
    make: Callable[[], nn.Module]
    old: Callable[[], Batch]
    new: Callable[[], Batch]
    refused: str = ""  # why `Shield(model)` refuses it, unless unsupported="freeze"

    def build(self) -> Any:
        """The model in evaluation mode, so that dropout hides no drift; the same at every call."""
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            return self.make().eval()


def model(kind: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Makes a model of transformers with random weights."""

    def make() -> nn.Module:
        import transformers

        return getattr(transformers, kind)(getattr(transformers, config)(**settings))  # type: ignore[no-any-return]

    return make


HARD: dict[str, Any] = {"hard": True}  # and nothing else
STEPS, RATE = 40, 3e-3


class Outcome(NamedTuple):
    """Two tasks, the first remembered; losses are of the second."""

    drift: float  # |Δ logits| / |logits| on the first
    first_loss: float
    last_loss: float
    moved: frozenset[str]  # names of parameters that the second task has changed


class Standing(NamedTuple):
    """Names of all trainable parameters of a model, by what becomes of them."""

    protected: frozenset[str]
    frozen: frozenset[str]
    refused: frozenset[str]


def standing(model: nn.Module) -> Standing:
    """What a shield with default options does with the parameters of a model."""
    scanned = scan(model, (), ())
    bare = {name for name, block in scanned.blocks.items() if is_bare(block.spec)}
    layered = [block for name, block in scanned.blocks.items() if name not in bare]
    covered = {id(p) for block in layered for p in block.active()}
    protected = {name for name, p in model.named_parameters() if id(p) in covered}
    return Standing(
        frozenset(protected | scanned.magnitudes.keys()),
        frozenset(bare | scanned.frozen.keys()),
        frozenset(scanned.unsupported),
    )


@cache
def standing_of(family: Family) -> Standing:
    """The same, of a family; counts also what is refused only when `remember` runs the model."""
    model = family.build()
    scanned = standing(model)
    shield = Shield(model, unsupported="freeze").remember([family.old()])
    fixed = {row.layer for row in shield.explain() if row.done == "fixed after the first task"}
    return Standing(scanned.protected - fixed, scanned.frozen - fixed, frozenset(fixed))


def logits(model: Any, batch: Batch) -> Tensor:
    with torch.no_grad():
        return model(**batch).logits.clone()  # type: ignore[no-any-return]


def learn(model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> list[float]:
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def play(
    family: Family, shielded: dict[str, Any] | None, model: Any = None, call: Any = None
) -> Outcome:
    """Remember the old task, learn the new one with AdamW; without a shield if None.

    `model` takes the place of the family's own, and is trained by way of `call`.
    """
    model, old, new = model or family.build(), family.old(), family.new()
    call = model if call is None else call  # compiled models have no truth value
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    if shielded is not None:
        shield = Shield(call, unsupported="freeze" if family.refused else "error", **shielded)
        optimizer = shield.guard(optimizer)
        shield.remember([old])
    before = logits(model, old)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    losses = learn(call, optimizer, new)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, weights[name])}
    after = logits(model, old)
    return Outcome(drift(after, before), losses[0], losses[-1], frozenset(moved))
