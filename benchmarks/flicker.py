"""Reduction of depth flicker by temporal filtering along the motion, and its cost.

    python benchmarks/flicker.py --json out/flicker.json
    python benchmarks/flicker.py --model depth

The clips are synthetic, with exact depth and motion. The input of the filter is the true depth with the fluctuations
of a network: a level for each frame and slow noise on each surface, 5 % each (one standard deviation). With --model the
input is that model's prediction on frames of the final pass, and the time of a frame includes the model.
Flicker: mean |ln d_t+1(p + flow) - ln d_t(p)| along the true motion; error: mean |ln d - ln truth|, after 4 frames;
lag: the error for an input without fluctuations, over the image and over independently moving objects.
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
"""Meters: the sky is put there."""
SETTLED = 4
"""Frames after which errors count."""


@dataclass(frozen=True)
class Flicker:
    """Of one family of scenes, in shares of depth; milliseconds: a frame of steadying, without the network."""

    family: str
    truth: float
    frame_by_frame: float
    steady: float
    error: float
    steady_error: float
    lag: float
    moving_lag: float
    milliseconds: float


def measured(
    family: str, frames: int, size: tuple[int, int], model: DepthPredictor | None = None, number: int = 1
) -> Flicker:
    """One clip of a family."""
    renderer = SyntheticScenes(family, size=size).renderer([number])
    views = [renderer.view(frame / renderer.scenes.fps) for frame in range(frames)]
    images = torch.cat([renderer.clean(view) for view in views])
    truth = torch.cat([view.depth for view in views]).clamp(max=MAX_DEPTH).log()
    motions = [renderer.motion(one, other) for one, other in itertools.pairwise(views)]
    flows = torch.cat([torch.where(motion.valid, motion.flow, 0.0) for motion in motions])
    visible = torch.cat([motion.valid & ~motion.occlusion for motion in motions])
    moving = torch.cat([renderer.instances(view) > 0 for view in views])[SETTLED:]

    def flicker(logs: Tensor) -> float:
        return depth_flicker(logs.exp(), flows, visible)

    def off(logs: Tensor) -> Tensor:
        return (logs - truth).abs()[SETTLED:]

    if model is None:
        wavering = truth + _waver(truth)
        follow = partial(_followed, images, wavering)
    else:
        taken = [renderer.final(view)[0] for view in views]
        wavering = _said(model, taken, intrinsics(renderer)[0], steady=False)
        follow = partial(_said, model, taken, intrinsics(renderer)[0], steady=True)
    began = time.perf_counter()
    steady = follow()
    spent = 1000 * (time.perf_counter() - began) / frames
    sure = off(_followed(images, truth))
    return Flicker(
        *(family, flicker(truth), flicker(wavering), flicker(steady)),
        *(float(off(wavering).mean()), float(off(steady).mean())),
        *(float(sure.mean()), float(sure[moving].mean()), spent),
    )


def _waver(truth: Tensor, amount: float = 0.05) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    levels = torch.randn(len(truth), 1, 1, 1, generator=rng)
    noise = F.interpolate(torch.randn(len(truth), 1, 6, 8, generator=rng), truth.shape[2:], mode="bilinear")
    return amount * (levels + noise)


def _followed(images: Tensor, logs: Tensor) -> Tensor:
    steady, scale = TemporalFilter(), torch.full_like(logs[0], math.log(0.1))
    return torch.stack([steady.follow(image, log, scale) for image, log in zip(images, logs, strict=True)])


def _said(model: DepthPredictor, images: list[Tensor], camera: Tensor, steady: bool) -> Tensor:
    video = model.depth_video(images, intrinsics=camera, steady=steady)
    return torch.stack([step.depth for step in video]).clamp(max=MAX_DEPTH).log()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--size", type=int, nargs=2, default=(240, 320), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--model", help="a depth model, such as depth, instead of the truth made to waver")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    model = None if arguments.model is None else load(arguments.model, task="depth")
    found = [measured(family, arguments.frames, tuple(arguments.size), model) for family in arguments.families]
    table = Table(title="Flicker of depth, per cent", box=None)
    for column in asdict(found[0]):
        table.add_column(column.replace("_", " "), justify="left" if column == "family" else "right")
    for each in found:
        family, *shares, spent = asdict(each).values()
        cells = ("-" if math.isnan(share) else f"{100 * share:.1f}" for share in shares)
        table.add_row(family, *cells, f"{spent:.0f}")
    Console(width=140).print(table)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps([asdict(each) for each in found], indent=1).encode())


if __name__ == "__main__":
    main()
