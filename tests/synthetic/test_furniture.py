"""Flying and standing chairs, and the furniture of rooms."""

import math

import torch
from torch import Tensor

from protoformer.synthetic.assembly import Assembly, yaw_rotation
from protoformer.synthetic.families.furniture import LEGS, Part, add_boxes, add_chairs, place_at_wall
from protoformer.synthetic.families.objects import CHAIRS, FPS, OBJECTS
from protoformer.synthetic.families.room import KINDS, PIECES, add_walls
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import CENTER, FORWARD
from protoformer.synthetic.texture_bank import TextureBank

SCENES, FLYING = 24, sum(OBJECTS.values())
PARTS = 8
"""Of a chair."""


def flying_chairs(generator: SyntheticScenes, time: float, rows: slice) -> Tensor:
    """Rows of the table of the chairs' parts: F x SCENES x PARTS x CHAIRS, in the order in which these are numbered."""
    scenes = generator.scenes(range(SCENES))
    instance = scenes.primitives.instance
    order = torch.where(instance > FLYING, instance, 0).sort(dim=1, stable=True).indices[:, -PARTS * CHAIRS :]
    table = scenes.frame(time).table[rows]
    return table.gather(2, order.expand(len(table), -1, -1)).unflatten(2, (CHAIRS, PARTS)).transpose(2, 3)


def test_nothing_lies_on_what_was_cleared_away(bank: TextureBank) -> None:
    rooms = SyntheticScenes("room", 5, (48, 64), bank=bank).scenes(range(60)).primitives
    origin = rooms.position.at(torch.zeros(60))
    small = rooms.alive & (rooms.offset.norm(dim=-1) > 0) & (rooms.extent.amax(dim=-1) <= 0.18)
    carries = rooms.alive & (rooms.extent.amax(dim=-1) > 0.18)
    there = (origin[:, :, None] == origin[:, None]).all(dim=-1) & carries[:, None]
    assert small.sum() > 300 and there.any(dim=-1)[small].all()


def test_the_parts_of_a_flying_chair_stay_together_as_it_turns(bank: TextureBank) -> None:
    generator = SyntheticScenes("objects", 5, bank=bank)

    def gaps(time: float) -> Tensor:
        place = flying_chairs(generator, time, CENTER).double()
        return (place[:, :, :, None] - place[:, :, None]).norm(dim=0)

    before, after = gaps(0.0), gaps(0.7)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    assert before.amax(dim=(1, 2)).min() > 0
    first, second = (flying_chairs(generator, time, FORWARD).double() for time in (0.0, 0.7))
    assert ((first - second).norm(dim=0) > 0.05 * first.norm(dim=0)).float().mean() > 0.3  # many do turn


def test_the_legs_of_a_flying_chair_are_two_to_six_pixels_wide(bank: TextureBank) -> None:
    scenes = SyntheticScenes("objects", 5, (352, 640), bank=bank).scenes(range(SCENES))
    parts = scenes.primitives
    start = parts.position.at(torch.full((SCENES,), 0.5 / FPS))  # when each thing is where it was put
    for chair in range(FLYING + 1, FLYING + CHAIRS + 1):
        own = (parts.instance == chair).nonzero()[:, 1].view(SCENES, PARTS)[:, :4, None].expand(-1, -1, 3)
        wide = 2 * parts.extent.gather(1, own)[..., 0] * scenes.camera.focal[:, :1] / start.gather(1, own)[..., 2]
        assert (wide == wide[:, :1]).all() and wide.min() >= 2 and wide.max() <= 6


def test_a_flying_chair_shows_what_is_behind_it(bank: TextureBank) -> None:
    renderer = SyntheticScenes("objects", 5, (88, 160), bank=bank).renderer(range(12))
    frame, share = renderer.scenes.frame(0.0), []
    for chair in range(FLYING + 1, FLYING + CHAIRS + 1):
        mask = renderer.amodal_mask(frame, chair)
        _, _, wide, tall = renderer.mask_box(mask).unbind(-1)
        share.append(mask.flatten(1).sum(dim=1) / (wide * tall))
    filled = torch.cat(share)
    filled = filled[filled.isfinite()]
    assert len(filled) > 12 and filled.mean() < 0.65 and filled.min() < 0.4


def test_of_the_flying_things_twelve_or_more_are_there_and_mostly_a_chair(bank: TextureBank) -> None:
    parts = SyntheticScenes("objects", 5, bank=bank).scenes(range(100)).primitives
    assert parts.alive.shape[1] <= 48
    there = torch.stack(
        [(parts.alive & (parts.instance == number)).any(dim=1) for number in range(1, FLYING + CHAIRS + 1)]
    )
    assert there.sum(dim=0).min() == 12 and there.sum(dim=0).max() == FLYING + CHAIRS
    seated = there[FLYING:].sum(dim=0)
    assert (seated > 0).float().mean() > 0.9 and (seated == 0).any() and (seated == CHAIRS).any()


def test_a_set_of_chairs_is_alike_and_single_ones_are_not(bank: TextureBank) -> None:
    for alike in (True, False):
        assembly = Assembly(SceneRandom(3, range(SCENES)), bank.surfaces, bank.cutouts)
        places, heading = torch.zeros(SCENES, 4, 3), torch.zeros(SCENES, 4, dtype=torch.float64)
        alive = torch.ones(SCENES, 4, dtype=torch.bool)
        add_chairs(assembly, places, yaw_rotation(heading), alive, alike=alike)
        parts = assembly.primitives()
        extent = parts.extent[:, : 4 * (PARTS - 1)].unflatten(1, (PARTS - 1, 4))
        gain = parts.gain[:, : 4 * (PARTS - 1)].unflatten(1, (PARTS - 1, 4))
        assert (extent == extent[:, :, :1]).all() == alike and (gain == gain[:, :, :1]).all() == alike
        assert (gain == gain[:, :1]).all()  # the parts of one chair look the same
        reach = (parts.offset.abs() + parts.extent)[parts.alive].amax(dim=0)
        assert (reach <= torch.tensor([0.27, 0.56, 0.25])).all()  # meters, and none is larger than a chair
        legs = (parts.offset + parts.extent)[:, :4, 1]
        torch.testing.assert_close(legs, torch.full_like(legs, LEGS))


def test_what_stands_against_a_wall_has_its_back_there_and_stays_within_the_room() -> None:
    draws = SceneRandom(3, range(200))
    half = torch.tensor([2.0, 1.3, 3.0], dtype=torch.float64).expand(200, 1, 3)
    heading, place = place_at_wall(draws, "thing", half, 0.5, 0.2)
    back = place + 0.2 * torch.stack((heading.sin(), heading.cos()), dim=-1)
    limits = half[..., ::2]
    assert ((back.abs() - limits).abs().amin(dim=-1) < 1e-9).all()
    aside = place + 0.5 * torch.stack((heading.cos(), -heading.sin()), dim=-1)
    assert (aside.abs() <= limits).all()


def test_the_parts_of_a_piece_turn_with_it(bank: TextureBank) -> None:
    assembly = Assembly(SceneRandom(3, [0]), bank.surfaces, bank.cutouts)
    behind = Part(torch.full((3,), 0.1), torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    there = torch.ones(1, 1, dtype=torch.bool)
    add_boxes(
        assembly,
        "piece",
        torch.zeros(1, 1, 3),
        yaw_rotation(torch.tensor([[math.pi / 2]], dtype=torch.float64)),
        [behind],
        there,
    )
    assert torch.allclose(assembly.primitives().offset[0, 0], torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))


def test_rooms_hold_some_pieces_and_are_as_deep_as_photographed_ones(bank: TextureBank) -> None:
    renderer = SyntheticScenes("room", 5, (24, 32), bank=bank).renderer(range(150))
    parts = renderer.scenes.primitives
    assert parts.alive.shape[1] < 150
    alive = parts.alive.sum(dim=1)
    assert alive.min() > 20 and alive.float().mean() < 90
    view = renderer.view(0.0)
    shown = torch.tensor([len(scene.unique()) for scene in view.hits.index]).float()
    assert shown.median() > 12 and (shown < 6).float().mean() < 0.1  # the camera looks at something
    quantiles = view.depth.flatten(1).quantile(torch.tensor([0.05, 0.5, 0.95]), dim=1)
    near, middle, far = quantiles.median(dim=1).values
    # NYUv2's training images have 1.5, 2.8 and 4.2 meters there, and a tenth of them reach beyond 7.
    assert 1.2 < near < 1.8 and 2.4 < middle < 3.2 and 3.6 < far < 4.8
    assert 5.5 < quantiles[2].quantile(0.9) < 8


def test_walls_are_mostly_plain_and_light(bank: TextureBank) -> None:
    assembly = Assembly(SceneRandom(5, range(300)), bank.surfaces, bank.cutouts)
    half = torch.tensor([2.0, 1.3, 3.0], dtype=torch.float64).expand(300, 1, 3)
    add_walls(assembly, half)
    parts = assembly.primitives()
    gain, bias = parts.gain[:, 0].mean(dim=-1), parts.bias[:, 0].mean(dim=-1)
    assert torch.equal(parts.gain[:, 0], parts.gain[:, 3])  # all four alike
    plain = gain < 0.2
    assert 0.55 < plain.float().mean() < 0.8
    assert (bias + 0.5 * gain)[plain].mean() > 0.65


def test_every_kind_of_room_says_how_likely_each_piece_is() -> None:
    for probabilities in KINDS.values():
        assert len(probabilities) == len(PIECES) and all(0 <= probability <= 1 for probability in probabilities)
    for likely in zip(*KINDS.values(), strict=True):
        assert max(likely) > 0.5
