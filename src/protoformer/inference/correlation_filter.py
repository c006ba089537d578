"""A correlation filter that learns its target while it follows it: light, exact in what it does, and without weights.

Gradients and colours of a window around the target are correlated, in the Fourier domain, with a filter whose answer is
a narrow peak at the target's centre (Bolme et al. 2010, Danelljan et al. 2014); the same at a few scales finds its
size.
"""

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Maps = npt.NDArray[np.float32]
Spectra = npt.NDArray[np.complexfloating]

CONTEXT = 1.5
"""What a window has more than the target, each way, in roots of the target's area."""
WINDOW_PIXELS = 128 * 128
"""Pixels that a window is scaled to; features are taken from cells of CELL x CELL of them."""
CELL = 4
ORIENTATIONS = 9
PEAK_WIDTH = 1 / 16
"""Of the wanted peak, in roots of the target's area."""
REGULARIZATION = 1e-3
RATE = 0.04
"""How much of the filter a new frame replaces."""
SCALES = (1.0, 0.96, 1.04)
SCALE_PENALTY = 0.97
"""What a peak at another scale than the last is worth: the size changes only where that is clearly better."""
LARGEST_CHANGE = 6.0
"""Times that the target may grow or shrink in all, though not to more than LARGEST of the frame each way."""
LARGEST = 1.2
LOST_BELOW = 0.05
"""Height of the peak, of 1, under which nothing is learned and the target counts as lost."""


@dataclass(frozen=True)
class Found:
    """box: (x, y, w, h) in pixels; peak: the height of the answer, 0 to 1."""

    box: tuple[float, float, float, float]
    peak: float


class CorrelationFilter:
    """Follows one target. frame: uint8 H x W x 3; box: (x, y, w, h) in pixels, with an area."""

    def __init__(self, frame: Pixels, box: tuple[float, float, float, float]) -> None:
        x, y, width, height = box
        self.centre = np.array((x + (width - 1) / 2, y + (height - 1) / 2))
        self.size = np.array((width, height))
        self.scale = 1.0
        root = float(np.sqrt(width * height))
        self._window = self.size + CONTEXT * root
        shrink = np.sqrt(WINDOW_PIXELS / self._window.prod())
        self._cells = np.maximum(4, np.round(self._window * shrink / CELL)).astype(int)
        self._pixels_of_cell = self._window / self._cells
        columns, rows = self._cells
        self._taper = np.outer(np.hanning(rows + 2)[1:-1], np.hanning(columns + 2)[1:-1]).astype(np.float32)
        self._wanted = np.fft.rfft2(_peak(rows, columns, PEAK_WIDTH * root / self._pixels_of_cell))
        seen = self._seen(frame, self.centre, 1.0)
        self._numerator, self._energy = self._wanted * seen.conj(), _energy(seen)

    def follow(self, frame: Pixels) -> Found:
        """Where the target is in the next frame."""
        best, answer, factor = -np.inf, np.zeros((1, 1)), 1.0
        for step in SCALES:
            seen = self._seen(frame, self.centre, self.scale * step)
            product = (self._numerator * seen).sum(axis=0) / (self._energy + REGULARIZATION)
            found = np.fft.irfft2(product, s=tuple(self._cells[::-1]))
            worth = float(found.max()) * (1.0 if step == 1.0 else SCALE_PENALTY)
            if worth > best:
                best, answer, factor = worth, found, step
        peak = min(1.0, max(0.0, float(answer.max())))
        if peak >= LOST_BELOW:
            self._move(answer, factor, frame.shape)
            self._learn(frame)
        return Found(self.box, peak)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """(x, y, w, h) in pixels, as of the last frame."""
        width, height = self.size * self.scale
        x, y = self.centre - (self.size * self.scale - 1) / 2
        return float(x), float(y), float(width), float(height)

    def _move(self, answer: npt.NDArray[np.floating], factor: float, shape: tuple[int, ...]) -> None:
        step = _summit(answer) * self._pixels_of_cell * self.scale * factor
        self.centre = np.clip(self.centre + step, 0, (shape[1] - 1, shape[0] - 1))
        most = max(1.0, min(LARGEST_CHANGE, float((LARGEST * np.array(shape[1::-1]) / self.size).min())))
        self.scale = float(np.clip(self.scale * factor, 1 / LARGEST_CHANGE, most))

    def _learn(self, frame: Pixels) -> None:
        seen = self._seen(frame, self.centre, self.scale)
        self._numerator = (1 - RATE) * self._numerator + RATE * self._wanted * seen.conj()
        self._energy = (1 - RATE) * self._energy + RATE * _energy(seen)

    def _seen(self, frame: Pixels, centre: npt.NDArray[np.floating], scale: float) -> Spectra:
        """Spectra of the features of a window, C x rows x (columns / 2 + 1)."""
        width, height = np.maximum(2, np.round(self._window * scale)).astype(int)
        window = cv2.getRectSubPix(frame, (int(width), int(height)), (float(centre[0]), float(centre[1])))
        columns, rows = self._cells * CELL
        shrinks = columns < width
        way = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        return np.fft.rfft2(_features(cv2.resize(window, (int(columns), int(rows)), interpolation=way)) * self._taper)


def _features(window: npt.NDArray[np.generic]) -> Maps:
    """Gradients by orientation and colours, averaged over cells: C x rows x columns, each map of mean about 0."""
    rows, columns = window.shape[0] // CELL, window.shape[1] // CELL
    colours = np.asarray(window, np.float32) / 255
    grey = cv2.cvtColor(colours, cv2.COLOR_RGB2GRAY)
    right, down = (cv2.Sobel(grey, cv2.CV_32F, *way, ksize=3) for way in ((1, 0), (0, 1)))
    strength, angle = cv2.cartToPolar(right, down)
    place = (angle % np.pi) * np.float32(ORIENTATIONS / np.pi)
    lower = place.astype(np.int64)
    share = place - lower
    cell = np.arange(rows).repeat(CELL)[:, None] * columns + np.arange(columns).repeat(CELL)
    gathered = sum(
        np.bincount(
            (layer % ORIENTATIONS * rows * columns + cell).ravel(),
            (strength * weight).ravel(),
            minlength=ORIENTATIONS * rows * columns,
        )
        for layer, weight in ((lower, 1 - share), (lower + 1, share))
    )
    oriented = np.asarray(gathered, np.float32).reshape(ORIENTATIONS, rows, columns) / CELL**2
    around = cv2.blur((oriented**2).sum(axis=0), (3, 3))
    painted = cv2.resize(colours, (columns, rows), interpolation=cv2.INTER_AREA).transpose(2, 0, 1)
    cells = np.concatenate((np.minimum(oriented / np.sqrt(around + 1e-4), 0.6), painted))
    return np.asarray(cells - cells.mean(axis=(1, 2), keepdims=True), np.float32)


def _peak(rows: int, columns: int, width: npt.NDArray[np.floating]) -> Maps:
    """A peak of height 1 at the first cell, the map being periodic. width: (across, down) in cells."""
    across = np.minimum(np.arange(columns), columns - np.arange(columns)) / max(0.5, width[0])
    down = np.minimum(np.arange(rows), rows - np.arange(rows)) / max(0.5, width[1])
    return np.asarray(np.exp(-(down[:, None] ** 2 + across**2) / 2), np.float32)


def _energy(spectra: Spectra) -> npt.NDArray[np.floating]:
    return np.asarray((spectra.real**2 + spectra.imag**2).sum(axis=0))


def _summit(answer: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """(across, down) from the first cell to the highest place of a periodic map, between cells by a parabola."""
    place = np.unravel_index(int(answer.argmax()), answer.shape)
    offsets = []
    for axis in (1, 0):
        length, centre = answer.shape[axis], int(place[axis])
        before, here, after = (np.take(answer, (centre + n) % length, axis=axis)[place[1 - axis]] for n in (-1, 0, 1))
        bend = before - 2 * here + after
        part = 0.5 * (before - after) / bend if bend < 0 else 0.0
        offsets.append((centre + length // 2) % length - length // 2 + part)
    return np.array(offsets)
