"""Line plots as SVG, bar plots, and the summary image of a training run, drawn with matplotlib."""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from protoformer.viz.colormaps import Pixels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

COLORS = ("#1f6fb2", "#c8553d", "#3a7d44", "#8367c7", "#b8860b")
BAR_COLOR, BASELINE_COLOR, REFERENCE_COLOR = "#9db8d2", COLORS[0], COLORS[1]
PAPER, INK, SOFT, LINE = "#fafaf8", "#1d2733", "#5c6b7a", "#d9e0e7"
IMAGE_WIDTH = 1600
"""Width of the images of bar plots and training runs, in pixels."""
MAX_MARKERS = 20
"""Maximum number of points of a curve that get markers."""
MAX_TICKS = 12
"""Maximum number of integers that are all marked on the horizontal axis."""
METRIC_TITLES = {
    "epe": "end-point error, pixels",
    "iou": "IoU with the true box",
    "abs_rel": "absolute relative depth error",
}
_METADATA = ("Date", "Creator", "Format", "Type")
_STYLE: Any = {
    **{"figure.dpi": 100, "figure.facecolor": PAPER, "axes.facecolor": "none", "text.color": INK, "grid.color": LINE},
    **{"figure.constrained_layout.w_pad": 0.12, "figure.constrained_layout.h_pad": 0.08},
    **{"font.size": 10, "axes.titlesize": 12, "figure.titlesize": 20, "lines.linewidth": 2, "lines.markersize": 4},
    **{"legend.frameon": False, "legend.labelcolor": "linecolor", "axes.xmargin": 0, "axes.ymargin": 0},
    **{"font.sans-serif": ["DejaVu Sans"], "text.parse_math": False, "axes.unicode_minus": False},
    **{"svg.fonttype": "none", "svg.hashsalt": "protoformer"},  # text is text, and the same plot gives the same file
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color"), SOFT),
    **{f"axes.spines.{side}": False for side in ("left", "top", "right", "bottom")},
    **dict.fromkeys(("xtick.bottom", "ytick.left"), False),
}
_RC_LOCK = Lock()


@dataclass(frozen=True)
class Curve:
    """A curve of a plot.

    Attributes:
        name: The name in the legend.
        points: Points (x, y).
        breaks: Increasing indices, from 1, of points that are not connected with the previous point.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    breaks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bar:
    """A bar of a bar plot.

    Attributes:
        label: The text below the bar.
        value: Its height; None: no bar.
        deviation: Half the length of the error bar; None: no error bar.
        text: The text above the bar.
        reference: Height of the reference marker beside the bar; None: no marker.
        reference_text: The text below the marker.
        is_baseline: Whether the bar is highlighted.
    """

    label: str
    value: float | None
    deviation: float | None
    text: str
    reference: float | None
    reference_text: str
    is_baseline: bool


def line_plot(
    curves: Sequence[Curve],
    x_label: str,
    y_label: str,
    log_y: bool = False,
    y_range: tuple[float, float] | None = None,
) -> str:
    """Plot curves as SVG, with a legend if there are several.

    Args:
        curves: The curves. Points that are not finite are left out.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        log_y: Whether the vertical axis is logarithmic; values below 1e-12 are drawn there.
        y_range: Lowest and highest value of the vertical axis; None: those of the curves.

    Returns:
        The text of an SVG element, whose axes follow the colors of the page around it.
    """
    columns = max(1, 64 // (4 + max(len(curve.name) for curve in curves)))
    rows = math.ceil(len(curves) / columns) if len(curves) > 1 else 0
    with _new_figure(480 / 72, (260 + 16 * rows) / 72) as figure:
        axes = figure.subplots()
        handles = draw_curves(axes, curves, log_y, y_range)
        axes.set(xlabel=x_label, ylabel=y_label)
        if handles and rows:
            figure.legend(*zip(*handles, strict=True), loc="outside upper left", ncols=columns)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(_METADATA))
    text = buffer.getvalue()
    view_box = re.search(r'viewBox="[^"]*"', text)
    assert view_box is not None
    body = re.sub(r"<style.*?</style>", "", text[text.index("<defs>") :], flags=re.DOTALL)
    # Several plots may be part of one page, so groups have classes instead of ids.
    body = re.sub(r'<g id="([a-z]+)[^"]*"', r'<g class="plot-\1"', _inline_markers(body))
    body = body.replace(SOFT, f"var(--soft, {SOFT})").replace(LINE, f"var(--line, {LINE})")
    return f'<svg {view_box[0]} role="img" aria-label="{escape(f"{y_label} over {x_label}")}">{body}'


def _inline_markers(svg: str) -> str:
    """Replace every reference to a marker (`<use>`) by the marker's path, so that a plot contains no link."""
    paths = dict(re.findall(r'<path id="(\w+)" (d="[^"]*")[^>]*/>', svg))
    svg = re.sub(r"<defs>.*?</defs>", "", svg, flags=re.DOTALL)

    def inline(reference: re.Match[str]) -> str:
        attributes = dict(re.findall(r'([\w:]+)="([^"]*)"', reference[0]))
        shape = paths[attributes["xlink:href"].removeprefix("#")]
        style = attributes.get("style", "")
        return (
            f'<path class="marker" transform="translate({attributes["x"]} {attributes["y"]})" {shape} style="{style}"/>'
        )

    return re.sub(r"<use [^>]*/>", inline, svg)


def draw_curves(
    axes: "Axes", curves: Sequence[Curve], log_y: bool = False, y_range: tuple[float, float] | None = None
) -> list[tuple["Line2D", str]]:
    """Draw curves into axes whose limits are those of the data; returns a line and the name of each curve.

    The arguments are those of `line_plot`.
    """
    from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator

    handles, all_points = [], []
    for index, curve in enumerate(curves):
        color, marker = COLORS[index % len(COLORS)], "o" if len(curve.points) <= MAX_MARKERS else ""
        lines = []
        for first, last in pairwise((0, *curve.breaks, len(curve.points))):
            points = [(x, y) for x, y in curve.points[first:last] if math.isfinite(x) and math.isfinite(y)]
            if log_y:
                points = [(x, max(y, 1e-12)) for x, y in points]
            if points:
                style: dict[str, Any] = {"color": color, "marker": marker, "gid": "curve", "clip_on": False}
                lines += axes.plot(*zip(*points, strict=True), **style)
                all_points += points
        handles += [(line, curve.name) for line in lines[:1]]
    if not all_points:
        axes.text(0.5, 0.5, "no data", ha="center", color=SOFT, transform=axes.transAxes)
        axes.set(xticks=(), yticks=())
        return []
    xs, ys = np.array(all_points).T
    axes.set_ylim(y_range)
    axes.grid(axis="y", clip_on=False)
    if log_y:
        axes.set_yscale("log")
        num_powers = math.floor(math.log10(ys.max()) + 1e-9) - math.ceil(math.log10(ys.min()) - 1e-9) + 1
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if num_powers > 1 else (1.0, 2.0, 5.0), numticks=8))
        axes.yaxis.set_minor_locator(FixedLocator([]))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=(1, 2, 2.5, 5, 10)))
    positions = np.unique(xs)
    few = len(positions) <= MAX_TICKS and bool((positions == positions.round()).all())
    axes.xaxis.set_major_locator(FixedLocator(positions.tolist()) if few else MaxNLocator(4, steps=(1, 2, 2.5, 5, 10)))
    axes.xaxis.set_major_formatter("{x:.6g}")
    axes.yaxis.set_major_formatter("{x:.6g}")
    return handles


def bar_plot(panels: Mapping[str, Sequence[Bar]], title: str, caption: str, names: tuple[str, str]) -> Pixels:
    """Draw panels of bars with error bars, and a marker with a reference value beside each bar.

    Args:
        panels: The bars of each panel by its title; all axes start at 0.
        title: The text at the top.
        caption: The text below the title.
        names: Names of the bars and of the markers in the legend.

    Returns:
        uint8 H x 1600 x 3 RGB.
    """
    from matplotlib.patches import Patch

    rows = math.ceil(len(panels) / 2)
    with _new_figure(IMAGE_WIDTH / 100, 1.3 + 3.2 * rows) as figure:
        figure.suptitle(title, x=0.01, ha="left")
        figure.supxlabel(caption, x=0.01, ha="left", size=10, color=SOFT)
        grid = figure.subplots(rows, 2, squeeze=False).flat
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for axes, (name, bars) in zip(grid, panels.items(), strict=False):
            axes.set_title(name, loc="left")
            for index, bar in enumerate(bars):
                if bar.value is not None:
                    color = BASELINE_COLOR if bar.is_baseline else BAR_COLOR
                    drawn = axes.bar(index, bar.value, 0.44, yerr=bar.deviation, color=color, ecolor=INK, capsize=6)
                    axes.bar_label(drawn, [bar.text], padding=3)
            references = [(index + 0.36, bar) for index, bar in enumerate(bars) if bar.reference is not None]
            heights = [bar.reference for _, bar in references]
            markers = axes.plot([x for x, _ in references], heights, "D", color=REFERENCE_COLOR, markersize=9)
            for x, bar in references:
                below = {"xytext": (0, -9), "textcoords": "offset points", "ha": "center", "va": "top"}
                axes.annotate(bar.reference_text, (x, bar.reference), **below, color=REFERENCE_COLOR)
            axes.set(xlim=(-0.5, len(bars) - 0.5), ylim=(0, 1.15 * axes.dataLim.ymax))
            axes.set_xticks(range(len(bars)), [bar.label for bar in bars], color=INK)
            axes.yaxis.set_visible(False)
            axes.spines["bottom"].set(visible=True, color=LINE)
        entries = [(Patch(color=BASELINE_COLOR), names[0]), *([(markers[0], names[1])] if references else [])]
        figure.legend(*zip(*entries, strict=True), loc="outside upper right", ncols=2, labelcolor=INK)
        return _to_pixels(figure)


def training_summary(records: Sequence[dict[str, Any]], images: Sequence[Pixels], title: str, caption: str) -> Pixels:
    """Draw the loss, the first metric with its validations, and the learning rate of a run over the steps.

    Args:
        records: Records of the training log.
        images: Images of any sizes, uint8 HxWx3, shown side by side below the plots.
        title: The text at the top.
        caption: The text above the images, if there are any.

    Returns:
        uint8 H x 1600 x 3 RGB.
    """
    steps = [record for record in records if record.get("event") == "step"]
    metric = next((name for record in steps for name in record.get("metrics", {})), "epe")
    validation: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        for key, value in record.items() if record.get("event") == "validation" else ():
            if key.split()[-1:] == [metric] and value is not None:  # "epe", or of a part of the dataset, "clean epe"
                name = f"{record['dataset']} {key.removesuffix(metric)}".strip()
                validation.setdefault(name, []).append((float(record["step"]), float(value)))
    metrics = [record | {"metric": record.get("metrics", {}).get(metric)} for record in steps]
    panels = {
        "loss": [_step_curve("loss", steps)],
        METRIC_TITLES.get(metric, metric): [
            _step_curve("metric", metrics, "training"),
            *(Curve(name, tuple(points)) for name, points in validation.items()),
        ],
        "learning rate": [_step_curve("lr", steps)],
    }
    aspects = [image.shape[1] / image.shape[0] for image in images]
    image_height = min(6.4, 15.4 / sum(aspects)) + 0.3 if images else 0
    with _new_figure(IMAGE_WIDTH / 100, 4 + image_height) as figure:
        figure.suptitle(title, x=0.01, ha="left")
        rows: Any = figure.subfigures(2, height_ratios=(3.6, image_height)) if images else [figure]
        for axes, (name, curves) in zip(rows[0].subplots(1, len(panels)), panels.items(), strict=True):
            axes.set_title(name, loc="left")
            handles = draw_curves(axes, curves, log_y=name != "learning rate")
            if len(handles) > 1:
                axes.legend(*zip(*handles, strict=True))
        if images:
            grid = rows[1].subplots(1, len(images), width_ratios=aspects, squeeze=False)[0]
            grid[0].set_title(caption, loc="left")
            for axes, image in zip(grid, images, strict=True):
                axes.imshow(image)
                axes.set_axis_off()
        return _to_pixels(figure)


def _step_curve(key: str, records: Sequence[dict[str, Any]], name: str = "") -> Curve:
    values = ((float(record["step"]), record.get(key)) for record in records)
    return Curve(name or key, tuple((step, float(value)) for step, value in values if value is not None))


@contextmanager
def _new_figure(width: float, height: float) -> Iterator["Figure"]:
    """Yield a figure of a size in inches; one thread at a time, because matplotlib keeps its settings in a global."""
    import matplotlib
    from matplotlib.figure import Figure

    with _RC_LOCK, matplotlib.rc_context(_STYLE):
        yield Figure((width, height), layout="constrained")


def _to_pixels(figure: "Figure") -> Pixels:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="rgba")
    return np.frombuffer(buffer.getbuffer(), np.uint8).reshape(-1, IMAGE_WIDTH, 4)[..., :3]
