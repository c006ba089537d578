"""What pixels are projected to, in Triton: tokens in single precision to products in half, each read once."""

import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.kernels.common_kernels import load_matrix
from protoformer.models.kernels.tiles import Tile, padded, within_resources

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
