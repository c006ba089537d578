"""Scenes of a furnished room seen from the inside: a bedroom, kitchen, office, living room or hall."""

import math

import torch
from torch import Tensor

from protoformer.geometry.warps import rotation
from protoformer.synthetic.assembly import (
    Assembly,
    Material,
    add_sky,
    build_camera,
    ground_rotation,
    remove_near,
    sample_atmosphere,
    sample_sensor,
    vectors,
    yaw_rotation,
)
from protoformer.synthetic.families.drive import add_people, camera_rotation, sample_walk
from protoformer.synthetic.families.furniture import (
    COVER,
    LEGS,
    LINEN,
    Part,
    add_beds,
    add_boxes,
    add_cabinets,
    add_chairs,
    add_counters,
    add_desks,
    add_lamps,
    add_shelves,
    add_sofas,
    add_tables,
    place_at_wall,
    place_on_floor,
)
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import Camera, MotionPath, Scenes
from protoformer.synthetic.texture_bank import TextureBank

FPS = 30.0
"""Frames per second."""
FOCAL = 518.9 / 640
"""Focal length of a Kinect relative to the image width."""
NEAREST = 0.7
"""Minimum distance from the camera to furniture, meters; a Kinect measures little below it."""
WALLS = Material(repeat=(0.8, 6.0), contrast=(0.1, 0.9), plain=0.65, bare=(0.45, 1.1), tint=0.1, gloss=0.0)
CEILING = Material(repeat=(1.0, 4.0), contrast=(0.05, 0.3), tone=(0.65, 0.95), tint=0.05, gloss=0.0)
FLOOR = Material(repeat=(0.4, 3.0), contrast=(0.2, 1.1), tone=(0.15, 0.65), plain=0.25, bare=(0.06, 0.65))
RUG = Material(repeat=(0.3, 2.0), contrast=(0.5, 1.1), plain=0.2)
PICTURE = Material(repeat=(0.4, 1.6), contrast=(0.8, 1.4), plain=0.15)
PANE = Material(repeat=(0.8, 3.0), contrast=(0.2, 0.8), tone=(0.7, 1.1), tint=0.05, gloss=0.0)
SMALL_OBJECTS = Material(repeat=(0.15, 1.2), contrast=(0.6, 1.4), plain=0.3)
PIECES = ("bed", "counter", "desk", "shelf", "sofa", "table", "chair", "lamp", "cabinet")
KINDS = {
    "bedroom": (0.95, 0.0, 0.4, 0.5, 0.2, 0.2, 0.3, 0.6, 0.8),
    "kitchen": (0.0, 0.95, 0.0, 0.3, 0.1, 0.6, 0.7, 0.1, 0.8),
    "office": (0.0, 0.1, 0.95, 0.8, 0.2, 0.5, 0.8, 0.2, 0.8),
    "living room": (0.05, 0.1, 0.2, 0.6, 0.9, 0.8, 0.4, 0.6, 0.7),
    "hall": (0.0, 0.25, 0.3, 0.7, 0.5, 0.95, 0.9, 0.1, 0.9),
}
"""Probability of each of `PIECES` in each kind of room."""
CHAIRS, TABLES = 4, 2
"""Maximum number of chairs and of tables."""


def build_room(draws: SceneRandom, size: tuple[int, int], bank: TextureBank, shake: float = 0.0) -> Scenes:
    """Build indoor scenes: walls, furniture, small objects and sometimes a person."""
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    half = _sample_half_size(draws)
    add_walls(assembly, half)
    add_openings(assembly, half)
    view_targets, target_exists = add_furniture(assembly, half)
    _add_moving_objects(assembly, half)
    add_sky(assembly)
    camera = _sample_camera(draws, size, half, view_targets, target_exists, shake)
    return Scenes(
        primitives=remove_near(assembly.primitives(), camera.position.at(torch.zeros(len(draws))), NEAREST),
        camera=camera,
        atmosphere=sample_atmosphere(draws, foggy=0.0),
        sensor=sample_sensor(draws, focus=(1.0, 5.0)),
        size=size,
        fps=FPS,
    )


def _sample_half_size(draws: SceneRandom) -> Tensor:
    """Draw half sizes of rooms, B x 1 x 3: most are 3.2 to 8.4 meters long, some up to 10 by 7."""
    large = draws.bernoulli("room.large", 0.2, (1,))
    length = torch.where(
        large, draws.uniform("room.hall", 3.5, 5.0, (1,)), draws.log_uniform("room.long", 1.6, 4.2, (1,))
    )
    width = (length * draws.uniform("room.narrow", 0.65, 1.0, (1,))).clamp(1.4, 3.5)
    along_x = draws.bernoulli("room.turned", 0.5, (1,))
    return vectors(
        torch.where(along_x, length, width),
        draws.uniform("room.y", 1.15, 1.6, (1,)),
        torch.where(along_x, width, length),
    )


def add_walls(assembly: Assembly, half: Tensor) -> None:
    """Add the shell, floor, ceiling, a rug and wall decorations. half: B x 1 x 3, centered at the origin."""
    draws = assembly.draws
    x, y, z = half.unbind(-1)
    assembly.add("room", "shell", torch.zeros_like(half), half, material=WALLS)
    # The shell is emissive and unshaded; the walls in front of it are shaded, so that their corners are visible.
    side, end = torch.tensor([1.0, -1.0, 0.0, 0.0]).double(), torch.tensor([0.0, 0.0, 1.0, -1.0]).double()
    position = vectors(side * (x - 0.005), 0.0, end * (z - 0.005))
    wall_extent = vectors(torch.cat((z, z, x, x), dim=1), y, 1.0)
    base = yaw_rotation(0.5 * math.pi * side.abs())
    assembly.add("rectangle", "walls", position, wall_extent, material=WALLS, base=base, casts=False, parts=4)
    floor_extent = vectors(x, z, 1.0)
    flat = ground_rotation()
    for name, height, material in (("floor", y - 0.005, FLOOR), ("ceiling", 0.005 - y, CEILING)):
        position = vectors(0.0, height, 0.0 * x)
        assembly.add("rectangle", name, position, floor_extent, material=material, base=flat, casts=False)
    rug_extent = vectors(draws.uniform("rug.x", 0.5, 1.5, (1,)), draws.uniform("rug.z", 0.5, 1.5, (1,)), 1.0)
    position = vectors(draws.normal("rug.at.x", 0.0, 0.4, (1,)), y - 0.01, draws.normal("rug.at.z", 0.0, 0.4, (1,)))
    base = yaw_rotation(draws.uniform("rug.heading", 0.0, 3.14, (1,))) @ flat
    alive = draws.bernoulli("rug.is", 0.5, (1,))
    assembly.add("rectangle", "rug", position, rug_extent, material=RUG, base=base, alive=alive)
    count = 5
    picture_extent = vectors(
        draws.log_uniform("picture.wide", 0.12, 0.7, (count,)),
        draws.log_uniform("picture.tall", 0.12, 0.6, (count,)),
        1.0,
    )
    heading, wall_position = place_at_wall(draws, "picture", half, picture_extent[..., 0], 0.02, count)
    position = vectors(wall_position[..., 0], draws.uniform("picture.high", -0.6, 0.2, (count,)), wall_position[..., 1])
    alive = draws.bernoulli("picture.is", 0.7, (count,))
    assembly.add(
        "rectangle", "picture", position, picture_extent, material=PICTURE, base=yaw_rotation(heading), alive=alive
    )


def add_openings(assembly: Assembly, half: Tensor) -> None:
    """Add a door with its frame, and a window with a sill, a bar and curtains."""
    draws = assembly.draws
    half_width, half_height = draws.uniform("door.wide", 0.36, 0.48, (1,)), draws.uniform("door.tall", 0.98, 1.06, (1,))
    heading, position = place_at_wall(draws, "door", half, half_width + 0.08, 0.03)
    position, base, alive = place_on_floor(half, position), yaw_rotation(heading), draws.bernoulli("door.is", 0.7, (1,))
    frame = [
        Part(vectors(0.04, half_height, 0.03), vectors(side * (half_width + 0.04), -half_height, 0.0))
        for side in (-1, 1)
    ]
    frame.append(Part(vectors(half_width + 0.08, 0.04, 0.03), vectors(0.0, -2 * half_height - 0.04, 0.0)))
    add_boxes(assembly, "door.frame", position, base, frame, alive, LINEN)
    door = Part(vectors(half_width, half_height, 0.012), vectors(0.0, -half_height, 0.015))
    add_boxes(assembly, "door", position, base, [door], alive)

    half_width = draws.uniform("window.wide", 0.3, 0.9, (1,))
    half_height = draws.uniform("window.tall", 0.35, 0.65, (1,))
    heading, position = place_at_wall(draws, "window", half, half_width + 0.2, 0.05)
    position = vectors(position[..., 0], draws.uniform("window.high", -0.5, -0.1, (1,)), position[..., 1])
    base, alive = yaw_rotation(heading), draws.bernoulli("window.is", 0.7, (1,))
    pane_position = position + (base @ torch.tensor([0.0, 0.0, 0.025], dtype=torch.float64)[:, None])[..., 0]
    assembly.add(
        "rectangle", "pane", pane_position, vectors(half_width, half_height, 1.0), material=PANE, base=base, alive=alive
    )
    frame = [Part(vectors(half_width + 0.05, 0.04, 0.04), vectors(0.0, up * half_height, 0.0)) for up in (-1, 1)] + [
        Part(vectors(0.03, half_height, 0.035), vectors(side_x * half_width, 0.0, 0.0)) for side_x in (-1, 0, 1)
    ]
    add_boxes(assembly, "window", position, base, frame, alive, LINEN)
    curtain_half_width = draws.uniform("curtain.wide", 0.08, 0.35, (1,))
    curtain_half_height = draws.uniform("curtain.long", 1.1, 2.0, (1,)) * half_height
    curtains = [
        Part(
            vectors(curtain_half_width, curtain_half_height, 0.04),
            vectors(side_x * (half_width + 0.1), curtain_half_height - 1.15 * half_height, -0.05),
        )
        for side_x in (-1, 1)
    ]
    add_boxes(assembly, "curtain", position, base, curtains, alive & draws.bernoulli("curtain.is", 0.5, (1,)), COVER)


def add_furniture(assembly: Assembly, half: Tensor) -> tuple[Tensor, Tensor]:
    """Add the furniture of a random kind of room, most large pieces at different walls, and objects on top of it.

    Returns:
        Points of interest for the camera, (x, z), B x n x 2, and whether there is an object, B x n, bool.
    """
    draws = assembly.draws
    probabilities = torch.tensor(list(KINDS.values()), dtype=torch.float64)
    piece_probability = probabilities[draws.choice("room.kind", (1.0,) * len(KINDS))]

    def draw_presence(piece: str, count: int = 1) -> Tensor:
        return draws.bernoulli(f"{piece}.is", piece_probability[:, PIECES.index(piece), None], (count,))

    first, second, third, fourth = draws.permutation("room.walls", 4).split(1, dim=1)
    add_beds(assembly, half, first, draw_presence("bed"))
    add_shelves(assembly, half, second, draw_presence("shelf"))
    has_desk = draw_presence("desk")
    desk, desk_heading = add_desks(assembly, half, third, has_desk)
    has_counter = draw_presence("counter")
    counter = add_counters(assembly, half, fourth, has_counter)
    add_sofas(assembly, half, torch.cat((first, fourth), dim=1), draw_presence("sofa", 2))
    has_table = draw_presence("table", TABLES)
    table, top, heading = add_tables(assembly, half, has_table)
    add_lamps(assembly, half, draw_presence("lamp", 2))
    has_cabinet = draw_presence("cabinet", 3)
    cabinet = add_cabinets(assembly, half, has_cabinet)
    tops = torch.cat((cabinet, table, desk, counter), dim=1)
    tops_alive = torch.cat((has_cabinet, has_table, has_desk, has_counter), dim=1)
    _add_small_objects(assembly, half, tops, tops_alive)
    position, chair_heading = _place_chairs(draws, half, (table, top, heading), (desk, desk_heading))
    base = yaw_rotation(chair_heading + draws.normal("chair.turn", 0.0, 0.3, (CHAIRS,)))
    has_chair = draw_presence("chair", CHAIRS)
    add_chairs(assembly, vectors(position[..., 0], half[..., 1] - LEGS, position[..., 2]), base, has_chair)
    view_targets = torch.cat((tops, position), dim=1)[..., ::2]
    target_exists = torch.cat((tops_alive, has_chair), dim=1)
    heading, wall = place_at_wall(draws, "plant", half, 0.3, 0.35)
    plant_half_height = draws.uniform("plant.tall", 0.3, 0.7, (1,))
    position = vectors(wall[..., 0], half[..., 1] - plant_half_height, wall[..., 1])
    size, has_plant = vectors(0.8 * plant_half_height, plant_half_height, 1.0), draws.bernoulli("plant.is", 0.5, (1,))
    assembly.add("cutout", "plant", position, size, material=SMALL_OBJECTS, base=yaw_rotation(heading), alive=has_plant)
    return view_targets, target_exists


def _place_chairs(
    draws: SceneRandom, half: Tensor, tables: tuple[Tensor, Tensor, Tensor], desk: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return positions, B x CHAIRS x 3, and headings of chairs: the last is at the desk, the others at tables."""
    (table, top, heading), (at_desk, desk_heading) = tables, desk
    table_index = torch.arange(CHAIRS - 1) % TABLES
    side = draws.integer("chair.side", 0, 4, (CHAIRS - 1,))
    table_half_size = torch.where(side % 2 == 0, top[:, table_index, 2], top[:, table_index, 0])
    chair_heading = torch.cat((heading[:, table_index] + 0.5 * math.pi * side, desk_heading + math.pi), dim=1)
    distance = torch.cat((table_half_size, torch.full_like(desk_heading, 0.35)), dim=1)
    distance = distance + draws.uniform("chair.away", -0.05, 0.45, (CHAIRS,))
    anchor = torch.cat((table[:, table_index], at_desk), dim=1)
    position = anchor + distance[..., None] * vectors(chair_heading.sin(), 0.0, chair_heading.cos())
    limit = half - vectors(0.25, 0.0, 0.25)
    return torch.minimum(torch.maximum(position, -limit), limit), chair_heading


def _add_small_objects(assembly: Assembly, half: Tensor, tops: Tensor, alive: Tensor) -> None:
    """Add a box and a ball on each top, B x n x 3; they belong to the body below and are removed with it."""
    draws, count = assembly.draws, tops.shape[1]
    floor_position = place_on_floor(half, tops[..., ::2])
    for kind in ("box", "ball"):
        size = draws.log_uniform(f"{kind}.size", 0.03, 0.18, (count, 3))
        offset_xz = draws.uniform(f"{kind}.aside", -0.2, 0.2, (count, 2))
        offset = tops - floor_position + vectors(offset_xz[..., 0], -size[..., 1], offset_xz[..., 1])
        present = alive & draws.bernoulli(f"{kind}.is", 0.7, (count,))
        base = yaw_rotation(draws.uniform(f"{kind}.heading", 0.0, 3.14, (count,)))
        assembly.add(
            kind, f"small {kind}", floor_position, size, material=SMALL_OBJECTS, base=base, offset=offset, alive=present
        )


def _add_moving_objects(assembly: Assembly, half: Tensor) -> None:
    """Add, sometimes, walking people and flying objects."""
    draws = assembly.draws
    position = draws.uniform("walker.at", -0.7, 0.7, (2, 2))
    start = vectors(position[..., 0] * half[..., 0], half[..., 1], position[..., 1] * half[..., 2])
    walkers = draws.bernoulli("walker.is", 0.2, (2,))
    add_people(assembly, sample_walk(assembly, "walker", start, 1.2), torch.tensor([1, 2]), walkers, "walker")
    count = 3
    position = draws.uniform("toy.at", -0.6, 0.6, (count, 3)) * half
    speed = draws.log_uniform("toy.speed", 0.05, 3.0, (count, 1)) * draws.unit_vector("toy.way", (count,))
    spin = MotionPath.of(torch.zeros_like(position), draws.normal("toy.spin", 0.0, 2.0, (count, 3)))
    size = draws.log_uniform("toy.size", 0.05, 0.25, (count, 3))
    alive = draws.bernoulli("toy.is", 0.35, (count,))
    instance = torch.arange(3, 3 + count)
    assembly.add(
        "ball",
        "toy",
        MotionPath.of(position, speed),
        size,
        material=SMALL_OBJECTS,
        spin=spin,
        instance=instance,
        alive=alive,
    )


def _sample_camera(
    draws: SceneRandom, size: tuple[int, int], half: Tensor, view_targets: Tensor, target_exists: Tensor, shake: float
) -> Camera:
    """Build a camera at eye height near a wall that looks across the room, mostly at an object, and moves by hand.

    `half` is the half size of the room, B x 1 x 3; `view_targets`, B x n x 2, and `target_exists`, B x n, are those of
    `add_furniture`.
    """
    x, y, z = half[:, 0].unbind(-1)
    side = draws.uniform("camera.side", -math.pi, math.pi)
    radius = draws.uniform("camera.out", 0.55, 0.85)
    start = vectors(radius * x * side.sin(), y - draws.uniform("camera.height", 0.8, 1.7), -radius * z * side.cos())
    aim = draws.uniform("camera.aim", -0.45, 0.45, (2,)) * torch.stack((x, z), dim=-1)
    distance = (view_targets - start[:, None, ::2]).norm(dim=-1)
    eligible = target_exists & (distance > 1.2) & draws.bernoulli("camera.looks", 0.9, (1,))
    selected = (eligible * draws.uniform("camera.luck", 0.1, 1.0, (target_exists.shape[1],))).argmax(dim=1)
    target = view_targets[torch.arange(len(draws)), selected] + draws.normal("camera.past", 0.0, 0.4, (2,))
    aim = torch.where(eligible.any(dim=1, keepdim=True), target, aim)
    yaw = torch.atan2(aim[:, 0] - start[:, 0], aim[:, 1] - start[:, 2])
    pitch = -draws.normal("camera.pitch", 0.25, 0.15).clamp(-0.3, 0.6)
    zero, roll = torch.zeros_like(yaw), draws.normal("camera.roll", 0.0, 0.04)
    velocity = (
        draws.log_uniform("camera.pace", 0.05, 1.5, (1,)) * draws.unit_vector("camera.way") * vectors(1.0, 0.3, 1.0)
    )
    angular_velocity = draws.normal("camera.sweep", 0.0, 1.0, (3,)) * draws.log_uniform("camera.pan", 0.04, 1.2, (1,))
    frequency = draws.uniform("camera.slow", 0.15, 0.5, (3, 1))
    phase = torch.zeros(1, 1, dtype=torch.float64)
    turn = (angular_velocity * vectors(0.5, 1.0, 0.3))[..., None] / (2 * math.pi * frequency)
    zero_vector = torch.zeros_like(start)
    return build_camera(
        draws,
        size,
        focal=FOCAL * size[1] * draws.log_uniform("camera.focal", 0.9, 1.1, (1,)),
        position=MotionPath.of(start).with_waves(velocity[..., None] / (2 * math.pi * frequency), frequency, phase),
        turn=MotionPath.of(zero_vector).with_waves(turn, frequency, phase),
        base=camera_rotation(pitch, yaw) @ rotation(torch.stack((zero, zero, roll), dim=-1)),
        shake=shake,
    )
