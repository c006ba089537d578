"""CAP and LS in the fastest implementation for the device.

The plain version (`reference`) stores the memberships (heads x K x HW), can be exported, and is what the others are
tested against. The fused versions never store them, as FlashAttention does not store attention weights: on CUDA they
are Triton kernels, elsewhere torch over blocks of pixels that fit the cache (`blocked`).
"""

from typing import cast

import torch
from torch import Tensor, nn

from protoformer.models.kernels import blocked, dispatch, mixing, operators, reference
from protoformer.models.runtime import full_precision, to_autocast_dtype


def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Run the E-step of CAP and return the sums of the M-step.

    Args:
        queries: B x heads x K x d.
        keys: B x heads x HW x d, with any strides.
        values: B x heads x HW x d, with any strides.

    Returns:
        Weighted sums of the values, B x heads x K x d, and masses, B x heads x K; float32 or better.
    """
    if dispatch.is_plain("mixing"):
        return reference.prototype_sums(queries, keys, values)
    queries, keys, values = to_autocast_dtype(queries), to_autocast_dtype(keys), to_autocast_dtype(values)
    if dispatch.is_cpu_inference(queries):  # avoids the operator, whose first call imports for a second
        with full_precision(queries):
            is_half = queries.dtype == torch.bfloat16
            return (blocked.half_prototype_sums if is_half else blocked.prototype_sums)(queries, keys, values)
    sums, mass = operators.prototype_sums(queries, keys, values)
    return sums, mass


def spatial_sums(
    queries: Tensor, keys: Tensor, values: Tensor, prior: reference.PriorCoefficients
) -> tuple[Tensor, Tensor, Tensor]:
    """As `prototype_sums` with a spatial prior; also the moments for `reference.mean_positions`, B x K x 2."""
    if dispatch.is_plain("mixing"):
        return reference.spatial_sums(queries, keys, values, prior)
    queries, keys, values = to_autocast_dtype(queries), to_autocast_dtype(keys), to_autocast_dtype(values)
    if dispatch.is_cpu_inference(queries):
        with full_precision(queries):
            return blocked.spatial_sums(queries, keys, values, prior)
    sums, mass, moments = operators.spatial_sums(queries, keys, values, *prior)
    return sums, mass, moments


def cell_means(tokens: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Average-pool tokens (B x HW x C) of a map of (H, W) = size onto (rows, columns) = grid: B x K x C."""
    # ONNX has no adaptive pooling for maps of dynamic size.
    use_products = dispatch.is_exporting() or (tokens.is_cuda and not dispatch.is_plain("mixing"))
    pool = reference.cell_means_by_products if use_products else reference.cell_means
    return pool(tokens, size, grid)


def synchronize(
    features: Tensor,
    centers: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    prior: reference.PriorCoefficients | None = None,
) -> tuple[Tensor, Tensor]:
    """Assign each pixel to its nearest prototype and return the gated values.

    The assignment is computed in full precision and has no gradient.

    Args:
        features: B x HW x C.
        centers: B x K x C, the prototypes.
        queries: B x HW x C, projections of the features.
        keys: B x K x C, projections of the prototypes.
        values: B x K x C, projections of the prototypes.
        alpha: Gate parameter of each head.
        beta: Gate parameter of each head.
        prior: Spatial prior of the assignment, as in `reference.nearest_prototype`.

    Returns:
        The gated values, B x HW x C, and the assignment, B x HW, int64.
    """
    if dispatch.is_plain("mixing"):
        return reference.synchronize(features, centers, queries, keys, values, alpha, beta, prior)
    similarity_inputs = (features.detach(), reference.unit_vectors(centers.detach()))
    products = (to_autocast_dtype(queries), to_autocast_dtype(keys), to_autocast_dtype(values))
    if dispatch.is_cpu_inference(features):
        with full_precision(features):
            return blocked.synchronize(*similarity_inputs, *products, alpha, beta, prior)
    optional = () if prior is None else (each.detach() for each in prior)
    attended, assignment = operators.synchronize(*similarity_inputs, *products, alpha, beta, *optional)
    return attended, assignment


def synchronize_and_feed(
    features: Tensor,
    centers: Tensor,
    query: nn.Linear,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    layers: nn.Sequential,
    prior: reference.PriorCoefficients | None = None,
) -> tuple[Tensor, Tensor]:
    """Run `synchronize`, then a feed-forward network (linear, GELU, linear).

    The blocked version uses the weights of `query` and `layers` directly and does not call the modules.

    Args:
        features: B x HW x C.
        centers: B x K x C, the prototypes.
        query: Projection of the features to queries.
        keys: B x K x C.
        values: B x K x C.
        alpha: Gate parameter of each head.
        beta: Gate parameter of each head.
        layers: The feed-forward network.
        prior: Spatial prior of the assignment, as in `reference.nearest_prototype`.

    Returns:
        Its output, B x HW x C, and the assignment, B x HW, int64.
    """
    if not _use_blocks(features, query, layers[0], layers[2]):
        queries = query(to_autocast_dtype(features))
        attended, assignment = synchronize(features, centers, queries, keys, values, alpha, beta, prior)
        return layers(attended), assignment
    first, second = (cast(nn.Linear, layers[index]) for index in (0, 2))
    network = ((first.weight, first.bias), (second.weight, second.bias))
    projection, directions = (query.weight, query.bias), reference.unit_vectors(centers)
    return blocked.synchronize_and_feed(features, directions, projection, keys, values, alpha, beta, network, prior)


def _use_blocks(features: Tensor, *layers: nn.Module) -> bool:
    """Return whether the blocked version applies: inference on a CPU in float32 with plain linear layers."""
    is_float32 = features.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    are_linear = all(type(layer) is nn.Linear for layer in layers)
    return is_float32 and are_linear and dispatch.is_cpu_inference(features) and not dispatch.is_plain("mixing")


def can_mix(tokens: Tensor, num_prototypes: int, head_dim: int) -> bool:
    """Return whether `mix` supports these tokens: float32 (the output of LayerNorm) on a GPU with kernels."""
    is_supported = not dispatch.is_plain("mixing") and tokens.dtype == torch.float32
    return is_supported and dispatch.fits_kernels(tokens, num_prototypes, head_dim)


def mix(
    tokens: Tensor,
    weights: mixing.Weights,
    size: tuple[int, int],
    grid: tuple[int, int],
    num_iterations: int,
    normalize: bool,
    residual: bool,
    keep: bool,
) -> mixing.Mixed:
    """Run CAP and LS, without the feed-forward network of LS, as one fused operator.

    Args:
        tokens: B x HW x C, supported according to `can_mix`.
        weights: Weights of CAP and LS.
        size: (H, W) of the map.
        grid: (rows, columns) of the prototypes' cells.
        num_iterations: N, the number of EM iterations.
        normalize: As in `Prototyping`.
        residual: As in `Prototyping`.
        keep: Also return the keys, from which memberships are computed; always so if gradients are enabled.
    """
    device = tokens.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tokens.dtype
    keep = keep or torch.is_grad_enabled()
    outputs = mixing.mix(tokens, *weights, list(size), list(grid), num_iterations, normalize, residual, dtype, keep)
    return mixing.Mixed(*outputs)


def feed_forward(tokens: Tensor, layers: nn.Sequential) -> Tensor:
    """Apply linear, GELU, linear to tokens, B x HW x C, in the precision of matrix products."""
    if tokens.dtype == torch.float32 or tokens.shape[2] > operators.MAX_MLP_CHANNELS:
        with full_precision(tokens):
            result: Tensor = layers(tokens.float())
            return result
    if not dispatch.is_enabled("mlp"):
        return cast(Tensor, layers(tokens))
    first, _, second = layers
    rows: Tensor = operators.mlp(tokens.flatten(0, 1), first.weight, first.bias, second.weight, second.bias)
    return rows.view(*tokens.shape[:2], -1)
