"""Probability that a pixel moves independently, from the flow, features and colors of a window of frames.

The steps, after Papazoglou and Ferrari (2013):

1. Camera motion: a robust quadratic fit to the flow to neighboring and to more distant frames, border first.
2. Evidence of independent motion: the residual of that fit relative to its noise, on a scale that adapts to the window.
3. Appearance: a classifier of colors and features, trained on the confident pixels of all frames of the window. It
   fills parts of an object that stand still for a while.
4. Both are accumulated along the flow, forward and backward through the window.

Maps are h x w, flow is in pixels of the maps, and all arrays are float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import cv2
import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.io.files import short_repr

Array = npt.NDArray[np.float32]
Image = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

GAPS = (1, 4)
"""Distances in frames over which independent motion is measured; slow objects need longer ones, fast ones leave."""
NOISE, RELATIVE_NOISE = 0.12, 0.03
"""Standard deviation of the flow: a constant, pixels of a map, and a fraction of the camera's motion."""
MIN_RATIO, TOP_RATIO, TOP_QUANTILE = 2.0, 0.25, 0.98
"""Independent motion exceeds the noise by MIN_RATIO, and TOP_RATIO times the quantile TOP_QUANTILE of the window."""
SLOPE, MIN_EVIDENCE, MAX_EVIDENCE = 2.5, -4.0, 4.0
"""Change of the log-odds per unit of the logarithm of the residual, and bounds of the log-odds."""
SUPPORT_LEVELS, SUPPORT_SIDE = 6.0, 5
"""Difference of color errors, of 255 levels, at which independent motion is certain, and side of the square, pixels,
over which errors are averaged."""
PERSISTENCE, ACCUMULATED = 0.85, 0.75
"""Weight of the log-odds of the previous frame, and of the accumulated log-odds."""
MAX_LOG_ODDS = 6.0


@dataclass(frozen=True)
class MotionWindow:
    """T consecutive frames and the flow between them.

    Attributes:
        images: T arrays, h x w x 3, uint8.
        features: T arrays, C x h' x w', encoder features.
        forward: T - 1 arrays, 3 x h x w: flow to the next frame, pixels, and its confidence in [0, 1].
        backward: T - 1 arrays, 3 x h x w: flow from the next frame to this one.
    """

    images: Sequence[Image]
    features: Sequence[Array]
    forward: Sequence[Array]
    backward: Sequence[Array]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the maps."""
        return self.images[0].shape[0], self.images[0].shape[1]


def warp_map(values: Array, flow: Array) -> Array:
    """Sample a map, h x w, at positions moved along a flow, 2 x h x w or more channels; borders are replicated."""
    height, width = values.shape
    x = np.arange(width, dtype=np.float32) + flow[0]
    y = np.arange(height, dtype=np.float32)[:, None] + flow[1]
    return cast(Array, cv2.remap(values, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))


def stays_inside(flow: Array) -> Mask:
    """Return which pixels stay in the frame: h x w."""
    height, width = flow.shape[1:]
    x = np.arange(width, dtype=np.float32) + flow[0]
    y = np.arange(height, dtype=np.float32)[:, None] + flow[1]
    inside: Mask = (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)
    return inside


def is_visible(flow: Array, back: Array) -> Mask:
    """Return which pixels are visible in the other frame, by the forward-backward consistency check: h x w."""
    returned = np.stack([warp_map(back[0], flow), warp_map(back[1], flow)])
    error = np.square(flow[:2] + returned).sum(axis=0)
    length = np.square(flow[:2]).sum(axis=0) + np.square(returned).sum(axis=0)
    visible: Mask = (error <= 0.02 * length + 0.5) & stays_inside(flow)
    return visible


def chain(window: MotionWindow, start: int, gap: int) -> Array | None:
    """Chain the flow from a frame to that `gap` frames later (negative: earlier): 3 x h x w; None if there is none."""
    end = start + gap
    if not 0 <= end < len(window):
        return None
    steps = (
        window.forward[start:end] if gap > 0 else [window.backward[index] for index in range(start - 1, end - 1, -1)]
    )
    flow, confidence = steps[0][:2].copy(), steps[0][2].copy()
    for step in steps[1:]:
        confidence *= warp_map(step[2], flow) * stays_inside(flow)
        flow += np.stack([warp_map(step[0], flow), warp_map(step[1], flow)])
    return np.concatenate((flow, confidence[None]))


CAMERA_STRIDE = 3
"""Sampling of the camera fit, pixels."""
CAMERA_ITERATIONS, CAMERA_HYPOTHESES = 10, 24
BORDER_DEPTH, INNER_WEIGHT = 0.15, 0.15
"""Pixels near the border show the camera's motion: their weight is 1 + INNER_WEIGHT and falls off to INNER_WEIGHT."""
CAMERA_RIDGE = (1e-6, 1e-4, 1e-4, 1e-3, 1e-3, 1e-3)
"""Ridge penalty of the terms 1, x, y, x^2, xy, y^2, relative to the total weight."""
MIN_SCALE = 0.08
"""Smallest scale of residuals, pixels."""


class CameraModel:
    """Robust fit of the motion that a camera causes, as a quadratic function of the position.

    Args:
        size: (height, width) of the maps.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        height, width = size
        unit = max(size) / 2
        y, x = np.mgrid[0:height, 0:width].astype(np.float32)
        u, v = (x - (width - 1) / 2) / unit, (y - (height - 1) / 2) / unit
        self.terms: Array = np.stack((np.ones_like(u), u, v, u * u, u * v, v * v))
        distance = np.minimum(np.minimum(x, width - 1 - x) / width, np.minimum(y, height - 1 - y) / height)
        self.border: Array = INNER_WEIGHT + np.exp(-distance / BORDER_DEPTH)
        self._sampled = self.terms[:, ::CAMERA_STRIDE, ::CAMERA_STRIDE].reshape(6, -1).T.astype(np.float64)

    def fit(self, flow: Array, weights: Array) -> tuple[Array, float]:
        """Fit the dominant motion.

        Args:
            flow: 2 x h x w, pixels.
            weights: h x w, nonnegative.

        Returns:
            The motion of the camera, 2 x h x w, pixels, and the scale of the residuals around it, pixels.
        """
        step = slice(None, None, CAMERA_STRIDE)
        terms, vectors = self._sampled, flow[:, step, step].reshape(2, -1).T.astype(np.float64)
        prior = (weights * self.border)[step, step].reshape(-1).astype(np.float64) + 1e-9
        coefficients, scale = self._initial(terms, vectors, prior)
        scale = max(0.3, 2 * scale)
        penalty = np.diag(CAMERA_RIDGE) * prior.sum()
        residuals = np.linalg.norm(vectors - terms @ coefficients, axis=1)
        for _ in range(CAMERA_ITERATIONS):
            weight = prior * np.square(scale**2 / (scale**2 + residuals**2))
            weighted = terms * weight[:, None]
            coefficients = np.linalg.solve(weighted.T @ terms + penalty, weighted.T @ vectors)
            residuals = np.linalg.norm(vectors - terms @ coefficients, axis=1)
            scale = max(MIN_SCALE, 1.5 * _weighted_median(residuals, weight), 0.7 * scale)
        field = np.einsum("chw,ck->khw", self.terms, coefficients.astype(np.float32))
        return field, scale

    def _initial(
        self, terms: npt.NDArray[np.float64], vectors: npt.NDArray[np.float64], prior: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.float64], float]:
        """Return the coefficients of the best of several affine motions, by the weighted median residual, and it."""
        rng = np.random.default_rng(0)
        few = rng.choice(len(vectors), min(len(vectors), 800), p=prior / prior.sum())
        best: tuple[npt.NDArray[np.float64], float] | None = None
        for index in range(CAMERA_HYPOTHESES):
            coefficients = np.zeros((6, 2))
            if index == 0:
                coefficients[0] = np.median(vectors[few], axis=0)
            else:
                drawn = rng.choice(few, 6)
                system = terms[drawn, :3].T @ terms[drawn, :3] + 0.01 * np.diag((1e-6, 1.0, 1.0))
                coefficients[:3] = np.linalg.solve(system, terms[drawn, :3].T @ vectors[drawn])
            residual = float(np.median(np.linalg.norm(vectors[few] - terms[few] @ coefficients, axis=1)))
            if best is None or residual < best[1]:
                best = coefficients, residual
        assert best is not None
        return best


def _weighted_median(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> float:
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    return float(values[order[min(len(order) - 1, int(np.searchsorted(cumulative, cumulative[-1] / 2)))]])


@dataclass(frozen=True)
class IndependentMotion:
    """Motion relative to the background in each frame of a window.

    Attributes:
        ratios: T arrays, h x w, logarithm of the speed relative to its noise, a mean over several distances in time.
        support: T arrays, h x w, in [0, 1]: whether the flow matches colors better than the motion of the camera does.
            Without texture both match, and independent motion is a guess.
        residuals: T arrays, 2 x h x w: flow to the next frame (in the last frame: minus that to the previous one) less
            the motion of the camera, pixels.
    """

    ratios: list[Array]
    support: list[Array]
    residuals: list[Array]

    def evidence(self) -> list[Array]:
        """Return T arrays, h x w: log-odds that a pixel moves independently, by the motion in this frame alone."""
        tops = np.array([np.quantile(ratio, TOP_QUANTILE) for ratio in self.ratios])
        # An object that slows down in a frame lowers the threshold there; a brief fast motion does not raise it.
        thresholds = np.maximum(np.log(MIN_RATIO), np.minimum(tops, np.quantile(tops, 0.6)) + np.log(TOP_RATIO))
        output = []
        for ratio, threshold, support in zip(self.ratios, thresholds, self.support, strict=True):
            evidence = np.clip(SLOPE * (ratio - np.float32(threshold)), MIN_EVIDENCE, MAX_EVIDENCE)
            output.append(np.where(evidence > 0, evidence * support, evidence))
        return output


def _color_error(image: Image, other: Image, field: Array) -> Array:
    """Return the mean color difference, h x w, levels, of an image and another one that is warped along a field."""
    height, width = image.shape[:2]
    x = np.arange(width, dtype=np.float32) + field[0]
    y = np.arange(height, dtype=np.float32)[:, None] + field[1]
    warped = cv2.remap(other, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    difference = cv2.absdiff(image, warped).astype(np.float32).mean(axis=2)
    return cast(Array, cv2.blur(difference, (SUPPORT_SIDE, SUPPORT_SIDE)))


def measure_independent_motion(window: MotionWindow, camera: CameraModel) -> IndependentMotion:
    """Compare the flow with the motion of the camera.

    Args:
        window: The frames.
        camera: Camera model of that size.
    """
    ratios, supports, residuals = [], [], []
    for index in range(len(window)):
        total, weight = np.zeros(window.size, np.float32), np.full(window.size, 1e-6, np.float32)
        first, support = None, np.zeros(window.size, np.float32)
        for gap in (sign * gap for gap in GAPS for sign in (1, -1)):
            flow = chain(window, index, gap)
            if flow is None:
                continue
            other = window.images[index + gap]
            confidence = flow[2] + 0.02
            motion, scale = camera.fit(flow[:2], confidence)
            residual = flow[:2] - motion
            first = np.sign(gap) * residual if first is None else first
            variance = NOISE**2 * abs(gap) + RELATIVE_NOISE**2 * np.square(motion).sum(axis=0) + scale**2
            ratio = np.square(residual).sum(axis=0) / variance
            total += confidence * 0.5 * np.log(ratio + 1e-6)
            weight += confidence
            errors = (_color_error(window.images[index], other, field) for field in (motion, flow))
            support = np.maximum(support, next(errors) - next(errors))
        ratios.append(total / weight)
        supports.append(np.minimum(1, support / SUPPORT_LEVELS).astype(np.float32))
        residuals.append(np.zeros((2, *window.size), np.float32) if first is None else first)
    return IndependentMotion(ratios, supports, residuals)


def accumulate(evidence: Sequence[Array], window: MotionWindow) -> list[Array]:
    """Add up the evidence of all frames along the flow, with weights that decrease with the distance: T log-odds."""
    count = len(evidence)
    forward, backward = list(evidence), list(evidence)
    for index in range(1, count):
        to_previous = window.backward[index - 1]
        weight = PERSISTENCE * is_visible(to_previous, window.forward[index - 1])
        forward[index] = evidence[index] + weight * warp_map(forward[index - 1], to_previous)
    for index in range(count - 2, -1, -1):
        to_next = window.forward[index]
        weight = PERSISTENCE * is_visible(to_next, window.backward[index])
        backward[index] = evidence[index] + weight * warp_map(backward[index + 1], to_next)
    return [
        np.clip(ACCUMULATED * (before + after - own), -MAX_LOG_ODDS, MAX_LOG_ODDS)
        for before, after, own in zip(forward, backward, evidence, strict=True)
    ]


NUM_FEATURES, NUM_COSINES = 16, 300
"""Principal components of the encoder features that are used, and random Fourier features of the classifier."""
COLOR_SCALE, FEATURE_SCALE, POSITION_SCALE = 4.0, 0.35, 2.0
"""Scales of color (L in [0, 1]), features (of unit mean deviation) and position (in [0, 1]) in the kernel."""
APPEARANCE_STRIDE, TRAINING_STRIDE = 2, 3
"""Pixels of a map per cell of the classifier, and cells per cell that it is trained on."""
RIDGE, APPEARANCE_WEIGHT = 3e-4, 3.0
"""Ridge penalty of the classifier, for training weights of sum 1 / TRAINING_STRIDE, and weight of its scores."""


class Appearance:
    """A kernel classifier of color, encoder features and position, trained on a window.

    It is ridge regression on random Fourier features of a Gaussian kernel, which is solved in closed form.

    Args:
        window: The frames.
    """

    def __init__(self, window: MotionWindow) -> None:
        rng = np.random.default_rng(0)
        cells = np.concatenate([each.reshape(len(each), -1).T for each in window.features])
        self._mean = cells.mean(axis=0)
        some = cells[:: max(1, len(cells) // 8192)] - self._mean
        values, vectors = np.linalg.eigh(some.T @ some / len(some))
        count = min(NUM_FEATURES, len(values))
        scale = np.sqrt(max(1e-12, float(values[-count:].mean())))
        self._projection = (vectors[:, -count:] / scale).astype(np.float32)
        self._frequencies = rng.normal(size=(count + 5, NUM_COSINES)).astype(np.float32)
        self._phases = rng.uniform(0, 2 * np.pi, NUM_COSINES).astype(np.float32)
        height, width = window.size
        self._grid = (max(1, width // APPEARANCE_STRIDE), max(1, height // APPEARANCE_STRIDE))
        self._window = window
        self._inputs = [self._describe(index) for index in range(len(window))]

    def _describe(self, index: int) -> Array:
        """Return color, features and position of the cells of a frame: cells x channels."""
        small = cv2.resize(self._window.images[index], self._grid, interpolation=cv2.INTER_AREA)
        lab = cv2.cvtColor(small.astype(np.float32) / 255, cv2.COLOR_RGB2LAB) / np.array((100, 60, 60), np.float32)
        features = self._window.features[index].transpose(1, 2, 0) - self._mean
        features = cv2.resize(np.ascontiguousarray(features @ self._projection), self._grid)
        x = np.linspace(0, 1, self._grid[0], dtype=np.float32)
        y = np.linspace(0, 1, self._grid[1], dtype=np.float32)
        position = np.stack(np.meshgrid(x, y), axis=-1)
        joined = np.concatenate((COLOR_SCALE * lab, FEATURE_SCALE * features, POSITION_SCALE * position), axis=-1)
        return cast(Array, joined.reshape(-1, joined.shape[-1]).astype(np.float32))

    def _expand(self, inputs: Array) -> Array:
        """Return the random features of cells, n x channels: n x (NUM_COSINES + 1). They are too many to keep."""
        cosines = np.cos(inputs @ self._frequencies + self._phases)
        return np.concatenate((cosines, np.ones((len(cosines), 1), np.float32)), axis=1)

    def classify(self, log_odds: Sequence[Array]) -> list[Array]:
        """Train on the signs of log-odds, weighted by their certainty, and return T maps in [-1, 1]."""
        targets = [
            np.tanh(cv2.resize(each, self._grid, interpolation=cv2.INTER_AREA).reshape(-1) / 2) for each in log_odds
        ]
        positive = sum(float(each[each > 0].sum()) for each in targets)
        negative = -sum(float(each[each < 0].sum()) for each in targets)
        if min(positive, negative) < 1:
            return [np.zeros_like(each) for each in log_odds]
        size = NUM_COSINES + 1
        products, sums = RIDGE * np.eye(size), np.zeros(size)
        for index, (inputs, target) in enumerate(zip(self._inputs, targets, strict=True)):
            some = slice(index % TRAINING_STRIDE, None, TRAINING_STRIDE)
            cosines, target = self._expand(inputs[some]), target[some]
            weights = np.where(target > 0, 0.5 * target / positive, -0.5 * target / negative)
            weighted = cosines * weights[:, None]
            products += weighted.T @ cosines
            sums += weighted.T @ np.sign(target)
        solution = np.linalg.solve(products, sums).astype(np.float32)
        height, width = self._window.size
        outputs = []
        for inputs, image in zip(self._inputs, self._window.images, strict=True):
            score = np.clip(self._expand(inputs) @ solution, -1, 1).reshape(self._grid[::-1])
            score = cv2.resize(score, (width, height), interpolation=cv2.INTER_LINEAR)
            outputs.append(guided_filter(image, score, 2, 1e-3))
        return outputs


def guided_filter(image: Image, values: Array, radius: int, regularization: float) -> Array:
    """Smooth a map, h x w, except at the edges of an image, h x w x 3 (He, Sun and Tang, 2013)."""
    guide = image.astype(np.float32) / np.float32(255)
    side = (2 * radius + 1, 2 * radius + 1)

    def mean(array: Array) -> Array:
        return cast(Array, cv2.blur(array, side, borderType=cv2.BORDER_REFLECT))

    mean_guide, mean_values = mean(guide), mean(values)
    r, g, b = (guide[..., channel] for channel in range(3))
    first = mean(np.stack((r * r, r * g, r * b), axis=-1))
    second = mean(np.stack((g * g, g * b, b * b), axis=-1))
    mr, mg, mb = (mean_guide[..., channel] for channel in range(3))
    rr, rg, rb = first[..., 0] - mr * mr + regularization, first[..., 1] - mr * mg, first[..., 2] - mr * mb
    gg, gb = second[..., 0] - mg * mg + regularization, second[..., 1] - mg * mb
    bb = second[..., 2] - mb * mb + regularization
    covariance = mean(guide * values[..., None]) - mean_guide * mean_values[..., None]
    cr, cg, cb = (covariance[..., channel] for channel in range(3))
    # The inverse of the symmetric 3 x 3 covariance of the guide, by cofactors.
    irr, irg, irb = gg * bb - gb * gb, gb * rb - rg * bb, rg * gb - gg * rb
    igg, igb, ibb = rr * bb - rb * rb, rb * rg - rr * gb, rr * gg - rg * rg
    determinant = rr * irr + rg * irg + rb * irb
    slope = (
        np.stack(
            (irr * cr + irg * cg + irb * cb, irg * cr + igg * cg + igb * cb, irb * cr + igb * cg + ibb * cb), axis=-1
        )
        / determinant[..., None]
    )
    offset = mean_values - (slope * mean_guide).sum(axis=-1)
    smoothed: Array = (mean(slope) * guide).sum(axis=-1) + mean(offset)
    return smoothed


NUM_ROUNDS = 2
"""Rounds of training the appearance."""


def estimate_foreground(window: MotionWindow) -> tuple[list[Array], IndependentMotion]:
    """Return the log-odds that pixels move independently, T arrays, and the independent motion."""
    camera = CameraModel(window.size)
    motion = measure_independent_motion(window, camera)
    evidence = motion.evidence()
    log_odds = accumulate(evidence, window)
    appearance = Appearance(window)
    for _ in range(NUM_ROUNDS):
        scores = appearance.classify(log_odds)
        log_odds = accumulate(
            [own + np.float32(APPEARANCE_WEIGHT) * score for own, score in zip(evidence, scores, strict=True)], window
        )
    return log_odds, motion


def threshold_motion(window: MotionWindow) -> tuple[list[Array], IndependentMotion]:
    """Return log-odds and independent motion of the baseline: residual flow, without appearance and accumulation."""
    motion = measure_independent_motion(window, CameraModel(window.size))
    return motion.evidence(), motion


METHODS = {"model": estimate_foreground, "threshold": threshold_motion}
"""Estimates of the foreground by name."""


def check_method(method: str) -> None:
    """Raise `InputError` if there is no method of this name."""
    if method not in METHODS:
        raise InputError(f"there is no method {short_repr(method)}; choose one of {', '.join(METHODS)}.")
