"""A video gives the depth of each frame with exact timestamps, for any batch size."""

import weakref
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.errors import InputError
from protoformer.io.image import write_image
from protoformer.viz.depth_colors import MIN_RANGE_RATIO

CLOSE = {"atol": 1e-4, "rtol": 0}


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray]:
    """Four frames of 64x48 pixels: a pattern that moves by two pixels a frame."""
    wide = np.kron(np.random.default_rng(5).integers(0, 256, (12, 24, 3)), np.ones((4, 4, 1))).astype(np.uint8)
    return [np.ascontiguousarray(wide[:, 2 * number : 2 * number + 64]) for number in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, frames: list[np.ndarray]) -> Path:
    """The same as png files."""
    made = tmp_path_factory.mktemp("frames")
    for number, frame in enumerate(frames):
        write_image(made / f"{number}.png", frame)
    return made


def depths(video: pf.DepthVideo) -> torch.Tensor:
    return torch.stack([step.depth for step in video])


@pytest.mark.parametrize("mirrored", [False, True])
def test_frame_by_frame_is_the_depth_of_each_image(
    tiny_depth: pf.DepthPredictor, frames: list[np.ndarray], mirrored: bool
) -> None:
    steps = list(tiny_depth.depth_video(frames, steady=False, mirrored=mirrored, precision="full", focal=70.0))
    assert [step.number for step in steps] == [0, 1, 2, 3]
    for step, frame in zip(steps, frames, strict=True):
        alone = tiny_depth.depth(frame, mirrored=mirrored, precision="full", focal=70.0)
        torch.testing.assert_close(step.depth, alone.depth, **CLOSE)
        torch.testing.assert_close(step.confidence, alone.confidence, **CLOSE)
        assert step.range == alone.range and step.camera == "given" and isinstance(step, pf.DepthResult)


def test_a_folder_gives_what_its_frames_give(
    tiny_depth: pf.DepthPredictor, frames: list[np.ndarray], folder: Path
) -> None:
    video = tiny_depth.depth_video(folder, fps=10, precision="full")
    torch.testing.assert_close(depths(video), depths(tiny_depth.depth_video(frames, precision="full")), **CLOSE)
    steps = list(video)
    assert [step.time for step in steps] == [Fraction(number, 10) for number in range(4)]
    assert steps[0].frame is not None and np.array_equal(steps[0].frame, frames[0])
    assert steps[0].camera == "assumed" and video.camera is not None and video.camera.source == "assumed"


def test_the_batch_does_not_change_the_depth(tiny_depth: pf.DepthPredictor, frames: list[np.ndarray]) -> None:
    for steady in (False, True):
        one, three = (
            depths(tiny_depth.depth_video(frames, steady=steady, batch_size=batch, precision="full"))
            for batch in (1, 3)
        )
        torch.testing.assert_close(one, three, **CLOSE)


def test_the_motion_may_come_from_a_flow_model(
    tiny_depth: pf.DepthPredictor, tiny: pf.FlowPredictor, frames: list[np.ndarray]
) -> None:
    steadied = depths(tiny_depth.depth_video(frames[:3], flow=tiny, precision="full"))
    alone = depths(tiny_depth.depth_video(frames[:3], steady=False, precision="full"))
    assert torch.equal(steadied[0], alone[0]) and bool(steadied.isfinite().all())


def test_a_clip_can_be_read_twice_and_a_part_of_it(tiny_depth: pf.DepthPredictor, folder: Path) -> None:
    video = tiny_depth.depth_video(folder, fps=1, start=1, frame_step=2, precision="full")
    assert [(step.number, step.time) for step in video] == [(1, 1), (3, 3)]
    assert torch.equal(depths(video), depths(video))


def test_one_frame_is_a_clip(tiny_depth: pf.DepthPredictor, frames: list[np.ndarray]) -> None:
    (step,) = tiny_depth.depth_video(frames[:1])
    assert step.depth.shape == (1, 48, 64)


def test_frames_are_forgotten(tiny_depth: pf.DepthPredictor) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def endless() -> Iterator[torch.Tensor]:
        for number in range(12):
            yield torch.rand(3, 16, 24, generator=torch.Generator().manual_seed(number))

    for step in tiny_depth.depth_video(endless(), num_updates=1):
        assert step.frame is not None
        alive = [each for each in alive if each() is not None] + [weakref.ref(step.frame)]
        assert len(alive) <= 3


def test_times_of_a_variable_rate_are_exact(
    tiny_depth: pf.DepthPredictor, tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    ticks = [0, 1, 4, 9]
    images = [np.full((32, 32, 3), 40 * number, np.uint8) for number in range(4)]
    path = make_video(tmp_path / "clip.mp4", images, times=ticks, tick=Fraction(1, 30000))
    steps = list(tiny_depth.depth_video(path, num_updates=1))
    assert [step.time for step in steps] == [Fraction(tick, 30000) for tick in ticks]


def test_the_typical_range_holds_most_depths_of_the_clip(tiny_depth: pf.DepthPredictor, folder: Path) -> None:
    video = tiny_depth.depth_video(folder, precision="full", steady=False, fps=1)
    calls: list[tuple[int, int]] = []
    near, far = video.typical_range(lambda done, total: calls.append((done, total)))
    result = depths(video)
    assert (
        calls == [(n, 4) for n in (1, 2, 3, 4)]
        and video.typical_range() == (near, far)
        and far >= MIN_RANGE_RATIO * near
    )
    assert 0.9 < float(((result >= near) & (result <= far)).float().mean()) <= 1


def test_what_cannot_be_a_clip_is_one_sentence(
    tiny_depth: pf.DepthPredictor, frames: list[np.ndarray], folder: Path
) -> None:
    with pytest.raises(InputError, match=r"the clip has no frame in this span; choose another\.$"):
        list(tiny_depth.depth_video(frames, start=9))
    with pytest.raises(InputError, match=r"0\.png has no frame in this span"):
        tiny_depth.depth_video(folder, start=9).typical_range()
    with pytest.raises(InputError, match="frame 1 is 40x24 where those before it are 64x48"):
        list(tiny_depth.depth_video([frames[0], frames[0][:24, :40]]))
    with pytest.raises(InputError, match="a frame step of 0 is not possible"):
        tiny_depth.depth_video(frames, frame_step=0)
    with pytest.raises(InputError, match="a batch size of 0 is not possible"):
        tiny_depth.depth_video(folder, batch_size=0)
    with pytest.raises(InputError, match="open it as a video, or give a range"):
        tiny_depth.depth_video(frames).typical_range()
