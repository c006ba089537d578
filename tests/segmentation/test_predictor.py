"""Moving objects in synthetic clips with exact masks."""

import json
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest

import protoformer as pf
from protoformer.models.pretrained import packaged_weights
from protoformer.segmentation import predictor as predictor_module
from protoformer.segmentation.metrics import region_similarity
from protoformer.segmentation.predictor import SegmentationPredictor, working_size
from protoformer.segmentation.result import decode_rle

trained = pytest.mark.skipif(packaged_weights("flow") is None, reason="the package brings no weights for flow")


def texture(seed: int, size: tuple[int, int], cell: int) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (size[0] // cell + 1, size[1] // cell + 1, 3), dtype=np.uint8)
    return cv2.resize(coarse, size[::-1], interpolation=cv2.INTER_LINEAR)


def panning_clip(count: int, boxes: list[tuple[int, int, int, int]]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Frames of 128x192 pixels and true labels: squares (x, y, dx, dy) of 48 pixels in front of a pan of 2 pixels."""
    wide = texture(0, (128, 192 + 2 * count), 10)
    frames, labels = [], []
    for index in range(count):
        frame = wide[:, 2 * index : 2 * index + 192].copy()
        label = np.zeros((128, 192), np.uint8)
        for number, (x, y, dx, dy) in enumerate(boxes, 1):
            left, top = x + dx * index, y + dy * index
            frame[top : top + 48, left : left + 48] = texture(number, (48, 48), 8)
            label[top : top + 48, left : left + 48] = number
        frames.append(frame)
        labels.append(label)
    return frames, labels


@pytest.fixture(scope="module")
def segmenter() -> SegmentationPredictor:
    return pf.load("segment", device="cpu")


@trained
def test_a_square_is_found_in_front_of_a_pan(segmenter: SegmentationPredictor) -> None:
    frames, labels = panning_clip(6, [(40, 30, 3, 1)])
    results = list(segmenter(frames))
    assert [result.number for result in results] == list(range(6))
    scores = [region_similarity(result.foreground, label > 0) for result, label in zip(results, labels, strict=True)]
    assert min(scores) > 0.6 and np.mean(scores) > 0.75
    numbers = {number for result in results for number in result.ids}
    assert numbers == {1}
    # The background moves by -2 pixels a frame, the square by (3, 1).
    assert results[3].motion[0] == pytest.approx([5, 1], abs=0.75)


@trained
def test_two_squares_keep_their_numbers(segmenter: SegmentationPredictor) -> None:
    frames, labels = panning_clip(6, [(10, 8, 3, 0), (130, 70, -7, 0)])
    results = list(segmenter(frames))
    for true in (1, 2):
        owners = {
            int(np.bincount(result.labels[label == true]).argmax())
            for result, label in zip(results[1:-1], labels[1:-1], strict=True)
        }
        assert len(owners) == 1 and 0 not in owners
    assert all(len(result.ids) == 2 for result in results)


@trained
def test_windows_give_one_result_per_frame_and_the_same_numbers(
    segmenter: SegmentationPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames, _ = panning_clip(14, [(20, 30, 4, 1)])
    for name, value in (("MAX_WINDOW", 9), ("MIN_WINDOW", 9), ("OVERLAP", 4)):
        monkeypatch.setattr(predictor_module, name, value)
    results = list(segmenter(frames, fps=10))
    assert [result.number for result in results] == list(range(14))
    assert results[-1].time == Fraction(13, 10)
    assert {number for result in results for number in result.ids} == {1}


@trained
def test_a_pan_alone_has_no_objects(segmenter: SegmentationPredictor) -> None:
    frames, _ = panning_clip(4, [])
    assert np.mean([result.foreground.mean() for result in segmenter(frames)]) < 0.02


def test_results_are_saved_as_masks_video_and_json(tiny: pf.FlowPredictor, tmp_path: Path) -> None:
    frames, _ = panning_clip(3, [(20, 30, 3, 1)])
    video = SegmentationPredictor(tiny.network, tiny.trained, tiny.device).segment(frames)
    for name in ("masks", "overlay.mp4", "masks.json"):
        video.save(tmp_path / name)
    assert sorted(path.name for path in (tmp_path / "masks").iterdir()) == [f"{n:06d}.png" for n in range(3)]
    assert pf.open_video(tmp_path / "overlay.mp4").count_frames() == 3
    document = json.loads((tmp_path / "masks.json").read_text())
    assert (document["height"], document["width"], len(document["frames"])) == (128, 192, 3)
    for each in (each for frame in document["frames"] for each in frame["objects"]):
        assert decode_rle(each["segmentation"]).sum() == each["area"]


def test_a_clip_of_one_frame_is_refused(tiny: pf.FlowPredictor) -> None:
    segmenter = SegmentationPredictor(tiny.network, tiny.trained, tiny.device)
    for count, what in ((0, "no frame"), (1, "one frame")):
        with pytest.raises(pf.InputError, match=what):
            list(segmenter.segment([np.zeros((64, 64, 3), np.uint8)] * count))
    with pytest.raises(pf.InputError, match="no method 'magic'; choose one of model, threshold"):
        segmenter.segment([], method="magic")


def test_the_working_size_is_whole_cells_of_at_most_424_pixels() -> None:
    assert working_size((480, 854)) == (240, 424)
    assert working_size((1920, 1080)) == (424, 240)
    assert working_size((72, 90)) == (72, 88)
    assert min(working_size((30, 4000))) == 64


def test_the_predictor_of_all_tasks_segments_with_its_flow_network() -> None:
    model = pf.load(device="cpu")
    assert model.segment.network is model.flow.network
    with pytest.raises(pf.InputError, match="segment is a model for segment, not for depth"):
        pf.load("segment", task="depth")
