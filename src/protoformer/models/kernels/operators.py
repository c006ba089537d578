"""The two operations as torch sees them: what runs on which device, shapes, gradients and operations counted.

As custom operators they are one node each to torch.compile, to CUDA graphs and to autograd, and what is inside stays
out of the graph. On CUDA they are Triton's; elsewhere, and for what the kernels do not take, pixels go by in blocks.
"""

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.warps import cells
from protoformer.models.kernels import blocked
from protoformer.models.runtime import accumulation_dtype, flop_formula, full_precision

MOST_PROTOTYPES, WIDEST_HEAD = 256, 64
TRITON_IS_THERE = importlib.util.find_spec("triton") is not None
"""It comes with torch for CUDA. Where it was installed for tests, without a GPU, no operator calls it."""
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def takes_kernels(queries: Tensor, prototypes: int, head_width: int) -> bool:
    """Whether Triton's kernels can do it: a GPU that it knows, and tiles that fit its registers."""
    return (
        queries.is_cuda
        and queries.dtype in KERNEL_DTYPES
        and prototypes <= MOST_PROTOTYPES
        and head_width <= WIDEST_HEAD
        and queries.numel() > 0
        and TRITON_IS_THERE
    )


def cell_means(tokens: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """As in `plain`, by products with the bands of rows and of columns: adaptive pooling is slow on large maps."""
    dtype = accumulation_dtype(tokens.dtype)
    with full_precision(tokens):
        down, along = (
            F.normalize(cells(length, count, tokens.device).to(dtype), p=1.0, dim=1)
            for length, count in zip(size, grid, strict=True)
        )
        in_rows = down @ tokens.to(dtype).unflatten(1, size).flatten(2)
        means: Tensor = along @ in_rows.unflatten(2, (size[1], -1))
        return means.flatten(1, 2).to(tokens.dtype)


@torch.library.custom_op("protoformer::prototype_sums", mutates_args=())
def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of values (B x heads x K x d) and of memberships (B x heads x K), at least float32."""
    if takes_kernels(keys, queries.shape[2], queries.shape[3]):
        from protoformer.models.kernels import prototyping_kernels

        return prototyping_kernels.prototype_sums(queries, keys, values)
    with full_precision(queries):
        return blocked.prototype_sums(queries, keys, values)


@torch.library.custom_op("protoformer::prototype_sums_backward", mutates_args=())
def prototype_sums_backward(
    d_sums: Tensor, d_mass: Tensor, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    if takes_kernels(keys, queries.shape[2], queries.shape[3]):
        from protoformer.models.kernels import prototyping_kernels as prototyping_backward_kernels

        return prototyping_backward_kernels.prototype_sums_backward(d_sums, d_mass, queries, keys, values)
    with full_precision(queries):
        return blocked.prototype_sums_backward(d_sums, d_mass, queries, keys, values)


@torch.library.custom_op("protoformer::synchronize", mutates_args=())
def synchronize(
    features: Tensor,
    directions: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gated value of each pixel's nearest prototype (B x HW x C), and which that is (B x HW)."""
    if takes_kernels(queries, keys.shape[1], keys.shape[2] // alpha.shape[0]):
        from protoformer.models.kernels import synchronization_kernels

        return synchronization_kernels.synchronize(features, directions, queries, keys, values, alpha, beta)
    with full_precision(queries):
        return blocked.synchronize(features, directions, queries, keys, values, alpha, beta)


@torch.library.custom_op("protoformer::synchronize_backward", mutates_args=())
def synchronize_backward(
    d_attended: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    assignment: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values, alpha and beta."""
    if takes_kernels(queries, keys.shape[1], keys.shape[2] // alpha.shape[0]):
        from protoformer.models.kernels import synchronization_kernels as synchronization_backward_kernels

        return synchronization_backward_kernels.synchronize_backward(
            d_attended, queries, keys, values, alpha, beta, assignment
        )
    with full_precision(queries):
        return blocked.synchronize_backward(d_attended, queries, keys, values, alpha, beta, assignment)


# Shapes, for tracing.


@prototype_sums.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    dtype = accumulation_dtype(queries.dtype)
    return queries.new_empty(queries.shape, dtype=dtype), queries.new_empty(queries.shape[:3], dtype=dtype)


@prototype_sums_backward.register_fake
def _(d_sums: Tensor, d_mass: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return queries.new_empty(queries.shape), blocked.like_tokens(keys), blocked.like_tokens(values)


@synchronize.register_fake
def _(
    features: Tensor,
    directions: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
) -> tuple[Tensor, Tensor]:
    return queries.new_empty(queries.shape), queries.new_empty(queries.shape[:2], dtype=torch.int64)


@synchronize_backward.register_fake
def _(
    d_attended: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    assignment: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    like = (queries, keys, values, alpha, beta)
    d_queries, d_keys, d_values, d_alpha, d_beta = (each.new_empty(each.shape) for each in like)
    return d_queries, d_keys, d_values, d_alpha, d_beta


# Gradients. Inputs alone are kept: memberships and gates are computed a second time.


def _keep_sums(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _sums_gradient(ctx: Any, d_sums: Tensor, d_mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d_queries, d_keys, d_values = prototype_sums_backward(d_sums, d_mass, *ctx.saved_tensors)
    return d_queries, d_keys, d_values


def _keep_synchronized(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[2:], output[1])


def _synchronized_gradient(ctx: Any, d_attended: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return None, None, *synchronize_backward(d_attended, *ctx.saved_tensors)


prototype_sums.register_autograd(_sums_gradient, setup_context=_keep_sums)
synchronize.register_autograd(_synchronized_gradient, setup_context=_keep_synchronized)


# Matrix products, as the plain version has them: 2 operations a product.


@flop_formula(torch.ops.protoformer.prototype_sums)
def _(queries: list[int], keys: list[int], values: list[int], *args: object, **kwargs: object) -> int:
    batch, heads, count, width = queries
    return 4 * batch * heads * count * width * keys[2]


@flop_formula(torch.ops.protoformer.prototype_sums_backward)
def _(
    d_sums: list[int], d_mass: list[int], queries: list[int], keys: list[int], *args: object, **kwargs: object
) -> int:
    batch, heads, count, width = queries
    return 10 * batch * heads * count * width * keys[2]


@flop_formula(torch.ops.protoformer.synchronize)
def _(features: list[int], directions: list[int], *args: object, **kwargs: object) -> int:
    batch, pixels, channels = features
    return 2 * batch * pixels * channels * directions[1]


MOST_CHANNELS = 256
"""Wider rows do not fit the registers."""
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.custom_op("protoformer::perceptron", mutates_args=())
def perceptron(tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor) -> Tensor:
    """The output, rows x C, of tokens, rows x C, in their precision; weights and biases are float32."""
    from protoformer.models.kernels import perceptron_kernels

    dtype = tokens.dtype
    with full_precision(tokens), torch.cuda.device_of(tokens):
        layers = (first.to(dtype), first_bias, second.to(dtype), second_bias)
        return perceptron_kernels.perceptron(tokens.contiguous(), *(each.contiguous() for each in layers))


@torch.library.custom_op("protoformer::perceptron_backward", mutates_args=())
def perceptron_backward(
    d_output: Tensor, tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor
) -> Gradients:
    """Gradients of the tokens and of both weights and biases."""
    from protoformer.models.kernels import perceptron_kernels

    dtype = tokens.dtype
    with full_precision(tokens), torch.cuda.device_of(tokens):
        given = [d_output.to(dtype), tokens, first.to(dtype), first_bias, second.to(dtype)]
        given = [each.contiguous() for each in given]
        return perceptron_kernels.tokens_gradient(*given), *perceptron_kernels.weights_gradient(*given)


@perceptron.register_fake
def _(tokens: Tensor, *given: Tensor) -> Tensor:
    return tokens.new_empty(tokens.shape)


@perceptron_backward.register_fake
def _(d_output: Tensor, tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor) -> Gradients:
    like = (tokens, first, first_bias, second, second[:, 0])
    d_tokens, d_first, d_first_bias, d_second, d_second_bias = (each.new_empty(each.shape) for each in like)
    return d_tokens, d_first, d_first_bias, d_second, d_second_bias


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


def _gradient(ctx: Any, d_output: Tensor) -> Gradients:
    found: Gradients = perceptron_backward(d_output, *ctx.saved_tensors)
    return found


perceptron.register_autograd(_gradient, setup_context=_keep)


@flop_formula(torch.ops.protoformer.perceptron)
def _(tokens: list[int], first: list[int], *given: object, **kwargs: object) -> int:
    return 4 * tokens[0] * first[0] * first[1]


@flop_formula(torch.ops.protoformer.perceptron_backward)
def _(d_output: list[int], tokens: list[int], first: list[int], *given: object, **kw: object) -> int:
    return 8 * tokens[0] * first[0] * first[1]
