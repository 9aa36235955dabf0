"""Linear layers, whose rows are the inputs, and embeddings, whose rows are one-hot vectors."""

from typing import Any

import torch
from torch import nn

from conceptors.layers.base import Block, Call, RowsByBlock, Sample, SecondMoment, register


@register(nn.Linear)
class LinearRule:
    def blocks(self, layer: nn.Linear) -> list[Block]:
        return [Block()]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        yield "", sample(call.argument(0, "input"))


@register(nn.Embedding, nn.EmbeddingBag)
class EmbeddingRule:
    """One block `[tokens, dim, 1]`: each token is a group, so the conceptor is diagonal."""

    def blocks(self, layer: Any) -> list[Block]:
        if layer.max_norm is not None:  # the forward pass rewrites such weights
            return []
        view, layout = lambda weight: weight[..., None], "tokens"
        return [Block(bias=None, view=view, layout=layout, rows_first=False)]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        tokens = call.argument(0, "input")
        is_bag = isinstance(layer, nn.EmbeddingBag)
        weights = call.argument(2, "per_sample_weights") if is_bag else None
        ones = torch.ones(tokens.shape, dtype=torch.float64, device=tokens.device)
        squares = ones if weights is None else weights.to(ones).square()
        tokens, squares = (sample.unpadded(x[..., None]).flatten() for x in (tokens, squares))
        counts = torch.zeros(layer.num_embeddings, dtype=torch.float64, device=tokens.device)
        counts.index_add_(0, tokens, squares)
        yield "", SecondMoment(counts[:, None, None], float(len(tokens)))
