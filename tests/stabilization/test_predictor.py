"""Stabilization of clips: static clips stay as they are, shake is removed, and unusual clips are handled."""

import itertools
import weakref
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.models.pretrained import packaged_weights
from protoformer.models.protoformer import build_network
from protoformer.stabilization.analysis import BATCH_SIZE, FramePair, FrameView, MotionAnalyzer
from protoformer.stabilization.camera_motion import FeatureDetector, homography
from protoformer.stabilization.metrics import StabilityMeter
from protoformer.stabilization.predictor import MAX_ACCELERATION
from protoformer.stabilization.rendering import View, render_stabilized, sample_field
from protoformer.synthetic.textures import noise
from protoformer.video.types import VideoFrame

SIZE = (96, 128)
Clip = Callable[..., list[np.ndarray]]


@pytest.fixture(scope="module")
def model() -> pf.StabilizationPredictor:
    """The smallest network, whose warps smooth the trails as they are, with the flow of the package."""
    if packaged_weights("flow") is None:
        pytest.skip("the package brings no weights for flow")
    with pytest.warns(pf.UntrainedWarning, match="camera motion is smoothed without a learned warp"):
        return pf.load("tiny", device="cpu", task="stabilize", stabilization={"field_window": 4})


@pytest.fixture(scope="module")
def clip() -> Clip:
    """Frames of a texture, seen by a camera at these places, pixels."""
    wide = (255 * noise(200, 260, torch.Generator().manual_seed(2), falloff=0.7)).byte().permute(1, 2, 0).numpy()

    def frames(places: np.ndarray, seed: int = 0) -> list[np.ndarray]:
        ground = wide if not seed else np.ascontiguousarray(255 - wide[::-1, ::-1] // 3)
        output = []
        for place in places:
            move = np.float32([[1, 0, -60 - place.real], [0, 1, -50 - place.imag]])
            output.append(cv2.warpAffine(ground, move, SIZE[::-1], flags=cv2.INTER_CUBIC))
        return output

    return frames


def shaky(count: int) -> np.ndarray:
    random = np.random.default_rng(4).normal(size=(2, count))
    return 1.2 * (random[0] + 1j * random[1]) + 0.8 * np.arange(count)


def test_shake_goes_and_the_pan_stays(model: pf.StabilizationPredictor, clip: Clip) -> None:
    frames = clip(shaky(12))
    result = model.stabilize(frames, crop=0.85)
    before, after = result.acceleration
    assert before > 2 and after < 0.35
    assert np.abs(result.path_before[:, :2] @ [1, 1j] + shaky(12) - shaky(12)[0]).max() < 1
    assert result.path_after[-1, 0] == pytest.approx(-0.8 * 11, abs=3)
    assert result.cuts == () and result.bridged == () and not result.trained
    pictures = [steady for _, _, steady in model.frames(frames, result)]
    steps = [cv2.phaseCorrelate(*(each.mean(axis=2) for each in pair))[0] for pair in itertools.pairwise(pictures)]
    assert np.abs(np.diff(np.array(steps), axis=0)).mean() < 0.5


def test_a_steady_clip_is_hardly_touched(model: pf.StabilizationPredictor, clip: Clip) -> None:
    result = model.stabilize(clip(np.zeros(8, complex)))
    across, down = sample_field(result.view(4), SIZE)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    assert np.hypot(across - x, down - y).mean() < 0.5 and result.crop_fraction > 0.99


def test_the_auto_crop_shows_nothing_beyond_a_frame(model: pf.StabilizationPredictor, clip: Clip) -> None:
    result = model.stabilize(clip(3 * shaky(8)))
    for place in range(8):
        across, down = sample_field(result.view(place), SIZE)
        assert across.min() > -0.01 and across.max() < SIZE[1] - 0.99
        assert down.min() > -0.01 and down.max() < SIZE[0] - 0.99
    assert 0.88 <= result.crop_fraction < 0.96
    assert result.acceleration[1] < 0.7 * model.stabilize(clip(3 * shaky(8)), crop=0.96).acceleration[1]


def test_the_auto_crop_is_no_smaller_than_a_clip_needs(model: pf.StabilizationPredictor, clip: Clip) -> None:
    result = model.stabilize(clip(0.1 * shaky(8)))
    assert 0.96 <= result.crop_fraction < 1 and result.acceleration[1] <= MAX_ACCELERATION * SIZE[1]
    middling, free = (model.stabilize(clip(shaky(8)), crop=crop) for crop in ("auto", 0.7))
    assert 0.88 < middling.crop_fraction < 0.96 and middling.acceleration[1] < 1.05 * free.acceleration[1]


def test_without_a_crop_what_is_not_there_is_black(model: pf.StabilizationPredictor, clip: Clip) -> None:
    frames = [np.maximum(frame, 40) for frame in clip(2 * shaky(5))]
    result = model.stabilize(frames, crop="none")
    assert min(steady.min() for _, _, steady in model.frames(frames, result)) == 0 and result.border
    assert model.stabilize(frames[:2], strength=1e-3).cropping == 1
    kept = model.stabilize(frames, strength=0)
    assert kept.cropping == 1 and kept.crop_fraction == 1
    assert all(np.array_equal(before, after) for _, before, after in model.frames(frames, kept))


@pytest.mark.parametrize("count", [1, 2])
def test_one_and_two_frames_are_clips(model: pf.StabilizationPredictor, clip: Clip, count: int) -> None:
    frames = clip(np.arange(count) * (1 + 0j))
    result = model.stabilize(frames)
    assert len(result.times) == count and len(list(model.frames(frames, result))) == count


def test_a_cut_parts_a_clip(model: pf.StabilizationPredictor, clip: Clip) -> None:
    result = model.stabilize(clip(shaky(5)) + clip(shaky(4), seed=1))
    assert result.cuts == (5,) and np.array_equal(result.path_before[5], np.zeros(4))


def test_plain_ground_that_grows_lighter_is_no_cut(model: pf.StabilizationPredictor, clip: Clip) -> None:
    frames = [np.array(frame) for frame in clip(shaky(6))]
    for place, frame in enumerate(frames):
        frame[:, : 3 * SIZE[1] // 4] = 95 + place % 2  # whose colors are counted apart: a bin ends between them
    assert model.stabilize(frames).cuts == ()


def test_black_frames_are_bridged(model: pf.StabilizationPredictor, clip: Clip) -> None:
    frames = clip(1.0 * np.arange(8))
    for place in (0, 3, 4, 7):
        frames[place] = np.zeros_like(frames[0])
    result = model.stabilize(frames)
    assert result.bridged == (0, 3, 4, 7) and result.cuts == ()
    assert np.abs(np.diff(result.path_before[1:7, 0]) + 1).max() < 0.3
    assert not np.diff(result.path_before[:2, 0]).any() and not np.diff(result.path_before[-2:, 0]).any()
    black = model.stabilize([np.zeros((40, 50, 3), np.uint8)] * 3)
    assert black.bridged == (0, 1, 2) and np.abs(black.path_after).max() < 1e-6


BLURS = {
    "out of focus": lambda frame: cv2.GaussianBlur(frame, (0, 0), 8),
    "far out of focus": lambda frame: cv2.GaussianBlur(frame, (0, 0), 16),
    "swept": lambda frame: cv2.blur(frame, (61, 1)),
}


@pytest.mark.parametrize("blur", BLURS)
def test_a_frame_that_is_blurred_for_a_moment_is_bridged(
    model: pf.StabilizationPredictor, clip: Clip, blur: str
) -> None:
    frames = clip(1.0 * np.arange(5))
    frames[2] = BLURS[blur](frames[2])
    result, live = model.stabilize(frames), model.stabilize(frames, delay=1)
    assert result.bridged == live.bridged == (2,) and result.cuts == live.cuts == ()
    assert np.abs(np.diff(result.path_before[:, 0]) + 1).max() < 0.3
    assert np.abs(live.path_before[:, 0] + np.array((0, 1, 1, 3, 4))).max() < 0.3


def test_what_is_blurred_a_little_or_for_long_is_taken_as_it_is(model: pf.StabilizationPredictor, clip: Clip) -> None:
    frames = clip(1.0 * np.arange(6))
    result = model.stabilize([*frames[:2], cv2.GaussianBlur(frames[2], (0, 0), 2), frames[3]])
    assert result.bridged == () and np.abs(np.diff(result.path_before[:, 0]) + 1).max() < 0.3
    assert model.stabilize([*frames[:2], *(BLURS["out of focus"](frame) for frame in frames[2:])]).bridged == ()


def test_what_cannot_be_is_one_sentence(model: pf.StabilizationPredictor, clip: Clip) -> None:
    frames = clip(shaky(2))
    with pytest.raises(pf.InputError, match="frame 2 is 100x96 where those before it are 128x96"):
        model.stabilize([*frames, frames[0][:, :100]])
    with pytest.raises(pf.InputError, match="no frame"):
        model.stabilize([])
    crops = ({"crop": crop} for crop in ("wide", 0.2, 0.99999, 1.5))
    for options in (*crops, {"strength": 2}, {"delay": -1}, {"delay": 3, "tripod": True}):
        with pytest.raises(pf.InputError):
            model.stabilize(frames, **options)


def test_weights_are_saved_and_loaded(model: pf.StabilizationPredictor, tmp_path: Path) -> None:
    model.save(tmp_path / "steady.safetensors")
    with pytest.warns(pf.UntrainedWarning):
        again = pf.load(tmp_path / "steady.safetensors", device="cpu")
    assert isinstance(again, pf.StabilizationPredictor) and again.network.config == model.network.config


def test_homographies_of_pictures_are_found(clip: Clip) -> None:
    wide = cv2.resize(clip(np.zeros(1, complex))[0], (384, 288), interpolation=cv2.INTER_CUBIC)
    true = np.array([[1.02, -0.03, 4.0], [0.03, 1.02, -6.0], [1e-5, -2e-5, 1.0]])
    moved = cv2.warpPerspective(wide, true, (384, 288), flags=cv2.INTER_CUBIC)
    detector = FeatureDetector()
    output = homography(detector.detect(wide), detector.detect(moved))
    corners = np.array([[20, 20, 1], [350, 20, 1], [20, 260, 1], [350, 260, 1.0]]).T
    places = [matrix @ corners / (matrix @ corners)[2] for matrix in (output, true)]
    assert np.abs(places[0] - places[1]).max() < 0.5
    assert np.isnan(homography(detector.detect(np.zeros_like(wide)), detector.detect(moved))).all()


def test_the_meter_scores_what_was_done_to_a_clip(clip: Clip) -> None:
    meter, detector = StabilityMeter(), FeatureDetector()
    for frame in (cv2.resize(each, (256, 192)) for each in clip(0.5 * np.arange(14))):
        meter.add(detector.detect(frame), detector.detect(render_stabilized(frame, View(1, 0, 0.8, None))))
    scores = meter.scores()
    assert scores.cropping == pytest.approx(0.8, abs=0.01) and scores.distortion > 0.98
    assert scores.stability_translation > 0.95 and scores.frames == 14 and scores.skipped_frames == 0


def test_a_long_shot_forgets_the_flows_that_no_window_needs(clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", device="cpu", task="stabilize", stabilization={"field_window": 1})
    output, kept = [], []

    def watched(analyzer: MotionAnalyzer, before: FrameView, after: FrameView) -> FramePair | None:
        kept.append([place for place, flows in enumerate(output) if flows() is not None])
        link = link_of(analyzer, before, after)
        assert link is not None
        output.append(weakref.ref(link.flows))
        return link

    link_of = MotionAnalyzer.match_frames
    monkeypatch.setattr(MotionAnalyzer, "match_frames", watched)
    result = model.stabilize(clip(0.5 * np.arange(14)))
    assert len(result.local) == 14 and np.abs(np.diff(result.path_before[:, 0]) + 0.5).max() < 0.3
    assert kept[3] == [0, 1, 2] and min(kept[-1]) >= 12 - (1 + BATCH_SIZE + 1 + BATCH_SIZE)


@pytest.mark.parametrize("regressor", ["field", "grid"])
def test_with_a_delay_nothing_later_matters(model: pf.StabilizationPredictor, clip: Clip, regressor: str) -> None:
    if regressor == "grid":
        with pytest.warns(pf.UntrainedWarning):
            model = pf.load(
                "tiny", device="cpu", task="stabilize", stabilization={"regressor": "grid", "grid_window": 3}
            )
    frames = clip(shaky(6))
    frames[4] = np.zeros_like(frames[0])  # which is bridged, but not by what comes later
    one, two = (model.stabilize(each, delay=2) for each in (frames, [*frames[:5], clip(-4 - shaky(1))[0]]))
    pictures = [[steady for _, _, steady in itertools.islice(model.frames(frames, each), 3)] for each in (one, two)]
    assert np.array_equal(pictures[0], pictures[1])
    assert not np.allclose(one.corrections.shifts[3], two.corrections.shifts[3], atol=0.01)
    assert bool(one.local) == (regressor == "grid")


def test_a_window_within_the_delay_is_used(model: pf.StabilizationPredictor, clip: Clip) -> None:
    frames = clip(shaky(3))
    assert len(model.stabilize(frames, delay=4).local) == 3 and not model.stabilize(frames, delay=3).local


def test_frames_are_encoded_once_for_both_networks_if_these_share_an_encoder(clip: Clip) -> None:
    stabilizer = pf.load("stabilize", device="cpu")
    networks = {"shared": stabilizer.network, "own": build_network(stabilizer.network.config, "stabilize").eval()}
    frames = [VideoFrame(frame, number, Fraction(number)) for number, frame in enumerate(clip(shaky(3)))]
    views = {}
    for name, network in networks.items():
        analyzer = MotionAnalyzer(network, stabilizer.flow, torch.device("cpu"), SIZE, half=False)
        views[name] = analyzer.encode_frames(frames)[-1]
    assert torch.equal(views["shared"].features, views["shared"].encoded)
    assert torch.equal(views["own"].encoded, views["shared"].encoded)
    assert not torch.allclose(views["own"].features, views["own"].encoded, atol=0.1)


def test_frames_in_a_batch_have_the_motion_of_frames_one_by_one(model: pf.StabilizationPredictor, clip: Clip) -> None:
    frames = [VideoFrame(frame, number, Fraction(number)) for number, frame in enumerate(clip(shaky(4)))]
    pairs = []
    for size in (4, 1):
        analyzer = MotionAnalyzer(model.network, model.flow, torch.device("cpu"), SIZE, half=False)
        views = [view for first in range(0, 4, size) for view in analyzer.encode_frames(frames[first : first + size])]
        pairs.append([analyzer.match_frames(*each) for each in itertools.pairwise(views)])
    for together, alone in zip(*pairs, strict=True):
        assert abs(together.motion.shift - alone.motion.shift) < 1e-3
        assert torch.allclose(together.flows, alone.flows, atol=2e-3)
