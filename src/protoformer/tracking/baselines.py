"""Baseline trackers without weights: a correlation filter, and the trackers of OpenCV."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from protoformer.errors import InputError
from protoformer.io.image_input import ImageLike, as_frame
from protoformer.tracking.result import Box, Boxes, TrackedBox, check_boxes, check_size

Pixels = npt.NDArray[np.uint8]
Maps = npt.NDArray[np.float32]
Spectra = npt.NDArray[np.complexfloating]

CONTEXT = 1.5
"""Padding of the search region beyond the target, per dimension, in square roots of the target's area."""
REGION_PIXELS = 128 * 128
"""Pixels to which a search region is resized; features are pooled over cells of CELL x CELL of them."""
CELL = 4
NUM_ORIENTATIONS = 9
PEAK_WIDTH = 1 / 16
"""Standard deviation of the desired response, in square roots of the target's area."""
REGULARIZATION = 1e-3
LEARNING_RATE = 0.04
"""Weight of a new frame in the filter."""
SCALES = (1.0, 0.96, 1.04)
SCALE_PENALTY = 0.97
"""Weight of the response at a changed scale, so that the size changes only for a clearly better response."""
MAX_SCALE_CHANGE = 6.0
"""Largest total factor by which the target grows or shrinks, within `MAX_FRAME_RATIO`."""
MAX_FRAME_RATIO = 1.2
"""Largest ratio of a side of the target to that of the frame."""
LOST_BELOW = 0.05
"""Height of the response peak, of 1, below which the filter is not updated and the target counts as lost."""


@dataclass(frozen=True)
class FilterPeak:
    """Box (x, y, w, h) in pixels, and height of the response peak, 0 to 1, for one frame."""

    box: tuple[float, float, float, float]
    peak: float


class CorrelationFilter:
    """Correlation filter on gradient and color features that tracks one target and adapts online.

    Attributes:
        center: (x, y) of the target, pixels.
        size: (width, height) of the first box, pixels.
        scale: Scale of the target relative to the first box.
    """

    def __init__(self, frame: Pixels, box: tuple[float, float, float, float]) -> None:
        """Initialize the filter on a frame, uint8 H x W x 3, and a box (x, y, w, h) in pixels with a positive area."""
        x, y, width, height = box
        self.center = np.array((x + (width - 1) / 2, y + (height - 1) / 2))
        self.size = np.array((width, height))
        self.scale = 1.0
        root_area = float(np.sqrt(width * height))
        self._region = self.size + CONTEXT * root_area
        resize_factor = np.sqrt(REGION_PIXELS / self._region.prod())
        self._grid = np.maximum(4, np.round(self._region * resize_factor / CELL)).astype(int)
        self._cell_size = self._region / self._grid
        columns, rows = self._grid
        self._taper = np.outer(np.hanning(rows + 2)[1:-1], np.hanning(columns + 2)[1:-1]).astype(np.float32)
        self._desired = np.fft.rfft2(_gaussian_peak(rows, columns, PEAK_WIDTH * root_area / self._cell_size))
        spectra = self._region_spectra(frame, self.center, 1.0)
        self._numerator, self._energy = self._desired * spectra.conj(), _energy(spectra)

    def follow(self, frame: Pixels) -> FilterPeak:
        """Locate the target in the next frame, uint8 H x W x 3, and update the filter."""
        best_height, best_response, best_scale = -np.inf, np.zeros((1, 1)), 1.0
        for scale in SCALES:
            spectra = self._region_spectra(frame, self.center, self.scale * scale)
            product = (self._numerator * spectra).sum(axis=0) / (self._energy + REGULARIZATION)
            response = np.fft.irfft2(product, s=tuple(self._grid[::-1]))
            height = float(response.max()) * (1.0 if scale == 1.0 else SCALE_PENALTY)
            if height > best_height:
                best_height, best_response, best_scale = height, response, scale
        peak = min(1.0, max(0.0, float(best_response.max())))
        if peak >= LOST_BELOW:
            self._move(best_response, best_scale, frame.shape)
            self._update(frame)
        return FilterPeak(self.box, peak)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """(x, y, w, h) in pixels in the latest frame."""
        width, height = self.size * self.scale
        x, y = self.center - (self.size * self.scale - 1) / 2
        return float(x), float(y), float(width), float(height)

    def _move(self, response: npt.NDArray[np.floating], factor: float, shape: tuple[int, ...]) -> None:
        step = _peak_offset(response) * self._cell_size * self.scale * factor
        self.center = np.clip(self.center + step, 0, (shape[1] - 1, shape[0] - 1))
        max_scale = max(1.0, min(MAX_SCALE_CHANGE, float((MAX_FRAME_RATIO * np.array(shape[1::-1]) / self.size).min())))
        self.scale = float(np.clip(self.scale * factor, 1 / MAX_SCALE_CHANGE, max_scale))

    def _update(self, frame: Pixels) -> None:
        spectra = self._region_spectra(frame, self.center, self.scale)
        self._numerator = (1 - LEARNING_RATE) * self._numerator + LEARNING_RATE * self._desired * spectra.conj()
        self._energy = (1 - LEARNING_RATE) * self._energy + LEARNING_RATE * _energy(spectra)

    def _region_spectra(self, frame: Pixels, center: npt.NDArray[np.floating], scale: float) -> Spectra:
        """Compute the spectra of the features of a search region, C x rows x (columns / 2 + 1)."""
        width, height = np.maximum(2, np.round(self._region * scale)).astype(int)
        region = cv2.getRectSubPix(frame, (int(width), int(height)), (float(center[0]), float(center[1])))
        columns, rows = self._grid * CELL
        shrinks = columns < width
        mode = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        return np.fft.rfft2(_features(cv2.resize(region, (int(columns), int(rows)), interpolation=mode)) * self._taper)


def _features(region: npt.NDArray[np.generic]) -> Maps:
    """Compute histograms of oriented gradients and mean colors of cells: C x rows x columns, each map of zero mean."""
    rows, columns = region.shape[0] // CELL, region.shape[1] // CELL
    colors = np.asarray(region, np.float32) / 255
    gray = cv2.cvtColor(colors, cv2.COLOR_RGB2GRAY)
    grad_x, grad_y = (cv2.Sobel(gray, cv2.CV_32F, *order, ksize=3) for order in ((1, 0), (0, 1)))
    magnitude, angle = cv2.cartToPolar(grad_x, grad_y)
    position = (angle % np.pi) * np.float32(NUM_ORIENTATIONS / np.pi)
    lower = position.astype(np.int64)
    fraction = position - lower
    cell = np.arange(rows).repeat(CELL)[:, None] * columns + np.arange(columns).repeat(CELL)
    counts = sum(
        np.bincount(
            (layer % NUM_ORIENTATIONS * rows * columns + cell).ravel(),
            (magnitude * weight).ravel(),
            minlength=NUM_ORIENTATIONS * rows * columns,
        )
        for layer, weight in ((lower, 1 - fraction), (lower + 1, fraction))
    )
    histograms = np.asarray(counts, np.float32).reshape(NUM_ORIENTATIONS, rows, columns) / CELL**2
    local_energy = cv2.blur((histograms**2).sum(axis=0), (3, 3))
    mean_colors = cv2.resize(colors, (columns, rows), interpolation=cv2.INTER_AREA).transpose(2, 0, 1)
    features = np.concatenate((np.minimum(histograms / np.sqrt(local_energy + 1e-4), 0.6), mean_colors))
    return np.asarray(features - features.mean(axis=(1, 2), keepdims=True), np.float32)


def _gaussian_peak(rows: int, columns: int, width: npt.NDArray[np.floating]) -> Maps:
    """Return a periodic map with a Gaussian of height 1 at the first cell. width: deviations (x, y) in cells."""
    x = np.minimum(np.arange(columns), columns - np.arange(columns)) / max(0.5, width[0])
    y = np.minimum(np.arange(rows), rows - np.arange(rows)) / max(0.5, width[1])
    return np.asarray(np.exp(-(y[:, None] ** 2 + x**2) / 2), np.float32)


def _energy(spectra: Spectra) -> npt.NDArray[np.floating]:
    return np.asarray((spectra.real**2 + spectra.imag**2).sum(axis=0))


def _peak_offset(response: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Return (x, y) from the first cell to the maximum of a periodic map, refined to subcells by a parabola."""
    index = np.unravel_index(int(response.argmax()), response.shape)
    offsets = []
    for axis in (1, 0):
        length, center = response.shape[axis], int(index[axis])
        before, here, after = (np.take(response, (center + n) % length, axis=axis)[index[1 - axis]] for n in (-1, 0, 1))
        curvature = before - 2 * here + after
        refinement = 0.5 * (before - after) / curvature if curvature < 0 else 0.0
        offsets.append((center + length // 2) % length - length // 2 + refinement)
    return np.array(offsets)


OPENCV_MIN_SIDE = 5
"""Smallest side of a box for OpenCV's trackers, pixels; with smaller ones some of them never return."""
TrackFunction = Callable[[Pixels], TrackedBox]
"""Locates one target in the next frame, uint8 H x W x 3 RGB."""


def _correlation(frame: Pixels, box: Box) -> TrackFunction:
    correlation_filter = CorrelationFilter(frame, box)

    def follow(frame: Pixels) -> TrackedBox:
        output = correlation_filter.follow(frame)
        return TrackedBox(output.box, output.peak, output.peak < LOST_BELOW)

    return follow


def _opencv_tracker(kind: str, frame: Pixels, box: Box) -> TrackFunction:
    if min(box[2:]) < OPENCV_MIN_SIDE:
        raise InputError(
            f"OpenCV's trackers need boxes of {OPENCV_MIN_SIDE} pixels or more a side in the frame; give a larger one, "
            "or choose another method."
        )
    cv2.setRNGSeed(0)  # some trackers sample random patches
    tracker: Any = getattr(cv2, kind).create()
    left, top, right, bottom = round(box[0]), round(box[1]), round(box[0] + box[2]), round(box[1] + box[3])
    tracker.init(_to_bgr(frame), (left, top, max(1, right - left), max(1, bottom - top)))
    latest = box

    def follow(frame: Pixels) -> TrackedBox:
        nonlocal latest
        visible, output = tracker.update(_to_bgr(frame))
        if visible:
            x, y, width, height = (float(value) for value in output)
            latest = (x, y, width, height)
        return TrackedBox(latest, 1.0 if visible else 0.0, not visible)

    return follow


_OPENCV_CLASSES = {"mil": "TrackerMIL", "kcf": "TrackerKCF", "csrt": "TrackerCSRT"}
TRACKERS: dict[str, Callable[[Pixels, Box], TrackFunction]] = {
    "correlation": _correlation,
    **{name: partial(_opencv_tracker, kind) for name, kind in _OPENCV_CLASSES.items()},
}
"""Baseline trackers by name. OpenCV's report only whether the target is visible, so their score is 1 or 0."""


def check_tracker(name: str) -> None:
    """Check that a baseline exists and that the installed OpenCV provides it."""
    if name not in TRACKERS:
        raise InputError(f"there is no method {name!r}; choose model, {', '.join(TRACKERS)}.")
    if name in _OPENCV_CLASSES and not hasattr(cv2, _OPENCV_CLASSES[name]):
        raise InputError(
            f"{name} is not in the OpenCV that is installed; pip install opencv-contrib-python-headless in its place."
        )


class BaselineTracker:
    """Online tracker with the `update` and `reset` of `Tracker`; each target is tracked independently.

    Attributes:
        name: One of `TRACKERS`.
    """

    def __init__(self, name: str, first: ImageLike, boxes: Boxes) -> None:
        """Initialize the targets by their boxes in the first frame, (x, y, w, h) in pixels; name: one of `TRACKERS`."""
        check_tracker(name)
        self.name = name
        self.reset(first, boxes)

    def reset(self, frame: ImageLike, boxes: Boxes) -> None:
        """Discard all targets and start again with another frame and other boxes."""
        pixels = _to_pixels(frame)
        self._size = (pixels.shape[0], pixels.shape[1])
        checked = check_boxes(boxes, self._size)
        with _translate_errors(self.name, self._size):
            self._trackers = [TRACKERS[self.name](pixels, _clip_box(box, self._size)) for box in checked]

    def update(self, frame: ImageLike) -> tuple[TrackedBox, ...]:
        """Locate each target in the next frame, which must have the size of the first."""
        pixels = _to_pixels(frame)
        check_size((pixels.shape[0], pixels.shape[1]), self._size)
        with _translate_errors(self.name, self._size):
            return tuple(follow(pixels) for follow in self._trackers)


@contextmanager
def _translate_errors(name: str, size: tuple[int, int]) -> Iterator[None]:
    """Turn OpenCV errors into an `InputError`."""
    try:
        yield
    except cv2.error:
        raise InputError(
            f"{name} cannot track this box in frames of {size[1]}x{size[0]} pixels; give another one."
        ) from None


def _clip_box(box: Box, size: tuple[int, int]) -> Box:
    """Clip a box to a frame of (height, width) pixels, to one pixel at the border at least."""
    height, width = size
    left, top = min(max(0.0, box[0]), width - 1), min(max(0.0, box[1]), height - 1)
    right, bottom = min(float(width), box[0] + box[2]), min(float(height), box[1] + box[3])
    return left, top, max(1.0, right - left), max(1.0, bottom - top)


def _to_bgr(frame: Pixels) -> Pixels:
    return np.ascontiguousarray(frame[..., ::-1])


def _to_pixels(frame: ImageLike) -> Pixels:
    """Convert any image to a contiguous uint8 array, H x W x 3."""
    pixels = as_frame(frame, "the frame")
    quantized = pixels if pixels.dtype == torch.uint8 else (pixels * 255).round().byte()
    return np.asarray(quantized.permute(1, 2, 0).contiguous().cpu().numpy())
