"""The clean pass keeps the color of every point; the final pass adds light, lens and sensor effects."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.warps import warp_back
from protoformer.synthetic.assembly import Material
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.scene import MotionPath, Scenes
from protoformer.synthetic.surface import in_shadow
from protoformer.synthetic.texture_bank import TextureBank

Compose = Callable[..., Scenes]
Dilated = Callable[[Tensor, int], Tensor]
SIZE = (64, 96)
GRAY = 255.0
WALL = {"kind": "rectangle", "position": (0.0, 0.0, 8.0), "extent": (90.0, 90.0, 1.0)}
EVEN = Material(repeat=(40.0, 40.0), contrast=(0.0, 0.0), tone=(0.5, 0.5), tint=0.0, gloss=0.0)


def colors(renderer: Renderer, time: float = 0.0, subframes: int = 1) -> Tensor:
    """The final pass as gray levels: 3 x H x W."""
    return GRAY * renderer.final(renderer.view(time), subframes)[0]


def with_sensor(scenes: Scenes, **changes: Tensor | MotionPath) -> Scenes:
    return dataclasses.replace(scenes, sensor=dataclasses.replace(scenes.sensor, **changes))


def test_without_effects_the_final_pass_is_the_clean_one(compose: Compose, bank: TextureBank, dilated: Dilated) -> None:
    smooth = Material(repeat=(40.0, 40.0), contrast=(0.5, 0.5), tint=0.0, gloss=0.0)
    things = (
        {**WALL, "material": smooth},
        {
            "kind": "ball",
            "position": (-1.5, 0, 5.0),
            "extent": (1.3, 0.6, 0.9),
            "spin": (0.1, 0.6, 0.4),
            "material": smooth,
        },
        {"kind": "box", "position": (1.5, 0, 5.0), "spin": (0.3, 0.5, 0.1), "material": smooth},
    )
    renderer = Renderer(compose(*things, sun=(0.3, -0.6, -1.0), ambient=0.4), bank)
    view = renderer.view(0.0)
    clean = GRAY * renderer.clean(view)[0]
    shadow = in_shadow(view.frame, renderer.shapes, view.hits.points, view.hits.index)
    code = view.map((6 * view.hits.index + view.hits.face + 100 * shadow)[None]).float()
    even = F.max_pool2d(code, 3, 1, 1) == -F.max_pool2d(-code, 3, 1, 1)
    even &= ~dilated(view.map(shadow[None]), 1)
    gap = (colors(renderer) - clean).abs().mean(dim=0)[even[0, 0]]
    assert gap.mean() < 1 and gap.max() < 4
    assert even.float().mean() > 0.5


def test_fog_takes_the_light_away_with_distance(compose: Compose, bank: TextureBank) -> None:
    scenes = compose({**WALL, "material": EVEN, "base": [[1.0, 0, 0], [0, 0.5, -0.866], [0, 0.866, 0.5]]})
    atmosphere = dataclasses.replace(
        scenes.atmosphere,
        fog=torch.tensor([0.1], dtype=torch.float64),
        fog_color=torch.tensor([[0.9, 0.9, 0.9]], dtype=torch.float64),
    )
    renderer = Renderer(dataclasses.replace(scenes, atmosphere=atmosphere), bank)
    depth = renderer.view(0.0).depth[0]
    assert depth.max() > 1.5 * depth.min()
    clear = torch.exp(-0.1 * depth)
    expected = GRAY * (0.5 * clear + 0.9 * (1 - clear))
    assert (colors(renderer) - expected).abs().max() < 2.5


def test_exposure_multiplies_and_noise_differs_from_frame_to_frame(compose: Compose, bank: TextureBank) -> None:
    scenes = compose({**WALL, "material": EVEN})
    brighter = MotionPath.of(torch.full((1, 3), math.log(1.5), dtype=torch.float64))
    image = colors(Renderer(with_sensor(scenes, exposure=brighter), bank))
    assert (image - GRAY * 0.75).abs().max() < 2
    noisy = Renderer(with_sensor(scenes, read=torch.tensor([0.05], dtype=torch.float64)), bank)
    first, again, second = colors(noisy), colors(noisy), colors(noisy, 1.0)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    # Colors are kept at half size, so noise is measured in the gray.
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    gray = (weights * first).sum(dim=0)
    assert float(gray.std()) == pytest.approx(GRAY * 0.05 * float(weights.norm()), rel=0.1)


def test_motion_blur_is_as_long_as_the_motion_while_the_shutter_is_open(compose: Compose, bank: TextureBank) -> None:
    white = dataclasses.replace(EVEN, tone=(0.9, 0.9))
    black = dataclasses.replace(EVEN, tone=(0.1, 0.1))
    for way in (-1.0, 1.0):  # 12 pixels a frame, and open for half of it
        patch = {"kind": "rectangle", "position": [(0, 0, 5.0), (way, 0, 0)], "material": white}
        scenes = compose(patch, {**WALL, "material": black})
        open_half = with_sensor(scenes, shutter=torch.tensor([0.5], dtype=torch.float64))
        sharp = colors(Renderer(scenes, bank), subframes=24).mean(dim=0)
        blurred = colors(Renderer(open_half, bank), subframes=24).mean(dim=0)

        def between(line: Tensor) -> int:
            return int(((line > GRAY * 0.12) & (line < GRAY * 0.88)).sum())

        assert between(sharp[24]) <= 4 and between(sharp[:, 32]) <= 4
        assert 11 <= between(blurred[24]) <= 14  # two edges, six pixels each
        assert between(blurred[:, 32]) <= 4
        # The shutter is open about the moment: an edge's middle stays where it is.
        edge = blurred[24, 32:].sub(GRAY * 0.1).sum() / (GRAY * 0.8)
        assert float(edge) == pytest.approx(31.5 + 12 + 0.5 - 32, abs=0.3)


def test_a_box_throws_its_shadow_where_the_sun_says(compose: Compose, bank: TextureBank, dilated: Dilated) -> None:
    ground_rotation = [[1.0, 0, 0], [0, 0, 1.0], [0, -1.0, 0]]
    ground = {
        "kind": "rectangle",
        "position": (0, 3.0, 0),
        "extent": (90.0, 90.0, 1.0),
        "base": ground_rotation,
        "material": EVEN,
    }
    box = {"kind": "box", "position": (0, 2.2, 4.4), "extent": (0.3, 0.1, 0.6), "material": EVEN}
    scenes = compose(ground, box, sun=(1.0, -1.0, 0.0), ambient=0.3, turn=(-0.6, 0, 0))
    renderer = Renderer(scenes, bank)
    view = renderer.view(0.0)
    to_world = view.frame.to_world[0].float()
    x, _, z = to_world @ view.hits.points[:, 0]
    x, z = (part.view(48, 64) for part in (x, z))
    # A sun at 45 degrees to the right moves a shadow left by the height above the ground: 0.7 to 0.9 meters.
    expected = (x > -0.3 - 0.9) & (x < 0.3 - 0.7) & ((z - 4.4).abs() < 0.6)
    on_ground = view.primitive[0, 0] == 0
    expected &= on_ground
    image = colors(renderer).mean(dim=0)
    lit = GRAY * 0.5 * (0.3 + 0.7 * (0.5 + 0.5 * math.sqrt(0.5)))
    inside = ~dilated(~expected[None, None], 1)[0, 0]
    outside = on_ground & ~dilated((expected | ~on_ground)[None, None], 1)[0, 0]
    assert inside.sum() > 20
    assert (image[inside] - GRAY * 0.5 * 0.3).abs().max() < 3
    assert (image[outside] - lit).abs().max() < 3


def test_a_highlight_is_where_the_sun_is_mirrored(compose: Compose, bank: TextureBank) -> None:
    scenes = compose({**WALL, "material": EVEN}, sun=(0.3, -0.2, -1.0))
    glossy = dataclasses.replace(scenes.primitives, gloss=torch.full((1, 1), 0.4, dtype=torch.float64))
    image = colors(Renderer(dataclasses.replace(scenes, primitives=glossy), bank)).mean(dim=0)
    row, column = divmod(int(image.flatten().argmax()), 64)
    assert abs(column - (31.5 + 60 * 0.3)) <= 3 and abs(row - (23.5 - 60 * 0.2)) <= 3
    assert float(image.max()) == pytest.approx(GRAY * 0.9, abs=3)


def test_the_clean_pass_keeps_its_light_as_things_turn_and_the_final_one_does_not(
    compose: Compose, bank: TextureBank
) -> None:
    turning = {
        "kind": "box",
        "position": (0, 0, 5.0),
        "spin": [(0, 0, 0), (0, 0.7, 0)],
        "material": EVEN,
        "instance": 1,
    }
    renderer = Renderer(compose(turning, {**WALL, "material": EVEN}, sun=(0.6, 0, -1.0), ambient=0.0), bank)
    first, second = renderer.view(0.0), renderer.view(1 / renderer.scenes.fps)
    motion = renderer.motion(first, second)
    middle = (0, 0, 24, 30)
    assert not motion.occlusion[middle]
    warped = [warp_back(image, motion.flow)[middle] for image in (renderer.clean(second), renderer.final(second, 1))]
    assert float(warped[0]) == pytest.approx(float(renderer.clean(first)[middle]), abs=1e-4)
    assert abs(float(warped[1]) - float(renderer.final(first, 1)[middle])) > 0.05


def test_edges_are_softened_and_the_inside_is_not(compose: Compose, bank: TextureBank, dilated: Dilated) -> None:
    white, black = (dataclasses.replace(EVEN, tone=(tone, tone)) for tone in (0.8, 0.2))
    patch = {"kind": "rectangle", "position": (0, 0, 5.0), "extent": (1.0, 1.0, 1.0), "material": white}
    tilted = {**patch, "spin": (0, 0, 0.3)}
    renderer = Renderer(compose(tilted, {**WALL, "material": black}), bank)
    view = renderer.view(0.0)
    image = renderer.clean(view)
    on = (view.primitive == 0).float()
    inside, outside = ~dilated(1 - on, 1), ~dilated(on, 1)
    torch.testing.assert_close(image[inside.expand_as(image)], torch.tensor(0.8).expand(int(3 * inside.sum())))
    torch.testing.assert_close(image[outside.expand_as(image)], torch.tensor(0.2).expand(int(3 * outside.sum())))
    # The mean of an edge's rays is the share that it covers: the whole patch keeps its area.
    assert float(((image[:, :1] - 0.2) / 0.6).sum()) == pytest.approx(24 * 24, rel=0.01)
    assert ((image > 0.25) & (image < 0.75)).any()
