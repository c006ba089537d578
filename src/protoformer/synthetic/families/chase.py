"""Scenes for tracking: one target among distractors that approaches, recedes, is occluded and may leave the view."""

import math

import torch
from torch import Tensor

from protoformer.geometry.warps import rotation
from protoformer.synthetic.assembly import (
    Assembly,
    Material,
    add_sky,
    build_camera,
    ripple_waves,
    sample_atmosphere,
    sample_sensor,
    vectors,
    yaw_rotation,
)
from protoformer.synthetic.families.drive import METAL, add_ground, add_houses, add_trees, camera_rotation
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import Camera, MotionPath, Scenes
from protoformer.synthetic.texture_bank import TextureBank

FPS = 30.0
"""Frames per second."""
ACTORS = 6
"""Number of actors; the first is the target, instance 1."""


def build_chase(draws: SceneRandom, size: tuple[int, int], bank: TextureBank, shake: float = 0.0) -> Scenes:
    """Build scenes in which a camera follows a target more or less accurately."""
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    add_ground(assembly)
    house_distance = draws.uniform("setting.away", 4.0, 15.0, (1,))
    add_houses(assembly, house_distance, count=8, probability=0.6)
    add_trees(assembly, house_distance, count=6)
    distance = draws.log_uniform("target.distance", 5.0, 16.0)
    center, amplitude, frequency, phase = _sample_paths(draws, distance)
    path = MotionPath.of(center).with_waves(amplitude, frequency, phase)
    _add_actors(assembly, path)
    _add_occluders(assembly, distance)
    add_sky(assembly)
    return Scenes(
        primitives=assembly.primitives(),
        camera=_sample_camera(draws, size, distance, amplitude[:, 0], frequency[:, 0], phase[:, 0], shake),
        atmosphere=sample_atmosphere(draws),
        sensor=sample_sensor(draws, focus=(4.0, 20.0)),
        size=size,
        fps=FPS,
        target=1,
    )


def _sample_paths(draws: SceneRandom, distance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the actors' mean positions (B x n x 3) and amplitude, frequency and phase of two waves (B x n x 3 x 2)."""
    depth = distance[:, None] + torch.cat(
        (torch.zeros(len(draws), 1), draws.uniform("actor.behind", -3.0, 8.0, (ACTORS - 1,))), dim=1
    )
    lateral = draws.uniform("actor.aside", -0.4, 0.4, (ACTORS,)) * depth
    # The target starts near the image center, the others to its sides.
    lateral = torch.where(torch.arange(ACTORS) == 0, 0.3 * lateral, lateral + 0.15 * depth * lateral.sign())
    center = vectors(lateral, -1.0, depth.clamp_min(3.0))
    max_amplitude = vectors(0.35 * depth, 0.12 * depth.clamp_max(8.0), 0.4 * depth)[..., None]
    fractions = torch.tensor([0.8, 0.25], dtype=torch.float64)
    amplitude = max_amplitude * fractions * draws.uniform("actor.reach", 0.1, 1.0, (ACTORS, 3, 2))
    amplitude[..., 1, :] = amplitude[..., 1, :].clamp_max(0.25)  # stays near the ground
    frequency = draws.log_uniform("actor.pace", 0.05, 0.35, (ACTORS, 3, 2)) * torch.tensor([1.0, 3.0])
    return center, amplitude, frequency, draws.uniform("actor.phase", 0.0, 6.28, (ACTORS, 3, 2))


def _add_actors(assembly: Assembly, path: MotionPath) -> None:
    """Add creatures, vehicles, cutouts or cloths, mostly of one kind per scene, some with the same texture."""
    draws = assembly.draws
    same_kind = draws.bernoulli("actor.same", 0.7, (1,))
    actor_kind = torch.where(same_kind, draws.integer("sort", 0, 4, (1,)), draws.integer("actor.sort", 0, 4, (ACTORS,)))
    present = draws.bernoulli("actor.is", 0.75, (ACTORS,)) | (torch.arange(ACTORS) == 0)
    texture = draws.uniform("actor.dress", shape=(ACTORS,))
    same_texture = draws.bernoulli("actor.alike", 0.3, (ACTORS,))
    texture = torch.where(same_texture, texture[:, :1], texture)
    size = draws.log_uniform("actor.size", 0.5, 1.1, (ACTORS, 1))
    heading = draws.uniform("actor.heading", -math.pi, math.pi, (ACTORS,))
    turning = vectors(0.0, draws.normal("actor.turning", 0.0, 0.6, (ACTORS,)), 0.0)
    rock_amplitude = draws.normal("actor.rock", 0.0, 0.12, (ACTORS, 3, 1))
    rock_frequency = draws.uniform("actor.rocking", 0.3, 2.0, (ACTORS, 3, 1))
    zero = torch.zeros_like(turning)
    solid_spin = MotionPath.of(zero, turning).with_waves(
        rock_amplitude, rock_frequency, torch.zeros(1, dtype=torch.float64)
    )
    flat_spin = MotionPath.of(zero).with_waves(rock_amplitude, rock_frequency, torch.zeros(1, dtype=torch.float64))
    material = Material(repeat=(0.3, 2.0), contrast=(0.7, 1.1))
    instance = torch.arange(1, 1 + ACTORS)
    base = yaw_rotation(heading)

    def add_part(kind: str, name: str, required_kind: int, extent: Tensor, offset: Tensor, **options: object) -> None:
        rotated = (base @ (size * offset)[..., None])[..., 0]
        assembly.add(
            kind,
            f"actor {name}",
            path,
            size * extent,
            material=material,
            spin=solid_spin,
            base=base,
            offset=rotated,
            instance=instance,
            alive=present & (actor_kind == required_kind),
            texture=texture,
            **options,  # type: ignore[arg-type]
        )

    ones = torch.ones(len(draws), ACTORS, dtype=torch.float64)
    slim = draws.uniform("actor.slim", 0.45, 0.9, (ACTORS,))
    add_part("ball", "body", 0, vectors(slim, 0.7, 0.9 * slim), vectors(0.0, 0.0, 0.0 * ones))
    add_part("ball", "head", 0, vectors(0.35 * ones, 0.35, 0.35), vectors(0.0, -0.85, 0.2 * ones))
    add_part("box", "hull", 1, vectors(0.6 * ones, 0.35, 1.1), vectors(0.0, 0.0, 0.0 * ones))
    add_part("box", "cabin", 1, vectors(0.5 * ones, 0.3, 0.5), vectors(0.0, -0.6, 0.1 * ones))
    waves = draws.uniform("actor.waves", 1.5, 5.0, (ACTORS, 2))
    strength = draws.uniform("actor.wave", 0.0, 0.25, (ACTORS, 2)) / waves
    phase, rate = (
        draws.uniform("actor.waved", 0.0, 6.28, (ACTORS, 2)),
        draws.normal("actor.waving", 0.0, 4.0, (ACTORS, 2)),
    )
    ripple = ripple_waves(strength, waves, phase, rate)
    lean = rotation(draws.normal("actor.lean", 0.0, 0.2, (ACTORS, 3)))
    for kind, required_kind in (("cutout", 2), ("blob", 3)):
        assembly.add(
            kind,
            f"actor {kind}",
            path,
            size * vectors(0.9 * ones, 1.0, 1.0),
            material=material,
            spin=flat_spin,
            base=lean,
            ripple=ripple,
            instance=instance,
            alive=present & (actor_kind == required_kind),
            texture=texture,
        )


def _add_occluders(assembly: Assembly, distance: Tensor) -> None:
    """Add static posts and moving boards between the camera and the target."""
    draws = assembly.draws
    count = 3
    depth = distance[:, None] * draws.uniform("post.near", 0.4, 0.75, (count,))
    position = vectors(draws.uniform("post.aside", -0.4, 0.4, (count,)) * depth, -1.5, depth)
    half_width = draws.log_uniform("post.thick", 0.03, 0.2, (count,))
    alive = draws.bernoulli("post.is", 0.5, (count,))
    assembly.add("box", "post", position, vectors(half_width, 3.0, half_width), material=METAL, alive=alive)
    depth = distance[:, None] * draws.uniform("board.near", 0.4, 0.7, (2,))
    start = vectors(0.0 * depth, -draws.uniform("board.high", 0.3, 1.5, (2,)), depth)
    swing = vectors(depth * draws.uniform("board.swing", 0.4, 1.2, (2,)), 0.0, 0.0)[..., None]
    frequency = draws.uniform("board.pace", 0.05, 0.3, (2, 1, 1))
    path = MotionPath.of(start).with_waves(swing, frequency, draws.uniform("board.phase", 0.0, 6.28, (2, 1, 1)))
    extent = vectors(draws.uniform("board.wide", 0.2, 0.8, (2,)), draws.uniform("board.tall", 0.3, 1.2, (2,)), 1.0)
    alive = draws.bernoulli("board.is", 0.5, (2,))
    assembly.add("rectangle", "board", path, extent, instance=torch.tensor([ACTORS + 1, ACTORS + 2]), alive=alive)


def _sample_camera(
    draws: SceneRandom,
    size: tuple[int, int],
    distance: Tensor,
    amplitude: Tensor,
    frequency: Tensor,
    phase: Tensor,
    shake: float,
) -> Camera:
    """Build a camera that follows the target with a delay and an imprecise gain, so that the target drifts.

    `distance` is the mean distance of the target, B, meters; amplitude, frequency and phase are those of the waves of
    its path, B x 3 x 2.
    """
    gain = draws.uniform("camera.follow", 0.2, 1.1, (1, 1))
    phase_lag = draws.uniform("camera.late", 0.0, 0.5, (1, 1))
    yaw = gain * (amplitude[:, 0:1] / distance[:, None, None]).atan()
    turn = torch.cat((torch.zeros_like(yaw), yaw, torch.zeros_like(yaw)), dim=1)
    zero = torch.zeros(len(draws), 3, dtype=torch.float64)
    start = vectors(0.0, -draws.uniform("camera.height", 1.0, 2.2), 0.0)
    drift = draws.normal("camera.drift", 0.0, 0.3, (3, 1)) * torch.tensor([[1.0], [0.2], [1.0]])
    drift_frequency = draws.uniform("camera.slow", 0.05, 0.2, (3, 1))
    return build_camera(
        draws,
        size,
        focal=size[1] * draws.uniform("camera.focal", 0.8, 1.4, (1,)),
        position=MotionPath.of(start).with_waves(drift, drift_frequency, torch.zeros(1, 1, dtype=torch.float64)),
        turn=MotionPath.of(zero).with_waves(turn, frequency[:, 0:1], phase[:, 0:1] - phase_lag),
        base=camera_rotation(-draws.uniform("camera.pitch", 0.0, 0.12), torch.zeros(len(draws), dtype=torch.float64)),
        shake=shake,
    )
