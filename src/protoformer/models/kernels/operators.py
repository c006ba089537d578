"""Custom torch operators of CAP, LS and the MLP: implementation by device, shapes, gradients and operation counts.

Each is one node to torch.compile and autograd. On CUDA they run Triton kernels; on other devices, and for sizes that
the kernels do not support, torch over blocks of pixels (`blocked`).
"""

from typing import Any

import torch
from torch import Tensor

from protoformer.models.kernels import blocked, dispatch
from protoformer.models.kernels.reference import PriorCoefficients
from protoformer.models.runtime import accumulation_dtype, flop_formula, full_precision


@torch.library.custom_op("protoformer::prototype_sums", mutates_args=())
def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """As `reference.prototype_sums`, without storing the memberships; float32 or better."""
    if dispatch.fits_kernels(keys, queries.shape[2], queries.shape[3]):
        from protoformer.models.kernels import prototyping_kernels

        return prototyping_kernels.prototype_sums(queries, keys, values)
    with full_precision(queries):
        return blocked.prototype_sums(queries, keys, values)


@torch.library.custom_op("protoformer::prototype_sums_backward", mutates_args=())
def prototype_sums_backward(
    d_sums: Tensor, d_mass: Tensor, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values."""
    if dispatch.fits_kernels(keys, queries.shape[2], queries.shape[3]):
        from protoformer.models.kernels import prototyping_kernels

        return prototyping_kernels.prototype_sums_backward(d_sums, d_mass, queries, keys, values)
    with full_precision(queries):
        return blocked.prototype_sums_backward(d_sums, d_mass, queries, keys, values)


@torch.library.custom_op("protoformer::spatial_sums", mutates_args=())
def spatial_sums(
    queries: Tensor, keys: Tensor, values: Tensor, coefficients: Tensor, pixels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.spatial_sums`, without storing the memberships; float32 or better."""
    prior = PriorCoefficients(coefficients, pixels)
    if dispatch.fits_kernels(keys, queries.shape[2], queries.shape[3]):
        from protoformer.models.kernels import prototyping_kernels

        return prototyping_kernels.spatial_sums(queries, keys, values, prior)
    with full_precision(queries):
        return blocked.spatial_sums(queries, keys, values, prior)


@torch.library.custom_op("protoformer::spatial_sums_backward", mutates_args=())
def spatial_sums_backward(
    d_sums: Tensor,
    d_mass: Tensor,
    d_moments: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    coefficients: Tensor,
    pixels: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys, values and coefficients."""
    inputs = (d_sums, d_mass, d_moments, queries, keys, values, PriorCoefficients(coefficients, pixels))
    if dispatch.fits_kernels(keys, queries.shape[2], queries.shape[3]):
        from protoformer.models.kernels import prototyping_kernels

        return prototyping_kernels.spatial_sums_backward(*inputs)
    with full_precision(queries):
        return blocked.spatial_sums_backward(*inputs)


@torch.library.custom_op("protoformer::synchronize", mutates_args=())
def synchronize(
    features: Tensor,
    directions: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    coefficients: Tensor | None = None,
    pixels: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `reference.synchronize`, with the prototypes normalized to `directions`, B x K x C, float32.

    coefficients and pixels are those of the prior, or None.
    """
    prior = None if coefficients is None or pixels is None else PriorCoefficients(coefficients, pixels)
    if dispatch.fits_kernels(queries, keys.shape[1], keys.shape[2] // alpha.shape[0]):
        from protoformer.models.kernels import synchronization_kernels

        return synchronization_kernels.synchronize(features, directions, queries, keys, values, alpha, beta, prior)
    with full_precision(queries):
        return blocked.synchronize(features, directions, queries, keys, values, alpha, beta, prior)


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
    """Return the gradients of queries, keys, values, alpha and beta."""
    if dispatch.fits_kernels(queries, keys.shape[1], keys.shape[2] // alpha.shape[0]):
        from protoformer.models.kernels import synchronization_kernels

        return synchronization_kernels.synchronize_backward(d_attended, queries, keys, values, alpha, beta, assignment)
    with full_precision(queries):
        return blocked.synchronize_backward(d_attended, queries, keys, values, alpha, beta, assignment)


# Output shapes, for tracing.


@prototype_sums.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    dtype = accumulation_dtype(queries.dtype)
    return queries.new_empty(queries.shape, dtype=dtype), queries.new_empty(queries.shape[:3], dtype=dtype)


@prototype_sums_backward.register_fake
def _(d_sums: Tensor, d_mass: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return queries.new_empty(queries.shape), blocked.like_tokens(keys), blocked.like_tokens(values)


@spatial_sums.register_fake
def _(
    queries: Tensor, keys: Tensor, values: Tensor, coefficients: Tensor, pixels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    shapes, dtype = (queries.shape, queries.shape[:3], (*coefficients.shape[:2], 2)), accumulation_dtype(queries.dtype)
    sums, mass, moments = (queries.new_empty(shape, dtype=dtype) for shape in shapes)
    return sums, mass, moments


@spatial_sums_backward.register_fake
def _(
    d_sums: Tensor,
    d_mass: Tensor,
    d_moments: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    coefficients: Tensor,
    pixels: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens = blocked.like_tokens(keys), blocked.like_tokens(values)
    return queries.new_empty(queries.shape), *tokens, coefficients.new_empty(coefficients.shape)


@synchronize.register_fake
def _(
    features: Tensor,
    directions: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    coefficients: Tensor | None = None,
    pixels: Tensor | None = None,
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
    d_queries, d_keys, d_values, d_alpha, d_beta = (tensor.new_empty(tensor.shape) for tensor in like)
    return d_queries, d_keys, d_values, d_alpha, d_beta


# Gradients. Only the inputs are saved: memberships and gates are recomputed.


def _save_sums_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _sums_gradient(ctx: Any, d_sums: Tensor, d_mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d_queries, d_keys, d_values = prototype_sums_backward(d_sums, d_mass, *ctx.saved_tensors)
    return d_queries, d_keys, d_values


def _save_spatial_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _spatial_gradient(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
    return *spatial_sums_backward(*d_outputs, *ctx.saved_tensors), None


def _save_synchronize_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[2:7], output[1])


def _synchronize_gradient(ctx: Any, d_attended: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return None, None, *synchronize_backward(d_attended, *ctx.saved_tensors), None, None


prototype_sums.register_autograd(_sums_gradient, setup_context=_save_sums_inputs)
spatial_sums.register_autograd(_spatial_gradient, setup_context=_save_spatial_inputs)
synchronize.register_autograd(_synchronize_gradient, setup_context=_save_synchronize_inputs)


# Operation counts: two per multiplication in the matrix products of the plain version.


@flop_formula(torch.ops.protoformer.prototype_sums)
def _(queries: list[int], keys: list[int], values: list[int], *args: object, **kwargs: object) -> int:
    batch, heads, count, width = queries
    return 4 * batch * heads * count * width * keys[2]


@flop_formula(torch.ops.protoformer.spatial_sums)
def _(queries: list[int], keys: list[int], *args: object, **kwargs: object) -> int:
    batch, heads, count, width = queries
    return (4 * heads * width + 8) * batch * count * keys[2]


@flop_formula(torch.ops.protoformer.prototype_sums_backward)
def _(
    d_sums: list[int], d_mass: list[int], queries: list[int], keys: list[int], *args: object, **kwargs: object
) -> int:
    batch, heads, count, width = queries
    return 10 * batch * heads * count * width * keys[2]


@flop_formula(torch.ops.protoformer.spatial_sums_backward)
def _(
    d_sums: list[int],
    d_mass: list[int],
    d_moments: list[int],
    queries: list[int],
    keys: list[int],
    *args: object,
    **kwargs: object,
) -> int:
    batch, heads, count, width = queries
    return (10 * heads * width + 12) * batch * count * keys[2]


@flop_formula(torch.ops.protoformer.synchronize)
def _(features: list[int], directions: list[int], *args: object, **kwargs: object) -> int:
    batch, pixels, channels = features
    prior_channels = 2 * (len(args) > 5 and args[5] is not None)
    return 2 * batch * pixels * (channels + prior_channels) * directions[1]


MAX_MLP_CHANNELS = 256
"""Widest rows that fit the registers."""
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.custom_op("protoformer::mlp", mutates_args=())
def mlp(tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor) -> Tensor:
    """Apply linear, GELU, linear to tokens, n x C, in their dtype; weights and biases are float32."""
    from protoformer.models.kernels import mlp_kernels

    dtype = tokens.dtype
    with full_precision(tokens), torch.cuda.device_of(tokens):
        layers = (first.to(dtype), first_bias, second.to(dtype), second_bias)
        return mlp_kernels.mlp(tokens.contiguous(), *(parameter.contiguous() for parameter in layers))


@torch.library.custom_op("protoformer::mlp_backward", mutates_args=())
def mlp_backward(d_output: Tensor, tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor) -> Gradients:
    """Return the gradients of the tokens and of both weights and biases."""
    from protoformer.models.kernels import mlp_kernels

    dtype = tokens.dtype
    with full_precision(tokens), torch.cuda.device_of(tokens):
        inputs = [d_output.to(dtype), tokens, first.to(dtype), first_bias, second.to(dtype)]
        inputs = [tensor.contiguous() for tensor in inputs]
        return mlp_kernels.tokens_gradient(*inputs), *mlp_kernels.weights_gradient(*inputs)


@mlp.register_fake
def _(tokens: Tensor, *parameters: Tensor) -> Tensor:
    return tokens.new_empty(tokens.shape)


@mlp_backward.register_fake
def _(d_output: Tensor, tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor) -> Gradients:
    like = (tokens, first, first_bias, second, second[:, 0])
    d_tokens, d_first, d_first_bias, d_second, d_second_bias = (tensor.new_empty(tensor.shape) for tensor in like)
    return d_tokens, d_first, d_first_bias, d_second, d_second_bias


def _save_mlp_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


def _mlp_gradient(ctx: Any, d_output: Tensor) -> Gradients:
    gradients: Gradients = mlp_backward(d_output, *ctx.saved_tensors)
    return gradients


mlp.register_autograd(_mlp_gradient, setup_context=_save_mlp_inputs)


@flop_formula(torch.ops.protoformer.mlp)
def _(tokens: list[int], first: list[int], *args: object, **kwargs: object) -> int:
    return 4 * tokens[0] * first[0] * first[1]


@flop_formula(torch.ops.protoformer.mlp_backward)
def _(d_output: list[int], tokens: list[int], first: list[int], *args: object, **kwargs: object) -> int:
    return 8 * tokens[0] * first[0] * first[1]
