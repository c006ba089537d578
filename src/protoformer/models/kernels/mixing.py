"""CAP and LS fused into one GPU operator, `protoformer::mix`, with its backward pass.

- Keys and values are one matrix product.
- The queries of synchronization are computed where they are used, and recomputed for the gradient, whose memory they
  share.
- EM iterations accumulate the gradients of keys and values in place.
- Tensors of prototypes stay in float32.
- Gradients of biases are sums over prototypes, not over pixels.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from protoformer.models.kernels import dispatch, reference
from protoformer.models.runtime import flop_formula, full_precision, split_heads


class Weights(NamedTuple):
    """Weights of CAP and LS, float32.

    Attributes:
        pixels: 3C x C, projections of the tokens to keys and values of CAP and queries of LS.
        pixels_bias: 3C.
        query: C x C, projection of the prototypes to queries of CAP.
        query_bias: C.
        prototypes: 2C x C, projections of the prototypes to keys and values of LS.
        prototypes_bias: 2C.
        alpha: Gate parameter of each head.
        beta: Gate parameter of each head.
    """

    pixels: Tensor
    pixels_bias: Tensor
    query: Tensor
    query_bias: Tensor
    prototypes: Tensor
    prototypes_bias: Tensor
    alpha: Tensor
    beta: Tensor


class Mixed(NamedTuple):
    """Outputs of the operator for B images, K prototypes and N iterations; only the first two have a gradient.

    Without `keep`, iterations share two buffers, and `projected`, `lse` and `tokens_half` are empty.

    Attributes:
        attended: B x HW x C, gated values.
        centers: B x K x C, final prototypes.
        assignment: B x HW, int64.
        projected: B x HW x 2C, keys and values of CAP.
        tokens_half: Tokens in the precision of matrix products, if that differs from their own.
        earlier: N x B x K x C, prototypes before each iteration.
        queries: N x B x K x C, queries of each iteration.
        sums: N x B x K x C, weighted sums of each iteration.
        masses: N x B x K x heads, masses of each iteration.
        lse: N x B x heads x HW, base-2 logarithms of the softmax denominators of each iteration.
        ls_projected: B x K x 2C, keys and values of LS.
    """

    attended: Tensor
    centers: Tensor
    assignment: Tensor
    projected: Tensor
    tokens_half: Tensor
    earlier: Tensor
    queries: Tensor
    sums: Tensor
    masses: Tensor
    lse: Tensor
    ls_projected: Tensor


Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _allocate(
    tokens: Tensor, alpha: Tensor, grid: list[int], iterations: int, dtype: torch.dtype, keep: bool
) -> dict[str, Tensor]:
    """Allocate the outputs, except for the projections and those computed from them."""
    batch, pixels, channels = tokens.shape
    shape = (batch, grid[0] * grid[1], channels)
    single, steps = torch.float32, iterations if keep else min(2, iterations)
    return {
        "centers": tokens.new_empty(shape, dtype=single),
        "ls_projected": tokens.new_empty(*shape[:2], 2 * channels, dtype=dtype),
        "earlier": tokens.new_empty(steps, *shape, dtype=single),
        "queries": tokens.new_empty(steps, *shape, dtype=single),
        "sums": tokens.new_empty(steps, *shape, dtype=single),
        "masses": tokens.new_empty(steps, *shape[:2], len(alpha), dtype=single),
        "lse": tokens.new_empty((steps, batch, len(alpha), pixels) if keep else (0,), dtype=single),
        "tokens_half": tokens.new_empty(tokens.shape if keep and dtype != tokens.dtype else (0,), dtype=dtype),
    }


@torch.library.custom_op("protoformer::mix", mutates_args=())
def mix(
    tokens: Tensor,
    pixels: Tensor,
    pixels_bias: Tensor,
    query: Tensor,
    query_bias: Tensor,
    prototypes: Tensor,
    prototypes_bias: Tensor,
    alpha: Tensor,
    beta: Tensor,
    size: list[int],
    grid: list[int],
    iterations: int,
    normalize: bool,
    residual: bool,
    dtype: torch.dtype,
    keep: bool,
) -> Outputs:
    """Compute `Mixed` of tokens, B x HW x C, float32; arguments as in `fused.mix`.

    dtype is the precision of matrix products; keep stores what the backward pass needs.
    """
    from protoformer.models.kernels import synchronization_kernels

    tokens = tokens.contiguous()
    channels = tokens.shape[2]
    buffers = _allocate(tokens, alpha, grid, iterations, dtype, keep)
    with full_precision(tokens), torch.cuda.device_of(tokens):
        pixels, pixels_bias = pixels.to(dtype).contiguous(), pixels_bias.contiguous()
        projected = _project(tokens, pixels[: 2 * channels], pixels_bias[: 2 * channels], buffers["tokens_half"])
        _center_functions().pool(tokens, (size[0], size[1]), (grid[0], grid[1]), buffers["earlier"][0])
        layers = (
            (query.contiguous(), query_bias.contiguous()),
            (prototypes.contiguous(), prototypes_bias.contiguous()),
        )
        directions = _run_iterations(projected, buffers, layers, iterations, normalize, residual)
        if not keep:  # free the memory before the next large allocation
            projected = projected.new_empty(0)
        query_layer = (pixels[2 * channels :], pixels_bias[2 * channels :])
        keys, values = buffers["ls_projected"].split(channels, dim=-1)
        attended, assignment = synchronization_kernels.synchronize(
            tokens, directions, query_layer, keys, values, alpha, beta
        )
    return tuple(Mixed(attended, assignment=assignment, projected=projected, **buffers))  # type: ignore[return-value]


def _run_iterations(
    projected: Tensor,
    buffers: dict[str, Tensor],
    layers: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
    iterations: int,
    normalize: bool,
    residual: bool,
) -> tuple[Tensor, Tensor]:
    """Run all EM iterations and fill the buffers.

    layers: Weights and biases of the queries of CAP, and of the keys and values of LS.

    Returns:
        The normalized final prototypes as the sum of two float16 tensors.
    """
    from protoformer.models.kernels import prototyping_kernels

    channels, heads = buffers["centers"].shape[2], buffers["masses"].shape[-1]
    keys, values = (split_heads(tensor, heads) for tensor in projected.split(channels, dim=-1))
    first = buffers["queries"][0].view(-1, channels)
    torch.addmm(layers[0][1], buffers["earlier"][0].view(-1, channels), layers[0][0].T, out=first)
    halves = buffers["centers"].new_empty(2, *buffers["centers"].shape, dtype=torch.float16)
    steps = len(buffers["queries"])  # two without `keep`, used alternately
    for step in range(iterations):
        slot, next_slot = step % steps, (step + 1) % steps
        queries, before = buffers["queries"][slot], buffers["earlier"][slot]
        lse = buffers["lse"][slot] if buffers["lse"].numel() else None
        parts = prototyping_kernels.partial_sums(split_heads(queries, heads), keys, values, lse)
        is_last = step == iterations - 1
        _center_functions().finish(
            parts,
            before,
            (
                buffers["sums"][slot],
                buffers["masses"][slot],
                buffers["centers"] if is_last else buffers["earlier"][next_slot],
            ),
            layers[1] if is_last else layers[0],
            buffers["ls_projected"] if is_last else buffers["queries"][next_slot],
            (halves[0], halves[1]) if is_last else None,
            normalize,
            residual,
        )
    return halves[0], halves[1]


def _project(tokens: Tensor, weight: Tensor, bias: Tensor, tokens_half: Tensor) -> Tensor:
    """Project tokens to B x HW x 2C in the dtype of the weight; fill `tokens_half` with them unless it is empty."""
    rows, half_rows = tokens.flatten(0, 1), tokens_half.flatten(0, 1) if tokens_half.numel() else None
    if weight.dtype == tokens.dtype or not dispatch.is_enabled("projection"):
        projected = reference.project(rows, weight, bias, half_rows)
    else:
        from protoformer.models.kernels import mlp_kernels

        projected = mlp_kernels.project(rows, weight, bias, half_rows)
    return projected.view(*tokens.shape[:2], -1)


def _center_functions() -> Any:
    """Return the module with `pool`, `finish`, `centers_gradient` and `spread`: Triton kernels or plain torch."""
    if not dispatch.is_enabled("centers"):
        return reference
    from protoformer.models.kernels import center_kernels

    return center_kernels


@torch.library.custom_op("protoformer::mix_backward", mutates_args=())
def mix_backward(
    d_attended: Tensor,
    d_centers: Tensor,
    tokens: Tensor,
    centers: Tensor,
    assignment: Tensor,
    projected: Tensor,
    earlier: Tensor,
    queries: Tensor,
    sums: Tensor,
    masses: Tensor,
    lse: Tensor,
    ls_projected: Tensor,
    pixels: Tensor,
    pixels_bias: Tensor,
    query: Tensor,
    prototypes: Tensor,
    alpha: Tensor,
    beta: Tensor,
    size: list[int],
    grid: list[int],
    normalize: bool,
    residual: bool,
) -> Gradients:
    """Return the gradients of the tokens, float32, and of all `Weights`.

    tokens are B x HW x C in the precision of matrix products. All outputs of `mix` are contiguous.
    """
    from protoformer.models.kernels import synchronization_kernels

    channels = tokens.shape[2]
    width = channels // len(alpha)
    with full_precision(tokens), torch.cuda.device_of(tokens):
        dtype, rows = projected.dtype, tokens.reshape(-1, channels)
        pixels, query = pixels.to(dtype).contiguous(), query.contiguous()
        d_projected = projected.new_empty(*tokens.shape[:2], 3 * channels)
        torch.mm(rows, pixels[2 * channels :].T, out=d_projected.view(-1, 3 * channels)[:, 2 * channels :])
        ls_queries = d_projected[..., 2 * channels :]  # overwritten by their gradient
        keys, values = ls_projected.chunk(2, dim=-1)
        prototype_parts, head_parts = synchronization_kernels.partial_gradients(
            d_attended.to(dtype).contiguous(),
            ls_queries,
            keys,
            values,
            alpha,
            beta,
            assignment,
            ls_queries,
            pixels_bias[2 * channels :].contiguous(),
        )
        # Gradients of `ls_projected`, B K x 2C, and of query bias, alpha and beta, heads x (d + 2).
        d_ls_projected, d_heads = prototype_parts.sum(dim=0).flatten(0, 1), head_parts.sum(dim=(0, 1))
        # Gradients of the prototypes before each iteration and, last, of the final ones.
        d_all = centers.new_empty(len(earlier) + 1, *centers.shape)
        torch.addmm(d_centers.reshape(-1, channels), d_ls_projected, prototypes, out=d_all[-1].view(-1, channels))
        d_queries, biases = _iterations_backward(
            d_all, d_projected, projected, queries, sums, masses, lse, query, normalize, residual
        )
        d_pixels_bias = torch.cat([*biases, d_heads[:, :width].flatten()])
        flat = d_projected.view(-1, 3 * channels)
        d_pixels = (flat.T @ rows).float()
        d_tokens = _center_functions().spread(
            d_all[0], (flat @ pixels).view(tokens.shape), (size[0], size[1]), (grid[0], grid[1])
        )
        d_queries = d_queries.view(-1, channels)
        return (
            d_tokens,
            d_pixels,
            d_pixels_bias,
            d_queries.T @ earlier.view(-1, channels),
            # The bias shifts all logits of a pixel equally, which does not change the softmax over prototypes.
            query.new_zeros(channels),
            d_ls_projected.T @ centers.view(-1, channels),
            d_ls_projected.sum(dim=0),
            d_heads[:, width].clone(),
            d_heads[:, width + 1].clone(),
        )


def _iterations_backward(
    d_all: Tensor,
    d_projected: Tensor,
    projected: Tensor,
    queries: Tensor,
    sums: Tensor,
    masses: Tensor,
    lse: Tensor,
    query: Tensor,
    normalize: bool,
    residual: bool,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Backpropagate through the iterations; fills `d_all` and the keys and values of `d_projected`.

    Returns:
        The gradients of the queries, N x B x K x C, and of the biases of keys and values, C each.
    """
    from protoformer.models.kernels import prototyping_kernels

    centers, channels, heads = _center_functions(), queries.shape[-1], masses.shape[-1]
    keys, values = (split_heads(tensor, heads) for tensor in projected.split(channels, dim=-1))
    d_keys, d_values, _ = (split_heads(tensor, heads) for tensor in d_projected.split(channels, dim=-1))
    d_queries = torch.empty_like(queries)
    of_keys = queries.new_empty(len(queries), queries.shape[1], channels)
    of_values = queries.new_empty(len(queries), centers.programs_of(d_all[0]), channels)
    no_mass = None if normalize else torch.zeros_like(masses[0])
    last = len(queries) - 1
    for step in range(last, -1, -1):
        parts = prototyping_kernels.partial_gradients(
            split_heads(d_all[step + 1], heads),
            (sums[step], masses[step]) if no_mass is None else no_mass,
            split_heads(queries[step], heads),
            keys,
            values,
            d_keys,
            d_values,
            accumulate=step < last,
            lse=lse[step],
        )
        outputs = (d_queries[step], d_all[step], of_keys[step], of_values[step])
        centers.centers_gradient(parts, d_all[step + 1], masses[step], query, outputs, normalize, residual)
    return d_queries, (of_keys.sum(dim=(0, 1)), of_values.sum(dim=(0, 1)))


@mix.register_fake
def _(tokens: Tensor, *inputs: Any) -> Outputs:
    weights = Weights(*inputs[: len(Weights._fields)])
    _, grid, iterations, _, _, dtype, keep = inputs[len(Weights._fields) :]
    buffers = _allocate(tokens, weights.alpha, grid, iterations, dtype, keep)
    channels = tokens.shape[2]
    attended = tokens.new_empty(tokens.shape, dtype=dtype)
    return tuple(  # type: ignore[return-value]
        Mixed(
            attended,
            assignment=tokens.new_empty(tokens.shape[:2], dtype=torch.int64),
            projected=tokens.new_empty((*tokens.shape[:2], 2 * channels) if keep else (0,), dtype=dtype),
            **buffers,
        )
    )


@mix_backward.register_fake
def _(d_attended: Tensor, d_centers: Tensor, tokens: Tensor, *inputs: Any) -> Gradients:
    pixels, _, query, prototypes, alpha, beta = inputs[9:15]
    with_biases = (pixels, pixels[:, 0], query, query[:, 0], prototypes, prototypes[:, 0], alpha, beta)
    d_tokens = tokens.new_empty(tokens.shape, dtype=torch.float32)
    return d_tokens, *(tensor.new_empty(tensor.shape) for tensor in with_biases)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    tokens, *rest = inputs
    weights, mixed = Weights(*rest[: len(Weights._fields)]), Mixed(*output)
    ctx.size, ctx.grid, _, ctx.normalize, ctx.residual, ctx.dtype, _ = rest[len(Weights._fields) :]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*mixed[2:])
    ctx.save_for_backward(
        mixed.tokens_half if mixed.tokens_half.numel() else tokens,
        mixed.centers,
        mixed.assignment,
        mixed.projected,
        *mixed[5:],
        weights.pixels,
        weights.pixels_bias,
        weights.query,
        weights.prototypes,
        weights.alpha,
        weights.beta,
    )


def _gradient(ctx: Any, d_attended: Tensor | None, d_centers: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    tokens, centers, *rest = ctx.saved_tensors
    if d_attended is None:
        d_attended = tokens.new_zeros(tokens.shape, dtype=ctx.dtype)
    if d_centers is None:
        d_centers = torch.zeros_like(centers)
    gradients = mix_backward(
        d_attended, d_centers, tokens, centers, *rest, ctx.size, ctx.grid, ctx.normalize, ctx.residual
    )
    return *gradients, *[None] * 7


mix.register_autograd(_gradient, setup_context=_setup_context)


@flop_formula(torch.ops.protoformer.mix)
def _(tokens: list[int], *inputs: Any, **kwargs: object) -> int:
    batch, pixels, channels = tokens
    _, (rows, columns), steps, *_ = inputs[len(Weights._fields) :]
    count: int = rows * columns
    by_pixel: int = 3 * channels + 2 * steps * count + count
    operations: int = 2 * batch * channels * (pixels * by_pixel + (steps + 2) * count * channels)
    return operations
