"""Choice of the implementation of CAP and LS.

The plain version (`reference`) stores the memberships (heads x K x HW), can be exported, and is what the others are
tested against. The fused versions never store them, as FlashAttention does not store attention weights: on CUDA they
are Triton kernels, elsewhere torch over blocks of pixels that fit the cache (`blocked`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from protoformer.models.kernels import blocked, mixing, operators
from protoformer.models.kernels import operators as perceptron
from protoformer.models.kernels import reference as plain
from protoformer.models.runtime import full_precision, to_autocast_dtype

VERSIONS = ("fused", "plain")
"""Implementations that `computed` selects."""
_chosen = "fused"


@contextmanager
def computed(version: str) -> Iterator[None]:
    """Use one of `VERSIONS` within this context, for comparisons; the choice applies to the whole process.

    Raises:
        ValueError: If there is no such version.
    """
    global _chosen  # noqa: PLW0603 - compiled graphs guard on a global
    if version not in VERSIONS:
        raise ValueError(f"there is no version {version!r}; choose one of {', '.join(VERSIONS)}")
    before, _chosen = _chosen, version
    try:
        yield
    finally:
        _chosen = before


def is_plain() -> bool:
    """Return whether the plain version runs: by choice, or in an export, whose users lack the custom operators."""
    return _chosen == "plain" or is_written()


def is_written() -> bool:
    """Return whether torch is exporting or tracing a graph, whose image size may be dynamic."""
    # In some supported versions torch.compiler.is_exporting is also true under torch.compile.
    exporting: bool = torch.compiler._is_exporting_flag
    return exporting or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]


def kernels_run_on(tensor: Tensor) -> bool:
    """Return whether Triton kernels run on the tensor's device and torch is not capturing a graph."""
    return kernels_run_there(tensor.device)


def kernels_run_there(device: torch.device) -> bool:
    """Return whether Triton kernels run on a device and torch is not capturing a graph."""
    return device.type == "cuda" and operators.TRITON_IS_THERE and not _is_graph_or_plain()


def halves_costs(device: torch.device, half: bool) -> bool:
    """Return whether inference stores the all-pairs costs in half precision.

    Args:
        device: Device of the network.
        half: Whether matrix products are in half precision.
    """
    return half and (kernels_run_there(device) or (device.type == "cpu" and not _is_graph_or_plain()))


def _is_graph_or_plain() -> bool:
    """Return whether torch captures a graph or the plain version is selected."""
    return is_plain() or torch.compiler.is_compiling()


def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Run the E-step of CAP and return the sums of the M-step.

    Args:
        queries: B x heads x K x d.
        keys: B x heads x HW x d, with any strides.
        values: B x heads x HW x d, with any strides.

    Returns:
        Weighted sums of the values, B x heads x K x d, and masses, B x heads x K; float32 or better.
    """
    if is_plain():
        return plain.prototype_sums(queries, keys, values)
    queries, keys, values = to_autocast_dtype(queries), to_autocast_dtype(keys), to_autocast_dtype(values)
    if is_in_use_on_cpu(queries):  # avoids the operator, whose first call imports for a second
        with full_precision(queries):
            return blocked.prototype_sums(queries, keys, values)
    sums, mass = operators.prototype_sums(queries, keys, values)
    return sums, mass


def cell_means(tokens: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Average-pool tokens (B x HW x C) of a map of (H, W) = size onto (rows, columns) = grid: B x K x C."""
    # ONNX has no adaptive pooling for maps of dynamic size.
    use_products = is_written() or (tokens.is_cuda and not is_plain())
    return operators.cell_means(tokens, size, grid) if use_products else plain.cell_means(tokens, size, grid)


def synchronize(
    features: Tensor, centers: Tensor, queries: Tensor, keys: Tensor, values: Tensor, alpha: Tensor, beta: Tensor
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

    Returns:
        The gated values, B x HW x C, and the assignment, B x HW, int64.
    """
    if is_plain():
        return plain.synchronize(features, centers, queries, keys, values, alpha, beta)
    similarity_inputs = (features.detach(), plain.directions(centers.detach()))
    products = (to_autocast_dtype(queries), to_autocast_dtype(keys), to_autocast_dtype(values))
    if is_in_use_on_cpu(features):
        with full_precision(features):
            return blocked.synchronize(*similarity_inputs, *products, alpha, beta)
    attended, assignment = operators.synchronize(*similarity_inputs, *products, alpha, beta)
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

    Returns:
        Its output, B x HW x C, and the assignment, B x HW, int64.
    """
    if not _use_blocks(features, query, layers[0], layers[2]):
        queries = query(to_autocast_dtype(features))
        attended, assignment = synchronize(features, centers, queries, keys, values, alpha, beta)
        return layers(attended), assignment
    first, second = (cast(nn.Linear, layers[index]) for index in (0, 2))
    network = ((first.weight, first.bias), (second.weight, second.bias))
    projection, directions = (query.weight, query.bias), plain.directions(centers)
    return blocked.synchronize_and_feed(features, directions, projection, keys, values, alpha, beta, network)


def _use_blocks(features: Tensor, *layers: nn.Module) -> bool:
    """Return whether the blocked version applies: inference on a CPU in float32 with plain linear layers."""
    is_float32 = features.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    are_linear = all(type(layer) is nn.Linear for layer in layers)
    return is_float32 and are_linear and is_in_use_on_cpu(features)


def is_in_use_on_cpu(tensor: Tensor) -> bool:
    """Return whether this is inference on a CPU: no gradient and no graph capture."""
    return tensor.device.type == "cpu" and not torch.is_grad_enabled() and not _is_graph_or_plain()


def mixes(tokens: Tensor, prototypes: int, head_width: int) -> bool:
    """Return whether `mix` supports these tokens: float32 (the output of LayerNorm) on a GPU with kernels."""
    is_supported = not is_plain() and tokens.dtype == torch.float32
    return is_supported and operators.takes_kernels(tokens, prototypes, head_width)


def mix(
    tokens: Tensor,
    weights: mixing.Weights,
    size: tuple[int, int],
    grid: tuple[int, int],
    iterations: int,
    normalize: bool,
    residual: bool,
    keep: bool,
) -> mixing.Mixed:
    """Run CAP and LS, without the feed-forward network of LS, as one fused operator.

    Args:
        tokens: B x HW x C, supported according to `mixes`.
        weights: Weights of CAP and LS.
        size: (H, W) of the map.
        grid: (rows, columns) of the prototypes' cells.
        iterations: N, the number of EM iterations.
        normalize: As in `Prototyping`.
        residual: As in `Prototyping`.
        keep: Also return the keys, from which memberships are computed; always so if gradients are enabled.
    """
    device = tokens.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tokens.dtype
    keep = keep or torch.is_grad_enabled()
    outputs = mixing.mix(tokens, *weights, list(size), list(grid), iterations, normalize, residual, dtype, keep)
    return mixing.Mixed(*outputs)


def feed_forward(tokens: Tensor, layers: nn.Sequential) -> Tensor:
    """Apply linear, GELU, linear to tokens, B x HW x C, in the precision of matrix products."""
    if tokens.dtype == torch.float32 or tokens.shape[2] > perceptron.MOST_CHANNELS:
        with full_precision(tokens):
            result: Tensor = layers(tokens.float())
            return result
    first, _, second = layers
    rows: Tensor = perceptron.perceptron(tokens.flatten(0, 1), first.weight, first.bias, second.weight, second.bias)
    return rows.view(*tokens.shape[:2], -1)
