"""Costs read by kernels on a GPU: kept, as in `StoredCorrelation`, or computed as in `OnDemandCorrelation`.

Every update of a flow reads other windows. Left to autograd, the gradient of each would be a volume of its own, most of
it zeros, to be added to the others; here all windows add to one.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from protoformer.model.correlation import Correlation, InterpolatedCorrelation, pyramid_of
from protoformer.model.layers import ALIGNMENT
from protoformer.model.precision import full_precision
from protoformer.model.tokens import maps_of, tokens_of


@dataclass
class _Kept:
    """Costs, B HW x total, float32 or float16, what they are to be multiplied by, and their gradient so far."""

    costs: Tensor
    scale: float
    gradient: Tensor | None = None


class KernelCorrelation(Correlation):
    """All costs computed once and kept, in one row a source pixel. Estimates get no gradient.

    They are kept in float32; where windows are wanted in half precision and nothing is learned, in float16, which takes
    half the memory and is finer than what is read.
    """

    def __init__(self, source: Tensor, target: Tensor, levels: int) -> None:
        super().__init__(source, levels)
        device = source.device.type
        self.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
        flat = torch.cat([level.flatten(2) for level in pyramid_of(target, levels)], dim=2)
        flat = F.pad(flat, (0, -flat.shape[2] % ALIGNMENT))  # odd rows are multiplied slowly
        if self.dtype != torch.float32 and not torch.is_grad_enabled():
            with full_precision(source):
                # Scaled first: sums of many products could be more than float16 can hold.
                scaled = (tokens_of(source).float() * self.scale).half()
                self.kept = _Kept(torch.bmm(scaled, flat.half()).flatten(0, 1), scale=1.0)
            self.ticket = flat.new_zeros(())
            return
        # Products of bfloat16 are exact in float32, in which they are summed; means of coarser levels are rounded.
        if source.dtype == torch.bfloat16:
            flat = flat.to(torch.bfloat16)
        self.kept = _Kept(torch.empty(0), self.scale)
        self.ticket = _Costs.apply(tokens_of(source), flat, self.kept)  # type: ignore[no-untyped-call]

    def windows(self, centres: Tensor, radius: int) -> Tensor:
        """As in `Correlation`, in the precision of products."""
        flat = tokens_of(centres.detach().float()).contiguous()
        tokens = _Windows.apply(self.ticket, flat, self, radius)  # type: ignore[no-untyped-call]
        return maps_of(tokens.view(*flat.shape[:2], -1), self.size)


class KernelOnDemandCorrelation(InterpolatedCorrelation):
    """Costs computed where they are looked for, without gathering features; for use, not for training."""

    def __init__(self, source: Tensor, target: Tensor, levels: int) -> None:
        super().__init__(source, levels)
        self.ours = tokens_of(source).contiguous()
        pyramid = pyramid_of(target, levels)
        self.theirs = [level.to(source.dtype).permute(0, 2, 3, 1).contiguous() for level in pyramid]

    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        from protoformer.model import lookup_kernels

        with torch.cuda.device_of(corners):
            return lookup_kernels.integer_windows(self.ours, self.theirs[level], corners.contiguous(), side, self.scale)


class _Costs(torch.autograd.Function):
    """Source (B x HW x C) times target (B x C x total) into `kept`; returns what windows take to be the costs.

    That is a single number, by which autograd knows that the windows come first on the way back.
    """

    @staticmethod
    def forward(ctx: Any, source: Tensor, target: Tensor, kept: _Kept) -> Tensor:
        ctx.save_for_backward(source, target)
        ctx.kept = kept
        kept.costs = _product(source, target).flatten(0, 1)
        return kept.costs.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None]:
        source, target = ctx.saved_tensors
        arriving, ctx.kept.gradient = ctx.kept.gradient, None
        if arriving is None:
            return torch.zeros_like(source), torch.zeros_like(target), None
        arriving = arriving.view(*source.shape[:2], -1).to(source.dtype)
        d_source = _product(arriving, target.transpose(1, 2))
        d_target = _product(source.transpose(1, 2), arriving)
        return d_source.to(source.dtype), d_target.to(target.dtype), None


class _Windows(torch.autograd.Function):
    """Windows of the kept costs around centres, B x HW x 2."""

    @staticmethod
    def forward(ctx: Any, ticket: Tensor, centres: Tensor, of: KernelCorrelation, radius: int) -> Tensor:
        from protoformer.model import lookup_kernels

        ctx.save_for_backward(centres)
        ctx.of, ctx.radius = of, radius
        with torch.cuda.device_of(centres):
            return lookup_kernels.windows(of.kept.costs, centres, of.size, of.levels, radius, of.kept.scale, of.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, None, None, None]:
        from protoformer.model import lookup_kernels

        (centres,), of = ctx.saved_tensors, ctx.of
        if of.kept.gradient is None:
            of.kept.gradient = torch.zeros_like(of.kept.costs)
        with torch.cuda.device_of(centres):
            lookup_kernels.add_windows_gradient(
                arriving.contiguous(), centres, of.size, of.kept.gradient, of.levels, ctx.radius, of.scale
            )
        return centres.new_zeros(()), None, None, None


def _product(one: Tensor, other: Tensor) -> Tensor:
    """In float32, whatever the precision of the factors."""
    with full_precision(one):
        if one.dtype == torch.bfloat16 and one.is_cuda:
            return torch.bmm(one, other, out_dtype=torch.float32)
        return one.float() @ other.float()
