"""Segmentation results: labels of a frame, palette images, COCO run-length encoding and overlays."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from protoformer.errors import InputError
from protoformer.io.files import PathLike, check_output, check_pixel_count, write_atomically
from protoformer.io.formats import encode_npy
from protoformer.video.types import ImageArray
from protoformer.viz.colormaps import Pixels, frame_pixels
from protoformer.viz.report import SummaryRepr, format_count, format_size, format_time, format_training

Labels = npt.NDArray[np.uint8]
"""H x W: 0 for the background, otherwise the number of an object, up to `MAX_OBJECTS`."""
Mask = npt.NDArray[np.bool_]

MAX_OBJECTS = 255
"""Largest number of an object, since indexed png files have 256 colors."""


def davis_palette() -> npt.NDArray[np.uint8]:
    """Return the palette of DAVIS and PASCAL VOC: 256 x 3. Bit k of each channel comes from bits 3k .. 3k + 2."""
    numbers = np.arange(256)
    palette = np.zeros((256, 3), np.int64)
    for bit in range(8):
        for channel in range(3):
            palette[:, channel] |= ((numbers >> (3 * bit + channel)) & 1) << (7 - bit)
    return palette.astype(np.uint8)


def encode_labels(labels: Labels) -> bytes:
    """Encode labels as the bytes of an indexed png with the palette of DAVIS."""
    image = Image.fromarray(labels)
    image.putpalette(davis_palette().tobytes())
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=False)
    return buffer.getvalue()


def encode_rle(mask: Mask) -> dict[str, Any]:
    """Encode a mask, H x W, as a compressed run-length encoding of COCO, which pycocotools decodes.

    Runs alternate between 0 and 1 in the order of columns, beginning with 0. From the fourth run on, the difference to
    the run two before is stored. Each number is written in groups of five bits, lowest first.
    """
    flat = np.asarray(mask, bool).T.reshape(-1)
    changes = np.flatnonzero(np.diff(flat)) + 1
    edges = np.concatenate(([0] if len(flat) and flat[0] else [], [0], changes, [len(flat)])).astype(np.int64)
    runs = np.diff(edges)
    text = []
    for index, run in enumerate(runs.tolist()):
        value = run - int(runs[index - 2]) if index > 2 else run
        more = True
        while more:
            bits = value & 0x1F
            value >>= 5
            more = value != -1 if bits & 0x10 else value != 0
            text.append(chr((bits | (0x20 if more else 0)) + 48))
    return {"size": [int(mask.shape[0]), int(mask.shape[1])], "counts": "".join(text)}


def decode_rle(encoded: dict[str, Any]) -> Mask:
    """Decode the result of `encode_rle`.

    Raises:
        InputError: If the counts do not cover the size, or it has more than `MAX_PIXELS` pixels.
    """
    height, width = (int(side) for side in encoded["size"])
    check_pixel_count(width, height, "a run-length encoding")
    runs: list[int] = []
    value, shift = 0, 0
    for letter in encoded["counts"]:
        group = ord(letter) - 48
        value |= (group & 0x1F) << shift
        shift += 5
        if not group & 0x20:
            if group & 0x10:
                value -= 1 << shift
            runs.append(value + runs[-2] if len(runs) > 2 else value)
            value, shift = 0, 0
    if min(runs, default=0) < 0 or sum(runs) != height * width:
        raise InputError(f"a run-length encoding does not have {height}x{width} pixels; make it again.")
    flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    mask: Mask = np.ascontiguousarray(flat.reshape(width, height).T)
    return mask


@dataclass(frozen=True, repr=False, eq=False)
class SegmentationFrame(SummaryRepr):
    """What moves on its own in one frame of a video.

    Attributes:
        labels: H x W, uint8: 0 for the background, otherwise the number of an object, the same in every frame.
        ids: Numbers of the objects in this frame, ascending.
        boxes: n x 4, (x, y, w, h) of these objects, pixels.
        motion: n x 2, mean motion (u, v) of these objects to the next frame relative to the background, pixels.
        number: Index of the frame in the whole video, from 0.
        time: Timestamp, seconds, exact.
        trained: Whether the flow network has trained weights.
        frame: The frame, H x W x 3, uint8, or float in [0, 1] if the source is frames of floats.
    """

    labels: Labels
    ids: tuple[int, ...]
    boxes: npt.NDArray[np.float32]
    motion: npt.NDArray[np.float32]
    number: int = 0
    time: Fraction = Fraction(0)
    trained: bool = True
    frame: ImageArray | None = field(default=None, repr=False)

    @property
    def foreground(self) -> Mask:
        """H x W, bool: whether a pixel belongs to any of the objects."""
        return self.labels > 0

    def mask(self, number: int) -> Mask:
        """Return the mask of one object, H x W, bool."""
        mask: Mask = self.labels == number
        return mask

    def image(self) -> Image.Image:
        """Return the labels as an indexed image with the palette of DAVIS."""
        return Image.open(io.BytesIO(encode_labels(self.labels)))

    def draw(self, side_by_side: bool = False) -> Pixels:
        """Return the frame with colored, outlined objects, right of the frame if requested: uint8, H x W or 2W x 3."""
        image = frame_pixels(self.frame)
        drawn = draw_labels(image.copy(), self.labels)
        return np.concatenate((image, drawn), axis=1) if side_by_side else drawn

    def save(self, path: PathLike) -> None:
        """Write the labels, atomically.

        Args:
            path: .png (indexed, palette of DAVIS), .npy (uint8), or .json (COCO run-length encoding).
        """
        suffix, target = Path(path).suffix.lower(), check_output(path)
        if suffix == ".png":
            data = encode_labels(self.labels)
        elif suffix == ".npy":
            data = encode_npy(self.labels)
        elif suffix == ".json":
            data = json.dumps(self.as_dict()).encode()
        else:
            raise InputError(f"labels cannot be written to {path} by that suffix; give one in .png, .npy or .json.")
        write_atomically(target, data)

    def as_dict(self) -> dict[str, Any]:
        """Return the frame as JSON values: number, time, and id, box, motion and COCO encoding of each object."""
        objects = [
            {
                "id": number,
                "box": [float(value) for value in box],
                "motion": [round(float(value), 3) for value in motion],
                "area": int(self.mask(number).sum()),
                "segmentation": encode_rle(self.mask(number)),
            }
            for number, box, motion in zip(self.ids, self.boxes, self.motion, strict=True)
        ]
        return {"frame": self.number, "time": round(float(self.time), 6), "objects": objects}

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.labels, dtype=dtype, copy=copy)

    def _repr_parts(self) -> tuple[str, ...]:
        return (
            format_time(self.number, self.time),
            format_size(*self.labels.shape),
            format_count(len(self.ids), "object"),
            f"{self.foreground.mean():.1%} foreground",
            format_training(self.trained),
        )


def make_frame(labels: Labels, motions: Mapping[int, npt.ArrayLike], **attributes: Any) -> SegmentationFrame:
    """Build a result from labels and the mean motion of each object, pixels, by its number."""
    ids, boxes = [], []
    for number in np.flatnonzero(np.bincount(labels.reshape(-1), minlength=1)).tolist():
        if number:
            x, y, width, height = cv2.boundingRect((labels == number).astype(np.uint8))
            ids.append(number)
            boxes.append((x, y, width, height))
    return SegmentationFrame(
        labels=labels,
        ids=tuple(ids),
        boxes=np.array(boxes, np.float32).reshape(-1, 4),
        motion=np.array([motions.get(number, (0.0, 0.0)) for number in ids], np.float32).reshape(-1, 2),
        **attributes,
    )


OPACITY = 0.5


def draw_labels(image: Pixels, labels: Labels) -> Pixels:
    """Color and outline objects on an image, H x W x 3, which is modified in place and returned."""
    paint = davis_palette()[labels]
    inside = labels > 0
    image[inside] = (OPACITY * paint[inside] + (1 - OPACITY) * image[inside]).astype(np.uint8)
    thickness = max(1, round(max(labels.shape) / 400))
    kernel = np.ones((2 * thickness + 1, 2 * thickness + 1), np.uint8)
    outline = (cv2.dilate(labels, kernel) != labels) | (cv2.erode(labels, kernel) != labels)
    image[outline & inside] = paint[outline & inside]
    return image


class MaskFile:
    """A context manager that collects results and writes them as one JSON file when it ends, atomically.

    The file has the name and size of the video, and of every frame what `SegmentationFrame.as_dict` returns.

    Attributes:
        path: The file.
        partial_path: None; nothing is written after an interruption.
    """

    def __init__(self, path: PathLike, source: str) -> None:
        """Check that the file can be written; `source` is the name of the video."""
        self.path = check_output(path)
        self.partial_path: Path | None = None
        self._document: dict[str, Any] = {"video": source, "height": 0, "width": 0, "frames": []}

    def __enter__(self) -> "MaskFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            write_atomically(self.path, json.dumps(self._document).encode())

    def add(self, result: SegmentationFrame) -> None:
        """Add the result of a frame."""
        self._document["height"], self._document["width"] = result.labels.shape
        self._document["frames"].append(result.as_dict())
