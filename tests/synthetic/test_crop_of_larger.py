"""A crop of a larger image shows what the larger image shows there."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import depth_sample, flow_sample
from protoformer.synthetic.layers import crop_of_larger
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.scene import Scenes
from protoformer.synthetic.texture_bank import TextureBank

Compose = Callable[..., Scenes]
HEIGHT, WIDTH = 24, 32
THINGS: tuple[dict[str, object], ...] = (
    {"kind": "box", "position": [(0.5, 0.2, 5.0), (0.3, -0.1, -0.4)], "spin": [(0.2, 0.4, 0.1), (0.1, 0.3, 0.2)]},
    {"kind": "ball", "position": [(-1.2, -0.4, 4.0), (0.2, 0.1, 0.2)]},
    {"kind": "sky", "position": (0.0, 0.0, 0.0), "extent": (50.0, 50.0, 50.0)},
)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def placed(x: int, y: int, times: float = 2.0) -> Tensor:
    """Where a part lies whose first pixel is the larger picture's (x, y)."""
    return numbers(x / ((times - 1) * WIDTH), y / ((times - 1) * HEIGHT))[None]


def cut(maps: Tensor, x: int, y: int, border: int = 0) -> Tensor:
    """The part of a larger picture from (x, y) on, without so many pixels at its border."""
    return maps[..., y + border : y + HEIGHT - border, x + border : x + WIDTH - border]


@pytest.mark.parametrize("family", ["drive", "objects"])
def test_one_times_as_large_changes_nothing(bank: TextureBank, family: str) -> None:
    scenes = SyntheticScenes(family, 3, (HEIGHT, WIDTH), bank=bank).scenes([0, 1])
    part = crop_of_larger(scenes, numbers(1.0, 1.0), torch.rand(2, 2))
    torch.testing.assert_close(part.camera.center, scenes.camera.center, rtol=0, atol=1e-12)
    assert torch.equal(part.camera.focal, scenes.camera.focal)
    assert part.size == scenes.size and part.names == scenes.names


@pytest.mark.parametrize(("x", "y"), [(0, 0), (32, 24), (7, 19)])
def test_a_crop_equals_the_part_of_the_larger_image(compose: Compose, bank: TextureBank, x: int, y: int) -> None:
    usual = compose(*THINGS, size=(HEIGHT, WIDTH), focal=(20.0, 24.0))
    larger = compose(*THINGS, size=(2 * HEIGHT, 2 * WIDTH), focal=(40.0, 48.0))
    part = flow_sample(Renderer(crop_of_larger(usual, numbers(2.0), placed(x, y)), bank))
    whole = flow_sample(Renderer(larger, bank))
    assert part.flow.abs().amax() > 2
    torch.testing.assert_close(part.flow, cut(whole.flow, x, y), rtol=0, atol=1e-4)
    assert torch.equal(part.valid, cut(whole.valid, x, y))
    # Whether a pixel at the border is at an edge is known from its neighbors, which the part lacks.
    inner = (..., slice(1, -1), slice(1, -1))
    for name in ("first", "second"):
        shown, there = getattr(part, name)[inner], cut(getattr(whole, name), x, y, border=1)
        torch.testing.assert_close(shown, there, rtol=0, atol=2e-4)


def test_a_crop_of_a_room_has_the_depth_and_the_camera_of_the_larger_image(bank: TextureBank) -> None:
    usual, larger = (
        SyntheticScenes("room", 3, (times * HEIGHT, times * WIDTH), bank=bank).scenes([4, 5]) for times in (1, 2)
    )
    places = torch.cat((placed(5, 20), placed(30, 2)))
    part = depth_sample(Renderer(crop_of_larger(usual, numbers(2.0, 2.0), places), bank))
    whole = depth_sample(Renderer(larger, bank))
    assert part.intrinsics is not None and whole.intrinsics is not None
    for scene, (x, y) in enumerate(((5, 20), (30, 2))):
        torch.testing.assert_close(part.depth[scene], cut(whole.depth[scene], x, y), rtol=1e-4, atol=0)
        moved = whole.intrinsics[scene] - torch.tensor([[0.0, 0.0, x], [0.0, 0.0, y], [0.0, 0.0, 0.0]])
        torch.testing.assert_close(part.intrinsics[scene], moved)


def test_each_scene_has_a_size_and_a_place_of_its_own(bank: TextureBank) -> None:
    scenes = SyntheticScenes("room", 3, (HEIGHT, WIDTH), bank=bank).scenes([0, 1, 2])
    times, places = numbers(1.5, 3.0, 1.2), torch.tensor([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    together = crop_of_larger(scenes, times, places).camera
    # The middle of the larger picture, from the part: at its own middle where the part is the middle one.
    expected = [[23.5, 5.5], [15.5, 11.5], [12.3, 13.9]]
    torch.testing.assert_close(together.center, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)
    for scene in range(3):
        one = slice(scene, scene + 1)
        alone = crop_of_larger(scenes.part(scene, scene + 1), times[one], places[one])
        assert torch.equal(alone.camera.focal, together.focal[one])
        assert torch.equal(alone.camera.center, together.center[one])


def test_nothing_but_the_lens_is_changed(bank: TextureBank) -> None:
    scenes = SyntheticScenes("handheld", 3, (HEIGHT, WIDTH), bank=bank).scenes([0])
    part = crop_of_larger(scenes, numbers(2.0), placed(3, 4))
    lens = {"focal": scenes.camera.focal, "center": scenes.camera.center}
    assert dataclasses.replace(part, camera=scenes.camera) == scenes
    assert dataclasses.replace(part.camera, **lens) == scenes.camera
