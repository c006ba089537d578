"""Measure the rendering speed of synthetic scenes, the distribution of their motion, and the rate of defective scenes.

Prints three tables and, with --json, writes the same figures to a file:

    python benchmarks/synthetic.py --json out/synthetic.json
    python benchmarks/synthetic.py --device cuda --families objects drive room

The first table has image pairs per second at 368x496, including building the scenes, both images (clean or final pass),
forward flow and its occlusion. `objects` has 48 primitives. On a CPU one process per core renders. The first batches
are a warm-up; the time until the first one has its own column.

The second table has the histogram of flow magnitudes over many scenes, next to that of Sintel's test set. The latter is
the weighting of the errors s0-10, s10-40 and s40+ (defined by Butler et al. 2012) that gives the total error in
published results. With --sintel and --kitti, the folders of these benchmarks, the motion of their training sets is
included.

The third table has the fraction of scenes that are dark or bright (mean below 0.1 or above 0.9), clipped (more than a
quarter of the pixels black or white), textureless (mean difference between neighbors below one gray level), or covered
by one primitive to more than nine tenths.
"""

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader

from measuring import synchronize
from protoformer.datasets.registry import open_dataset
from protoformer.geometry.warps import pixel_grid
from protoformer.io.files import write_atomically
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes, flow_stream

SIZE = (368, 496)
BIN_EDGES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 100.0, 200.0, float("inf"))
"""Edges of the histogram of flow magnitudes, pixels."""
DEFECTS = ("dark", "bright", "clipped", "textureless", "one primitive")
SINTEL_ROWS = (
    # total, s0-10, s10-40, s40+: mean end-point errors of published methods on the test set, clean or final pass
    (3.748, 0.546, 2.110, 23.602),  # FlowFields, clean
    (1.609, 0.341, 1.036, 9.288),  # RAFT, clean
    (5.042, 0.799, 2.986, 31.070),  # PWC-Net, final
)


@dataclass(frozen=True)
class Speed:
    """Rendering speed of one family.

    Attributes:
        family: Family of scenes.
        render_pass: "clean" or "final".
        pairs_per_second: Image pairs per second.
        first_batch: Seconds until the first batch.
        primitives: Number of primitives in a scene.
    """

    family: str
    render_pass: str
    pairs_per_second: float
    first_batch: float
    primitives: int


def measure_speed(
    family: str, render_pass: str, batch_size: int, device: torch.device, num_workers: int, seconds: float
) -> Speed:
    """Measure the rendering speed of a family.

    Args:
        family: Family of scenes.
        render_pass: "clean" or "final".
        batch_size: Scenes per batch.
        device: Rendering device.
        num_workers: Number of worker processes; 0 renders in this process.
        seconds: Duration of the measurement.
    """
    scenes, final_fraction = SyntheticScenes(family, size=SIZE), float(render_pass == "final")
    stream = flow_stream(scenes, batch_size, device=device, final=final_fraction)
    start = time.perf_counter()
    batches = iter(DataLoader(stream, batch_size=None, num_workers=num_workers))
    next(batches)
    synchronize(device)
    first_batch = time.perf_counter() - start
    for _ in range(4 * max(1, num_workers)):  # batches prefetched while other workers were starting
        next(batches)
    synchronize(device)
    start, num_pairs = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        next(batches)
        num_pairs += batch_size
    synchronize(device)
    rate = num_pairs / (time.perf_counter() - start)
    return Speed(family, render_pass, rate, first_batch, sum(stream.scenes.scenes([0]).primitives.counts))


def compute_histogram(magnitudes: Tensor) -> list[float]:
    """Compute the fraction of magnitudes in each bin of `BIN_EDGES`."""
    edges = torch.tensor((*BIN_EDGES[:-1], 1e9), dtype=torch.float64)
    counts = torch.histogram(magnitudes.double().cpu(), edges).hist
    return [float(fraction) for fraction in counts / counts.sum()]


def scene_magnitudes(family: str, num_scenes: int, size: tuple[int, int], device: torch.device) -> Tensor:
    """Return the flow magnitudes of synthetic scenes, pixels, at every eighth pixel of every eighth row."""
    scenes, magnitudes = SyntheticScenes(family, seed=1, size=size).on(device), []
    pixels = pixel_grid(*size, device=device)[:, 4::8, 4::8].flatten(1)[None]
    for start in range(0, num_scenes, 8):
        renderer = scenes.renderer(range(start, min(num_scenes, start + 8)), device)
        first, second = (renderer.scenes.frame(index / renderer.scenes.fps, device=device) for index in (0, 1))
        flow, valid, _ = renderer.moved(renderer.cast(first, pixels), pixels, second)
        magnitudes.append(flow.norm(dim=1, keepdim=True)[valid].cpu())
    return torch.cat(magnitudes)


def dataset_magnitudes(name: str, root: Path) -> Tensor:
    """Return the flow magnitudes of all valid pixels of a dataset on disk, pixels."""
    dataset = open_dataset(name, root)
    magnitudes = []
    for index in range(len(dataset)):
        sample = dataset[index]
        magnitudes.append(sample.flow.norm(dim=1, keepdim=True)[sample.valid])
    return torch.cat(magnitudes)


def count_defects(family: str, render_pass: str, num_scenes: int, device: torch.device) -> dict[str, float]:
    """Return the fraction of scenes with each defect, in images of 96x128."""
    scenes, flags = SyntheticScenes(family, seed=2, size=(96, 128)).on(device), []
    for start in range(0, num_scenes, 8):
        renderer = scenes.renderer(range(start, min(num_scenes, start + 8)), device)
        view = renderer.view(0.0)
        image = renderer.final(view) if render_pass == "final" else renderer.clean(view)
        gray = image.mean(dim=1)
        clipped = ((image <= 0) | (image >= 1)).all(dim=1).float().mean(dim=(1, 2))
        gradient = 255 * (gray.diff(dim=1).abs().mean(dim=(1, 2)) + gray.diff(dim=2).abs().mean(dim=(1, 2))) / 2
        largest = torch.stack([index.bincount().max() / index.numel() for index in view.hits.index])
        brightness = gray.mean(dim=(1, 2))
        has_defect = (brightness < 0.1, brightness > 0.9, clipped > 0.25, gradient < 1.0, largest > 0.9)
        flags.append(torch.stack(has_defect, dim=1).float().cpu())
    return dict(zip(DEFECTS, torch.cat(flags).mean(dim=0).tolist(), strict=True))


def print_defects(console: Console, defects: dict[str, dict[str, float]], num_scenes: int) -> None:
    """Print a table with one row per family and pass."""
    table = Table(title=f"Scenes with a defect, percent of {num_scenes}", box=None)
    table.add_column("family, pass")
    for name in DEFECTS:
        table.add_column(name, justify="right")
    for source, fractions in defects.items():
        table.add_row(source, *(f"{100 * fraction:.1f}" for fraction in fractions.values()))
    console.print(table)


def sintel_histogram() -> list[float]:
    """Estimate the fractions of 0-10, 10-40 and 40+ pixels of motion in Sintel's test set from published errors."""
    rows = torch.tensor(SINTEL_ROWS, dtype=torch.float64)
    # Weights that sum to 1: total - e0 = (e1 - e0) w1 + (e2 - e0) w2.
    solution = torch.linalg.lstsq(rows[:, 2:] - rows[:, 1:2], rows[:, :1] - rows[:, 1:2]).solution[:, 0]
    return [1 - float(solution.sum()), *map(float, solution)]


def merge_bins(histogram: list[float]) -> list[float]:
    """Merge the bins of a histogram into 0-10, 10-40 and 40+ pixels."""
    ends = [BIN_EDGES.index(10.0), BIN_EDGES.index(40.0)]
    return [sum(histogram[: ends[0]]), sum(histogram[ends[0] : ends[1]]), sum(histogram[ends[1] :])]


def print_motion(console: Console, histograms: dict[str, list[float]]) -> None:
    """Print a table with one row per source."""
    table = Table(title="Flow magnitudes in pixels, percent of all pixels", box=None)
    table.add_column("source")
    for low, high in pairwise(BIN_EDGES):
        table.add_column(f"{low:g}+" if high == BIN_EDGES[-1] else f"{low:g}-{high:g}", justify="right")
    for name in ("0-10", "10-40", "40+"):
        table.add_column(name, justify="right", style="bold")
    for source, histogram in histograms.items():
        fractions = (*histogram, *merge_bins(histogram))
        table.add_row(source, *(f"{100 * fraction:.1f}" for fraction in fractions))
    blank = [""] * (len(BIN_EDGES) - 1)
    sintel = (f"{100 * fraction:.1f}" for fraction in sintel_histogram())
    table.add_row("Sintel test, from published errors", *blank, *sintel)
    console.print(table)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="device to measure on")
    parser.add_argument("--batch", type=int, help="batch size; by default 1 on a CPU and 64 on a GPU")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each speed measurement")
    parser.add_argument("--scenes", type=int, default=200, help="number of scenes for the second and third table")
    parser.add_argument("--families", nargs="*", default=["objects"], choices=list(FAMILIES), help="families of scenes")
    parser.add_argument(
        "--passes", nargs="*", default=["clean", "final"], choices=["clean", "final"], help="render passes"
    )
    parser.add_argument("--sintel", type=Path, help="folder of Sintel, to include its motion")
    parser.add_argument("--kitti", type=Path, help="folder of KITTI 2012, to include its motion")
    parser.add_argument("--json", type=Path, help="output file for the figures")
    arguments = parser.parse_args()
    device, console = torch.device(arguments.device), Console(width=150)
    batch_size = arguments.batch or (64 if device.type == "cuda" else 1)
    num_workers = 0 if device.type == "cuda" else (os.cpu_count() or 1)
    setting = f"on {device}, batch {batch_size}" + (f", {num_workers} workers" if num_workers else "")
    table = Table(title=f"Pairs of {SIZE[0]}x{SIZE[1]} with flow and occlusion, {setting}", box=None)
    for column in ("family", "pass", "primitives", "pairs per second", "first batch, s"):
        table.add_column(column, justify="left" if column in ("family", "pass") else "right")
    speeds = []
    for family in arguments.families:
        for render_pass in arguments.passes:
            speed = measure_speed(family, render_pass, batch_size, device, num_workers, arguments.seconds)
            speeds.append(speed)
            table.add_row(
                speed.family,
                speed.render_pass,
                str(speed.primitives),
                f"{speed.pairs_per_second:.1f}",
                f"{speed.first_batch:.1f}",
            )
    console.print(table)
    motion = {
        family: compute_histogram(scene_magnitudes(family, arguments.scenes, size, device))
        for family, size in (("objects", (436, 1024)), ("drive", (376, 1242)))
        if arguments.scenes
    }
    for name, root in (("sintel", arguments.sintel), ("kitti-2012", arguments.kitti)):
        if root is not None:
            motion[f"{name}, the samples given"] = compute_histogram(dataset_magnitudes(name, root))
    console.print()
    print_motion(console, motion)
    defects = {
        f"{family}, {render_pass}": count_defects(family, render_pass, arguments.scenes, device)
        for family in arguments.families
        for render_pass in arguments.passes
        if arguments.scenes
    }
    if defects:
        console.print()
        print_defects(console, defects, arguments.scenes)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {
            "device": str(device),
            "batch": batch_size,
            "speeds": [asdict(speed) for speed in speeds],
            "edges": list(BIN_EDGES[:-1]),
            "motion": motion,
            "sintel_test": sintel_histogram(),
            "defects": defects,
        }
        write_atomically(arguments.json, json.dumps(figures, indent=1).encode())


if __name__ == "__main__":
    main()
