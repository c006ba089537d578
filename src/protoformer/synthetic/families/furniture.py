"""Furniture: chairs, tables, beds, sofas, shelves, desks, lamps, counters and cabinets.

A piece consists of boxes that share a path and a material. In its local axes x is to the right, y is down, and z points
from front to back: towards the wall, if it stands against one. `half` is the half size of a room centered at the
origin, B x 1 x 3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protoformer.synthetic.assembly import Assembly, Material, vectors, yaw_rotation
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import MotionPath, join_paths

WOOD = Material(repeat=(0.4, 3.0), contrast=(0.3, 1.3), tone=(0.05, 0.7), plain=0.3, gloss=0.4)
SET = Material(repeat=(0.3, 2.0), contrast=(0.3, 1.0), plain=0.5, bare=(0.0, 0.9), gloss=0.5)
COVER = Material(repeat=(0.15, 1.2), contrast=(0.5, 1.3), tone=(0.1, 0.7), plain=0.35, bare=(0.0, 0.9), gloss=0.1)
LINEN = Material(repeat=(0.3, 1.5), contrast=(0.1, 0.9), plain=0.6, bare=(0.6, 1.1), gloss=0.0)
SPINES = Material(repeat=(0.1, 0.6), contrast=(0.4, 1.1), tint=0.3, plain=0.35, gloss=0.3)
SCREEN = Material(repeat=(0.3, 1.0), contrast=(0.02, 0.2), tone=(0.02, 0.15), tint=0.05, gloss=0.6)
SHADE = Material(repeat=(0.3, 1.0), contrast=(0.05, 0.4), tone=(0.75, 1.0), tint=0.1, gloss=0.0)
LEGS = 0.45
"""Half the height of a chair, meters: its reference point is this far above its feet."""
ROWS, BOOKS = 4, 3
"""Rows of a bookshelf, and books per row."""


@dataclass(frozen=True)
class Part:
    """One box of each of n pieces.

    Attributes:
        extent: Half sizes, expands to B x n x 3.
        center: Center in the piece's local axes, expands to B x n x 3.
        present: B x n, whether the piece has this part; None for all.
    """

    extent: Tensor
    center: Tensor
    present: Tensor | None = None


def add_boxes(
    assembly: Assembly,
    name: str,
    position: Tensor | MotionPath,
    base: Tensor,
    parts: Sequence[Part],
    alive: Tensor,
    material: Material = WOOD,
    *,
    spin: MotionPath | None = None,
    instance: Tensor | int = 0,
    texture: Tensor | None = None,
) -> None:
    """Add n pieces made of boxes.

    Args:
        assembly: The assembly.
        name: Unique name of the group.
        position: B x n x 3, or a path.
        base: B x n x 3 x 3, rotation of the pieces.
        parts: Boxes of each piece.
        alive: B x n, bool.
        material: Ranges of their material.
        spin: As in `Assembly.add`.
        instance: As in `Assembly.add`.
        texture: As in `Assembly.add`.
    """
    num_parts, shape = len(parts), (assembly.batch, base.shape[1])
    base, alive = base.expand(*shape, 3, 3), alive.expand(shape)
    path = position if isinstance(position, MotionPath) else MotionPath.of(position.expand(*shape, 3))
    assembly.add(
        "box",
        name,
        join_paths([path] * num_parts),
        torch.cat([part.extent.expand(*shape, 3) for part in parts], dim=1),
        material=material,
        spin=None if spin is None else join_paths([spin] * num_parts),
        base=torch.cat([base] * num_parts, dim=1),
        offset=torch.cat([(base @ part.center.expand(*shape, 3)[..., None])[..., 0] for part in parts], dim=1),
        instance=torch.cat([torch.as_tensor(instance).expand(shape)] * num_parts, dim=1),
        alive=torch.cat([alive if part.present is None else alive & part.present for part in parts], dim=1),
        texture=texture,
        parts=num_parts,
    )


def place_at_wall(
    draws: SceneRandom,
    name: str,
    half: Tensor,
    half_width: Tensor | float,
    half_depth: Tensor | float,
    count: int = 1,
    wall: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw n positions in front of walls, for pieces of a half width along and a half depth across the wall, meters.

    `half` is the half size of the room, B x 1 x 3; `wall` is B x n, the index 0 .. 3 of the wall, drawn if None.
    Returns the heading with the back to the wall (B x n) and the center (x, z) (B x n x 2).
    """
    if wall is None:
        wall = draws.integer(f"{name}.wall", 0, 4, (count,))
    x, z = half[..., 0], half[..., 2]
    on_z, sign = wall % 2 == 0, torch.where(wall < 2, 1.0, -1.0).double()
    clearance = (torch.where(on_z, x, z) - half_width).clamp_min(0.0)
    along = draws.uniform(f"{name}.along", -0.95, 0.95, (count,)) * clearance
    position = torch.stack(
        (torch.where(on_z, along, sign * (x - half_depth)), torch.where(on_z, sign * (z - half_depth), along)), dim=-1
    )
    return torch.where(on_z, torch.where(sign > 0, 0.0, math.pi), sign * 0.5 * math.pi), position


def place_on_floor(half: Tensor, position: Tensor) -> Tensor:
    """Lift positions (x, z), B x n x 2, to points on the floor: B x n x 3."""
    return vectors(position[..., 0], half[..., 1], position[..., 1])


def add_chairs(
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
    """Add chairs, all of one design per scene unless `alike` is False.

    Args:
        assembly: The assembly.
        position: Point LEGS above the feet, B x n x 3, or a path.
        base: B x n x 3 x 3, rotation of the chairs.
        alive: B x n, bool.
        name: Unique name of the group.
        alike: Whether all chairs of a scene have the same design.
        scale: B x n; 1 is life size.
        thick: B x n, half the thickness of legs and slats before scaling, meters; drawn if None.
        spin: As in `Assembly.add`.
        instance: As in `Assembly.add`.
    """
    draws, num_designs = assembly.draws, 1 if alike else base.shape[1]
    if thick is None:
        thick = draws.log_uniform(f"{name}.thick", 0.01, 0.025, (num_designs,))
    frame, seat = _chair_parts(draws, name, thick, num_designs)
    factor = torch.as_tensor(scale, dtype=torch.float64)[..., None]
    texture, material = draws.uniform(f"{name}.cover", shape=(num_designs,)), replace(SET, alike=alike)
    for group, parts in (("frame", frame), ("seat", [seat])):
        scaled = [Part(factor * part.extent, factor * part.center, part.present) for part in parts]
        add_boxes(
            assembly, f"{name}.{group}", position, base, scaled, alive, material,
            spin=spin, instance=instance, texture=texture,
        )  # fmt: skip


def _chair_parts(draws: SceneRandom, name: str, thick: Tensor, num_designs: int) -> tuple[list[Part], Part]:
    """Draw four thin legs and a back (a panel, slats, bars or none), and the seat."""
    half_width = draws.uniform(f"{name}.wide", 0.17, 0.26, (num_designs,))
    half_depth = draws.uniform(f"{name}.deep", 0.17, 0.24, (num_designs,))
    seat_height = draws.uniform(f"{name}.seat", 0.4, 0.5, (num_designs,))
    back = draws.choice(f"{name}.back", (0.35, 0.3, 0.25, 0.1), (num_designs,))  # a panel, slats, bars, none
    leg_height = seat_height - 0.01
    back_height = torch.where(back == 3, leg_height, draws.uniform(f"{name}.tall", 0.75, 1.0, (num_designs,)))
    back_rise = (back_height - seat_height).clamp_min(0.1)
    # Different factors avoid coplanar faces.
    leg_x, leg_z, back_half_width = half_width - 1.3 * thick, half_depth - 1.3 * thick, half_width - 1.6 * thick
    parts = [
        Part(vectors(thick, 0.5 * high, thick), vectors(side * leg_x, LEGS - 0.5 * high, end * leg_z))
        for side, end, high in ((-1, -1, leg_height), (1, -1, leg_height), (-1, 1, back_height), (1, 1, back_height))
    ]
    slats = draws.uniform(f"{name}.slat", 0.06, 0.15, (num_designs,)) * back_rise  # half the height of the top slat
    low, high = LEGS - seat_height, LEGS - back_height + 0.005
    top_half_height = torch.where(
        back == 0, draws.uniform(f"{name}.panel", 0.3, 0.5, (num_designs,)) * back_rise, slats
    )
    parts.append(
        Part(
            vectors(back_half_width, top_half_height, 0.6 * thick),
            vectors(0.0, high + top_half_height, leg_z),
            back != 3,
        )
    )
    bars, open_back = (back == 2)[..., None], (back == 1) | (back == 2)
    for number in (1, 2):
        bar = vectors(0.7 * thick, 0.5 * back_rise - 0.01, 0.5 * thick)
        slat = vectors(back_half_width, 0.7 * slats, 0.6 * thick)
        bar_center = vectors((number - 1.5) * back_half_width, low - 0.5 * back_rise, leg_z)
        slat_center = vectors(0.0, high + 0.33 * number * back_rise, leg_z)
        parts.append(Part(torch.where(bars, bar, slat), torch.where(bars, bar_center, slat_center), open_back))
    cushion = draws.uniform(f"{name}.cushion", 0.012, 0.05, (num_designs,))
    return parts, Part(vectors(half_width, cushion, half_depth), vectors(0.0, low + cushion, 0.0))


def add_tables(assembly: Assembly, half: Tensor, alive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Add tables anywhere; return the centers of their tops (B x n x 3), their half sizes, and headings (B x n)."""
    draws, count = assembly.draws, alive.shape[1]
    relative_position = draws.uniform("table.at", -0.6, 0.6, (count, 2))
    heading = draws.uniform("table.heading", 0.0, math.pi, (count,))
    axis_aligned = draws.bernoulli("table.square", 0.5, (count,))  # aligned with the walls
    heading = torch.where(axis_aligned, (heading > 0.5 * math.pi) * 0.5 * math.pi, heading)
    top = vectors(
        draws.uniform("table.wide", 0.3, 0.9, (count,)),
        draws.uniform("table.thick", 0.01, 0.03, (count,)),
        draws.uniform("table.deep", 0.25, 0.55, (count,)),
    )
    low = draws.bernoulli("table.low", 0.3, (count,))
    height = torch.where(low, 0.4, draws.uniform("table.tall", 0.68, 0.82, (count,)))
    leg_half_width = draws.uniform("table.leg", 0.015, 0.04, (count,))
    parts = [Part(top, vectors(0.0, top[..., 1] - height, 0.0))] + [
        Part(
            vectors(leg_half_width, 0.5 * height, leg_half_width),
            vectors(
                side * (top[..., 0] - 1.2 * leg_half_width),
                -0.5 * height + top[..., 1],
                end * (top[..., 2] - 1.2 * leg_half_width),
            ),
        )
        for side in (-1, 1)
        for end in (-1, 1)
    ]
    position = place_on_floor(half, relative_position * half[..., ::2])
    add_boxes(assembly, "table", position, yaw_rotation(heading), parts, alive)
    return position - vectors(0.0, height, 0.0), top, heading


def add_beds(assembly: Assembly, half: Tensor, wall: Tensor, alive: Tensor) -> None:
    """Add a bed with its head at a wall: frame, headboard, mattress, blanket and two pillows."""
    draws = assembly.draws
    half_width = draws.uniform("bed.wide", 0.45, 0.9, (1,))
    half_depth = draws.uniform("bed.deep", 0.95, 1.05, (1,))
    frame_half_height = draws.uniform("bed.high", 0.12, 0.2, (1,))
    heading, position = place_at_wall(draws, "bed", half, half_width, half_depth, wall=wall)
    position, base = place_on_floor(half, position), yaw_rotation(heading)
    board = draws.uniform("bed.board", 0.3, 0.65, (1,))
    mattress_half_height = draws.uniform("bed.soft", 0.07, 0.14, (1,))
    mattress_y = -2 * frame_half_height - mattress_half_height
    frame = [
        Part(vectors(half_width, frame_half_height, half_depth), vectors(0.0, -frame_half_height, 0.0)),
        Part(vectors(half_width + 0.03, board, 0.03), vectors(0.0, -board, half_depth - 0.03)),
    ]
    add_boxes(assembly, "bed.frame", position, base, frame, alive)
    mattress = Part(vectors(half_width - 0.02, mattress_half_height, half_depth), vectors(0, mattress_y, 0))
    add_boxes(assembly, "bed.mattress", position, base, [mattress], alive, LINEN)
    blanket_half_length = draws.uniform("bed.covered", 0.5, 0.75, (1,)) * half_depth
    blanket = Part(
        vectors(half_width + 0.02, mattress_half_height + 0.03, blanket_half_length),
        vectors(0.0, mattress_y, blanket_half_length - half_depth - 0.01),
    )
    add_boxes(assembly, "bed.blanket", position, base, [blanket], alive, COVER)
    pillow = vectors(0.42 * half_width, 0.07, 0.2)
    pillows = [
        Part(pillow, vectors(side * 0.48 * half_width, mattress_y - mattress_half_height - 0.05, half_depth - 0.3))
        for side in (-1, 1)
    ]
    add_boxes(assembly, "bed.pillows", position, base, pillows, alive, LINEN)


def add_sofas(assembly: Assembly, half: Tensor, wall: Tensor, alive: Tensor) -> None:
    """Add armchairs and sofas near walls (B x n): a seat, a back and arms in one fabric."""
    draws, count = assembly.draws, alive.shape[1]
    half_width = draws.uniform("sofa.wide", 0.35, 1.05, (count,))
    heading, position = place_at_wall(draws, "sofa", half, half_width, 0.45, count, wall)
    inward = draws.uniform("sofa.inward", 0.6, 1.0, (count, 1))
    base = yaw_rotation(heading + draws.normal("sofa.turn", 0.0, 0.2, (count,)))
    back, arm = draws.uniform("sofa.back", 0.35, 0.5, (count,)), draws.uniform("sofa.arm", 0.05, 0.12, (count,))
    parts = [
        Part(vectors(half_width, 0.21, 0.38), vectors(0.0, -0.21, 0.0 * half_width)),
        Part(vectors(half_width, back, 0.1), vectors(0.0, -back, 0.32)),
        *(Part(vectors(arm, 0.3, 0.38), vectors(side * (half_width + arm), -0.3, 0.0)) for side in (-1, 1)),
    ]
    add_boxes(assembly, "sofa", place_on_floor(half, position * inward), base, parts, alive, COVER)


def add_shelves(assembly: Assembly, half: Tensor, wall: Tensor, alive: Tensor) -> None:
    """Add a bookshelf at a wall: boards and rows of books of different widths and heights."""
    draws = assembly.draws
    half_width, half_depth = draws.uniform("shelf.wide", 0.35, 0.8, (1,)), draws.uniform("shelf.deep", 0.12, 0.2, (1,))
    half_height = torch.minimum(draws.uniform("shelf.tall", 0.5, 1.1, (1,)), half[..., 1])
    heading, position = place_at_wall(draws, "shelf", half, half_width, half_depth, wall=wall)
    position, base = place_on_floor(half, position), yaw_rotation(heading)
    row_height = (2 * half_height - 0.1) / ROWS
    boards = [
        Part(vectors(0.012, half_height, half_depth), vectors(side * half_width, -half_height, 0.0)) for side in (-1, 1)
    ]
    boards += [Part(vectors(half_width, 0.99 * half_height, 0.008), vectors(0.0, -half_height, half_depth - 0.008))]
    boards += [
        Part(vectors(half_width, 0.012, 0.97 * half_depth), vectors(0.0, -0.08 - number * row_height, 0.0))
        for number in range(ROWS + 1)
    ]
    add_boxes(assembly, "shelf", position, base, boards, alive)
    count = ROWS * BOOKS
    slot_width = 2 * (half_width - 0.02) / BOOKS
    book_width = draws.uniform("book.wide", 0.35, 1.0, (count,))
    book_half_height = 0.5 * row_height * draws.uniform("book.high", 0.45, 0.9, (count,))
    book_x = (torch.arange(count) % BOOKS - 0.5 * (BOOKS - 1)) * slot_width
    book_x = book_x + 0.5 * (1 - book_width) * slot_width * draws.uniform("book.aside", -1.0, 1.0, (count,))
    book_y = -0.092 - torch.arange(count) // BOOKS * row_height - book_half_height
    book_depth = draws.uniform("book.deep", 0.5, 0.9, (count,)) * (half_depth - 0.01)
    books = Part(vectors(0.5 * book_width * slot_width, book_half_height, book_depth), vectors(book_x, book_y, 0.0))
    book_alive = alive & draws.bernoulli("book.is", 0.85, (count,))
    add_boxes(
        assembly, "book", position.expand(-1, count, -1), base.expand(-1, count, -1, -1), [books], book_alive, SPINES
    )


def add_desks(assembly: Assembly, half: Tensor, wall: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
    """Add a desk at a wall with a monitor; return the center of its top, B x 1 x 3, and its heading, B x 1."""
    draws = assembly.draws
    half_width, half_depth = draws.uniform("desk.wide", 0.45, 0.9, (1,)), draws.uniform("desk.deep", 0.28, 0.42, (1,))
    height = draws.uniform("desk.tall", 0.69, 0.78, (1,))
    heading, position = place_at_wall(draws, "desk", half, half_width, half_depth, wall=wall)
    position, base = place_on_floor(half, position), yaw_rotation(heading)
    parts = [Part(vectors(half_width, 0.015, half_depth), vectors(0.0, -height, 0.0))] + [
        Part(vectors(0.015, 0.5 * height, 0.95 * half_depth), vectors(side * (half_width - 0.02), -0.5 * height, 0.0))
        for side in (-1, 1)
    ]
    add_boxes(assembly, "desk", position, base, parts, alive)
    screen_half_width = draws.uniform("screen.wide", 0.18, 0.4, (1,))
    screen_half_height = draws.uniform("screen.tall", 0.12, 0.22, (1,))
    screen_x = draws.uniform("screen.aside", -0.5, 0.5, (1,)) * (half_width - screen_half_width).clamp_min(0)
    foot, top = 0.04 + 0.5 * screen_half_height, -height - 0.015
    screen = [
        Part(
            vectors(screen_half_width, screen_half_height, 0.015),
            vectors(screen_x, top - foot - 0.7 * screen_half_height, 0.3 * half_depth),
        ),
        Part(vectors(0.02, foot, 0.01), vectors(screen_x, top - foot, 0.3 * half_depth + 0.03)),
        Part(vectors(0.1, 0.006, 0.07), vectors(screen_x, top - 0.006, 0.3 * half_depth)),
        Part(vectors(0.2, 0.01, 0.06), vectors(screen_x, top - 0.01, -0.5 * half_depth)),
    ]
    add_boxes(assembly, "screen", position, base, screen, alive & draws.bernoulli("screen.is", 0.85, (1,)), SCREEN)
    return position - vectors(0.0, height + 0.015, 0.0), heading


def add_counters(assembly: Assembly, half: Tensor, wall: Tensor, alive: Tensor) -> Tensor:
    """Add a kitchen counter along a wall with cabinets above; return the center of its top, B x 1 x 3."""
    draws = assembly.draws
    unit_half_width = draws.uniform("counter.each", 0.25, 0.45, (1,))
    half_depth = draws.uniform("counter.deep", 0.28, 0.33, (1,))
    half_height = draws.uniform("counter.tall", 0.42, 0.46, (1,))
    heading, position = place_at_wall(draws, "counter", half, 3 * unit_half_width, half_depth, wall=wall)
    position, base = place_on_floor(half, position), yaw_rotation(heading)
    upper_y = 2 * half_height + draws.uniform("counter.above", 0.45, 0.6, (1,))
    upper_half_height = torch.minimum(draws.uniform("counter.high", 0.25, 0.45, (1,)), half[..., 1] - 0.5 * upper_y)
    fronts = [
        Part(
            vectors(unit_half_width - 0.006, half_height, half_depth),
            vectors(2 * n * unit_half_width, -half_height, 0.0),
        )
        for n in (-1, 0, 1)
    ]
    fronts += [
        Part(
            vectors(unit_half_width - 0.006, upper_half_height, 0.5 * half_depth),
            vectors(2 * n * unit_half_width, -upper_y - upper_half_height, 0.5 * half_depth),
            present,
        )
        for n, present in zip((-1, 0, 1), draws.bernoulli("counter.hangs", 0.85, (3,)).split(1, dim=1), strict=True)
    ]
    add_boxes(assembly, "counter", position, base, fronts, alive)
    top = [Part(vectors(3 * unit_half_width, 0.02, half_depth + 0.02), vectors(0.0, -2 * half_height, -0.02))]
    add_boxes(assembly, "worktop", position, base, top, alive)
    return position - vectors(0.0, 2 * half_height + 0.02, 0.0)


def add_lamps(assembly: Assembly, half: Tensor, alive: Tensor) -> None:
    """Add floor lamps near walls: a foot, a thin pole and a bright shade."""
    draws, count = assembly.draws, alive.shape[1]
    height, shade = draws.uniform("lamp.tall", 1.2, 1.7, (count,)), draws.uniform("lamp.shade", 0.1, 0.22, (count,))
    heading, position = place_at_wall(draws, "lamp", half, 0.3, 0.3, count)
    position = place_on_floor(half, position)
    base = yaw_rotation(heading + draws.uniform("lamp.turn", 0.0, 1.57, (count,)))
    stand = [
        Part(vectors(0.012, 0.5 * height, 0.012), vectors(0.0, -0.5 * height, 0.0)),
        Part(vectors(0.13, 0.012, 0.13), vectors(0.0, -0.012, 0.0 * height)),
    ]
    add_boxes(assembly, "lamp", position, base, stand, alive)
    part = Part(vectors(shade, 0.8 * shade, shade), vectors(0, -height, 0))
    add_boxes(assembly, "shade", position, base, [part], alive, SHADE)


def add_cabinets(assembly: Assembly, half: Tensor, alive: Tensor) -> Tensor:
    """Add chests and wardrobes at walls; return the centers of their tops, B x n x 3."""
    draws, count = assembly.draws, alive.shape[1]
    size = vectors(
        draws.uniform("cabinet.wide", 0.2, 0.8, (count,)),
        draws.log_uniform("cabinet.tall", 0.25, 1.05, (count,)),
        draws.uniform("cabinet.deep", 0.15, 0.35, (count,)),
    )
    heading, position = place_at_wall(draws, "cabinet", half, size[..., 0], size[..., 2], count)
    position = place_on_floor(half, position)
    part = Part(size, vectors(0.0, -size[..., 1], 0.0))
    add_boxes(assembly, "cabinet", position, yaw_rotation(heading), [part], alive)
    return position - vectors(0.0, 2 * size[..., 1], 0.0)
