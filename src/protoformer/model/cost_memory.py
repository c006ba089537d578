"""The paper's cost memory, after FlowFormer: what a pixel's whole cost map says, summarised in a few latent tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry import Padding, pixel_grid
from protoformer.model.attention import Attention, FeedForward, sine_positions
from protoformer.model.fused import is_written
from protoformer.model.precision import full_precision
from protoformer.model.tokens import maps_of, size_of, tokens_of

PATCH = 8
"""Side of the patches that a cost map is cut into, in pixels of the map."""
WINDOW = 7
POOLING = 4
MAPS_AT_ONCE = 2048
"""Cost maps summarised together in use: all of them would take (HW)^2 values. In training they are kept anyway."""


class CostTokens(nn.Module):
    """Cuts a cost map into 8x8 patches and summarises them, with their positions, by cross-attention."""

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
        centres = pixel_grid(rows, columns, costs.device) * PATCH + (PATCH - 1) / 2
        places = sine_positions(centres.flatten(1).T, self.width // 2).expand(costs.shape[0], -1, -1)
        memory = self.placed(torch.cat((tokens_of(maps), places), dim=-1))
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
        pooled = [tokens_of(F.avg_pool2d(maps, POOLING, ceil_mode=True)) for maps in (keys, values)]
        return maps_of(self.attention(tokens_of(keys), *pooled), size_of(values))


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

        size = size_of(context)
        hint = self.context(context).repeat_interleave(count, dim=0)
        token = of_pixel.view(batch, pixels, count, width).transpose(1, 2).flatten(0, 1)
        for norm, attention in zip(self.across_norms, self.across, strict=True):
            maps = maps_of(norm(token), size)
            token = token + tokens_of(attention(maps, maps + hint))
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
        pixels = tokens_of(source.float() * channels**-0.5)
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
        """B x HW x C in parts of as many pixels as are summarised together."""
        if is_written():  # how many parts a map of any size has, no graph can say
            return (pixels,)
        at_once = pixels.shape[1] if torch.is_grad_enabled() else MAPS_AT_ONCE
        parts: tuple[Tensor, ...] = pixels.split(max(1, at_once // pixels.shape[0]), dim=1)
        return parts
