"""Speed of the synthetic scenes, distribution of their motion, and frequency of defective scenes.

Prints three tables and, with --json, writes the same figures to a file:

    python benchmarks/synthetic.py --json out/synthetic.json
    python benchmarks/synthetic.py --device cuda --families objects drive room

The first table has pairs of images per second, with flow and occlusion, at 368x496: building the scenes, both images
(clean or final pass), forward flow and its occlusion. `objects` has 48 primitives. On a CPU one process per core
renders. The first batches are not counted; the time until the first one has its own column.

The second table has the fraction of pixels by the length of their motion, over many scenes, next to that of Sintel and
of KITTI. Sintel's refers to its test set: the one weighting of the errors s0-10, s10-40 and s40+ that gives the total,
over the benchmark's published rows (Butler et al. 2012 define the three). With --sintel and --kitti, the folders of
these benchmarks, the motion of their training sets is counted too.

The third table has the fraction of scenes that are dark or bright (mean below 0.1 or above 0.9), clipped (more than a
quarter of the pixels at black or white), textureless (mean difference between neighbors below one gray level), or
covered by one primitive to nine tenths.
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
EDGES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 100.0, 200.0, float("inf"))
"""Pixels."""
DEFECTS = ("dark", "bright", "clipped", "textureless", "one primitive")
SINTEL_ROWS = (
    # total, s0-10, s10-40, s40+: mean end-point errors of published methods on the test set, clean or final pass
    (3.748, 0.546, 2.110, 23.602),  # FlowFields, clean
    (1.609, 0.341, 1.036, 9.288),  # RAFT, clean
    (5.042, 0.799, 2.986, 31.070),  # PWC-Net, final
)


@dataclass(frozen=True)
class Speed:
    """One family and pass: pairs a second, seconds until the first batch was there, primitives of a scene."""

    family: str
    look: str
    pairs_a_second: float
    first_batch: float
    primitives: int


def speed(family: str, look: str, batch: int, device: torch.device, workers: int, seconds: float) -> Speed:
    """Render batches for about so long; workers: processes that render, 0 for this one alone."""
    stream = flow_stream(SyntheticScenes(family, size=SIZE), batch, device=device, final=float(look == "final"))
    start = time.perf_counter()
    batches = iter(DataLoader(stream, batch_size=None, num_workers=workers))
    next(batches)
    synchronize(device)
    first = time.perf_counter() - start
    for _ in range(4 * max(1, workers)):  # what was rendered ahead while others began
        next(batches)
    synchronize(device)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        next(batches)
        done += batch
    synchronize(device)
    rate = done / (time.perf_counter() - start)
    return Speed(family, look, rate, first, sum(stream.scenes.scenes([0]).primitives.counts))


def shares(lengths: Tensor) -> list[float]:
    """The share of lengths between each two of EDGES."""
    counts = torch.histogram(lengths.double().cpu(), torch.tensor((*EDGES[:-1], 1e9), dtype=torch.float64)).hist
    return [float(share) for share in counts / counts.sum()]


def motion_magnitudes(family: str, scenes: int, size: tuple[int, int], device: torch.device) -> Tensor:
    """Return the length of the motion of every eighth pixel of every eighth row, over a number of scenes."""
    generator, rows = SyntheticScenes(family, seed=1, size=size).on(device), []
    pixels = pixel_grid(*size, device=device)[:, 4::8, 4::8].flatten(1)[None]
    for start in range(0, scenes, 8):
        renderer = generator.renderer(range(start, min(scenes, start + 8)), device)
        first, second = (renderer.scenes.frame(number / renderer.scenes.fps, device=device) for number in (0, 1))
        flow, valid, _ = renderer.moved(renderer.cast(first, pixels), pixels, second)
        rows.append(flow.norm(dim=1, keepdim=True)[valid].cpu())
    return torch.cat(rows)


def dataset_motion(name: str, root: Path) -> Tensor:
    """Return the length of all valid motion of a dataset on disk."""
    dataset = open_dataset(name, root)
    rows = []
    for number in range(len(dataset)):
        sample = dataset[number]
        rows.append(sample.flow.norm(dim=1, keepdim=True)[sample.valid])
    return torch.cat(rows)


def defects(family: str, look: str, scenes: int, device: torch.device) -> dict[str, float]:
    """Return the fraction of scenes with each defect, at 96 x 128."""
    generator, rows = SyntheticScenes(family, seed=2, size=(96, 128)).on(device), []
    for start in range(0, scenes, 8):
        renderer = generator.renderer(range(start, min(scenes, start + 8)), device)
        view = renderer.view(0.0)
        image = renderer.final(view) if look == "final" else renderer.clean(view)
        gray = image.mean(dim=1)
        clipped = ((image <= 0) | (image >= 1)).all(dim=1).float().mean(dim=(1, 2))
        rough = 255 * (gray.diff(dim=1).abs().mean(dim=(1, 2)) + gray.diff(dim=2).abs().mean(dim=(1, 2))) / 2
        most = torch.stack([each.bincount().max() / each.numel() for each in view.hits.index])
        brightness = gray.mean(dim=(1, 2))
        flags = (brightness < 0.1, brightness > 0.9, clipped > 0.25, rough < 1.0, most > 0.9)
        rows.append(torch.stack(flags, dim=1).float().cpu())
    return dict(zip(DEFECTS, torch.cat(rows).mean(dim=0).tolist(), strict=True))


def print_defects(console: Console, found: dict[str, dict[str, float]], scenes: int) -> None:
    """One row a family and pass."""
    table = Table(title=f"Scenes with a defect, per cent of {scenes}", box=None)
    table.add_column("family, pass")
    for name in DEFECTS:
        table.add_column(name, justify="right")
    for source, rows in found.items():
        table.add_row(source, *(f"{100 * share:.1f}" for share in rows.values()))
    console.print(table)


def sintel_shares() -> list[float]:
    """Of pixels that move 0 to 10, 10 to 40 and more pixels in Sintel's test set, from published errors."""
    rows = torch.tensor(SINTEL_ROWS, dtype=torch.float64)
    # Weights that sum to 1: total - e0 = (e1 - e0) w1 + (e2 - e0) w2.
    solution = torch.linalg.lstsq(rows[:, 2:] - rows[:, 1:2], rows[:, :1] - rows[:, 1:2]).solution[:, 0]
    return [1 - float(solution.sum()), *map(float, solution)]


def coarse(fine: list[float]) -> list[float]:
    """Shares of 0 to 10, 10 to 40 and more pixels."""
    ends = [EDGES.index(10.0), EDGES.index(40.0)]
    return [sum(fine[: ends[0]]), sum(fine[ends[0] : ends[1]]), sum(fine[ends[1] :])]


def print_motion(console: Console, motion: dict[str, list[float]]) -> None:
    """One row a source."""
    table = Table(title="Share of pixels by the length of their motion, per cent", box=None)
    table.add_column("source")
    for low, high in pairwise(EDGES):
        table.add_column(f"{low:g}+" if high == EDGES[-1] else f"{low:g}-{high:g}", justify="right")
    for name in ("0-10", "10-40", "40+"):
        table.add_column(name, justify="right", style="bold")
    for source, fine in motion.items():
        table.add_row(source, *(f"{100 * share:.1f}" for share in (*fine, *coarse(fine))))
    blank = [""] * (len(EDGES) - 1)
    table.add_row("Sintel test, from published errors", *blank, *(f"{100 * share:.1f}" for share in sintel_shares()))
    console.print(table)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, help="scenes rendered at once; by default 1 on a CPU and 64 on a GPU")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each row is measured")
    parser.add_argument("--scenes", type=int, default=200, help="scenes whose motion and defects are counted")
    parser.add_argument("--families", nargs="*", default=["objects"], choices=list(FAMILIES))
    parser.add_argument("--passes", nargs="*", default=["clean", "final"], choices=["clean", "final"])
    parser.add_argument("--sintel", type=Path, help="a folder of Sintel, to count its motion")
    parser.add_argument("--kitti", type=Path, help="a folder of KITTI 2012, to count its motion")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    device, console = torch.device(arguments.device), Console(width=150)
    batch = arguments.batch or (64 if device.type == "cuda" else 1)
    workers = 0 if device.type == "cuda" else (os.cpu_count() or 1)
    where = f"on {device}, batch {batch}" + (f", {workers} workers" if workers else "")
    table = Table(title=f"Pairs of {SIZE[0]}x{SIZE[1]} with flow and occlusion, {where}", box=None)
    for column in ("family", "pass", "primitives", "pairs a second", "first batch, s"):
        table.add_column(column, justify="left" if column in ("family", "pass") else "right")
    speeds = []
    for family in arguments.families:
        for look in arguments.passes:
            each = speed(family, look, batch, device, workers, arguments.seconds)
            speeds.append(each)
            row = (
                each.family,
                each.look,
                str(each.primitives),
                f"{each.pairs_a_second:.1f}",
                f"{each.first_batch:.1f}",
            )
            table.add_row(*row)
    console.print(table)
    motion = {
        family: shares(motion_magnitudes(family, arguments.scenes, size, device))
        for family, size in (("objects", (436, 1024)), ("drive", (376, 1242)))
        if arguments.scenes
    }
    for name, root in (("sintel", arguments.sintel), ("kitti-2012", arguments.kitti)):
        if root is not None:
            motion[f"{name}, the samples given"] = shares(dataset_motion(name, root))
    console.print()
    print_motion(console, motion)
    found = {
        f"{family}, {look}": defects(family, look, arguments.scenes, device)
        for family in arguments.families
        for look in arguments.passes
        if arguments.scenes
    }
    if found:
        console.print()
        print_defects(console, found, arguments.scenes)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {
            "device": str(device),
            "batch": batch,
            "speeds": [asdict(each) for each in speeds],
            "edges": list(EDGES[:-1]),
            "motion": motion,
            "sintel_test": sintel_shares(),
            "defects": found,
        }
        write_atomically(arguments.json, json.dumps(figures, indent=1).encode())


if __name__ == "__main__":
    main()
