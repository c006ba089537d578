"""Measure the reduction of depth flicker by temporal filtering along the motion, and its time per frame.

    python benchmarks/flicker.py --json out/flicker.json

The clips are synthetic, with exact depth and motion. The input of the filter is the true depth, perturbed like the
predictions of a network: by a level for each frame and by slow noise on each surface, 5 % each (one standard
deviation). With --model the input is that model's prediction on frames of the final pass, and the time per frame
includes the model.
Flicker: mean |ln d_t+1(p + flow) - ln d_t(p)| along the true motion; error: mean |ln d - ln truth|, after 4 frames;
lag: the error for an unperturbed input, over the image and over independently moving objects.
"""

import argparse
import itertools
import json
import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from protoformer.depth.metrics import depth_flicker
from protoformer.depth.predictor import DepthPredictor
from protoformer.depth.video import TemporalFilter
from protoformer.io.files import write_atomically
from protoformer.loading import load
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import intrinsics

FAMILIES = ("room", "handheld", "chase", "objects", "drive")
MAX_DEPTH = 200.0
"""Depth of the sky, and the maximum of all others, meters."""
WARM_UP_FRAMES = 4
"""Number of first frames that are left out of the errors."""


@dataclass(frozen=True)
class FlickerResult:
    """Result for one family of scenes; all figures but the time are fractions of depth.

    Attributes:
        family: Family of scenes.
        truth: Flicker of the true depth.
        frame_by_frame: Flicker of the input.
        steady: Flicker of the filtered depth.
        error: Error of the input.
        steady_error: Error of the filtered depth.
        lag: Error of the filtered true depth.
        moving_lag: The same over independently moving objects; NaN without any.
        milliseconds: Time per frame of the filter, with --model including the network.
    """

    family: str
    truth: float
    frame_by_frame: float
    steady: float
    error: float
    steady_error: float
    lag: float
    moving_lag: float
    milliseconds: float


def measure_flicker(
    family: str, num_frames: int, size: tuple[int, int], predictor: DepthPredictor | None = None, index: int = 1
) -> FlickerResult:
    """Measure one clip of a family.

    Args:
        family: Family of synthetic scenes.
        num_frames: Length of the clip.
        size: (height, width) of the frames.
        predictor: Computes the input of the filter; None perturbs the true depth.
        index: Index of the scene.
    """
    renderer = SyntheticScenes(family, size=size).renderer([index])
    views = [renderer.view(frame / renderer.scenes.fps) for frame in range(num_frames)]
    images = torch.cat([renderer.clean(view) for view in views])
    truth = torch.cat([view.depth for view in views]).clamp(max=MAX_DEPTH).log()
    motions = [renderer.motion(first, second) for first, second in itertools.pairwise(views)]
    flows = torch.cat([torch.where(motion.valid, motion.flow, 0.0) for motion in motions])
    visible = torch.cat([motion.valid & ~motion.occlusion for motion in motions])
    moving = torch.cat([renderer.instances(view) > 0 for view in views])[WARM_UP_FRAMES:]

    def flicker(log_depth: Tensor) -> float:
        return depth_flicker(log_depth.exp(), flows, visible)

    def error_map(log_depth: Tensor) -> Tensor:
        return (log_depth - truth).abs()[WARM_UP_FRAMES:]

    if predictor is None:
        unfiltered = truth + _random_fluctuations(truth)
        run_filter = partial(_filter_depth, images, unfiltered)
    else:
        frames = [renderer.final(view)[0] for view in views]
        unfiltered = _predict_depth(predictor, frames, intrinsics(renderer)[0], steady=False)
        run_filter = partial(_predict_depth, predictor, frames, intrinsics(renderer)[0], steady=True)
    start = time.perf_counter()
    filtered = run_filter()
    milliseconds = 1000 * (time.perf_counter() - start) / num_frames
    lag = error_map(_filter_depth(images, truth))
    return FlickerResult(
        *(family, flicker(truth), flicker(unfiltered), flicker(filtered)),
        *(float(error_map(unfiltered).mean()), float(error_map(filtered).mean())),
        *(float(lag.mean()), float(lag[moving].mean()), milliseconds),
    )


def _random_fluctuations(truth: Tensor, std: float = 0.05) -> Tensor:
    """Draw a level per frame and slow noise, to be added to log depth, T x 1 x H x W."""
    rng = torch.Generator().manual_seed(0)
    levels = torch.randn(len(truth), 1, 1, 1, generator=rng)
    noise = F.interpolate(torch.randn(len(truth), 1, 6, 8, generator=rng), truth.shape[2:], mode="bilinear")
    return std * (levels + noise)


def _filter_depth(images: Tensor, log_depth: Tensor) -> Tensor:
    """Filter the log depth of a clip, T x 1 x H x W, with equal confidence everywhere; images: T x 3 x H x W."""
    temporal_filter, log_scale = TemporalFilter(), torch.full_like(log_depth[0], math.log(0.1))
    return torch.stack(
        [temporal_filter.follow(image, log, log_scale) for image, log in zip(images, log_depth, strict=True)]
    )


def _predict_depth(predictor: DepthPredictor, images: list[Tensor], camera: Tensor, steady: bool) -> Tensor:
    """Predict the log depth of a clip, T x 1 x H x W; steady: with temporal filtering."""
    video = predictor.depth_video(images, intrinsics=camera, steady=steady)
    return torch.stack([step.depth for step in video]).clamp(max=MAX_DEPTH).log()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=24, help="length of a clip")
    parser.add_argument(
        "--size", type=int, nargs=2, default=(240, 320), metavar=("HEIGHT", "WIDTH"), help="size of the frames, pixels"
    )
    parser.add_argument("--model", help="depth model, such as depth; by default the true depth is perturbed instead")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES, help="families of scenes")
    parser.add_argument("--json", type=Path, help="output file for the figures")
    arguments = parser.parse_args()
    predictor = None if arguments.model is None else load(arguments.model, task="depth")
    size = tuple(arguments.size)
    results = [measure_flicker(family, arguments.frames, size, predictor) for family in arguments.families]
    table = Table(title="Depth flicker, percent; time per frame, ms", box=None)
    for column in asdict(results[0]):
        table.add_column(column.replace("_", " "), justify="left" if column == "family" else "right")
    for result in results:
        family, *fractions, milliseconds = asdict(result).values()
        cells = ("-" if math.isnan(fraction) else f"{100 * fraction:.1f}" for fraction in fractions)
        table.add_row(family, *cells, f"{milliseconds:.0f}")
    Console(width=140).print(table)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps([asdict(result) for result in results], indent=1).encode())


if __name__ == "__main__":
    main()
