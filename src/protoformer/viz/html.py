"""One html page that carries its pictures inside it, so that it can be sent as a single file."""

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
    """A picture, uint8 H x W or H x W x 3, or an svg text, and what it shows. small: it is a key to others."""

    content: npt.NDArray[np.uint8] | str
    caption: str
    small: bool = False

    def html(self) -> str:
        """The figure element."""
        kind = ' class="small"' if self.small else ""
        return f"<figure{kind}>{self._image()}<figcaption>{escape(self.caption)}</figcaption></figure>"

    def _image(self) -> str:
        if isinstance(self.content, str):
            return self.content
        data = base64.b64encode(encode_png(self.content)).decode()
        height, width = self.content.shape[:2]
        size = f'width="{width}" height="{height}"'
        return f'<img {size} alt="{escape(self.caption)}" src="data:image/png;base64,{data}">'


@dataclass(frozen=True)
class Section:
    """A heading, a paragraph, figures, a table (its first row is the head), and a paragraph on the table."""

    title: str
    text: str
    figures: tuple[Figure, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    below: str = ""

    def html(self) -> str:
        """The section element."""
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
    """A title, a line under it, an optional notice that must not be missed, and sections."""

    title: str
    lead: str
    notice: str = ""
    sections: tuple[Section, ...] = field(default=())

    def html(self) -> str:
        """The whole document."""
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
    """A picture, uint8 H x W x 3, as an address that holds it whole and exactly."""
    return f"data:image/png;base64,{to_base64(encode_png(pixels))}"


def jpeg_data_uri(pixels: Pixels) -> str:
    """As `png_address`, in fewer bytes and not exactly."""
    ordered = np.ascontiguousarray(pixels[..., ::-1])
    _, data = cv2.imencode(".jpg", ordered, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    return f"data:image/jpeg;base64,{to_base64(data.tobytes())}"


def to_base64(data: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(data).decode()


MOST_CELLS = 2**20
"""Cells that go to the browser: of larger images, those of every second pixel each way, or third, and so on."""


def cell_step(height: int, width: int, most_cells: int) -> int:
    """A cell stands for every so many pixels, each way, so that about `most_cells` are left of an image."""
    return math.ceil(math.sqrt(max(1.0, height * width / most_cells)))


def confidence_text(confidence: Tensor, step: int) -> str:
    """A confidence, 1 x H x W in [0, 1], at its cells: base64 of uint8, 255 is 1."""
    shares = confidence[0, ::step, ::step].clamp(0, 1).float().cpu().numpy()
    return to_base64((shares * 255).round().astype(np.uint8).tobytes())
