"""Many things fly about, each on its own course: motion of any size, in any direction."""

import math

import torch
from torch import Tensor

from protoformer.geometry.warps import rotation
from protoformer.synthetic.assembly import (
    Assembly,
    Look,
    add_sky,
    ground_rotation,
    sample_air,
    sample_hand_motion,
    sample_sensor,
    vectors,
    yaw_rotation,
)
from protoformer.synthetic.families.furniture import LEGS, chairs
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import Camera, MotionPath, Scenes
from protoformer.synthetic.texture_bank import TextureBank

RATE = 24.0
SLOWEST, FASTEST = 0.1, 400.0
"""Pixels a frame."""
LEAP, PAN = 0.4, 0.06
"""The most that things move, and that the camera pans, in a frame: shares of the longer side and of the width.

What moves as many pixels in a small picture as it may in a large one is gone from the next, and teaches nothing.
"""
THINGS = {"blob": 6, "cutout": 5, "rectangle": 3, "box": 3, "ball": 3}
CHAIRS = 3
LEG = (2 / 352, 6 / 352)
"""How wide the legs of a flying chair are, least and most: shares of the shorter side."""


def objects(draws: SceneRandom, size: tuple[int, int], bank: TextureBank, shake: float = 0.0) -> Scenes:
    """Build scenes of flying things in front of a wall, in a hall, or over a plain."""
    focal = size[1] * draws.uniform("focal", 0.7, 1.5)
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    _background(assembly)
    fastest = min(FASTEST, LEAP * max(size))
    most = sum(THINGS.values()) + CHAIRS
    alive = draws.order("rank", most) < draws.integer("present", 12, 1 + most)[:, None]
    number = 0
    for kind, count in THINGS.items():
        name = f"flying.{kind}"
        start, meters = _start(draws, name, size, focal, count)
        radius = draws.log_uniform(f"{name}.radius", 0.05, 0.45, (count, 1)) * min(size) * meters[..., None]
        slim = draws.log_uniform(f"{name}.slim", 0.3, 1.0, (count, 3))
        thin = torch.where(draws.whether(f"{name}.thin", 0.15, (count,)), 0.12, 1.0)  # sticks and wires
        extent = radius * slim * vectors(thin, 1.0, 1.0)
        instance = torch.arange(number + 1, number + 1 + count)
        assembly.add(
            kind,
            name,
            _orbit(draws, name, start, meters, fastest, max(size)),
            extent,
            look=Look(repeat=(0.3, 4.0), plain=0.2),
            base=rotation(_tilt(draws, name, kind, count)),
            spin=_spin(draws, name, kind, count),
            stretch=_breath(draws, name, count),
            ripple=_ripple(draws, name, count) if kind in ("blob", "cutout") else None,
            instance=instance,
            alive=alive[:, number : number + count],
        )
        number += count
    _chairs(assembly, size, focal, torch.arange(number + 1, most + 1), alive[:, number:])
    add_sky(assembly)
    return Scenes(
        primitives=assembly.primitives(),
        camera=_camera(draws, size, focal, shake),
        air=sample_air(draws),
        film=sample_sensor(draws),
        size=size,
        rate=RATE,
    )


def _start(draws: SceneRandom, name: str, size: tuple[int, int], focal: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Places anywhere in the view, B x n x 3, and how long a pixel is there, B x n."""
    height, width = size
    depth = draws.log_uniform(f"{name}.depth", 2.0, 25.0, (count,))
    meters = depth / focal[:, None]
    spot = draws.uniform(f"{name}.spot", -0.55, 0.55, (count, 2)) * torch.tensor([width, height])
    return vectors(spot[..., 0] * meters, spot[..., 1] * meters, depth), meters


def _chairs(assembly: Assembly, size: tuple[int, int], focal: Tensor, instance: Tensor, alive: Tensor) -> None:
    """Chairs upright more or less, seen from any side; what is behind shows between their thin parts."""
    draws, name, count = assembly.draws, "flying.chair", len(instance)
    start, meters = _start(draws, name, size, focal, count)
    side = min(size) * meters
    scale = draws.log_uniform(f"{name}.radius", 0.12, 0.4, (count,)) * side / LEGS
    lean = draws.normal(f"{name}.lean", 0.0, 0.4, (count, 2))
    tilt = rotation(vectors(lean[..., 0], 0.0, lean[..., 1]))
    chairs(
        assembly,
        _orbit(draws, name, start, meters, min(FASTEST, LEAP * max(size)), max(size)),
        tilt @ yaw_rotation(draws.uniform(f"{name}.turned", -math.pi, math.pi, (count,))),
        alive,
        name,
        alike=False,
        scale=scale,
        thick=0.5 * draws.log_uniform(f"{name}.leg", *LEG, (count,)) * side / scale,
        spin=_spin(draws, name, "chair", count),
        instance=instance,
    )


def _orbit(draws: SceneRandom, name: str, start: Tensor, meters: Tensor, fastest: float, side: int) -> MotionPath:
    """Circles, so that fast things stay about: so many pixels a frame, at `start` between the first two frames."""
    shape = tuple(meters.shape[1:])
    speed = draws.log_uniform(f"{name}.speed", SLOWEST, fastest, shape)
    radius = torch.maximum(speed * draws.uniform(f"{name}.bend", 1.0, 2.0, shape), torch.as_tensor(0.15 * side))
    angle = speed / radius  # a frame
    phase = draws.uniform(f"{name}.heading", 0.0, 2 * math.pi, shape)
    amplitude = (radius * meters)[..., None] * vectors(1.0, 1.0, draws.uniform(f"{name}.near", -0.4, 0.4, shape))
    deep = 0.35 * start[..., 2]
    amplitude = torch.cat((amplitude[..., :2], torch.minimum(amplitude[..., 2:].abs(), deep[..., None])), dim=-1)
    phases = torch.stack((phase + math.pi / 2, phase, phase + draws.uniform(f"{name}.rise", 0, 6.28, shape)), dim=-1)
    frequency = (angle * RATE / (2 * math.pi))[..., None].expand_as(phases)
    center = start - amplitude * torch.sin(phases + 0.5 * angle[..., None])
    return MotionPath.of(center).with_waves(amplitude[..., None], frequency[..., None], phases[..., None])


def _tilt(draws: SceneRandom, name: str, kind: str, count: int) -> Tensor:
    """Flat things face the camera, more or less; bodies lie anyhow."""
    lean = draws.normal(f"{name}.lean", 0.0, 0.35, (count, 2)).clamp(-1.0, 1.0)
    roll = draws.uniform(f"{name}.roll", -math.pi, math.pi, (count,))
    if kind == "cutout":
        roll = 0.3 * roll
    scale = 1.0 if kind in ("blob", "cutout", "rectangle") else 3.0
    return vectors(scale * lean[..., 0], scale * lean[..., 1], roll)


def _spin(draws: SceneRandom, name: str, kind: str, count: int) -> MotionPath:
    rate = draws.log_uniform(f"{name}.spin", 0.001, 0.3, (count, 1)) * RATE
    axis = draws.direction(f"{name}.axis", (count,))
    if kind in ("blob", "cutout", "rectangle"):
        # A flat thing that tumbled would vanish edge-on: it turns in its plane and rocks.
        about = vectors(0.0, 0.0, torch.sign(axis[..., 2]))
        rock = axis * vectors(0.3, 0.3, 0.0)
        frequency = draws.log_uniform(f"{name}.rock", 0.1, 2.0, (count, 1, 1))
        phase = draws.uniform(f"{name}.rocks", 0.0, 6.28, (count, 1, 1))
        return MotionPath.of(torch.zeros_like(about), rate * about).with_waves(rock[..., None], frequency, phase)
    return MotionPath.of(torch.zeros_like(axis), rate * axis)


def _breath(draws: SceneRandom, name: str, count: int) -> MotionPath:
    """Some things swell and shrink, differently along each axis."""
    some = draws.whether(f"{name}.breathes", 0.3, (count, 1, 1))
    amplitude = some * draws.uniform(f"{name}.breath", -0.2, 0.2, (count, 3, 1))
    frequency = draws.uniform(f"{name}.breathing", 0.3, 3.0, (count, 1, 1))
    phase = draws.uniform(f"{name}.breathed", 0.0, 6.28, (count, 3, 1))
    return MotionPath.of(torch.zeros(len(draws), count, 3)).with_waves(amplitude, frequency, phase)


def _ripple(draws: SceneRandom, name: str, count: int) -> Tensor:
    """Some flat things wave like cloth."""
    some = draws.whether(f"{name}.waves", 0.4, (count, 1))
    waves = draws.uniform(f"{name}.waviness", 1.5, 7.0, (count, 2))
    amplitude = some * draws.uniform(f"{name}.wave", 0.05, 0.35, (count, 2)) / waves
    phase = draws.uniform(f"{name}.waved", 0.0, 6.28, (count, 2))
    rate = draws.normal(f"{name}.waving", 0.0, 0.5, (count, 2)) * RATE
    return torch.stack((amplitude, waves, phase, rate), dim=-1)


def _background(assembly: Assembly) -> None:
    """A far wall, a hall or a plain, behind which there is the sky."""
    draws, batch = assembly.draws, assembly.batch
    sort = draws.choice("background", (0.5, 0.25, 0.25))[:, None]
    distance = draws.log_uniform("wall.distance", 25.0, 60.0, (1,))
    lean = vectors(draws.normal("wall.x", 0, 0.3, (1,)), draws.normal("wall.y", 0, 0.3, (1,)), 0.0).clamp(-0.6, 0.6)
    wall = vectors(4.0 * distance, 4.0 * distance, 1.0)
    look = Look(repeat=(8.0, 40.0))
    assembly.add(
        "rectangle", "wall", vectors(0.0, 0.0, distance), wall, look=look, base=rotation(lean), alive=sort == 0
    )
    half = draws.log_uniform("hall.size", 12.0, 50.0, (1, 3)) * torch.tensor([1.5, 0.7, 1.0])
    place = draws.uniform("hall.place", -0.5, 0.5, (1, 3)) * half
    assembly.add("room", "hall", place, half, look=Look(repeat=(3.0, 20.0)), alive=sort == 1)
    depth = draws.log_uniform("plain.depth", 1.5, 12.0, (1,))
    spread = torch.full((batch, 1, 3), 1500.0, dtype=torch.float64)
    look = Look(repeat=(2.0, 30.0))
    assembly.add(
        "rectangle", "plain", vectors(0.0, depth, 0.0), spread, look=look, base=ground_rotation(), alive=sort == 2
    )


def _camera(draws: SceneRandom, size: tuple[int, int], focal: Tensor, shake: float) -> Camera:
    height, width = size
    pan = draws.log_uniform("camera.pan", 0.2, min(60.0, PAN * width)) / focal * RATE
    heading = draws.uniform("camera.heading", 0.0, 2 * math.pi)
    roll = draws.normal("camera.roll", 0.0, 0.004) * RATE
    drift = draws.log_uniform("camera.drift", 0.002, 0.4, (1,)) * draws.direction("camera.way") * RATE
    # Waves that stay within a quarter of the view and a meter, so that a long clip neither turns away nor leaves.
    turning = vectors(pan * heading.sin(), pan * heading.cos(), roll)[..., None]
    turn, turns = _waves(turning, 0.25 * (width / focal)[:, None, None], draws.uniform("camera.slow", 0.1, 0.4, (3, 1)))
    shift, shifts = _waves(drift[..., None], torch.tensor(1.0), draws.uniform("camera.slower", 0.1, 0.4, (3, 1)))
    still = torch.zeros(len(draws), 3, dtype=torch.float64)
    none = torch.zeros(1, 1, dtype=torch.float64)
    shaken, turned = sample_hand_motion(draws, shake)
    return Camera(
        focal=focal[:, None].expand(-1, 2),
        center=torch.tensor([0.5 * (width - 1), 0.5 * (height - 1)], dtype=torch.float64).expand(len(draws), 2),
        position=MotionPath.of(still).with_waves(shift, shifts, none),
        turn=MotionPath.of(still).with_waves(turn, turns, none),
        base=torch.eye(3, dtype=torch.float64).expand(len(draws), 3, 3),
        shake=shaken,
        shake_turn=turned,
    )


def _waves(speed: Tensor, most: Tensor, slowest: Tensor) -> tuple[Tensor, Tensor]:
    """Amplitude, at most `most`, and frequency, about `slowest` Hz or more, of waves that begin at a speed."""
    amplitude = torch.minimum(speed.abs() / (2 * math.pi * slowest), most)
    frequency = (speed.abs() / (2 * math.pi * amplitude.clamp_min(1e-9))).clamp_min(0.01)
    return amplitude * speed.sign(), frequency
