"""The path of a camera before and after it was made steady, as curves on a page."""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.motion_fields import CELL
from protoformer.geometry.warps import warp_back
from protoformer.stabilization.metrics import TELLING, StabilityScores
from protoformer.stabilization.result import CameraPath, StabilizationResult
from protoformer.synthetic.samples import StabilityWindows
from protoformer.viz.html import Figure, Page, Section
from protoformer.viz.images import Pixels, to_uint8
from protoformer.viz.plots import Curve, line_plot
from protoformer.viz.text import format_count


@dataclass(frozen=True)
class Signal:
    """A column of a camera's path as people see it. least: height of a plot of what hardly moves, in this unit."""

    caption: str
    unit: str
    least: float


SIGNALS = (
    Signal("the camera's path from left to right", "pixels to the right", 1.0),
    Signal("the camera's path up and down", "pixels up", 1.0),
    Signal("how far the camera is turned", "degrees clockwise", 0.2),
    Signal(
        "how much larger the camera shows things, by going nearer or by its zoom; without the crop", "percent zoom", 0.5
    ),
)
MOST_POINTS = 2000


def plot_path(result: StabilizationResult) -> tuple[Figure, ...]:
    """A plot of each signal over time, before and after; every shot is a line of its own."""
    step = -(-len(result.times) // MOST_POINTS)
    seconds = [float(time) for time in result.times[::step]]
    both = (("before", result.path_before), ("after", subsample_path(result)))
    paths = [(label, path_in_pixels(path)[::step]) for label, path in both]
    breaks = tuple(sorted({-(-cut // step) for cut in result.cuts if cut <= (len(seconds) - 1) * step}))
    figures = []
    for place, signal in enumerate(SIGNALS):
        columns = ((label, path[:, place].tolist()) for label, path in paths)
        curves = [Curve(label, tuple(zip(seconds, column, strict=True)), breaks) for label, column in columns]
        low, high = _span([y for curve in curves for _, y in curve.points], signal.least)
        plot = line_plot(curves, "seconds", signal.unit, y_span=(low, high))
        figures.append(Figure(plot, signal.caption))
    return tuple(figures)


def subsample_path(result: StabilizationResult) -> CameraPath:
    """The steady path where it lies beside the shaky one: T x 4, as `path_before`.

    A steady frame is found in the shaky one by a similarity; what is seen moves by its inverse. The crop, which is the
    same in all frames, is left out.
    """
    turns, shifts = result.corrections.turns, result.corrections.shifts
    moved = -shifts / turns
    away: CameraPath = np.stack((moved.real, moved.imag, -np.angle(turns), -np.log(np.abs(turns))), axis=1)
    return result.path_before + away


def path_in_pixels(path: CameraPath) -> CameraPath:
    """The way of a camera from that of what it sees: pixels to the right and up, degrees clockwise, percent of zoom."""
    x, y, angle, scale = path.T
    return np.stack((-x, y, -np.degrees(angle), 100 * np.expm1(scale)), axis=1)


def path_page(
    name: str, result: StabilizationResult, scores: tuple[StabilityScores, StabilityScores] | None = None
) -> Page:
    """The curves of a clip of this name and, if they were measured, the scores before and after."""
    before, after = result.acceleration
    text = (
        f"{format_count(len(result.times), 'frame')}; {result.cropping:.1%} of each side is shown. From frame to frame "
        f"the velocity changed by {before:.2f} px on average, and now by {after:.2f} px. "
        f"{format_count(len(result.cuts), 'cut')}, "
        f"{format_count(len(result.bridged), 'frame')} interpolated (no texture)."
    )
    head = ("", "cropping", "distortion", "stability")
    table = () if scores is None else (head, *map(_row, ("before", "after"), scores))
    section = Section("The camera's path", text, plot_path(result), table)
    return Page(f"{name}, made steady", "How the camera moved, and how it moves now.", sections=(section,))


def describe_too_short(scores: StabilityScores) -> str:
    """What stands in the place of a stability that would tell nothing."""
    frames = format_count(scores.frames, "frame")
    if scores.skipped_motions:
        frames = f"{scores.frames - scores.skipped_motions} of {frames} could be followed"
    return f"too short to score: {frames}, and it takes {TELLING + 1}"


def _row(label: str, scores: StabilityScores) -> tuple[str, ...]:
    figures = (scores.cropping, scores.distortion, scores.stability_usual)
    cells = ["-" if value != value else f"{value:.3f}" for value in figures]
    return (label, *cells) if scores.is_telling else (label, *cells[:-1], describe_too_short(scores))


def _span(values: list[float], least: float) -> tuple[float, float]:
    """From the lowest to the highest value; what differs by less than `least` is in the middle of so much."""
    low, high = min(values), max(values)
    if high - low >= least:
        return low, high
    middle = (low + high) / 2
    return middle - least / 2, middle + least / 2


def draw_window(windows: StabilityWindows, found: Tensor) -> Pixels:
    """The first frame of a window: shaky and steady above, moved by the warp and off by how much below.

    found: 2 x 2 x h x w, pixels, the warps of both frames. Returns uint8 2H x 2W x 3; white is off by a third.
    """
    shaky, steady = windows.unstable[:1, 0], windows.stable[:1]
    warp = F.interpolate(found[:1], scale_factor=CELL, mode="bilinear")
    moved = warp_back(shaky, warp)
    off = 3 * (moved - steady).abs()
    rows = [np.concatenate([to_uint8(each[0]) for each in row], axis=1) for row in ((shaky, steady), (moved, off))]
    return np.concatenate(rows)
