"""Search for the fastest tiles of the kernels of CAP, LS and the MLP on this GPU.

    python benchmarks/tiles.py                       K=100, head width 32, bfloat16, 24 maps of 80x112
    python benchmarks/tiles.py --prototypes 200 --head-width 64 --dtype float16
    python benchmarks/tiles.py --dtype float32 --jobs 16 --kernels sums synchronize

Every tile is measured for every kernel. The four fastest are printed with their times and their errors relative to the
reference in float64 on a small map. At the end the lines for TILES in src/protoformer/models/kernels/tiles.py are
printed.
"""

import argparse
import itertools
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor

from measuring import capture_graph
from protoformer.models.kernels import reference
from protoformer.models.kernels.tiles import TILES, Tile, fits, padded, tile_for

BY_PROTOTYPES = ("sums", "sums_backward", "synchronize", "synchronize_backward")
BY_CHANNELS = ("project", "mlp", "mlp_tokens", "mlp_weights")
KERNELS = (*BY_PROTOTYPES, *BY_CHANNELS)
ONE_PROGRAM_PER_BLOCK = ("synchronize", "project", "mlp", "mlp_tokens")
KernelCall = Callable[[], tuple[Tensor, ...]]


def random_inputs(
    images: int, heads: int, num_prototypes: int, head_width: int, pixels: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Draw random inputs for all kernels, by name."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.float32).to(dtype)

    channels, full = heads * head_width, torch.float32
    return {
        "queries": draw(images, num_prototypes, heads, head_width).transpose(1, 2),
        "keys": draw(images, pixels, heads, head_width).transpose(1, 2),
        "values": draw(images, pixels, heads, head_width).transpose(1, 2),
        "d_sums": draw(images, heads, num_prototypes, head_width, dtype=full),
        "d_mass": draw(images, heads, num_prototypes, dtype=full),
        "features": draw(images, pixels, channels, dtype=full),
        "directions": reference.unit_vectors(draw(images, num_prototypes, channels)),
        "pixel_queries": draw(images, pixels, channels),
        "prototype_keys": draw(images, num_prototypes, channels),
        "prototype_values": draw(images, num_prototypes, channels),
        "alpha": draw(heads, dtype=full),
        "beta": draw(heads, dtype=full),
        "d_attended": draw(images, pixels, channels),
        "rows": draw(images * pixels, channels),
        "d_rows": draw(images * pixels, channels),
        "first": draw(2 * channels, channels) / 8,
        "first_bias": draw(2 * channels, dtype=full),
        "second": draw(channels, 2 * channels) / 8,
        "second_bias": draw(channels, dtype=full),
        "query_weight": draw(channels, channels) / 8,
        "query_bias": draw(channels, dtype=full),
    }


def bind_kernel(kernel: str, tensors: dict[str, Tensor]) -> KernelCall:
    """Return a function that launches a kernel on these inputs."""
    from protoformer.models.kernels import prototyping_kernels, synchronization_kernels

    if kernel in BY_CHANNELS:
        return bind_layer_kernel(kernel, tensors)
    projections = [tensors[name] for name in ("queries", "keys", "values")]
    prototype_inputs = [tensors[name] for name in ("prototype_keys", "prototype_values", "alpha", "beta")]
    if kernel == "sums":
        return lambda: prototyping_kernels.prototype_sums(*projections)
    if kernel == "sums_backward":
        return bind_sums_backward(tensors, projections)
    if kernel == "synchronize":
        query_proj = (tensors["query_weight"], tensors["query_bias"])
        return lambda: synchronization_kernels.synchronize(
            tensors["features"], tensors["directions"], query_proj, *prototype_inputs
        )
    nearest = reference.nearest_prototype(tensors["features"], tensors["directions"])
    return lambda: synchronization_kernels.synchronize_backward(
        tensors["d_attended"], tensors["pixel_queries"], *prototype_inputs, nearest
    )


def bind_layer_kernel(kernel: str, tensors: dict[str, Tensor]) -> KernelCall:
    """Return a function that launches a kernel of the projection or the MLP."""
    from protoformer.models.kernels import mlp_kernels

    layer = [tensors[name] for name in ("first", "first_bias", "second")]
    if kernel == "project":
        rows, tokens_half = tensors["features"].flatten(0, 1), torch.empty_like(tensors["rows"])
        return lambda: (mlp_kernels.project(rows, *layer[:2], tokens_half),)
    if kernel == "mlp":
        return lambda: (mlp_kernels.mlp(tensors["rows"], *layer, tensors["second_bias"]),)
    if kernel == "mlp_tokens":
        return lambda: (mlp_kernels.tokens_gradient(tensors["d_rows"], tensors["rows"], *layer),)
    return lambda: mlp_kernels.weights_gradient(tensors["d_rows"], tensors["rows"], *layer)


def bind_sums_backward(tensors: dict[str, Tensor], projections: list[Tensor]) -> KernelCall:
    """Return a function that runs the backward pass of the sums as a mixer does, with stored softmax denominators."""
    from protoformer.models.kernels import prototyping_kernels
    from protoformer.models.kernels.blocked import like_tokens

    queries, keys, values = projections
    lse = queries.new_empty(*keys.shape[:3], dtype=torch.float32)
    prototyping_kernels.partial_sums(queries, keys, values, lse)
    d_mass = tensors["d_mass"].transpose(1, 2).contiguous()
    d_keys, d_values = like_tokens(keys), like_tokens(values)

    def run() -> tuple[Tensor, ...]:
        parts, _ = prototyping_kernels.partial_gradients(
            tensors["d_sums"], d_mass, *projections, d_keys, d_values, lse=lse
        )
        batch, heads, num_prototypes, head_width = queries.shape
        d_queries = parts.sum(dim=0)[: batch * num_prototypes].view(batch, num_prototypes, heads, head_width)
        return d_queries.transpose(1, 2), d_keys, d_values

    return run


def compute_reference(kernel: str, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Compute the outputs of a kernel with the reference implementation in float64."""
    double = {name: tensor.double() for name, tensor in tensors.items()}
    if kernel in BY_CHANNELS:
        return compute_layer_reference(kernel, double)
    projections = [double[name].requires_grad_() for name in ("queries", "keys", "values")]
    prototype_inputs = [
        double[name].requires_grad_() for name in ("prototype_keys", "prototype_values", "alpha", "beta")
    ]
    nearest = reference.nearest_prototype(tensors["features"], tensors["directions"])
    if kernel == "sums":
        return reference.prototype_sums(*projections)
    if kernel == "sums_backward":
        return torch.autograd.grad(
            reference.prototype_sums(*projections), projections, [double["d_sums"], double["d_mass"]]
        )
    if kernel == "synchronize":
        queries = double["features"] @ double["query_weight"].T + double["query_bias"]
        return reference.gated(queries, *prototype_inputs, nearest), nearest
    inputs = [double["pixel_queries"].requires_grad_(), *prototype_inputs]
    return torch.autograd.grad(reference.gated(*inputs, nearest), inputs, double["d_attended"])


def compute_layer_reference(kernel: str, double: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Compute the outputs of the projection or the MLP in float64."""
    if kernel == "project":
        return (double["features"].flatten(0, 1) @ double["first"].T + double["first_bias"],)
    layer = [double[name].requires_grad_() for name in ("rows", "first", "first_bias", "second", "second_bias")]
    rows, first, first_bias, second, second_bias = layer
    output = F.gelu(rows @ first.T + first_bias) @ second.T + second_bias
    if kernel == "mlp":
        return (output,)
    gradients = torch.autograd.grad(output, layer, double["d_rows"])
    return gradients[:1] if kernel == "mlp_tokens" else gradients[1:]


def measure_milliseconds(run: KernelCall, calls: int = 5) -> float:
    """Measure the mean time of a call in a CUDA graph, which excludes the overhead of the host."""
    run()
    replay = capture_graph(lambda: [run() for _ in range(calls)])
    replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(3):
        replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / (3 * calls)


def candidate_tiles(kernel: str, half: bool) -> list[Tile]:
    """Return the tiles to measure; half: for half precision."""
    pixels = (32, 64, 128, 256) if half else (16, 32, 64)
    stages = (1, 2, 3) if half else (1, 2)
    programs = (1,) if kernel in ONE_PROGRAM_PER_BLOCK else (1, 2, 3, 4, 6)
    tiles = [Tile(*values) for values in itertools.product(pixels, (4, 8), stages, programs)]
    # `synchronize` has no stages; Triton 3.6 compiles the other tiles to invalid memory reads.
    return [tile for tile in tiles if kernel != "synchronize" or (tile.pixels < 32 * tile.warps and tile.stages == 1)]


def tile_key_size(kernel: str, channels: int, num_prototypes: int) -> int:
    """Return the size in the keys of `TILES`."""
    return padded(channels if kernel in BY_CHANNELS else num_prototypes)


def compile_tile(task: tuple[str, Tile, tuple[int, int, int, int, str]]) -> None:
    """Compile one tile in a worker process, which stores it in Triton's cache on disk.

    Args:
        task: Kernel, tile, and (heads, prototypes, head width, pixels, name of the dtype).
    """
    kernel, tile, (heads, num_prototypes, head_width, _, name) = task
    dtype: torch.dtype = getattr(torch, name)
    TILES[(kernel, dtype != torch.float32, tile_key_size(kernel, heads * head_width, num_prototypes))] = tile
    # Triton specializes on sizes that are multiples of 16, as in the timed run.
    bind_kernel(kernel, random_inputs(1, heads, num_prototypes, head_width, 16 * tile.pixels, dtype))()


def main() -> None:
    """Run the search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prototypes", type=int, default=100, help="number of prototypes K")
    parser.add_argument("--heads", type=int, default=4, help="number of heads")
    parser.add_argument("--head-width", type=int, default=32, help="channels of a head")
    parser.add_argument("--images", type=int, default=24, help="number of maps")
    parser.add_argument("--pixels", type=int, default=80 * 112, help="pixels of a map")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="dtype of matrix products"
    )
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS, help="kernels to measure")
    parser.add_argument("--jobs", type=int, default=8, help="number of compilation processes")
    arguments = parser.parse_args()
    dtype: torch.dtype = getattr(torch, arguments.dtype)
    half, num_prototypes = dtype != torch.float32, arguments.prototypes
    shape = (arguments.heads, num_prototypes, arguments.head_width)

    start = time.perf_counter()
    tasks = {
        (kernel, tile.pixels, tile.warps, tile.stages): (kernel, tile, (*shape, arguments.pixels, arguments.dtype))
        for kernel in arguments.kernels
        for tile in candidate_tiles(kernel, half)
    }
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        errors = [future.exception() for future in [pool.submit(compile_tile, task) for task in tasks.values()]]
    seconds = time.perf_counter() - start
    print(f"{len(tasks)} tiles compiled in {seconds:.0f} s, {sum(map(bool, errors))} of them failed")

    large = random_inputs(arguments.images, *shape, arguments.pixels, dtype)
    small = random_inputs(1, *shape, 304, dtype)
    lines = []
    for kernel in arguments.kernels:
        size = tile_key_size(kernel, arguments.heads * arguments.head_width, num_prototypes)
        key = (kernel, half, size)
        current, expected_outputs = tile_for(kernel, dtype, size), compute_reference(kernel, small)
        timed: list[tuple[float, Tile]] = []
        for tile in candidate_tiles(kernel, half):
            TILES[key] = tile
            try:
                milliseconds = measure_milliseconds(bind_kernel(kernel, large))
            except Exception as error:
                print(f"{kernel} {tile}: {type(error).__name__} {str(error)[:100]}")
                if "illegal" in str(error):  # the CUDA context of this process is unusable after that
                    raise
                continue
            if fits(kernel, dtype, size):
                timed.append((milliseconds, tile))
        TILES[key] = current
        timed.sort(key=lambda entry: entry[0])
        print(f"\n{kernel}: {measure_milliseconds(bind_kernel(kernel, large)):.3f} ms with the current tile {current}")
        for milliseconds, tile in timed[:4]:
            TILES[key] = tile
            relative_errors = [
                float((output.double() - expected.detach()).norm() / expected.detach().norm())
                for output, expected in zip(bind_kernel(kernel, small)(), expected_outputs, strict=True)
                if output.is_floating_point()
            ]
            print(f"  {milliseconds:.3f} ms {tile} error {max(relative_errors):.1e}")
        TILES[key] = current
        if timed:
            lines.append(f"    {key!r}: {timed[0][1]!r},".replace("'", '"'))
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
