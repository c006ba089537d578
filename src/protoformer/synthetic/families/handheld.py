"""A walk with a camera in the hand: a smooth path, and the shake that a hand adds to it."""

import math

import torch
from torch import Tensor

from protoformer.synthetic.assembly import Assembly, add_sky, sample_air, sample_hand_motion, sample_sensor, vectors
from protoformer.synthetic.families.drive import ground, houses, looking, on_foot, people, poles, road, trees
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import Camera, MotionPath, Scenes
from protoformer.synthetic.texture_bank import TextureBank

RATE = 30.0
PEOPLE = 5


def handheld(draws: SceneRandom, size: tuple[int, int], bank: TextureBank, shake: float = 1.0) -> Scenes:
    """Build scenes of a street with people, filmed by someone who stands, turns or walks. shake: strength."""
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    ground(assembly)
    front = road(assembly)
    houses(assembly, front, there=0.8)
    poles(assembly, front)
    trees(assembly, front - 1.5)
    spot = draws.uniform("walker.at", -1.0, 1.0, (PEOPLE,)) * front
    start = vectors(spot, 0.0, draws.uniform("walker.along", 4.0, 20.0, (PEOPLE,)))
    there = draws.whether("walker.is", 0.6, (PEOPLE,))
    people(assembly, on_foot(assembly, "walker", start), torch.arange(1, 1 + PEOPLE), there)
    add_sky(assembly)
    return Scenes(
        primitives=assembly.primitives(),
        camera=_camera(draws, size, front, shake),
        air=sample_air(draws),
        film=sample_sensor(draws, focus=(4.0, 20.0)),
        size=size,
        rate=RATE,
    )


def _camera(draws: SceneRandom, size: tuple[int, int], front: Tensor, shake: float) -> Camera:
    height, width = size
    batch = len(draws)
    pace = draws.uniform("walk.pace", 0.0, 1.6) * draws.whether("walk.is", 0.6)
    heading = draws.normal("walk.heading", 0.0, 0.4)
    yaw = heading + draws.normal("walk.gaze", 0.0, 0.4)
    start = vectors(draws.uniform("walk.aside", -0.6, 0.6) * front[:, 0], -draws.uniform("walk.height", 1.3, 1.8), 0.0)
    velocity = vectors(pace * heading.sin(), 0.0, pace * heading.cos())
    slow = draws.uniform("walk.slow", 0.03, 0.15, (3, 1))
    gaze = draws.normal("walk.look", 0.0, 0.25, (3, 1)) * torch.tensor([[0.3], [1.0], [0.05]])
    phase = draws.uniform("walk.phase", 0.0, 2 * math.pi, (3, 1))
    shaken, turned = sample_hand_motion(draws, shake)
    focal = width * draws.uniform("camera.focal", 0.7, 1.2, (1,)).expand(-1, 2)
    middle = torch.tensor([0.5 * (width - 1), 0.5 * (height - 1)], dtype=torch.float64)
    return Camera(
        focal=focal,
        center=middle.expand(batch, 2),
        position=MotionPath.of(start, velocity),
        turn=MotionPath.of(torch.zeros(batch, 3)).with_waves(gaze, slow, phase),
        base=looking(draws.normal("walk.pitch", 0.0, 0.08), yaw),
        shake=shaken,
        shake_turn=turned,
    )
