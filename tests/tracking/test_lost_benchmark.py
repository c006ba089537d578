"""The program that measures precision and recall of `lost` and the calibration of the score."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from protoformer.synthetic.samples import TrackSequence
from protoformer.tracking.result import TrackedBox


@pytest.fixture
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("lost")


def test_precision_and_recall_count_failed_frames(benchmark: ModuleType) -> None:
    outcome = benchmark.Outcome(
        iou=torch.tensor([0.9, 0.05, 0.0, 0.7, 0.0]),
        lost=torch.tensor([False, True, True, True, False]),
        score=torch.tensor([1.0, 0.3, 0.1, 0.4, 0.9]),
    )
    # 3 of 5 failed, 3 were lost, 2 of them rightly, and one failed silently.
    assert [float(each) for each in benchmark.format_counts(outcome).split()] == [60.0, 60.0, 66.7, 66.7, 20.0]


def test_calibration_compares_the_score_with_the_fraction_of_good_boxes(benchmark: ModuleType) -> None:
    outcome = benchmark.Outcome(
        iou=torch.tensor([0.9, 0.1, 0.6, 0.2]),
        lost=torch.zeros(4, dtype=torch.bool),
        score=torch.tensor([0.5, 0.55, 1.0, 0.0]),
    )
    rows = list(benchmark.calibration(outcome))
    assert [row[2] for row in rows] == [1, 2, 1]
    assert [row[3] for row in rows] == pytest.approx([0.0, 0.525, 1.0])
    assert [row[4] for row in rows] == [0.0, 0.5, 1.0]


def test_a_frame_without_the_target_has_failed_whatever_the_box(benchmark: ModuleType, tmp_path: Path) -> None:
    from PIL import Image

    for number in range(3):
        Image.new("RGB", (32, 24)).save(tmp_path / f"{number}.png")
    boxes = torch.tensor([[4.0, 4.0, 8.0, 8.0]]).repeat(3, 1)
    boxes[2] = torch.nan
    present, frames = torch.tensor([True, True, False]), tuple(sorted(tmp_path.glob("*.png")))
    sequence = TrackSequence(name="clip", frames=frames, boxes=boxes, present=present)

    class Still:
        def __init__(self, *_: object) -> None: ...

        def update(self, _: object) -> tuple[TrackedBox, ...]:
            return (TrackedBox((4.0, 4.0, 8.0, 8.0), 0.9, False),)

    outcome = benchmark.run_tracker(sequence, Still)
    assert outcome.iou.tolist() == [1.0, 0.0] and outcome.failed.tolist() == [False, True]
