"""One picture of the clips of a folder, read from the disk as anyone would read them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from protoformer.datasets.depth import SintelDepth
from protoformer.datasets.flow import Sintel
from protoformer.datasets.tracking import Otb
from protoformer.datasets.tree import numbered_files, read_text
from protoformer.errors import InputError
from protoformer.io.image import read_image
from protoformer.synthetic.samples import DepthSample, FlowSample
from protoformer.video.reader import read_frames
from protoformer.viz.colormaps import flow_to_color
from protoformer.viz.images import Pixels, distinct_colors, draw_gray, to_uint8

WIDTH = 1600
MOST_LINES = 10
"""Lines of pictures on a sheet; clips beyond them are not shown."""
COLUMNS = 6

_MARGIN, _GAP = 24, 8
_TITLE, _HEAD, _CAPTION = 30, 18, 17
"""Heights of letters, pixels."""
_PAPER, _INK, _SOFT = (250, 250, 248), (29, 39, 51), (92, 107, 122)
_SKY = (44, 49, 58)
_SEEN, _HIDDEN = (64, 220, 96), (255, 150, 40)


@dataclass(frozen=True)
class Strip:
    """One clip on a sheet: a caption, and lines of COLUMNS pictures, uint8 HxWx3."""

    caption: str
    lines: tuple[tuple[Pixels, ...], ...]


def contact_sheet(root: Path, layout: str, names: Sequence[str], title: str, width: int = WIDTH) -> Pixels:
    """Draw the first clips of these names that lie in a folder in a layout of `data.clips`: uint8 H x width x 3."""
    if not names:
        raise InputError(f"{root} holds no clips to draw; write some first.")
    heads, strip, lines = _KINDS[layout]
    chosen = names[: max(1, MOST_LINES // lines)]
    return _laid_out([strip(root, name) for name in chosen], title, heads, width)


def _sintel_strip(root: Path, scene: str) -> Strip:
    frames = [path.stem for path in numbered_files(root / "training" / "clean" / scene, (".png",)).values()]
    flows, depths = Sintel(root), SintelDepth(root, render_pass="clean")
    pair = flows[flows.names.index(f"clean/{scene}/{frames[0]}")]
    depth = depths[depths.names.index(f"clean/{scene}/{frames[0]}")]
    assert isinstance(pair, FlowSample) and pair.occlusion is not None
    last = _whole(read_image(root / "training" / "final" / scene / f"{frames[-1]}.png"))
    flow = pair.flow[0].permute(1, 2, 0).numpy()
    known = pair.valid[0, 0].numpy()
    speeds = np.hypot(flow[..., 0], flow[..., 1])[known]
    fastest = max(float(np.percentile(speeds, 99)), 0.1) if speeds.size else 1.0
    numbers = read_image(root / "training" / "instances" / scene / f"{frames[0]}.png")[..., 0]
    tiles = (
        to_uint8(pair.first[0]),
        last,
        flow_to_color(np.where(known[..., None], flow, np.nan), fastest),
        draw_depth(depth),
        _tinted(to_uint8(pair.first[0]), np.rint(numbers * 65535).astype(np.int64)),
        np.repeat(draw_gray(pair.occlusion[0, 0].float())[..., None], 3, axis=2),
    )
    meters = depth.depth[depth.valid]
    far = f", depth {float(meters.min()):.1f} to {float(meters.max()):.1f} m" if len(meters) else ""
    return Strip(f"{scene}:  {len(frames)} frames, motion up to {fastest:.3g} px{far}", (tiles,))


def draw_depth(sample: DepthSample) -> Pixels:
    """A depth in colors, near is red and far blue by its logarithm, and dark where it is not known: uint8 HxWx3."""
    valid, depth = sample.valid[0, 0].numpy(), sample.depth[0, 0].numpy()
    if not valid.any():
        return np.full((*depth.shape, 3), _SKY, dtype=np.uint8)
    logs = np.log(np.where(valid, depth, 1.0))
    near, far = np.percentile(logs[valid], (1, 99))
    nearness = 1 - np.clip((logs - near) / max(far - near, 1e-6), 0, 1)
    colors = cv2.applyColorMap(np.rint(nearness * 255).astype(np.uint8), cv2.COLORMAP_TURBO)[..., ::-1]
    shown: Pixels = np.where(valid[..., None], colors, _SKY).astype(np.uint8)
    return shown


def _tinted(image: Pixels, instances: npt.NDArray[np.int64]) -> Pixels:
    """A gray image with every instance in a color of its own."""
    colors = (distinct_colors(int(instances.max()) + 1).numpy() * 255)[instances]
    gray = image.mean(axis=2, keepdims=True).repeat(3, axis=2)
    mixed = np.where((instances > 0)[..., None], 0.25 * gray + 0.75 * colors, 0.6 * gray + 80)
    tinted: Pixels = np.clip(np.rint(mixed), 0, 255).astype(np.uint8)
    return tinted


def _otb_strip(root: Path, clip: str) -> Strip:
    clips = Otb(root)
    sequence = clips[clips.names.index(clip)]
    hidden, outside = (_flags(root / clip / f"{kind}.txt") for kind in ("full_occlusion", "out_of_view"))
    moments, tiles = _moments(len(sequence.frames)), []
    for number in moments:
        image = _whole(read_image(sequence.frames[number]))
        if sequence.present[number]:
            # On a tile the line should be as thick for every size of image.
            thick = max(1, round(3 * image.shape[1] * COLUMNS / WIDTH))
            x, y, width, height = (round(value) for value in sequence.boxes[number].tolist())
            color = _HIDDEN if hidden[number] else _SEEN
            cv2.rectangle(image, (x, y), (x + width - 1, y + height - 1), color, thick)
        tiles.append(image)
    absent = f"target hidden in {sum(hidden)}, out of view in {sum(outside)}"
    return Strip(f"{clip}:  {_said(moments, len(sequence.frames))}, {absent}", (tuple(tiles),))


def _flags(path: Path) -> list[bool]:
    return [flag == "1" for flag in read_text(path).strip().split(",")]


def _deepstab_strip(root: Path, number: str) -> Strip:
    count = len(read_text(root / "paths" / f"{number}.csv").split()) - 1
    moments, lines = _moments(count), []
    for folder in ("unstable", "stable"):
        shown = dict(zip(sorted(set(moments)), read_frames(root / folder / f"{number}.avi", moments), strict=True))
        lines.append(tuple(_crossed(shown[moment]) for moment in moments))
    return Strip(f"{number}:  {_said(moments, count)}, shaky and below it steady", tuple(lines))


def _crossed(image: Pixels) -> Pixels:
    """An image with fine lines through its middle, against which the eye sees a shake."""
    height, width = image.shape[:2]
    crossed = image.copy()
    thick = max(1, round(width * COLUMNS / WIDTH))
    for start, end in (((width // 2, 0), (width // 2, height)), ((0, height // 2), (width, height // 2))):
        cv2.line(crossed, start, end, (255, 255, 255), thick)
    return cv2.addWeighted(image, 0.4, crossed, 0.6, 0.0).astype(np.uint8)


def _moments(count: int) -> list[int]:
    """COLUMNS numbers of frames, spread evenly from the first to the last."""
    return [round(place * (count - 1) / (COLUMNS - 1)) for place in range(COLUMNS)]


def _said(moments: list[int], count: int) -> str:
    return f"frames {', '.join(str(moment + 1) for moment in moments)} of {count}"


def _whole(image: npt.NDArray[np.float32]) -> Pixels:
    return np.rint(image * 255).astype(np.uint8)


_TRUTH = (
    "clean, first frame",
    "final, last frame",
    "motion to the next",
    "depth",
    "what moves by itself",
    "not seen next",
)
_TIMES = ("first frame", *[""] * (COLUMNS - 2), "last frame")
_KINDS: dict[str, tuple[tuple[str, ...], Callable[[Path, str], Strip], int]] = {
    "sintel": (_TRUTH, _sintel_strip, 1),
    "otb": (_TIMES, _otb_strip, 1),
    "deepstab": (_TIMES, _deepstab_strip, 2),
}
"""Of each layout: what stands over the columns, the strip of a clip, and its lines."""


def _laid_out(strips: Sequence[Strip], title: str, heads: tuple[str, ...], width: int) -> Pixels:
    """Title, heads of columns, and strips below one another."""
    across = (width - 2 * _MARGIN - (COLUMNS - 1) * _GAP) // COLUMNS
    height, wide = strips[0].lines[0][0].shape[:2]
    down = max(1, round(across * height / wide))
    lines = sum(len(strip.lines) for strip in strips)
    top = _MARGIN + _TITLE + 2 * _GAP + _HEAD + _GAP
    total = top + lines * (down + _GAP) + len(strips) * (_CAPTION + 2 * _GAP) + _MARGIN
    sheet = Image.new("RGB", (width, total), _PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, _MARGIN - _GAP), title, fill=_INK, font=ImageFont.load_default(_TITLE))
    for column, head in enumerate(heads):
        place = (_MARGIN + column * (across + _GAP), top - _HEAD - _GAP)
        pen.text(place, head, fill=_SOFT, font=ImageFont.load_default(_HEAD))
    y = top
    for strip in strips:
        y += _GAP
        pen.text((_MARGIN, y - _GAP // 2), strip.caption, fill=_INK, font=ImageFont.load_default(_CAPTION))
        y += _CAPTION + _GAP
        for line in strip.lines:
            for column, tile in enumerate(line):
                fitted = cv2.resize(tile, (across, down), interpolation=cv2.INTER_AREA)
                sheet.paste(Image.fromarray(fitted), (_MARGIN + column * (across + _GAP), y))
            y += down + _GAP
    return np.asarray(sheet)
