"""The paper's cost memory, after FlowFormer: what a pixel's whole cost map says, summarized in a few latent tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.resizing import Padding
from protoformer.geometry.warps import pixel_grid
from protoformer.models.kernels.dispatch import is_written
from protoformer.models.layers import TokenNorm
from protoformer.models.runtime import (
    full_precision,
    map_size,
    maps_to_tokens,
    merge_heads,
    split_heads,
    tokens_to_maps,
)

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


PATCH = 8
"""Side of the patches that a cost map is cut into, in pixels of the map."""
WINDOW = 7
POOLING = 4
MAPS_AT_ONCE = 2048
"""Cost maps summarized together in use: all of them would take (HW)^2 values. In training they are kept anyway."""


class CostTokens(nn.Module):
    """Cuts a cost map into 8x8 patches and summarizes them, with their positions, by cross-attention."""

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
        self.placed = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width))
        self.latents = nn.Parameter(torch.randn(tokens, width) * 0.02)
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width)

    def forward(self, costs: Tensor) -> Tensor:
        """costs: n x H x W, one map a source pixel; returns n x tokens x width."""
        padding = Padding.to_multiple(costs.shape[1], costs.shape[2], PATCH)
        maps = self.patches(padding.pad(costs[:, None]))
        rows, columns = maps.shape[2:]
        centers = pixel_grid(rows, columns, costs.device) * PATCH + (PATCH - 1) / 2
        places = sine_positions(centers.flatten(1).T, self.width // 2).expand(costs.shape[0], -1, -1)
        memory = self.placed(torch.cat((maps_to_tokens(maps), places), dim=-1))
        latents = self.latents.expand(costs.shape[0], -1, -1)
        tokens: Tensor = latents + self.attention(latents, memory)
        summary: Tensor = tokens + self.feed_forward(tokens)
        return summary


class LocalAttention(nn.Module):
    """Attention within 7x7 windows of a map."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)

    def forward(self, values: Tensor, keys: Tensor) -> Tensor:
        """values, keys: n x C x H x W, what is attended to and by what; returns n x C x H x W."""
        padding = Padding.to_multiple(values.shape[2], values.shape[3], WINDOW)
        values, keys = padding.pad(values), padding.pad(keys)
        count, _, height, width = values.shape
        tiles = (count, height // WINDOW, width // WINDOW)
        key_windows = _windows(keys)
        attended = self.attention(key_windows, key_windows, _windows(values))
        maps = attended.view(*tiles, WINDOW, WINDOW, -1).permute(0, 5, 1, 3, 2, 4).reshape(count, -1, height, width)
        return padding.crop(maps)


def _windows(maps: Tensor) -> Tensor:
    """Cut maps of N x C x H x W (multiples of WINDOW) into (windows) x WINDOW^2 x C."""
    count, channels, height, width = maps.shape
    tiles = maps.view(count, channels, height // WINDOW, WINDOW, width // WINDOW, WINDOW)
    return tiles.permute(0, 2, 4, 3, 5, 1).reshape(-1, WINDOW * WINDOW, channels)


class GlobalAttention(nn.Module):
    """Attention of every pixel to the whole map, which is averaged over 4x4 pixels first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)

    def forward(self, values: Tensor, keys: Tensor) -> Tensor:
        """values, keys: n x C x H x W, what is attended to and by what; returns n x C x H x W."""
        pooled = [maps_to_tokens(F.avg_pool2d(maps, POOLING, ceil_mode=True)) for maps in (keys, values)]
        return tokens_to_maps(self.attention(maps_to_tokens(keys), *pooled), map_size(values))


class MemoryLayer(nn.Module):
    """Attention within the tokens of a pixel, then across pixels (near, then far) token by token.

    Across pixels the context of the first image says who should listen to whom: it is added to queries and keys.
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
        """tokens: B x HW x T x C; context: B x D x H x W; returns tokens of the same shape."""
        batch, pixels, count, width = tokens.shape
        of_pixel = tokens.flatten(0, 1)
        normed = self.within_norm(of_pixel)
        of_pixel = of_pixel + self.within(normed, normed)
        of_pixel = of_pixel + self.within_feed_forward(of_pixel)

        size = map_size(context)
        hint = self.context(context).repeat_interleave(count, dim=0)
        token = of_pixel.view(batch, pixels, count, width).transpose(1, 2).flatten(0, 1)
        for norm, attention in zip(self.across_norms, self.across, strict=True):
            maps = tokens_to_maps(norm(token), size)
            token = token + maps_to_tokens(attention(maps, maps + hint))
        token = token + self.across_feed_forward(token)
        agreed: Tensor = token.view(batch, count, pixels, width).transpose(1, 2)
        return agreed


class CostMemory(nn.Module):
    """The whole summary: tokens of every pixel's cost map, made to agree with one another."""

    def __init__(self, tokens: int, width: int, layers: int, heads: int, context_width: int) -> None:
        super().__init__()
        self.tokens = CostTokens(tokens, width, heads)
        self.layers = nn.ModuleList(MemoryLayer(width, heads, context_width) for _ in range(layers))

    def forward(self, source: Tensor, target: Tensor, context: Tensor) -> Tensor:
        """source, target: B x C x H x W features; context: B x D x H x W; returns the memory, B x HW x T x width."""
        batch, channels, height, width = source.shape
        tokens = []
        pixels = maps_to_tokens(source.float() * channels**-0.5)
        for some in self._parts(pixels):
            with full_precision(source):
                costs = (some @ target.float().flatten(2)).view(-1, height, width)
            tokens.append(self.tokens(costs).view(batch, some.shape[1], -1, self.tokens.width))
        memory = torch.cat(tokens, dim=1)
        for layer in self.layers:
            memory = layer(memory, context)
        return memory

    @staticmethod
    def _parts(pixels: Tensor) -> tuple[Tensor, ...]:
        """B x HW x C in parts of as many pixels as are summarized together."""
        if is_written():  # how many parts a map of any size has, no graph can say
            return (pixels,)
        at_once = pixels.shape[1] if torch.is_grad_enabled() else MAPS_AT_ONCE
        parts: tuple[Tensor, ...] = pixels.split(max(1, at_once // pixels.shape[0]), dim=1)
        return parts
