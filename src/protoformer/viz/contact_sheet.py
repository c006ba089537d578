"""Contact sheets: one image with samples of the clips in a dataset folder, read with the dataset readers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from protoformer.datasets.base import numbered_files, read_text
from protoformer.datasets.depth import SintelDepth
from protoformer.datasets.flow import Sintel
from protoformer.datasets.video import Otb
from protoformer.errors import InputError
from protoformer.io.image import read_image
from protoformer.synthetic.samples import DepthSample, FlowSample
from protoformer.video.reader import read_frames
from protoformer.viz.colormaps import Pixels, distinct_colors, draw_gray, flow_to_color, to_uint8
from protoformer.viz.depth_colors import depth_to_color

WIDTH = 1600
MAX_ROWS = 10
"""Maximum number of rows of images; further clips are left out."""
COLUMNS = 6

_MARGIN, _GAP = 24, 8
_TITLE, _HEAD, _CAPTION = 30, 18, 17
"""Font sizes, pixels."""
_PAPER, _INK, _SOFT = (250, 250, 248), (29, 39, 51), (92, 107, 122)
_VISIBLE, _OCCLUDED = (64, 220, 96), (255, 150, 40)


@dataclass(frozen=True)
class Strip:
    """One clip on a contact sheet: the caption above the images, and rows of `COLUMNS` images, uint8 HxWx3."""

    caption: str
    lines: tuple[tuple[Pixels, ...], ...]


def contact_sheet(root: Path, layout: str, names: Sequence[str], title: str, width: int = WIDTH) -> Pixels:
    """Draw a contact sheet of the first clips of a folder.

    Args:
        root: The folder.
        layout: Its layout, a key of `protoformer.datasets.clips.LAYOUTS`.
        names: Names of the clips.
        title: The text at the top.
        width: Width of the sheet, in pixels.

    Returns:
        uint8 H x width x 3 RGB.
    """
    if not names:
        raise InputError(f"{root} holds no clips to draw; write some first.")
    heads, make_strip, rows = _LAYOUTS[layout]
    chosen = names[: max(1, MAX_ROWS // rows)]
    return _compose([make_strip(root, name) for name in chosen], title, heads, width)


def _sintel_strip(root: Path, scene: str) -> Strip:
    frames = [path.stem for path in numbered_files(root / "training" / "clean" / scene, (".png",)).values()]
    flow_dataset, depth_dataset = Sintel(root), SintelDepth(root, render_pass="clean")
    pair = flow_dataset[flow_dataset.names.index(f"clean/{scene}/{frames[0]}")]
    depth = depth_dataset[depth_dataset.names.index(f"clean/{scene}/{frames[0]}")]
    assert isinstance(pair, FlowSample) and pair.occlusion is not None
    last = _to_uint8(read_image(root / "training" / "final" / scene / f"{frames[-1]}.png"))
    flow = pair.flow[0].permute(1, 2, 0).numpy()
    valid = pair.valid[0, 0].numpy()
    speeds = np.hypot(flow[..., 0], flow[..., 1])[valid]
    max_motion = max(float(np.percentile(speeds, 99)), 0.1) if speeds.size else 1.0
    instances = read_image(root / "training" / "instances" / scene / f"{frames[0]}.png")[..., 0]
    tiles = (
        to_uint8(pair.first[0]),
        last,
        flow_to_color(np.where(valid[..., None], flow, np.nan), max_motion),
        draw_depth(depth),
        _tint_instances(to_uint8(pair.first[0]), np.rint(instances * 65535).astype(np.int64)),
        np.repeat(draw_gray(pair.occlusion[0, 0].float())[..., None], 3, axis=2),
    )
    depths = depth.depth[depth.valid]
    depth_text = f", depth {float(depths.min()):.1f} to {float(depths.max()):.1f} m" if len(depths) else ""
    return Strip(f"{scene}:  {len(frames)} frames, motion up to {max_motion:.3g} px{depth_text}", (tiles,))


def draw_depth(sample: DepthSample) -> Pixels:
    """Draw a depth map in colors.

    Args:
        sample: A batch with one depth map in meters and its valid mask.

    Returns:
        uint8 HxWx3 RGB; invalid pixels are gray.
    """
    return depth_to_color(sample.depth[0, 0].where(sample.valid[0, 0], 0.0).numpy())


def _tint_instances(image: Pixels, instances: npt.NDArray[np.int64]) -> Pixels:
    """Tint a gray version of an image by instance; instance 0 is the background."""
    colors = (distinct_colors(int(instances.max()) + 1).numpy() * 255)[instances]
    gray = image.mean(axis=2, keepdims=True).repeat(3, axis=2)
    mixed = np.where((instances > 0)[..., None], 0.25 * gray + 0.75 * colors, 0.6 * gray + 80)
    tinted: Pixels = np.clip(np.rint(mixed), 0, 255).astype(np.uint8)
    return tinted


def _otb_strip(root: Path, clip: str) -> Strip:
    clips = Otb(root)
    sequence = clips[clips.names.index(clip)]
    occluded, outside = (_read_flags(root / clip / f"{kind}.txt") for kind in ("full_occlusion", "out_of_view"))
    numbers, tiles = _frame_numbers(len(sequence.frames)), []
    for number in numbers:
        image = _to_uint8(read_image(sequence.frames[number]))
        if sequence.present[number]:
            # The thickness is chosen so that lines are equally thick after tiles are resized.
            thickness = max(1, round(3 * image.shape[1] * COLUMNS / WIDTH))
            x, y, width, height = (round(value) for value in sequence.boxes[number].tolist())
            color = _OCCLUDED if occluded[number] else _VISIBLE
            cv2.rectangle(image, (x, y), (x + width - 1, y + height - 1), color, thickness)
        tiles.append(image)
    absent = f"target occluded in {sum(occluded)}, out of view in {sum(outside)}"
    return Strip(f"{clip}:  {_format_frames(numbers, len(sequence.frames))}, {absent}", (tuple(tiles),))


def _read_flags(path: Path) -> list[bool]:
    return [flag == "1" for flag in read_text(path).strip().split(",")]


def _deepstab_strip(root: Path, name: str) -> Strip:
    count = len(read_text(root / "paths" / f"{name}.csv").split()) - 1
    numbers, lines = _frame_numbers(count), []
    for folder in ("unstable", "stable"):
        frames = dict(zip(sorted(set(numbers)), read_frames(root / folder / f"{name}.avi", numbers), strict=True))
        lines.append(tuple(_draw_crosshair(frames[number]) for number in numbers))
    return Strip(f"{name}:  {_format_frames(numbers, count)}, unstable above stable", tuple(lines))


def _draw_crosshair(image: Pixels) -> Pixels:
    """Draw thin lines through the center of an image, which make shake visible."""
    height, width = image.shape[:2]
    crossed = image.copy()
    thickness = max(1, round(width * COLUMNS / WIDTH))
    for start, end in (((width // 2, 0), (width // 2, height)), ((0, height // 2), (width, height // 2))):
        cv2.line(crossed, start, end, (255, 255, 255), thickness)
    return cv2.addWeighted(image, 0.4, crossed, 0.6, 0.0).astype(np.uint8)


def _frame_numbers(count: int) -> list[int]:
    """Return `COLUMNS` frame numbers, spread evenly from the first to the last."""
    return [round(column * (count - 1) / (COLUMNS - 1)) for column in range(COLUMNS)]


def _format_frames(numbers: list[int], count: int) -> str:
    return f"frames {', '.join(str(number + 1) for number in numbers)} of {count}"


def _to_uint8(image: npt.NDArray[np.float32]) -> Pixels:
    return np.rint(image * 255).astype(np.uint8)


_SINTEL_HEADS = (
    "clean, first frame",
    "final, last frame",
    "flow to the next frame",
    "depth",
    "moving instances",
    "occlusion",
)
_FRAME_HEADS = ("first frame", *[""] * (COLUMNS - 2), "last frame")
_LAYOUTS: dict[str, tuple[tuple[str, ...], Callable[[Path, str], Strip], int]] = {
    "sintel": (_SINTEL_HEADS, _sintel_strip, 1),
    "otb": (_FRAME_HEADS, _otb_strip, 1),
    "deepstab": (_FRAME_HEADS, _deepstab_strip, 2),
}
"""For each layout: the column heads, the function that reads a clip, and the rows per clip."""


def _compose(strips: Sequence[Strip], title: str, heads: tuple[str, ...], width: int) -> Pixels:
    """Draw the title, the column heads, and the strips below each other."""
    tile_width = (width - 2 * _MARGIN - (COLUMNS - 1) * _GAP) // COLUMNS
    image_height, image_width = strips[0].lines[0][0].shape[:2]
    tile_height = max(1, round(tile_width * image_height / image_width))
    num_rows = sum(len(strip.lines) for strip in strips)
    top = _MARGIN + _TITLE + 2 * _GAP + _HEAD + _GAP
    total = top + num_rows * (tile_height + _GAP) + len(strips) * (_CAPTION + 2 * _GAP) + _MARGIN
    sheet = Image.new("RGB", (width, total), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN, _MARGIN - _GAP), title, fill=_INK, font=ImageFont.load_default(_TITLE))
    for column, head in enumerate(heads):
        position = (_MARGIN + column * (tile_width + _GAP), top - _HEAD - _GAP)
        draw.text(position, head, fill=_SOFT, font=ImageFont.load_default(_HEAD))
    y = top
    for strip in strips:
        y += _GAP
        draw.text((_MARGIN, y - _GAP // 2), strip.caption, fill=_INK, font=ImageFont.load_default(_CAPTION))
        y += _CAPTION + _GAP
        for line in strip.lines:
            for column, tile in enumerate(line):
                fitted = cv2.resize(tile, (tile_width, tile_height), interpolation=cv2.INTER_AREA)
                sheet.paste(Image.fromarray(fitted), (_MARGIN + column * (tile_width + _GAP), y))
            y += tile_height + _GAP
    return np.asarray(sheet)
