"""Evaluation of masks on clips whose scores are known."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoformer.datasets.registry import open_dataset
from protoformer.errors import InputError
from protoformer.segmentation.evaluation import (
    LabeledClip,
    dataset_clips,
    evaluate_segmentation,
    segmentation_csv,
    segmentation_tables,
    synthetic_clips,
)
from protoformer.segmentation.result import SegmentationFrame, make_frame
from protoformer.video.clip import ClipFrames, Span


def truth(index: int) -> np.ndarray:
    labels = np.zeros((20, 30), np.uint8)
    labels[2:8, 2 + index : 8 + index] = 1
    labels[12:18, 20 - index : 26 - index] = 2
    return labels


def clip(count: int = 6) -> LabeledClip:
    return LabeledClip("two", [np.zeros((20, 30, 3), np.uint8)] * count, count, truth, True)


def renumbered(source: object) -> Iterable[SegmentationFrame]:
    """The truth, with other numbers."""
    return (make_frame(np.array([0, 7, 3], np.uint8)[truth(index)], {}) for index in range(len(source)))


def first_alone(source: object) -> Iterable[SegmentationFrame]:
    """Only the first object, and nothing at all in the first and the last frame."""
    for index in range(len(source)):
        inside = 0 < index < len(source) - 1
        yield make_frame(np.where((truth(index) == 1) & inside, 5, 0).astype(np.uint8), {})


def test_numbers_do_not_matter_and_the_outer_frames_are_left_out() -> None:
    result = evaluate_segmentation([clip()], {"same": renumbered, "first": first_alone}, "test")
    same, first = result.rows
    assert (same.scores.j_mean, same.scores.f_mean, same.objects, same.frames) == (1, 1, 1, 6)
    # Both objects have the same area. One of two objects is found in 4 of 6 frames.
    assert first.scores.j_mean == pytest.approx(0.5)
    assert first.scores.j_recall == 0
    assert first.objects == pytest.approx(0.5 * 4 / 6)
    assert result.means["same"].j_mean == 1


def test_tables_and_csv_have_every_row() -> None:
    result = evaluate_segmentation([clip()], {"same": renumbered}, "test", compare=True)
    (table,) = segmentation_tables(result)
    assert table.row_count == 2 + len(result.others)
    assert segmentation_csv(result).splitlines()[1] == "two,same,1.0000,1.0000,0.0000,1.0000,1.0000,0.0000,1.0000,6"


def test_void_pixels_of_a_dataset_count_neither_way(tmp_path: Path) -> None:
    for kind in ("JPEGImages", "Annotations"):
        (tmp_path / kind / "480p" / "bear").mkdir(parents=True)
    for index in range(4):
        labels = truth(index)
        labels[:2] = 255
        image = Image.fromarray(labels)
        image.putpalette([value // 3 for value in range(768)])
        image.save(tmp_path / "Annotations" / "480p" / "bear" / f"{index:05d}.png")
        Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(
            tmp_path / "JPEGImages" / "480p" / "bear" / f"{index:05d}.jpg"
        )

    def painted(source: object) -> Iterable[SegmentationFrame]:
        for frame in ClipFrames(source, Span()):
            labels = truth(frame.number)
            labels[:2] = 1
            yield make_frame(labels, {})

    scores = {}
    for name in ("davis-2016", "davis-2017"):
        (row,) = evaluate_segmentation(dataset_clips(open_dataset(name, tmp_path)), {"m": painted}, name).rows
        scores[name] = row.scores.j_mean
        assert np.isnan(row.objects) == (name == "davis-2016")
    assert scores["davis-2017"] == 1 and scores["davis-2016"] == 1  # in 2016 the row of 255 is foreground


def test_masks_of_another_size_are_an_input_error() -> None:
    with pytest.raises(InputError, match="is 30x20 and the frame is 15x10"):
        evaluate_segmentation(
            [clip()], {"m": lambda source: [make_frame(np.zeros((10, 15), np.uint8), {})] * 6}, "test"
        )


def test_synthetic_clips_have_exact_masks() -> None:
    (first,) = synthetic_clips(1, size=(48, 64), count_frames=2)
    labels = first.truth(1)
    assert labels is not None
    assert labels.shape == first.source[1].shape[:2] == (48, 64)
    assert first.count == 2 and 0 < (labels > 0).mean() < 1
