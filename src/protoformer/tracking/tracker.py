"""Online tracker: score thresholds, search regions, size smoothing and template memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.regions import Crops, box_iou
from protoformer.io.files import short_repr
from protoformer.io.image_input import ImageLike, as_frame
from protoformer.models.runtime import Tensors
from protoformer.tracking.engine import TrackingEngine
from protoformer.tracking.result import Box, Boxes, TrackedBox, check_boxes, check_size

LOST_SCORE, REDETECT_SCORE, REDETECT_SCORE_REMOTE = 0.6, 0.7, 0.95
"""Score thresholds: a target is lost below the first; a lost target is detected again from the second on, or, in a
search region away from its last position, from the third on."""
GROWTH, MAX_GROWTH = 1.08, 2.0
"""Growth of the search region per frame while the target is lost, and its limit, the largest scale in training."""
PATIENCE = 15
"""Frames during which a lost target is searched at its last position only; afterwards also in regions of a grid over
the whole frame."""
REMOTE_REGIONS = 3
"""Regions of that grid per frame and lost target. A frame of 854 x 480 pixels is searched within a second for a target
of 30 x 30 pixels."""
MAX_STRIDE = 2 / 3
"""Largest distance between neighboring regions of that grid, in sides of a region."""
MIN_VERIFIED_IOU = 0.3
"""Smallest IoU of a detected target with the box that the first template alone finds there."""
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

    def search_regions(self, search_scale: float, size: tuple[int, int]) -> list[SearchRegion]:
        """Return the search regions of the next frame, of (height, width) pixels; a lost target has several.

        `search_scale` is the side of a search region in square roots of the area of the box.
        """
        x, y, width, height = self.box
        extent = max(self.mean_size if self.lost else _root_area(self.box), MIN_REGION * self.first_size)
        side = search_scale * extent * math.exp(min(self.frames_lost * math.log(GROWTH), math.log(MAX_GROWTH)))
        regions = [SearchRegion(x + width / 2, y + height / 2, side)]
        if self.frames_lost < PATIENCE:
            return regions
        columns, rows = (max(1, math.ceil(length / (MAX_STRIDE * side))) for length in (size[1], size[0]))
        start = REMOTE_REGIONS * (self.frames_lost - PATIENCE)
        for index in range(start, start + min(REMOTE_REGIONS, columns * rows)):
            row, column = divmod(index % (columns * rows), columns)
            center = (column + 0.5) * size[1] / columns, (row + 0.5) * size[0] / rows
            regions.append(SearchRegion(*center, side, remote=True))
        return regions

    def threshold(self, remote: bool) -> float:
        """Return the score that a box needs; `remote` says whether its search region was remote."""
        if not self.lost:
            return LOST_SCORE
        return REDETECT_SCORE_REMOTE if remote else REDETECT_SCORE

    def choose(self, candidates: Sequence["Candidate"]) -> "Candidate":
        """Return the candidate whose score exceeds the one that it needs by most."""
        return max(candidates, key=lambda each: each.score - self.threshold(each.region.remote))

    def after(self, candidate: "Candidate", size: tuple[int, int]) -> "Target":
        """Return the state after a frame of (height, width) pixels in which a candidate was the best."""
        box = clip_to_frame(candidate.box if self.lost else self._smooth_size(candidate.box), size)
        if not candidate.score >= self.threshold(candidate.region.remote) or box is None:
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
        first: First embedding of each target, tensors as returned by `TrackingEngine.embed`.
        template: Current templates, likewise.
    """

    def __init__(self, engine: TrackingEngine, pixels: Tensor, targets: Sequence[Target]) -> None:
        """Embed the targets in the first frame, 3 x H x W."""
        self._engine = engine
        self.first = self.template = engine.embed(pixels, _stack_boxes(targets))
        self._num_frames = 0

    def add(self, pixels: Tensor, targets: Sequence[Target]) -> None:
        """Embed further targets in a frame, 3 x H x W, and append them."""
        embedded = self._engine.embed(pixels, _stack_boxes(targets))
        self.first, self.template = (
            tuple(torch.cat(each) for each in zip(old, embedded, strict=True)) for old in (self.first, self.template)
        )

    def keep(self, indices: Sequence[int]) -> None:
        """Keep the targets at some indices only."""
        self.first, self.template = _select_rows(self.first, indices), _select_rows(self.template, indices)

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
                self.template, self.first, latest, torch.tensor(confident, device=latest[0].device)
            )


def _select_rows(template: Tensors, indices: Sequence[int]) -> Tensors:
    rows = torch.tensor(indices, dtype=torch.long, device=template[0].device)
    return tuple(each.index_select(0, rows) for each in template)


def _stack_boxes(targets: Sequence[Target]) -> Tensor:
    return torch.tensor([target.box for target in targets], dtype=torch.float32)


def _blend_templates(template: Tensors, first: Tensors, latest: Tensors, indices: Tensor) -> Tensors:
    """Replace the templates at some indices by a mean of the first and the latest embedding."""
    tokens, parts, summary = (old[indices].lerp(new, LATEST_WEIGHT) for old, new in zip(first, latest, strict=True))
    blended = (tokens, F.normalize(parts, dim=2), summary)  # parts are unit vectors
    return tuple(old.index_copy(0, indices, new) for old, new in zip(template, blended, strict=True))


@dataclass(frozen=True)
class Candidate:
    """A box of a target, (x, y, w, h) in pixels, its score, and the search region in which it was located."""

    region: SearchRegion
    box: Box
    score: float

    def verified(self, second: "Candidate") -> "Candidate":
        """Return the candidate of a lost target after verification by `second`, located with the first template."""
        overlap = float(box_iou(torch.tensor([self.box]), torch.tensor([second.box])))
        return replace(second, score=min(self.score, second.score) if overlap >= MIN_VERIFIED_IOU else 0.0)


class Tracker:
    """Online tracker of any number of targets.

    All targets are located in one batch; detections of lost targets are verified in a second one.

    Attributes:
        targets: State of each target in the latest frame.
        ids: Identity of each target, in the same order: 0, 1, ... in the order in which they were added. They are not
            reused until `reset`, which counts from 0 again.
    """

    def __init__(self, engine: TrackingEngine, first: ImageLike, boxes: Boxes) -> None:
        """Initialize the targets by their boxes in the first frame, (x, y, w, h) in pixels."""
        self._engine = engine
        self.reset(first, boxes)

    @property
    def state(self) -> dict[int, TrackedBox]:
        """State of each target in the latest frame, by its identity."""
        return dict(zip(self.ids, self.targets, strict=True))

    def reset(self, frame: ImageLike, boxes: Boxes) -> None:
        """Discard all targets and start again.

        Args:
            frame: New first frame, of any size.
            boxes: Boxes of the targets in that frame, (x, y, w, h) in pixels.
        """
        pixels = as_frame(frame, "the frame")
        size = (pixels.shape[1], pixels.shape[2])
        checked = check_boxes(boxes, size)
        targets = [Target(_clip_box(box, size)) for box in checked]
        self._memory = TemplateMemory(self._engine, pixels, targets)
        self._size, self._targets = size, targets
        self.targets = tuple(TrackedBox(box, 1.0, False) for box in checked)
        self.ids = tuple(range(len(checked)))
        self._next_id = len(checked)

    def add(self, frame: ImageLike, boxes: Boxes) -> tuple[int, ...]:
        """Add targets.

        Args:
            frame: Frame of the last call of `update`, or the first one.
            boxes: Boxes of the new targets in that frame, (x, y, w, h) in pixels.

        Returns:
            Their identities.

        Raises:
            InputError: If the frame has another size, a box is malformed, or the frame does not contain it.
        """
        pixels = as_frame(frame, "the frame")
        check_size((pixels.shape[1], pixels.shape[2]), self._size)
        checked = check_boxes(boxes, self._size)
        added = [Target(_clip_box(box, self._size)) for box in checked]
        self._memory.add(pixels, added)
        self._targets = [*self._targets, *added]
        self.targets = (*self.targets, *(TrackedBox(box, 1.0, False) for box in checked))
        new_ids = tuple(range(self._next_id, self._next_id + len(added)))
        self.ids, self._next_id = (*self.ids, *new_ids), self._next_id + len(added)
        return new_ids

    def remove(self, *ids: int) -> None:
        """Stop tracking some targets; all of them may be removed.

        Args:
            ids: Identities of the targets.

        Raises:
            InputError: If there is no target with such an identity.
        """
        for each in ids:
            if each not in self.ids:
                existing = ", ".join(map(str, self.ids)) or "none"
                raise InputError(f"there is no target {short_repr(each)}; the tracker has {existing}.")
        kept = [index for index, each in enumerate(self.ids) if each not in ids]
        self._memory.keep(kept)
        self._targets = [self._targets[index] for index in kept]
        self.targets, self.ids = tuple(self.targets[index] for index in kept), tuple(self.ids[index] for index in kept)

    def update(self, frame: ImageLike) -> tuple[TrackedBox, ...]:
        """Locate the targets in the next frame.

        Args:
            frame: Next frame, of the size of the first.

        Returns:
            The state of each target, in the order of `ids`.
        """
        pixels = as_frame(frame, "the frame")
        size = (pixels.shape[1], pixels.shape[2])
        check_size(size, self._size)
        if not self._targets:
            return ()
        best = self._verify_detections(pixels, self._search(pixels))
        self._targets = [target.after(each, size) for target, each in zip(self._targets, best, strict=True)]
        scores = [each.score for each in best]
        self._memory.update(pixels, self._targets, scores)
        self.targets = tuple(
            TrackedBox(target.box, score, target.lost) for target, score in zip(self._targets, scores, strict=True)
        )
        return self.targets

    def _search(self, pixels: Tensor) -> list[Candidate]:
        """Locate every target with its current template, and return its best candidate."""
        scale = self._engine.config.tracking.search_scale
        searches = [
            (index, region)
            for index, target in enumerate(self._targets)
            for region in target.search_regions(scale, self._size)
        ]
        candidates: list[list[Candidate]] = [[] for _ in self._targets]
        for (index, _), candidate in zip(searches, self._locate(pixels, searches, self._memory.template), strict=True):
            candidates[index].append(candidate)
        return [target.choose(own) for target, own in zip(self._targets, candidates, strict=True)]

    def _verify_detections(self, pixels: Tensor, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Check lost targets that seem to be detected again: the first template must find them at the same position.

        The first template cannot have drifted to another object.
        """
        result, searches = list(candidates), []
        for index, (target, each) in enumerate(zip(self._targets, candidates, strict=True)):
            box = clip_to_frame(each.box, self._size)
            if target.lost and box is not None and each.score >= target.threshold(each.region.remote):
                side = self._engine.config.tracking.search_scale * _root_area(box)
                region = SearchRegion(box[0] + box[2] / 2, box[1] + box[3] / 2, side, each.region.remote)
                searches.append((index, region))
        for (index, _), second in zip(searches, self._locate(pixels, searches, self._memory.first), strict=True):
            result[index] = candidates[index].verified(second)
        return result

    def _locate(
        self, pixels: Tensor, searches: Sequence[tuple[int, SearchRegion]], template: Tensors
    ) -> list[Candidate]:
        """Locate targets, given by their indices, each in a search region of a frame, 3 x H x W."""
        if not searches:
            return []
        indices, regions = [index for index, _ in searches], [region for _, region in searches]
        if indices != list(range(len(self._targets))):
            template = _select_rows(template, indices)
        targets = [self._targets[index] for index in indices]
        boxes, scores = self._engine.locate(
            pixels,
            _search_crops(regions, self._engine.config.tracking.search_size),
            _stack_boxes(targets),
            torch.tensor([target.prior_strength for target in targets], dtype=torch.float32),
            template,
        )
        return [
            Candidate(region, tuple(box), score)
            for region, box, score in zip(regions, boxes.tolist(), scores.tolist(), strict=True)
        ]


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
