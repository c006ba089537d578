"""Tracking online and through clips, with one target and with several."""

import weakref
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import protoformer as pf
from protoformer.geometry.regions import Crops, box_iou
from protoformer.synthetic.textures import noise
from protoformer.tracking.baselines import BaselineTracker
from protoformer.tracking.engine import _cut_patch

BOXES = [(20.0, 12.0, 16.0, 14.0), (50.0, 30.0, 10.0, 18.0)]


@pytest.fixture(scope="module")
def model() -> pf.TrackingPredictor:
    """The smallest network, with its random weights, but sure of whatever it finds, so that boxes move."""
    with pytest.warns(pf.UntrainedWarning):
        output = pf.load("tiny", device="cpu", task="track", tracking={"search_size": 64, "template_size": 48})
    torch.nn.init.constant_(output.network.tracking_head.score_head.roi_head.out_proj.bias, 5.0)
    return output


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray]:
    """Six frames of 90x60 pixels in which a texture moves to the right."""
    texture = noise(60, 120, torch.Generator().manual_seed(1), falloff=0.5)
    wide = (255 * texture).byte().permute(1, 2, 0).numpy()
    return [np.ascontiguousarray(wide[:, 2 * number : 2 * number + 90]) for number in range(6)]


def boxes_of(output: tuple[pf.TrackedBox, ...]) -> torch.Tensor:
    return torch.tensor([each.box for each in output])


def test_a_clip_is_what_the_tracker_finds_frame_by_frame(model: pf.TrackingPredictor, frames: list[np.ndarray]) -> None:
    tracker = model.tracker(frames[0], BOXES)
    online = [tracker.targets, *(tracker.update(frame) for frame in frames[1:])]
    results = model.track(frames, BOXES)
    assert len(results) == 2
    for place, result in enumerate(results):
        assert torch.allclose(result.boxes, torch.tensor([output[place].box for output in online]), atol=0.02)
        assert torch.allclose(result.scores, torch.tensor([output[place].score for output in online]), atol=1e-3)
        assert result.lost.tolist() == [output[place].lost for output in online] == [False] * 6
        assert (result.boxes[1:] != result.boxes[:-1]).any(dim=1).all()
        assert result.boxes[0].tolist() == list(BOXES[place]) and result.scores[0] == 1
        assert result.numbers == tuple(range(6)) and result.times[2] == Fraction(2, 25)
        assert not result.trained


def test_a_folder_is_a_clip_and_one_frame_in_several_may_be_taken(
    model: pf.TrackingPredictor, frames: list[np.ndarray], tmp_path: Path
) -> None:
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / f"{number}.png")
    calls: list[tuple[int, int]] = []
    (result,) = model.track(
        tmp_path, BOXES[0], frame_step=2, fps=10, start=0.1, progress=lambda *figures: calls.append(figures)
    )
    assert result.numbers == (1, 3, 5) and result.times == (Fraction(1, 10), Fraction(3, 10), Fraction(5, 10))
    tracker = model.tracker(frames[1], BOXES[0])
    assert torch.equal(result.boxes[1], boxes_of(tracker.update(frames[3]))[0])
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_several_targets_are_followed_as_each_alone(model: pf.TrackingPredictor, frames: list[np.ndarray]) -> None:
    together = model.track(frames, torch.tensor(BOXES), precision="full")
    for box, result in zip(BOXES, together, strict=True):
        (alone,) = model.track(frames, box, precision="full")
        assert torch.allclose(alone.boxes, result.boxes, atol=0.05)
        assert torch.allclose(alone.scores, result.scores, atol=1e-3)


def test_boxes_stay_on_the_frame(model: pf.TrackingPredictor, frames: list[np.ndarray]) -> None:
    for result in model.track(frames, [(-4.0, -4.0, 12.0, 12.0), (84.0, 50.0, 20.0, 20.0)]):
        left, top, width, height = result.boxes[1:].unbind(1)
        assert (left >= 0).all() and (top >= 0).all() and (width > 0).all() and (height > 0).all()
        assert (left + width <= 90 + 1e-3).all() and (top + height <= 60 + 1e-3).all()


def test_a_reset_forgets_what_was_followed(model: pf.TrackingPredictor, frames: list[np.ndarray]) -> None:
    tracker = model.tracker(frames[0], BOXES)
    tracker.update(frames[1])
    tracker.reset(frames[2], BOXES[1])
    assert [each.box for each in tracker.targets] == [BOXES[1]]
    again = model.tracker(frames[2], BOXES[1])
    assert tracker.update(frames[3]) == again.update(frames[3])


def test_bytes_floats_and_pillow_images_are_one_frame(model: pf.TrackingPredictor, frames: list[np.ndarray]) -> None:
    kinds = (
        np.asarray,
        Image.fromarray,
        lambda frame: torch.from_numpy(frame).permute(2, 0, 1),
        lambda frame: torch.from_numpy(frame).permute(2, 0, 1).float() / 255,
    )
    output = [boxes_of(model.tracker(kind(frames[0]), BOXES).update(kind(frames[1]))) for kind in kinds]
    assert all(torch.allclose(each, output[0], atol=0.02) for each in output)


@pytest.mark.filterwarnings("error")
def test_frames_of_a_camera_and_frames_that_are_locked_are_taken(
    model: pf.TrackingPredictor, frames: list[np.ndarray]
) -> None:
    wanted = model.tracker(frames[0], BOXES).update(frames[1])
    backwards = [np.ascontiguousarray(frame[..., ::-1])[..., ::-1] for frame in frames[:2]]
    turned = [np.ascontiguousarray(frame[::-1])[::-1] for frame in frames[:2]]
    locked = [frame.copy() for frame in frames[:2]]
    for frame in locked:
        frame.flags.writeable = False
    for first, second in (backwards, turned, locked):
        assert model.tracker(first, BOXES).update(second) == wanted
        assert BaselineTracker("correlation", first, BOXES).update(second)


def test_trackers_share_what_a_model_prepared_and_are_forgotten_at_once(
    model: pf.TrackingPredictor, frames: list[np.ndarray]
) -> None:
    one, other = (model.tracker(frames[0], BOXES, precision="full") for _ in range(2))
    assert one._engine is other._engine is not model.tracker(frames[0], BOXES, precision="half")._engine
    kept = weakref.ref(one)
    one.update(frames[1])
    del one
    assert kept() is None


def test_threads_may_share_a_model(model: pf.TrackingPredictor, frames: list[np.ndarray]) -> None:
    with ThreadPoolExecutor(3) as pool:
        output = list(pool.map(lambda box: model.track(frames, box, precision="full")[0].boxes, 3 * BOXES[:1]))
    assert all(torch.equal(boxes, output[0]) for boxes in output)


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ((10.0, 10.0, 0.0, 5.0), "no area"),
        ((10.0, 10.0, -3.0, 5.0), "no area"),
        ((float("nan"), 10.0, 5.0, 5.0), "not finite"),
        ((200.0, 10.0, 5.0, 5.0), "outside"),
        ((-6.0, 10.0, 5.0, 5.0), "outside"),
        ((89.5, 10.0, 50.0, 5.0), "less than 2 pixels"),
        ((10.0, 10.0, 1.0, 1.0), "less than 2 pixels"),
        ((10.0, 10.0, 5.0), "four numbers"),
        ([], "no box"),
        ("here", "four numbers"),
        (5, "four numbers"),
        (torch.tensor(5.0), "four numbers"),
    ],
)
def test_a_box_that_cannot_be_followed_is_refused(
    model: pf.TrackingPredictor, frames: list[np.ndarray], box: object, reason: str
) -> None:
    with pytest.raises(pf.InputError, match=reason):
        model.tracker(frames[0], box)


def test_frames_of_another_size_are_refused(model: pf.TrackingPredictor, frames: list[np.ndarray]) -> None:
    tracker = model.tracker(frames[0], BOXES)
    with pytest.raises(pf.InputError, match="the frame is 80x60 where the first was 90x60"):
        tracker.update(frames[1][:, :80])
    with pytest.raises(pf.InputError, match="no pixels"):
        tracker.update(torch.zeros(3, 0, 5, dtype=torch.uint8))


@pytest.mark.parametrize(("count", "many"), [(0, "no frame"), (1, "one frame")])
def test_a_clip_of_less_than_two_frames_is_refused(
    model: pf.TrackingPredictor, frames: list[np.ndarray], count: int, many: str
) -> None:
    with pytest.raises(pf.InputError, match=f"has {many} in this span"):
        model.track(frames[:count], BOXES)


def test_weights_are_saved_and_loaded(model: pf.TrackingPredictor, frames: list[np.ndarray], tmp_path: Path) -> None:
    model.save(tmp_path / "track.safetensors")
    with pytest.warns(pf.UntrainedWarning):
        again = pf.load(tmp_path / "track.safetensors", device="cpu")
    assert isinstance(again, pf.TrackingPredictor) and again.network.config == model.network.config
    assert again.tracker(frames[0], BOXES).update(frames[1]) == model.tracker(frames[0], BOXES).update(frames[1])


@pytest.mark.parametrize("corner", [(-20.3, 4.2), (30.7, -11.1), (60.2, 44.9), (-5.0, -5.0)])
def test_a_piece_is_cut_from_a_part_of_the_frame_as_from_the_whole(corner: tuple[float, float]) -> None:
    pixels = torch.randint(0, 256, (3, 60, 90), dtype=torch.uint8)
    crop = Crops(torch.tensor([corner]), torch.tensor([33.3]), 24)
    fill = torch.tensor([[10.0, 20.0, 30.0]])
    assert torch.allclose(
        _cut_patch(pixels, crop, fill, torch.device("cpu")), crop.cut(pixels[None].float(), fill), atol=1e-2
    )


def textured_square(count: int, hidden: range = range(0)) -> tuple[list[torch.Tensor], torch.Tensor]:
    """A square of noise that goes its way over other noise, behind a board in some frames; and its boxes."""
    generator = torch.Generator().manual_seed(0)
    ground, square = noise(180, 240, generator, falloff=1.0), noise(32, 32, generator, falloff=0.3)
    clip, truth = [], []
    for number in range(count):
        x = round(100 + 60 * np.sin(number / 25))
        y = round(70 + 40 * np.sin(number / 40))
        frame = (0.6 * ground).clone()
        frame[:, y : y + 32, x : x + 32] = square
        if number in hidden:
            frame[:, y - 8 : y + 40, x - 8 : x + 40] = 0.5
        clip.append((255 * frame).byte())
        truth.append([x, y, 32, 32])
    return clip, torch.tensor(truth).float()


def test_a_textured_square_is_followed_by_the_weights_of_the_package() -> None:
    clip, truth = textured_square(200)
    (result,) = pf.load("track", device="cpu").track(clip, truth[0])
    assert box_iou(result.boxes, truth).min() > 0.8 and not result.lost.any()


def test_a_textured_square_is_detected_again_after_occlusion() -> None:
    clip, truth = textured_square(150, hidden=range(100, 120))
    (result,) = pf.load("track", device="cpu").track(clip, truth[0])
    overlap = box_iou(result.boxes, truth)
    assert overlap[:100].min() > 0.8 and result.lost[105:118].all()
    assert overlap[130:].min() > 0.8 and not result.lost[130:].any()
