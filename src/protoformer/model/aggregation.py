"""Motion gathered over the whole image, so that a pixel that cannot be matched learns how its like move."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.model.prototyping import Prototyping, maximize


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
        return _tokens(self.query(context)), _tokens(self.key(context))

    def forward(self, motion: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """motion: B x C x H x W; returns it with what its like see added."""
        query, key = prepared
        gathered = F.scaled_dot_product_attention(query, key, _tokens(self.value(motion)))
        return motion + self.strength * gathered.squeeze(1).transpose(1, 2).unflatten(2, motion.shape[2:])


def _tokens(maps: Tensor) -> Tensor:
    return maps.flatten(2).transpose(1, 2)[:, None]


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
        tokens = context.flatten(2).transpose(1, 2)
        memberships: Tensor = self.prototyping(tokens, (context.shape[2], context.shape[3])).memberships
        return memberships

    def forward(self, motion: Tensor, prepared: Tensor) -> Tensor:
        """motion: B x C x H x W; returns it with what its group sees added."""
        values = self.value(motion).flatten(2).transpose(1, 2).unflatten(2, (prepared.shape[1], -1)).transpose(1, 2)
        groups = maximize(prepared, values, normalize=True)
        shared = (prepared.transpose(-2, -1) @ groups.to(prepared.dtype)).transpose(1, 2).flatten(2)
        return motion + self.strength * shared.transpose(1, 2).unflatten(2, motion.shape[2:])
