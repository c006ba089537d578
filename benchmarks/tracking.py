"""Time a frame and peak memory of following one and three targets.

    python benchmarks/tracking.py --model fast --size 720x1280

Random weights and random frames: they do not change the time of a search. A target that is surely there is also looked
at again every fifth frame, which is not counted here. Memory is what a frame takes beyond what was held before.
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


def boxes(count: int, size: tuple[int, int]) -> list[tuple[float, float, float, float]]:
    """So many beside one another, of a twelfth of the frame's height and twice as tall as wide."""
    tall = size[0] / 12
    return [((place + 1) * size[1] / (count + 1), size[0] / 2, tall / 2, tall) for place in range(count)]


def measured(model: TrackingPredictor, count: int, size: tuple[int, int], precision: Precision, repeats: int) -> str:
    """A line for people."""
    random = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8, generator=random)
    tracker = model.tracker(frames[0], boxes(count, size), precision=precision)

    def step() -> None:
        tracker.update(frames[1])

    step()
    mib = peak_mib(step, model.device)
    milliseconds = median_milliseconds(step, model.device, repeats)
    many = "1 target" if count == 1 else f"{count} targets"
    memory = "" if mib is None else f", {mib:.0f} MiB"
    return f"{many}: {milliseconds:.1f} ms, {1000 / milliseconds:.1f} frames a second{memory}"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="fast", help="a preset or a .safetensors file")
    parser.add_argument("--size", default="480x640", help="HxW of the frames, pixels")
    parser.add_argument("--device", default=None)
    parser.add_argument("--precision", default="auto", choices=("auto", "full", "half"))
    parser.add_argument("--threads", type=int, default=None, help="of the CPU")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    height, width = (int(side) for side in options.size.split("x"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)
        model = load(options.model, options.device, task="track")
    products = "bfloat16" if use_half_precision(model.device, options.precision) else "float32"
    print(f"{options.model} on {model.device}, {products}, {torch.get_num_threads()} threads, {width}x{height} pixels")
    for count in TARGETS:
        print(measured(model, count, (height, width), options.precision, options.repeats))


if __name__ == "__main__":
    main()
