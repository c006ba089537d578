"""Prototyping and synchronization as one operator of a GPU, from tokens to attended values, and back.

What pixels are projected to is one product, and so is its gradient; steps add to the gradients of keys and values where
they lie; what concerns prototypes alone stays in float32; and gradients of biases come from sums over prototypes, not
over pixels. Between the kernels there is little else to launch.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from protoformer.model.fused.plain import LEAST_MASS
from protoformer.model.precision import full_precision
from protoformer.model.tokens import split_heads


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
    """What the operator finds, of B images, K prototypes and N steps; all but the first two are for its gradient.

    attended: B x HW x C. centres: B x K x C. assignment: B x HW. projected: B x HW x 3C. narrowed: the tokens in the
    precision of products, where that is not their own and a gradient may be asked for. earlier: N x B x K x C, the
    centres before each step. queries, sums: N x B x K x C. masses: N x B x K x heads. levels: N x B x heads x HW, the
    logarithms of the memberships' denominators, where a gradient may be asked for. own: B x K x 2C, the keys and values
    of synchronization.
    """

    attended: Tensor
    centres: Tensor
    assignment: Tensor
    projected: Tensor
    narrowed: Tensor
    earlier: Tensor
    queries: Tensor
    sums: Tensor
    masses: Tensor
    levels: Tensor
    own: Tensor


Nine = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Eleven = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _room(
    tokens: Tensor, alpha: Tensor, grid: list[int], iterations: int, dtype: torch.dtype, keep: bool
) -> dict[str, Tensor]:
    """Memory for all that is found, but for the projections and what comes of them."""
    batch, _, channels = tokens.shape
    shape = (batch, grid[0] * grid[1], channels)
    single = torch.float32
    return {
        "centres": tokens.new_empty(shape, dtype=single),
        "earlier": tokens.new_empty(iterations, *shape, dtype=single),
        "queries": tokens.new_empty(iterations, *shape, dtype=single),
        "sums": tokens.new_empty(iterations, *shape, dtype=single),
        "masses": tokens.new_empty(iterations, *shape[:2], len(alpha), dtype=single),
        "levels": tokens.new_empty(iterations, batch, len(alpha), tokens.shape[1] if keep else 0, dtype=single),
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
) -> Eleven:
    """`Mixed` of tokens, B x HW x C in float32; dtype: the precision of products; keep: a gradient may be asked for."""
    from protoformer.model.fused import cell_kernels, prototyping_kernels, synchronization_kernels

    tokens = tokens.contiguous()
    batch, _, channels = tokens.shape
    heads = len(alpha)
    room = _room(tokens, alpha, grid, iterations, dtype, keep)
    with full_precision(tokens), torch.cuda.device_of(tokens):
        narrowed = room["narrowed"].copy_(tokens) if room["narrowed"].numel() else tokens.to(dtype)
        projected = torch.addmm(pixels_bias.to(dtype), narrowed.view(-1, channels), pixels.to(dtype).T)
        del narrowed
        projected = projected.view(batch, -1, 3 * channels)
        keys, values, pixel_queries = projected.split(channels, dim=-1)
        keys, values = split_heads(keys, heads), split_heads(values, heads)
        cell_kernels.pool(tokens, (size[0], size[1]), (grid[0], grid[1]), room["earlier"][0])
        for place in range(iterations):
            before, queries = room["earlier"][place], room["queries"][place]
            after = room["earlier"][place + 1] if place + 1 < iterations else room["centres"]
            torch.addmm(query_bias, before.view(-1, channels), query.T, out=queries.view(-1, channels))
            found = (room["sums"][place], room["masses"][place], after)
            levels = room["levels"][place] if keep else None
            prototyping_kernels.step(
                split_heads(queries, heads), keys, values, before, found, normalize, residual, levels
            )
        centres = room["centres"]
        own = torch.addmm(prototypes_bias, centres.view(-1, channels), prototypes.T)
        own = own.to(dtype).view(batch, -1, 2 * channels)
        attended, assignment = synchronization_kernels.synchronize(
            tokens, centres, pixel_queries, own[..., :channels], own[..., channels:], alpha, beta
        )
    return tuple(Mixed(attended, assignment=assignment, projected=projected, own=own, **room))  # type: ignore[return-value]


@torch.library.custom_op("protoformer::mix_backward", mutates_args=())
def mix_backward(
    d_attended: Tensor,
    d_centres: Tensor,
    tokens: Tensor,
    centres: Tensor,
    assignment: Tensor,
    projected: Tensor,
    earlier: Tensor,
    queries: Tensor,
    sums: Tensor,
    masses: Tensor,
    levels: Tensor,
    own: Tensor,
    pixels: Tensor,
    query: Tensor,
    prototypes: Tensor,
    alpha: Tensor,
    beta: Tensor,
    size: list[int],
    grid: list[int],
    normalize: bool,
    residual: bool,
) -> Nine:
    """Gradients of the tokens, float32, and of all `Weights`; tokens: B x HW x C in the precision of products."""
    from protoformer.model.fused import cell_kernels, synchronization_kernels

    batch, _, channels = tokens.shape
    width = channels // len(alpha)
    with full_precision(tokens), torch.cuda.device_of(tokens):
        d_projected = projected.new_empty(projected.shape)
        parts = synchronization_kernels.partial_gradients(
            d_attended.to(projected.dtype).contiguous(),
            projected[..., 2 * channels :],
            own[..., :channels],
            own[..., channels:],
            alpha,
            beta,
            assignment,
            d_projected[..., 2 * channels :],
        )
        d_own = parts[0].sum(dim=0).view(-1, 2 * channels)
        d_heads = parts[1].sum(dim=(0, 1))
        del parts
        # Of the centres before every step, and, last, of those after all.
        d_all = centres.new_empty(len(earlier) + 1, *centres.shape)
        torch.addmm(d_centres.reshape(-1, channels), d_own, prototypes, out=d_all[-1].view(-1, channels))
        d_queries, d_logits = _steps_backward(
            d_all, d_projected, projected, queries, sums, masses, levels, query, normalize, residual
        )
        d_pixels_bias = _biases(d_all, d_logits, d_heads, queries, masses, normalize)

        flat = d_projected.view(-1, 3 * channels)
        d_tokens = flat @ pixels.to(flat.dtype)
        d_pixels = (flat.T @ tokens.reshape(-1, channels)).to(pixels.dtype)
        del flat, d_projected
        d_tokens = cell_kernels.spread(
            d_all[0], d_tokens.view(batch, -1, channels), (size[0], size[1]), (grid[0], grid[1]), torch.float32
        )
        d_queries = d_queries.view(-1, channels)
        return (
            d_tokens,
            d_pixels,
            d_pixels_bias,
            d_queries.T @ earlier.view(-1, channels),
            d_queries.sum(dim=0),
            d_own.T @ centres.view(-1, channels),
            d_own.sum(dim=0),
            d_heads[:, width].clone(),
            d_heads[:, width + 1].clone(),
        )


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
) -> tuple[Tensor, Tensor]:
    """From the last step to the first: fill d_all, and the keys and values of d_projected.

    Returns the gradients of the queries, N x B x K x C, and those of the logits, summed over pixels, as the masses.
    """
    from protoformer.model.fused import prototyping_backward_kernels

    channels, heads = queries.shape[-1], masses.shape[-1]
    keys, values, _ = (split_heads(each, heads) for each in projected.split(channels, dim=-1))
    d_keys, d_values, _ = (split_heads(each, heads) for each in d_projected.split(channels, dim=-1))
    d_queries, d_logits = torch.empty_like(queries), torch.empty_like(masses)
    no_mass = None if normalize else torch.zeros_like(masses[0])
    last = len(queries) - 1
    for place in range(last, -1, -1):
        after, before = d_all[place + 1], d_all[place].view(-1, channels)
        of_queries, of_logits = prototyping_backward_kernels.partial_gradients(
            split_heads(after, heads),
            (sums[place], masses[place]) if no_mass is None else no_mass,
            split_heads(queries[place], heads),
            keys,
            values,
            d_keys,
            d_values,
            adding=place < last,
            with_logits=True,
            levels=levels[place],
        )
        torch.sum(of_queries.flatten(-2), dim=0, out=d_queries[place])
        torch.sum(of_logits, dim=0, out=d_logits[place])
        flat = d_queries[place].view(-1, channels)
        if residual:
            torch.addmm(after.view(-1, channels), flat, query, out=before)
        else:
            torch.mm(flat, query, out=before)
    return d_queries, d_logits


def _biases(
    d_all: Tensor, d_logits: Tensor, d_heads: Tensor, queries: Tensor, masses: Tensor, normalize: bool
) -> Tensor:
    """The gradient of the bias of what pixels are projected to, 3C, from sums over the pixels that are known."""
    heads, width = d_heads.shape[0], d_heads.shape[1] - 2
    # A bias of keys is a query's own shift of its logits; one of values is added to sums once for every member.
    members = (masses > LEAST_MASS).to(masses.dtype) if normalize else masses
    of_keys = (d_logits[..., None] * queries.unflatten(-1, (heads, width))).sum(dim=(0, 1, 2)) * width**-0.5
    of_values = (members[..., None] * d_all[1:].unflatten(-1, (heads, width))).sum(dim=(0, 1, 2))
    return torch.cat([of_keys, of_values, d_heads[:, :width]]).flatten()


@mix.register_fake
def _(tokens: Tensor, *given: Any) -> Eleven:
    weights = Weights(*given[: len(Weights._fields)])
    _, grid, iterations, _, _, dtype, keep = given[len(Weights._fields) :]
    room = _room(tokens, weights.alpha, grid, iterations, dtype, keep)
    batch, count, channels = room["centres"].shape
    attended = tokens.new_empty(tokens.shape, dtype=dtype)
    return tuple(  # type: ignore[return-value]
        Mixed(
            attended,
            assignment=tokens.new_empty(tokens.shape[:2], dtype=torch.int64),
            projected=tokens.new_empty(*tokens.shape[:2], 3 * channels, dtype=dtype),
            own=tokens.new_empty(batch, count, 2 * channels, dtype=dtype),
            **room,
        )
    )


@mix_backward.register_fake
def _(d_attended: Tensor, d_centres: Tensor, tokens: Tensor, *given: Any) -> Nine:
    pixels, query, prototypes, alpha, beta = given[9:14]
    with_biases = (pixels, pixels[:, 0], query, query[:, 0], prototypes, prototypes[:, 0], alpha, beta)
    d_tokens = tokens.new_empty(tokens.shape, dtype=torch.float32)
    return d_tokens, *(each.new_empty(each.shape) for each in with_biases)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Eleven) -> None:
    tokens, *rest = inputs
    weights, found = Weights(*rest[: len(Weights._fields)]), Mixed(*output)
    ctx.size, ctx.grid, _, ctx.normalize, ctx.residual, *_ = rest[len(Weights._fields) :]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*found[2:])
    ctx.save_for_backward(
        found.narrowed if found.narrowed.numel() else tokens,
        found.attended.new_empty(0),
        found.centres,
        found.assignment,
        found.projected,
        *found[5:],
        weights.pixels,
        weights.query,
        weights.prototypes,
        weights.alpha,
        weights.beta,
    )


def _gradient(ctx: Any, d_attended: Tensor | None, d_centres: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    tokens, like, centres, *rest = ctx.saved_tensors
    if d_attended is None:
        d_attended = like.new_zeros(tokens.shape)
    if d_centres is None:
        d_centres = torch.zeros_like(centres)
    found = mix_backward(d_attended, d_centres, tokens, centres, *rest, ctx.size, ctx.grid, ctx.normalize, ctx.residual)
    return *found, *[None] * 7


mix.register_autograd(_gradient, setup_context=_keep)


@register_flop_formula(torch.ops.protoformer.mix)
def _(tokens: list[int], *given: Any, **kwargs: object) -> int:
    batch, pixels, channels = tokens
    _, (rows, columns), steps, *_ = given[len(Weights._fields) :]
    count: int = rows * columns
    by_pixel: int = 3 * channels + 2 * steps * count + count
    found: int = 2 * batch * channels * (pixels * by_pixel + (steps + 2) * count * channels)
    return found
