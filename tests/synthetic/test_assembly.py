"""Materials of a group's objects."""

import torch

from protoformer.synthetic.assembly import Assembly, Material, remove_near
from protoformer.synthetic.families.drive import PICKETS
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import Primitives
from protoformer.synthetic.texture_bank import TextureBank

SCENES, THINGS = 40, 12


def boxes(material: Material, bank: TextureBank) -> Primitives:
    """A group of boxes of this material in each of some scenes."""
    assembly = Assembly(SceneRandom(3, range(SCENES)), bank.surfaces, bank.cutouts)
    places = torch.zeros(SCENES, THINGS, 3)
    assembly.add("box", "thing", places, torch.ones_like(places), material=material)
    return assembly.primitives()


def test_things_that_are_alike_differ_between_scenes_alone(bank: TextureBank) -> None:
    alike, other = boxes(Material(alike=True), bank), boxes(Material(), bank)
    for name in ("texture", "tiling", "gain", "bias", "gloss"):
        values = getattr(alike, name)
        assert (values == values[:, :1]).all(), name
        assert (values != values[:1]).any(), name
        assert (getattr(other, name) != getattr(other, name)[:, :1]).any(), name


def test_the_fraction_of_plain_primitives_is_the_given_one_with_any_brightness(bank: TextureBank) -> None:
    things = boxes(Material(contrast=(0.7, 1.1), plain=0.25), bank)
    plain = things.gain.amax(dim=-1) < 0.3
    assert 0.18 < plain.float().mean() < 0.32
    middle = (things.bias + 0.5 * things.gain).mean(dim=-1)[plain]  # what a texture's middle gray becomes
    assert middle.min() < 0.1 and middle.max() > 0.85
    assert torch.equal(things.gain[~plain], boxes(Material(contrast=(0.7, 1.1)), bank).gain[~plain])


def test_streets_have_fences_whose_pickets_look_alike(bank: TextureBank) -> None:
    renderer = SyntheticScenes("drive", 5, (48, 144), bank=bank).renderer(range(SCENES))
    primitives = renderer.scenes.primitives
    slim = (primitives.extent[..., 0] - 0.02).abs() < 1e-9  # a picket is as thick in every scene
    assert (slim.sum(dim=1) == PICKETS).all()
    gain = primitives.gain[slim].view(SCENES, PICKETS, 3)
    assert (gain == gain[:, :1]).all()
    assert 0.3 < primitives.alive[slim].view(SCENES, PICKETS).all(dim=1).float().mean() < 0.7


def test_the_parts_of_a_thing_look_the_same_and_things_do_not(bank: TextureBank) -> None:
    assembly = Assembly(SceneRandom(3, range(SCENES)), bank.surfaces, bank.cutouts)
    places = torch.zeros(SCENES, THINGS, 3)
    assembly.add("box", "thing", places, torch.ones_like(places), parts=3)
    things = assembly.primitives()
    for name in ("texture", "tiling", "gain", "bias", "gloss"):
        values = getattr(things, name).unflatten(1, (3, THINGS // 3))
        assert (values == values[:, :1]).all(), name
        assert (values != values[:, :, :1]).any(), name


def test_untextured_primitives_have_the_given_brightness(bank: TextureBank) -> None:
    things = boxes(Material(plain=1.0, bare=(0.6, 0.8), tint=0.0), bank)
    middle = things.bias + 0.5 * things.gain
    assert 0.6 <= middle.min() < 0.62 and 0.78 < middle.max() <= 0.8


def test_what_comes_too_near_goes_with_all_its_parts(bank: TextureBank) -> None:
    assembly = Assembly(SceneRandom(3, [0]), bank.surfaces, bank.cutouts)
    place = torch.tensor([[[0.0, 0.0, 2.0], [0.0, 0.0, 4.0]]], dtype=torch.float64)
    small = torch.full((1, 2, 3), 0.1, dtype=torch.float64)
    towards = torch.tensor([0.0, 0.0, -1.5], dtype=torch.float64).expand(1, 2, 3)
    assembly.add("box", "far part", place, small)
    assembly.add("box", "near part", place, small, offset=towards)
    kept = remove_near(assembly.primitives(), torch.zeros(1, 3, dtype=torch.float64), 0.45)
    assert kept.alive.tolist() == [[False, True, False, True]]
    wholly = remove_near(assembly.primitives(), torch.zeros(1, 3, dtype=torch.float64), 0.35)
    assert wholly.alive.all()
