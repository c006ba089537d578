"""Cost memory of the paper's flow decoder: latent tokens that summarize the cost map of each pixel.

It follows FlowFormer (Huang et al., ECCV 2022); sizes are defaults of `FlowHeadConfig`.

The cost map of a pixel of frame 1 holds its correlation with all pixels of frame 2 at 1/8 of the image, H x W costs.

1. `CostTokens`: each cost map is embedded as 8x8 patches with positions, and summarized into T = 8 latent tokens of 128
   channels by cross-attention from learned latents.
2. `MemoryLayer`, 3 times: self-attention within the tokens of a pixel, then attention of each token across pixels,
   first in 7x7 windows and then to the whole map pooled by 4x4.

`heads.flow.CostMemoryReader` queries the tokens in every recurrent update.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.warps import Padding, pixel_grid
from protoformer.models.kernels.dispatch import is_exporting
from protoformer.models.layers import Attention, FeedForward, join_windows, sine_positions, split_windows
from protoformer.models.runtime import (
    full_precision,
    map_size,
    maps_to_tokens,
    tokens_to_maps,
)

PATCH = 8
"""Side of the patches of a cost map, pixels of the map."""
WINDOW = 7
"""Side of the windows of `LocalAttention`, pixels of the map."""
POOLING = 4
"""Pooling factor of keys and values in `GlobalAttention`."""
MAPS_AT_ONCE = 2048
"""Cost maps that inference encodes at a time, as all of them hold (HW)^2 costs; training stores them all anyway."""


class CostTokens(nn.Module):
    """Encode cost maps into latent tokens: 8x8 patches with positions, then cross-attention from learned latents.

    Args:
        tokens: T, number of latent tokens.
        width: Channels of a token.
        heads: Attention heads.
    """

    def __init__(self, tokens: int, width: int, heads: int) -> None:
        super().__init__()
        self.width = width
        self.patches = nn.Sequential(
            nn.Conv2d(1, width // 8, 6, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(width // 8, width // 4, 6, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(width // 4, width // 2, 6, stride=2, padding=2),
        )
        self.memory_proj = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width)
        )
        self.latents = nn.Parameter(torch.randn(tokens, width) * 0.02)
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width)

    def forward(self, costs: Tensor) -> Tensor:
        """Encode cost maps, n x H x W, one for each pixel of frame 1, into tokens, n x T x width."""
        padding = Padding.to_multiple(costs.shape[1], costs.shape[2], PATCH)
        maps = self.patches(padding.pad(costs[:, None]))
        rows, columns = maps.shape[2:]
        centers = pixel_grid(rows, columns, costs.device) * PATCH + (PATCH - 1) / 2
        encoding = sine_positions(centers.flatten(1).T, self.width // 2).expand(costs.shape[0], -1, -1)
        memory = self.memory_proj(torch.cat((maps_to_tokens(maps), encoding), dim=-1))
        latents = self.latents.expand(costs.shape[0], -1, -1)
        tokens: Tensor = latents + self.attention(latents, memory)
        summary: Tensor = tokens + self.feed_forward(tokens)
        return summary


class LocalAttention(nn.Module):
    """Attention of every pixel within its 7x7 window of the map."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)

    def forward(self, values: Tensor, keys: Tensor) -> Tensor:
        """Attend within the map.

        Args:
            values: n x C x H x W, projected to values.
            keys: n x C x H x W, projected to queries and keys.

        Returns:
            n x C x H x W.
        """
        padding = Padding.to_multiple(values.shape[2], values.shape[3], WINDOW)
        values, keys = padding.pad(values), padding.pad(keys)
        key_windows = split_windows(keys, WINDOW)
        attended = self.attention(key_windows, key_windows, split_windows(values, WINDOW))
        return padding.crop(join_windows(attended, map_size(values), WINDOW))


class GlobalAttention(nn.Module):
    """Attention of every pixel to the whole map, average-pooled by 4x4."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)

    def forward(self, values: Tensor, keys: Tensor) -> Tensor:
        """Attend within the map.

        Args:
            values: n x C x H x W, projected to values.
            keys: n x C x H x W, projected to queries and keys.

        Returns:
            n x C x H x W.
        """
        pooled = [maps_to_tokens(F.avg_pool2d(maps, POOLING, ceil_mode=True)) for maps in (keys, values)]
        return tokens_to_maps(self.attention(maps_to_tokens(keys), *pooled), map_size(values))


class MemoryLayer(nn.Module):
    """Layer of the cost memory: attention within the tokens of a pixel, then of each token across pixels.

    Across pixels attention is local, then global; the projected context of frame 1 is added to its queries and keys.

    Args:
        width: Channels of a token.
        heads: Attention heads.
        context_width: Channels of the context.
    """

    def __init__(self, width: int, heads: int, context_width: int) -> None:
        super().__init__()
        self.within_norm = nn.LayerNorm(width)
        self.within = Attention(width, heads)
        self.within_feed_forward = FeedForward(width)
        self.context = nn.Conv2d(context_width, width, 1)
        self.across_norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.across = nn.ModuleList((LocalAttention(width, heads), GlobalAttention(width, heads)))
        self.across_feed_forward = FeedForward(width)

    def forward(self, tokens: Tensor, context: Tensor) -> Tensor:
        """Update tokens, B x HW x T x C, with the context, B x D x H x W; returns the same shape as tokens."""
        batch, pixels, count, width = tokens.shape
        pixel_tokens = tokens.flatten(0, 1)
        normed = self.within_norm(pixel_tokens)
        pixel_tokens = pixel_tokens + self.within(normed, normed)
        pixel_tokens = pixel_tokens + self.within_feed_forward(pixel_tokens)

        size = map_size(context)
        projected_context = self.context(context).repeat_interleave(count, dim=0)
        token_maps = pixel_tokens.view(batch, pixels, count, width).transpose(1, 2).flatten(0, 1)
        for norm, attention in zip(self.across_norms, self.across, strict=True):
            maps = tokens_to_maps(norm(token_maps), size)
            token_maps = token_maps + maps_to_tokens(attention(maps, maps + projected_context))
        token_maps = token_maps + self.across_feed_forward(token_maps)
        output: Tensor = token_maps.view(batch, count, pixels, width).transpose(1, 2)
        return output


class CostMemory(nn.Module):
    """Cost memory: encodes the cost map of every pixel of frame 1 into T latent tokens.

    Args:
        tokens: T, number of latent tokens per pixel.
        width: Channels of a token.
        layers: Number of memory layers.
        heads: Attention heads.
        context_width: Channels of the context.
    """

    def __init__(self, tokens: int, width: int, layers: int, heads: int, context_width: int) -> None:
        super().__init__()
        self.tokens = CostTokens(tokens, width, heads)
        self.layers = nn.ModuleList(MemoryLayer(width, heads, context_width) for _ in range(layers))

    def forward(self, source: Tensor, target: Tensor, context: Tensor) -> Tensor:
        """Compute the cost memory of a batch of pairs.

        Args:
            source: B x C x H x W, features of frame 1.
            target: B x C x H x W, features of frame 2.
            context: B x D x H x W, context of frame 1.

        Returns:
            B x HW x T x width.
        """
        batch, channels, height, width = source.shape
        tokens = []
        pixels = maps_to_tokens(source.float() * channels**-0.5)
        for chunk in self._split_pixels(pixels):
            with full_precision(source):
                costs = (chunk @ target.float().flatten(2)).view(-1, height, width)
            tokens.append(self.tokens(costs).view(batch, chunk.shape[1], -1, self.tokens.width))
        memory = torch.cat(tokens, dim=1)
        for layer in self.layers:
            memory = layer(memory, context)
        return memory

    @staticmethod
    def _split_pixels(pixels: Tensor) -> tuple[Tensor, ...]:
        """Split B x HW x C into chunks of pixels whose cost maps are encoded together."""
        if is_exporting():  # an exported graph cannot have a number of chunks that depends on the size
            return (pixels,)
        chunk_size = pixels.shape[1] if torch.is_grad_enabled() else MAPS_AT_ONCE
        chunks: tuple[Tensor, ...] = pixels.split(max(1, chunk_size // pixels.shape[0]), dim=1)
        return chunks
