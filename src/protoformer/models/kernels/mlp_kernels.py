"""Triton kernels of linear layers: the projection to keys and values, and the MLP (linear, GELU, linear).

The hidden layer of the MLP stays in registers, a chunk of its units at a time.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.kernels.common_kernels import load_matrix, store_matrix
from protoformer.models.kernels.tiles import Tile, launch, padded, split

HIDDEN_CHUNK, OUTPUT_CHUNK = 32, 128
"""Hidden units, and outputs of the projection, that a program with a block of rows computes at a time."""
WEIGHT_ELEMENTS = 2**14
"""Values of the gradient of each weight that a program holds."""


@triton.jit
def _normal_cdf(x):
    """Return the cumulative distribution (to 1e-7, Abramowitz and Stegun 7.1.26) and the density of a normal."""
    density = tl.exp2(x * x * -0.7213475204444817)  # exp(-x^2 / 2), times sqrt(2 pi)
    t = 1.0 / (1.0 + 0.2316418882663604 * tl.abs(x))
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    beyond = tail * density
    return tl.where(x > 0.0, 1.0 - beyond, beyond), density * 0.3989422804014327


@triton.jit
def mlp_kernel(
    tokens, first, first_bias, second, second_bias, output,
    rows, channels, hidden,
    padded_channels: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """MLP of a block of rows. tokens, output: rows x C; first: hidden x C; second: C x hidden; biases float32."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    dtype = tokens.dtype.element_ty
    token = load_matrix(tokens, row, channel, rows, channels, channels)
    total = tl.zeros((block, padded_channels), tl.float32)
    for start in tl.range(0, hidden, chunk, num_stages=stages):
        unit = start + tl.arange(0, chunk)
        weight1 = load_matrix(first, unit, channel, hidden, channels, channels)
        weight2 = load_matrix(second, channel, unit, channels, hidden, hidden)
        x = tl.dot(token, tl.trans(weight1)) + tl.load(first_bias + unit, mask=unit < hidden, other=0.0)[None, :]
        cdf, _ = _normal_cdf(x)
        total = tl.dot((x * cdf).to(dtype), tl.trans(weight2), total)
    total += tl.load(second_bias + channel, mask=channel < channels, other=0.0)[None, :]
    store_matrix(output, row, channel, rows, channels, channels, total)


@triton.jit
def tokens_gradient_kernel(
    d_output, tokens, first, first_bias, second, d_tokens,
    rows, channels, hidden,
    padded_channels: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Gradient of a block of rows; shapes as in `mlp_kernel`."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    dtype = tokens.dtype.element_ty
    token = load_matrix(tokens, row, channel, rows, channels, channels)
    gradient = load_matrix(d_output, row, channel, rows, channels, channels)
    total = tl.zeros((block, padded_channels), tl.float32)
    for start in tl.range(0, hidden, chunk, num_stages=stages):
        unit = start + tl.arange(0, chunk)
        weight1 = load_matrix(first, unit, channel, hidden, channels, channels)
        weight2 = load_matrix(second, channel, unit, channels, hidden, hidden)
        x = tl.dot(token, tl.trans(weight1)) + tl.load(first_bias + unit, mask=unit < hidden, other=0.0)[None, :]
        cdf, density = _normal_cdf(x)
        d_x = tl.dot(gradient, weight2) * (cdf + x * density)
        total = tl.dot(d_x.to(dtype), weight1, total)
    store_matrix(d_tokens, row, channel, rows, channels, channels, total)


@triton.jit
def weights_gradient_kernel(
    d_output, tokens, first, first_bias, second, sums,
    rows, channels, hidden, rows_per_part,
    padded_channels: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Terms of one part of the rows of the gradients of a chunk of hidden units.

    sums: parts x (hidden C + hidden C + hidden + C), float32: first weight, second weight transposed, and biases.
    """
    unit = tl.program_id(0) * chunk + tl.arange(0, chunk)
    part = tl.program_id(1)
    channel = tl.arange(0, padded_channels)
    dtype = tokens.dtype.element_ty
    weight1 = load_matrix(first, unit, channel, hidden, channels, channels)
    weight2 = tl.trans(load_matrix(second, channel, unit, channels, hidden, hidden))
    bias = tl.load(first_bias + unit, mask=unit < hidden, other=0.0)

    d_weight1 = tl.zeros((chunk, padded_channels), tl.float32)
    d_weight2 = tl.zeros((chunk, padded_channels), tl.float32)
    d_bias1 = tl.zeros((chunk,), tl.float32)
    d_bias2 = tl.zeros((padded_channels,), tl.float32)
    last = tl.minimum(part * rows_per_part + rows_per_part, rows)
    for start in tl.range(part * rows_per_part, last, block, num_stages=stages):
        row = start + tl.arange(0, block)
        token = load_matrix(tokens, row, channel, last, channels, channels)
        gradient = load_matrix(d_output, row, channel, last, channels, channels)
        # Units x rows: the layout of these products is that of the operands of the next ones.
        x = tl.dot(weight1, tl.trans(token)) + bias[:, None]
        cdf, density = _normal_cdf(x)
        d_x = tl.dot(weight2, tl.trans(gradient)) * (cdf + x * density)
        d_weight1 = tl.dot(d_x.to(dtype), token, d_weight1)
        d_weight2 = tl.dot((x * cdf).to(dtype), gradient, d_weight2)
        d_bias1 += tl.sum(d_x, 1)
        if tl.program_id(0) == 0:
            d_bias2 += tl.sum(gradient.to(tl.float32), 0)

    weights = hidden * channels
    start = sums + part.to(tl.int64) * (2 * weights + hidden + channels)
    store_matrix(start, unit, channel, hidden, channels, channels, d_weight1)
    store_matrix(start + weights, unit, channel, hidden, channels, channels, d_weight2)
    tl.store(start + 2 * weights + unit, d_bias1, mask=unit < hidden)
    if tl.program_id(0) == 0:
        tl.store(start + 2 * weights + hidden + channel, d_bias2, mask=channel < channels)


def mlp(tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor) -> Tensor:
    """Run the MLP on tokens, rows x C; weights have their half precision, biases are float32; all contiguous."""
    return _run_by_rows(mlp_kernel, "mlp", (tokens, first, first_bias, second, second_bias), len(first))


def tokens_gradient(d_output: Tensor, tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor) -> Tensor:
    """Return the gradient of the tokens."""
    return _run_by_rows(tokens_gradient_kernel, "mlp_tokens", (d_output, tokens, first, first_bias, second), len(first))


def _run_by_rows(kernel: Any, name: str, inputs: tuple[Tensor, ...], hidden: int) -> Tensor:
    """Run a kernel over blocks of rows; the output is like the first input."""
    output = torch.empty_like(inputs[0])
    rows, channels = output.shape

    def run(tile: Tile) -> None:
        kernel[(triton.cdiv(rows, tile.pixels),)](
            *inputs, output, rows, channels, hidden,
            padded_channels=padded(channels), block=tile.pixels, chunk=HIDDEN_CHUNK, stages=tile.stages,
            num_warps=tile.warps,
        )  # fmt: skip

    launch(run, name, output.dtype, channels, hidden)
    return output


def weights_gradient(
    d_output: Tensor, tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients, float32, of both weights and biases, in the order of `mlp`."""
    (rows, channels), hidden = tokens.shape, len(first)
    chunk, weights = min(128, WEIGHT_ELEMENTS // padded(channels)), hidden * channels
    chunks = triton.cdiv(hidden, chunk)

    def run(tile: Tile) -> Tensor:
        parts, rows_per_part = split(rows, chunks, tile, tokens.device)
        sums = tokens.new_empty(parts, 2 * weights + hidden + channels, dtype=torch.float32)
        weights_gradient_kernel[(chunks, parts)](
            d_output, tokens, first, first_bias, second, sums, rows, channels, hidden, rows_per_part,
            padded_channels=padded(channels), block=tile.pixels, chunk=chunk, stages=tile.stages,
            num_warps=tile.warps,
        )  # fmt: skip
        return sums

    sums = launch(run, "mlp_weights", tokens.dtype, channels, hidden)
    d_first, d_second, d_first_bias, d_second_bias = sums.sum(dim=0).split([weights, weights, hidden, channels])
    d_first, d_second = d_first.view(hidden, channels), d_second.view(hidden, channels).T
    return d_first.clone(), d_first_bias.clone(), d_second.contiguous(), d_second_bias.clone()


@triton.jit
def project_kernel(
    tokens, weight, bias, projected, tokens_half,
    rows, channels, outputs,
    padded_channels: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr, stages: tl.constexpr,
    store_tokens: tl.constexpr,
):  # fmt: skip
    """Linear layer of a block of rows, rows x C to rows x outputs; optionally also store the rounded tokens."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    dtype = projected.dtype.element_ty
    token = load_matrix(tokens, row, channel, rows, channels, channels).to(dtype)
    if store_tokens:
        store_matrix(tokens_half, row, channel, rows, channels, channels, token)
    for start in tl.range(0, outputs, chunk, num_stages=stages):
        output = start + tl.arange(0, chunk)
        product = tl.dot(token, tl.trans(load_matrix(weight, output, channel, outputs, channels, channels)))
        product += tl.load(bias + output, mask=output < outputs, other=0.0)[None, :]
        store_matrix(projected, row, output, rows, outputs, outputs, product)


def project(tokens: Tensor, weight: Tensor, bias: Tensor, tokens_half: Tensor | None) -> Tensor:
    """Apply a linear layer in half precision; all tensors are contiguous.

    Args:
        tokens: rows x C, float32.
        weight: outputs x C, half precision.
        bias: outputs, float32.
        tokens_half: rows x C, filled with the tokens in the precision of the weight.

    Returns:
        rows x outputs, in the precision of the weight.
    """
    projected = weight.new_empty(len(tokens), len(weight))

    def run(tile: Tile) -> None:
        project_kernel[(triton.cdiv(len(tokens), tile.pixels),)](
            tokens, weight, bias, projected, projected if tokens_half is None else tokens_half,
            *tokens.shape, len(weight),
            padded_channels=padded(tokens.shape[1]), block=tile.pixels, chunk=OUTPUT_CHUNK, stages=tile.stages,
            store_tokens=tokens_half is not None, num_warps=tile.warps,
        )  # fmt: skip

    launch(run, "project", weight.dtype, tokens.shape[1], len(weight))
    return projected
