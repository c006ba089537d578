"""Linear layers in Triton: the projection to keys and values, and linear, GELU, linear, forward and backward.

The hidden layer of the MLP stays in registers, some columns at a time.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.kernels.common_kernels import load_matrix
from protoformer.models.kernels.tiles import Tile, padded, split, within_resources

FEW = 32
"""Units of the hidden layer at a time, where a program holds rows of the output."""
MANY = 2**14
"""Numbers of each weight's gradient that a program holds."""


@triton.jit
def bell(x):
    """The normal distribution below x, to 1e-7 (Abramowitz and Stegun 7.1.26), and its density."""
    density = tl.exp2(x * x * -0.7213475204444817)  # exp(-x^2 / 2), times sqrt(2 pi)
    t = 1.0 / (1.0 + 0.2316418882663604 * tl.abs(x))
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    beyond = tail * density
    return tl.where(x > 0.0, 1.0 - beyond, beyond), density * 0.3989422804014327


@triton.jit
def mlp_kernel(
    tokens,
    first,
    first_bias,
    second,
    second_bias,
    output,
    rows,
    channels,
    hidden,
    padded_channels: tl.constexpr,
    block: tl.constexpr,
    chunk: tl.constexpr,
    stages: tl.constexpr,
):
    """One block of rows. tokens, output: rows x C; first: hidden x C; second: C x hidden; biases float32."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    dtype = tokens.dtype.element_ty
    token = load_matrix(tokens, row, channel, rows, channels, channels)
    total = tl.zeros((block, padded_channels), tl.float32)
    for start in tl.range(0, hidden, chunk, num_stages=stages):
        unit = start + tl.arange(0, chunk)
        into = load_matrix(first, unit, channel, hidden, channels, channels)
        out_of = load_matrix(second, channel, unit, channels, hidden, hidden)
        x = tl.dot(token, tl.trans(into)) + tl.load(first_bias + unit, mask=unit < hidden, other=0.0)[None, :]
        below, _ = bell(x)
        total = tl.dot((x * below).to(dtype), tl.trans(out_of), total)
    total += tl.load(second_bias + channel, mask=channel < channels, other=0.0)[None, :]
    kept = (row < rows)[:, None] & (channel < channels)[None, :]
    tl.store(output + row.to(tl.int64)[:, None] * channels + channel[None, :], total.to(dtype), mask=kept)


@triton.jit
def tokens_gradient_kernel(
    d_output,
    tokens,
    first,
    first_bias,
    second,
    d_tokens,
    rows,
    channels,
    hidden,
    padded_channels: tl.constexpr,
    block: tl.constexpr,
    chunk: tl.constexpr,
    stages: tl.constexpr,
):
    """The gradient of one block of rows; shapes as in `mlp_kernel`."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    dtype = tokens.dtype.element_ty
    token = load_matrix(tokens, row, channel, rows, channels, channels)
    arriving = load_matrix(d_output, row, channel, rows, channels, channels)
    total = tl.zeros((block, padded_channels), tl.float32)
    for start in tl.range(0, hidden, chunk, num_stages=stages):
        unit = start + tl.arange(0, chunk)
        into = load_matrix(first, unit, channel, hidden, channels, channels)
        out_of = load_matrix(second, channel, unit, channels, hidden, hidden)
        x = tl.dot(token, tl.trans(into)) + tl.load(first_bias + unit, mask=unit < hidden, other=0.0)[None, :]
        below, density = bell(x)
        slope = tl.dot(arriving, out_of) * (below + x * density)
        total = tl.dot(slope.to(dtype), into, total)
    kept = (row < rows)[:, None] & (channel < channels)[None, :]
    tl.store(d_tokens + row.to(tl.int64)[:, None] * channels + channel[None, :], total.to(dtype), mask=kept)


@triton.jit
def weights_gradient_kernel(
    d_output,
    tokens,
    first,
    first_bias,
    second,
    sums,
    rows,
    channels,
    hidden,
    each,
    padded_channels: tl.constexpr,
    block: tl.constexpr,
    chunk: tl.constexpr,
    stages: tl.constexpr,
):
    """What one part of the rows gives to the gradients of some units of the hidden layer.

    sums: parts x (hidden C + hidden C + hidden + C), float32, of the first weight, the second one turned, and biases.
    """
    unit = tl.program_id(0) * chunk + tl.arange(0, chunk)
    part = tl.program_id(1)
    channel = tl.arange(0, padded_channels)
    dtype = tokens.dtype.element_ty
    into = load_matrix(first, unit, channel, hidden, channels, channels)
    out_of = tl.trans(load_matrix(second, channel, unit, channels, hidden, hidden))
    bias = tl.load(first_bias + unit, mask=unit < hidden, other=0.0)

    into_total = tl.zeros((chunk, padded_channels), tl.float32)
    out_of_total = tl.zeros((chunk, padded_channels), tl.float32)
    bias_total = tl.zeros((chunk,), tl.float32)
    arriving_total = tl.zeros((padded_channels,), tl.float32)
    last = tl.minimum(part * each + each, rows)
    for start in tl.range(part * each, last, block, num_stages=stages):
        row = start + tl.arange(0, block)
        token = load_matrix(tokens, row, channel, last, channels, channels)
        arriving = load_matrix(d_output, row, channel, last, channels, channels)
        # Units x rows: what comes out of these products is what the next ones take, without another layout between.
        x = tl.dot(into, tl.trans(token)) + bias[:, None]
        below, density = bell(x)
        slope = tl.dot(out_of, tl.trans(arriving)) * (below + x * density)
        into_total = tl.dot(slope.to(dtype), token, into_total)
        out_of_total = tl.dot((x * below).to(dtype), arriving, out_of_total)
        bias_total += tl.sum(slope, 1)
        if tl.program_id(0) == 0:
            arriving_total += tl.sum(arriving.to(tl.float32), 0)

    weights = hidden * channels
    start = sums + part.to(tl.int64) * (2 * weights + hidden + channels)
    place = unit[:, None] * channels + channel[None, :]
    kept = (unit < hidden)[:, None] & (channel < channels)[None, :]
    tl.store(start + place, into_total, mask=kept)
    tl.store(start + weights + place, out_of_total, mask=kept)
    tl.store(start + 2 * weights + unit, bias_total, mask=unit < hidden)
    if tl.program_id(0) == 0:
        tl.store(start + 2 * weights + hidden + channel, arriving_total, mask=channel < channels)


def mlp(tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor) -> Tensor:
    """Of tokens, rows x C in half precision, as the weights are; biases are float32. All contiguous."""
    return _by_rows(mlp_kernel, "mlp", (tokens, first, first_bias, second, second_bias), len(first))


def tokens_gradient(d_output: Tensor, tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor) -> Tensor:
    """The gradient of the tokens; d_output is like them."""
    given = (d_output, tokens, first, first_bias, second)
    return _by_rows(tokens_gradient_kernel, "mlp_tokens", given, len(first))


def _by_rows(kernel: Any, name: str, given: tuple[Tensor, ...], hidden: int) -> Tensor:
    """What a kernel that goes by blocks of rows makes of what it is given; it is like the first of that."""
    found = torch.empty_like(given[0])
    rows, channels = found.shape

    def run(tile: Tile) -> None:
        kernel[(triton.cdiv(rows, tile.pixels),)](
            *given,
            found,
            rows,
            channels,
            hidden,
            padded_channels=padded(channels),
            block=tile.pixels,
            chunk=FEW,
            stages=tile.stages,
            num_warps=tile.warps,
        )

    within_resources(run, name, found.dtype, channels, hidden)
    return found


def weights_gradient(
    d_output: Tensor, tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients, float32, of both weights and biases, in the order of `mlp`."""
    (rows, channels), hidden = tokens.shape, len(first)
    chunk, weights = min(128, MANY // padded(channels)), hidden * channels
    chunks = triton.cdiv(hidden, chunk)
    found: list[Tensor] = []

    def run(tile: Tile) -> None:
        parts, each = split(rows, chunks, tile, tokens.device)
        sums = tokens.new_empty(parts, 2 * weights + hidden + channels, dtype=torch.float32)
        weights_gradient_kernel[(chunks, parts)](
            d_output,
            tokens,
            first,
            first_bias,
            second,
            sums,
            rows,
            channels,
            hidden,
            each,
            padded_channels=padded(channels),
            block=tile.pixels,
            chunk=chunk,
            stages=tile.stages,
            num_warps=tile.warps,
        )
        found[:] = [sums]

    within_resources(run, "mlp_weights", tokens.dtype, channels, hidden)
    d_first, d_second, d_first_bias, d_second_bias = found[0].sum(dim=0).split([weights, weights, hidden, channels])
    d_first, d_second = d_first.view(hidden, channels), d_second.view(hidden, channels).T
    return d_first.clone(), d_first_bias.clone(), d_second.contiguous(), d_second_bias.clone()


OUTPUTS = 128
"""Columns of the projection at a time."""


@triton.jit
def project_kernel(
    tokens,
    weight,
    bias,
    projected,
    narrowed,
    rows,
    channels,
    outputs,
    padded_channels: tl.constexpr,
    block: tl.constexpr,
    chunk: tl.constexpr,
    stages: tl.constexpr,
    narrowing: tl.constexpr,
):
    """One block of rows: rows x C to rows x outputs and, narrowing, to the same tokens in the precision of products."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    dtype = projected.dtype.element_ty
    token = load_matrix(tokens, row, channel, rows, channels, channels).to(dtype)
    if narrowing:
        within = (row < rows)[:, None] & (channel < channels)[None, :]
        tl.store(narrowed + row.to(tl.int64)[:, None] * channels + channel[None, :], token, mask=within)
    for start in tl.range(0, outputs, chunk, num_stages=stages):
        output = start + tl.arange(0, chunk)
        found = tl.dot(token, tl.trans(load_matrix(weight, output, channel, outputs, channels, channels)))
        found += tl.load(bias + output, mask=output < outputs, other=0.0)[None, :]
        kept = (row < rows)[:, None] & (output < outputs)[None, :]
        place = row.to(tl.int64)[:, None] * outputs + output[None, :]
        tl.store(projected + place, found.to(dtype), mask=kept)


def project(tokens: Tensor, weight: Tensor, bias: Tensor, narrowed: Tensor | None) -> Tensor:
    """Tokens (rows x C, float32) times weight (outputs x C, half precision) plus bias (float32), as the weight is.

    narrowed: rows x C, is given the tokens in the weight's precision. All contiguous.
    """
    projected = weight.new_empty(len(tokens), len(weight))

    def run(tile: Tile) -> None:
        project_kernel[(triton.cdiv(len(tokens), tile.pixels),)](
            tokens,
            weight,
            bias,
            projected,
            projected if narrowed is None else narrowed,
            *tokens.shape,
            len(weight),
            padded_channels=padded(tokens.shape[1]),
            block=tile.pixels,
            chunk=OUTPUTS,
            stages=tile.stages,
            narrowing=narrowed is not None,
            num_warps=tile.warps,
        )

    within_resources(run, "project", weight.dtype, tokens.shape[1], len(weight))
    return projected
