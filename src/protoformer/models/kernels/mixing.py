"""CAP and LS fused into one GPU operator, `protoformer::mix`, with its backward pass.

- Keys and values are one matrix product.
- The queries of synchronization are computed where they are used and not stored; the backward pass recomputes them in
  the buffer that later holds their gradient.
- EM iterations accumulate the gradients of keys and values in place.
- Tensors of prototypes stay in float32.
- Gradients of biases are sums over prototypes, not over pixels.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from protoformer.models.kernels import dispatch, reference
from protoformer.models.runtime import flop_formula, full_precision, split_heads

if TYPE_CHECKING:
    from protoformer.models.prototyping import Prototyping
    from protoformer.models.synchronization import LatentSynchronization


class Weights(NamedTuple):
    """Weights of CAP and LS, float32.

    Attributes:
        pixel_weight: 3C x C, projections of the tokens to keys and values of CAP and queries of LS.
        pixel_bias: 3C.
        query_weight: C x C, projection of the prototypes to queries of CAP.
        query_bias: C.
        prototype_weight: 2C x C, projections of the prototypes to keys and values of LS.
        prototype_bias: 2C.
        alpha: Gate parameter of each head.
        beta: Gate parameter of each head.
        log_width: Logarithm of the width of the spatial prior, or None without one.
        log_temperature: Logarithm of the temperature of the assignment, or None without a spatial prior.
    """

    pixel_weight: Tensor
    pixel_bias: Tensor
    query_weight: Tensor
    query_bias: Tensor
    prototype_weight: Tensor
    prototype_bias: Tensor
    alpha: Tensor
    beta: Tensor
    log_width: Tensor | None = None
    log_temperature: Tensor | None = None

    @classmethod
    def of(cls, cap: "Prototyping", ls: "LatentSynchronization") -> "Weights":
        """Concatenate the projections of both modules that have the same input."""
        return cls(
            torch.cat([cap.key.weight, cap.value.weight, ls.query.weight]),
            torch.cat([cap.key.bias, cap.value.bias, ls.query.bias]),
            cap.query.weight,
            cap.query.bias,
            torch.cat([ls.key.weight, ls.value.weight]),
            torch.cat([ls.key.bias, ls.value.bias]),
            ls.alpha,
            ls.beta,
            *((cap.log_width, cap.log_temperature) if cap.spatial_prior else ()),
        )


class Mixed(NamedTuple):
    """Outputs of the operator for B images, K prototypes and N iterations; only the first three have a gradient.

    Without `keep`, iterations share two buffers, and `projected`, `lse` and `tokens_half` are empty.

    Attributes:
        attended: B x HW x C, gated values.
        centers: B x K x C, final prototypes.
        positions: B x K x 2, final positions; empty without a spatial prior.
        assignment: B x HW, int64.
        projected: B x HW x 2C, keys and values of CAP.
        tokens_half: Tokens in the precision of matrix products, if that differs from their own.
        earlier: N x B x K x C, prototypes before each iteration.
        queries: N x B x K x C, queries of each iteration.
        sums: N x B x K x C, weighted sums of each iteration.
        masses: N x B x K x heads, masses of each iteration.
        lse: N x B x heads x HW, base-2 logarithms of the softmax denominators of each iteration.
        ls_projected: B x K x 2C, keys and values of LS.
        earlier_positions: N x B x K x 2, positions before each iteration; empty without a spatial prior.
    """

    attended: Tensor
    centers: Tensor
    positions: Tensor
    assignment: Tensor
    projected: Tensor
    tokens_half: Tensor
    earlier: Tensor
    queries: Tensor
    sums: Tensor
    masses: Tensor
    lse: Tensor
    ls_projected: Tensor
    earlier_positions: Tensor


Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _allocate(
    tokens: Tensor,
    alpha: Tensor,
    has_prior: bool,
    grid: list[int],
    iterations: int,
    dtype: torch.dtype,
    keep: bool,
) -> dict[str, Tensor]:
    """Allocate the outputs, except for the projections and those computed from them."""
    batch, pixels, channels = tokens.shape
    shape = (batch, grid[0] * grid[1], channels)
    single, steps = torch.float32, iterations if keep else min(2, iterations)
    return {
        "centers": tokens.new_empty(shape, dtype=single),
        "positions": tokens.new_empty((*shape[:2], 2) if has_prior else (0,), dtype=single),
        "earlier_positions": tokens.new_empty((steps, *shape[:2], 2) if has_prior else (0,), dtype=single),
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
    pixel_weight: Tensor,
    pixel_bias: Tensor,
    query_weight: Tensor,
    query_bias: Tensor,
    prototype_weight: Tensor,
    prototype_bias: Tensor,
    alpha: Tensor,
    beta: Tensor,
    log_width: Tensor | None,
    log_temperature: Tensor | None,
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
    buffers = _allocate(tokens, alpha, log_width is not None, grid, iterations, dtype, keep)
    with full_precision(tokens), torch.cuda.device_of(tokens):
        pixel_weight, pixel_bias = pixel_weight.to(dtype).contiguous(), pixel_bias.contiguous()
        projected = _project(tokens, pixel_weight[: 2 * channels], pixel_bias[: 2 * channels], buffers["tokens_half"])
        _center_functions().pool(tokens, (size[0], size[1]), (grid[0], grid[1]), buffers["earlier"][0])
        layers = (
            (query_weight.contiguous(), query_bias.contiguous()),
            (prototype_weight.contiguous(), prototype_bias.contiguous()),
        )
        pixels = None
        if log_width is not None:
            pixels = reference.pixel_coordinates((size[0], size[1]), (grid[0], grid[1]), tokens.device, torch.float32)
            buffers["earlier_positions"][0] = reference.cell_positions((grid[0], grid[1]), tokens.device, torch.float32)
        directions = _run_iterations(
            projected, buffers, layers, iterations, normalize, residual, _prior_of(log_width, pixels)
        )
        if not keep:  # free the memory before the next large allocation
            projected = projected.new_empty(0)
        query_layer = (pixel_weight[2 * channels :], pixel_bias[2 * channels :])
        keys, values = buffers["ls_projected"].split(channels, dim=-1)
        prior = _prior_of(log_width, pixels)(buffers["positions"])
        if prior is not None and log_temperature is not None:
            prior = prior._replace(coefficients=prior.coefficients * log_temperature.exp())
        attended, assignment = synchronization_kernels.synchronize(
            tokens, directions, query_layer, keys, values, alpha, beta, prior
        )
    return tuple(Mixed(attended, assignment=assignment, projected=projected, **buffers))  # type: ignore[return-value]


def _prior_of(
    log_width: Tensor | None, pixels: Tensor | None
) -> Callable[[Tensor], reference.PriorCoefficients | None]:
    """Return a function from positions of prototypes, B x K x 2, to their spatial prior, or to None without one."""
    if log_width is None or pixels is None:
        return lambda positions: None
    return lambda positions: reference.PriorCoefficients(reference.prior_coefficients(positions, log_width), pixels)


def _run_iterations(
    projected: Tensor,
    buffers: dict[str, Tensor],
    layers: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
    iterations: int,
    normalize: bool,
    residual: bool,
    prior_of: Callable[[Tensor], reference.PriorCoefficients | None],
) -> tuple[Tensor, Tensor]:
    """Run all EM iterations and fill the buffers.

    layers: Weights and biases of the queries of CAP, and of the keys and values of LS. prior_of: From `_prior_of`.

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
        prior = prior_of(buffers["earlier_positions"][slot]) if buffers["positions"].numel() else None
        *parts, moments = prototyping_kernels.partial_sums(split_heads(queries, heads), keys, values, lse, prior)
        is_last = step == iterations - 1
        _center_functions().m_step(
            (parts[0], parts[1]),
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
        if prior is not None:
            after = buffers["positions"] if is_last else buffers["earlier_positions"][next_slot]
            mass = buffers["masses"][slot].transpose(1, 2)
            after.copy_(reference.mean_positions(moments.sum(dim=(0, 3)), mass, buffers["earlier_positions"][slot]))
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
    """Return the module with `pool`, `m_step`, `centers_gradient` and `spread`: Triton kernels or plain torch."""
    if not dispatch.is_enabled("centers"):
        return reference
    from protoformer.models.kernels import center_kernels

    return center_kernels


@torch.library.custom_op("protoformer::mix_backward", mutates_args=())
def mix_backward(
    d_attended: Tensor,
    d_centers: Tensor,
    d_positions: Tensor,
    tokens: Tensor,
    centers: Tensor,
    positions: Tensor,
    assignment: Tensor,
    projected: Tensor,
    earlier: Tensor,
    queries: Tensor,
    sums: Tensor,
    masses: Tensor,
    lse: Tensor,
    ls_projected: Tensor,
    earlier_positions: Tensor,
    pixel_weight: Tensor,
    pixel_bias: Tensor,
    query_weight: Tensor,
    prototype_weight: Tensor,
    alpha: Tensor,
    beta: Tensor,
    log_width: Tensor | None,
    size: list[int],
    grid: list[int],
    normalize: bool,
    residual: bool,
) -> Gradients:
    """Return the gradients of the tokens, float32, and of all `Weights` but the temperature, which has none.

    tokens are B x HW x C in the precision of matrix products. All outputs of `mix` are contiguous.
    """
    from protoformer.models.kernels import synchronization_kernels

    channels = tokens.shape[2]
    width = channels // len(alpha)
    with full_precision(tokens), torch.cuda.device_of(tokens):
        dtype, rows = projected.dtype, tokens.reshape(-1, channels)
        pixel_weight, query_weight = pixel_weight.to(dtype).contiguous(), query_weight.contiguous()
        d_projected = projected.new_empty(*tokens.shape[:2], 3 * channels)
        torch.mm(rows, pixel_weight[2 * channels :].T, out=d_projected.view(-1, 3 * channels)[:, 2 * channels :])
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
            pixel_bias[2 * channels :].contiguous(),
        )
        # Gradients of `ls_projected`, B K x 2C, and of query bias, alpha and beta, heads x (d + 2).
        d_ls_projected, d_heads = prototype_parts.sum(dim=0).flatten(0, 1), head_parts.sum(dim=(0, 1))
        # Gradients of the prototypes before each iteration and, last, of the final ones.
        d_all = centers.new_empty(len(earlier) + 1, *centers.shape)
        torch.addmm(d_centers.reshape(-1, channels), d_ls_projected, prototype_weight, out=d_all[-1].view(-1, channels))
        gradient_of_positions = None
        if log_width is not None:
            pixels = reference.pixel_coordinates((size[0], size[1]), (grid[0], grid[1]), tokens.device, torch.float32)
            gradient_of_positions = _PositionsGradient(d_positions, positions, earlier_positions, log_width, pixels)
        d_queries, biases = _iterations_backward(
            d_all,
            d_projected,
            projected,
            queries,
            sums,
            masses,
            lse,
            query_weight,
            normalize,
            residual,
            gradient_of_positions,
        )
        d_pixel_bias = torch.cat([*biases, d_heads[:, :width].flatten()])
        flat = d_projected.view(-1, 3 * channels)
        d_pixel_weight = (flat.T @ rows).float()
        d_tokens = _center_functions().spread(
            d_all[0], (flat @ pixel_weight).view(tokens.shape), (size[0], size[1]), (grid[0], grid[1])
        )
        d_queries = d_queries.view(-1, channels)
        return (
            d_tokens,
            d_pixel_weight,
            d_pixel_bias,
            d_queries.T @ earlier.view(-1, channels),
            # The bias shifts all logits of a pixel equally, which does not change the softmax over prototypes.
            query_weight.new_zeros(channels),
            d_ls_projected.T @ centers.view(-1, channels),
            d_ls_projected.sum(dim=0),
            d_heads[:, width].clone(),
            d_heads[:, width + 1].clone(),
            query_weight.new_zeros(()) if gradient_of_positions is None else gradient_of_positions.d_log_width,
        )


class _PositionsGradient:
    """Gradient of the positions, from the last iteration to the first, and of the width of the spatial prior.

    Args:
        d_positions: B x K x 2, gradient of the final positions.
        positions: B x K x 2, the final positions.
        earlier: N x B x K x 2, the positions before each iteration.
        log_width: Logarithm of the width.
        pixels: HW x 2, positions of the pixels.
    """

    def __init__(
        self, d_positions: Tensor, positions: Tensor, earlier: Tensor, log_width: Tensor, pixels: Tensor
    ) -> None:
        self.d_after, self.after, self.earlier, self.log_width = d_positions, positions, earlier, log_width
        self.prior_of = _prior_of(log_width, pixels)
        self.d_log_width = torch.zeros_like(log_width)

    def before_step(self, step: int, mass: Tensor) -> tuple[reference.PriorCoefficients | None, Tensor]:
        """Return the prior of an iteration, and the gradient of its sums of (x, y, 1), B x K x 3.

        mass: B x K x heads.
        """
        total = mass.sum(dim=2)[..., None]
        has_members = total > reference.MIN_MASS
        d_moments = torch.where(has_members, self.d_after / total.clamp_min(reference.MIN_MASS), 0.0)
        d_mass = -(d_moments * self.after).sum(dim=2, keepdim=True)
        self.d_after = torch.where(has_members, 0.0, self.d_after)  # an empty prototype stays where it was
        self.after = self.earlier[step]
        return self.prior_of(self.after), torch.cat((d_moments, d_mass), dim=2)

    def after_step(self, d_coefficients: Tensor) -> None:
        """Add the gradient of the coefficients of the prior, B x K x 3."""
        scale = torch.exp(-2 * self.log_width)
        d_slopes, d_offset = d_coefficients.split((2, 1), dim=2)
        self.d_after = self.d_after + scale * (d_slopes - self.after * d_offset)
        d_scale = (self.after * d_slopes - self.after.square() * d_offset / 2).sum()
        self.d_log_width = self.d_log_width - 2 * scale * d_scale


def _iterations_backward(
    d_all: Tensor,
    d_projected: Tensor,
    projected: Tensor,
    queries: Tensor,
    sums: Tensor,
    masses: Tensor,
    lse: Tensor,
    query_weight: Tensor,
    normalize: bool,
    residual: bool,
    of_positions: _PositionsGradient | None,
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
        prior, d_moments = (None, None) if of_positions is None else of_positions.before_step(step, masses[step])
        parts, d_coefficients = prototyping_kernels.partial_gradients(
            split_heads(d_all[step + 1], heads),
            (sums[step], masses[step]) if no_mass is None else no_mass,
            split_heads(queries[step], heads),
            keys,
            values,
            d_keys,
            d_values,
            accumulate=step < last,
            lse=lse[step],
            prior=prior,
            d_moments=d_moments,
        )
        if of_positions is not None:
            of_positions.after_step(d_coefficients)
        outputs = (d_queries[step], d_all[step], of_keys[step], of_values[step])
        centers.centers_gradient(parts, d_all[step + 1], masses[step], query_weight, outputs, normalize, residual)
    return d_queries, (of_keys.sum(dim=(0, 1)), of_values.sum(dim=(0, 1)))


@mix.register_fake
def _(tokens: Tensor, *inputs: Any) -> Outputs:
    weights = Weights(*inputs[: len(Weights._fields)])
    _, grid, iterations, _, _, dtype, keep = inputs[len(Weights._fields) :]
    buffers = _allocate(tokens, weights.alpha, weights.log_width is not None, grid, iterations, dtype, keep)
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
def _(
    d_attended: Tensor,
    d_centers: Tensor,
    d_positions: Tensor,
    tokens: Tensor,
    centers: Tensor,
    positions: Tensor,
    assignment: Tensor,
    projected: Tensor,
    earlier: Tensor,
    queries: Tensor,
    sums: Tensor,
    masses: Tensor,
    lse: Tensor,
    ls_projected: Tensor,
    earlier_positions: Tensor,
    pixel_weight: Tensor,
    pixel_bias: Tensor,
    query_weight: Tensor,
    prototype_weight: Tensor,
    alpha: Tensor,
    beta: Tensor,
    *options: Any,
) -> Gradients:
    query_bias, prototype_bias = query_weight[:, 0], prototype_weight[:, 0]
    like = (pixel_weight, pixel_bias, query_weight, query_bias, prototype_weight, prototype_bias, alpha, beta)
    d_tokens = tokens.new_empty(tokens.shape, dtype=torch.float32)
    return d_tokens, *(each.new_empty(each.shape) for each in like), alpha.new_empty(())  # type: ignore[return-value]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    tokens, *rest = inputs
    weights, mixed = Weights(*rest[: len(Weights._fields)]), Mixed(*output)
    ctx.size, ctx.grid, _, ctx.normalize, ctx.residual, ctx.dtype, _ = rest[len(Weights._fields) :]
    ctx.set_materialize_grads(False)
    differentiable = (mixed.attended, mixed.centers, mixed.positions)
    ctx.mark_non_differentiable(*mixed[len(differentiable) :])
    ctx.save_for_backward(  # in the order of the arguments of `mix_backward`
        mixed.tokens_half if mixed.tokens_half.numel() else tokens,
        mixed.centers,
        mixed.positions,
        mixed.assignment,
        mixed.projected,
        mixed.earlier,
        mixed.queries,
        mixed.sums,
        mixed.masses,
        mixed.lse,
        mixed.ls_projected,
        mixed.earlier_positions,
        weights.pixel_weight,
        weights.pixel_bias,
        weights.query_weight,
        weights.prototype_weight,
        weights.alpha,
        weights.beta,
        weights.log_width,
    )


def _gradient(
    ctx: Any, d_attended: Tensor | None, d_centers: Tensor | None, d_positions: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    tokens, centers, positions, *rest = ctx.saved_tensors
    if d_attended is None:
        d_attended = tokens.new_zeros(tokens.shape, dtype=ctx.dtype)
    if d_centers is None:
        d_centers = torch.zeros_like(centers)
    if d_positions is None:
        d_positions = torch.zeros_like(positions)
    d_outputs, options = (d_attended, d_centers, d_positions), (ctx.size, ctx.grid, ctx.normalize, ctx.residual)
    *gradients, d_log_width = mix_backward(*d_outputs, tokens, centers, positions, *rest, *options)
    # The temperature changes nothing but the hard assignment. Training on several processes needs a gradient of it.
    of_prior = (d_log_width, torch.zeros_like(d_log_width)) if positions.numel() else (None, None)
    return *gradients, *of_prior, *[None] * 7


mix.register_autograd(_gradient, setup_context=_setup_context)


@flop_formula(torch.ops.protoformer.mix)
def _(tokens: list[int], *inputs: Any, **kwargs: object) -> int:
    batch, pixels, channels = tokens
    _, (rows, columns), steps, *_ = inputs[len(Weights._fields) :]
    count: int = rows * columns
    by_pixel: int = 3 * channels + 2 * steps * count + count
    operations: int = 2 * batch * channels * (pixels * by_pixel + (steps + 2) * count * channels)
    return operations
