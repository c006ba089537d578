"""Statistics of the scenes of each family: bounds that the documentation states, over many scenes."""

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from protoformer.geometry.warps import pixel_grid
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import MAX_DEPTH
from protoformer.synthetic.renderer import Motion, Renderer, View
from protoformer.synthetic.texture_bank import TextureBank, procedural_bank

COUNT = 32
SEED = 11


@dataclass(frozen=True)
class Many:
    """Scenes of one family and the renders that the tests use."""

    renderer: Renderer
    first: View
    motion: Motion
    clean: Tensor


@cache
def many(family: str) -> Many:
    """Rendered once for all tests."""
    size = (32, 96) if family == "drive" else (32, 48)
    renderer = SyntheticScenes(family, SEED, size, bank=procedural_bank(side=64, each=3)).renderer(range(COUNT))
    first, second = renderer.view(0.0), renderer.view(1 / renderer.scenes.fps)
    return Many(renderer, first, renderer.motion(first, second), renderer.clean(first))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_ray_meets_something_and_every_number_is_finite(family: str) -> None:
    scenes = many(family)
    for numbers in (scenes.first.depth, scenes.first.normals, scenes.motion.flow, scenes.clean):
        assert numbers.isfinite().all()
    assert scenes.clean.min() >= 0 and scenes.clean.max() <= 1
    assert scenes.motion.valid.float().mean() > 0.9  # what comes behind the camera has no motion


@pytest.mark.parametrize("family", FAMILIES)
def test_the_final_pass_is_finite_too(family: str, bank: TextureBank) -> None:
    renderer = SyntheticScenes(family, SEED, (32, 48), bank=bank).renderer(range(2))
    for time in (0.0, 3.0):
        final = renderer.final(renderer.view(time))
        assert final.isfinite().all() and final.min() >= 0 and final.max() <= 1
        assert (final - renderer.clean(renderer.view(time))).abs().mean() > 0.003


@pytest.mark.parametrize("family", FAMILIES)
def test_scenes_are_neither_black_nor_white_nor_without_texture(family: str) -> None:
    images = many(family).clean
    brightness = images.mean(dim=(1, 2, 3))
    assert ((brightness < 0.1) | (brightness > 0.9)).float().mean() <= 0.03
    clipped = ((images < 0.5 / 255) | (images > 254.5 / 255)).any(dim=1).float().mean(dim=(1, 2))
    assert (clipped > 0.25).float().mean() <= 0.15
    gray = 255 * images.mean(dim=1)
    across, down = gray[:, :-1, 1:] - gray[:, :-1, :-1], gray[:, 1:, :-1] - gray[:, :-1, :-1]
    slope = (across.square() + down.square()).sqrt().mean(dim=(1, 2))
    assert (slope < 1).float().mean() <= 0.03


@pytest.mark.parametrize("family", FAMILIES)
def test_no_single_thing_fills_the_image(family: str) -> None:
    scenes = many(family)
    instances = scenes.renderer.instances(scenes.first).flatten(1)
    filled = 0
    for image, seen in zip(scenes.clean, instances, strict=True):
        share = torch.bincount(seen)[1:].max() / len(seen) if seen.max() > 0 else 0.0
        filled += int(share > 0.9 or image.flatten(1).std(dim=1).max() < 4 / 255)
    assert filled <= 0.03 * COUNT


def test_objects_move_by_less_than_half_a_pixel_and_by_more_than_a_hundred(bank: TextureBank) -> None:
    speeds = []
    for start in range(0, 30, 10):
        renderer = SyntheticScenes("objects", SEED, bank=bank).renderer(range(start, start + 10))
        first, second = renderer.scenes.frame(0.0), renderer.scenes.frame(1 / renderer.scenes.fps)
        some = pixel_grid(*renderer.scenes.size)[:, 4::8, 4::8].flatten(1)[None]
        flow, _, _ = renderer.moved(renderer.cast(first, some), some, second)
        speeds.append(flow.norm(dim=1))
    speed = torch.cat(speeds)
    assert (speed < 0.5).float().mean() > 0.002
    assert (speed > 100).float().mean() > 0.002
    assert (speed.amax(dim=1) > 100).float().mean() > 0.2
    assert 1 < speed.median() < 60


def test_rooms_are_as_deep_as_rooms(bank: TextureBank) -> None:
    depth = many("room").first.depth
    assert depth.max() < 12
    assert ((depth > 0.5) & (depth < 10)).float().mean() > 0.95
    assert (depth > 0.2).float().mean() > 0.995
    assert 1.5 < depth.median() < 5


def test_a_chase_has_a_target_that_is_mostly_seen(bank: TextureBank) -> None:
    scenes = many("chase")
    target = scenes.renderer.materials.instance == 1
    assert (target & scenes.first.frame.alive).any(dim=1).all()
    seen = (scenes.renderer.instances(scenes.first) == 1).flatten(1).sum(dim=1)
    assert (seen > 0).float().mean() > 0.8


def test_a_chase_hides_its_target_at_times(bank: TextureBank) -> None:
    renderer = many("chase").renderer
    share = []
    for time in (0.0, 1.0, 2.0, 4.0):
        view = renderer.view(time)
        seen = (renderer.instances(view) == 1).flatten(1).sum(dim=1)
        share.append(seen / renderer.amodal_mask(view.frame, 1).flatten(1).sum(dim=1).clamp_min(1))
    visible = torch.stack(share)
    assert (visible < 0.8).float().mean() > 0.1
    assert (visible > 0.95).float().mean() > 0.3
    assert visible.max() <= 1


def test_the_road_lies_below_the_horizon_and_widens_as_one_drives() -> None:
    scenes = many("drive")
    depth, flow = scenes.first.depth[:, 0], scenes.motion.flow
    height, width = depth.shape[1:]
    assert depth[:, -1].median() < 0.3 * depth[:, height // 2].median()  # near below, far at the middle
    sky = depth > MAX_DEPTH
    assert sky[:, : height // 4].float().mean() > 3 * sky[:, height // 2 :].float().mean()
    world = scenes.first.map(scenes.first.hits.points).flatten(2).double()
    down = (scenes.first.frame.to_world @ world + scenes.first.frame.eye[..., None])[:, 1]
    assert down.max() < 0.01  # nothing is seen below the ground, y = 0
    # Of still things, the ground right below goes down, what is left goes left and what is right goes right.
    speed = scenes.renderer.scenes.camera.position.at(torch.zeros(COUNT)) - scenes.renderer.scenes.camera.position.at(
        torch.full((COUNT,), 0.1)
    )
    moving = speed[:, 2] < -0.5
    lower = flow[moving][:, 1, -height // 4 :, width // 3 : 2 * width // 3]
    assert (lower > 0).float().mean() > 0.9
    apart = flow[moving][:, 0, :, -width // 6 :].mean() - flow[moving][:, 0, :, : width // 6].mean()
    assert apart > 1


def test_a_hand_shakes_by_pixels_and_not_by_images() -> None:
    renderer = many("handheld").renderer
    shaky, steady = renderer.view(0.5), renderer.view(0.5, steady=True)
    warp = renderer.motion(steady, shaky).flow.norm(dim=1).flatten(1).median(dim=1).values
    width = shaky.frame.size[1]
    assert 0.001 * width < warp.median() < 0.05 * width
    assert warp.max() < 0.25 * width
