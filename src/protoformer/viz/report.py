"""Reports: short representations of values, tables of scores, the worst samples, and self-contained HTML pages."""

import base64
import heapq
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from html import escape
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from protoformer.io.files import short_name
from protoformer.io.image import write_image
from protoformer.io.png import encode_png
from protoformer.viz.colormaps import Pixels


class SummaryRepr(ABC):
    """Base class whose `repr` is the class name with a short summary."""

    @abstractmethod
    def _repr_parts(self) -> tuple[str, ...]:
        """Return the parts of the summary, a few words each."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._repr_parts())})"


def format_size(height: int, width: int) -> str:
    """Format the size of an image, such as 640x480 pixels."""
    return f"{width}x{height} pixels"


def format_time(number: int, time: Fraction) -> str:
    """Format the number and the time (seconds) of a frame."""
    return f"frame {number} at {float(time):.3f} s"


def format_training(trained: bool) -> str:
    """Format whether a model is trained."""
    return "trained" if trained else "not trained"


def format_count(count: int, thing: str) -> str:
    """Format a number with a noun, in the plural if needed."""
    return f"1 {thing}" if count == 1 else f"{count} {thing}s"


def predictor_summary(task: str, network: nn.Module, trained: bool, device: torch.device) -> tuple[str, ...]:
    """Return the task, training state, number of parameters and device of a predictor."""
    millions = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    return task, format_training(trained), f"{millions:.2f} M parameters", f"on {device}"


def format_score(value: float | None, digits: int, missing: str = "") -> str:
    """Format a score; `missing` if it is None or NaN."""
    return missing if value is None or math.isnan(value) else f"{value:.{digits}f}"


def score_table(title: str, caption: str, words: Iterable[str], figures: Iterable[str]) -> Table:
    """Create an empty table of scores.

    Args:
        title: The title.
        caption: The text below the table.
        words: Heads of the text columns, which may wrap.
        figures: Heads of the numeric columns, which never wrap.
    """
    table = Table(
        title=Text(title), caption=caption, caption_justify="left", box=None, pad_edge=False, collapse_padding=True
    )
    for column in words:
        table.add_column(column)
    for column in figures:
        table.add_column(column, justify="right", no_wrap=True)
    return table


@dataclass(frozen=True)
class Tally:
    """Sums of scores and the number of samples in each sum.

    Attributes:
        sums: N x columns, float64; columns after `total`.
        counts: N x columns, int64; columns after `total`.
    """

    sums: Tensor
    counts: Tensor

    @classmethod
    def of_rows(cls, rows: Tensor) -> "Tally":
        """Build a tally from one row of scores per sample, N x columns; NaN where a sample lacks a score."""
        valid = ~rows.isnan()
        return cls(torch.where(valid, rows, 0.0).double(), valid.long())

    def total(self) -> "Tally":
        """Sum over the N rows."""
        return Tally(self.sums.sum(dim=0), self.counts.sum(dim=0))

    def means(self) -> list[float]:
        """Divide each sum by its count; NaN where the count is 0. Only for a total."""
        means: list[float] = (self.sums / self.counts).tolist()
        return means


class WorstSamples:
    """Keeps images of the samples with the largest errors, and draws only these.

    Attributes:
        count: Maximum number of samples.
        kept: A heap of (error, order, name, image).
        num_offered: Number of samples offered.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.kept: list[tuple[float, int, str, Pixels]] = []
        self.num_offered = 0

    def offer(self, error: float, name: str, draw: Callable[[], Pixels]) -> None:
        """Draw and keep a sample if it is among the worst so far.

        Args:
            error: The error of the sample; NaN is ignored.
            name: The name of the sample.
            draw: Draws the sample.
        """
        self.num_offered += 1  # breaks ties between equal errors
        if self.count and not math.isnan(error) and (len(self.kept) < self.count or error > self.kept[0][0]):
            heapq.heappush(self.kept, (error, self.num_offered, name, draw()))
            if len(self.kept) > self.count:
                heapq.heappop(self.kept)

    def write(self, folder: Path) -> list[Path]:
        """Write the images, the worst first, as worst-01-<name>.png and so on; returns the paths."""
        written = []
        ranked = sorted(self.kept, reverse=True, key=lambda sample: sample[:2])
        for rank, (_, _, name, pixels) in enumerate(ranked, start=1):
            path = folder / f"worst-{rank:02d}-{short_name(name.replace('/', '-'))}.png"
            write_image(path, pixels)
            written.append(path)
        return written


STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5c6b7a; --line: #d9e0e7; --paper: #fff; --tint: #f5f7f9 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --soft: #9aa7b4; --line: #38434e; --paper: #14191f; --tint: #1c232b } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1080px; padding: 2rem 1.25rem 4rem; color: var(--ink); background: var(--paper);
  font: 16px/1.55 system-ui, sans-serif }
h1 { margin: 0 0 .25rem; font-size: 1.9rem } h2 { margin: 2.5rem 0 .5rem; font-size: 1.25rem }
p { max-width: 46rem } .lead, figcaption { color: var(--soft) }
.notice { border-left: 4px solid #c8553d; background: var(--tint); padding: .6rem 1rem; max-width: none }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(240px, 1fr)); gap: 1rem; align-items: start }
figure { margin: 0; max-width: 560px }
figure img, figure svg { display: block; width: 100%; height: auto; border-radius: 4px; background: var(--tint) }
figure.small img { width: 128px } figure.wide { grid-column: 1 / -1; max-width: 960px }
figcaption { padding-top: .35rem; font-size: .87rem } svg text { font: 11px system-ui, sans-serif; fill: var(--soft) }
svg .grid { stroke: var(--line) }
.figures:has(svg) { grid-template-columns: repeat(auto-fit, minmax(min(360px, 100%), 1fr)) }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line) }
"""


@dataclass(frozen=True)
class Figure:
    """A picture with a caption.

    Attributes:
        content: An image, uint8 H x W or H x W x 3; the bytes of a WebP, see `encode_webp`; or the text of an SVG.
        caption: The text below.
        small: Whether it is a legend.
        wide: Whether it takes the width of the page.
    """

    content: npt.NDArray[np.uint8] | bytes | str
    caption: str
    small: bool = False
    wide: bool = False

    def html(self) -> str:
        """Return the figure element."""
        css_class = ' class="small"' if self.small else ' class="wide"' if self.wide else ""
        return f"<figure{css_class}>{self._image()}<figcaption>{escape(self.caption)}</figcaption></figure>"

    def _image(self) -> str:
        if isinstance(self.content, str):
            return self.content
        if isinstance(self.content, bytes):
            return f'<img alt="{escape(self.caption)}" src="data:image/webp;base64,{to_base64(self.content)}">'
        height, width = self.content.shape[:2]
        size = f'width="{width}" height="{height}"'
        return f'<img {size} alt="{escape(self.caption)}" src="{png_data_uri(self.content)}">'


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
        title: The heading.
        text: The paragraph below the heading.
        figures: Figures, side by side.
        table: Rows of cells; the first row is the head.
        below: The paragraph below the table.
    """

    title: str
    text: str
    figures: tuple[Figure, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    below: str = ""

    def html(self) -> str:
        """Return the section element."""
        parts = [f"<section><h2>{escape(self.title)}</h2><p>{escape(self.text)}</p>"]
        if self.figures:
            parts.append(f'<div class="figures">{"".join(figure.html() for figure in self.figures)}</div>')
        if self.table:
            head, *rows = self.table
            parts.append(f'<div class="scroll"><table>{_row(head, "th")}')
            parts.extend(_row(row, "td") for row in rows)
            parts.append("</table></div>")
        if self.below:
            parts.append(f"<p>{escape(self.below)}</p>")
        return "".join((*parts, "</section>"))


@dataclass(frozen=True)
class Page:
    """An HTML page: heading, the line below it, a highlighted warning if any, and sections."""

    title: str
    lead: str
    notice: str = ""
    sections: tuple[Section, ...] = field(default=())

    def html(self) -> str:
        """Return the document."""
        notice = f'<p class="notice">{escape(self.notice)}</p>' if self.notice else ""
        body = "".join(section.html() for section in self.sections)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
            f'<body><h1>{escape(self.title)}</h1><p class="lead">{escape(self.lead)}</p>{notice}{body}</body></html>\n'
        )


def _row(cells: tuple[str, ...], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


_JPEG_QUALITY = 92


def png_data_uri(pixels: Pixels) -> str:
    """Encode an image, uint8 H x W x 3, as a data URI with a PNG (lossless)."""
    return f"data:image/png;base64,{to_base64(encode_png(pixels))}"


def jpeg_data_uri(pixels: Pixels) -> str:
    """Encode an image, uint8 H x W x 3, as a data URI with a JPEG (lossy, smaller)."""
    ordered = np.ascontiguousarray(pixels[..., ::-1])
    _, data = cv2.imencode(".jpg", ordered, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    return f"data:image/jpeg;base64,{to_base64(data.tobytes())}"


def encode_webp(frames: Sequence[Pixels], fps: float = 1.0, quality: int = 75) -> bytes:
    """Encode frames, uint8 H x W x 3, as a WebP (lossy), which is a looping animation if there are several."""
    first, *rest = map(Image.fromarray, frames)
    buffer = io.BytesIO()
    first.save(
        buffer, "WEBP", save_all=True, append_images=rest, duration=round(1000 / fps), loop=0, quality=quality, method=4
    )
    return buffer.getvalue()


def to_base64(data: bytes) -> str:
    """Encode bytes as base64 text."""
    return base64.b64encode(data).decode()


MAX_CELLS = 2**20
"""Maximum number of cells sent to the browser; larger images are subsampled."""


def cell_step(height: int, width: int, max_cells: int) -> int:
    """Return the subsampling step, in pixels per axis, that reduces an image to about `max_cells` cells."""
    return math.ceil(math.sqrt(max(1.0, height * width / max_cells)))


def confidence_text(confidence: Tensor, step: int) -> str:
    """Subsample a confidence map, 1 x H x W in [0, 1], and encode it as base64 of uint8, where 255 is 1."""
    values = confidence[0, ::step, ::step].clamp(0, 1).float().cpu().numpy()
    return to_base64((values * 255).round().astype(np.uint8).tobytes())
