"""Measure time, memory and accuracy of all tasks, next to other methods, and the time of the commands.

    python benchmarks/speed.py --root data --busy --json out/speed.json

Frames are a texture under a shaking camera. Times are the median over the frames of a clip or over `--repeats` calls,
after one warm-up call (three on a GPU); the time of all cores is the minimum over the calls. Memory is the peak of a
call beyond the memory in use before it. Stabilization is timed from file to file, and a command from the start of its
process to its end.
`--root` has Sintel and Middlebury in their official layouts, for the end-point error of flow (all pairs have equal
weight). `--busy` repeats stabilization and the commands beside one spinning process per core. vid.stab needs an ffmpeg
that was built with it, and RAFT-large needs torchvision.
"""

import protoformer  # noqa: F401, I001 - before torch, because it sets how OpenMP threads wait
import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from inference import measure_raft
from measuring import peak_mib, synchronize
from protoformer.batch.workers import core_count
from protoformer.datasets.registry import open_dataset
from protoformer.errors import UntrainedWarning
from protoformer.flow.baselines import BASELINES, baseline_flow
from protoformer.flow.evaluation import evaluate_flow, predictor_method
from protoformer.flow.predictor import FAST, FlowPredictor
from protoformer.io.files import write_atomically
from protoformer.loading import load, load_stabilizer
from protoformer.stabilization.evaluation import run_vidstab, vidstab_missing
from protoformer.synthetic.textures import noise
from protoformer.tracking.baselines import BaselineTracker
from protoformer.video.pipeline import run_pipeline
from protoformer.video.reader import open_video
from protoformer.video.types import ImageArray
from protoformer.video.writer import VideoWriter

SIZES = {"440x1024": (440, 1024), "480p": (480, 854), "720p": (720, 1280), "1080p": (1080, 1920), "4k": (2160, 3840)}
"""(height, width) by name."""
SEGMENTED_FRAMES, STABILIZED_FRAMES = 24, 60
"""Lengths of the clips for segmentation and stabilization."""
BATCH_SIZE = 8
"""Image pairs per batch, in the measurement of batched flow."""
GPU_WARM_UP = 2
"""Further warm-up calls on a GPU, where kernels are compiled for new sizes."""
SHAKE = 3.0
"""Standard deviation of the camera's position from frame to frame, pixels."""
DATASETS = {"sintel": "Sintel", "middlebury": "Middlebury"}
"""Datasets for the accuracy of flow, and their folders in `--root`."""


@dataclass(frozen=True)
class Cost:
    """Cost of one method.

    Attributes:
        task: Task.
        method: Method.
        size: Name of the frame size.
        milliseconds: Elapsed time per frame, or of a command.
        cpu_milliseconds: Minimum time of all cores, which varies less than the elapsed time if other programs run.
        mib: Peak memory, MiB; None where it is unknown.
        accuracy: Score, with its unit; empty where it is unknown.
    """

    task: str
    method: str
    size: str
    milliseconds: float
    cpu_milliseconds: float
    mib: float | None = None
    accuracy: str = ""


def shaky_frames(size: tuple[int, int], count: int) -> list[ImageArray]:
    """Render a texture under a shaking camera: uint8 H x W x 3."""
    generator = torch.Generator().manual_seed(0)
    height, width = size
    coarse = noise(height // 2 + 32, width // 2 + 32, generator, falloff=0.8)
    texture = (255 * coarse).byte().permute(1, 2, 0).contiguous().numpy()
    texture = cv2.resize(texture, (width + 64, height + 64), interpolation=cv2.INTER_CUBIC)
    positions = SHAKE * np.random.default_rng(0).normal(size=(count, 2))
    translations = (np.array([[1, 0, -32 - x], [0, 1, -32 - y]]) for x, y in positions)
    return [np.asarray(cv2.warpAffine(texture, each, (width, height)), np.uint8) for each in translations]


def time_call(step: Callable[[], object], device: torch.device, repeats: int) -> tuple[float, float, float | None]:
    """Measure a call, with warm-up.

    Returns:
        The median elapsed milliseconds, the minimum milliseconds of all cores, and the peak memory of the warm-up, MiB.
    """
    mib = peak_mib(step, device)
    for _ in range(GPU_WARM_UP if device.type == "cuda" else 0):
        step()
    elapsed, cpu_times = zip(*(time_once(step, device) for _ in range(repeats)), strict=True)
    return statistics.median(elapsed), min(cpu_times), mib


def time_once(step: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Return the elapsed milliseconds of a call, and the CPU milliseconds of this process and its children."""
    synchronize(device)
    start, cpu_start = time.perf_counter(), sum(os.times()[:4])
    step()
    synchronize(device)
    return 1000 * (time.perf_counter() - start), 1000 * (sum(os.times()[:4]) - cpu_start)


def flow_costs(size: str, device: torch.device, repeats: int) -> Iterator[Cost]:
    """Measure flow of a video, which encodes each frame once, and of image pairs by other methods."""
    frames = shaky_frames(SIZES[size], repeats + GPU_WARM_UP + 3)
    predictor = load("flow", str(device))
    for name, options in (("protoformer flow", {"zoom": 1}), ("protoformer flow --fast", FAST)):
        video = iter(predictor.flow_video(iter(frames), batch_size=1, **options))
        yield Cost("flow", name, size, *time_call(lambda: next(video), device, repeats))  # noqa: B023
    if device.type == "cuda" and size != "4k":  # a single 4k pair uses the whole GPU
        yield _batched_flow_cost(predictor, size, device, repeats)
    pair = tuple(torch.from_numpy(frame).permute(2, 0, 1).float() / 255 for frame in frames[:2])
    for name in BASELINES:
        step = partial(baseline_flow, name, *pair)
        yield Cost("flow", f"OpenCV {name}", size, *time_call(step, torch.device("cpu"), repeats))
    try:
        cost = measure_raft(SIZES[size], device, "auto", repeats)
    except (ImportError, RuntimeError) as error:
        print(f"RAFT-large is left out: {error}", file=sys.stderr)
    else:
        yield Cost("flow", cost.name, size, cost.milliseconds, math.nan, cost.mib)


def _batched_flow_cost(predictor: FlowPredictor, size: str, device: torch.device, repeats: int) -> Cost:
    """Measure flow of a video with `BATCH_SIZE` pairs per batch."""
    frames = shaky_frames(SIZES[size], BATCH_SIZE * (repeats + GPU_WARM_UP + 1) + 1)
    video = iter(predictor.flow_video(iter(frames), batch_size=BATCH_SIZE, zoom=1))
    elapsed, cpu_time, mib = time_call(lambda: list(islice(video, BATCH_SIZE)), device, repeats)
    name = f"protoformer flow, batches of {BATCH_SIZE}"
    return Cost("flow", name, size, elapsed / BATCH_SIZE, cpu_time / BATCH_SIZE, mib)


def depth_costs(size: str, device: torch.device, repeats: int) -> Iterator[Cost]:
    """Measure the depth of an image."""
    (frame,) = shaky_frames(SIZES[size], 1)
    predictor = load("depth", str(device))
    for name, options in (("protoformer depth", {}), ("protoformer depth --no-mirrored", {"mirrored": False})):
        step = partial(predictor.depth, frame, **options)
        yield Cost("depth", name, size, *time_call(step, device, repeats))


def track_costs(size: str, device: torch.device, repeats: int) -> Iterator[Cost]:
    """Measure tracking of one object."""
    frames, (height, width) = shaky_frames(SIZES[size], 10 * repeats + GPU_WARM_UP + 3), SIZES[size]
    box = (width // 2 - 40, height // 2 - 30, 80, 60)
    tracker = load("track", str(device)).tracker(frames[0], box)
    steps: dict[str, Callable[[ImageArray], object]] = {"protoformer track": tracker.update}
    steps["protoformer track --method correlation"] = BaselineTracker("correlation", frames[0], box).update
    for name, update in steps.items():
        remaining = iter(frames[1:])
        step = lambda: update(next(remaining))  # noqa: B023, E731
        yield Cost("track", name, size, *time_call(step, device, 10 * repeats))


def segment_costs(size: str, device: torch.device, _: int = 1) -> Iterator[Cost]:
    """Measure the segmentation of moving objects in a clip."""
    frames = shaky_frames(SIZES[size], SEGMENTED_FRAMES)
    predictor = load("segment", str(device))
    times: list[float] = []
    next(iter(predictor.segment(frames[:4])))  # warm-up
    mib = peak_mib(lambda: times.extend(time_once(lambda: list(predictor.segment(frames)), device)), device)
    yield Cost("segment", "protoformer segment", size, *(each / len(frames) for each in times), mib)


def stabilize_costs(size: str, device: torch.device, _: int = 1) -> Iterator[Cost]:
    """Measure stabilization from file to file."""
    with tempfile.TemporaryDirectory() as folder:
        clip, output = Path(folder) / "clip.mp4", Path(folder) / "steady.mp4"
        frames = shaky_frames(SIZES[size], STABILIZED_FRAMES)
        with VideoWriter(clip, fps=30) as writer:
            for frame in frames:
                writer.write(frame)
        predictor, video = load_stabilizer(device=str(device)), open_video(clip)

        def stabilize(end: float | None = None) -> None:
            result = predictor.stabilize(video, end=end)
            run_pipeline(
                predictor.frames(video, result), lambda frame: frame.stabilized, VideoWriter(output, open_video(clip))
            )

        stabilize(end=0.2)
        times: list[float] = []
        mib = peak_mib(lambda: times.extend(time_once(stabilize, device)), device)
        yield Cost("stabilize", "protoformer stabilize", size, *(each / len(frames) for each in times), mib)
        if reason := vidstab_missing():
            print(f"vid.stab is left out: {reason}", file=sys.stderr)
            return

        def vidstab() -> None:
            with VideoWriter(output, open_video(clip)) as writer:
                for _, stabilized in run_vidstab(video, None):
                    writer.write(stabilized)

        times = [each / len(frames) for each in time_once(vidstab, device)]
        yield Cost("stabilize", f"vid.stab {_vidstab_version()}", size, *times)


def _vidstab_version() -> str:
    """Return the version of vid.stab, which is part of the name of its library; empty if it is not installed."""
    libraries = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    line = next((line for line in libraries.splitlines() if "libvidstab.so" in line), "")
    return line.split()[0].removeprefix("libvidstab.so.") if line else ""


def command_costs(repeats: int) -> Iterator[Cost]:
    """Measure commands from the start of their process to its end."""
    with tempfile.TemporaryDirectory() as folder:
        for index, frame in enumerate(shaky_frames((480, 640), 2)):
            cv2.imwrite(f"{folder}/{index}.png", frame)
        programs = {
            "protoformer --help": ["-m", "protoformer", "--help"],
            "pf.load('flow')": ["-c", "import protoformer as pf; pf.load('flow', 'cpu')"],
            "protoformer flow A B": ["-m", "protoformer", "flow", "0.png", "1.png", "--device", "cpu"],
            "protoformer flow A B --fast": ["-m", "protoformer", "flow", "0.png", "1.png", "--fast", "--device", "cpu"],
        }
        for name, arguments in programs.items():
            step = partial(subprocess.run, [sys.executable, *arguments], cwd=folder, check=True, capture_output=True)
            milliseconds, cpu_milliseconds, _ = time_call(step, torch.device("cpu"), repeats)
            yield Cost("start to end", name, "480x640" if "flow A" in name else "", milliseconds, cpu_milliseconds)


def flow_errors(root: Path, device: torch.device) -> dict[str, str]:
    """Return the mean end-point errors of each flow method on each dataset, as text."""
    predictor: FlowPredictor = load("flow", str(device))
    methods: dict[str, Any] = {
        "protoformer flow": predictor_method(predictor, zoom=1),
        "protoformer flow --fast": predictor_method(predictor, FAST["num_updates"], zoom=FAST["zoom"]),
        **{f"OpenCV {name}": partial(baseline_flow, name) for name in BASELINES},
    }
    texts: dict[str, str] = {}
    for name, method in methods.items():
        parts = []
        for dataset, folder in DATASETS.items():
            if (root / folder).is_dir():
                pairs = open_dataset(dataset, root / folder)
                samples = evaluate_flow(pairs, method, names=(dataset, name), root=root / folder).samples
                parts.append(f"{folder} {statistics.mean(sample.scores.epe for sample in samples):.2f}")
        texts[name] = ", ".join(parts) + " px" if parts else ""
    return texts


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy_cores() -> Iterator[None]:
    """Run one spinning process per core."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_spin, daemon=True) for _ in range(core_count())]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


MEASUREMENTS = {
    "flow": flow_costs,
    "depth": depth_costs,
    "track": track_costs,
    "segment": segment_costs,
    "stabilize": stabilize_costs,
}


def build_table(costs: list[Cost], device: torch.device) -> Table:
    """Build a table with one row per measurement."""
    load_average = os.getloadavg()[0]
    title = f"{device}, {torch.get_num_threads()} threads, {core_count()} cores, load average {load_average:.1f}"
    table = Table(title=title, box=None)
    for column in ("task", "method", "size", "ms", "CPU ms", "frames/s", "MiB", "accuracy"):
        is_number = column in ("ms", "CPU ms", "frames/s", "MiB")
        table.add_column(column, justify="right" if is_number else "left")
    for cost in costs:
        rate = "" if cost.task.startswith(("start", "busy: start")) else f"{1000 / cost.milliseconds:.1f}"
        mib = "" if cost.mib is None else f"{cost.mib:.0f}"
        times = (f"{each:.{0 if each >= 100 else 1}f}" for each in (cost.milliseconds, cost.cpu_milliseconds))
        table.add_row(cost.task, cost.method, cost.size, *times, rate, mib, cost.accuracy)
    return table


def busy_costs(quiet: list[Cost], size: str, device: torch.device, repeats: int) -> Iterator[Cost]:
    """Repeat stabilization and the commands beside spinning processes.

    Args:
        quiet: Costs without these processes; the slowdown relative to them is in the accuracy column.
        size: Name of the frame size.
        device: Device to run on.
        repeats: Number of timed calls.
    """
    with busy_cores():
        for cost in (*islice(stabilize_costs(size, device), 1), *command_costs(repeats)):
            key = (cost.task, cost.method, cost.size)
            baseline = next(each for each in quiet if (each.task, each.method, each.size) == key)
            slowdown = f"{cost.milliseconds / baseline.milliseconds:.1f} times as long"
            yield replace(cost, task=f"busy: {cost.task}", mib=None, accuracy=slowdown)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS), help="tasks to measure")
    parser.add_argument(
        "--sizes",
        nargs="+",
        choices=SIZES,
        default=[name for name in SIZES if name != "4k"],
        help="frame sizes; default: all but 4k",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="device to measure on")
    parser.add_argument("--repeats", type=int, default=3, help="number of timed calls")
    parser.add_argument("--commands", action=argparse.BooleanOptionalAction, default=True, help="also time commands")
    parser.add_argument(
        "--busy", action="store_true", help="repeat stabilization and the commands beside one spinning process per core"
    )
    parser.add_argument("--root", type=Path, help="folder of the datasets, for the accuracy of flow")
    parser.add_argument("--json", type=Path, help="output file for the figures")
    arguments = parser.parse_args()
    device, costs = torch.device(arguments.device), []
    errors = flow_errors(arguments.root, device) if arguments.root and "flow" in arguments.tasks else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)
        for task in arguments.tasks:
            for size in arguments.sizes:
                for cost in MEASUREMENTS[task](size, device, arguments.repeats):
                    costs.append(replace(cost, accuracy=errors.get(cost.method, "")))
                    print(
                        f"{cost.task}, {cost.method}, {size}: {cost.milliseconds:.0f} ms", file=sys.stderr, flush=True
                    )
        costs.extend(command_costs(arguments.repeats) if arguments.commands else ())
        if arguments.busy and arguments.commands and "stabilize" in arguments.tasks:
            costs.extend(busy_costs(list(costs), arguments.sizes[0], device, arguments.repeats))
    Console(width=160).print(build_table(costs, device))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps([asdict(cost) for cost in costs], indent=1).encode())


if __name__ == "__main__":
    main()
