"""Measure the time per frame and the peak memory of tracking one and three targets.

    python benchmarks/tracking.py --model fast --size 720x1280

Weights and frames are random, because neither changes the time of a search. The template update, which happens in every
fifth frame for confident targets, is not included. Memory is the peak of one frame beyond the memory in use before it.
"""

import argparse
import warnings

import torch

from measuring import median_milliseconds, peak_mib
from protoformer.errors import UntrainedWarning
from protoformer.loading import load
from protoformer.models.runtime import Precision, use_half_precision
from protoformer.tracking.predictor import TrackingPredictor

TARGETS = (1, 3)
"""Numbers of targets to measure."""


def make_boxes(count: int, size: tuple[int, int]) -> list[tuple[float, float, float, float]]:
    """Return `count` boxes (x, y, w, h) in a row, for frames of (height, width) pixels.

    A box is a twelfth of the frame's height high and half as wide as high.
    """
    height = size[0] / 12
    return [((index + 1) * size[1] / (count + 1), size[0] / 2, height / 2, height) for index in range(count)]


def measure(
    predictor: TrackingPredictor, count: int, size: tuple[int, int], precision: Precision, repeats: int
) -> tuple[float, float | None]:
    """Return the median milliseconds per frame with `count` targets, and the peak memory, MiB (None if unknown)."""
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8, generator=generator)
    tracker = predictor.tracker(frames[0], make_boxes(count, size), precision=precision)

    def step() -> None:
        tracker.update(frames[1])

    step()
    mib = peak_mib(step, predictor.device)
    return median_milliseconds(step, predictor.device, repeats), mib


def format_result(count: int, milliseconds: float, mib: float | None) -> str:
    """Format a measurement as a line of text."""
    targets = "1 target" if count == 1 else f"{count} targets"
    memory = "" if mib is None else f", {mib:.0f} MiB"
    return f"{targets}: {milliseconds:.1f} ms, {1000 / milliseconds:.1f} frames per second{memory}"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="fast", help="preset, name of packaged weights, or .safetensors file")
    parser.add_argument("--size", default="480x640", help="size of the frames, HxW in pixels")
    parser.add_argument("--device", default=None, help="device to measure on")
    parser.add_argument("--precision", default="auto", choices=("auto", "full", "half"), help="numeric precision")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch")
    parser.add_argument("--repeats", type=int, default=20, help="number of timed frames")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    height, width = (int(side) for side in arguments.size.split("x"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)
        predictor = load(arguments.model, arguments.device, task="track")
    dtype = "bfloat16" if use_half_precision(predictor.device, arguments.precision) else "float32"
    print(
        f"{arguments.model} on {predictor.device}, {dtype}, {torch.get_num_threads()} threads, {width}x{height} pixels"
    )
    for count in TARGETS:
        cost = measure(predictor, count, (height, width), arguments.precision, arguments.repeats)
        print(format_result(count, *cost))


if __name__ == "__main__":
    main()
