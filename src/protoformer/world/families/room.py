"""A furnished room, looked at from within."""

import math

import torch
from torch import Tensor

from protoformer.world.assembly import Assembly, Look, clear_of, lying, upright, vectors
from protoformer.world.bank import TextureBank
from protoformer.world.chance import Draws
from protoformer.world.conditions import air, film, hand, sky
from protoformer.world.families.street import looking, on_foot, people
from protoformer.world.paths import Path
from protoformer.world.scene import Camera, Scenes

RATE = 30.0
FOCAL = 518.9 / 640
"""Of the Kinect, over the width of its images."""
WALLS = Look(repeat=(0.8, 6.0), contrast=(0.1, 0.9), gloss=0.0)
WOOD = Look(repeat=(0.4, 3.0), contrast=(0.3, 1.0))
THINGS = Look(repeat=(0.15, 1.2), contrast=(0.5, 1.1))


def room(draws: Draws, size: tuple[int, int], bank: TextureBank, shake: float = 0.0) -> Scenes:
    """Build scenes indoors: walls, furniture, small things and sometimes a person."""
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    half = vectors(
        draws.uniform("room.x", 1.6, 4.5, (1,)),
        draws.uniform("room.y", 1.15, 1.6, (1,)),
        draws.uniform("room.z", 1.6, 4.5, (1,)),
    )
    walls(assembly, half)
    furniture(assembly, half)
    _moving(assembly, half)
    sky(assembly)
    camera = _camera(draws, size, half, shake)
    return Scenes(
        primitives=clear_of(assembly.primitives(), camera.position.at(torch.zeros(len(draws))), 0.4),
        camera=camera,
        air=air(draws, foggy=0.0),
        film=film(draws, focus=(1.0, 5.0)),
        size=size,
        rate=RATE,
    )


def walls(assembly: Assembly, half: Tensor) -> None:
    """The shell, floor, ceiling, and what hangs on the walls. half: B x 1 x 3, the middle is the origin."""
    draws = assembly.draws
    x, y, z = half.unbind(-1)
    assembly.add("room", "walls", torch.zeros_like(half), half, look=WALLS)
    flat = vectors(x, z, 1.0)
    assembly.add("rectangle", "floor", vectors(0.0, y - 0.005, 0.0 * x), flat, look=WOOD, base=lying(), casts=False)
    ceiling = Look(repeat=(1.0, 4.0), contrast=(0.05, 0.3), tone=(0.65, 0.9), tint=0.05, gloss=0.0)
    assembly.add(
        "rectangle", "ceiling", vectors(0.0, 0.005 - y, 0.0 * x), flat, look=ceiling, base=lying(), casts=False
    )
    rug = vectors(draws.uniform("rug.x", 0.5, 1.5, (1,)), draws.uniform("rug.z", 0.5, 1.5, (1,)), 1.0)
    place = vectors(draws.normal("rug.at.x", 0.0, 0.4, (1,)), y - 0.01, draws.normal("rug.at.z", 0.0, 0.4, (1,)))
    turned = upright(draws.uniform("rug.heading", 0.0, 3.14, (1,))) @ lying()
    assembly.add("rectangle", "rug", place, rug, look=THINGS, base=turned, alive=draws.whether("rug.is", 0.6, (1,)))
    count = 12
    heading, wall = _along_walls(draws, "picture", half, count, 0.01)
    high = draws.uniform("picture.high", -0.6, 0.5, (count,))
    extent = vectors(
        draws.log_uniform("picture.wide", 0.12, 0.8, (count,)),
        draws.log_uniform("picture.tall", 0.12, 0.7, (count,)),
        1.0,
    )
    place = vectors(wall[..., 0], high, wall[..., 1])
    look = Look(repeat=(0.4, 1.6), contrast=(0.7, 1.2))
    assembly.add("rectangle", "picture", place, extent, look=look, base=upright(heading))


def furniture(assembly: Assembly, half: Tensor) -> None:
    """Cabinets along the walls, tables with legs, seats, and things upon them."""
    draws = assembly.draws
    floor = half[..., 1]
    count = 8
    size = vectors(
        draws.uniform("cabinet.wide", 0.2, 0.9, (count,)),
        draws.log_uniform("cabinet.tall", 0.2, 1.1, (count,)),
        draws.uniform("cabinet.deep", 0.15, 0.4, (count,)),
    )
    heading, wall = _along_walls(draws, "cabinet", half, count, size[..., 2])
    place = vectors(wall[..., 0], floor - size[..., 1], wall[..., 1])
    alive = draws.whether("cabinet.is", 0.8, (count,))
    assembly.add("box", "cabinet", place, size, look=WOOD, base=upright(heading), alive=alive)
    upon = place - vectors(0.0, size[..., 1], 0.0)
    _small_things(assembly, "shelf", upon, alive)

    tables = 3
    middle = draws.uniform("table.at", -0.7, 0.7, (tables, 2))
    heading = draws.uniform("table.heading", 0.0, math.pi, (tables,))
    base = upright(heading)
    top = vectors(
        draws.uniform("table.wide", 0.3, 0.9, (tables,)), 0.02, draws.uniform("table.deep", 0.25, 0.6, (tables,))
    )
    tall = draws.uniform("table.tall", 0.35, 0.8, (tables,))
    place = vectors(middle[..., 0] * half[..., 0], floor - tall, middle[..., 1] * half[..., 2])
    alive = draws.whether("table.is", 0.85, (tables,))
    assembly.add("box", "table", place, top, look=WOOD, base=base, alive=alive)
    for leg, (side, end) in enumerate(((-1, -1), (-1, 1), (1, -1), (1, 1))):
        offset = vectors(side * (top[..., 0] - 0.05), 0.5 * tall, end * (top[..., 2] - 0.05))
        offset = (base @ offset[..., None])[..., 0]
        extent = vectors(0.025, 0.5 * tall, 0.025)
        assembly.add("box", f"leg {leg}", place, extent, look=WOOD, base=base, offset=offset, alive=alive)
    _small_things(assembly, "table", place - vectors(0.0, top[..., 1], 0.0), alive)

    seats = 3
    heading, wall = _along_walls(draws, "seat", half, seats, 0.5)
    inward = draws.uniform("seat.inward", 0.35, 1.0, (seats, 1))
    place = vectors(inward[..., 0] * wall[..., 0], floor - 0.22, inward[..., 0] * wall[..., 1])
    base, alive = (
        upright(heading + draws.normal("seat.turn", 0.0, 0.3, (seats,))),
        draws.whether("seat.is", 0.7, (seats,)),
    )
    wide = draws.uniform("seat.wide", 0.25, 1.0, (seats,))
    texture = draws.uniform("seat.cover", shape=(seats,))
    for part, extent, offset in (
        ("cushion", vectors(wide, 0.22, 0.38), vectors(0.0, 0.0, 0.0 * wide)),
        ("back", vectors(wide, 0.42, 0.08), vectors(0.0, -0.3, 0.34 + 0.0 * wide)),
    ):
        offset = (base @ offset[..., None])[..., 0]
        assembly.add(
            "box", f"seat {part}", place, extent, look=THINGS, base=base, offset=offset, alive=alive, texture=texture
        )
    plants = 2
    heading, wall = _along_walls(draws, "plant", half, plants, 0.35)
    tall = draws.uniform("plant.tall", 0.3, 0.7, (plants,))
    place = vectors(wall[..., 0], floor - tall, wall[..., 1])
    size = vectors(0.8 * tall, tall, 1.0)
    assembly.add(
        "cutout",
        "plant",
        place,
        size,
        look=THINGS,
        base=upright(heading),
        alive=draws.whether("plant.is", 0.7, (plants,)),
    )


def _small_things(assembly: Assembly, name: str, upon: Tensor, alive: Tensor) -> None:
    """A box and a ball on each of some tops, B x n x 3."""
    draws, count = assembly.draws, upon.shape[1]
    for kind in ("box", "ball"):
        size = draws.log_uniform(f"{name}.{kind}.size", 0.04, 0.2, (count, 3))
        aside = draws.uniform(f"{name}.{kind}.aside", -0.2, 0.2, (count, 2))
        place = upon + vectors(aside[..., 0], -size[..., 1], aside[..., 1])
        there = alive & draws.whether(f"{name}.{kind}.is", 0.7, (count,))
        base = upright(draws.uniform(f"{name}.{kind}.heading", 0.0, 3.14, (count,)))
        assembly.add(kind, f"{name} {kind}", place, size, look=THINGS, base=base, alive=there)


def _along_walls(draws: Draws, name: str, half: Tensor, count: int, gap: Tensor | float) -> tuple[Tensor, Tensor]:
    """Places before the four walls: the heading that faces inwards (B x n), and (x, z) (B x n x 2)."""
    which = draws.integer(f"{name}.wall", 0, 4, (count,))
    along = draws.uniform(f"{name}.along", -0.85, 0.85, (count,))
    x, z = half[..., 0], half[..., 2]
    gap = torch.as_tensor(gap, dtype=torch.float64)
    on_z = which % 2 == 0
    sign = torch.where(which < 2, 1.0, -1.0)
    place = torch.stack(
        (torch.where(on_z, along * x, sign * (x - gap)), torch.where(on_z, sign * (z - gap), along * z)), dim=-1
    )
    heading = torch.where(on_z, torch.where(sign > 0, 0.0, math.pi), sign * 0.5 * math.pi)
    return heading, place


def _moving(assembly: Assembly, half: Tensor) -> None:
    """Someone walks by, a ball flies, a thing is carried: sometimes."""
    draws = assembly.draws
    spot = draws.uniform("walker.at", -0.7, 0.7, (2, 2))
    start = vectors(spot[..., 0] * half[..., 0], half[..., 1], spot[..., 1] * half[..., 2])
    walkers = draws.whether("walker.is", 0.35, (2,))
    people(assembly, on_foot(assembly, "walker", start, 1.2), torch.tensor([1, 2]), walkers, "walker")
    count = 3
    spot = draws.uniform("toy.at", -0.6, 0.6, (count, 3)) * half
    speed = draws.log_uniform("toy.speed", 0.05, 3.0, (count, 1)) * draws.direction("toy.way", (count,))
    spin = Path.of(torch.zeros_like(spot), draws.normal("toy.spin", 0.0, 2.0, (count, 3)))
    size = draws.log_uniform("toy.size", 0.05, 0.25, (count, 3))
    there = draws.whether("toy.is", 0.55, (count,))
    toys = torch.arange(3, 3 + count)
    assembly.add("ball", "toy", Path.of(spot, speed), size, look=THINGS, spin=spin, instance=toys, alive=there)


def _camera(draws: Draws, size: tuple[int, int], half: Tensor, shake: float) -> Camera:
    """Held at eye height near a wall, looking across the room; it turns and moves as a hand-carried one does."""
    height, width = size
    x, y, z = half[:, 0].unbind(-1)
    side = draws.uniform("camera.side", -math.pi, math.pi)
    out = draws.uniform("camera.out", 0.55, 0.85)
    stand = vectors(out * x * side.sin(), y - draws.uniform("camera.height", 0.8, 1.7), -out * z * side.cos())
    aim = draws.uniform("camera.aim", -0.45, 0.45, (2,)) * torch.stack((x, z), dim=-1)
    yaw = torch.atan2(aim[:, 0] - stand[:, 0], aim[:, 1] - stand[:, 2])
    pitch = -draws.normal("camera.pitch", 0.25, 0.15).clamp(-0.3, 0.6)
    pace = draws.log_uniform("camera.pace", 0.05, 1.5, (1,)) * draws.direction("camera.way") * vectors(1.0, 0.3, 1.0)
    sweep = draws.normal("camera.sweep", 0.0, 1.0, (3,)) * draws.log_uniform("camera.pan", 0.04, 1.2, (1,))
    slow = draws.uniform("camera.slow", 0.15, 0.5, (3, 1))
    phase = torch.zeros(1, 1, dtype=torch.float64)
    turn = (sweep * vectors(0.5, 1.0, 0.3))[..., None] / (2 * math.pi * slow)
    still = torch.zeros_like(stand)
    shaken, turned = hand(draws, shake)
    focal = FOCAL * width * draws.log_uniform("camera.focal", 0.9, 1.1, (1,)).expand(-1, 2)
    middle = torch.tensor([0.5 * (width - 1), 0.5 * (height - 1)], dtype=torch.float64)
    return Camera(
        focal=focal,
        centre=middle.expand(len(draws), 2),
        position=Path.of(stand).with_waves(pace[..., None] / (2 * math.pi * slow), slow, phase),
        turn=Path.of(still).with_waves(turn, slow, phase),
        base=looking(pitch, yaw),
        shake=shaken,
        shake_turn=turned,
    )
