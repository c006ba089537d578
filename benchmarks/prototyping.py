"""What Cross-Attention Prototyping costs beside self-attention, and how its EM converges.

Prints two tables and, with --json, writes the same figures to a file:

    python benchmarks/prototyping.py --json out/prototyping.json
    python benchmarks/prototyping.py --device cuda --image photo.jpg

The first table has, over growing maps, the floating-point operations, the time and the peak extra memory of CAP
(projections and all EM steps) and of one self-attention layer (projections and torch's scaled_dot_product_attention),
forward, at the same width. The last rows say how much each grows when the pixels grow four times.

The second table follows EM for many steps on features of an image: the likelihood of the pixels after 0, 1, 2, 3 and
all steps, how often it fell, the contraction factor kappa of Proposition 1, and the drift (the last step's length over
the first's; near 1 there is no fixed point).
"""

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from protoformer.files import write_atomically
from protoformer.inference.images import as_image
from protoformer.model import Prototyping, build_flow, preset
from protoformer.model.attention import Attention
from protoformer.model.convergence import Convergence, measure_convergence, plain_em
from protoformer.model.flow import normalised
from protoformer.model.tokens import size_of, tokens_of
from protoformer.world import random_scene

SIZES = ((27, 60), (54, 120), (108, 240))
CHANNELS, HEADS = 128, 4
STEPS = 60


@dataclass(frozen=True)
class Cost:
    """One mixer on one map: floating-point operations, median milliseconds, peak extra MiB (None: cannot be told)."""

    mixer: str
    height: int
    width: int
    flops: int
    milliseconds: float
    peak_mib: float | None


class SelfAttention(nn.Module):
    """Attention from every pixel to every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(CHANNELS, HEADS)

    def forward(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        """tokens: B x HW x C to the same."""
        result: Tensor = self.attention(tokens, tokens)
        return result


def operations(build: Callable[[], nn.Module], size: tuple[int, int]) -> int:
    """Counted from shapes alone."""
    with torch.device("meta"):
        module, tokens = build().requires_grad_(False), torch.empty(1, size[0] * size[1], CHANNELS)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(tokens, size)
    return int(counter.get_total_flops())


def synchronize(device: torch.device) -> None:
    """Wait for the device, whose work is not done when a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_milliseconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """After one call to warm up."""
    run()
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def resident_mib(field: str) -> float:
    """A figure of this process's memory: VmRSS is now, VmHWM the most since the last reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def peak_mib(run: Callable[[], object], device: torch.device) -> float | None:
    """The most memory that a call takes beyond what was held before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # else the call is served from memory that an earlier one gave back
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest resident size so far
        before = resident_mib("VmRSS")
        run()
        return max(0.0, resident_mib("VmHWM") - before)
    except (OSError, AttributeError):  # not on Linux with glibc
        return None


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


def features_of_image(path: str | None) -> tuple[nn.Module, Tensor]:
    """The encoder of `fast` (random weights), and its features of an image, 1 x C x H x W at 1/4 of its size."""
    torch.manual_seed(0)
    encoder = build_flow(preset("fast")).eval().features
    image = random_scene((256, 384), seed=3).render().first if path is None else as_image(path)
    with torch.inference_mode():
        features: Tensor = encoder(normalised(image)).features[0]
    return encoder, features.clone()


def convergence(path: str | None) -> dict[str, Convergence]:
    """EM in the settings of theory, and as the network runs it."""
    encoder, features = features_of_image(path)
    tokens, size = tokens_of(features), size_of(features)
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
    arguments = parser.parse_args()
    device, console = torch.device(arguments.device), Console(width=140)
    measured = costs(device, arguments.repeats)
    print_costs(console, measured, device)
    seen = convergence(arguments.image)
    console.print()
    print_convergence(console, seen)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {
            "device": str(device),
            "costs": [asdict(cost) for cost in measured],
            "convergence": {setting: asdict(each) for setting, each in seen.items()},
        }
        write_atomically(arguments.json, json.dumps(figures, indent=1).encode())


if __name__ == "__main__":
    main()
