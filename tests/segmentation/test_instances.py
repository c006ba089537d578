"""Numbers of objects on masks and flow that are known exactly."""

import numpy as np
import pytest

from protoformer.segmentation.foreground import MotionWindow
from protoformer.segmentation.instances import InstanceTracker, nearest_label, remove_specks

SIZE = (60, 90)
SIDE = 20


def window_of(boxes: list[list[tuple[int, int]]], motions: list[tuple[int, int]]) -> tuple[MotionWindow, list]:
    """Frames with squares at (x, y), one list per frame, each with a constant motion; and the masks of the squares."""
    masks, forward, backward = [], [], []
    for places in boxes:
        mask = np.zeros(SIZE, bool)
        flows = np.zeros((2, 3, *SIZE), np.float32)
        flows[:, 2] = 1
        for (x, y), motion in zip(places, motions, strict=True):
            inside = slice(y, y + SIDE), slice(x, x + SIDE)
            mask[inside] = True
            for component, value in enumerate(motion):
                flows[0, component][inside], flows[1, component][inside] = value, -value
        masks.append(mask)
        forward.append(flows[0])
        backward.append(flows[1])  # of this frame, to the one before
    images = [np.zeros((*SIZE, 3), np.uint8)] * len(boxes)
    return MotionWindow(images, [], forward[:-1], backward[1:]), masks


def owners(labels: np.ndarray, places: list[tuple[int, int]]) -> list[int]:
    """Number at the center of each square."""
    return [int(labels[y + SIDE // 2, x + SIDE // 2]) for x, y in places]


def test_specks_are_removed_and_objects_stay() -> None:
    mask = np.zeros(SIZE, bool)
    mask[10:40, 10:40] = mask[50:56, 60:70] = True
    expected = mask.copy()
    mask[2:4, 80:83] = True
    assert np.array_equal(remove_specks(mask), expected)
    assert not remove_specks(np.zeros(SIZE, bool)).any()


def test_every_pixel_gets_the_nearest_label() -> None:
    labels = np.zeros((5, 9), np.int32)
    labels[2, 1], labels[2, 7] = 3, 5
    nearest = nearest_label(labels)
    assert (nearest[:, :4] == 3).all() and (nearest[:, 5:] == 5).all()
    assert not nearest_label(np.zeros((5, 9), np.int32)).any()


def test_objects_keep_their_numbers_while_they_touch() -> None:
    places = [[(5 + 3 * index, 20), (65 - 3 * index, 20)] for index in range(8)]
    window, masks = window_of(places, [(3, 0), (-3, 0)])
    found = InstanceTracker().label(masks, window, 0, len(masks))
    for labels, mask, squares in zip(found, masks, places, strict=True):
        assert np.array_equal(labels > 0, mask)
        assert owners(labels, squares) == [1, 2]


def test_a_piece_whose_halves_slide_past_each_other_is_two_objects() -> None:
    places = [[(30 + 4 * index, 10), (50 - 4 * index, 30)] for index in range(3)]
    window, masks = window_of(places, [(4, 0), (-4, 0)])
    for labels, squares in zip(InstanceTracker().label(masks, window, 0, 3), places, strict=True):
        assert len(set(owners(labels, squares))) == 2


def test_a_second_window_continues_the_numbers() -> None:
    places = [[(5 + 3 * index, 5), (60, 38)] for index in range(10)]
    window, masks = window_of(places, [(3, 0), (0, 0)])
    tracker = InstanceTracker()
    first = tracker.label(masks[:6], MotionWindow(window.images[:6], [], window.forward[:5], window.backward[:5]), 0, 4)
    later = MotionWindow(window.images[3:], [], window.forward[3:], window.backward[3:])
    second = tracker.label(masks[3:], later, 1, 7)
    for labels, squares in zip((*first, *second), places, strict=True):
        assert owners(labels, squares) == owners(first[0], places[0])
    assert tracker.next_number == 3


@pytest.mark.parametrize("visible", [3, 4])
def test_objects_of_few_frames_are_removed(visible: int) -> None:
    places = [[(5, 5), (60, 38)]] * 10
    window, masks = window_of(places, [(0, 0), (0, 0)])
    for index, mask in enumerate(masks):
        if index >= visible:
            mask[38 : 38 + SIDE, 60 : 60 + SIDE] = False
    found = InstanceTracker().label(masks, window, 0, 10)
    assert [len(np.unique(labels)) for labels in found] == [
        3 if visible == 4 and index < 4 else 2 for index in range(10)
    ]
