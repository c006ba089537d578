"""Convex upsampling as it is computed best: by kernels on a GPU, by products on a CPU in use, else as in `geometry`."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from protoformer.geometry import convex_upsample
from protoformer.model.fused import is_in_use_on_cpu, kernels_run_on
from protoformer.model.precision import full_precision


def upsample(field: Tensor, weights: Tensor, factor: int) -> Tensor:
    """As `convex_upsample`."""
    if is_in_use_on_cpu(field):
        return product_upsample(field, weights, factor)
    if not kernels_run_on(field):
        return convex_upsample(field, weights, factor)
    return kernel_upsample(field, weights, factor)


def product_upsample(field: Tensor, weights: Tensor, factor: int) -> Tensor:
    """As `convex_upsample`, by a matrix product a coarse pixel, which never holds what each of 9 neighbours adds."""
    batch, channels, height, width = field.shape
    pixels = batch * height * width
    shares = weights.permute(0, 2, 3, 1).reshape(pixels, 9, factor**2).float().softmax(dim=1)
    around = F.unfold(F.pad(field.float(), (1, 1, 1, 1), mode="replicate"), kernel_size=3).transpose(1, 2)
    with full_precision(field):
        fine = around.reshape(pixels, channels, 9).contiguous() @ shares
    tiles = fine.view(batch, height, width, channels, factor, factor).permute(0, 3, 1, 4, 2, 5)
    return tiles.reshape(batch, channels, factor * height, factor * width)


def kernel_upsample(field: Tensor, weights: Tensor, factor: int) -> Tensor:
    """As `convex_upsample`, by kernels, for which factor^2 is a power of two."""
    batch, channels, height, width = field.shape
    wide = field.float()
    # Edges repeated by hand: the gradient of torch's own padding is not the same twice.
    wide = torch.cat((wide[:, :, :1], wide, wide[:, :, -1:]), dim=2)
    wide = torch.cat((wide[..., :1], wide, wide[..., -1:]), dim=3)
    around = F.unfold(wide, kernel_size=3).view(batch, channels, 9, height, width)
    fine: Tensor = _Upsampled.apply(around, weights.permute(0, 2, 3, 1).contiguous(), factor)  # type: ignore[no-untyped-call]
    return fine


class _Upsampled(torch.autograd.Function):
    """Neighbours, N x C x 9 x H x W, by logits, N x H x W x (9 factor^2)."""

    @staticmethod
    def forward(ctx: Any, around: Tensor, weights: Tensor, factor: int) -> Tensor:
        from protoformer.model import upsampling_kernels

        with torch.cuda.device_of(around):
            found = upsampling_kernels.upsample(around, weights, factor)
        ctx.save_for_backward(around, weights, found)
        ctx.factor = factor
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, Tensor, None]:
        from protoformer.model import upsampling_kernels

        with torch.cuda.device_of(arriving):
            around, weights, found = ctx.saved_tensors
            arriving = arriving.contiguous()
            return *upsampling_kernels.upsample_gradient(arriving, around, weights, found, ctx.factor), None
