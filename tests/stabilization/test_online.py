"""Live stabilization reads a source once, and corrects it as a clip that is planned with the same delay."""

from collections.abc import Iterator

import cv2
import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.errors import InputError
from protoformer.models.config import preset
from protoformer.models.protoformer import build_network
from protoformer.synthetic.textures import noise

SIZE = (64, 96)


@pytest.fixture(scope="module", params=["field", "grid"])
def model(request: pytest.FixtureRequest) -> pf.StabilizationPredictor:
    """The smallest networks, with random weights; the window of `field` needs a later frame, that of `grid` none."""
    with pytest.warns(pf.UntrainedWarning):
        options = {"regressor": request.param, "field_window": 1}
        network = pf.load("tiny", device="cpu", task="stabilize", stabilization=options).network
    return pf.StabilizationPredictor(network, False, torch.device("cpu"), build_network(preset("tiny"), "flow"))


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray]:
    """Twelve frames of a shaky camera, with a blank frame and a cut."""
    wide = (255 * noise(120, 160, torch.Generator().manual_seed(2), falloff=0.7)).byte().permute(1, 2, 0).numpy()
    places = np.random.default_rng(4).normal(size=(12, 2)) * 1.5
    clip = []
    for number, (x, y) in enumerate(places):
        ground = wide if number < 8 else np.ascontiguousarray(255 - wide[::-1, ::-1] // 3)
        move = np.float32([[1, 0, -30 - x], [0, 1, -25 - y]])
        clip.append(cv2.warpAffine(ground, move, SIZE[::-1], flags=cv2.INTER_CUBIC))
    clip[4] = np.full_like(clip[4], 90)
    return clip


@pytest.mark.parametrize(("delay", "crop", "strength"), [(0, "auto", 1.0), (3, 0.8, 1.0), (2, "none", 0.5)])
def test_frames_are_those_of_a_plan_with_the_same_delay(
    model: pf.StabilizationPredictor, frames: list[np.ndarray], delay: int, crop: str | float, strength: float
) -> None:
    expected = model.stabilize(frames, crop=crop, delay=delay, strength=strength, precision="full").frames()
    found = model.stabilize_video(iter(frames), crop=crop, delay=delay, strength=strength, precision="full")
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.time == theirs.time and np.array_equal(ours.frame, theirs.frame)
        assert np.abs(ours.stabilized.astype(int) - theirs.stabilized).max() <= 2


def test_without_strength_frames_keep_their_place(model: pf.StabilizationPredictor, frames: list[np.ndarray]) -> None:
    for each in model.stabilize_video(frames, strength=0):
        assert np.array_equal(each.stabilized, each.frame) and np.array_equal(np.asarray(each), each.frame)


def test_no_more_than_the_delay_is_read_ahead(model: pf.StabilizationPredictor, frames: list[np.ndarray]) -> None:
    num_read = 0

    def source() -> Iterator[np.ndarray]:
        nonlocal num_read
        for frame in frames[:4] * 10:
            num_read += 1
            yield frame

    for number, _ in zip(range(6), model.stabilize_video(source(), delay=2), strict=False):
        assert num_read <= number + 4  # the delay, the frame itself, and the one that says that there is no cut


def test_a_source_without_frames_and_bad_options_are_errors(model: pf.StabilizationPredictor) -> None:
    with pytest.raises(InputError, match="the clip has no frame in this span"):
        list(model.stabilize_video([]))
    with pytest.raises(InputError, match="a delay of 601 frames is out of range"):
        model.stabilize_video([], delay=601)


def test_a_result_of_a_generator_says_how_to_render_it(
    model: pf.StabilizationPredictor, frames: list[np.ndarray]
) -> None:
    result = model.stabilize(iter(frames[:3]))
    with pytest.raises(InputError, match="can be read only once; give a file or a list of frames, or use"):
        result.save("steady.mp4")
