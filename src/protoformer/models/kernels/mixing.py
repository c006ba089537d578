"""Prototyping and synchronization as one operator of a GPU, from tokens to attended values, and back.

Keys and values are one product; the queries of synchronization are made where they are used, and once more for the
gradient, in the place of which they lie; steps add to the gradients of keys and values where these lie; what concerns
prototypes alone stays in float32; and gradients of biases come from sums over prototypes, not over pixels. Between the
kernels there is little else to launch.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from protoformer.models.runtime import flop_formula, full_precision, split_heads


class Weights(NamedTuple):
    """pixels: of keys, values and the queries of synchronization (3C x C); prototypes: of its keys and values (2C x C).

    query: of prototyping's queries (C x C); alpha, beta: of the gate, one a head. All float32.
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
    """What the operator finds, of B images, K prototypes and N steps; the first two alone have a gradient.

    attended: B x HW x C. centers: B x K x C. assignment: B x HW. earlier: N x B x K x C, the centers before each step.
    queries, sums: N x B x K x C. masses: N x B x K x heads. own: B x K x 2C, the keys and values of synchronization.
    Unless kept, all steps have the room of two, and these are empty: projected: B x HW x 2C, the keys and values of
    prototyping; levels: N x B x heads x HW, the logarithms of the memberships' denominators; narrowed: the tokens in
    the precision of products, where that is not their own.
    """

    attended: Tensor
    centers: Tensor
    assignment: Tensor
    projected: Tensor
    narrowed: Tensor
    earlier: Tensor
    queries: Tensor
    sums: Tensor
    masses: Tensor
    levels: Tensor
    own: Tensor


Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _room(
    tokens: Tensor, alpha: Tensor, grid: list[int], iterations: int, dtype: torch.dtype, keep: bool
) -> dict[str, Tensor]:
    """Memory for all that is found, but for the projections and what comes of them."""
    batch, pixels, channels = tokens.shape
    shape = (batch, grid[0] * grid[1], channels)
    single, steps = torch.float32, iterations if keep else min(2, iterations)
    return {
        "centers": tokens.new_empty(shape, dtype=single),
        "own": tokens.new_empty(*shape[:2], 2 * channels, dtype=dtype),
        "earlier": tokens.new_empty(steps, *shape, dtype=single),
        "queries": tokens.new_empty(steps, *shape, dtype=single),
        "sums": tokens.new_empty(steps, *shape, dtype=single),
        "masses": tokens.new_empty(steps, *shape[:2], len(alpha), dtype=single),
        "levels": tokens.new_empty((steps, batch, len(alpha), pixels) if keep else (0,), dtype=single),
        "narrowed": tokens.new_empty(tokens.shape if keep and dtype != tokens.dtype else (0,), dtype=dtype),
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
) -> Found:
    """`Mixed` of tokens, B x HW x C in float32; dtype: the precision of products; keep: what a gradient would need."""
    from protoformer.models.kernels import center_kernels as cell_kernels
    from protoformer.models.kernels import synchronization_kernels

    tokens = tokens.contiguous()
    channels = tokens.shape[2]
    room = _room(tokens, alpha, grid, iterations, dtype, keep)
    with full_precision(tokens), torch.cuda.device_of(tokens):
        pixels, pixels_bias = pixels.to(dtype).contiguous(), pixels_bias.contiguous()
        projected = _projected(tokens, pixels[: 2 * channels], pixels_bias[: 2 * channels], room["narrowed"])
        cell_kernels.pool(tokens, (size[0], size[1]), (grid[0], grid[1]), room["earlier"][0])
        layers = (
            (query.contiguous(), query_bias.contiguous()),
            (prototypes.contiguous(), prototypes_bias.contiguous()),
        )
        directions = _steps(projected, room, layers, iterations, normalize, residual)
        if not keep:  # before anything else of their size is made
            projected = projected.new_empty(0)
        queried = (pixels[2 * channels :], pixels_bias[2 * channels :])
        keys, values = room["own"].split(channels, dim=-1)
        attended, assignment = synchronization_kernels.synchronize(
            tokens, directions, queried, keys, values, alpha, beta
        )
    return tuple(Mixed(attended, assignment=assignment, projected=projected, **room))  # type: ignore[return-value]


def _steps(
    projected: Tensor,
    room: dict[str, Tensor],
    layers: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
    iterations: int,
    normalize: bool,
    residual: bool,
) -> tuple[Tensor, Tensor]:
    """All steps, from the first centers on: fill the room, and return the directions of the last centers in halves.

    layers: weights and biases of prototyping's queries, and of the keys and values of synchronization.
    """
    from protoformer.models.kernels import center_kernels as center_kernels
    from protoformer.models.kernels import prototyping_kernels

    channels, heads = room["centers"].shape[2], room["masses"].shape[-1]
    keys, values = (split_heads(each, heads) for each in projected.split(channels, dim=-1))
    first = room["queries"][0].view(-1, channels)
    torch.addmm(layers[0][1], room["earlier"][0].view(-1, channels), layers[0][0].T, out=first)
    halves = room["centers"].new_empty(2, *room["centers"].shape, dtype=torch.float16)
    steps = len(room["queries"])  # in the room of two, they take turns
    for step in range(iterations):
        place, following = step % steps, (step + 1) % steps
        queries, before = room["queries"][place], room["earlier"][place]
        levels = room["levels"][place] if room["levels"].numel() else None
        parts = prototyping_kernels.partial_sums(split_heads(queries, heads), keys, values, levels)
        ends = step == iterations - 1
        center_kernels.finish(
            parts,
            before,
            (room["sums"][place], room["masses"][place], room["centers"] if ends else room["earlier"][following]),
            layers[1] if ends else layers[0],
            room["own"] if ends else room["queries"][following],
            (halves[0], halves[1]) if ends else None,
            normalize,
            residual,
        )
    return halves[0], halves[1]


def _projected(tokens: Tensor, weight: Tensor, bias: Tensor, narrowed: Tensor) -> Tensor:
    """B x HW x 2C in the weight's precision; narrowed, unless it is empty, is given the tokens in it."""
    from protoformer.models.kernels import projection_kernels

    rows = tokens.flatten(0, 1)
    if weight.dtype == tokens.dtype:
        projected = torch.addmm(bias, rows, weight.T)
    else:
        projected = projection_kernels.project(rows, weight, bias, narrowed if narrowed.numel() else None)
    return projected.view(*tokens.shape[:2], -1)


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
    levels: Tensor,
    own: Tensor,
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
    """Gradients of the tokens, float32, and of all `Weights`; tokens: B x HW x C in the precision of products.

    All that `mix` found is contiguous, as it made it.
    """
    from protoformer.models.kernels import center_kernels as cell_kernels

    channels = tokens.shape[2]
    width = channels // len(alpha)
    with full_precision(tokens), torch.cuda.device_of(tokens):
        dtype, rows = projected.dtype, tokens.reshape(-1, channels)
        pixels, query = pixels.to(dtype).contiguous(), query.contiguous()
        d_projected = projected.new_empty(*tokens.shape[:2], 3 * channels)
        torch.mm(rows, pixels[2 * channels :].T, out=d_projected.view(-1, 3 * channels)[:, 2 * channels :])
        d_own, d_heads = _synchronization_backward(
            d_attended.to(dtype).contiguous(),
            d_projected[..., 2 * channels :],
            pixels_bias[2 * channels :].contiguous(),
            own,
            (alpha, beta),
            assignment,
        )
        # Of the centers before every step, and, last, of those after all.
        d_all = centers.new_empty(len(earlier) + 1, *centers.shape)
        torch.addmm(d_centers.reshape(-1, channels), d_own, prototypes, out=d_all[-1].view(-1, channels))
        d_queries, biases = _steps_backward(
            d_all, d_projected, projected, queries, sums, masses, levels, query, normalize, residual
        )
        d_pixels_bias = torch.cat([*biases, d_heads[:, :width].flatten()])
        flat = d_projected.view(-1, 3 * channels)
        d_pixels = (flat.T @ rows).float()
        d_tokens = cell_kernels.spread(
            d_all[0], (flat @ pixels).view(tokens.shape), (size[0], size[1]), (grid[0], grid[1])
        )
        d_queries = d_queries.view(-1, channels)
        return (
            d_tokens,
            d_pixels,
            d_pixels_bias,
            d_queries.T @ earlier.view(-1, channels),
            # It moves all logits of a pixel alike, and a softmax over the prototypes does not see that.
            query.new_zeros(channels),
            d_own.T @ centers.view(-1, channels),
            d_own.sum(dim=0),
            d_heads[:, width].clone(),
            d_heads[:, width + 1].clone(),
        )


def _synchronization_backward(
    d_attended: Tensor,
    queries: Tensor,
    query_bias: Tensor,
    own: Tensor,
    gate: tuple[Tensor, Tensor],
    assignment: Tensor,
) -> tuple[Tensor, Tensor]:
    """Put the queries' gradient in their place; return that of `own`, B K x 2C, and of heads, heads x (d + 2).

    queries: B x HW x C, without their bias. Of a head: the queries' bias, alpha, beta.
    """
    from protoformer.models.kernels import synchronization_kernels as synchronization_backward_kernels

    keys, values = own.chunk(2, dim=-1)
    of_own, of_heads = synchronization_backward_kernels.partial_gradients(
        d_attended, queries, keys, values, *gate, assignment, queries, query_bias
    )
    return of_own.sum(dim=0).flatten(0, 1), of_heads.sum(dim=(0, 1))


def _steps_backward(
    d_all: Tensor,
    d_projected: Tensor,
    projected: Tensor,
    queries: Tensor,
    sums: Tensor,
    masses: Tensor,
    levels: Tensor,
    query: Tensor,
    normalize: bool,
    residual: bool,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """From the last step to the first: fill d_all, and the keys and values of d_projected.

    Returns the gradients of the queries, N x B x K x C, and of the biases of keys and values, C each.
    """
    from protoformer.models.kernels import center_kernels as center_kernels
    from protoformer.models.kernels import prototyping_kernels as prototyping_backward_kernels

    channels, heads = queries.shape[-1], masses.shape[-1]
    keys, values = (split_heads(each, heads) for each in projected.split(channels, dim=-1))
    d_keys, d_values, _ = (split_heads(each, heads) for each in d_projected.split(channels, dim=-1))
    d_queries = torch.empty_like(queries)
    of_keys = queries.new_empty(len(queries), queries.shape[1], channels)
    of_values = queries.new_empty(len(queries), center_kernels.programs_of(d_all[0]), channels)
    no_mass = None if normalize else torch.zeros_like(masses[0])
    last = len(queries) - 1
    for place in range(last, -1, -1):
        parts = prototyping_backward_kernels.partial_gradients(
            split_heads(d_all[place + 1], heads),
            (sums[place], masses[place]) if no_mass is None else no_mass,
            split_heads(queries[place], heads),
            keys,
            values,
            d_keys,
            d_values,
            adding=place < last,
            levels=levels[place],
        )
        found = (d_queries[place], d_all[place], of_keys[place], of_values[place])
        center_kernels.centers_gradient(parts, d_all[place + 1], masses[place], query, found, normalize, residual)
    return d_queries, (of_keys.sum(dim=(0, 1)), of_values.sum(dim=(0, 1)))


@mix.register_fake
def _(tokens: Tensor, *given: Any) -> Found:
    weights = Weights(*given[: len(Weights._fields)])
    _, grid, iterations, _, _, dtype, keep = given[len(Weights._fields) :]
    room = _room(tokens, weights.alpha, grid, iterations, dtype, keep)
    channels = tokens.shape[2]
    attended = tokens.new_empty(tokens.shape, dtype=dtype)
    return tuple(  # type: ignore[return-value]
        Mixed(
            attended,
            assignment=tokens.new_empty(tokens.shape[:2], dtype=torch.int64),
            projected=tokens.new_empty((*tokens.shape[:2], 2 * channels) if keep else (0,), dtype=dtype),
            **room,
        )
    )


@mix_backward.register_fake
def _(d_attended: Tensor, d_centers: Tensor, tokens: Tensor, *given: Any) -> Gradients:
    pixels, _, query, prototypes, alpha, beta = given[9:15]
    with_biases = (pixels, pixels[:, 0], query, query[:, 0], prototypes, prototypes[:, 0], alpha, beta)
    d_tokens = tokens.new_empty(tokens.shape, dtype=torch.float32)
    return d_tokens, *(each.new_empty(each.shape) for each in with_biases)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Found) -> None:
    tokens, *rest = inputs
    weights, found = Weights(*rest[: len(Weights._fields)]), Mixed(*output)
    ctx.size, ctx.grid, _, ctx.normalize, ctx.residual, ctx.dtype, _ = rest[len(Weights._fields) :]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*found[2:])
    ctx.save_for_backward(
        found.narrowed if found.narrowed.numel() else tokens,
        found.centers,
        found.assignment,
        found.projected,
        *found[5:],
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
    found = mix_backward(d_attended, d_centers, tokens, centers, *rest, ctx.size, ctx.grid, ctx.normalize, ctx.residual)
    return *found, *[None] * 7


mix.register_autograd(_gradient, setup_context=_keep)


@flop_formula(torch.ops.protoformer.mix)
def _(tokens: list[int], *given: Any, **kwargs: object) -> int:
    batch, pixels, channels = tokens
    _, (rows, columns), steps, *_ = given[len(Weights._fields) :]
    count: int = rows * columns
    by_pixel: int = 3 * channels + 2 * steps * count + count
    found: int = 2 * batch * channels * (pixels * by_pixel + (steps + 2) * count * channels)
    return found
