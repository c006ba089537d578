"""Measure whether memory grows over a long clip: resident memory after 500, 1,500 and 3,000 frames of each task.

    python benchmarks/long_clip.py --json out/long_clip.json
    python benchmarks/long_clip.py --tasks stabilize --size 360 640 --frames 100 300

A clip of a shaky camera is written once. Each task reads it and writes its own video in a separate process, as the
commands do. `stabilize` reads it twice, first to estimate the camera motion and then to write the stabilized clip, and
computes its scores. Memory is the resident set size of the process. The slope is taken between the first and the last
of --frames; an hour of video at 30 frames per second adds 108,000 times the slope.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from protoformer.depth.drawing import draw_depth_frame
from protoformer.flow.drawing import draw_flow_frame
from protoformer.io.files import write_atomically
from protoformer.loading import load
from protoformer.stabilization.camera_motion import FeatureDetector
from protoformer.stabilization.metrics import StabilityMeter
from protoformer.tracking.drawing import draw_targets
from protoformer.tracking.video import track_frames
from protoformer.video.reader import open_video
from protoformer.video.types import ImageArray, Video
from protoformer.video.writer import VideoWriter

FRAMES = (500, 1500, 3000)
SIZE = (64, 96)
MARGIN = 24
"""Width of the border of the texture around the frame, pixels."""


@dataclass(frozen=True)
class MemoryGrowth:
    """Resident memory during one pass of a task.

    Attributes:
        task: Name of the pass.
        size: (height, width) of the frames.
        mib: Resident memory, MiB, by number of processed frames.
        slope: Growth, kB per frame.
    """

    task: str
    size: tuple[int, int]
    mib: dict[int, float]
    slope: float


class MemoryMeter:
    """Records the resident memory of this process after given numbers of frames.

    Attributes:
        mib: Resident memory, MiB, by number of processed frames.
    """

    def __init__(self, frame_counts: tuple[int, ...]) -> None:
        self._frame_counts = frozenset(frame_counts)
        self.mib: dict[int, float] = {}

    def __call__(self, num_frames: int) -> None:
        """Record the memory if it is due after this number of frames."""
        if num_frames in self._frame_counts:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.mib[num_frames] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def shaky_frames(count: int, size: tuple[int, int]) -> Iterator[ImageArray]:
    """Yield frames of a texture under a camera that pans slowly and shakes by about a pixel: uint8 H x W x 3."""
    rng = np.random.default_rng(0)
    height, width = size[0] + 2 * MARGIN, size[1] + 2 * MARGIN
    layers = [
        cv2.resize(rng.uniform(0, 255, (height // cell, width // cell, 3)), (width, height)) for cell in (4, 8, 16)
    ]
    texture = np.mean(layers, axis=0).clip(0, 255).astype(np.uint8)
    for index in range(count):
        pan = 0.5 * MARGIN * np.sin(index / 60 + np.array([0.0, 1.0]))
        x, y = (size[1] - 1) / 2 + MARGIN + pan[0], (size[0] - 1) / 2 + MARGIN + pan[1]
        x, y = x + rng.normal(0, 1.0), y + rng.normal(0, 1.0)
        yield np.asarray(cv2.getRectSubPix(texture, size[::-1], (x, y)), np.uint8)


def run_flow(video: Video, output: Path, meters: dict[str, MemoryMeter]) -> None:
    """Compute and draw the flow of every pair."""
    steps = load("flow").flow_video(video, zoom=1)
    with VideoWriter(output, video) as writer:
        for num_frames, step in enumerate(steps, start=2):
            writer.write(draw_flow_frame(step, 8.0), step.time)
            meters["flow"](num_frames)


def run_depth(video: Video, output: Path, meters: dict[str, MemoryMeter]) -> None:
    """Compute and draw the temporally filtered depth of every frame."""
    steps = load("depth").depth_video(video)
    with VideoWriter(output, video) as writer:
        for num_frames, step in enumerate(steps, start=1):
            writer.write(draw_depth_frame(step, (0.5, 20.0)), step.time)
            meters["depth"](num_frames)


def run_track(video: Video, output: Path, meters: dict[str, MemoryMeter]) -> None:
    """Track and draw one target, which is in the middle of the first frame."""
    height, width = video.info.size
    box = (width / 3, height / 3, width / 3, height / 3)
    with VideoWriter(output, video) as writer:
        for num_frames, step in enumerate(track_frames(video, box, load("track").tracker), start=1):
            writer.write(draw_targets(step.frame, step.targets), step.time)
            meters["track"](num_frames)


def run_stabilize(video: Video, output: Path, meters: dict[str, MemoryMeter]) -> None:
    """Estimate the camera motion, write the stabilized clip and compute its scores."""
    predictor = load("stabilize")
    result = predictor.stabilize(video, progress=lambda done, _: meters["stabilize: analysis"](done))
    before, after, detector = StabilityMeter(), StabilityMeter(), FeatureDetector()
    with VideoWriter(output, video) as writer:
        for num_frames, (timestamp, shaky, stabilized) in enumerate(predictor.frames(video, result), start=1):
            writer.write(stabilized, timestamp)
            features = detector.detect(shaky)
            before.add(features, features)
            after.add(features, detector.detect(stabilized))
            meters["stabilize: writing"](num_frames)
    before.scores(), after.scores()


Run = Callable[[Video, Path, dict[str, MemoryMeter]], None]
TASKS: dict[str, tuple[Run, tuple[str, ...]]] = {
    "flow": (run_flow, ("flow",)),
    "depth": (run_depth, ("depth",)),
    "track": (run_track, ("track",)),
    "stabilize": (run_stabilize, ("stabilize: analysis", "stabilize: writing")),
}
"""Function that runs a task, and the names of its passes over the clip."""


def measure_task(task: str, clip: Path, frame_counts: tuple[int, ...]) -> list[MemoryGrowth]:
    """Measure one task in this process."""
    run, passes = TASKS[task]
    meters = {name: MemoryMeter(frame_counts) for name in passes}
    video = open_video(clip)
    run(video, clip.with_name(f"{task}.mp4"), meters)
    first, last = min(frame_counts), max(frame_counts)
    return [
        MemoryGrowth(name, video.info.size, meter.mib, 1024 * (meter.mib[last] - meter.mib[first]) / (last - first))
        for name, meter in meters.items()
    ]


def measure_task_in_subprocess(task: str, clip: Path, frame_counts: tuple[int, ...]) -> list[MemoryGrowth]:
    """Measure one task in a separate process, so that it does not start with the memory of another."""
    command = [sys.executable, __file__, "--only", task, str(clip), "--frames", *map(str, frame_counts)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = json.loads(output.splitlines()[-1])
    return [
        MemoryGrowth(
            row["task"], tuple(row["size"]), {int(count): mib for count, mib in row["mib"].items()}, row["slope"]
        )
        for row in rows
    ]


def build_table(results: list[MemoryGrowth], frame_counts: tuple[int, ...]) -> Table:
    """Build a table with one row per pass."""
    table = Table(title="Resident memory over a long clip", box=None)
    table.add_column("task")
    table.add_column("size")
    for count in frame_counts:
        table.add_column(f"MiB at {count}", justify="right")
    table.add_column("kB per frame", justify="right")
    for result in results:
        mib = [f"{result.mib[count]:.1f}" for count in frame_counts]
        table.add_row(result.task, f"{result.size[0]}x{result.size[1]}", *mib, f"{result.slope:.2f}")
    return table


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--frames",
        type=int,
        nargs="+",
        default=FRAMES,
        help="numbers of frames after which memory is measured; the largest is the length of the clip",
    )
    parser.add_argument(
        "--size", type=int, nargs=2, default=SIZE, metavar=("HEIGHT", "WIDTH"), help="size of the frames, pixels"
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="tasks to measure")
    parser.add_argument("--json", type=Path, help="output file for the figures")
    parser.add_argument("--only", nargs=2, metavar=("TASK", "CLIP"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    frame_counts = tuple(sorted(set(arguments.frames)))
    if len(frame_counts) < 2 or frame_counts[0] < 2:
        parser.error("--frames needs at least two different numbers, each at least 2.")
    if arguments.only:
        torch.set_num_threads(min(2, torch.get_num_threads()))
        task, clip = arguments.only
        print(json.dumps([asdict(result) for result in measure_task(task, Path(clip), frame_counts)]))
        return
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "clip.mp4"
        with VideoWriter(clip, fps=30) as writer:
            for image in shaky_frames(frame_counts[-1], tuple(arguments.size)):
                writer.write(image)
        results = [
            result for task in arguments.tasks for result in measure_task_in_subprocess(task, clip, frame_counts)
        ]
    Console(width=120).print(build_table(results, frame_counts))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps([asdict(result) for result in results], indent=1).encode())


if __name__ == "__main__":
    main()
