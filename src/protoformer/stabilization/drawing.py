"""Plots of camera paths before and after stabilization, and images of training windows."""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.motion_fields import CELL
from protoformer.geometry.warps import warp_back
from protoformer.stabilization.metrics import MIN_RELIABLE, StabilityScores
from protoformer.stabilization.result import CameraPath, StabilizationResult
from protoformer.synthetic.samples import StabilityWindows
from protoformer.viz.colormaps import Pixels, to_uint8
from protoformer.viz.plots import Curve, line_plot
from protoformer.viz.report import Figure, Page, Section, format_count


@dataclass(frozen=True)
class Signal:
    """One column of a camera path in a plot.

    Attributes:
        caption: Caption of the plot.
        unit: Unit of the values.
        min_span: Smallest height of the plot, in this unit.
    """

    caption: str
    unit: str
    min_span: float


SIGNALS = (
    Signal("horizontal camera path", "pixels to the right", 1.0),
    Signal("vertical camera path", "pixels up", 1.0),
    Signal("camera roll", "degrees clockwise", 0.2),
    Signal("scale, by forward motion or zoom of the camera, without the crop", "percent zoom", 0.5),
)
MAX_POINTS = 2000


def plot_path(result: StabilizationResult) -> tuple[Figure, ...]:
    """Plot each signal over time, before and after stabilization; curves are interrupted at cuts."""
    step = -(-len(result.times) // MAX_POINTS)
    seconds = [float(time) for time in result.times[::step]]
    both = (("before", result.path_before), ("after", align_stabilized_path(result)))
    paths = [(label, to_camera_motion(path)[::step]) for label, path in both]
    breaks = tuple(sorted({-(-cut // step) for cut in result.cuts if cut <= (len(seconds) - 1) * step}))
    figures = []
    for index, signal in enumerate(SIGNALS):
        columns = ((label, path[:, index].tolist()) for label, path in paths)
        curves = [Curve(label, tuple(zip(seconds, column, strict=True)), breaks) for label, column in columns]
        low, high = _value_range([y for curve in curves for _, y in curve.points], signal.min_span)
        plot = line_plot(curves, "seconds", signal.unit, y_range=(low, high))
        figures.append(Figure(plot, signal.caption))
    return tuple(figures)


def align_stabilized_path(result: StabilizationResult) -> CameraPath:
    """Return the stabilized path in the coordinates of the input path: T x 4, as `path_before`.

    A stabilized frame is sampled from the input by a similarity, so its content moves by the inverse. The crop, which
    is the same in all frames, is left out.
    """
    turns, shifts = result.corrections.turns, result.corrections.shifts
    moved = -shifts / turns
    offset: CameraPath = np.stack((moved.real, moved.imag, -np.angle(turns), -np.log(np.abs(turns))), axis=1)
    return result.path_before + offset


def to_camera_motion(path: CameraPath) -> CameraPath:
    """Convert image motion to camera motion: pixels to the right and up, degrees clockwise, percent of zoom."""
    x, y, angle, scale = path.T
    return np.stack((-x, y, -np.degrees(angle), 100 * np.expm1(scale)), axis=1)


def path_page(
    name: str, result: StabilizationResult, scores: tuple[StabilityScores, StabilityScores] | None = None
) -> Page:
    """Make a page with the camera path of a clip and, if given, the scores before and after."""
    before, after = result.acceleration
    text = (
        f"{format_count(len(result.times), 'frame')}; {result.cropping:.1%} of each side is shown. From frame to frame "
        f"the velocity changed by {before:.2f} px on average before, and by {after:.2f} px after. "
        f"{format_count(len(result.cuts), 'cut')}, "
        f"{format_count(len(result.bridged), 'frame')} interpolated (no texture)."
    )
    head = ("", "cropping", "distortion", "stability")
    table = () if scores is None else (head, *map(_row, ("before", "after"), scores))
    section = Section("Camera path", text, plot_path(result), table)
    return Page(f"{name}, stabilized", "Camera path before and after stabilization.", sections=(section,))


def describe_too_short(scores: StabilityScores) -> str:
    """Return the text that replaces the stability score of a clip that is too short."""
    frames = format_count(scores.frames, "frame")
    if scores.skipped_motions:
        frames = f"{scores.frames - scores.skipped_motions} of {frames} could be tracked"
    return f"too short to score: {frames}, and it takes {MIN_RELIABLE + 1}"


def _row(label: str, scores: StabilityScores) -> tuple[str, ...]:
    figures = (scores.cropping, scores.distortion, scores.stability_usual)
    cells = ["-" if value != value else f"{value:.3f}" for value in figures]
    return (label, *cells) if scores.is_reliable else (label, *cells[:-1], describe_too_short(scores))


def _value_range(values: list[float], min_span: float) -> tuple[float, float]:
    """Return the range of the values, widened symmetrically to `min_span` if it is smaller."""
    low, high = min(values), max(values)
    if high - low >= min_span:
        return low, high
    center = (low + high) / 2
    return center - min_span / 2, center + min_span / 2


def draw_window(windows: StabilityWindows, predicted: Tensor) -> Pixels:
    """Draw the first frame of a window: unstable and stable on top, warped and its error below.

    Args:
        windows: A single window, N = 1.
        predicted: 2 x 2 x h x w, pixels, warps of both frames.

    Returns:
        uint8 2H x 2W x 3; white is an error of a third of the range.
    """
    unstable, stable = windows.unstable[:1, 0], windows.stable[:1]
    warp = F.interpolate(predicted[:1], scale_factor=CELL, mode="bilinear")
    warped = warp_back(unstable, warp)
    error = 3 * (warped - stable).abs()
    rows = [
        np.concatenate([to_uint8(each[0]) for each in row], axis=1) for row in ((unstable, stable), (warped, error))
    ]
    return np.concatenate(rows)
