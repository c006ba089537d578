"""Prototyping and synchronization without the matrix of memberships, as FlashAttention is attention without its own.

Here alone it is chosen how they are computed. The plain version makes the matrix (heads x K x pixels), can be exported,
and is what the others are tested against. The fused one never does: on CUDA it is Triton's, elsewhere torch's over
blocks of pixels that fit the cache.
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
_chosen = "fused"


@contextmanager
def computed(version: str) -> Iterator[None]:
    """Within it, everything is computed by this one of VERSIONS. For comparisons; the choice is the whole process's."""
    global _chosen  # noqa: PLW0603 - a switch that compiled graphs can see
    if version not in VERSIONS:
        raise ValueError(f"there is no version {version!r}; choose one of {', '.join(VERSIONS)}")
    before, _chosen = _chosen, version
    try:
        yield
    finally:
        _chosen = before


def is_plain() -> bool:
    """Whether the plain version runs: by choice, or because a graph is written for others who lack our operators."""
    return _chosen == "plain" or is_written()


def is_written() -> bool:
    """Whether torch is writing down a graph for others, of images whose size may be left open."""
    # What torch.compiler.is_exporting answers under torch.compile, too, is yes in some of the versions that we take.
    exporting: bool = torch.compiler._is_exporting_flag
    return exporting or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]


def kernels_run_on(tensor: Tensor) -> bool:
    """Whether Triton's kernels run on this tensor's device, and torch is not writing down a graph."""
    return kernels_run_there(tensor.device)


def kernels_run_there(device: torch.device) -> bool:
    """The same of a device."""
    return device.type == "cuda" and operators.TRITON_IS_THERE and not _is_graph_or_plain()


def halves_costs(device: torch.device, half: bool) -> bool:
    """Whether a network in use keeps all pairs of costs in half precision on a device; half: its products are in it."""
    return half and (kernels_run_there(device) or (device.type == "cpu" and not _is_graph_or_plain()))


def _is_graph_or_plain() -> bool:
    """Whether torch writes down a graph, or the plain version was chosen."""
    return is_plain() or torch.compiler.is_compiling()


def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The maximization of the expectation in which prototypes compete: sums of values, and the mass of memberships.

    queries: B x heads x K x d; keys, values: B x heads x HW x d, in any layout. Returns B x heads x K x d and
    B x heads x K, in float32 or better.
    """
    if is_plain():
        return plain.prototype_sums(queries, keys, values)
    queries, keys, values = to_autocast_dtype(queries), to_autocast_dtype(keys), to_autocast_dtype(values)
    if is_in_use_on_cpu(queries):  # as the operator does there, whose first call takes torch a second of imports
        with full_precision(queries):
            return blocked.prototype_sums(queries, keys, values)
    sums, mass = operators.prototype_sums(queries, keys, values)
    return sums, mass


def cell_means(tokens: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """The mean of each of rows x columns = grid cells of maps of (H, W) = size: B x HW x C to B x K x C."""
    # Pooling into so many cells has no counterpart in ONNX where the size of the map is open.
    by_products = is_written() or (tokens.is_cuda and not is_plain())
    return operators.cell_means(tokens, size, grid) if by_products else plain.cell_means(tokens, size, grid)


def synchronize(
    features: Tensor, centers: Tensor, queries: Tensor, keys: Tensor, values: Tensor, alpha: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated value of each pixel's nearest prototype: B x HW x C, and the assignment B x HW, int64.

    features, queries: B x HW x C, the pixels and their projection; centers, keys, values: B x K x C, the prototypes and
    theirs; alpha, beta: heads. The assignment is decided in full precision and has no gradient.
    """
    if is_plain():
        return plain.synchronize(features, centers, queries, keys, values, alpha, beta)
    found = (features.detach(), plain.directions(centers.detach()))
    products = (to_autocast_dtype(queries), to_autocast_dtype(keys), to_autocast_dtype(values))
    if is_in_use_on_cpu(features):
        with full_precision(features):
            return blocked.synchronize(*found, *products, alpha, beta)
    attended, assignment = operators.synchronize(*found, *products, alpha, beta)
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
    """What a network (linear, GELU, linear) makes of what `synchronize` returns, B x HW x C, and the assignment.

    query: the layer that makes the queries of the features. Where they go by in blocks, its weights and the network's
    are used, and they themselves are not called.
    """
    if not _goes_by_in_blocks(features, query, layers[0], layers[2]):
        queries = query(to_autocast_dtype(features))
        attended, assignment = synchronize(features, centers, queries, keys, values, alpha, beta)
        return layers(attended), assignment
    first, second = (cast(nn.Linear, layers[place]) for place in (0, 2))
    network = ((first.weight, first.bias), (second.weight, second.bias))
    projection, directions = (query.weight, query.bias), plain.directions(centers)
    return blocked.synchronize_and_feed(features, directions, projection, keys, values, alpha, beta, network)


def _goes_by_in_blocks(features: Tensor, *layers: nn.Module) -> bool:
    """Whether pixels go by in blocks: on a CPU, in float32, no gradient wanted, no graph written, layers as torch's."""
    single = features.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    usual = all(type(layer) is nn.Linear for layer in layers)
    return single and usual and is_in_use_on_cpu(features)


def is_in_use_on_cpu(tensor: Tensor) -> bool:
    """Whether it is on a CPU, no gradient is wanted and no graph written: torch need not know what is done with it."""
    return tensor.device.type == "cpu" and not torch.is_grad_enabled() and not _is_graph_or_plain()


def mixes(tokens: Tensor, prototypes: int, head_width: int) -> bool:
    """Whether `mix` takes these tokens: on a GPU, where the kernels do, and in float32, as layer norm leaves them."""
    takes = not is_plain() and tokens.dtype == torch.float32
    return takes and operators.takes_kernels(tokens, prototypes, head_width)


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
    """All of prototyping by `cap` and of synchronization, up to its feed-forward network, at once.

    tokens: B x HW x C, for which `mixes`, of a map of (H, W) = size. keep: the keys as well, for who asks for
    memberships; where gradients are on they are kept in any case.
    """
    device = tokens.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tokens.dtype
    keep = keep or torch.is_grad_enabled()
    found = mixing.mix(tokens, *weights, list(size), list(grid), iterations, normalize, residual, dtype, keep)
    return mixing.Mixed(*found)


def feed_forward(tokens: Tensor, layers: nn.Sequential) -> Tensor:
    """Linear, GELU, linear of what `mix` attended to: B x HW x C in the precision of products."""
    if tokens.dtype == torch.float32 or tokens.shape[2] > perceptron.MOST_CHANNELS:
        with full_precision(tokens):
            result: Tensor = layers(tokens.float())
            return result
    first, _, second = layers
    rows: Tensor = perceptron.perceptron(tokens.flatten(0, 1), first.weight, first.bias, second.weight, second.bias)
    return rows.view(*tokens.shape[:2], -1)
