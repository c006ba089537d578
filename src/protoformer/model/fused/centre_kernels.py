"""What a step does to the centres, and its gradient, in Triton: partial sums added up, and what comes of them at once.

A program has a few rows of B x K, and there are many of them, since all they do is read. The products with weights that
follow are a library's. Parts are added in a fixed order, so that two runs agree bit by bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.model.fused.direction_kernels import halved_directions
from protoformer.model.fused.plain import LEAST_MASS
from protoformer.model.fused.tiles import padded

ROWS, PARTS = 2, 4
"""Rows of a program, and parts that are read together."""


@triton.jit
def added_parts(numbers, place, kept, parts, stride, at_once: tl.constexpr):
    """The sum over parts, which are `stride` apart, of the numbers at each place that is kept."""
    total = tl.zeros(place.shape, tl.float32)
    for first in range(0, parts, at_once):
        part = tl.expand_dims(tl.expand_dims(first + tl.arange(0, at_once), 1), 2)
        there = (part < parts) & tl.expand_dims(kept, 0)
        total += tl.sum(tl.load(numbers + part * stride + tl.expand_dims(place, 0), mask=there, other=0.0), 0)
    return total


@triton.jit
def centres_kernel(
    sums,
    masses,
    before,
    whole_sums,
    whole_masses,
    after,
    uppers,
    lowers,
    parts,
    rows,
    heads,
    channels,
    least,
    width: tl.constexpr,
    padded_channels: tl.constexpr,
    block: tl.constexpr,
    at_once: tl.constexpr,
    normalize: tl.constexpr,
    residual: tl.constexpr,
    halving: tl.constexpr,
):
    """Centres (B x K x C, flat) after a step, and, halving, their directions in halves."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    kept = (row < rows)[:, None] & (channel < channels)[None, :]
    place = row[:, None] * channels + channel[None, :]
    of_head = row[:, None] * heads + (channel // width)[None, :]
    total = added_parts(sums, place, kept, parts, rows * channels, at_once)
    mass = added_parts(masses, of_head, kept, parts, rows * heads, at_once)
    centre = total
    if normalize:
        centre = tl.where(mass > least, total / tl.maximum(mass, least), 0.0)
    if residual:
        centre += tl.load(before + place, mask=kept, other=0.0)
    tl.store(whole_sums + place, total, mask=kept)
    tl.store(whole_masses + of_head, mass, mask=kept & (channel % width == 0)[None, :])
    tl.store(after + place, centre, mask=kept)
    if halving:
        upper, lower = halved_directions(centre, 1e-12)
        tl.store(uppers + place, upper, mask=kept)
        tl.store(lowers + place, lower, mask=kept)


@triton.jit
def centres_gradient_kernel(
    sums,
    d_after,
    masses,
    d_queries,
    d_biases,
    d_shares,
    parts,
    rows,
    images,
    heads,
    channels,
    least,
    width: tl.constexpr,
    padded_channels: tl.constexpr,
    block: tl.constexpr,
    at_once: tl.constexpr,
    normalize: tl.constexpr,
):
    """Gradients of queries, and of the biases of keys and values.

    The keys' are in the rows of the sums after those of queries; the values' is added to sums once for every member.
    """
    row = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    every = rows + images
    within = (channel < channels)[None, :]
    place = row[:, None] * channels + channel[None, :]
    total = added_parts(sums, place, (row < every)[:, None] & within, parts, every * channels, at_once)
    kept = (row < rows)[:, None] & within
    tl.store(d_queries + place, total, mask=kept)
    own = ((row >= rows) & (row < every))[:, None] & within
    tl.store(d_biases + place - rows * channels, total, mask=own)
    arriving = tl.load(d_after + place, mask=kept, other=0.0)
    members = tl.load(masses + row[:, None] * heads + (channel // width)[None, :], mask=kept, other=0.0)
    if normalize:
        members = tl.where(members > least, 1.0, 0.0)
    share = tl.sum(members * arriving, 0)
    tl.store(d_shares + tl.program_id(0) * channels + channel, share, mask=channel < channels)


def finish(
    parts: tuple[Tensor, Tensor],
    before: Tensor,
    found: tuple[Tensor, Tensor, Tensor],
    layer: tuple[Tensor, Tensor],
    projected: Tensor,
    halves: tuple[Tensor, Tensor] | None,
    normalize: bool,
    residual: bool,
) -> None:
    """End a step: from partial sums (parts x B x K x heads x d) and masses to the three tensors of `found`.

    Those are the sums, masses (B x K x heads) and centres (B x K x C). layer: a weight (outputs x C) and bias, float32,
    that make `projected` (B x K x outputs) of the centres; halves: two of B x K x C in float16 for their directions.
    All contiguous; the centres after the step are not where those before it are.
    """
    sums, masses = parts
    batch, count, channels = before.shape
    heads, width = sums.shape[-2:]
    rows = batch * count
    uppers, lowers = (before, before) if halves is None else halves
    centres_kernel[(triton.cdiv(rows, ROWS),)](
        sums,
        masses,
        before,
        *found,
        uppers,
        lowers,
        len(sums),
        rows,
        heads,
        channels,
        LEAST_MASS,
        width=width,
        padded_channels=padded(channels),
        block=ROWS,
        at_once=PARTS,
        normalize=normalize,
        residual=residual,
        halving=halves is not None,
    )
    (weight, bias), centres = layer, found[2].view(rows, channels)
    if projected.dtype == bias.dtype:
        torch.addmm(bias, centres, weight.T, out=projected.view(rows, -1))
    else:
        projected.copy_(torch.addmm(bias, centres, weight.T).view_as(projected))


def programs_of(d_after: Tensor) -> int:
    """Into how many blocks of rows `centres_gradient` cuts the gradient of centres, B x K x C."""
    return int(triton.cdiv(d_after.shape[0] * (d_after.shape[1] + 1), ROWS))


def centres_gradient(
    parts: Tensor,
    d_after: Tensor,
    masses: Tensor,
    weight: Tensor,
    found: tuple[Tensor, Tensor, Tensor, Tensor],
    normalize: bool,
    residual: bool,
) -> None:
    """From what parts of the pixels give (parts x (B K + B) x C) to the gradients of a step's queries and centres.

    d_after: of the centres after the step, B x K x C; masses: B x K x heads; weight: of the queries, C x C. found: room
    for the gradients of queries and of the centres before the step, B x K x C, and for those of the biases of keys,
    B x C, and of values, blocks of rows x C, which are to be summed. float32, contiguous.
    """
    batch, count, channels = d_after.shape
    heads = masses.shape[-1]
    d_queries, d_before, d_biases, d_shares = found
    centres_gradient_kernel[(programs_of(d_after),)](
        parts,
        d_after,
        masses,
        d_queries,
        d_biases,
        d_shares,
        len(parts),
        batch * count,
        batch,
        heads,
        channels,
        LEAST_MASS,
        width=channels // heads,
        padded_channels=padded(channels),
        block=ROWS,
        at_once=PARTS,
        normalize=normalize,
    )
    before, queries = d_before.view(-1, channels), d_queries.view(-1, channels)
    if residual:
        torch.addmm(d_after.reshape(-1, channels), queries, weight, out=before)
    else:
        torch.mm(queries, weight, out=before)
