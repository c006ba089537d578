"""Self-contained HTML pages with embedded images."""

import base64
import math
from dataclasses import dataclass, field
from html import escape

import cv2
import numpy as np
import numpy.typing as npt
from torch import Tensor

from protoformer.io.png import encode_png
from protoformer.viz.images import Pixels

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
figure.small img { width: 128px }
figcaption { padding-top: .35rem; font-size: .87rem } svg text { font: 11px system-ui, sans-serif; fill: var(--soft) }
svg .grid { stroke: var(--line) }
.figures:has(svg) { grid-template-columns: repeat(auto-fit, minmax(min(360px, 100%), 1fr)) }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line) }
"""


@dataclass(frozen=True)
class Figure:
    """An image, uint8 H x W or H x W x 3, or the text of an SVG, with a caption; legends are small."""

    content: npt.NDArray[np.uint8] | str
    caption: str
    small: bool = False

    def html(self) -> str:
        """Return the figure element."""
        css_class = ' class="small"' if self.small else ""
        return f"<figure{css_class}>{self._image()}<figcaption>{escape(self.caption)}</figcaption></figure>"

    def _image(self) -> str:
        if isinstance(self.content, str):
            return self.content
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
