"""A furnished room, looked at from within: a bedroom, a kitchen, an office, a living room, a hall."""

import math

import torch
from torch import Tensor

from protoformer.geometry.warps import rotation
from protoformer.synthetic.assembly import (
    Assembly,
    Look,
    add_sky,
    ground_rotation,
    remove_near,
    sample_air,
    sample_hand_motion,
    sample_sensor,
    vectors,
    yaw_rotation,
)
from protoformer.synthetic.families.drive import looking, on_foot, people
from protoformer.synthetic.families.furniture import (
    COVER,
    LEGS,
    LINEN,
    Part,
    against_wall,
    beds,
    cabinets,
    chairs,
    counters,
    desks,
    lamps,
    on_floor,
    put,
    shelves,
    sofas,
    tables,
)
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import Camera, MotionPath, Scenes
from protoformer.synthetic.texture_bank import TextureBank

RATE = 30.0
FOCAL = 518.9 / 640
"""Of the Kinect, over the width of its images."""
NEAREST = 0.7
"""Meters from the camera to the nearest piece of furniture; a Kinect measures little that is nearer."""
WALLS = Look(repeat=(0.8, 6.0), contrast=(0.1, 0.9), plain=0.65, bare=(0.45, 1.1), tint=0.1, gloss=0.0)
CEILING = Look(repeat=(1.0, 4.0), contrast=(0.05, 0.3), tone=(0.65, 0.95), tint=0.05, gloss=0.0)
FLOOR = Look(repeat=(0.4, 3.0), contrast=(0.2, 1.1), tone=(0.15, 0.65), plain=0.25, bare=(0.06, 0.65))
RUG = Look(repeat=(0.3, 2.0), contrast=(0.5, 1.1), plain=0.2)
PICTURE = Look(repeat=(0.4, 1.6), contrast=(0.8, 1.4), plain=0.15)
PANE = Look(repeat=(0.8, 3.0), contrast=(0.2, 0.8), tone=(0.7, 1.1), tint=0.05, gloss=0.0)
THINGS = Look(repeat=(0.15, 1.2), contrast=(0.6, 1.4), plain=0.3)
PIECES = ("bed", "counter", "desk", "shelf", "sofa", "table", "chair", "lamp", "cabinet")
KINDS = {
    "bedroom": (0.95, 0.0, 0.4, 0.5, 0.2, 0.2, 0.3, 0.6, 0.8),
    "kitchen": (0.0, 0.95, 0.0, 0.3, 0.1, 0.6, 0.7, 0.1, 0.8),
    "office": (0.0, 0.1, 0.95, 0.8, 0.2, 0.5, 0.8, 0.2, 0.8),
    "living room": (0.05, 0.1, 0.2, 0.6, 0.9, 0.8, 0.4, 0.6, 0.7),
    "hall": (0.0, 0.25, 0.3, 0.7, 0.5, 0.95, 0.9, 0.1, 0.9),
}
"""How likely each of the pieces is there, in each kind of room."""
CHAIRS, TABLES = 4, 2


def room(draws: SceneRandom, size: tuple[int, int], bank: TextureBank, shake: float = 0.0) -> Scenes:
    """Build scenes indoors: walls, furniture, small things and sometimes a person."""
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    half = _half(draws)
    walls(assembly, half)
    openings(assembly, half)
    sights, seen = furniture(assembly, half)
    _moving(assembly, half)
    add_sky(assembly)
    camera = _camera(draws, size, half, sights, seen, shake)
    return Scenes(
        primitives=remove_near(assembly.primitives(), camera.position.at(torch.zeros(len(draws))), NEAREST),
        camera=camera,
        air=sample_air(draws, foggy=0.0),
        film=sample_sensor(draws, focus=(1.0, 5.0)),
        size=size,
        rate=RATE,
    )


def _half(draws: SceneRandom) -> Tensor:
    """Half the size of rooms, B x 1 x 3: most are 3.2 to 8.4 meters long, some up to 10 and 7."""
    large = draws.whether("room.large", 0.2, (1,))
    long = torch.where(
        large, draws.uniform("room.hall", 3.5, 5.0, (1,)), draws.log_uniform("room.long", 1.6, 4.2, (1,))
    )
    narrow = (long * draws.uniform("room.narrow", 0.65, 1.0, (1,))).clamp(1.4, 3.5)
    turned = draws.whether("room.turned", 0.5, (1,))
    return vectors(
        torch.where(turned, long, narrow), draws.uniform("room.y", 1.15, 1.6, (1,)), torch.where(turned, narrow, long)
    )


def walls(assembly: Assembly, half: Tensor) -> None:
    """The shell, floor, ceiling, and what lies and hangs there. half: B x 1 x 3, the middle is the origin."""
    draws = assembly.draws
    x, y, z = half.unbind(-1)
    assembly.add("room", "shell", torch.zeros_like(half), half, look=WALLS)
    # A shell gives light and has no shades; the walls before it do, so that one sees where they meet.
    side, end = torch.tensor([1.0, -1.0, 0.0, 0.0]).double(), torch.tensor([0.0, 0.0, 1.0, -1.0]).double()
    place = vectors(side * (x - 0.005), 0.0, end * (z - 0.005))
    flat = vectors(torch.cat((z, z, x, x), dim=1), y, 1.0)
    base = yaw_rotation(0.5 * math.pi * side.abs())
    assembly.add("rectangle", "walls", place, flat, look=WALLS, base=base, casts=False, parts=4)
    flat = vectors(x, z, 1.0)
    assembly.add(
        "rectangle", "floor", vectors(0.0, y - 0.005, 0.0 * x), flat, look=FLOOR, base=ground_rotation(), casts=False
    )
    assembly.add(
        "rectangle",
        "ceiling",
        vectors(0.0, 0.005 - y, 0.0 * x),
        flat,
        look=CEILING,
        base=ground_rotation(),
        casts=False,
    )
    rug = vectors(draws.uniform("rug.x", 0.5, 1.5, (1,)), draws.uniform("rug.z", 0.5, 1.5, (1,)), 1.0)
    place = vectors(draws.normal("rug.at.x", 0.0, 0.4, (1,)), y - 0.01, draws.normal("rug.at.z", 0.0, 0.4, (1,)))
    turned = yaw_rotation(draws.uniform("rug.heading", 0.0, 3.14, (1,))) @ ground_rotation()
    assembly.add("rectangle", "rug", place, rug, look=RUG, base=turned, alive=draws.whether("rug.is", 0.5, (1,)))
    count = 5
    extent = vectors(
        draws.log_uniform("picture.wide", 0.12, 0.7, (count,)),
        draws.log_uniform("picture.tall", 0.12, 0.6, (count,)),
        1.0,
    )
    heading, wall = against_wall(draws, "picture", half, extent[..., 0], 0.02, count)
    place = vectors(wall[..., 0], draws.uniform("picture.high", -0.6, 0.2, (count,)), wall[..., 1])
    there = draws.whether("picture.is", 0.7, (count,))
    assembly.add("rectangle", "picture", place, extent, look=PICTURE, base=yaw_rotation(heading), alive=there)


def openings(assembly: Assembly, half: Tensor) -> None:
    """A door in its frame, and a window with a sill, a bar and curtains."""
    draws = assembly.draws
    wide, tall = draws.uniform("door.wide", 0.36, 0.48, (1,)), draws.uniform("door.tall", 0.98, 1.06, (1,))
    heading, place = against_wall(draws, "door", half, wide + 0.08, 0.03)
    place, base, alive = on_floor(half, place), yaw_rotation(heading), draws.whether("door.is", 0.7, (1,))
    frame = [Part(vectors(0.04, tall, 0.03), vectors(side * (wide + 0.04), -tall, 0.0)) for side in (-1, 1)]
    frame.append(Part(vectors(wide + 0.08, 0.04, 0.03), vectors(0.0, -2 * tall - 0.04, 0.0)))
    put(assembly, "door.frame", place, base, frame, alive, LINEN)
    put(assembly, "door", place, base, [Part(vectors(wide, tall, 0.012), vectors(0.0, -tall, 0.015))], alive)

    wide, tall = draws.uniform("window.wide", 0.3, 0.9, (1,)), draws.uniform("window.tall", 0.35, 0.65, (1,))
    heading, place = against_wall(draws, "window", half, wide + 0.2, 0.05)
    place = vectors(place[..., 0], draws.uniform("window.high", -0.5, -0.1, (1,)), place[..., 1])
    base, alive = yaw_rotation(heading), draws.whether("window.is", 0.7, (1,))
    inwards = place + (base @ torch.tensor([0.0, 0.0, 0.025], dtype=torch.float64)[:, None])[..., 0]
    assembly.add("rectangle", "pane", inwards, vectors(wide, tall, 1.0), look=PANE, base=base, alive=alive)
    frame = [Part(vectors(wide + 0.05, 0.04, 0.04), vectors(0.0, up * tall, 0.0)) for up in (-1, 1)] + [
        Part(vectors(0.03, tall, 0.035), vectors(aside * wide, 0.0, 0.0)) for aside in (-1, 0, 1)
    ]
    put(assembly, "window", place, base, frame, alive, LINEN)
    drawn = draws.uniform("curtain.wide", 0.08, 0.35, (1,))
    hangs = draws.uniform("curtain.long", 1.1, 2.0, (1,)) * tall
    curtains = [
        Part(vectors(drawn, hangs, 0.04), vectors(aside * (wide + 0.1), hangs - 1.15 * tall, -0.05))
        for aside in (-1, 1)
    ]
    put(assembly, "curtain", place, base, curtains, alive & draws.whether("curtain.is", 0.5, (1,)), COVER)


def furniture(assembly: Assembly, half: Tensor) -> tuple[Tensor, Tensor]:
    """What a room of its kind has, most large pieces at walls of their own, and things upon them.

    Returns places worth a look, (x, z), B x n x 2, and whether something is there, B x n.
    """
    draws = assembly.draws
    chances = torch.tensor(list(KINDS.values()), dtype=torch.float64)
    likely = chances[draws.choice("room.kind", (1.0,) * len(KINDS))]

    def there(piece: str, count: int = 1) -> Tensor:
        return draws.whether(f"{piece}.is", likely[:, PIECES.index(piece), None], (count,))

    first, second, third, fourth = draws.order("room.walls", 4).split(1, dim=1)
    beds(assembly, half, first, there("bed"))
    shelves(assembly, half, second, there("shelf"))
    at_desk = there("desk")
    desk, desk_heading = desks(assembly, half, third, at_desk)
    cooks = there("counter")
    counter = counters(assembly, half, fourth, cooks)
    sofas(assembly, half, torch.cat((first, fourth), dim=1), there("sofa", 2))
    stand = there("table", TABLES)
    table, top, heading = tables(assembly, half, stand)
    lamps(assembly, half, there("lamp", 2))
    chests = there("cabinet", 3)
    chest = cabinets(assembly, half, chests)
    upon = torch.cat((chest, table, desk, counter), dim=1)
    covered = torch.cat((chests, stand, at_desk, cooks), dim=1)
    _small_things(assembly, half, upon, covered)
    place, turned = _seated(draws, half, (table, top, heading), (desk, desk_heading))
    base = yaw_rotation(turned + draws.normal("chair.turn", 0.0, 0.3, (CHAIRS,)))
    stood = there("chair", CHAIRS)
    chairs(assembly, vectors(place[..., 0], half[..., 1] - LEGS, place[..., 2]), base, stood)
    sights, seen = torch.cat((upon, place), dim=1)[..., ::2], torch.cat((covered, stood), dim=1)
    heading, wall = against_wall(draws, "plant", half, 0.3, 0.35)
    tall = draws.uniform("plant.tall", 0.3, 0.7, (1,))
    place = vectors(wall[..., 0], half[..., 1] - tall, wall[..., 1])
    size, green = vectors(0.8 * tall, tall, 1.0), draws.whether("plant.is", 0.5, (1,))
    assembly.add("cutout", "plant", place, size, look=THINGS, base=yaw_rotation(heading), alive=green)
    return sights, seen


def _seated(
    draws: SceneRandom, half: Tensor, tables: tuple[Tensor, Tensor, Tensor], desk: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Where chairs are, B x CHAIRS x 3, and their headings: the last at the desk, the others at the tables."""
    (table, top, heading), (at_desk, to_wall) = tables, desk
    which = torch.arange(CHAIRS - 1) % TABLES
    side = draws.integer("chair.side", 0, 4, (CHAIRS - 1,))
    reach = torch.where(side % 2 == 0, top[:, which, 2], top[:, which, 0])
    turned = torch.cat((heading[:, which] + 0.5 * math.pi * side, to_wall + math.pi), dim=1)
    away = torch.cat((reach, torch.full_like(to_wall, 0.35)), dim=1)
    away = away + draws.uniform("chair.away", -0.05, 0.45, (CHAIRS,))
    at = torch.cat((table[:, which], at_desk), dim=1)
    place = at + away[..., None] * vectors(turned.sin(), 0.0, turned.cos())
    inside = half - vectors(0.25, 0.0, 0.25)
    return torch.minimum(torch.maximum(place, -inside), inside), turned


def _small_things(assembly: Assembly, half: Tensor, upon: Tensor, alive: Tensor) -> None:
    """A box and a ball on each of some tops, B x n x 3; they are of one body with what they lie on, and go with it."""
    draws, count = assembly.draws, upon.shape[1]
    feet = on_floor(half, upon[..., ::2])
    for kind in ("box", "ball"):
        size = draws.log_uniform(f"{kind}.size", 0.03, 0.18, (count, 3))
        aside = draws.uniform(f"{kind}.aside", -0.2, 0.2, (count, 2))
        offset = upon - feet + vectors(aside[..., 0], -size[..., 1], aside[..., 1])
        there = alive & draws.whether(f"{kind}.is", 0.7, (count,))
        base = yaw_rotation(draws.uniform(f"{kind}.heading", 0.0, 3.14, (count,)))
        assembly.add(kind, f"small {kind}", feet, size, look=THINGS, base=base, offset=offset, alive=there)


def _moving(assembly: Assembly, half: Tensor) -> None:
    """Someone walks by, a ball flies, a thing is carried: sometimes."""
    draws = assembly.draws
    spot = draws.uniform("walker.at", -0.7, 0.7, (2, 2))
    start = vectors(spot[..., 0] * half[..., 0], half[..., 1], spot[..., 1] * half[..., 2])
    walkers = draws.whether("walker.is", 0.2, (2,))
    people(assembly, on_foot(assembly, "walker", start, 1.2), torch.tensor([1, 2]), walkers, "walker")
    count = 3
    spot = draws.uniform("toy.at", -0.6, 0.6, (count, 3)) * half
    speed = draws.log_uniform("toy.speed", 0.05, 3.0, (count, 1)) * draws.direction("toy.way", (count,))
    spin = MotionPath.of(torch.zeros_like(spot), draws.normal("toy.spin", 0.0, 2.0, (count, 3)))
    size = draws.log_uniform("toy.size", 0.05, 0.25, (count, 3))
    there = draws.whether("toy.is", 0.35, (count,))
    toys = torch.arange(3, 3 + count)
    assembly.add("ball", "toy", MotionPath.of(spot, speed), size, look=THINGS, spin=spin, instance=toys, alive=there)


def _camera(
    draws: SceneRandom, size: tuple[int, int], half: Tensor, sights: Tensor, seen: Tensor, shake: float
) -> Camera:
    """Held at eye height near a wall, looking across the room, mostly at something; moved as a hand-carried one is.

    sights, seen: as `furniture` gives them.
    """
    height, width = size
    x, y, z = half[:, 0].unbind(-1)
    side = draws.uniform("camera.side", -math.pi, math.pi)
    out = draws.uniform("camera.out", 0.55, 0.85)
    stand = vectors(out * x * side.sin(), y - draws.uniform("camera.height", 0.8, 1.7), -out * z * side.cos())
    aim = draws.uniform("camera.aim", -0.45, 0.45, (2,)) * torch.stack((x, z), dim=-1)
    away = (sights - stand[:, None, ::2]).norm(dim=-1)
    worth = seen & (away > 1.2) & draws.whether("camera.looks", 0.9, (1,))
    chosen = (worth * draws.uniform("camera.luck", 0.1, 1.0, (seen.shape[1],))).argmax(dim=1)
    sight = sights[torch.arange(len(draws)), chosen] + draws.normal("camera.past", 0.0, 0.4, (2,))
    aim = torch.where(worth.any(dim=1, keepdim=True), sight, aim)
    yaw = torch.atan2(aim[:, 0] - stand[:, 0], aim[:, 1] - stand[:, 2])
    pitch = -draws.normal("camera.pitch", 0.25, 0.15).clamp(-0.3, 0.6)
    zero, roll = torch.zeros_like(yaw), draws.normal("camera.roll", 0.0, 0.04)
    pace = draws.log_uniform("camera.pace", 0.05, 1.5, (1,)) * draws.direction("camera.way") * vectors(1.0, 0.3, 1.0)
    sweep = draws.normal("camera.sweep", 0.0, 1.0, (3,)) * draws.log_uniform("camera.pan", 0.04, 1.2, (1,))
    slow = draws.uniform("camera.slow", 0.15, 0.5, (3, 1))
    phase = torch.zeros(1, 1, dtype=torch.float64)
    turn = (sweep * vectors(0.5, 1.0, 0.3))[..., None] / (2 * math.pi * slow)
    still = torch.zeros_like(stand)
    shaken, turned = sample_hand_motion(draws, shake)
    focal = FOCAL * width * draws.log_uniform("camera.focal", 0.9, 1.1, (1,)).expand(-1, 2)
    middle = torch.tensor([0.5 * (width - 1), 0.5 * (height - 1)], dtype=torch.float64)
    return Camera(
        focal=focal,
        center=middle.expand(len(draws), 2),
        position=MotionPath.of(stand).with_waves(pace[..., None] / (2 * math.pi * slow), slow, phase),
        turn=MotionPath.of(still).with_waves(turn, slow, phase),
        base=looking(pitch, yaw) @ rotation(torch.stack((zero, zero, roll), dim=-1)),
        shake=shaken,
        shake_turn=turned,
    )
