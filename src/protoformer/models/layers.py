"""Layers shared by the encoder and the heads: norms, convolutions, attention and MLP.

Norms and convolutions have the parameters, values and gradients of torch's own, which are used on other devices and in
compiled graphs. On a GPU the kernels make fewer passes over memory.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from protoformer.geometry.warps import grid_shape
from protoformer.models.kernels import fused
from protoformer.models.kernels.dispatch import is_cpu_inference, is_exporting, use_kernels
from protoformer.models.runtime import map_size, maps_to_tokens, merge_heads, split_heads, tokens_to_maps

ALIGNMENT = 8
"""Channel counts that are multiples of this multiply fastest on matrix units."""


def match_layout(maps: Tensor) -> Tensor:
    """Convert maps, B x C x H x W, to channels last for inference on a CPU, where convolutions are then fastest."""
    return maps.contiguous(memory_format=torch.channels_last) if is_cpu_inference(maps) else maps


class TokenNorm(nn.LayerNorm):
    """LayerNorm over the channels of tokens, ... x C: `nn.LayerNorm(C)`, by a kernel on a GPU."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)

    def forward(self, tokens: Tensor) -> Tensor:
        """Normalize tokens, ... x C; the output is float32 under autocast."""
        if not (use_kernels(tokens, "norm") and self.weight.dtype == torch.float32):
            return super().forward(tokens)
        rows = tokens.reshape(-1, tokens.shape[-1]).contiguous()
        normed: Tensor = _LayerNorm.apply(rows, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        return normed.view(tokens.shape)


class MapNorm(nn.Module):
    """Instance norm of maps: `nn.InstanceNorm2d` without parameters, followed by a ReLU if `relu`.

    Each channel of each image is normalized over its pixels.
    """

    def __init__(self, relu: bool = False) -> None:
        super().__init__()
        self.relu = relu
        self.eps = 1e-5

    def forward(self, maps: Tensor) -> Tensor:
        """Normalize maps, B x C x H x W."""
        if not use_kernels(maps, "norm"):
            normed = F.instance_norm(maps, eps=self.eps)
            return F.relu(normed) if self.relu else normed
        rows = maps.permute(0, 2, 3, 1).flatten(1, 2).contiguous()
        output: Tensor = _InstanceNorm.apply(rows, self.eps, self.relu)  # type: ignore[no-untyped-call]
        return output.view(len(maps), *maps.shape[2:], -1).permute(0, 3, 1, 2)


class FusedConv(nn.Conv2d):
    """`nn.Conv2d`, followed by a ReLU if `relu`; on a GPU one kernel adds the bias and applies the ReLU.

    Without `relu`, the default, it has no activation.
    """

    def __init__(
        self,
        channels_in: int,
        channels: int,
        kernel: int,
        relu: bool = False,
        padding: int = 0,
    ) -> None:
        super().__init__(channels_in, channels, kernel, padding=padding)
        self.relu = relu

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve B x C_in x H x W to B x C x H' x W'."""
        if not use_kernels(maps, "activation"):
            output = super().forward(maps)
            return F.relu(output) if self.relu else output
        # Pad the channels to a multiple of ALIGNMENT, as matrix units are slow otherwise.
        pad_in, pad_out = -self.in_channels % ALIGNMENT, -self.out_channels % ALIGNMENT
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, pad_in, 0, pad_out)) if pad_in or pad_out else self.weight
        maps = F.pad(maps, (0, 0, 0, 0, 0, pad_in)) if pad_in else maps
        convolved = F.conv2d(maps, weight, None, self.stride, self.padding, self.dilation, self.groups)
        rows = convolved.permute(0, 2, 3, 1).contiguous()
        activated: Tensor = _Activate.apply(rows.flatten(0, 2), self.bias, self.relu)  # type: ignore[no-untyped-call]
        return activated.view(*rows.shape[:3], self.out_channels).permute(0, 3, 1, 2)


class PositionConv(nn.Conv2d):
    """Positional encoding generator of Twins: a 3x3 depthwise convolution with a residual connection.

    The convolution tells positions by its zero padding (conditional positional encoding, Chu et al., 2021).
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1, groups=channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Add the convolution of maps, B x C x H x W, to them."""
        if not (use_kernels(maps, "position") and self.weight.dtype == torch.float32):
            return maps + super().forward(maps)
        rows = maps.permute(0, 2, 3, 1).float().contiguous()
        taps = self.weight.flatten(1).T.contiguous()
        output: Tensor = _Position.apply(rows, taps, self.bias)  # type: ignore[no-untyped-call]
        return output.permute(0, 3, 1, 2)


MAX_BATCH = 2**16 - 1
"""Largest batch of attention; the fused GPU kernels of torch take no more."""


class Attention(nn.Module):
    """Multi-head scaled dot-product attention with linear projections."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)
        self.output = nn.Linear(channels, channels)

    def forward(self, queries: Tensor, memory: Tensor, values: Tensor | None = None) -> Tensor:
        """Attend from queries to a memory.

        Args:
            queries: B x n x C.
            memory: B x m x C, projected to keys and, if `values` is None, to values.
            values: B x m x C, projected to values.

        Returns:
            B x n x C.
        """
        query = split_heads(self.query(queries), self.heads)
        key = split_heads(self.key(memory), self.heads)
        value = split_heads(self.value(memory if values is None else values), self.heads)
        result: Tensor = self.output(merge_heads(_attend(query, key, value)))
        return result


WINDOW = 8
"""Side of the windows of `WindowAttention`, pixels."""


class WindowAttention(Attention):
    """Self-attention of linear cost: each pixel attends to its 8x8 window and to the means of a grid of cells.

    It has the locally-grouped and the global sub-sampled attention of Twins in one layer. The cells are as many for any
    size of the map, so that the cost is linear in the number of pixels.

    Args:
        channels: C, a multiple of `heads`.
        heads: Number of attention heads.
        num_cells: Number of cells that are seen from everywhere.
    """

    def __init__(self, channels: int, heads: int, num_cells: int) -> None:
        super().__init__(channels, heads)
        self.grid = grid_shape(num_cells)

    def forward(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:  # type: ignore[override]
        """Mix tokens, B x HW x C, of a map of (H, W) = size."""
        cells, (height, width) = fused.cell_means(tokens, size, self.grid), size
        padding = (0, -width % WINDOW, 0, -height % WINDOW)
        maps = F.pad(tokens_to_maps(tokens, size), padding)
        windows = split_windows(maps, WINDOW)
        count = windows.shape[0] // tokens.shape[0]
        query = split_heads(self.query(windows), self.heads)
        key, value = (
            torch.cat((layer(windows), layer(cells).repeat_interleave(count, dim=0)), dim=1)
            for layer in (self.key, self.value)
        )
        mask = None
        if any(padding):
            inside = split_windows(F.pad(tokens.new_ones(1, 1, height, width), padding), WINDOW).squeeze(2) > 0
            mask = F.pad(inside, (0, cells.shape[1]), value=True).repeat(tokens.shape[0], 1)[:, None, None]
        key, value = split_heads(key, self.heads), split_heads(value, self.heads)
        attended: Tensor = self.output(merge_heads(F.scaled_dot_product_attention(query, key, value, mask)))
        return maps_to_tokens(join_windows(attended, map_size(maps), WINDOW)[:, :, :height, :width])


def split_windows(maps: Tensor, side: int) -> Tensor:
    """Split maps, B x C x H x W with H and W multiples of the side, into the tokens of their windows, row by row.

    Returns:
        (B windows) x side^2 x C.
    """
    batch, channels, height, width = maps.shape
    windows = maps.reshape(batch, channels, height // side, side, width // side, side).permute(0, 2, 4, 3, 5, 1)
    return windows.reshape(-1, side**2, channels)


def join_windows(windows: Tensor, size: tuple[int, int], side: int) -> Tensor:
    """Join windows to maps of (H, W) = size, the inverse of `split_windows`."""
    rows, columns = size[0] // side, size[1] // side
    maps = windows.view(-1, rows, columns, side, side, windows.shape[2]).permute(0, 5, 1, 3, 2, 4)
    return maps.reshape(maps.shape[0], maps.shape[1], *size)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend from query (B x heads x n x d) to key and value (B x heads x m x d): B x heads x n x d."""
    if is_exporting():
        return F.scaled_dot_product_attention(query, key, value)
    parts = (tensor.split(MAX_BATCH) for tensor in (query, key, value))
    return torch.cat([F.scaled_dot_product_attention(*part) for part in zip(*parts, strict=True)])


class FeedForward(nn.Sequential):
    """Pre-norm MLP with ratio 4: LayerNorm, linear, GELU, linear. The caller adds the residual."""

    def __init__(self, channels: int) -> None:
        super().__init__(
            TokenNorm(channels),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
        )


def sine_positions(positions: Tensor, channels: int) -> Tensor:
    """Return sinusoidal position encodings at geometrically spaced wavelengths, from 2 to 2^8 pixels.

    Args:
        positions: ... x 2, pixels.
        channels: Channels of the encoding, a multiple of 4.

    Returns:
        ... x channels.
    """
    num_frequencies = channels // 4
    frequencies = torch.pi * torch.logspace(
        0, -7, num_frequencies, base=2, device=positions.device, dtype=torch.float32
    )
    angles = (positions[..., None] * frequencies).flatten(-2)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


class _Position(torch.autograd.Function):
    """Sum of maps, B x H x W x C, their depthwise convolution with taps, 9 x C, and a bias."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
        from protoformer.models.kernels import layer_kernels

        ctx.save_for_backward(maps, taps)
        with torch.cuda.device_of(maps):
            return layer_kernels.position(maps, taps, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, ...]:
        from protoformer.models.kernels import layer_kernels

        maps, taps = ctx.saved_tensors
        with torch.cuda.device_of(maps):
            return layer_kernels.position_gradient(d_output.contiguous(), maps, taps)


class _LayerNorm(torch.autograd.Function):
    """LayerNorm of rows, n x C."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        from protoformer.models.kernels import layer_kernels

        ctx.save_for_backward(rows, weight)
        ctx.eps = eps
        with torch.cuda.device_of(rows):
            return layer_kernels.layer_norm(rows, weight, bias, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        from protoformer.models.kernels import layer_kernels

        rows, weight = ctx.saved_tensors
        with torch.cuda.device_of(rows):
            return *layer_kernels.layer_norm_gradient(d_output.contiguous(), rows, weight, ctx.eps), None


class _InstanceNorm(torch.autograd.Function):
    """Instance norm of maps, B x HW x C."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, eps: float, relu: bool) -> Tensor:
        from protoformer.models.kernels import layer_kernels

        with torch.cuda.device_of(maps):
            output, moments = layer_kernels.instance_norm(maps, eps, relu)
        ctx.save_for_backward(maps, moments)
        ctx.relu = relu
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        from protoformer.models.kernels import layer_kernels

        maps, moments = ctx.saved_tensors
        with torch.cuda.device_of(maps):
            return layer_kernels.instance_norm_gradient(d_output.contiguous(), maps, moments, ctx.relu), None, None


class _Activate(torch.autograd.Function):
    """Add a bias of C channels to the first C channels of rows and apply a ReLU if `relu`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, bias: Tensor, relu: bool) -> Tensor:
        from protoformer.models.kernels import layer_kernels

        with torch.cuda.device_of(rows):
            output = layer_kernels.activate(rows, bias, relu)
        ctx.save_for_backward(output, bias)
        ctx.relu, ctx.width = relu, rows.shape[1]
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        from protoformer.models.kernels import layer_kernels

        output, bias = ctx.saved_tensors
        with torch.cuda.device_of(output):
            d_output = d_output.contiguous()
            return *layer_kernels.activate_gradient(d_output, output, bias, ctx.relu, ctx.width), None


def init_for_relu(module: nn.Module) -> None:
    """Initialize every convolution of a module for a ReLU after it (He et al., 2015)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def init_for_gates(module: nn.Module) -> None:
    """Initialize every convolution of a module for a sigmoid or tanh after it (Glorot and Bengio, 2010)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
