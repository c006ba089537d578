"""A car drives along a street."""

import math

import torch
from torch import Tensor

from protoformer.world.assembly import Assembly, vectors
from protoformer.world.bank import TextureBank
from protoformer.world.chance import Draws
from protoformer.world.conditions import air, film, hand, sky
from protoformer.world.families.street import cars, fences, ground, houses, looking, on_foot, people, poles, road, trees
from protoformer.world.paths import Path
from protoformer.world.scene import Camera, Scenes

RATE = 10.0
FOCAL = 721.5 / 1242
"""Of KITTI's cameras, over the width of their images."""
CARS, PEOPLE = 7, 3


def drive(draws: Draws, size: tuple[int, int], bank: TextureBank, shake: float = 0.0) -> Scenes:
    """Build scenes with a street seen from a car that drives along it, among others."""
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    ground(assembly)
    front = road(assembly)
    houses(assembly, front)
    fences(assembly, front)
    poles(assembly, front)
    trees(assembly, front)
    _traffic(assembly, front)
    sky(assembly)
    return Scenes(
        primitives=assembly.primitives(),
        camera=_camera(draws, size, shake),
        air=air(draws, foggy=0.4),
        film=film(draws, focus=(8.0, 40.0)),
        size=size,
        rate=RATE,
    )


def _traffic(assembly: Assembly, front: Tensor) -> None:
    """Cars that come, go along, or are parked, and people on the pavements."""
    draws = assembly.draws
    sort = draws.choice("car.sort", (0.4, 0.3, 0.3), (CARS,))  # comes, goes along, is parked
    side = torch.where(
        sort == 0, -1.0, torch.where(sort == 1, 1.0, torch.where(draws.whether("car.left", 0.5, (CARS,)), -1.0, 1.0))
    )
    edge = front - draws.uniform("car.edge", 3.0, 4.0, (CARS,))
    lane = torch.where(sort == 2, edge, draws.uniform("car.lane", 1.3, 2.2, (CARS,)))
    along = (
        draws.uniform("car.first", 9.0, 18.0, (1,))
        + 9.0 * torch.arange(CARS)
        + draws.uniform("car.gap", 0.0, 5.0, (CARS,))
    )
    speed = draws.uniform("car.speed", 2.0, 25.0, (CARS,)) * torch.where(sort == 2, 0.0, side)
    place, velocity = (
        vectors(side * lane, 0.0, along),
        vectors(draws.normal("car.drift", 0.0, 0.15, (CARS,)), 0.0, speed),
    )
    heading = torch.where(speed < 0, torch.pi, 0.0) + draws.normal("car.heading", 0.0, 0.03, (CARS,))
    alive = draws.whether("car.is", 0.7, (CARS,))
    cars(assembly, Path.of(place, velocity), heading, torch.arange(1, 1 + CARS), alive)
    beside = draws.uniform("person.beside", 0.3, 3.0, (PEOPLE,))
    left = torch.where(draws.whether("person.left", 0.5, (PEOPLE,)), -1.0, 1.0)
    start = vectors(left * (front - beside), 0.0, draws.uniform("person.along", 5.0, 40.0, (PEOPLE,)))
    number = torch.arange(1 + CARS, 1 + CARS + PEOPLE)
    people(assembly, on_foot(assembly, "person", start), number, draws.whether("person.is", 0.7, (PEOPLE,)))


def _camera(draws: Draws, size: tuple[int, int], shake: float) -> Camera:
    height, width = size
    speed = draws.uniform("ego.speed", 4.0, 26.0) * draws.whether("ego.moves", 0.93)
    yaw = draws.normal("ego.yaw", 0.0, 0.04).clamp(-0.15, 0.15)
    bend = draws.normal("ego.bend", 0.0, 0.10) * (speed > 0)  # radians a second
    start = vectors(draws.uniform("ego.lane", 0.3, 2.4), -draws.uniform("ego.height", 1.3, 1.9), 0.0)
    # It swerves and comes back: the heading is a wave, and the way aside is what such a heading drives.
    swerve = draws.uniform("ego.swerve", 0.15, 0.3)
    turn = bend / (2 * math.pi * swerve)
    aside = speed * turn / (2 * math.pi * swerve)
    zero, quarter = torch.zeros_like(yaw), torch.full((1, 1), -math.pi / 2, dtype=torch.float64)
    rough = (speed / 20.0)[:, None, None]
    bounce = rough * draws.normal("ego.bounce", 0.0, 0.006, (3, 3)) * torch.tensor([[1.0], [0.2], [0.6]])
    heave = rough * draws.normal("ego.heave", 0.0, 0.015, (3, 3)) * torch.tensor([[0.2], [1.0], [0.0]])
    rates = draws.uniform("ego.rates", 0.6, 2.5, (3, 3))
    phase = draws.uniform("ego.phase", 0.0, 6.28, (3, 3))
    shaken, turned = hand(draws, shake)
    focal = FOCAL * width * draws.log_uniform("ego.focal", 0.9, 1.15, (1,)).expand(-1, 2)
    middle = torch.tensor([0.5 * (width - 1), 0.47 * (height - 1)], dtype=torch.float64)
    return Camera(
        focal=focal,
        centre=middle.expand(len(draws), 2),
        position=Path.of(start + vectors(aside, zero, zero), vectors(zero, zero, speed))
        .with_waves(heave, rates, phase)
        .with_waves(vectors(aside, zero, zero)[..., None], swerve[:, None, None], quarter),
        turn=Path.of(vectors(zero, yaw, zero))
        .with_waves(bounce, rates, phase + 0.7)
        .with_waves(vectors(zero, turn, zero)[..., None], swerve[:, None, None], 0.0 * quarter),
        base=looking(draws.normal("ego.pitch", 0.0, 0.02), zero),
        shake=shaken,
        shake_turn=turned,
    )
