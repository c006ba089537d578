"""Multi-head attention in the shapes that the flow decoders need."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.model.fused import is_written
from protoformer.model.layers import TokenNorm
from protoformer.model.tokens import merge_heads, split_heads

LARGEST_BATCH = 2**16 - 1


class Attention(nn.Module):
    """Scaled dot-product attention from `queries` to `memory`, without ever storing the matrix of weights."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)
        self.output = nn.Linear(channels, channels)

    def forward(self, queries: Tensor, memory: Tensor, values: Tensor | None = None) -> Tensor:
        """queries: B x n x C; memory: B x m x C, keys and (unless `values` differ) values; returns B x n x C."""
        query = split_heads(self.query(queries), self.heads)
        key = split_heads(self.key(memory), self.heads)
        value = split_heads(self.value(memory if values is None else values), self.heads)
        result: Tensor = self.output(merge_heads(_attended(query, key, value)))
        return result


def _attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """B x heads x n x d by B x heads x m x d, twice, to B x heads x n x d."""
    if is_written():
        return F.scaled_dot_product_attention(query, key, value)
    # The fused kernels on a GPU take no more than this at once.
    parts = (tensor.split(LARGEST_BATCH) for tensor in (query, key, value))
    return torch.cat([F.scaled_dot_product_attention(*part) for part in zip(*parts, strict=True)])


class FeedForward(nn.Sequential):
    """A layer norm and a perceptron with four times as many channels inside; the residual is the caller's."""

    def __init__(self, channels: int) -> None:
        super().__init__(
            TokenNorm(channels),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
        )


def sine_positions(positions: Tensor, channels: int) -> Tensor:
    """Sines and cosines of positions at geometrically spaced wavelengths, 2 to 2^8 in the unit given.

    positions: ... x 2, pixels; returns ... x channels (a multiple of 4).
    """
    waves = channels // 4
    frequencies = torch.pi * torch.logspace(0, -7, waves, base=2, device=positions.device, dtype=torch.float32)
    angles = (positions[..., None] * frequencies).flatten(-2)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)
