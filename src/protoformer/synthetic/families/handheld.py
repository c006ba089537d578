"""Scenes for stabilization: a smooth handheld camera path and the hand shake added to it."""

import math

import torch
from torch import Tensor

from protoformer.synthetic.assembly import (
    Assembly,
    add_sky,
    build_camera,
    sample_atmosphere,
    sample_sensor,
    vectors,
)
from protoformer.synthetic.families.drive import (
    add_ground,
    add_houses,
    add_people,
    add_poles,
    add_road,
    add_trees,
    camera_rotation,
    sample_walk,
)
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import Camera, MotionPath, Scenes
from protoformer.synthetic.texture_bank import TextureBank

FPS = 30.0
"""Frames per second."""
PEOPLE = 5
"""Maximum number of people."""


def build_handheld(draws: SceneRandom, size: tuple[int, int], bank: TextureBank, shake: float = 1.0) -> Scenes:
    """Build scenes of a street with people, recorded by a person who stands, turns or walks. shake: strength."""
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    add_ground(assembly)
    front = add_road(assembly)
    add_houses(assembly, front, probability=0.8)
    add_poles(assembly, front)
    add_trees(assembly, front - 1.5)
    x = draws.uniform("walker.at", -1.0, 1.0, (PEOPLE,)) * front
    start = vectors(x, 0.0, draws.uniform("walker.along", 4.0, 20.0, (PEOPLE,)))
    alive = draws.whether("walker.is", 0.6, (PEOPLE,))
    add_people(assembly, sample_walk(assembly, "walker", start), torch.arange(1, 1 + PEOPLE), alive)
    add_sky(assembly)
    return Scenes(
        primitives=assembly.primitives(),
        camera=_sample_camera(draws, size, front, shake),
        atmosphere=sample_atmosphere(draws),
        sensor=sample_sensor(draws, focus=(4.0, 20.0)),
        size=size,
        fps=FPS,
    )


def _sample_camera(draws: SceneRandom, size: tuple[int, int], front: Tensor, shake: float) -> Camera:
    pace = draws.uniform("walk.pace", 0.0, 1.6) * draws.whether("walk.is", 0.6)
    heading = draws.normal("walk.heading", 0.0, 0.4)
    yaw = heading + draws.normal("walk.gaze", 0.0, 0.4)
    start = vectors(draws.uniform("walk.aside", -0.6, 0.6) * front[:, 0], -draws.uniform("walk.height", 1.3, 1.8), 0.0)
    velocity = vectors(pace * heading.sin(), 0.0, pace * heading.cos())
    gaze_frequency = draws.uniform("walk.slow", 0.03, 0.15, (3, 1))
    gaze = draws.normal("walk.look", 0.0, 0.25, (3, 1)) * torch.tensor([[0.3], [1.0], [0.05]])
    phase = draws.uniform("walk.phase", 0.0, 2 * math.pi, (3, 1))
    return build_camera(
        draws,
        size,
        focal=size[1] * draws.uniform("camera.focal", 0.7, 1.2, (1,)),
        position=MotionPath.of(start, velocity),
        turn=MotionPath.of(torch.zeros(len(draws), 3)).with_waves(gaze, gaze_frequency, phase),
        base=camera_rotation(draws.normal("walk.pitch", 0.0, 0.08), yaw),
        shake=shake,
    )
