"""Depth filtered along the flow flickers less and does not lag behind moving objects."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

import protoformer as pf
from protoformer.depth.metrics import depth_flicker
from protoformer.depth.video import MAX_DEPARTURE, TemporalFilter, classical_motion
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import procedural_bank

SIZE = (96, 128)


@dataclass(frozen=True)
class Truth:
    """A clip of the world: images, T x 3 x H x W, its true depths and motion, and what in it moves by itself."""

    images: torch.Tensor
    depths: torch.Tensor
    flows: torch.Tensor
    visible: torch.Tensor
    moving: torch.Tensor

    def flicker(self, logs: torch.Tensor) -> float:
        return depth_flicker(logs.exp(), self.flows, self.visible)


def clip(family: str, frames: int) -> Truth:
    renderer = SyntheticScenes(family, size=SIZE, bank=procedural_bank(64, 2)).renderer([1])
    views = [renderer.view(frame / renderer.scenes.fps) for frame in range(frames)]
    motions = [renderer.motion(one, other) for one, other in itertools.pairwise(views)]
    return Truth(
        images=torch.cat([renderer.clean(view) for view in views]),
        depths=torch.cat([view.depth for view in views]).clamp(max=200),
        flows=torch.cat([torch.where(motion.valid, motion.flow, 0.0) for motion in motions]),
        visible=torch.cat([motion.valid & ~motion.occlusion for motion in motions]),
        moving=torch.cat([renderer.instances(view) > 0 for view in views]),
    )


@pytest.fixture(scope="module")
def room() -> Truth:
    """A handheld camera in a room."""
    return clip("room", 10)


def wavering(truth: Truth, level: float = 0.05, surface: float = 0.05) -> torch.Tensor:
    """Log depths as a network might say them: right, but for a level of each frame and a slow noise over it."""
    rng = torch.Generator().manual_seed(0)
    levels = level * torch.randn(len(truth.depths), 1, 1, 1, generator=rng)
    noise = surface * torch.randn(len(truth.depths), 1, 6, 8, generator=rng)
    return truth.depths.log() + levels + F.interpolate(noise, SIZE, mode="bilinear")


def followed(truth: Truth, logs: torch.Tensor) -> torch.Tensor:
    steady = TemporalFilter()
    scale = torch.full_like(logs[0], math.log(0.1))
    return torch.stack([steady.follow(image, log, scale) for image, log in zip(truth.images, logs, strict=True)])


def error(truth: Truth, logs: torch.Tensor, where: torch.Tensor | None = None) -> float:
    off = (logs - truth.depths.log()).abs()[4:]
    return float(off.mean() if where is None else off[where[4:]].mean())


def test_flicker_falls_to_less_than_half_and_the_error_falls_too(room: Truth) -> None:
    frame_by_frame = wavering(room)
    steady = followed(room, frame_by_frame)
    assert room.flicker(steady) < 0.5 * room.flicker(frame_by_frame)
    assert error(room, steady) < 0.8 * error(room, frame_by_frame)


def test_what_moves_does_not_smear() -> None:
    """A depth that is right stays right to 3 % on a thing that moves by itself, and to 1 % on all of the image."""
    chase = clip("chase", 10)
    steady = followed(chase, chase.depths.log())
    assert bool(chase.moving[4:].any())
    assert error(chase, steady, chase.moving) < 0.03
    assert error(chase, steady) < 0.01


def test_no_pixel_leaves_what_its_frame_says_by_more_than_the_bound() -> None:
    """One pixel in two frames of one level, whatever the step between them."""
    for step in (0.02, 0.1, 0.22, 0.5, 3.0):
        log = torch.zeros(1, *SIZE)
        steady, image = TemporalFilter(), torch.rand(3, *SIZE, generator=torch.Generator().manual_seed(1))
        for _ in range(8):
            steady.follow(image, log, log)
        jumped = log.clone()
        jumped[:, :20, :20] = step
        departed = steady.follow(image, jumped, log) - jumped
        assert 0 < float(departed.abs().max()) <= MAX_DEPARTURE


def test_a_steady_approach_is_followed_without_lag() -> None:
    """The level falls by 2 % a frame; after a while the trend is known."""
    image, scale = torch.rand(3, *SIZE, generator=torch.Generator().manual_seed(2)), torch.zeros(1, *SIZE)
    steady = TemporalFilter()
    for frame in range(60):
        log = torch.full((1, *SIZE), -0.02 * frame)
        result = steady.follow(image, log, scale)
    assert float((result - log).abs().max()) < 0.005


def test_another_scene_starts_anew(room: Truth) -> None:
    steady, scale = TemporalFilter(), torch.zeros(1, *SIZE)
    steady.follow(room.images[0], torch.zeros(1, *SIZE), scale)
    other = torch.rand(3, *SIZE, generator=torch.Generator().manual_seed(5))
    log = torch.full((1, *SIZE), 0.1)
    assert torch.equal(steady.follow(other, log, scale), log)


@pytest.mark.parametrize("scale", [60.0, -60.0, math.inf, math.nan])
def test_a_frame_of_which_nothing_is_known_spoils_none_that_follows(room: Truth, scale: float) -> None:
    steady, good = TemporalFilter(), torch.full((1, *SIZE), math.log(0.1))
    for frame, own in enumerate((good, torch.full_like(good, scale), torch.full_like(good, scale), good)):
        result = steady.follow(room.images[frame], room.depths[frame].log(), own)
        assert bool(result.isfinite().all())
    assert float((result - room.depths[3].log()).abs().mean()) < 0.02


def test_a_frame_without_numbers_is_forgotten(room: Truth) -> None:
    steady, scale = TemporalFilter(), torch.full((1, *SIZE), math.log(0.1))
    steady.follow(room.images[0], room.depths[0].log(), scale)
    spoilt = room.depths[1].log().clone()
    spoilt[0, 3, 4] = math.nan
    assert steady.follow(room.images[1], spoilt, scale) is spoilt
    log = room.depths[2].log()
    assert torch.equal(steady.follow(room.images[2], log, scale), log)


@pytest.mark.parametrize("size", [(1, 1), (3, 60), (12, 60), (90, 640), (20, 640), (1, 20_000), (90, 5)])
def test_frames_of_any_size_have_a_motion(size: tuple[int, int]) -> None:
    image = torch.rand(3, *size)
    flow, hidden = classical_motion(image, image)
    assert flow.shape == (2, *size) and hidden.shape == (1, *size)


def test_a_network_flickers_less_when_it_is_steadied(tiny_depth: pf.DepthPredictor, room: Truth) -> None:
    by_itself, steadied = (
        torch.stack([step.depth for step in tiny_depth.depth_video(list(room.images), steady=steady)]).log()
        for steady in (False, True)
    )
    assert room.flicker(steadied) < 0.7 * room.flicker(by_itself)
