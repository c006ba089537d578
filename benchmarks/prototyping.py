"""Measure the cost of Cross-Attention Prototyping (CAP), compared with self-attention, and the convergence of its EM.

Prints four tables and, with --json, writes the same figures to a file:

    python benchmarks/prototyping.py --json out/prototyping.json
    python benchmarks/prototyping.py --device cuda --image photo.jpg

The first table has the floating-point operations, the time and the peak extra memory of CAP (projections and all EM
iterations) and of one self-attention layer (projections and torch's scaled_dot_product_attention), forward, with the
same number of channels, for maps of increasing size. The last rows are the ratios between one size and the next, which
has four times the pixels.

The second table compares implementations of the mixer of a block, CAP and then LS with its feed-forward network: plain
torch, plain torch compiled, and fused (launched directly and in a CUDA graph), with the block's MLP and self-attention
for comparison. Forward is without gradients. Peaks are beyond the memory in use before, in MiB and as a multiple of
the size of the features (the tokens in float32). The lower bound is the time of the operations and bytes of
`lower_bound` at the throughput of a large matrix product and of a large copy, which are measured first. On CUDA it runs
under bfloat16 autocast, and --no-compile leaves out the compiled versions; on a CPU it runs in float32, and --compile
includes them. --profile lists the slowest operations of the fused version instead of printing tables.

The third table follows EM for many iterations on the features of an image: the log-likelihood of the pixels after 0, 1,
2, 3 and all iterations, the number of iterations that decreased it, the contraction factor kappa of Proposition 1, and
the drift (length of the last step relative to the first; near 1 there is no fixed point).

The fourth table has the norm of each block's update of the features in an untrained network, without and with a spatial
prior.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from measuring import capture_graph, median_milliseconds, peak_mib, synchronize
from protoformer.explain.tracing import Convergence, measure_convergence, plain_em
from protoformer.io.files import write_atomically
from protoformer.io.image_input import as_image
from protoformer.models.config import preset
from protoformer.models.encoder import Mixer
from protoformer.models.kernels import dispatch
from protoformer.models.layers import Attention, FeedForward
from protoformer.models.protoformer import build_network
from protoformer.models.prototyping import Prototyping
from protoformer.models.runtime import flop_counter, map_size, maps_to_tokens, normalize_images
from protoformer.models.synchronization import LatentSynchronization
from protoformer.synthetic.layers import random_scene

SIZES = ((27, 60), (54, 120), (108, 240))
CHANNELS, HEADS, HEAD_WIDTH = 128, 4, 32
NUM_ITERATIONS = 60
"""EM iterations of the table of convergence."""
TABLES = ("growth", "versions", "convergence", "updates")
UPDATES = {
    "base": {"components": "base", "spatial_prior": False},
    "CAP only": {"synchronization": "none", "spatial_prior": False},
    "CAP only with prior": {"synchronization": "none"},
    "CAP and LS": {"spatial_prior": False},
    "CAP and LS with prior": {},
}
"""Encoders of the table of updates, as overrides of the preset `fast`."""
WORKLOADS = {
    # images, height, width, channels
    "cuda": ((24, 80, 112, 128), (24, 40, 56, 256), (2, 270, 480, 128)),
    "cpu": ((1, 108, 240, 128),),
}


@dataclass(frozen=True)
class Cost:
    """Cost of one mixer on one map, forward.

    Attributes:
        mixer: Name of the mixer.
        height: Height of the map.
        width: Width of the map.
        flops: Floating-point operations.
        milliseconds: Median time.
        peak_mib: Peak extra memory, MiB; None where it is unknown.
    """

    mixer: str
    height: int
    width: int
    flops: int
    milliseconds: float
    peak_mib: float | None


@dataclass(frozen=True)
class VersionCost:
    """Cost of one implementation of a layer on one batch of maps.

    Attributes:
        version: Layer and implementation.
        images: Number of maps.
        height: Height of a map.
        width: Width of a map.
        channels: Channels of a map.
        forward: Median milliseconds of the forward pass.
        training: Median milliseconds of the forward and the backward pass.
        forward_mib: Peak extra memory of the forward pass, MiB; None where it is unknown.
        training_mib: Peak extra memory of both passes, MiB; None where it is unknown.
    """

    version: str
    images: int
    height: int
    width: int
    channels: int
    forward: float
    training: float | None
    forward_mib: float | None
    training_mib: float | None


class SelfAttention(nn.Module):
    """Self-attention between all pixels of a map."""

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.attention = Attention(channels, channels // HEAD_WIDTH)

    def forward(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        """Apply attention to tokens, B x HW x C, and return a tensor of the same shape."""
        result: Tensor = self.attention(tokens, tokens)
        return result


def count_flops(build: Callable[[], nn.Module], size: tuple[int, int], channels: int = CHANNELS) -> int:
    """Count the floating-point operations of a layer on one map of (H, W), on the meta device."""
    with torch.device("meta"):
        module, tokens = build().requires_grad_(False), torch.empty(1, size[0] * size[1], channels)
    with torch.no_grad(), flop_counter() as counter:
        module(tokens, size)
    return int(counter.get_total_flops())


def measure_growth(device: torch.device, repeats: int) -> list[Cost]:
    """Measure both mixers at all sizes."""
    costs = []
    builders: dict[str, Callable[[], nn.Module]] = {
        "CAP": lambda: Prototyping(CHANNELS, HEADS),
        "self-attention": SelfAttention,
    }
    for mixer, build in builders.items():
        for size in SIZES:
            torch.manual_seed(0)
            module = build().to(device).eval()
            tokens = torch.randn(1, size[0] * size[1], CHANNELS, device=device)

            @torch.inference_mode()
            def run(module: nn.Module = module, tokens: Tensor = tokens, size: tuple[int, int] = size) -> object:
                return module(tokens, size)

            duration = median_milliseconds(run, device, repeats)
            costs.append(Cost(mixer, *size, count_flops(build, size), duration, peak_mib(run, device)))
    return costs


def build_mixer(channels: int, num_prototypes: int = 100, spatial_prior: bool = False) -> Mixer:
    """Build the mixer of a block: CAP, then LS."""
    heads = channels // HEAD_WIDTH
    prototyping = Prototyping(channels, heads, num_prototypes, spatial_prior=spatial_prior)
    return Mixer(prototyping, LatentSynchronization(channels, heads))


class LayerRunner:
    """Runs a layer on random tokens as a block of a network does.

    Args:
        build: Builds the layer for a number of channels.
        shape: (images, height, width, channels) of the tokens.
        device: Device to run on; on CUDA under bfloat16 autocast.
    """

    def __init__(
        self, build: Callable[[int], nn.Module], shape: tuple[int, int, int, int], device: torch.device
    ) -> None:
        torch.manual_seed(0)
        images, *self.size, channels = shape
        self.device = device
        self.module = build(channels).to(device)
        self.tokens = torch.randn(images, self.size[0] * self.size[1], channels, device=device)
        self.call: Callable[..., object] = self.module
        # The size of the map and, as in inference, return_prototypes=False.
        self.other_args = () if isinstance(self.module, FeedForward) else (tuple(self.size),)
        self.other_args += (False,) if isinstance(self.module, Mixer) else ()
        half = device.type == "cuda"
        self.output_grad = torch.ones_like(self.tokens, dtype=torch.bfloat16 if half else torch.float32)

    def compute_output(self, tokens: Tensor) -> Tensor:
        """Compute the output for tokens, B x HW x C."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            output = self.call(tokens, *self.other_args)
        return output[0] if isinstance(output, tuple) else output  # type: ignore[return-value]

    def forward(self) -> Tensor:
        """Run the forward pass without gradients."""
        with torch.no_grad():
            return self.compute_output(self.tokens)

    def forward_backward(self) -> None:
        """Run the forward and the backward pass, with gradients of the tokens and of every parameter."""
        self.module.zero_grad(set_to_none=True)
        tokens = self.tokens.detach().requires_grad_()
        output = self.compute_output(tokens)
        output.backward(self.output_grad.to(output.dtype))


def measure_version(
    layer: LayerRunner, name: str, shape: tuple[int, int, int, int], repeats: int
) -> Iterator[VersionCost]:
    """Measure a layer, and on CUDA the fused mixer in a CUDA graph as well."""
    device = layer.device
    forward = median_milliseconds(layer.forward, device, repeats)
    training = median_milliseconds(layer.forward_backward, device, repeats)
    peaks = peak_mib(layer.forward, device), peak_mib(layer.forward_backward, device)
    yield VersionCost(name, *shape, forward, training, *peaks)
    if name.startswith("CAP + LS") and name.endswith("fused") and device.type == "cuda":
        forward = median_milliseconds(capture_graph(layer.forward), device, repeats)
        training = median_milliseconds(capture_graph(layer.forward_backward), device, repeats)
        yield VersionCost(name + ", CUDA graph", *shape, forward, training, None, None)


def measure_versions(device: torch.device, repeats: int, use_compile: bool, name_part: str) -> list[VersionCost]:
    """Measure all implementations of all layers on all batches; a failed measurement is reported and left out.

    Args:
        device: Device to run on.
        repeats: Number of timed calls.
        use_compile: Include versions compiled by torch.compile.
        name_part: Text that the name of a version must contain.
    """
    versions: list[tuple[str, Callable[[int], nn.Module], str, bool]] = [
        ("CAP + LS, plain", build_mixer, "plain", False),
        ("CAP + LS, plain, compiled", build_mixer, "plain", True),
        ("CAP + LS, fused", build_mixer, "fused", False),
        ("CAP + LS with prior, fused", partial(build_mixer, spatial_prior=True), "fused", False),
        (
            "CAP + LS with prior, K=49, fused",
            partial(build_mixer, num_prototypes=49, spatial_prior=True),
            "fused",
            False,
        ),
        ("MLP of the block", FeedForward, "fused", False),
        ("self-attention", SelfAttention, "fused", False),
    ]
    costs: list[VersionCost] = []
    for shape in WORKLOADS[device.type]:
        for name, build, version, compiled in versions:
            if name_part not in name or (compiled and not use_compile):
                continue
            layer = LayerRunner(build, shape, device)
            if compiled:
                torch._dynamo.reset()
                layer.call = torch.compile(layer.module)
            try:
                with dispatch.use_version(version):
                    costs.extend(measure_version(layer, name, shape, repeats))
            except RuntimeError as error:  # out of memory, or no compiler
                print(f"{name}, {shape}: {type(error).__name__}: {str(error)[:300]}")
    return costs


def measure_throughput(device: torch.device) -> tuple[float, float]:
    """Measure operations per second of a large matrix product, and bytes per second (read and written) of a copy."""
    on_cuda = device.type == "cuda"
    side = 8192 if on_cuda else 1024
    matrix = torch.randn(side, side, device=device, dtype=torch.bfloat16 if on_cuda else torch.float32)
    product = median_milliseconds(lambda: matrix @ matrix, device, 5)
    source = torch.empty(2**28 if on_cuda else 2**25, device=device)
    target = torch.empty_like(source)
    copy = median_milliseconds(lambda: target.copy_(source), device, 5)
    return 2e3 * side**3 / product, 2e3 * source.nbytes / copy


def lower_bound(
    shape: tuple[int, int, int, int], device: torch.device, throughput: tuple[float, float]
) -> tuple[float, float]:
    """Estimate the minimum milliseconds of CAP and LS with N=3 iterations (a roofline model).

    Forward: features are read three times in float32 (projections, cells, assignment); of tensors of their shape in the
    precision of matrix products, keys and values are written once and read in every iteration, the attended values are
    written and read, and the output is written. Backward moves and computes twice as much.

    Args:
        shape: (images, height, width, channels).
        device: Device, which determines the precision.
        throughput: Operations and bytes per second, as returned by `measure_throughput`.

    Returns:
        The time of the forward pass, and that of both passes.
    """
    images, height, width, channels = shape
    pixels = images * height * width * channels
    element = 2 if device.type == "cuda" else 4
    num_bytes = pixels * (3 * 4 + element * (2 * (1 + 3) + 2 + 1))
    flops = images * count_flops(lambda: build_mixer(channels), (height, width), channels)
    forward = 1e3 * max(flops / throughput[0], num_bytes / throughput[1])
    return forward, 3 * forward


def read_image(path: str | None) -> Tensor:
    """Read an image, or render a synthetic one without a path, and normalize it: 1 x 3 x H x W in [-1, 1]."""
    return normalize_images(random_scene((256, 384), seed=3).render().first if path is None else as_image(path))


def compute_features(path: str | None) -> tuple[nn.Module, Tensor]:
    """Return the encoder of `fast` with random weights, and its features of an image, 1 x C x H/4 x W/4."""
    torch.manual_seed(0)
    encoder = build_network(preset("fast"), "flow").eval().encoder
    image = read_image(path)
    with torch.inference_mode():
        features: Tensor = encoder(image).features[0]
    return encoder, features.clone()


def measure_em(path: str | None) -> dict[str, Convergence]:
    """Measure the convergence of EM under the assumptions of the theory, and as the network runs it."""
    encoder, features = compute_features(path)
    tokens, size = maps_to_tokens(features), map_size(features)
    unit = F.normalize(tokens, dim=-1)
    network: Prototyping = encoder.stages[0].blocks[0].mixer.prototyping  # type: ignore[index, union-attr, assignment]
    return {
        "cosine, unit features, no residual (theory)": measure_convergence(
            plain_em(tokens.shape[2], 100), unit, size, NUM_ITERATIONS
        ),
        "CAP, unnormalized features, no residual": measure_convergence(
            plain_em(tokens.shape[2], 100, "cap"), tokens, size, NUM_ITERATIONS
        ),
        "CAP as in the network: projections, residual": measure_convergence(network, tokens, size, NUM_ITERATIONS),
    }


def measure_updates(path: str | None) -> dict[str, list[tuple[float, float]]]:
    """Measure the update of each block in an untrained `fast`.

    Returns:
        For each encoder in `UPDATES`, a pair per block: the norm of the update relative to that of the tokens, and the
        fraction of its squared norm that varies, that is, remains after the mean over the pixels is subtracted.
    """
    image = read_image(path)
    results: dict[str, list[tuple[float, float]]] = {}
    for name, overrides in UPDATES.items():
        torch.manual_seed(0)
        encoder = build_network(preset("fast", encoder=overrides), "flow").eval().encoder
        rows = results.setdefault(name, [])

        def record(_: object, inputs: tuple[Tensor, ...], output: tuple[Tensor, object], rows: list = rows) -> None:
            tokens, update = inputs[0], output[0]
            varying = (update - update.mean(dim=1, keepdim=True)).norm() / update.norm()
            rows.append((float(update.norm() / tokens.norm()), float(varying) ** 2))

        for module in encoder.modules():
            if isinstance(module, Mixer):
                module.register_forward_hook(record)  # type: ignore[arg-type]
        with torch.no_grad():
            encoder(image)
    return results


def print_updates(console: Console, results: dict[str, list[tuple[float, float]]]) -> None:
    """Print a table with one row per variant and one column per block."""
    table = Table(
        title="Update of each block before training: norm relative to the tokens, fraction that varies", box=None
    )
    table.add_column("variant")
    for rows in results.values():
        for index in range(len(rows)):
            table.add_column(f"block {index + 1}", justify="right")
        break
    for name, rows in results.items():
        table.add_row(name, *(f"{norm:.2f}, {fraction:.2%}" for norm, fraction in rows))
    console.print(table)


def print_growth(console: Console, costs: list[Cost], device: torch.device) -> None:
    """Print a table with one row per mixer and map, then the ratios from each map to the next."""
    table = Table(
        title=f"Forward, one map, {CHANNELS} channels, {HEADS} heads, K=100, N=3, fp32, on {device}", box=None
    )
    for column in ("mixer", "map", "GFLOPs", "ms", "peak extra MiB"):
        table.add_column(column, justify="left" if column == "mixer" else "right")
    for cost in costs:
        memory = "-" if cost.peak_mib is None else f"{cost.peak_mib:.0f}"
        shape = f"{cost.height}x{cost.width}"
        table.add_row(cost.mixer, shape, f"{cost.flops / 1e9:.3f}", f"{cost.milliseconds:.1f}", memory)
    for mixer in ("CAP", "self-attention"):
        for before, after in pairwise(cost for cost in costs if cost.mixer == mixer):
            sizes = f"{before.height}x{before.width} to {after.height}x{after.width}"
            flops, duration = after.flops / before.flops, after.milliseconds / before.milliseconds
            table.add_row(f"{mixer}, ratio", sizes, f"x {flops:.2f}", f"x {duration:.1f}", "")
    console.print(table)


def print_versions(
    console: Console,
    costs: list[VersionCost],
    device: torch.device,
    bounds: dict[tuple[int, ...], tuple[float, float]],
) -> None:
    """Print a table with one row per batch and version, and the lower bound (forward, both) of each batch first."""
    precision = "bfloat16 autocast" if device.type == "cuda" else "float32"
    table = Table(
        title=f"One layer, K=100, N=3, {precision}, on {device}: ms and peak extra MiB (x features)", box=None
    )
    for column in ("batch", "layer", "forward", "fwd + bwd", "peak forward", "peak fwd + bwd"):
        table.add_column(column, justify="left" if column in ("batch", "layer") else "right")

    def format_peak(mib: float | None, cost: VersionCost) -> str:
        features = cost.images * cost.height * cost.width * cost.channels * 4 / 2**20
        return "-" if mib is None else f"{mib:.0f} ({mib / features:.2f}x)"

    last = None
    for cost in costs:
        shape = (cost.images, cost.height, cost.width, cost.channels)
        if shape != last:
            times = [f"{milliseconds:.2f}" for milliseconds in bounds[shape]]
            table.add_row("{} x {}x{} x {}".format(*shape), "CAP + LS, lower bound", *times, "", "")
        last = shape
        training = "-" if cost.training is None else f"{cost.training:.2f}"
        peaks = format_peak(cost.forward_mib, cost), format_peak(cost.training_mib, cost)
        table.add_row("", cost.version, f"{cost.forward:.2f}", training, *peaks)
    console.print(table)


def print_profile(console: Console, device: torch.device) -> None:
    """Print the 40 slowest operations of the fused mixer, forward and backward, on the first batch."""
    layer = LayerRunner(build_mixer, WORKLOADS[device.type][0], device)
    for _ in range(3):
        layer.forward_backward()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        layer.forward_backward()
        synchronize(device)
    times = [
        (event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total, event.count, event.key)
        for event in profile.key_averages()
    ]
    if device.type == "cuda":
        kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        console.print(f"{len(kernels)} launches, {sum(event.device_time for event in kernels):.0f} us of GPU time")
    for microseconds, count, key in sorted(times, reverse=True)[:40]:
        console.print(f"{microseconds:9.0f} us {count:4d} x {key[:110]}", highlight=False, markup=False)


def print_convergence(console: Console, results: dict[str, Convergence]) -> None:
    """Print a table with one row per setting."""
    table = Table(
        title=f"EM on features of an image, K=100, {NUM_ITERATIONS} iterations: log-likelihood in nats per pixel",
        box=None,
    )
    for column in ("setting", "start", "iter. 1", "iter. 2", "iter. 3", "end", "decreases", "kappa", "drift"):
        table.add_column(column, justify="left" if column == "setting" else "right")
    for setting, result in results.items():
        values = [f"{result.log_likelihood[index]:.3f}" for index in (0, 1, 2, 3, -1)]
        decreases = sum(after < before - 1e-6 for before, after in pairwise(result.log_likelihood))
        table.add_row(setting, *values, str(decreases), f"{result.contraction:.3f}", f"{result.drift:.4f}")
    console.print(table)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="device to measure on")
    parser.add_argument("--repeats", type=int, default=5, help="number of timed calls")
    parser.add_argument("--image", help="image to compute features of; by default a synthetic one")
    parser.add_argument("--json", type=Path, help="output file for the figures")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="include compiled versions")
    parser.add_argument("--only", choices=TABLES, help="compute only one table")
    parser.add_argument("--layers", help="of the second table, only the rows whose name contains this text")
    parser.add_argument("--profile", action="store_true", help="list the slowest operations of the fused version")
    arguments = parser.parse_args()
    device, console = torch.device(arguments.device), Console(width=140)
    if arguments.profile:
        print_profile(console, device)
        return
    use_compile = device.type == "cuda" if arguments.compile is None else arguments.compile
    tables = (arguments.only,) if arguments.only else TABLES
    growth = measure_growth(device, arguments.repeats) if "growth" in tables else []
    print_growth(console, growth, device)
    console.print()
    versions = (
        measure_versions(device, arguments.repeats, use_compile, arguments.layers or "") if "versions" in tables else []
    )
    throughput = measure_throughput(device)
    bounds = {shape: lower_bound(shape, device, throughput) for shape in WORKLOADS[device.type]}
    print_versions(console, versions, device, bounds)
    convergence = measure_em(arguments.image) if "convergence" in tables else {}
    console.print()
    print_convergence(console, convergence)
    updates = measure_updates(arguments.image) if "updates" in tables else {}
    print_updates(console, updates)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {
            "device": str(device),
            "costs": [asdict(cost) for cost in growth],
            "versions": [asdict(cost) for cost in versions],
            "updates": updates,
            "convergence": {setting: asdict(result) for setting, result in convergence.items()},
        }
        write_atomically(arguments.json, json.dumps(figures, indent=1).encode())


if __name__ == "__main__":
    main()
