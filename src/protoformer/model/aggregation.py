"""Motion gathered over the whole image, so that a pixel that cannot be matched learns how its like move."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.model.prototyping import Prototyping, maximize
from protoformer.model.tokens import maps_of, merge_heads, size_of, split_heads, tokens_of


class PixelAggregation(nn.Module):
    """Global motion aggregation (GMA): attention between all pixels by the likeness of their context."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, channels, 1, bias=False)
        self.key = nn.Conv2d(channels, channels, 1, bias=False)
        self.value = nn.Conv2d(channels, channels, 1, bias=False)
        self.strength = nn.Parameter(torch.zeros(()))

    def prepare(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """What stays the same over the updates of a pair: queries and keys, B x 1 x HW x C."""
        return split_heads(tokens_of(self.query(context)), 1), split_heads(tokens_of(self.key(context)), 1)

    def forward(self, motion: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """motion: B x C x H x W; returns it with what its like see added."""
        query, key = prepared
        gathered = F.scaled_dot_product_attention(query, key, split_heads(tokens_of(self.value(motion)), 1))
        return motion + self.strength * maps_of(merge_heads(gathered), size_of(motion))


class PrototypeAggregation(nn.Module):
    """The same through prototypes of the context: motion is averaged over each group, and handed back to its members.

    Cost is linear in the pixels, where attention between all of them is quadratic.
    """

    def __init__(self, channels: int, prototyping: Prototyping) -> None:
        super().__init__()
        self.prototyping = prototyping
        self.value = nn.Conv2d(channels, channels, 1, bias=False)
        self.strength = nn.Parameter(torch.zeros(()))

    def prepare(self, context: Tensor) -> Tensor:
        """What stays the same over the updates of a pair: memberships, B x heads x K x HW."""
        memberships: Tensor = self.prototyping(tokens_of(context), size_of(context)).memberships
        return memberships

    def forward(self, motion: Tensor, prepared: Tensor) -> Tensor:
        """motion: B x C x H x W; returns it with what its group sees added."""
        values = split_heads(tokens_of(self.value(motion)), prepared.shape[1])
        groups = maximize(prepared, values, normalize=True)
        shared = merge_heads(prepared.transpose(-2, -1) @ groups.to(prepared.dtype))
        return motion + self.strength * maps_of(shared, size_of(motion))
