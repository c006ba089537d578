"""Measure the time per frame and the peak memory of flow over a video, next to torchvision's RAFT-large.

    python benchmarks/inference.py --json out/inference.json

Weights and frames are random, because neither changes the time. Protoformer encodes each frame once for its two pairs;
RAFT-large encodes both frames of every pair. Frames are processed at their own size (zoom 1).
Memory is the peak of one frame beyond the memory in use before the first. A measurement that fails, such as RAFT-large
without torchvision, is reported and left out.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from measuring import peak_mib, synchronize
from protoformer.cli.options import parse_tile
from protoformer.errors import UntrainedWarning
from protoformer.flow.tiling import TileSize
from protoformer.io.files import write_atomically
from protoformer.loading import load
from protoformer.models.runtime import Precision, use_half_precision

SIZES = ((440, 1024), (1080, 1920))
RAFT_UPDATES = 12
CUDA_WARM_UP = 3
"""Further warm-up frames on a GPU."""


@dataclass(frozen=True)
class InferenceCost:
    """Cost of one frame.

    Attributes:
        name: Network and number of updates.
        size: (height, width) of the frames.
        mode: Precision and tiles.
        milliseconds: Median time per frame.
        mib: Peak memory, MiB; None where it is unknown.
    """

    name: str
    size: tuple[int, int]
    mode: str
    milliseconds: float
    mib: float | None


def random_frames(count: int, size: tuple[int, int]) -> Iterator[Tensor]:
    """Yield random frames, uint8 3 x H x W; two frames alternate, so that no time is spent on drawing them."""
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8, generator=generator)
    return (frames[index % 2] for index in range(count))


def measure_step(step: Callable[[], object], device: torch.device, repeats: int) -> tuple[float, float | None]:
    """Return the median milliseconds of a step after the warm-up, and the peak memory of the first, MiB."""
    mib = peak_mib(step, device)
    for _ in range(CUDA_WARM_UP if device.type == "cuda" else 0):
        step()
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        step()
        synchronize(device)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times), mib


def measure_protoformer(
    name: str, size: tuple[int, int], device: torch.device, precision: Precision, tile: TileSize, repeats: int
) -> InferenceCost:
    """Measure a flow predictor on a video, one pair at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)
        predictor = load(name, device)
    frames = random_frames(repeats + CUDA_WARM_UP + 3, size)
    video = predictor.flow_video(frames, batch_size=1, precision=precision, tile=tile, zoom=1)
    steps = iter(video)
    milliseconds, mib = measure_step(lambda: next(steps), device, repeats)
    mode = f"{'bf16' if video.half else 'float32'}, {video.plan}"
    full_name = f"{name}, {predictor.network.config.flow.num_updates} updates"
    return InferenceCost(full_name, size, mode, milliseconds, mib)


def measure_raft(size: tuple[int, int], device: torch.device, precision: Precision, repeats: int) -> InferenceCost:
    """Measure torchvision's RAFT-large; height and width must be multiples of 8."""
    from torchvision.models.optical_flow import raft_large  # type: ignore[import-not-found]

    network: nn.Module = raft_large(weights=None).to(device).eval()
    first, second = (2 * frame[None].to(device) / 255 - 1 for frame in random_frames(2, size))
    half = use_half_precision(device, precision)

    @torch.no_grad()
    def step() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            flow: Tensor = network(first, second, num_flow_updates=RAFT_UPDATES)[-1]
        return flow.cpu()

    milliseconds, mib = measure_step(step, device, repeats)
    mode = f"{'bf16' if half else 'float32'}, whole images"
    return InferenceCost(f"RAFT-large, {RAFT_UPDATES} updates", size, mode, milliseconds, mib)


def try_measure(measure: Callable[[], InferenceCost]) -> Iterator[InferenceCost]:
    """Yield a measurement, or report why it failed."""
    try:
        yield measure()
    except (RuntimeError, ImportError, ValueError) as error:
        print(f"{type(error).__name__}: {str(error)[:200]}")


def build_table(costs: list[InferenceCost], device: torch.device) -> Table:
    """Build a table with one row per measurement."""
    table = Table(title=f"Flow over a video on {device}, {torch.get_num_threads()} threads", box=None)
    for column in ("size", "network", "mode", "ms per frame", "peak MiB"):
        table.add_column(column, justify="right" if column in ("ms per frame", "peak MiB") else "left")
    for cost in costs:
        mib = "-" if cost.mib is None else f"{cost.mib:.0f}"
        table.add_row(f"{cost.size[0]}x{cost.size[1]}", cost.name, cost.mode, f"{cost.milliseconds:.1f}", mib)
    return table


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="fast", help="preset, name of packaged weights, or .safetensors file")
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["x".join(map(str, size)) for size in SIZES],
        metavar="HxW",
        help="sizes of the frames, pixels",
    )
    parser.add_argument(
        "--devices",
        nargs="+",
        default=["cpu", *(["cuda"] if torch.cuda.is_available() else [])],
        help="devices to measure on",
    )
    parser.add_argument("--precision", choices=("auto", "full", "half"), default="auto", help="numeric precision")
    parser.add_argument("--tile", default="auto", help="tile size: auto, none or HxW")
    parser.add_argument("--repeats", type=int, default=3, help="number of timed frames")
    parser.add_argument("--raft", action=argparse.BooleanOptionalAction, default=True, help="also measure RAFT-large")
    parser.add_argument("--json", type=Path, help="output file for the figures")
    arguments = parser.parse_args()
    tile = parse_tile(arguments.tile, {"auto": "auto", "none": None})
    results: dict[str, list[InferenceCost]] = {}
    for device in map(torch.device, arguments.devices):
        costs = results.setdefault(str(device), [])
        for height, width in (map(int, text.split("x")) for text in arguments.sizes):
            size, repeats, precision = (height, width), arguments.repeats, arguments.precision
            costs.extend(
                try_measure(lambda: measure_protoformer(arguments.model, size, device, precision, tile, repeats))  # noqa: B023
            )
            if arguments.raft:
                costs.extend(try_measure(lambda: measure_raft(size, device, precision, repeats)))  # noqa: B023
        Console(width=140).print(build_table(costs, device))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        plain = {device: [asdict(cost) for cost in costs] for device, costs in results.items()}
        write_atomically(arguments.json, json.dumps(plain, indent=1).encode())


if __name__ == "__main__":
    main()
