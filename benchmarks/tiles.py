"""Search for the fastest tiles of the kernels of CAP, LS and the MLP on this GPU.

    python benchmarks/tiles.py                       K=100, heads of 32, bfloat16, 24 maps of 80x112
    python benchmarks/tiles.py --prototypes 200 --head-width 64 --dtype float16
    python benchmarks/tiles.py --dtype float32 --jobs 16 --kernels sums synchronize

Every tile is measured for every kernel. The fastest few are printed with their times and their error on a small map,
compared with the reference in float64, and finally the lines for TILES in src/protoformer/models/kernels/tiles.py.
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

from measuring import captured
from protoformer.models.kernels import reference as plain
from protoformer.models.kernels.tiles import TILES, Tile, fits, padded, tile_for

BY_PROTOTYPES = ("sums", "sums_backward", "synchronize", "synchronize_backward")
BY_CHANNELS = ("project", "mlp", "mlp_tokens", "mlp_weights")
KERNELS = (*BY_PROTOTYPES, *BY_CHANNELS)
ONE_PROGRAM_PER_BLOCK = ("synchronize", "project", "mlp", "mlp_tokens")
Call = Callable[[], tuple[Tensor, ...]]


def inputs(images: int, heads: int, count: int, width: int, pixels: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Draw random inputs of all kernels."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.float32).to(kind)

    channels, full = heads * width, torch.float32
    return {
        "queries": draw(images, count, heads, width).transpose(1, 2),
        "keys": draw(images, pixels, heads, width).transpose(1, 2),
        "values": draw(images, pixels, heads, width).transpose(1, 2),
        "d_sums": draw(images, heads, count, width, kind=full),
        "d_mass": draw(images, heads, count, kind=full),
        "features": draw(images, pixels, channels, kind=full),
        "directions": plain.unit_vectors(draw(images, count, channels)),
        "pixel_queries": draw(images, pixels, channels),
        "prototype_keys": draw(images, count, channels),
        "prototype_values": draw(images, count, channels),
        "alpha": draw(heads, kind=full),
        "beta": draw(heads, kind=full),
        "d_attended": draw(images, pixels, channels),
        "rows": draw(images * pixels, channels),
        "d_rows": draw(images * pixels, channels),
        "first": draw(2 * channels, channels) / 8,
        "first_bias": draw(2 * channels, kind=full),
        "second": draw(channels, 2 * channels) / 8,
        "second_bias": draw(channels, kind=full),
        "query_weight": draw(channels, channels) / 8,
        "query_bias": draw(channels, kind=full),
    }


def call_of(kernel: str, tensors: dict[str, Tensor]) -> Call:
    """Return a call that launches a kernel on these inputs."""
    from protoformer.models.kernels import prototyping_kernels, synchronization_kernels

    if kernel in BY_CHANNELS:
        return layer_call(kernel, tensors)
    projections = [tensors[name] for name in ("queries", "keys", "values")]
    prototype_inputs = [tensors[name] for name in ("prototype_keys", "prototype_values", "alpha", "beta")]
    if kernel == "sums":
        return lambda: prototyping_kernels.prototype_sums(*projections)
    if kernel == "sums_backward":
        return sums_backward_call(tensors, projections)
    if kernel == "synchronize":
        queried = (tensors["query_weight"], tensors["query_bias"])
        return lambda: synchronization_kernels.synchronize(
            tensors["features"], tensors["directions"], queried, *prototype_inputs
        )
    nearest = plain.nearest_prototype(tensors["features"], tensors["directions"])
    return lambda: synchronization_kernels.synchronize_backward(
        tensors["d_attended"], tensors["pixel_queries"], *prototype_inputs, nearest
    )


def layer_call(kernel: str, tensors: dict[str, Tensor]) -> Call:
    """Return a call of a kernel of the projection or the MLP."""
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


def sums_backward_call(tensors: dict[str, Tensor], projections: list[Tensor]) -> Call:
    """Return a call of the backward pass as a mixer runs it, with stored softmax denominators."""
    from protoformer.models.kernels import prototyping_kernels
    from protoformer.models.kernels.blocked import like_tokens

    queries, keys, values = projections
    lse = queries.new_empty(*keys.shape[:3], dtype=torch.float32)
    prototyping_kernels.partial_sums(queries, keys, values, lse)
    d_mass = tensors["d_mass"].transpose(1, 2).contiguous()
    d_keys, d_values = like_tokens(keys), like_tokens(values)

    def call() -> tuple[Tensor, ...]:
        parts = prototyping_kernels.partial_gradients(
            tensors["d_sums"], d_mass, *projections, d_keys, d_values, lse=lse
        )
        batch, heads, count, width = queries.shape
        d_queries = parts.sum(dim=0)[: batch * count].view(batch, count, heads, width)
        return d_queries.transpose(1, 2), d_keys, d_values

    return call


def exact(kernel: str, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Compute the outputs of a kernel by the reference in float64."""
    double = {name: each.double() for name, each in tensors.items()}
    if kernel in BY_CHANNELS:
        return exact_layer(kernel, double)
    projections = [double[name].requires_grad_() for name in ("queries", "keys", "values")]
    prototype_inputs = [
        double[name].requires_grad_() for name in ("prototype_keys", "prototype_values", "alpha", "beta")
    ]
    nearest = plain.nearest_prototype(tensors["features"], tensors["directions"])
    if kernel == "sums":
        return plain.prototype_sums(*projections)
    if kernel == "sums_backward":
        return torch.autograd.grad(
            plain.prototype_sums(*projections), projections, [double["d_sums"], double["d_mass"]]
        )
    if kernel == "synchronize":
        queries = double["features"] @ double["query_weight"].T + double["query_bias"]
        return plain.gated(queries, *prototype_inputs, nearest), nearest
    gate = [double["pixel_queries"].requires_grad_(), *prototype_inputs]
    return torch.autograd.grad(plain.gated(*gate, nearest), gate, double["d_attended"])


def exact_layer(kernel: str, double: dict[str, Tensor]) -> tuple[Tensor, ...]:
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


def milliseconds(run: Call, calls: int = 5) -> float:
    """Return the time of one of many calls in a CUDA graph, without the overhead of the host."""
    run()
    replay = captured(lambda: [run() for _ in range(calls)])
    replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(3):
        replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / (3 * calls)


def candidates(kernel: str, half: bool) -> list[Tile]:
    """Return the tiles to measure."""
    pixels = (32, 64, 128, 256) if half else (16, 32, 64)
    stages = (1, 2, 3) if half else (1, 2)
    programs = (1,) if kernel in ONE_PROGRAM_PER_BLOCK else (1, 2, 3, 4, 6)
    tiles = [Tile(*each) for each in itertools.product(pixels, (4, 8), stages, programs)]
    # `synchronize` has no stages; Triton 3.6 compiles the other tiles to invalid memory reads.
    return [each for each in tiles if kernel != "synchronize" or (each.pixels < 32 * each.warps and each.stages == 1)]


def size_of(kernel: str, channels: int, prototypes: int) -> int:
    """Return the size in the keys of TILES."""
    return padded(channels if kernel in BY_CHANNELS else prototypes)


def compile_tile(task: tuple[str, Tile, tuple[int, int, int, int, str]]) -> None:
    """Compile one tile in a separate process, for the shared cache on disk."""
    kernel, tile, (heads, count, width, _, name) = task
    dtype: torch.dtype = getattr(torch, name)
    TILES[(kernel, dtype != torch.float32, size_of(kernel, heads * width, count))] = tile
    # Sizes are multiples of 16, which Triton specializes on, as in the timed run.
    call_of(kernel, inputs(1, heads, count, width, 16 * tile.pixels, dtype))()


def main() -> None:
    """Measure and print the tiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prototypes", type=int, default=100)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-width", type=int, default=32)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--pixels", type=int, default=80 * 112)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    arguments = parser.parse_args()
    dtype: torch.dtype = getattr(torch, arguments.dtype)
    half, count = dtype != torch.float32, arguments.prototypes
    shape = (arguments.heads, count, arguments.head_width)

    start = time.perf_counter()
    tasks = {
        (kernel, tile.pixels, tile.warps, tile.stages): (kernel, tile, (*shape, arguments.pixels, arguments.dtype))
        for kernel in arguments.kernels
        for tile in candidates(kernel, half)
    }
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        failed = [each.exception() for each in [pool.submit(compile_tile, task) for task in tasks.values()]]
    print(f"{len(tasks)} compiled in {time.perf_counter() - start:.0f} s, {sum(map(bool, failed))} do not fit")

    large = inputs(arguments.images, *shape, arguments.pixels, dtype)
    small = inputs(1, *shape, 304, dtype)
    lines = []
    for kernel in arguments.kernels:
        size = size_of(kernel, arguments.heads * arguments.head_width, count)
        key = (kernel, half, size)
        current, reference, timed = tile_for(kernel, dtype, size), exact(kernel, small), []
        for tile in candidates(kernel, half):
            TILES[key] = tile
            try:
                spent = milliseconds(call_of(kernel, large))
            except Exception as error:
                print(f"{kernel} {tile}: {type(error).__name__} {str(error)[:100]}")
                if "illegal" in str(error):  # this process cannot use the GPU any more
                    raise
                continue
            if fits(kernel, dtype, size):
                timed.append((spent, tile))
        TILES[key] = current
        timed.sort(key=lambda each: each[0])
        print(f"\n{kernel}: {milliseconds(call_of(kernel, large)):.3f} ms with the current {current}")
        for spent, tile in timed[:4]:
            TILES[key] = tile
            errors = [
                float((actual.double() - expected.detach()).norm() / expected.detach().norm())
                for actual, expected in zip(call_of(kernel, small)(), reference, strict=True)
                if actual.is_floating_point()
            ]
            print(f"  {spent:.3f} ms {tile} error {max(errors):.1e}")
        TILES[key] = current
        if timed:
            lines.append(f"    {key!r}: {timed[0][1]!r},".replace("'", '"'))
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
