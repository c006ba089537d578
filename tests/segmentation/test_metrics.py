"""J, F, recall and decay against their definitions, pixel by pixel."""

import itertools
import math

import numpy as np
import pytest

from protoformer.segmentation.metrics import (
    assign_objects,
    boundary_accuracy,
    mask_boundary,
    mean_scores,
    region_similarity,
    sequence_scores,
)


def random_masks(seed: int, size: tuple[int, int] = (17, 23)) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    coarse = random.random((2, size[0] // 4 + 1, size[1] // 4 + 1)) < 0.4
    first, second = np.kron(coarse, np.ones((1, 4, 4), bool))[:, : size[0], : size[1]].astype(bool)
    return first, second


def official_boundary(mask: np.ndarray) -> np.ndarray:
    """The boundary of the DAVIS toolkit (seg2bmap), written out."""
    height, width = mask.shape
    output = np.zeros_like(mask)
    for y, x in itertools.product(range(height), range(width)):
        if y < height - 1 and x < width - 1:
            neighbors = (mask[y, x + 1], mask[y + 1, x], mask[y + 1, x + 1])
        elif y < height - 1:
            neighbors = (mask[y + 1, x],)
        elif x < width - 1:
            neighbors = (mask[y, x + 1],)
        else:
            neighbors = ()
        output[y, x] = any(mask[y, x] != each for each in neighbors)
    return output


def official_f(predicted: np.ndarray, truth: np.ndarray, tolerance: float) -> float:
    """F by the distance of every boundary pixel to the other boundary."""
    radius = math.ceil(tolerance * math.hypot(*truth.shape))
    points = [np.argwhere(official_boundary(mask)) for mask in (predicted, truth)]
    if not len(points[0]) or not len(points[1]):
        return float(len(points[0]) == len(points[1]))
    distances = np.linalg.norm(points[0][:, None] - points[1][None], axis=2)
    precision, recall = (float((distances.min(axis=axis) <= radius).mean()) for axis in (1, 0))
    return 0.0 if precision + recall == 0 else 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tolerance", [0.008, 0.06])
def test_f_counts_boundary_pixels_within_the_tolerance(seed: int, tolerance: float) -> None:
    predicted, truth = random_masks(seed)
    assert np.array_equal(mask_boundary(predicted), official_boundary(predicted))
    assert boundary_accuracy(predicted, truth, tolerance) == pytest.approx(official_f(predicted, truth, tolerance))
    assert boundary_accuracy(truth, truth, tolerance) == 1


def test_j_is_intersection_over_union() -> None:
    predicted, truth = np.zeros((2, 10, 10), bool)
    assert region_similarity(predicted, truth) == 1 == boundary_accuracy(predicted, truth)
    predicted[:4], truth[2:6] = True, True
    assert region_similarity(predicted, truth) == pytest.approx(1 / 3)
    assert region_similarity(np.zeros_like(truth), truth) == 0 == boundary_accuracy(np.zeros_like(truth), truth)


def test_recall_and_decay_follow_the_toolkit() -> None:
    # Eight frames in four bins by the toolkit's rounding: 0-1 + 2, ..., 5 + 6-7.
    values = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]
    scores = sequence_scores(values, values[::-1])
    edges = np.round(np.linspace(1, 8, 5) + 1e-10).astype(int) - 1
    assert scores.j_mean == pytest.approx(0.65)
    assert scores.j_recall == pytest.approx(5 / 8)
    expected = np.mean(values[edges[0] : edges[1] + 1]) - np.mean(values[edges[3] : edges[4] + 1])
    assert scores.j_decay == pytest.approx(expected) == pytest.approx(-scores.f_decay)


def test_no_frames_and_no_sequences_have_no_scores() -> None:
    assert math.isnan(sequence_scores([], []).j_mean)
    assert math.isnan(mean_scores([]).f_mean)


@pytest.mark.parametrize("seed", range(4))
def test_objects_are_assigned_optimally(seed: int) -> None:
    table = np.random.default_rng(seed).random((3, 4))
    assigned = assign_objects(table)
    best = max(itertools.permutations(range(4), 3), key=lambda order: sum(table[row, order[row]] for row in range(3)))
    assert assigned == list(best)
    assert assign_objects(np.zeros((2, 0))) == [-1, -1]


def test_many_objects_are_assigned_without_repetition() -> None:
    assigned = assign_objects(np.random.default_rng(0).random((40, 30)))
    used = [column for column in assigned if column >= 0]
    assert sorted(used) == list(range(30)) and len(assigned) == 40
