"""One target among others like it: it comes near and goes far, is hidden, and may leave the view."""

import math

import torch
from torch import Tensor

from protoformer.geometry.warps import rotation
from protoformer.synthetic.assembly import (
    Assembly,
    Look,
    add_sky,
    sample_air,
    sample_hand_motion,
    sample_sensor,
    vectors,
    yaw_rotation,
)
from protoformer.synthetic.families.drive import METAL, ground, houses, looking, trees
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import Camera, MotionPath, Scenes
from protoformer.synthetic.texture_bank import TextureBank

RATE = 30.0
ACTORS = 6
"""The first is the target, instance 1."""


def chase(draws: SceneRandom, size: tuple[int, int], bank: TextureBank, shake: float = 0.0) -> Scenes:
    """Build scenes in which a camera follows a target, well or badly."""
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    ground(assembly)
    away = draws.uniform("setting.away", 4.0, 15.0, (1,))
    houses(assembly, away, count=8, there=0.6)
    trees(assembly, away, count=6)
    distance = draws.log_uniform("target.distance", 5.0, 16.0)
    middle, amplitude, frequency, phase = _courses(draws, distance)
    path = MotionPath.of(middle).with_waves(amplitude, frequency, phase)
    _actors(assembly, path)
    _occluders(assembly, distance)
    add_sky(assembly)
    return Scenes(
        primitives=assembly.primitives(),
        camera=_camera(draws, size, distance, amplitude[:, 0], frequency[:, 0], phase[:, 0], shake),
        air=sample_air(draws),
        film=sample_sensor(draws, focus=(4.0, 20.0)),
        size=size,
        rate=RATE,
        target=1,
    )


def _courses(draws: SceneRandom, distance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where the actors are about (B x n x 3), and two waves of each (B x n x 3 x 2)."""
    far = distance[:, None] + torch.cat(
        (torch.zeros(len(draws), 1), draws.uniform("actor.behind", -3.0, 8.0, (ACTORS - 1,))), dim=1
    )
    aside = draws.uniform("actor.aside", -0.4, 0.4, (ACTORS,)) * far
    # The target begins near the middle, the others beside it.
    aside = torch.where(torch.arange(ACTORS) == 0, 0.3 * aside, aside + 0.15 * far * aside.sign())
    middle = vectors(aside, -1.0, far.clamp_min(3.0))
    room = vectors(0.35 * far, 0.12 * far.clamp_max(8.0), 0.4 * far)[..., None]
    share = torch.tensor([0.8, 0.25], dtype=torch.float64)
    amplitude = room * share * draws.uniform("actor.reach", 0.1, 1.0, (ACTORS, 3, 2))
    amplitude[..., 1, :] = amplitude[..., 1, :].clamp_max(0.25)  # about the ground
    frequency = draws.log_uniform("actor.pace", 0.05, 0.35, (ACTORS, 3, 2)) * torch.tensor([1.0, 3.0])
    return middle, amplitude, frequency, draws.uniform("actor.phase", 0.0, 6.28, (ACTORS, 3, 2))


def _actors(assembly: Assembly, path: MotionPath) -> None:
    """Creatures, vehicles, cut-outs or cloths, of one sort in most scenes, some of them dressed alike."""
    draws = assembly.draws
    same = draws.whether("actor.same", 0.7, (1,))
    sort = torch.where(same, draws.integer("sort", 0, 4, (1,)), draws.integer("actor.sort", 0, 4, (ACTORS,)))
    present = draws.whether("actor.is", 0.75, (ACTORS,)) | (torch.arange(ACTORS) == 0)
    dress = draws.uniform("actor.dress", shape=(ACTORS,))
    alike = draws.whether("actor.alike", 0.3, (ACTORS,))
    dress = torch.where(alike, dress[:, :1], dress)
    size = draws.log_uniform("actor.size", 0.5, 1.1, (ACTORS, 1))
    heading = draws.uniform("actor.heading", -math.pi, math.pi, (ACTORS,))
    turning = vectors(0.0, draws.normal("actor.turning", 0.0, 0.6, (ACTORS,)), 0.0)
    rock = draws.normal("actor.rock", 0.0, 0.12, (ACTORS, 3, 1))
    rocking = draws.uniform("actor.rocking", 0.3, 2.0, (ACTORS, 3, 1))
    zero = torch.zeros_like(turning)
    solid = MotionPath.of(zero, turning).with_waves(rock, rocking, torch.zeros(1, dtype=torch.float64))
    flat = MotionPath.of(zero).with_waves(rock, rocking, torch.zeros(1, dtype=torch.float64))
    look = Look(repeat=(0.3, 2.0), contrast=(0.7, 1.1))
    instance = torch.arange(1, 1 + ACTORS)
    base = yaw_rotation(heading)

    def part(kind: str, name: str, which: int, extent: Tensor, offset: Tensor, **more: object) -> None:
        turned = (base @ (size * offset)[..., None])[..., 0]
        assembly.add(
            kind,
            f"actor {name}",
            path,
            size * extent,
            look=look,
            spin=solid,
            base=base,
            offset=turned,
            instance=instance,
            alive=present & (sort == which),
            texture=dress,
            **more,  # type: ignore[arg-type]
        )

    ones = torch.ones(len(draws), ACTORS, dtype=torch.float64)
    slim = draws.uniform("actor.slim", 0.45, 0.9, (ACTORS,))
    part("ball", "body", 0, vectors(slim, 0.7, 0.9 * slim), vectors(0.0, 0.0, 0.0 * ones))
    part("ball", "head", 0, vectors(0.35 * ones, 0.35, 0.35), vectors(0.0, -0.85, 0.2 * ones))
    part("box", "hull", 1, vectors(0.6 * ones, 0.35, 1.1), vectors(0.0, 0.0, 0.0 * ones))
    part("box", "cabin", 1, vectors(0.5 * ones, 0.3, 0.5), vectors(0.0, -0.6, 0.1 * ones))
    waves = draws.uniform("actor.waves", 1.5, 5.0, (ACTORS, 2))
    strength = draws.uniform("actor.wave", 0.0, 0.25, (ACTORS, 2)) / waves
    ripple = torch.stack(
        (
            strength,
            waves,
            draws.uniform("actor.waved", 0.0, 6.28, (ACTORS, 2)),
            draws.normal("actor.waving", 0.0, 4.0, (ACTORS, 2)),
        ),
        dim=-1,
    )
    lean = rotation(draws.normal("actor.lean", 0.0, 0.2, (ACTORS, 3)))
    for kind, which in (("cutout", 2), ("blob", 3)):
        assembly.add(
            kind,
            f"actor {kind}",
            path,
            size * vectors(0.9 * ones, 1.0, 1.0),
            look=look,
            spin=flat,
            base=lean,
            ripple=ripple,
            instance=instance,
            alive=present & (sort == which),
            texture=dress,
        )


def _occluders(assembly: Assembly, distance: Tensor) -> None:
    """Posts that stand, and boards that pass, between the camera and the target."""
    draws = assembly.draws
    count = 3
    near = distance[:, None] * draws.uniform("post.near", 0.4, 0.75, (count,))
    place = vectors(draws.uniform("post.aside", -0.4, 0.4, (count,)) * near, -1.5, near)
    thick = draws.log_uniform("post.thick", 0.03, 0.2, (count,))
    there = draws.whether("post.is", 0.5, (count,))
    assembly.add("box", "post", place, vectors(thick, 3.0, thick), look=METAL, alive=there)
    near = distance[:, None] * draws.uniform("board.near", 0.4, 0.7, (2,))
    start = vectors(0.0 * near, -draws.uniform("board.high", 0.3, 1.5, (2,)), near)
    swing = vectors(near * draws.uniform("board.swing", 0.4, 1.2, (2,)), 0.0, 0.0)[..., None]
    frequency = draws.uniform("board.pace", 0.05, 0.3, (2, 1, 1))
    path = MotionPath.of(start).with_waves(swing, frequency, draws.uniform("board.phase", 0.0, 6.28, (2, 1, 1)))
    extent = vectors(draws.uniform("board.wide", 0.2, 0.8, (2,)), draws.uniform("board.tall", 0.3, 1.2, (2,)), 1.0)
    there = draws.whether("board.is", 0.5, (2,))
    assembly.add("rectangle", "board", path, extent, instance=torch.tensor([ACTORS + 1, ACTORS + 2]), alive=there)


def _camera(
    draws: SceneRandom,
    size: tuple[int, int],
    distance: Tensor,
    amplitude: Tensor,
    frequency: Tensor,
    phase: Tensor,
    shake: float,
) -> Camera:
    """Turns after the target's course (B x 3 x 2 each): late, and too little or too much, so that it strays."""
    height, width = size
    follow = draws.uniform("camera.follow", 0.2, 1.1, (1, 1))
    late = draws.uniform("camera.late", 0.0, 0.5, (1, 1))
    yaw = follow * (amplitude[:, 0:1] / distance[:, None, None]).atan()
    turn = torch.cat((torch.zeros_like(yaw), yaw, torch.zeros_like(yaw)), dim=1)
    focal = width * draws.uniform("camera.focal", 0.8, 1.4, (1,)).expand(-1, 2)
    middle = torch.tensor([0.5 * (width - 1), 0.5 * (height - 1)], dtype=torch.float64)
    still = torch.zeros(len(draws), 3, dtype=torch.float64)
    stand = vectors(0.0, -draws.uniform("camera.height", 1.0, 2.2), 0.0)
    drift = draws.normal("camera.drift", 0.0, 0.3, (3, 1)) * torch.tensor([[1.0], [0.2], [1.0]])
    slow = draws.uniform("camera.slow", 0.05, 0.2, (3, 1))
    shaken, turned = sample_hand_motion(draws, shake)
    return Camera(
        focal=focal,
        center=middle.expand(len(draws), 2),
        position=MotionPath.of(stand).with_waves(drift, slow, torch.zeros(1, 1, dtype=torch.float64)),
        turn=MotionPath.of(still).with_waves(turn, frequency[:, 0:1], phase[:, 0:1] - late),
        base=looking(-draws.uniform("camera.pitch", 0.0, 0.12), torch.zeros(len(draws), dtype=torch.float64)),
        shake=shaken,
        shake_turn=turned,
    )
