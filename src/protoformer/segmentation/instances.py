"""Objects in foreground masks, with numbers that stay the same through a clip.

A connected piece of foreground is one object, unless two parts of it move differently at their common border. Pieces
take the numbers of the objects that move onto them; a piece onto which two objects move is divided between them, so
that objects keep their numbers while they touch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import cv2
import numpy as np
import numpy.typing as npt
import torch

from protoformer.explain.parts import segment_motion
from protoformer.segmentation.foreground import Array, MotionWindow

LabelMap = npt.NDArray[np.int32]
AnyLabel = TypeVar("AnyLabel", np.int32, np.uint8)

MIN_AREA = 0.0006
"""Smaller pieces are removed, as a fraction of the frame."""
MIN_RELATIVE_AREA = 0.03
"""Smaller pieces are removed, as a fraction of the largest piece in the frame."""
MIN_FRAMES = 4
"""Objects that are visible in fewer frames of a window are removed, or joined with the object that they touch most."""
MIN_OVERLAP = 0.25
"""Fraction of a piece, or of a moved object, from which on they belong together."""
MIN_PART, MIN_CONTACT = 0.1, 4
"""Smallest part, as a fraction of its piece, and shortest border, pixels, at which a piece is divided by motion."""
MIN_CORE = 0.25
"""Fraction of a part that an erosion by two pixels must leave; fringes of blurred flow at a border are no objects."""
MIN_JUMP, RELATIVE_JUMP = 0.75, 0.5
"""Parts are different objects if their motions at the border differ by MIN_JUMP pixels and RELATIVE_JUMP times the
motion of the slower one; limbs of one body move alike at the joint."""
BORDER_DISTANCE = 3
"""Distance from the border, pixels of a map, at which motions are compared; at the border the flow is blurred."""


@dataclass
class InstanceTracker:
    """Numbers of the objects, from window to window.

    Attributes:
        previous: Labels of the last frame, h x w; None before the first window.
        next_number: The number that the next new object gets.
    """

    previous: LabelMap | None = None
    next_number: int = 1

    def label(
        self, masks: Sequence[npt.NDArray[np.bool_]], window: MotionWindow, start: int, stop: int
    ) -> list[LabelMap]:
        """Label the foreground of the frames `start` .. `stop` - 1 of a window.

        Args:
            masks: T masks, h x w.
            window: The frames.
            start: First frame to label; the one before is the last one that was labeled in the previous window.
            stop: End of the frames to label.

        Returns:
            One label map per frame: 0 for the background, otherwise the number of an object.
        """
        labels: list[LabelMap] = []
        known = set() if self.previous is None else set(np.unique(self.previous).tolist())
        for index in range(start, stop):
            moved = self.previous
            if moved is not None and index:
                moved = _warp_labels(moved, window.backward[index - 1])
            self.previous = self._assign(_split_by_motion(remove_specks(masks[index]), window, index), moved)
            labels.append(self.previous)
        labels = _drop_short(labels, known)
        self.previous = labels[-1]
        return labels

    def _assign(self, pieces: LabelMap, moved: LabelMap | None) -> LabelMap:
        """Number pieces (1, 2, ...) by the objects that moved onto them."""
        output = np.zeros_like(pieces)
        claimed: dict[int, tuple[int, int]] = {}
        owners: dict[int, list[int]] = {}
        for piece in range(1, int(pieces.max()) + 1):
            inside = pieces == piece
            numbers: list[int] = []
            if moved is not None:
                counts = np.bincount(moved[inside])
                sizes = np.bincount(moved.reshape(-1), minlength=len(counts))
                for number in np.flatnonzero(counts).tolist():
                    if not number:
                        continue
                    if counts[number] > MIN_OVERLAP * min(int(inside.sum()), int(sizes[number])):
                        numbers.append(number)
                        # An object that has come apart stays with the piece that holds most of it.
                        if counts[number] > claimed.get(number, (0, 0))[1]:
                            claimed[number] = piece, int(counts[number])
            owners[piece] = numbers
        for piece, numbers in owners.items():
            inside = pieces == piece
            own = [number for number in numbers if claimed[number][0] == piece]
            if not own:
                own = [self.next_number]
                self.next_number += 1
            if len(own) > 1 and moved is not None:
                solid = [number for number in own if _is_solid(inside & (moved == number))]
                own = solid or own[:1]
            if len(own) == 1:
                output[inside] = own[0]
            else:
                assert moved is not None
                output[inside] = nearest_label(np.where(inside & np.isin(moved, own), moved, 0))[inside]
        return output


def _is_solid(mask: npt.NDArray[np.bool_]) -> bool:
    """Return whether a mask, h x w, is more than a fringe: objects survive an erosion, strips along borders not."""
    eroded = cv2.erode(mask.astype(np.uint8), np.ones((5, 5), np.uint8))
    return bool(eroded.sum() >= MIN_CORE * mask.sum())


def remove_specks(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Remove small pieces of a mask, h x w."""
    _, pieces, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
    areas = stats[:, cv2.CC_STAT_AREA]
    least = max(MIN_AREA * mask.size, MIN_RELATIVE_AREA * float(areas[1:].max(initial=0)))
    keep = areas >= least
    keep[0] = False
    kept: npt.NDArray[np.bool_] = keep[pieces]
    return kept


def _warp_labels(labels: LabelMap, to_previous: Array) -> LabelMap:
    """Move labels to the next frame by its flow to the previous one, 2 x h x w."""
    height, width = labels.shape
    x = np.clip(np.rint(np.arange(width) + to_previous[0]), 0, width - 1).astype(np.int64)
    y = np.clip(np.rint(np.arange(height)[:, None] + to_previous[1]), 0, height - 1).astype(np.int64)
    moved: LabelMap = labels[y, x]
    return moved


def nearest_label(labels: npt.NDArray[AnyLabel]) -> npt.NDArray[AnyLabel]:
    """Give every pixel the label of the nearest pixel with one."""
    if not labels.any():
        return labels
    _, index = cv2.distanceTransformWithLabels(
        (labels == 0).astype(np.uint8), cv2.DIST_L2, 3, labelType=cv2.DIST_LABEL_PIXEL
    )
    lookup = np.zeros(int(index.max()) + 1, labels.dtype)
    lookup[index[labels > 0]] = labels[labels > 0]
    nearest: npt.NDArray[AnyLabel] = lookup[index]
    return nearest


def _split_by_motion(mask: npt.NDArray[np.bool_], window: MotionWindow, index: int) -> LabelMap:
    """Return the connected pieces of a mask, 1, 2, ..., divided where parts slide past each other."""
    _, connected = cv2.connectedComponents(mask.astype(np.uint8), connectivity=8)
    pieces = connected.astype(np.int32)
    if not mask.any() or not window.forward:
        return pieces
    flow = window.forward[index] if index < len(window.forward) else window.backward[index - 1]
    regions, vectors = torch.from_numpy(pieces).long(), torch.from_numpy(flow)
    parts = segment_motion(regions, vectors[:2], vectors[2:]).numpy()
    output, count = np.zeros_like(pieces), 0
    for piece in range(1, int(pieces.max()) + 1):
        inside = pieces == piece
        divided = np.where(inside, parts + 1, 0)
        sizes = np.bincount(divided[inside])
        large = np.flatnonzero(sizes >= MIN_PART * inside.sum())
        large = np.array([number for number in large if _is_solid(divided == number)], np.int64)
        if len(large) < 2:
            count += 1
            output[inside] = count
            continue
        owner = _join_parts(np.where(np.isin(divided, large), divided, 0).astype(np.int32), large.tolist(), flow[:2])
        output[inside] = count + nearest_label(owner)[inside]
        count += int(owner.max())
    return output


def _join_parts(parts: LabelMap, numbers: list[int], flow: Array) -> LabelMap:
    """Join parts of one piece, unless they move differently at their common border: labels 1, 2, ..."""
    group = {number: number for number in numbers}
    for place, one in enumerate(numbers):
        for other in numbers[place + 1 :]:
            if group[one] != group[other] and not _slide(parts == one, parts == other, flow):
                old = group[other]
                group = {number: group[one] if root == old else root for number, root in group.items()}
    roots = sorted(set(group.values()))
    output = np.zeros_like(parts)
    for number, root in group.items():
        output[parts == number] = 1 + roots.index(root)
    return output


def _slide(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_], flow: Array) -> bool:
    """Return whether two masks touch and move differently where they do."""
    near = np.ones((5, 5), np.uint8)
    contact = cv2.dilate(one.astype(np.uint8), near).astype(bool) & cv2.dilate(other.astype(np.uint8), near).astype(
        bool
    )
    if contact.sum() < MIN_CONTACT:
        return True  # they touch through another part, or not at all
    means = []
    for mask in (one, other):
        inner = cv2.erode(mask.astype(np.uint8), near).astype(np.float32)
        side = (4 * BORDER_DISTANCE + 1, 4 * BORDER_DISTANCE + 1)
        weight = cv2.blur(inner, side)
        means.append([cv2.blur(component * inner, side) / np.maximum(weight, 1e-6) for component in flow])
        contact &= weight > 1e-3
    if not contact.any():
        return False
    first, second = np.stack(means[0])[:, contact], np.stack(means[1])[:, contact]
    jump = float(np.median(np.linalg.norm(first - second, axis=0)))
    slower = min(float(np.median(np.linalg.norm(each, axis=0))) for each in (first, second))
    return jump > MIN_JUMP + RELATIVE_JUMP * slower


def _drop_short(labels: list[LabelMap], known: set[int]) -> list[LabelMap]:
    """Remove objects that are visible in few frames of a window; those that touch another one join it."""
    if len(labels) < 2 * MIN_FRAMES:
        return labels
    frames: dict[int, int] = {}
    for each in labels:
        for number in np.unique(each).tolist():
            frames[number] = frames.get(number, 0) + 1
    last = set(np.unique(labels[-1]).tolist())
    short = {number for number, count in frames.items() if number and count < MIN_FRAMES and number not in known | last}
    output = []
    for each in labels:
        each = each.copy()
        for number in short & set(np.unique(each).tolist()):
            inside = each == number
            ring = cv2.dilate(inside.astype(np.uint8), np.ones((3, 3), np.uint8)).astype(bool) & ~inside
            neighbors = each[ring]
            neighbors = neighbors[(neighbors > 0) & ~np.isin(neighbors, list(short))]
            each[inside] = np.bincount(neighbors).argmax() if len(neighbors) else 0
        output.append(each)
    return output
