"""Time a frame and peak memory of flow over a video, beside torchvision's RAFT-large where torchvision is installed.

    python benchmarks/inference.py --json out/inference.json

Random weights and random frames: neither changes the time. A frame is encoded once and serves two pairs; RAFT-large
encodes both of every pair, as it comes. Frames are seen as large as they are: the network enlarges none.
Memory is what a frame takes beyond what was held before the first.
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


@dataclass(frozen=True)
class InferenceCost:
    """What a frame of (height, width) costs: milliseconds, the median; mib, the most memory, None where unknown."""

    name: str
    size: tuple[int, int]
    how: str
    milliseconds: float
    mib: float | None


def images(count: int, size: tuple[int, int]) -> Iterator[Tensor]:
    """Random frames, uint8: two by turns, so that no time goes into making them."""
    random = torch.Generator().manual_seed(0)
    made = torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8, generator=random)
    return (made[number % 2] for number in range(count))


def timed(step: Callable[[], object], device: torch.device, repeats: int) -> tuple[float, float | None]:
    """The median milliseconds of a step, after three to warm up on a GPU, and its memory."""
    mib = peak_mib(step, device)
    for _ in range(3 if device.type == "cuda" else 0):
        step()
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        step()
        synchronize(device)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times), mib


def time_protoformer(
    name: str, size: tuple[int, int], device: torch.device, precision: Precision, tile: TileSize, repeats: int
) -> InferenceCost:
    """Our own network over a stream of frames, one pair at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)
        model = load(name, device)
    video = model.flow_video(images(repeats + 6, size), batch_size=1, precision=precision, tile=tile, zoom=1)
    steps = iter(video)
    spent, mib = timed(lambda: next(steps), device, repeats)
    how = f"{'bf16' if video.half else 'float32'}, {video.plan}"
    return InferenceCost(f"{name}, {model.network.config.flow.num_updates} updates", size, how, spent, mib)


def raft(size: tuple[int, int], device: torch.device, precision: Precision, repeats: int) -> InferenceCost:
    """RAFT-large, as torchvision has it; its sides are multiples of 8."""
    from torchvision.models.optical_flow import raft_large  # type: ignore[import-not-found]

    network: nn.Module = raft_large(weights=None).to(device).eval()
    first, second = (2 * each[None].to(device) / 255 - 1 for each in images(2, size))
    half = use_half_precision(device, precision)

    @torch.no_grad()
    def step() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            flow: Tensor = network(first, second, num_flow_updates=RAFT_UPDATES)[-1]
        return flow.cpu()

    spent, mib = timed(step, device, repeats)
    how = f"{'bf16' if half else 'float32'}, whole images"
    return InferenceCost(f"RAFT-large, {RAFT_UPDATES} updates", size, how, spent, mib)


def measured(measure: Callable[[], InferenceCost]) -> Iterator[InferenceCost]:
    """What was measured, if it could be."""
    try:
        yield measure()
    except (RuntimeError, ImportError, ValueError) as error:
        print(f"{type(error).__name__}: {str(error)[:200]}")


def shown(costs: list[InferenceCost], device: torch.device) -> Table:
    """One row each."""
    table = Table(title=f"Flow over a video on {device}, {torch.get_num_threads()} threads", box=None)
    for column in ("size", "network", "how", "ms a frame", "peak MiB"):
        table.add_column(column, justify="right" if column in ("ms a frame", "peak MiB") else "left")
    for each in costs:
        mib = "-" if each.mib is None else f"{each.mib:.0f}"
        table.add_row(f"{each.size[0]}x{each.size[1]}", each.name, each.how, f"{each.milliseconds:.1f}", mib)
    return table


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="fast", help="a preset or a .safetensors file")
    parser.add_argument("--sizes", nargs="+", default=["x".join(map(str, size)) for size in SIZES], metavar="HxW")
    parser.add_argument("--devices", nargs="+", default=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
    parser.add_argument("--precision", choices=("auto", "full", "half"), default="auto")
    parser.add_argument("--tile", default="auto", help="auto, none or HxW")
    parser.add_argument("--repeats", type=int, default=3, help="frames that are timed")
    parser.add_argument("--raft", action=argparse.BooleanOptionalAction, default=True, help="RAFT-large beside")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    tile = parse_tile(arguments.tile, {"auto": "auto", "none": None})
    figures: dict[str, list[InferenceCost]] = {}
    for device in map(torch.device, arguments.devices):
        costs = figures.setdefault(str(device), [])
        for height, width in (map(int, text.split("x")) for text in arguments.sizes):
            size, repeats, precision = (height, width), arguments.repeats, arguments.precision
            costs.extend(
                measured(lambda: time_protoformer(arguments.model, size, device, precision, tile, repeats))  # noqa: B023
            )
            if arguments.raft:
                costs.extend(measured(lambda: raft(size, device, precision, repeats)))  # noqa: B023
        Console(width=140).print(shown(costs, device))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        plain = {device: [asdict(each) for each in costs] for device, costs in figures.items()}
        write_atomically(arguments.json, json.dumps(plain, indent=1).encode())


if __name__ == "__main__":
    main()
