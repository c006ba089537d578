"""Online tracker: score thresholds, search regions, size smoothing and template memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.regions import Crops
from protoformer.io.image_input import ImageLike, as_frame
from protoformer.models.runtime import Tensors
from protoformer.tracking.engine import TrackingEngine
from protoformer.tracking.result import Box, Boxes, TrackedBox, check_boxes, check_size

LOST_SCORE, REDETECT_SCORE, REDETECT_SCORE_REMOTE = 0.6, 0.7, 0.85
"""Score thresholds: a target is lost below the first; a lost target is detected again from the second on, or, in a
search region away from its last position, from the third on."""
GROWTH, MAX_GROWTH = 1.08, 2.0
"""Growth of the search region per frame while the target is lost, and its limit, the largest scale in training."""
PATIENCE = 10
"""Frames during which a lost target is searched at its last position; afterwards every other frame searches the next
region of a grid over the whole frame."""
MAX_STRIDE = 2 / 3
"""Largest distance between neighboring regions of that grid, in sides of a region."""
PRIOR_STRENGTH = 30.0
"""Penalty, in nats, of a corner at a distance of one search region from its last position. It grows with the square of
the distance, so a distractor 0.3 of the region away must be likelier by 2.7 nats."""
SIZE_RATE, MAX_SIZE_CHANGE = 0.8, 4 / 3
"""Fraction of a change of size (in log space) that one frame applies, and the largest factor, up or down, by which a
side changes in one frame."""
SIZE_MOMENTUM = 0.05
"""Weight of one frame in the running mean of the size (in log space)."""
MIN_REGION = 0.25
"""Smallest search region, relative to that of the first box."""
MIN_SIDE = 2.0
"""Smallest side of a box, pixels."""
UPDATE_INTERVAL = 5
"""Frames between template updates."""
MIN_UPDATE_SCORE = 0.8
"""Score from which on a frame updates the template; below it the target may be occluded."""
LATEST_WEIGHT = 0.5
"""Weight of the latest embedding in the template. The rest is always the first embedding, the only one known to be
correct, so a wrong update does not persist."""


@dataclass(frozen=True)
class SearchRegion:
    """A square crop in which a target is searched: center and side in pixels; remote if away from its last position."""

    x: float
    y: float
    side: float
    remote: bool = False


@dataclass(frozen=True)
class Target:
    """State of one target.

    Attributes:
        box: Last confident box, (x, y, w, h) in pixels.
        frames_lost: Frames since then.
        first_size: Square root of the area of the first box, pixels; by default that of `box`.
        mean_size: Running mean of the square root of the area, pixels; by default that of `box`.
    """

    box: Box
    frames_lost: int = 0
    first_size: float = field(default=0.0, compare=False)
    mean_size: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first_size", self.first_size or _root_area(self.box))
        object.__setattr__(self, "mean_size", self.mean_size or _root_area(self.box))

    @property
    def lost(self) -> bool:
        """Whether the target was not visible in the last frame."""
        return self.frames_lost > 0

    @property
    def prior_strength(self) -> float:
        """Strength of the position prior, as in `PRIOR_STRENGTH`; 0 while the target is lost."""
        return 0.0 if self.lost else PRIOR_STRENGTH

    def search_region(self, search_scale: float, size: tuple[int, int]) -> SearchRegion:
        """Return the search region of the next frame, of (height, width) pixels.

        `search_scale` is the side of a search region in square roots of the area of the box.
        """
        x, y, width, height = self.box
        extent = max(self.mean_size if self.lost else _root_area(self.box), MIN_REGION * self.first_size)
        side = search_scale * extent * math.exp(min(self.frames_lost * math.log(GROWTH), math.log(MAX_GROWTH)))
        overdue = self.frames_lost - PATIENCE
        if overdue <= 0 or overdue % 2 == 0:
            return SearchRegion(x + width / 2, y + height / 2, side)
        columns, rows = (max(1, math.ceil(length / (MAX_STRIDE * side))) for length in (size[1], size[0]))
        row, column = divmod(overdue // 2 % (columns * rows), columns)
        return SearchRegion((column + 0.5) * size[1] / columns, (row + 0.5) * size[0] / rows, side, remote=True)

    def after(self, predicted: Box, score: float, remote: bool, size: tuple[int, int]) -> "Target":
        """Return the state after a prediction.

        `predicted` is a box in pixels, `score` its confidence, and `remote` whether the search region was remote.
        """
        threshold = (REDETECT_SCORE_REMOTE if remote else REDETECT_SCORE) if self.lost else LOST_SCORE
        box = clip_to_frame(predicted if self.lost else self._smooth_size(predicted), size)
        if not score >= threshold or box is None:
            return replace(self, frames_lost=self.frames_lost + 1)
        mean_size = self.mean_size * (_root_area(box) / self.mean_size) ** SIZE_MOMENTUM
        return Target(box, first_size=self.first_size, mean_size=mean_size)

    def _smooth_size(self, predicted: Box) -> Box:
        """Return the predicted box with its change of size damped and limited."""
        x, y, *sides = predicted
        center = (x + sides[0] / 2, y + sides[1] / 2)
        changes = ((max(now, MIN_SIDE) / before) ** SIZE_RATE for before, now in zip(self.box[2:], sides, strict=True))
        width, height = (
            before * min(max(change, 1 / MAX_SIZE_CHANGE), MAX_SIZE_CHANGE)
            for before, change in zip(self.box[2:], changes, strict=True)
        )
        return center[0] - width / 2, center[1] - height / 2, width, height


def _root_area(box: Box) -> float:
    return math.sqrt(box[2] * box[3])


def clip_to_frame(box: Box, size: tuple[int, int]) -> Box | None:
    """Clip a box (x, y, w, h) to a frame of (height, width) pixels.

    None if a visible side is shorter than `MIN_SIDE` or the box is not finite.
    """
    if not all(math.isfinite(value) for value in box):
        return None
    x, y, width, height = box
    left, top, right, bottom = max(0.0, x), max(0.0, y), min(size[1], x + width), min(size[0], y + height)
    if right - left < MIN_SIDE or bottom - top < MIN_SIDE:
        return None
    return left, top, right - left, bottom - top


class TemplateMemory:
    """Templates of all targets: a mean of the first and the latest embedding of each.

    Attributes:
        template: Tensors as returned by `TrackingEngine.embed`.
    """

    def __init__(self, engine: TrackingEngine, pixels: Tensor, targets: Sequence[Target]) -> None:
        """Embed the targets in the first frame, 3 x H x W."""
        self._engine = engine
        self._first = self.template = engine.embed(pixels, _stack_boxes(targets))
        self._num_frames = 0

    def update(self, pixels: Tensor, targets: Sequence[Target], scores: Sequence[float]) -> None:
        """Update the templates of confident targets from a frame, 3 x H x W, once in every `UPDATE_INTERVAL` frames."""
        self._num_frames += 1
        if self._num_frames % UPDATE_INTERVAL:
            return
        confident = [
            index for index, score in enumerate(scores) if score >= MIN_UPDATE_SCORE and not targets[index].lost
        ]
        if confident:
            latest = self._engine.embed(pixels, _stack_boxes([targets[index] for index in confident]))
            self.template = _blend_templates(
                self.template, self._first, latest, torch.tensor(confident, device=latest[0].device)
            )


def _stack_boxes(targets: Sequence[Target]) -> Tensor:
    return torch.tensor([target.box for target in targets], dtype=torch.float32)


def _blend_templates(template: Tensors, first: Tensors, latest: Tensors, indices: Tensor) -> Tensors:
    """Replace the templates at some indices by a mean of the first and the latest embedding."""
    tokens, parts, summary = (old[indices].lerp(new, LATEST_WEIGHT) for old, new in zip(first, latest, strict=True))
    blended = (tokens, F.normalize(parts, dim=2), summary)  # parts are unit vectors
    return tuple(old.index_copy(0, indices, new) for old, new in zip(template, blended, strict=True))


class Tracker:
    """Online tracker of one or more targets; all targets are located in one forward pass.

    Attributes:
        targets: State of each target in the latest frame.
    """

    def __init__(self, engine: TrackingEngine, first: ImageLike, boxes: Boxes) -> None:
        """Initialize the targets by their boxes in the first frame, (x, y, w, h) in pixels."""
        self._engine = engine
        self.reset(first, boxes)

    def reset(self, frame: ImageLike, boxes: Boxes) -> None:
        """Discard all targets and start again.

        Args:
            frame: New first frame, of any size.
            boxes: Boxes of the targets in that frame, (x, y, w, h) in pixels.
        """
        pixels = as_frame(frame, "the frame")
        self._size = (pixels.shape[1], pixels.shape[2])
        checked = check_boxes(boxes, self._size)
        self._targets = [Target(_clip_box(box, self._size)) for box in checked]
        self.targets = tuple(TrackedBox(box, 1.0, False) for box in checked)
        self._memory = TemplateMemory(self._engine, pixels, self._targets)

    def update(self, frame: ImageLike) -> tuple[TrackedBox, ...]:
        """Locate the targets in the next frame.

        Args:
            frame: Next frame, of the size of the first.

        Returns:
            The state of each target, in the order of the boxes.
        """
        pixels, config = as_frame(frame, "the frame"), self._engine.config
        size = (pixels.shape[1], pixels.shape[2])
        check_size(size, self._size)
        regions = [target.search_region(config.tracking.search_scale, size) for target in self._targets]
        expected = torch.tensor([target.box for target in self._targets], dtype=torch.float32)
        prior_strength = torch.tensor([target.prior_strength for target in self._targets], dtype=torch.float32)
        crops = _search_crops(regions, config.tracking.search_size)
        box_tensor, score_tensor = self._engine.locate(pixels, crops, expected, prior_strength, self._memory.template)
        boxes, scores = box_tensor.tolist(), score_tensor.tolist()
        self._targets = [
            target.after(tuple(box), score, region.remote, size)
            for target, box, score, region in zip(self._targets, boxes, scores, regions, strict=True)
        ]
        self._memory.update(pixels, self._targets, scores)
        self.targets = tuple(
            TrackedBox(target.box, score, target.lost) for target, score in zip(self._targets, scores, strict=True)
        )
        return self.targets


def _clip_box(box: Box, size: tuple[int, int]) -> Box:
    """Clip a box to a frame of (height, width) pixels; raise an `InputError` if too little of it is visible."""
    clipped = clip_to_frame(box, size)
    if clipped is None:
        text = ",".join(f"{value:g}" for value in box)
        raise InputError(
            f"the frame of {size[1]}x{size[0]} pixels shows less than {MIN_SIDE:g} pixels of a side of the box {text}; "
            "give a larger one."
        )
    return clipped


def _search_crops(regions: list[SearchRegion], size: int) -> Crops:
    sides = torch.tensor([region.side for region in regions], dtype=torch.float32)
    centers = torch.tensor([(region.x, region.y) for region in regions], dtype=torch.float32)
    return Crops(centers - sides[:, None] / 2, sides, size)
