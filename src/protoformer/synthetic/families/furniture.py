"""What stands in rooms: chairs, tables, beds, sofas, shelves, desks, lamps, counters and cabinets.

A piece is made of boxes that share a path and a look. In its own axes x is to the right, up is negative y, and z
points from its front to its back: to the wall, where it stands against one. `half` is the half size of a room whose
middle is the origin, B x 1 x 3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protoformer.synthetic.assembly import Assembly, Look, vectors, yaw_rotation
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import MotionPath, join_paths

WOOD = Look(repeat=(0.4, 3.0), contrast=(0.3, 1.3), tone=(0.05, 0.7), plain=0.3, gloss=0.4)
SET = Look(repeat=(0.3, 2.0), contrast=(0.3, 1.0), plain=0.5, bare=(0.0, 0.9), gloss=0.5)
COVER = Look(repeat=(0.15, 1.2), contrast=(0.5, 1.3), tone=(0.1, 0.7), plain=0.35, bare=(0.0, 0.9), gloss=0.1)
LINEN = Look(repeat=(0.3, 1.5), contrast=(0.1, 0.9), plain=0.6, bare=(0.6, 1.1), gloss=0.0)
SPINES = Look(repeat=(0.1, 0.6), contrast=(0.4, 1.1), tint=0.3, plain=0.35, gloss=0.3)
SCREEN = Look(repeat=(0.3, 1.0), contrast=(0.02, 0.2), tone=(0.02, 0.15), tint=0.05, gloss=0.6)
SHADE = Look(repeat=(0.3, 1.0), contrast=(0.05, 0.4), tone=(0.75, 1.0), tint=0.1, gloss=0.0)
LEGS = 0.45
"""Half the height of a chair, meters: the point by which it is placed is so far above its feet."""
ROWS, BOOKS = 4, 3
"""Of a bookshelf, and of a row."""


@dataclass(frozen=True)
class Part:
    """A box of each of n pieces: half sizes and where its middle is in the piece's axes, what expands to B x n x 3.

    there: B x n, whether the piece has it; None for all.
    """

    extent: Tensor
    middle: Tensor
    there: Tensor | None = None


def put(
    assembly: Assembly,
    name: str,
    position: Tensor | MotionPath,
    base: Tensor,
    parts: Sequence[Part],
    alive: Tensor,
    look: Look = WOOD,
    *,
    spin: MotionPath | None = None,
    instance: Tensor | int = 0,
    texture: Tensor | None = None,
) -> None:
    """Add pieces: position B x n x 3 or a path, base B x n x 3 x 3, alive B x n; the others as in `Assembly.add`."""
    number, shape = len(parts), (assembly.batch, base.shape[1])
    base, alive = base.expand(*shape, 3, 3), alive.expand(shape)
    path = position if isinstance(position, MotionPath) else MotionPath.of(position.expand(*shape, 3))
    assembly.add(
        "box",
        name,
        join_paths([path] * number),
        torch.cat([part.extent.expand(*shape, 3) for part in parts], dim=1),
        look=look,
        spin=None if spin is None else join_paths([spin] * number),
        base=torch.cat([base] * number, dim=1),
        offset=torch.cat([(base @ part.middle.expand(*shape, 3)[..., None])[..., 0] for part in parts], dim=1),
        instance=torch.cat([torch.as_tensor(instance).expand(shape)] * number, dim=1),
        alive=torch.cat([alive if part.there is None else alive & part.there for part in parts], dim=1),
        texture=texture,
        parts=number,
    )


def against_wall(
    draws: SceneRandom,
    name: str,
    half: Tensor,
    wide: Tensor | float,
    deep: Tensor | float,
    count: int = 1,
    wall: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Places before walls: the heading of what has its back there (B x n), and (x, z) of its middle (B x n x 2).

    wide, deep: its half sizes along the wall and across. wall: B x n, of four, 0 .. 3; drawn if not given.
    """
    if wall is None:
        wall = draws.integer(f"{name}.wall", 0, 4, (count,))
    x, z = half[..., 0], half[..., 2]
    on_z, sign = wall % 2 == 0, torch.where(wall < 2, 1.0, -1.0).double()
    free = (torch.where(on_z, x, z) - wide).clamp_min(0.0)
    along = draws.uniform(f"{name}.along", -0.95, 0.95, (count,)) * free
    place = torch.stack(
        (torch.where(on_z, along, sign * (x - deep)), torch.where(on_z, sign * (z - deep), along)), dim=-1
    )
    return torch.where(on_z, torch.where(sign > 0, 0.0, math.pi), sign * 0.5 * math.pi), place


def on_floor(half: Tensor, place: Tensor) -> Tensor:
    """Where places (x, z), B x n x 2, are on the floor: B x n x 3."""
    return vectors(place[..., 0], half[..., 1], place[..., 1])


def chairs(
    assembly: Assembly,
    position: Tensor | MotionPath,
    base: Tensor,
    alive: Tensor,
    name: str = "chair",
    *,
    alike: bool = True,
    scale: Tensor | float = 1.0,
    thick: Tensor | None = None,
    spin: MotionPath | None = None,
    instance: Tensor | int = 0,
) -> None:
    """Chairs, all of one make in a scene unless they are not alike.

    position: of the point LEGS above the feet, B x n x 3, or a path. base: B x n x 3 x 3. scale: B x n, 1 for a chair
    to sit on. thick: B x n, half the thickness of legs and slats before the scale, meters.
    """
    draws, makes = assembly.draws, 1 if alike else base.shape[1]
    if thick is None:
        thick = draws.log_uniform(f"{name}.thick", 0.01, 0.025, (makes,))
    frame, seat = _chair(draws, name, thick, makes)
    larger = torch.as_tensor(scale, dtype=torch.float64)[..., None]
    cover, look = draws.uniform(f"{name}.cover", shape=(makes,)), replace(SET, alike=alike)
    for group, parts in (("frame", frame), ("seat", [seat])):
        sized = [Part(larger * part.extent, larger * part.middle, part.there) for part in parts]
        put(
            assembly, f"{name}.{group}", position, base, sized, alive, look,
            spin=spin, instance=instance, texture=cover,
        )  # fmt: skip


def _chair(draws: SceneRandom, name: str, thick: Tensor, makes: int) -> tuple[list[Part], Part]:
    """Four thin legs and a back that is a panel, or slats or bars, or none; and the seat."""
    wide = draws.uniform(f"{name}.wide", 0.17, 0.26, (makes,))
    deep = draws.uniform(f"{name}.deep", 0.17, 0.24, (makes,))
    seat = draws.uniform(f"{name}.seat", 0.4, 0.5, (makes,))
    back = draws.choice(f"{name}.back", (0.35, 0.3, 0.25, 0.1), (makes,))  # a panel, slats, bars, none
    short = seat - 0.01
    tall = torch.where(back == 3, short, draws.uniform(f"{name}.tall", 0.75, 1.0, (makes,)))
    rise = (tall - seat).clamp_min(0.1)
    aside, behind, inner = wide - 1.3 * thick, deep - 1.3 * thick, wide - 1.6 * thick  # no two faces in one plane
    parts = [
        Part(vectors(thick, 0.5 * high, thick), vectors(side * aside, LEGS - 0.5 * high, end * behind))
        for side, end, high in ((-1, -1, short), (1, -1, short), (-1, 1, tall), (1, 1, tall))
    ]
    slats = draws.uniform(f"{name}.slat", 0.06, 0.15, (makes,)) * rise  # half the height of the highest
    low, high = LEGS - seat, LEGS - tall + 0.005
    first = torch.where(back == 0, draws.uniform(f"{name}.panel", 0.3, 0.5, (makes,)) * rise, slats)
    parts.append(Part(vectors(inner, first, 0.6 * thick), vectors(0.0, high + first, behind), back != 3))
    bars, holes = (back == 2)[..., None], (back == 1) | (back == 2)
    for number in (1, 2):
        bar = vectors(0.7 * thick, 0.5 * rise - 0.01, 0.5 * thick)
        slat = vectors(inner, 0.7 * slats, 0.6 * thick)
        stands = vectors((number - 1.5) * inner, low - 0.5 * rise, behind)
        hangs = vectors(0.0, high + 0.33 * number * rise, behind)
        parts.append(Part(torch.where(bars, bar, slat), torch.where(bars, stands, hangs), holes))
    cushion = draws.uniform(f"{name}.cushion", 0.012, 0.05, (makes,))
    return parts, Part(vectors(wide, cushion, deep), vectors(0.0, low + cushion, 0.0))


def tables(assembly: Assembly, half: Tensor, alive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tables anywhere; returns the middles of their tops (B x n x 3), half sizes of these, and headings (B x n)."""
    draws, count = assembly.draws, alive.shape[1]
    spot = draws.uniform("table.at", -0.6, 0.6, (count, 2))
    heading = draws.uniform("table.heading", 0.0, math.pi, (count,))
    square = draws.whether("table.square", 0.5, (count,))  # with the walls
    heading = torch.where(square, (heading > 0.5 * math.pi) * 0.5 * math.pi, heading)
    top = vectors(
        draws.uniform("table.wide", 0.3, 0.9, (count,)),
        draws.uniform("table.thick", 0.01, 0.03, (count,)),
        draws.uniform("table.deep", 0.25, 0.55, (count,)),
    )
    low = draws.whether("table.low", 0.3, (count,))
    tall = torch.where(low, 0.4, draws.uniform("table.tall", 0.68, 0.82, (count,)))
    leg = draws.uniform("table.leg", 0.015, 0.04, (count,))
    parts = [Part(top, vectors(0.0, top[..., 1] - tall, 0.0))] + [
        Part(
            vectors(leg, 0.5 * tall, leg),
            vectors(side * (top[..., 0] - 1.2 * leg), -0.5 * tall + top[..., 1], end * (top[..., 2] - 1.2 * leg)),
        )
        for side in (-1, 1)
        for end in (-1, 1)
    ]
    place = on_floor(half, spot * half[..., ::2])
    put(assembly, "table", place, yaw_rotation(heading), parts, alive)
    return place - vectors(0.0, tall, 0.0), top, heading


def beds(assembly: Assembly, half: Tensor, wall: Tensor, alive: Tensor) -> None:
    """A bed, its head to a wall: frame and head board, mattress, blanket and two pillows."""
    draws = assembly.draws
    wide = draws.uniform("bed.wide", 0.45, 0.9, (1,))
    deep, high = draws.uniform("bed.deep", 0.95, 1.05, (1,)), draws.uniform("bed.high", 0.12, 0.2, (1,))
    heading, place = against_wall(draws, "bed", half, wide, deep, wall=wall)
    place, base = on_floor(half, place), yaw_rotation(heading)
    board = draws.uniform("bed.board", 0.3, 0.65, (1,))
    soft = draws.uniform("bed.soft", 0.07, 0.14, (1,))
    lies = -2 * high - soft
    frame = [
        Part(vectors(wide, high, deep), vectors(0.0, -high, 0.0)),
        Part(vectors(wide + 0.03, board, 0.03), vectors(0.0, -board, deep - 0.03)),
    ]
    put(assembly, "bed.frame", place, base, frame, alive)
    put(
        assembly,
        "bed.mattress",
        place,
        base,
        [Part(vectors(wide - 0.02, soft, deep), vectors(0, lies, 0))],
        alive,
        LINEN,
    )
    reach = draws.uniform("bed.covered", 0.5, 0.75, (1,)) * deep
    blanket = [Part(vectors(wide + 0.02, soft + 0.03, reach), vectors(0.0, lies, reach - deep - 0.01))]
    put(assembly, "bed.blanket", place, base, blanket, alive, COVER)
    pillow = vectors(0.42 * wide, 0.07, 0.2)
    pillows = [Part(pillow, vectors(side * 0.48 * wide, lies - soft - 0.05, deep - 0.3)) for side in (-1, 1)]
    put(assembly, "bed.pillows", place, base, pillows, alive, LINEN)


def sofas(assembly: Assembly, half: Tensor, wall: Tensor, alive: Tensor) -> None:
    """Armchairs and sofas near walls (B x n): a seat, a back and arms, all of one cover."""
    draws, count = assembly.draws, alive.shape[1]
    wide = draws.uniform("sofa.wide", 0.35, 1.05, (count,))
    heading, place = against_wall(draws, "sofa", half, wide, 0.45, count, wall)
    inward = draws.uniform("sofa.inward", 0.6, 1.0, (count, 1))
    base = yaw_rotation(heading + draws.normal("sofa.turn", 0.0, 0.2, (count,)))
    back, arm = draws.uniform("sofa.back", 0.35, 0.5, (count,)), draws.uniform("sofa.arm", 0.05, 0.12, (count,))
    parts = [
        Part(vectors(wide, 0.21, 0.38), vectors(0.0, -0.21, 0.0 * wide)),
        Part(vectors(wide, back, 0.1), vectors(0.0, -back, 0.32)),
        *(Part(vectors(arm, 0.3, 0.38), vectors(side * (wide + arm), -0.3, 0.0)) for side in (-1, 1)),
    ]
    put(assembly, "sofa", on_floor(half, place * inward), base, parts, alive, COVER)


def shelves(assembly: Assembly, half: Tensor, wall: Tensor, alive: Tensor) -> None:
    """A bookshelf against a wall: boards, and rows of books that stand on them, broad and narrow, high and low."""
    draws = assembly.draws
    wide, deep = draws.uniform("shelf.wide", 0.35, 0.8, (1,)), draws.uniform("shelf.deep", 0.12, 0.2, (1,))
    tall = torch.minimum(draws.uniform("shelf.tall", 0.5, 1.1, (1,)), half[..., 1])
    heading, place = against_wall(draws, "shelf", half, wide, deep, wall=wall)
    place, base = on_floor(half, place), yaw_rotation(heading)
    row = (2 * tall - 0.1) / ROWS
    boards = [Part(vectors(0.012, tall, deep), vectors(side * wide, -tall, 0.0)) for side in (-1, 1)]
    boards += [Part(vectors(wide, 0.99 * tall, 0.008), vectors(0.0, -tall, deep - 0.008))]
    boards += [
        Part(vectors(wide, 0.012, 0.97 * deep), vectors(0.0, -0.08 - number * row, 0.0)) for number in range(ROWS + 1)
    ]
    put(assembly, "shelf", place, base, boards, alive)
    count = ROWS * BOOKS
    cell = 2 * (wide - 0.02) / BOOKS
    share = draws.uniform("book.wide", 0.35, 1.0, (count,))
    high = 0.5 * row * draws.uniform("book.high", 0.45, 0.9, (count,))
    across = (torch.arange(count) % BOOKS - 0.5 * (BOOKS - 1)) * cell
    across = across + 0.5 * (1 - share) * cell * draws.uniform("book.aside", -1.0, 1.0, (count,))
    stands = -0.092 - torch.arange(count) // BOOKS * row - high
    books = Part(
        vectors(0.5 * share * cell, high, draws.uniform("book.deep", 0.5, 0.9, (count,)) * (deep - 0.01)),
        vectors(across, stands, 0.0),
    )
    there = alive & draws.whether("book.is", 0.85, (count,))
    put(assembly, "book", place.expand(-1, count, -1), base.expand(-1, count, -1, -1), [books], there, SPINES)


def desks(assembly: Assembly, half: Tensor, wall: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
    """A desk against a wall, a monitor on it; returns the middle of its top, B x 1 x 3, and its heading, B x 1."""
    draws = assembly.draws
    wide, deep = draws.uniform("desk.wide", 0.45, 0.9, (1,)), draws.uniform("desk.deep", 0.28, 0.42, (1,))
    tall = draws.uniform("desk.tall", 0.69, 0.78, (1,))
    heading, place = against_wall(draws, "desk", half, wide, deep, wall=wall)
    place, base = on_floor(half, place), yaw_rotation(heading)
    parts = [Part(vectors(wide, 0.015, deep), vectors(0.0, -tall, 0.0))] + [
        Part(vectors(0.015, 0.5 * tall, 0.95 * deep), vectors(side * (wide - 0.02), -0.5 * tall, 0.0))
        for side in (-1, 1)
    ]
    put(assembly, "desk", place, base, parts, alive)
    broad, high = draws.uniform("screen.wide", 0.18, 0.4, (1,)), draws.uniform("screen.tall", 0.12, 0.22, (1,))
    aside = draws.uniform("screen.aside", -0.5, 0.5, (1,)) * (wide - broad).clamp_min(0)
    foot, top = 0.04 + 0.5 * high, -tall - 0.015
    screen = [
        Part(vectors(broad, high, 0.015), vectors(aside, top - foot - 0.7 * high, 0.3 * deep)),
        Part(vectors(0.02, foot, 0.01), vectors(aside, top - foot, 0.3 * deep + 0.03)),
        Part(vectors(0.1, 0.006, 0.07), vectors(aside, top - 0.006, 0.3 * deep)),
        Part(vectors(0.2, 0.01, 0.06), vectors(aside, top - 0.01, -0.5 * deep)),
    ]
    put(assembly, "screen", place, base, screen, alive & draws.whether("screen.is", 0.85, (1,)), SCREEN)
    return place - vectors(0.0, tall + 0.015, 0.0), heading


def counters(assembly: Assembly, half: Tensor, wall: Tensor, alive: Tensor) -> Tensor:
    """A kitchen's counter along a wall, and cabinets above; returns the middle of its top, B x 1 x 3."""
    draws = assembly.draws
    each = draws.uniform("counter.each", 0.25, 0.45, (1,))
    deep, tall = draws.uniform("counter.deep", 0.28, 0.33, (1,)), draws.uniform("counter.tall", 0.42, 0.46, (1,))
    heading, place = against_wall(draws, "counter", half, 3 * each, deep, wall=wall)
    place, base = on_floor(half, place), yaw_rotation(heading)
    above = 2 * tall + draws.uniform("counter.above", 0.45, 0.6, (1,))
    high = torch.minimum(draws.uniform("counter.high", 0.25, 0.45, (1,)), half[..., 1] - 0.5 * above)
    fronts = [Part(vectors(each - 0.006, tall, deep), vectors(2 * n * each, -tall, 0.0)) for n in (-1, 0, 1)]
    fronts += [
        Part(vectors(each - 0.006, high, 0.5 * deep), vectors(2 * n * each, -above - high, 0.5 * deep), there)
        for n, there in zip((-1, 0, 1), draws.whether("counter.hangs", 0.85, (3,)).split(1, dim=1), strict=True)
    ]
    put(assembly, "counter", place, base, fronts, alive)
    top = [Part(vectors(3 * each, 0.02, deep + 0.02), vectors(0.0, -2 * tall, -0.02))]
    put(assembly, "worktop", place, base, top, alive)
    return place - vectors(0.0, 2 * tall + 0.02, 0.0)


def lamps(assembly: Assembly, half: Tensor, alive: Tensor) -> None:
    """Lamps that stand near walls: a foot, a thin pole and a bright shade."""
    draws, count = assembly.draws, alive.shape[1]
    tall, shade = draws.uniform("lamp.tall", 1.2, 1.7, (count,)), draws.uniform("lamp.shade", 0.1, 0.22, (count,))
    heading, place = against_wall(draws, "lamp", half, 0.3, 0.3, count)
    place, base = on_floor(half, place), yaw_rotation(heading + draws.uniform("lamp.turn", 0.0, 1.57, (count,)))
    stand = [
        Part(vectors(0.012, 0.5 * tall, 0.012), vectors(0.0, -0.5 * tall, 0.0)),
        Part(vectors(0.13, 0.012, 0.13), vectors(0.0, -0.012, 0.0 * tall)),
    ]
    put(assembly, "lamp", place, base, stand, alive)
    put(assembly, "shade", place, base, [Part(vectors(shade, 0.8 * shade, shade), vectors(0, -tall, 0))], alive, SHADE)


def cabinets(assembly: Assembly, half: Tensor, alive: Tensor) -> Tensor:
    """Chests and wardrobes against walls; returns the middles of their tops, B x n x 3."""
    draws, count = assembly.draws, alive.shape[1]
    size = vectors(
        draws.uniform("cabinet.wide", 0.2, 0.8, (count,)),
        draws.log_uniform("cabinet.tall", 0.25, 1.05, (count,)),
        draws.uniform("cabinet.deep", 0.15, 0.35, (count,)),
    )
    heading, place = against_wall(draws, "cabinet", half, size[..., 0], size[..., 2], count)
    place = on_floor(half, place)
    put(assembly, "cabinet", place, yaw_rotation(heading), [Part(size, vectors(0.0, -size[..., 1], 0.0))], alive)
    return place - vectors(0.0, 2 * size[..., 1], 0.0)
