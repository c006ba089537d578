"""Layers of torch with fused GPU kernels, initialization, and construction on the meta device.

The layers have the parameters, values and gradients of torch's own, which are used on other devices and in compiled
graphs. On a GPU the kernels make fewer passes over memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from protoformer.models.kernels.dispatch import is_cpu_inference, use_kernels

ALIGNMENT = 8
"""Channel counts that are multiples of this multiply fastest on matrix units."""


def match_layout(maps: Tensor) -> Tensor:
    """Convert maps, B x C x H x W, to channels last for inference on a CPU, where convolutions are then fastest."""
    return maps.contiguous(memory_format=torch.channels_last) if is_cpu_inference(maps) else maps


class TokenNorm(nn.LayerNorm):
    """LayerNorm of tokens, ... x C."""

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
    """Instance norm of maps without parameters, followed by a ReLU if `rectified`."""

    def __init__(self, rectified: bool = False) -> None:
        super().__init__()
        self.rectified = rectified
        self.eps = 1e-5

    def forward(self, maps: Tensor) -> Tensor:
        """Normalize maps, B x C x H x W."""
        if not use_kernels(maps, "norm"):
            normed = F.instance_norm(maps, eps=self.eps)
            return F.relu(normed) if self.rectified else normed
        rows = maps.permute(0, 2, 3, 1).flatten(1, 2).contiguous()
        output: Tensor = _InstanceNorm.apply(rows, self.eps, self.rectified)  # type: ignore[no-untyped-call]
        return output.view(len(maps), *maps.shape[2:], -1).permute(0, 3, 1, 2)


class ActivatedConv(nn.Conv2d):
    """Convolution, followed by a ReLU if `rectified`."""

    def __init__(
        self,
        channels_in: int,
        channels: int,
        kernel: int,
        rectified: bool = False,
        padding: int = 0,
    ) -> None:
        super().__init__(channels_in, channels, kernel, padding=padding)
        self.rectified = rectified

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve B x C_in x H x W to B x C x H' x W'."""
        if not use_kernels(maps, "activation"):
            output = super().forward(maps)
            return F.relu(output) if self.rectified else output
        # Pad the channels to a multiple of ALIGNMENT, as matrix units are slow otherwise.
        pad_in, pad_out = -self.in_channels % ALIGNMENT, -self.out_channels % ALIGNMENT
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, pad_in, 0, pad_out)) if pad_in or pad_out else self.weight
        maps = F.pad(maps, (0, 0, 0, 0, 0, pad_in)) if pad_in else maps
        convolved = F.conv2d(maps, weight, None, self.stride, self.padding, self.dilation, self.groups)
        rows = convolved.permute(0, 2, 3, 1).contiguous()
        activated: Tensor = _Activate.apply(rows.flatten(0, 2), self.bias, self.rectified)  # type: ignore[no-untyped-call]
        return activated.view(*rows.shape[:3], self.out_channels).permute(0, 3, 1, 2)


class PositionConv(nn.Conv2d):
    """Conditional positional encoding: a 3x3 depthwise convolution with a residual connection."""

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
    def forward(ctx: Any, maps: Tensor, eps: float, rectified: bool) -> Tensor:
        from protoformer.models.kernels import layer_kernels

        with torch.cuda.device_of(maps):
            output, moments = layer_kernels.instance_norm(maps, eps, rectified)
        ctx.save_for_backward(maps, moments)
        ctx.rectified = rectified
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        from protoformer.models.kernels import layer_kernels

        maps, moments = ctx.saved_tensors
        with torch.cuda.device_of(maps):
            return layer_kernels.instance_norm_gradient(d_output.contiguous(), maps, moments, ctx.rectified), None, None


class _Activate(torch.autograd.Function):
    """Add a bias of C channels to the first C channels of rows and apply a ReLU if `rectified`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, bias: Tensor, rectified: bool) -> Tensor:
        from protoformer.models.kernels import layer_kernels

        with torch.cuda.device_of(rows):
            output = layer_kernels.activate(rows, bias, rectified)
        ctx.save_for_backward(output, bias)
        ctx.rectified, ctx.width = rectified, rows.shape[1]
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        from protoformer.models.kernels import layer_kernels

        output, bias = ctx.saved_tensors
        with torch.cuda.device_of(output):
            d_output = d_output.contiguous()
            return *layer_kernels.activate_gradient(d_output, output, bias, ctx.rectified, ctx.width), None


@contextmanager
def meta_init() -> Iterator[None]:
    """Build networks on the meta device within this context: with shapes and without values."""
    with torch.device("meta"), _SkipInit():
        yield


class _SkipInit(TorchFunctionMode):
    """Skip the initialization of meta tensors, for which torch would import its compiler (about a second)."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function is Tensor.normal_ or getattr(function, "__module__", None) == nn.init.__name__:
            tensor = args[0] if args else options["tensor"]
            if tensor.is_meta:
                return tensor
        return function(*args, **options)


_FLOATING = frozenset({torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.linspace, torch.logspace})
"""Functions that create tensors of torch's default dtype if none is given."""


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Create new tensors in float32 within this context, whatever torch's default dtype is.

    Networks compute in float32, and their random weights must not depend on the default. In contrast to
    `torch.set_default_dtype`, the context applies to the current thread only.
    """
    if torch.get_default_dtype() == torch.float32:
        yield
        return
    with _Float32():
        yield


class _Float32(TorchFunctionMode):
    """Set the dtype to float32 where a new tensor would have the default dtype."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function in _FLOATING and options.get("dtype") is None:
            options = {**options, "dtype": torch.float32}
        output = function(*args, **options)
        is_new = function is torch.tensor and options.get("dtype") is None
        return output.float() if is_new and output.dtype == torch.get_default_dtype() else output


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
