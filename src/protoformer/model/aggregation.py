"""Motion gathered over the whole image, so that a pixel that cannot be matched learns how its like move."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.model.fused.plain import means
from protoformer.model.precision import accumulated, for_products
from protoformer.model.prototyping import Prototyping
from protoformer.model.tokens import maps_of, merge_heads, size_of, split_heads, tokens_of


class PixelAggregation(nn.Module):
    """Global motion aggregation (GMA): attention between all pixels by the likeness of their context."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Linear(channels, channels, bias=False)
        self.key = nn.Linear(channels, channels, bias=False)
        self.value = nn.Linear(channels, channels, bias=False)
        self.strength = nn.Parameter(torch.zeros(()))

    def prepare(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """What stays the same over the updates of a pair: queries and keys, B x 1 x HW x C."""
        tokens = tokens_of(context)
        return split_heads(self.query(tokens), 1), split_heads(self.key(tokens), 1)

    def forward(self, motion: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """motion: B x C x H x W; returns it with what its like see added."""
        query, key = prepared
        gathered = F.scaled_dot_product_attention(query, key, split_heads(self.value(tokens_of(motion)), 1))
        return motion + self.strength * maps_of(merge_heads(gathered), size_of(motion))


class PrototypeAggregation(nn.Module):
    """The same through prototypes of the context: motion is averaged over each group, and handed back to its members.

    Cost is linear in the pixels, where attention between all of them is quadratic.
    """

    def __init__(self, channels: int, prototyping: Prototyping) -> None:
        super().__init__()
        self.prototyping = prototyping
        self.value = nn.Linear(channels, channels, bias=False)
        self.strength = nn.Parameter(torch.zeros(()))

    def prepare(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """What stays the same over the updates of a pair: memberships in the final groups, and their mass.

        B x heads x K x HW, and their sums over the pixels, B x heads x K.
        """
        tokens, size = tokens_of(context), size_of(context)
        keys, _ = self.prototyping.keys_and_values(tokens)
        # Every update multiplies by them twice: they are brought to the precision of products once.
        shares = for_products(self.prototyping.memberships(self.prototyping(tokens, size).centres, keys, size))
        return shares, shares.sum(dim=-1, dtype=accumulated(shares.dtype))

    def forward(self, motion: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """motion: B x C x H x W; returns it with what its group sees added."""
        shares, mass = prepared
        values = split_heads(self.value(tokens_of(motion)), shares.shape[1])
        groups = means(shares.to(values.dtype) @ values, mass)
        shared = merge_heads(shares.transpose(-2, -1) @ groups.to(shares.dtype))
        return motion + self.strength * maps_of(shared, size_of(motion))
