"""Memory over a long clip: what a process holds after 500, 1,500 and 3,000 frames of each task.

    python benchmarks/long_clip.py --json out/long_clip.json
    python benchmarks/long_clip.py --tasks stabilize --size 360 640 --frames 100 300

A clip of a shaky camera is written once. Each task reads it and writes its own video in a process of its own, as the
commands do; `stabilize` reads it twice, first for the camera's motion and then to write the steady clip, and measures
its scores. Memory is the resident set of the process. The slope is taken between the first and the last of --frames:
what an hour of video needs is 108,000 times that, at 30 frames a second.
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
"""Pixels around the view of the camera within which it shakes."""
Measure = Callable[[int], None]
"""Takes the number of frames that are done."""


@dataclass(frozen=True)
class Growth:
    """Resident memory of one pass of a task, MiB, by the number of frames done; slope: kB a frame."""

    task: str
    size: tuple[int, int]
    mib: dict[int, float]
    slope: float


class Meter:
    """Notes the resident memory of this process when a pass has done some of the frames."""

    def __init__(self, at: tuple[int, ...]) -> None:
        self._at = frozenset(at)
        self.mib: dict[int, float] = {}

    def __call__(self, done: int) -> None:
        if done in self._at:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.mib[done] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def shaky_images(count: int, size: tuple[int, int]) -> Iterator[ImageArray]:
    """A textured wall as a camera sees it that pans slowly and shakes by a few pixels a frame."""
    random = np.random.default_rng(0)
    height, width = size[0] + 2 * MARGIN, size[1] + 2 * MARGIN
    layers = [
        cv2.resize(random.uniform(0, 255, (height // cell, width // cell, 3)), (width, height)) for cell in (4, 8, 16)
    ]
    wall = np.mean(layers, axis=0).clip(0, 255).astype(np.uint8)
    for number in range(count):
        pan = 0.5 * MARGIN * np.sin(number / 60 + np.array([0.0, 1.0]))
        x, y = (size[1] - 1) / 2 + MARGIN + pan[0], (size[0] - 1) / 2 + MARGIN + pan[1]
        x, y = x + random.normal(0, 1.0), y + random.normal(0, 1.0)
        yield np.asarray(cv2.getRectSubPix(wall, size[::-1], (x, y)), np.uint8)


def run_flow(video: Video, target: Path, passes: dict[str, Meter]) -> None:
    """Flow of every pair, written in colors."""
    video = load("flow").flow_video(video, zoom=1)
    with VideoWriter(target, video) as writer:
        for done, step in enumerate(video, start=2):
            writer.write(draw_flow_frame(step, 8.0), step.time)
            passes["flow"](done)


def run_depth(video: Video, target: Path, passes: dict[str, Meter]) -> None:
    """Steady depth of every frame, written in colors."""
    video = load("depth").depth_video(video)
    with VideoWriter(target, video) as writer:
        for done, step in enumerate(video, start=1):
            writer.write(draw_depth_frame(step, (0.5, 20.0)), step.time)
            passes["depth"](done)


def run_track(video: Video, target: Path, passes: dict[str, Meter]) -> None:
    """One target in the middle of the first frame, drawn into every frame."""
    height, width = video.info.size
    box = (width / 3, height / 3, width / 3, height / 3)
    with VideoWriter(target, video) as writer:
        for done, step in enumerate(track_frames(video, box, load("track").tracker), start=1):
            writer.write(draw_targets(step.frame, step.targets), step.time)
            passes["track"](done)


def run_stabilize(video: Video, target: Path, passes: dict[str, Meter]) -> None:
    """The motion of the camera, and then the steady clip with its scores."""
    model = load("stabilize")
    result = model.stabilize(video, progress=lambda done, _: passes["stabilize: analysis"](done))
    before, after, detector = StabilityMeter(), StabilityMeter(), FeatureDetector()
    with VideoWriter(target, video) as writer:
        for done, (moment, shaky, steady) in enumerate(model.frames(video, result), start=1):
            writer.write(steady, moment)
            seen = detector.detect(shaky)
            before.add(seen, seen)
            after.add(seen, detector.detect(steady))
            passes["stabilize: writing"](done)
    before.scores(), after.scores()


Run = Callable[[Video, Path, dict[str, Meter]], None]
TASKS: dict[str, tuple[Run, tuple[str, ...]]] = {
    "flow": (run_flow, ("flow",)),
    "depth": (run_depth, ("depth",)),
    "track": (run_track, ("track",)),
    "stabilize": (run_stabilize, ("stabilize: analysis", "stabilize: writing")),
}
"""What runs a task, and the names of its passes over the clip."""


def measured(task: str, clip: Path, at: tuple[int, ...]) -> list[Growth]:
    """Run one task in this process."""
    run, names = TASKS[task]
    passes = {name: Meter(at) for name in names}
    video = open_video(clip)
    run(video, clip.with_name(f"{task}.mp4"), passes)
    first, last = min(at), max(at)
    return [
        Growth(name, video.info.size, meter.mib, 1024 * (meter.mib[last] - meter.mib[first]) / (last - first))
        for name, meter in passes.items()
    ]


def measured_apart(task: str, clip: Path, at: tuple[int, ...]) -> list[Growth]:
    """Run one task in a process of its own, so that none inherits the memory of another."""
    command = [sys.executable, __file__, "--only", task, str(clip), "--frames", *map(str, at)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(output.splitlines()[-1])
    return [
        Growth(each["task"], tuple(each["size"]), {int(n): mib for n, mib in each["mib"].items()}, each["slope"])
        for each in found
    ]


def shown(growths: list[Growth], at: tuple[int, ...]) -> Table:
    """One row for each pass."""
    table = Table(title="Resident memory over a long clip", box=None)
    table.add_column("task")
    table.add_column("size")
    for number in at:
        table.add_column(f"MiB at {number}", justify="right")
    table.add_column("kB a frame", justify="right")
    for each in growths:
        mib = [f"{each.mib[number]:.1f}" for number in at]
        table.add_row(each.task, f"{each.size[0]}x{each.size[1]}", *mib, f"{each.slope:.2f}")
    return table


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, nargs="+", default=FRAMES, help="when memory is measured; the last ends")
    parser.add_argument("--size", type=int, nargs=2, default=SIZE, metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--only", nargs=2, metavar=("TASK", "CLIP"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    at = tuple(sorted(set(arguments.frames)))
    if len(at) < 2 or at[0] < 2:
        parser.error("give two numbers of frames or more, of 2 or more each")
    if arguments.only:
        torch.set_num_threads(min(2, torch.get_num_threads()))
        task, clip = arguments.only
        print(json.dumps([asdict(each) for each in measured(task, Path(clip), at)]))
        return
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "clip.mp4"
        with VideoWriter(clip, fps=30) as writer:
            for image in shaky_images(at[-1], tuple(arguments.size)):
                writer.write(image)
        growths = [each for task in arguments.tasks for each in measured_apart(task, clip, at)]
    Console(width=120).print(shown(growths, at))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps([asdict(each) for each in growths], indent=1).encode())


if __name__ == "__main__":
    main()
