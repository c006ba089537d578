"""What Cross-Attention Prototyping costs beside self-attention, computed in several ways, and how its EM converges.

Prints four tables and, with --json, writes the same figures to a file:

    python benchmarks/prototyping.py --json out/prototyping.json
    python benchmarks/prototyping.py --device cuda --image photo.jpg

The first table has, over growing maps, the floating-point operations, the time and the peak extra memory of CAP
(projections and all EM iterations) and of one self-attention layer (projections and torch's
scaled_dot_product_attention), forward, at the same width. The last rows say how much each grows when the pixels grow
four times.

The second has what stands in the place of attention in a block, CAP and then LS with its feed-forward network,
computed plainly, plainly but compiled, and fused (as it is, and in a CUDA graph); beside it, the block's MLP and
self-attention. Forward is without gradients; peaks are beyond what was held before, in MiB and in
features (the tokens in float32). The floor is what the operations and bytes of `floor` would take at the speeds of a
large matrix product and of a large copy, measured here. On CUDA it runs under bfloat16 autocast and --no-compile leaves
the compiled versions out; on a CPU it runs in float32 and --compile brings them in. --profile lists instead which
operations take longest in the fused version.

The third table follows EM for many steps on features of an image: the likelihood of the pixels after 0, 1, 2, 3 and
all steps, how often it fell, the contraction factor kappa of Proposition 1, and the drift (the last step's length over
the first's; near 1 there is no fixed point).

The last table has what each block of an untrained network adds to its features, without and with a spatial prior.
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

from measuring import captured, median_milliseconds, peak_mib, synchronize
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
STEPS = 60
TABLES = ("growth", "versions", "convergence", "updates")
UPDATES = {
    "base": {"components": "base", "spatial_prior": False},
    "CAP only": {"synchronization": "none", "spatial_prior": False},
    "CAP only with prior": {"synchronization": "none"},
    "CAP and LS": {"spatial_prior": False},
    "CAP and LS with prior": {},
}
"""Encoders of the table of updates, as changes to `fast`."""
WORKLOADS = {
    # images, height, width, channels
    "cuda": ((24, 80, 112, 128), (24, 40, 56, 256), (2, 270, 480, 128)),
    "cpu": ((1, 108, 240, 128),),
}


@dataclass(frozen=True)
class Cost:
    """One mixer on one map: floating-point operations, median milliseconds, peak extra MiB (None: cannot be told)."""

    mixer: str
    height: int
    width: int
    flops: int
    milliseconds: float
    peak_mib: float | None


@dataclass(frozen=True)
class VersionCost:
    """One way to compute one layer on one batch of maps: median milliseconds and peak extra MiB, forward, and both."""

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
    """Attention from every pixel to every pixel."""

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.attention = Attention(channels, channels // HEAD_WIDTH)

    def forward(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        """tokens: B x HW x C to the same."""
        result: Tensor = self.attention(tokens, tokens)
        return result


def operations(build: Callable[[], nn.Module], size: tuple[int, int], channels: int = CHANNELS) -> int:
    """Counted from shapes alone."""
    with torch.device("meta"):
        module, tokens = build().requires_grad_(False), torch.empty(1, size[0] * size[1], channels)
    with torch.no_grad(), flop_counter() as counter:
        module(tokens, size)
    return int(counter.get_total_flops())


def costs(device: torch.device, repeats: int) -> list[Cost]:
    """Both mixers over all sizes."""
    measured = []
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
            measured.append(Cost(mixer, *size, operations(build, size), duration, peak_mib(run, device)))
    return measured


def mixer(channels: int, count: int = 100, spatial_prior: bool = False) -> Mixer:
    """CAP, then LS, as in a block."""
    heads = channels // HEAD_WIDTH
    prototyping = Prototyping(channels, heads, count, spatial_prior=spatial_prior)
    return Mixer(prototyping, LatentSynchronization(channels, heads))


class Layer:
    """A module on random tokens, run as a block would run it."""

    def __init__(
        self, build: Callable[[int], nn.Module], shape: tuple[int, int, int, int], device: torch.device
    ) -> None:
        torch.manual_seed(0)
        images, *self.size, channels = shape
        self.device = device
        self.module = build(channels).to(device)
        self.tokens = torch.randn(images, self.size[0] * self.size[1], channels, device=device)
        self.call: Callable[..., object] = self.module
        # A block of a network in use does not ask for the prototypes.
        self.rest = () if isinstance(self.module, FeedForward) else (tuple(self.size),)
        self.rest += (False,) if isinstance(self.module, Mixer) else ()
        half = device.type == "cuda"
        self.arriving = torch.ones_like(self.tokens, dtype=torch.bfloat16 if half else torch.float32)

    def output(self, tokens: Tensor) -> Tensor:
        """Under autocast where that pays."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            found = self.call(tokens, *self.rest)
        return found[0] if isinstance(found, tuple) else found  # type: ignore[return-value]

    def forward(self) -> Tensor:
        """In use."""
        with torch.no_grad():
            return self.output(self.tokens)

    def training(self) -> None:
        """Forward and backward, of the tokens and of every parameter."""
        self.module.zero_grad(set_to_none=True)
        tokens = self.tokens.detach().requires_grad_()
        output = self.output(tokens)
        output.backward(self.arriving if output.dtype == self.arriving.dtype else self.arriving.to(output.dtype))


def version_costs(layer: Layer, name: str, shape: tuple[int, int, int, int], repeats: int) -> Iterator[VersionCost]:
    """A layer as it is, and the fused one in a CUDA graph as well."""
    device = layer.device
    forward = median_milliseconds(layer.forward, device, repeats)
    training = median_milliseconds(layer.training, device, repeats)
    peaks = peak_mib(layer.forward, device), peak_mib(layer.training, device)
    yield VersionCost(name, *shape, forward, training, *peaks)
    if name.startswith("CAP + LS") and name.endswith("fused") and device.type == "cuda":
        graphed = median_milliseconds(captured(layer.forward), device, repeats)
        both = median_milliseconds(captured(layer.training), device, repeats)
        yield VersionCost(name + ", CUDA graph", *shape, graphed, both, None, None)


def versions(device: torch.device, repeats: int, compiling: bool, named: str) -> list[VersionCost]:
    """All ways to compute all layers, on all batches; what fails is told and left out."""
    ways: list[tuple[str, Callable[[int], nn.Module], str, bool]] = [
        ("CAP + LS, plain", mixer, "plain", False),
        ("CAP + LS, plain, compiled", mixer, "plain", True),
        ("CAP + LS, fused", mixer, "fused", False),
        ("CAP + LS with prior, fused", partial(mixer, spatial_prior=True), "fused", False),
        ("CAP + LS with prior, K=49, fused", partial(mixer, count=49, spatial_prior=True), "fused", False),
        ("MLP of the block", FeedForward, "fused", False),
        ("self-attention", SelfAttention, "fused", False),
    ]
    measured: list[VersionCost] = []
    for shape in WORKLOADS[device.type]:
        for name, build, version, compiled in ways:
            if named not in name or (compiled and not compiling):
                continue
            layer = Layer(build, shape, device)
            if compiled:
                torch._dynamo.reset()
                layer.call = torch.compile(layer.module)
            try:
                with dispatch.use_version(version):
                    measured.extend(version_costs(layer, name, shape, repeats))
            except RuntimeError as error:  # too little memory, no compiler
                print(f"{name}, {shape}: {type(error).__name__}: {str(error)[:300]}")
    return measured


def speeds(device: torch.device) -> tuple[float, float]:
    """Operations a second of a large matrix product, and bytes a second of a large copy (read and written)."""
    on_cuda = device.type == "cuda"
    side = 8192 if on_cuda else 1024
    square = torch.randn(side, side, device=device, dtype=torch.bfloat16 if on_cuda else torch.float32)
    product = median_milliseconds(lambda: square @ square, device, 5)
    long = torch.empty(2**28 if on_cuda else 2**25, device=device)
    other = torch.empty_like(long)
    copy = median_milliseconds(lambda: other.copy_(long), device, 5)
    return 2e3 * side**3 / product, 2e3 * long.nbytes / copy


def floor(shape: tuple[int, int, int, int], device: torch.device, speed: tuple[float, float]) -> tuple[float, float]:
    """Milliseconds that CAP and LS (N=3) must take, forward and both, if each tensor is moved as rarely as can be.

    Forward: features are read three times in float32 (projections, cells, assignment); of tensors of their shape in the
    precision of products, keys and values are written once and read in every step, the attended values are written and
    read, and the output is written. Backward moves, and multiplies, twice as much.
    """
    images, height, width, channels = shape
    pixels = images * height * width * channels
    element = 2 if device.type == "cuda" else 4
    moved = pixels * (3 * 4 + element * (2 * (1 + 3) + 2 + 1))
    multiplied = images * operations(lambda: mixer(channels), (height, width), channels)
    forward = 1e3 * max(multiplied / speed[0], moved / speed[1])
    return forward, 3 * forward


def features_of_image(path: str | None) -> tuple[nn.Module, Tensor]:
    """The encoder of `fast` (random weights), and its features of an image, 1 x C x H x W at 1/4 of its size."""
    torch.manual_seed(0)
    encoder = build_network(preset("fast"), "flow").eval().encoder
    image = random_scene((256, 384), seed=3).render().first if path is None else as_image(path)
    with torch.inference_mode():
        features: Tensor = encoder(normalize_images(image)).features[0]
    return encoder, features.clone()


def convergence(path: str | None) -> dict[str, Convergence]:
    """EM in the settings of theory, and as the network runs it."""
    encoder, features = features_of_image(path)
    tokens, size = maps_to_tokens(features), map_size(features)
    unit = F.normalize(tokens, dim=-1)
    network: Prototyping = encoder.stages[0].blocks[0].mixer.prototyping  # type: ignore[index, union-attr, assignment]
    return {
        "cosine, unit features, no residual (theory)": measure_convergence(
            plain_em(tokens.shape[2], 100), unit, size, STEPS
        ),
        "CAP, features as they are, no residual": measure_convergence(
            plain_em(tokens.shape[2], 100, "cap"), tokens, size, STEPS
        ),
        "CAP as in the network: projections, residual": measure_convergence(network, tokens, size, STEPS),
    }


def updates(path: str | None) -> dict[str, list[tuple[float, float]]]:
    """Each block's update in an untrained `fast`: its norm over that of the tokens, and the share that varies.

    The share is that of its square which is left after its mean over the pixels is subtracted.
    """
    image = normalize_images(random_scene((256, 384), seed=3).render().first if path is None else as_image(path))
    found: dict[str, list[tuple[float, float]]] = {}
    for name, change in UPDATES.items():
        torch.manual_seed(0)
        encoder = build_network(preset("fast", encoder=change), "flow").eval().encoder
        rows = found.setdefault(name, [])

        def record(_: object, inputs: tuple[Tensor, ...], output: tuple[Tensor, object], rows: list = rows) -> None:
            tokens, update = inputs[0], output[0]
            varying = (update - update.mean(dim=1, keepdim=True)).norm() / update.norm()
            rows.append((float(update.norm() / tokens.norm()), float(varying) ** 2))

        for module in encoder.modules():
            if isinstance(module, Mixer):
                module.register_forward_hook(record)  # type: ignore[arg-type]
        with torch.no_grad():
            encoder(image)
    return found


def print_updates(console: Console, found: dict[str, list[tuple[float, float]]]) -> None:
    """One row a variant, one column a block."""
    table = Table(title="Update of each block before training: norm / that of the tokens, share that varies", box=None)
    table.add_column("variant")
    for rows in found.values():
        for index in range(len(rows)):
            table.add_column(f"block {index + 1}", justify="right")
        break
    for name, rows in found.items():
        table.add_row(name, *(f"{norm:.2f}, {share:.2%}" for norm, share in rows))
    console.print(table)


def print_costs(console: Console, measured: list[Cost], device: torch.device) -> None:
    """One row a map, then the growth from the last but one to the last."""
    table = Table(
        title=f"Forward, one map, {CHANNELS} channels, {HEADS} heads, K=100, N=3, fp32, on {device}", box=None
    )
    for column in ("mixer", "map", "GFLOPs", "ms", "peak extra MiB"):
        table.add_column(column, justify="left" if column == "mixer" else "right")
    for cost in measured:
        memory = "-" if cost.peak_mib is None else f"{cost.peak_mib:.0f}"
        shape = f"{cost.height}x{cost.width}"
        table.add_row(cost.mixer, shape, f"{cost.flops / 1e9:.3f}", f"{cost.milliseconds:.1f}", memory)
    for mixer in ("CAP", "self-attention"):
        for before, after in pairwise(cost for cost in measured if cost.mixer == mixer):
            grown = f"{before.height}x{before.width} to {after.height}x{after.width}"
            flops, duration = after.flops / before.flops, after.milliseconds / before.milliseconds
            table.add_row(f"{mixer} grows", grown, f"x {flops:.2f}", f"x {duration:.1f}", "")
    console.print(table)


def print_versions(
    console: Console,
    measured: list[VersionCost],
    device: torch.device,
    floors: dict[tuple[int, ...], tuple[float, float]],
) -> None:
    """One row a version, batch by batch, after the floor."""
    precision = "bfloat16 autocast" if device.type == "cuda" else "float32"
    table = Table(
        title=f"One layer, K=100, N=3, {precision}, on {device}: ms and peak extra MiB (x features)", box=None
    )
    for column in ("batch", "layer", "forward", "fwd + bwd", "peak forward", "peak fwd + bwd"):
        table.add_column(column, justify="left" if column in ("batch", "layer") else "right")

    def peak(mib: float | None, cost: VersionCost) -> str:
        features = cost.images * cost.height * cost.width * cost.channels * 4 / 2**20
        return "-" if mib is None else f"{mib:.0f} ({mib / features:.2f}x)"

    last = None
    for cost in measured:
        shape = (cost.images, cost.height, cost.width, cost.channels)
        if shape != last:
            both = [f"{each:.2f}" for each in floors[shape]]
            table.add_row("{} x {}x{} x {}".format(*shape), "CAP + LS, floor", *both, "", "")
        last = shape
        training = "-" if cost.training is None else f"{cost.training:.2f}"
        peaks = peak(cost.forward_mib, cost), peak(cost.training_mib, cost)
        table.add_row("", cost.version, f"{cost.forward:.2f}", training, *peaks)
    console.print(table)


def print_profile(console: Console, device: torch.device) -> None:
    """What takes longest in the fused version, forward and backward, on the first batch."""
    layer = Layer(mixer, WORKLOADS[device.type][0], device)
    for _ in range(3):
        layer.training()
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        layer.training()
        synchronize(device)
    spent = [
        (each.self_device_time_total if device.type == "cuda" else each.self_cpu_time_total, each.count, each.key)
        for each in profile.key_averages()
    ]
    if device.type == "cuda":
        kernels = [each for each in profile.events() if each.device_type == torch.autograd.DeviceType.CUDA]
        console.print(f"{len(kernels)} launches, {sum(each.device_time for each in kernels):.0f} us of the GPU")
    for microseconds, count, key in sorted(spent, reverse=True)[:40]:
        console.print(f"{microseconds:9.0f} us {count:4d} x {key[:110]}", highlight=False, markup=False)


def print_convergence(console: Console, seen: dict[str, Convergence]) -> None:
    """One row a setting."""
    table = Table(title=f"EM on features of an image, K=100, {STEPS} steps: log-likelihood in nats a pixel", box=None)
    for column in ("setting", "start", "step 1", "step 2", "step 3", "end", "falls", "kappa", "drift"):
        table.add_column(column, justify="left" if column == "setting" else "right")
    for setting, each in seen.items():
        steps = [f"{each.log_likelihood[n]:.3f}" for n in (0, 1, 2, 3, -1)]
        falls = sum(after < before - 1e-6 for before, after in pairwise(each.log_likelihood))
        table.add_row(setting, *steps, str(falls), f"{each.contraction:.3f}", f"{each.drift:.4f}")
    console.print(table)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--image", help="an image to take features of; by default a built-in scene")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="compiled versions as well")
    parser.add_argument("--only", choices=TABLES, help="one table alone")
    parser.add_argument("--layers", help="of the second table, those alone whose name has this in it")
    parser.add_argument("--profile", action="store_true", help="what takes longest in the fused version")
    arguments = parser.parse_args()
    device, console = torch.device(arguments.device), Console(width=140)
    if arguments.profile:
        print_profile(console, device)
        return
    compiling = device.type == "cuda" if arguments.compile is None else arguments.compile
    wanted = (arguments.only,) if arguments.only else TABLES
    measured = costs(device, arguments.repeats) if "growth" in wanted else []
    print_costs(console, measured, device)
    console.print()
    by_version = versions(device, arguments.repeats, compiling, arguments.layers or "") if "versions" in wanted else []
    speed = speeds(device)
    floors = {shape: floor(shape, device, speed) for shape in WORKLOADS[device.type]}
    print_versions(console, by_version, device, floors)
    seen = convergence(arguments.image) if "convergence" in wanted else {}
    console.print()
    print_convergence(console, seen)
    changes = updates(arguments.image) if "updates" in wanted else {}
    print_updates(console, changes)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {
            "device": str(device),
            "costs": [asdict(cost) for cost in measured],
            "versions": [asdict(cost) for cost in by_version],
            "updates": changes,
            "convergence": {setting: asdict(each) for setting, each in seen.items()},
        }
        write_atomically(arguments.json, json.dumps(figures, indent=1).encode())


if __name__ == "__main__":
    main()
