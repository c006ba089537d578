"""A car drives along a street."""

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
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import Camera, MotionPath, Scenes
from protoformer.synthetic.texture_bank import TextureBank

GROUND = Look(repeat=(3.0, 14.0), contrast=(0.4, 1.0))
STONE = Look(repeat=(1.0, 6.0), contrast=(0.3, 0.9), tone=(0.25, 0.7), tint=0.08, gloss=0.0)
PAINT = Look(repeat=(2.0, 9.0), contrast=(0.05, 0.3), tone=(0.7, 0.95), tint=0.03, gloss=0.0)
WALL = Look(repeat=(1.5, 9.0), contrast=(0.5, 1.1), gloss=0.05)
METAL = Look(repeat=(0.5, 4.0), contrast=(0.2, 0.8), tone=(0.1, 0.8), tint=0.35, gloss=0.6)
DARK = Look(repeat=(0.5, 4.0), contrast=(0.1, 0.4), tone=(0.05, 0.2), tint=0.1, gloss=0.4)
CLOTH = Look(repeat=(0.3, 1.5), contrast=(0.4, 1.1))
BARS = Look(repeat=(0.5, 2.0), contrast=(0.05, 0.4), tone=(0.05, 0.95), alike=True)
PICKETS = 32
"""Of one fence."""
FAR = 400.0
"""Half the length of the road, meters."""


def ground(assembly: Assembly) -> None:
    """A plain to the horizon, and hills before it."""
    draws, batch = assembly.draws, assembly.batch
    spread = torch.full((batch, 1, 3), 1900.0, dtype=torch.float64)
    assembly.add("rectangle", "ground", torch.zeros(batch, 1, 3), spread, look=GROUND, base=ground_rotation())
    angle = draws.uniform("hill.angle", -0.9, 0.9, (4,))
    distance = draws.uniform("hill.distance", 300.0, 900.0, (4,))
    size = vectors(
        distance * draws.uniform("hill.width", 0.2, 0.6, (4,)),
        distance * draws.uniform("hill.height", 0.03, 0.16, (4,)),
        distance * 0.2,
    )
    place = vectors(distance * angle.sin(), 0.0, distance * angle.cos())
    look = Look(repeat=(60.0, 300.0), contrast=(0.3, 0.8), tone=(0.3, 0.6))
    assembly.add("ball", "hill", place, size, look=look, alive=draws.whether("hill.is", 0.7, (4,)))


def road(assembly: Assembly) -> Tensor:
    """A road with its paint, kerbs and pavements; returns half its width, B x 1."""
    draws = assembly.draws
    half = draws.uniform("road.half", 3.5, 8.0, (1,))
    assembly.add(
        "rectangle",
        "road",
        vectors(0.0, -0.01, 0.0 * half),
        vectors(half, FAR, 1.0),
        look=STONE,
        base=ground_rotation(),
    )
    dashes = 12
    gap = draws.uniform("dash.gap", 6.0, 12.0, (1,))
    first = draws.uniform("dash.first", -12.0, 0.0, (1,))
    along = first + gap * torch.arange(dashes)
    dash = vectors(draws.uniform("dash.width", 0.06, 0.12, (1,)), draws.uniform("dash.length", 1.0, 2.5, (1,)), 1.0)
    middle = vectors(draws.uniform("dash.side", -0.3, 0.3, (1,)) * half, -0.02, along)
    there = draws.whether("dash.is", 0.8, (1,))
    assembly.add(
        "rectangle", "dash", middle, dash.expand(-1, dashes, -1), look=PAINT, base=ground_rotation(), alive=there
    )
    sides = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    line = vectors(torch.full_like(half, 0.07).expand(-1, 2), FAR, 1.0)
    place = vectors(sides * (half - 0.3), -0.02, 0.0)
    lined = draws.whether("line.is", 0.7, (1,))
    assembly.add("rectangle", "line", place, line, look=PAINT, base=ground_rotation(), alive=lined)
    kerb = vectors(torch.full_like(half, 0.12).expand(-1, 2), 0.09, FAR)
    assembly.add("box", "kerb", vectors(sides * (half + 0.12), -0.07, 0.0), kerb, look=STONE)
    path = draws.uniform("path.half", 0.8, 2.5, (1,))
    wide = vectors((path + 0.0 * sides), FAR, 1.0)
    place = vectors(sides * (half + 0.24 + path), -0.13, 0.0)
    assembly.add("rectangle", "path", place, wide, look=STONE, base=ground_rotation())
    return half + 0.24 + 2 * path


def houses(assembly: Assembly, front: Tensor, count: int = 12, there: float = 0.75) -> None:
    """Boxes in two rows, their fronts so far from the middle of the street (B x 1)."""
    draws = assembly.draws
    sides = torch.where(torch.arange(count) % 2 == 0, -1.0, 1.0).double()
    place = draws.uniform("house.start", 4.0, 14.0, (1,)) + (torch.arange(count) // 2) * draws.uniform(
        "house.step", 13.0, 22.0, (1,)
    )
    half = vectors(
        draws.uniform("house.deep", 3.0, 8.0, (count,)),
        draws.log_uniform("house.high", 1.5, 9.0, (count,)),
        draws.uniform("house.wide", 3.5, 9.0, (count,)),
    )
    back = draws.uniform("house.back", 0.3, 6.0, (count,))
    middle = vectors(sides * (front + back + half[..., 0]), -half[..., 1], place)
    alive = draws.whether("house.is", there, (count,))
    heading = draws.normal("house.heading", 0.0, 0.05, (count,))
    assembly.add("box", "house", middle, half, look=WALL, base=yaw_rotation(heading), alive=alive)
    # One front of each shows what fronts show: a door, windows, a sign.
    door = vectors(draws.uniform("door.wide", 0.4, 2.0, (count,)), draws.uniform("door.high", 0.4, 1.3, (count,)), 1.0)
    facing = yaw_rotation(0.5 * math.pi * sides)
    onto = middle - vectors(
        sides * (half[..., 0] + 0.03), draws.uniform("door.up", -1.0, 0.8, (count,)) * half[..., 1], 0
    )
    look = Look(repeat=(0.8, 3.0), contrast=(0.6, 1.2))
    assembly.add("rectangle", "door", onto, door, look=look, base=facing, alive=alive)


def fences(assembly: Assembly, side: Tensor) -> None:
    """A low wall on one side, and on the other a fence: pickets that all look alike, on a plinth, under a rail.

    Their fronts are `side` meters from the middle of the street (B x 1).
    """
    draws = assembly.draws
    left = torch.where(draws.whether("fence.left", 0.5, (1,)), -1.0, 1.0)
    inwards = draws.uniform("fence.inwards", 0.0, 1.5, (2,))
    start = draws.uniform("fence.start", -2.0, 10.0, (2,))
    across, beyond = (side - inwards).split(1, dim=1)
    alive = draws.whether("fence.is", 0.5, (2,))
    low = draws.uniform("wall.high", 0.25, 0.8, (1,))
    long = draws.log_uniform("wall.long", 3.0, 30.0, (1,))
    assembly.add(
        "box",
        "wall",
        vectors(-left * beyond, -low, start[:, 1:] + long),
        vectors(0.12 + 0.0 * low, low, long),
        look=WALL,
        alive=alive[:, 1:],
    )
    pitch = draws.log_uniform("fence.pitch", 0.12, 0.7, (1,))
    half = 0.5 * pitch * draws.uniform("fence.dense", 0.15, 0.6, (1,))
    foot = draws.uniform("fence.foot", 0.0, 0.3, (1,))
    high = draws.uniform("fence.high", 0.3, 0.8, (1,))
    middle, reach = start[:, :1] + 0.5 * pitch * (PICKETS - 1), 0.5 * pitch * PICKETS
    along = start[:, :1] + pitch * torch.arange(PICKETS)
    size = vectors(0.02 + 0.0 * half, high, half).expand(-1, PICKETS, -1)
    place = vectors(left * across, -2 * foot - high, along)
    assembly.add("box", "picket", place, size, look=BARS, alive=alive[:, :1])
    rail = vectors(left * across, torch.stack((-2 * foot - 1.9 * high, -foot), dim=1)[..., 0], middle)
    thick = torch.cat((draws.uniform("rail.thick", 0.03, 0.08, (1,)), foot.clamp_min(0.02)), dim=1)
    assembly.add("box", "rail", rail, vectors(0.05 + 0.0 * thick, thick, reach), look=BARS, alive=alive[:, :1])


def poles(assembly: Assembly, side: Tensor, count: int = 6) -> None:
    """Lamp posts and signs at the edge of the pavement, `side` meters from the middle (B x 1)."""
    draws = assembly.draws
    sides = torch.where(torch.arange(count) % 2 == 0, -1.0, 1.0).double()
    along = draws.uniform("pole.along", 3.0, 60.0, (count,))
    high = draws.uniform("pole.high", 1.2, 4.0, (count,))
    thick = draws.uniform("pole.thick", 0.03, 0.12, (count,))
    base = vectors(sides * (side - 0.3), -high, along)
    assembly.add("box", "pole", base, vectors(thick, high, thick), look=METAL)
    sign = base - vectors(0.0, 0.7 * high, 0.15)
    size = vectors(draws.uniform("sign.wide", 0.2, 0.6, (count,)), draws.uniform("sign.high", 0.2, 0.6, (count,)), 1.0)
    alive = draws.whether("sign.is", 0.6, (count,))
    assembly.add("rectangle", "sign", sign, size, look=Look(repeat=(0.5, 1.5)), alive=alive)


def trees(assembly: Assembly, side: Tensor, count: int = 8) -> None:
    """Cut-outs that sway a little, on trunks, beyond `side` meters from the middle (B x 1)."""
    draws = assembly.draws
    sides = torch.where(torch.arange(count) % 2 == 0, -1.0, 1.0).double()
    across = sides * (side + draws.uniform("tree.beyond", 0.0, 8.0, (count,)))
    along = draws.uniform("tree.along", 5.0, 80.0, (count,))
    radius = draws.uniform("tree.radius", 1.0, 3.2, (count,))
    trunk = draws.uniform("tree.trunk", 0.8, 2.0, (count,))
    alive = draws.whether("tree.is", 0.8, (count,))
    thick = draws.uniform("tree.thick", 0.06, 0.25, (count,))
    look = Look(repeat=(0.5, 2.0), contrast=(0.3, 0.8), tone=(0.15, 0.4), gloss=0.0)
    place = vectors(across, -trunk, along)
    assembly.add("box", "trunk", place, vectors(thick, trunk, thick), look=look, alive=alive)
    crown = vectors(across, -2 * trunk - 0.8 * radius, along - 0.02)
    size = vectors(radius, radius * draws.uniform("tree.tall", 0.9, 1.4, (count,)), 1.0)
    waves = draws.uniform("tree.waves", 1.0, 4.0, (count, 2))
    sway = draws.uniform("tree.sway", 0.0, 0.04, (count, 2))
    ripple = torch.stack(
        (
            sway,
            waves,
            draws.uniform("tree.phase", 0, 6.28, (count, 2)),
            draws.uniform("tree.rate", 1.0, 4.0, (count, 2)),
        ),
        dim=-1,
    )
    assembly.add("cutout", "crown", crown, size, look=Look(contrast=(0.7, 1.0)), ripple=ripple, alive=alive)


def cars(
    assembly: Assembly, position: MotionPath, heading: Tensor, instance: Tensor, alive: Tensor, name: str = "car"
) -> None:
    """Bodies of three boxes that share a path on the ground (B x n x 3); heading: B x n, 0 is along z."""
    draws, count = assembly.draws, heading.shape[1]
    base = yaw_rotation(heading)
    size = draws.uniform(f"{name}.size", 0.85, 1.25, (count, 1)) * torch.tensor([0.88, 0.42, 2.05], dtype=torch.float64)
    body = size * vectors(1.0, draws.uniform(f"{name}.tall", 0.8, 2.2, (count,)), 1.0)  # vans too
    parts = (
        ("body", body, vectors(0.0, -0.32 - body[..., 1], 0.0), METAL),
        (
            "cabin",
            size * torch.tensor([0.85, 0.7, 0.5]),
            vectors(0.0, -0.32 - 2 * body[..., 1] - 0.5 * size[..., 1], 0.1 * size[..., 2]),
            DARK,
        ),
        ("wheels", size * torch.tensor([1.02, 0.7, 0.75]), vectors(0.0, -0.7 * size[..., 1], 0.0), DARK),
    )
    for part, extent, offset, look in parts:
        offset = (base @ offset[..., None])[..., 0]
        assembly.add(
            "box",
            f"{name}.{part}",
            position,
            extent,
            look=look,
            base=base,
            offset=offset,
            instance=instance,
            alive=alive,
        )


def people(assembly: Assembly, position: MotionPath, instance: Tensor, alive: Tensor, name: str = "person") -> None:
    """A trunk, legs and a head of each, on a path on the ground (B x n x 3)."""
    draws, count = assembly.draws, instance.shape[-1]
    tall = draws.uniform(f"{name}.tall", 0.75, 1.1, (count,))
    parts = (
        ("legs", vectors(0.17 * tall, 0.45 * tall, 0.14 * tall), -0.43),
        ("trunk", vectors(0.25 * tall, 0.37 * tall, 0.17 * tall), -1.12),
        ("head", vectors(0.11 * tall, 0.14 * tall, 0.12 * tall), -1.6),
    )
    for part, extent, height in parts:
        offset = vectors(0.0, height * tall, 0.0)
        assembly.add(
            "ball", f"{name}.{part}", position, extent, look=CLOTH, offset=offset, instance=instance, alive=alive
        )


def on_foot(assembly: Assembly, name: str, start: Tensor, fastest: float = 1.8) -> MotionPath:
    """Walks over the ground from places (B x n x 3), with the bounce of steps."""
    draws, count = assembly.draws, start.shape[1]
    heading = draws.uniform(f"{name}.heading", 0.0, 2 * math.pi, (count,))
    speed = draws.uniform(f"{name}.speed", 0.0, fastest, (count,))
    velocity = vectors(speed * heading.cos(), 0.0, speed * heading.sin())
    bounce = vectors(0.0, 0.03 * (speed > 0.3), 0.0)[..., None]
    step = draws.uniform(f"{name}.step", 1.6, 2.2, (count, 1, 1))
    return MotionPath.of(start, velocity).with_waves(
        bounce, step, draws.uniform(f"{name}.foot", 0.0, 6.28, (count, 1, 1))
    )


def looking(pitch: Tensor, yaw: Tensor) -> Tensor:
    """Rotation of a camera that looks along z, raised and turned to the right by angles: B to B x 3 x 3."""
    zero = torch.zeros_like(yaw)
    return rotation(torch.stack((zero, yaw, zero), -1)) @ rotation(torch.stack((pitch, zero, zero), -1))


RATE = 10.0
FOCAL = 721.5 / 1242
"""Of KITTI's cameras, over the width of their images."""
CARS, PEOPLE = 7, 3


def drive(draws: SceneRandom, size: tuple[int, int], bank: TextureBank, shake: float = 0.0) -> Scenes:
    """Build scenes with a street seen from a car that drives along it, among others."""
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    ground(assembly)
    front = road(assembly)
    houses(assembly, front)
    fences(assembly, front)
    poles(assembly, front)
    trees(assembly, front)
    _traffic(assembly, front)
    add_sky(assembly)
    return Scenes(
        primitives=assembly.primitives(),
        camera=_camera(draws, size, shake),
        air=sample_air(draws, foggy=0.4),
        film=sample_sensor(draws, focus=(8.0, 40.0)),
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
    cars(assembly, MotionPath.of(place, velocity), heading, torch.arange(1, 1 + CARS), alive)
    beside = draws.uniform("person.beside", 0.3, 3.0, (PEOPLE,))
    left = torch.where(draws.whether("person.left", 0.5, (PEOPLE,)), -1.0, 1.0)
    start = vectors(left * (front - beside), 0.0, draws.uniform("person.along", 5.0, 40.0, (PEOPLE,)))
    number = torch.arange(1 + CARS, 1 + CARS + PEOPLE)
    people(assembly, on_foot(assembly, "person", start), number, draws.whether("person.is", 0.7, (PEOPLE,)))


def _camera(draws: SceneRandom, size: tuple[int, int], shake: float) -> Camera:
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
    shaken, turned = sample_hand_motion(draws, shake)
    focal = FOCAL * width * draws.log_uniform("ego.focal", 0.9, 1.15, (1,)).expand(-1, 2)
    middle = torch.tensor([0.5 * (width - 1), 0.47 * (height - 1)], dtype=torch.float64)
    return Camera(
        focal=focal,
        center=middle.expand(len(draws), 2),
        position=MotionPath.of(start + vectors(aside, zero, zero), vectors(zero, zero, speed))
        .with_waves(heave, rates, phase)
        .with_waves(vectors(aside, zero, zero)[..., None], swerve[:, None, None], quarter),
        turn=MotionPath.of(vectors(zero, yaw, zero))
        .with_waves(bounce, rates, phase + 0.7)
        .with_waves(vectors(zero, turn, zero)[..., None], swerve[:, None, None], 0.0 * quarter),
        base=looking(draws.normal("ego.pitch", 0.0, 0.02), zero),
        shake=shaken,
        shake_turn=turned,
    )
