"""Training windows for stabilization."""

import pytest
import torch

from protoformer.geometry.motion_fields import Trajectories
from protoformer.models.config import preset
from protoformer.stabilization import data as stabilize_sources
from protoformer.stabilization.data import EstimationErrors, SyntheticWindows
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import StabilityWindows
from protoformer.synthetic.scene import Scenes
from protoformer.synthetic.texture_bank import procedural_bank

SIZE = (48, 64)
CONFIG = preset("tiny", stabilization={"field_window": 4, "grid_window": 6})


BANK = procedural_bank(side=64, each=3)
"""Small textures: the default bank takes seconds to make."""


def world() -> SyntheticScenes:
    return SyntheticScenes("handheld", 5, SIZE, bank=BANK)


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return world().scenes(range(3))


@pytest.fixture(scope="module")
def windows(scenes: Scenes) -> StabilityWindows:
    return SyntheticWindows(CONFIG)(Renderer(scenes, BANK), "clean")


def test_windows_have_two_frames_with_the_trails_around_each(windows: StabilityWindows) -> None:
    assert windows.unstable.shape == (3, 2, 3, *SIZE) and windows.stable.shape == (3, 3, *SIZE)
    assert windows.displacements.shape == (3, 2, 9, 2, 6, 8) and windows.confidence.shape == (3, 2, 9, 1, 6, 8)
    assert windows.warp.shape == (3, 2, 2, 6, 8) and windows.valid.shape == (3, 2, 1, 6, 8)
    assert windows.valid.all() and windows.names[0].startswith("handheld-5-")
    assert windows.displacements[:, :, 4].abs().max() < 1e-3 and windows.confidence[:, :, 4].min() == 1
    assert windows.confidence.min() >= 0 and windows.confidence.max() <= 1
    assert windows.displacements[(windows.confidence == 0).expand_as(windows.displacements)].abs().sum() == 0


def test_a_window_is_decided_by_its_scene_alone(scenes: Scenes, windows: StabilityWindows) -> None:
    alone = SyntheticWindows(CONFIG)(Renderer(scenes.part(1, 2), BANK), "clean")
    for name in ("unstable", "stable", "displacements", "confidence", "warp"):
        assert torch.allclose(getattr(alone, name), getattr(windows, name)[1:2], atol=1e-4), name


def test_a_grids_window_ends_with_the_frame_itself(scenes: Scenes) -> None:
    config = CONFIG.changed(stabilization={"regressor": "grid"})
    result = SyntheticWindows(config)(Renderer(scenes.part(0, 1), BANK), "clean")
    assert result.displacements.shape[2] == 7 and result.displacements[:, :, -1].abs().max() < 1e-3


def still(count: int, frames: int) -> Trajectories:
    return Trajectories(torch.zeros(count, frames, 2, 6, 8), torch.ones(count, frames, 1, 6, 8))


def test_errors_grow_with_the_distance_in_time_and_are_shared_by_neighboring_windows(scenes: Scenes) -> None:
    off = EstimationErrors(SceneRandom(1, range(3)), scenes, 20, 42, torch.device("cpu"))
    first, second = off.apply(still(3, 41), 0, 20), off.apply(still(3, 41), 1, 20)
    assert first.displacements[:, 20].abs().max() == 0
    assert first.displacements[:, 0].abs().mean() > 2 * first.displacements[:, 19].abs().mean()
    # What one window says of two frames, the other says too: both come from the same motions.
    both = (
        first.confidence[:, 10:11]
        * first.confidence[:, 30:31]
        * second.confidence[:, 9:10]
        * second.confidence[:, 29:30]
    ) > 0
    apart = (first.displacements[:, 30:31] - first.displacements[:, 10:11]) - (
        second.displacements[:, 29:30] - second.displacements[:, 9:10]
    )
    assert both.any() and apart[both.expand_as(apart)].abs().max() < 1e-4


def test_clips_begin_and_end(scenes: Scenes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stabilize_sources, "ENDS", 1.0)
    many = world().scenes([0] * 12)
    off = EstimationErrors(SceneRandom(1, range(12)), many, 20, 42, torch.device("cpu"))
    for number in (0, 1):
        known = off.apply(still(12, 41), number, 20).confidence.amax(dim=(2, 3, 4)) > 0
        assert known[:, 20].all() and not known.all()
        assert (known.int().diff(dim=1).abs().sum(dim=1) <= 2).all()  # what is known is in one piece


def test_some_scenes_stand_still_and_others_shake_more(scenes: Scenes) -> None:
    many = world().scenes(range(60))
    shaken = stabilize_sources._scale_shake(many, SceneRandom(stabilize_sources.SALT, many.sensor.key))
    before, after = (each.camera.shake_turn.amplitude.abs().sum(dim=(1, 2)) for each in (many, shaken))
    ratio = after / before
    assert (ratio == 0).any() and ratio[ratio > 0].min() >= 0.39 and 1.5 < ratio.max() <= 3.01
