"""Layers that torch has, in fewer passes over memory on a GPU.

Their weights, values and gradients are those of torch's own, which they are everywhere else and in graphs that torch
compiles.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from protoformer.models.kernels.dispatch import is_in_use_on_cpu, kernels_run_on

ALIGNMENT = 8
"""Channels that matrix units take together."""


def match_layout(maps: Tensor) -> Tensor:
    """The same maps, B x C x H x W, on a CPU in use with channels last: so its convolutions are fastest."""
    return maps.contiguous(memory_format=torch.channels_last) if is_in_use_on_cpu(maps) else maps


class TokenNorm(nn.LayerNorm):
    """Layer norm of tokens, ... x C."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)

    def forward(self, tokens: Tensor) -> Tensor:
        """... x C to the same, in float32 where products are of half precision."""
        if not (kernels_run_on(tokens) and self.weight.dtype == torch.float32):
            return super().forward(tokens)
        rows = tokens.reshape(-1, tokens.shape[-1]).contiguous()
        normed: Tensor = _LayerNorm.apply(rows, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        return normed.view(tokens.shape)


class MapNorm(nn.Module):
    """Instance norm of maps, without weights, and, rectified, a ReLU after it."""

    def __init__(self, rectified: bool = False) -> None:
        super().__init__()
        self.rectified = rectified
        self.eps = 1e-5

    def forward(self, maps: Tensor) -> Tensor:
        """B x C x H x W to the same."""
        if not kernels_run_on(maps):
            normed = F.instance_norm(maps, eps=self.eps)
            return F.relu(normed) if self.rectified else normed
        rows = maps.permute(0, 2, 3, 1).flatten(1, 2).contiguous()
        found: Tensor = _InstanceNorm.apply(rows, self.eps, self.rectified)  # type: ignore[no-untyped-call]
        return found.view(len(maps), *maps.shape[2:], -1).permute(0, 3, 1, 2)


class ActivatedConv(nn.Conv2d):
    """A convolution and, rectified, a ReLU after it."""

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
        """B x C_in x H x W to B x C x H' x W'."""
        if not kernels_run_on(maps):
            plain = super().forward(maps)
            return F.relu(plain) if self.rectified else plain
        # Channels that the matrix units cannot share out evenly are multiplied slowly, so zeros join them.
        before, after = -self.in_channels % ALIGNMENT, -self.out_channels % ALIGNMENT
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, before, 0, after)) if before or after else self.weight
        maps = F.pad(maps, (0, 0, 0, 0, 0, before)) if before else maps
        made = F.conv2d(maps, weight, None, self.stride, self.padding, self.dilation, self.groups)
        rows = made.permute(0, 2, 3, 1).contiguous()
        found: Tensor = _Activated.apply(rows.flatten(0, 2), self.bias, self.rectified)  # type: ignore[no-untyped-call]
        return found.view(*rows.shape[:3], self.out_channels).permute(0, 3, 1, 2)


class PositionConv(nn.Conv2d):
    """A 3x3 convolution of each channel by itself, added to what it reads, so that pixels know what is around them."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1, groups=channels)

    def forward(self, maps: Tensor) -> Tensor:
        """B x C x H x W to the same."""
        if not (kernels_run_on(maps) and self.weight.dtype == torch.float32):
            return maps + super().forward(maps)
        rows = maps.permute(0, 2, 3, 1).float().contiguous()
        taps = self.weight.flatten(1).T.contiguous()
        found: Tensor = _Positioned.apply(rows, taps, self.bias)  # type: ignore[no-untyped-call]
        return found.permute(0, 3, 1, 2)


class _Positioned(torch.autograd.Function):
    """Maps, B x H x W x C, plus their convolution with taps, 9 x C, plus a bias."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
        from protoformer.models.kernels import layer_kernels as position_kernels

        ctx.save_for_backward(maps, taps)
        with torch.cuda.device_of(maps):
            return position_kernels.position(maps, taps, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, ...]:
        from protoformer.models.kernels import layer_kernels as position_kernels

        maps, taps = ctx.saved_tensors
        with torch.cuda.device_of(maps):
            return position_kernels.position_gradient(arriving.contiguous(), maps, taps)


class _LayerNorm(torch.autograd.Function):
    """Of rows, n x C."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        from protoformer.models.kernels import layer_kernels as norm_kernels

        ctx.save_for_backward(rows, weight)
        ctx.eps = eps
        with torch.cuda.device_of(rows):
            return norm_kernels.layer_norm(rows, weight, bias, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        from protoformer.models.kernels import layer_kernels as norm_kernels

        rows, weight = ctx.saved_tensors
        with torch.cuda.device_of(rows):
            return *norm_kernels.layer_norm_gradient(arriving.contiguous(), rows, weight, ctx.eps), None


class _InstanceNorm(torch.autograd.Function):
    """Of maps, B x HW x C."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, eps: float, rectified: bool) -> Tensor:
        from protoformer.models.kernels import layer_kernels as norm_kernels

        with torch.cuda.device_of(maps):
            found, moments = norm_kernels.instance_norm(maps, eps, rectified)
        ctx.save_for_backward(maps, moments)
        ctx.rectified = rectified
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        from protoformer.models.kernels import layer_kernels as norm_kernels

        maps, moments = ctx.saved_tensors
        with torch.cuda.device_of(maps):
            return norm_kernels.instance_norm_gradient(arriving.contiguous(), maps, moments, ctx.rectified), None, None


class _Activated(torch.autograd.Function):
    """Rows, n x C or more, the first C plus a bias of C, rectified or not."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, bias: Tensor, rectified: bool) -> Tensor:
        from protoformer.models.kernels import layer_kernels as activation_kernels

        with torch.cuda.device_of(rows):
            found = activation_kernels.activate(rows, bias, rectified)
        ctx.save_for_backward(found, bias)
        ctx.rectified, ctx.width = rectified, rows.shape[1]
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        from protoformer.models.kernels import layer_kernels as activation_kernels

        found, bias = ctx.saved_tensors
        with torch.cuda.device_of(found):
            arriving = arriving.contiguous()
            return *activation_kernels.activate_gradient(arriving, found, bias, ctx.rectified, ctx.width), None


@contextmanager
def meta_init() -> Iterator[None]:
    """Within it, networks are built without any numbers in them, on the device "meta"."""
    with torch.device("meta"), _Unfilled():
        yield


class _Unfilled(TorchFunctionMode):
    """Draws no numbers for tensors that have no place for them; torch would import its compiler first, for a second."""

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
"""Functions whose new tensors have torch's default type unless another one is named."""


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Within it, new tensors are float32 even if the caller set another default type for torch.

    Networks compute in float32, and their random weights are to be the same whatever the default is. It holds for this
    thread alone, which `torch.set_default_dtype` does not.
    """
    if torch.get_default_dtype() == torch.float32:
        yield
        return
    with _Float32():
        yield


class _Float32(TorchFunctionMode):
    """Names float32 where a new tensor would have the default type."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function in _FLOATING and options.get("dtype") is None:
            options = {**options, "dtype": torch.float32}
        found = function(*args, **options)
        is_new = function is torch.tensor and options.get("dtype") is None
        return found.float() if is_new and found.dtype == torch.get_default_dtype() else found


def init_for_relu(module: nn.Module) -> None:
    """Give every convolution in a module the spread that a ReLU after it preserves (He et al., 2015)."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def init_for_gates(module: nn.Module) -> None:
    """Give every convolution in a module the spread that a sigmoid or tanh preserves (Glorot and Bengio, 2010)."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
