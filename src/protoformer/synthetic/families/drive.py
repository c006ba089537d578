"""Scenes of a street: seen from a driving car, or recorded by a person who walks, with hand shake."""

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
    ripple_waves,
    sample_atmosphere,
    sample_sensor,
    vectors,
    yaw_rotation,
)
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import Camera, MotionPath, Scenes
from protoformer.synthetic.texture_bank import TextureBank

GROUND = Material(repeat=(3.0, 14.0), contrast=(0.4, 1.0))
STONE = Material(repeat=(1.0, 6.0), contrast=(0.3, 0.9), tone=(0.25, 0.7), tint=0.08, gloss=0.0)
PAINT = Material(repeat=(2.0, 9.0), contrast=(0.05, 0.3), tone=(0.7, 0.95), tint=0.03, gloss=0.0)
WALL = Material(repeat=(1.5, 9.0), contrast=(0.5, 1.1), gloss=0.05)
METAL = Material(repeat=(0.5, 4.0), contrast=(0.2, 0.8), tone=(0.1, 0.8), tint=0.35, gloss=0.6)
DARK = Material(repeat=(0.5, 4.0), contrast=(0.1, 0.4), tone=(0.05, 0.2), tint=0.1, gloss=0.4)
CLOTH = Material(repeat=(0.3, 1.5), contrast=(0.4, 1.1))
BARS = Material(repeat=(0.5, 2.0), contrast=(0.05, 0.4), tone=(0.05, 0.95), alike=True)
PICKETS = 32
"""Number of pickets of a fence."""
FAR = 400.0
"""Half the length of the road, meters."""


def add_ground(assembly: Assembly) -> None:
    """Add a plain to the horizon and hills in front of it."""
    draws, batch = assembly.draws, assembly.batch
    extent = torch.full((batch, 1, 3), 1900.0, dtype=torch.float64)
    assembly.add("rectangle", "ground", torch.zeros(batch, 1, 3), extent, material=GROUND, base=ground_rotation())
    angle = draws.uniform("hill.angle", -0.9, 0.9, (4,))
    distance = draws.uniform("hill.distance", 300.0, 900.0, (4,))
    size = vectors(
        distance * draws.uniform("hill.width", 0.2, 0.6, (4,)),
        distance * draws.uniform("hill.height", 0.03, 0.16, (4,)),
        distance * 0.2,
    )
    position = vectors(distance * angle.sin(), 0.0, distance * angle.cos())
    material = Material(repeat=(60.0, 300.0), contrast=(0.3, 0.8), tone=(0.3, 0.6))
    assembly.add("ball", "hill", position, size, material=material, alive=draws.bernoulli("hill.is", 0.7, (4,)))


def add_road(assembly: Assembly) -> Tensor:
    """Add a road with markings, curbs and sidewalks; return the distance of its outer edge from the center, B x 1."""
    draws = assembly.draws
    half_width = draws.uniform("road.half", 3.5, 8.0, (1,))
    flat = ground_rotation()
    position, extent = vectors(0.0, -0.01, 0.0 * half_width), vectors(half_width, FAR, 1.0)
    assembly.add("rectangle", "road", position, extent, material=STONE, base=flat)
    num_dashes = 12
    gap = draws.uniform("dash.gap", 6.0, 12.0, (1,))
    first = draws.uniform("dash.first", -12.0, 0.0, (1,))
    dash_z = first + gap * torch.arange(num_dashes)
    dash = vectors(draws.uniform("dash.width", 0.06, 0.12, (1,)), draws.uniform("dash.length", 1.0, 2.5, (1,)), 1.0)
    dash_position = vectors(draws.uniform("dash.side", -0.3, 0.3, (1,)) * half_width, -0.02, dash_z)
    alive = draws.bernoulli("dash.is", 0.8, (1,))
    dash = dash.expand(-1, num_dashes, -1)
    assembly.add("rectangle", "dash", dash_position, dash, material=PAINT, base=flat, alive=alive)
    sides = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    line = vectors(torch.full_like(half_width, 0.07).expand(-1, 2), FAR, 1.0)
    position = vectors(sides * (half_width - 0.3), -0.02, 0.0)
    has_lines = draws.bernoulli("line.is", 0.7, (1,))
    assembly.add("rectangle", "line", position, line, material=PAINT, base=flat, alive=has_lines)
    curb = vectors(torch.full_like(half_width, 0.12).expand(-1, 2), 0.09, FAR)
    assembly.add("box", "kerb", vectors(sides * (half_width + 0.12), -0.07, 0.0), curb, material=STONE)
    sidewalk_half_width = draws.uniform("path.half", 0.8, 2.5, (1,))
    extent = vectors((sidewalk_half_width + 0.0 * sides), FAR, 1.0)
    position = vectors(sides * (half_width + 0.24 + sidewalk_half_width), -0.13, 0.0)
    assembly.add("rectangle", "path", position, extent, material=STONE, base=flat)
    return half_width + 0.24 + 2 * sidewalk_half_width


def add_houses(assembly: Assembly, front: Tensor, count: int = 12, probability: float = 0.75) -> None:
    """Add two rows of up to `count` box-shaped houses, with fronts at least `front` meters (B x 1) from the center."""
    draws = assembly.draws
    sides = torch.where(torch.arange(count) % 2 == 0, -1.0, 1.0).double()
    z = draws.uniform("house.start", 4.0, 14.0, (1,)) + (torch.arange(count) // 2) * draws.uniform(
        "house.step", 13.0, 22.0, (1,)
    )
    extent = vectors(
        draws.uniform("house.deep", 3.0, 8.0, (count,)),
        draws.log_uniform("house.high", 1.5, 9.0, (count,)),
        draws.uniform("house.wide", 3.5, 9.0, (count,)),
    )
    setback = draws.uniform("house.back", 0.3, 6.0, (count,))
    center = vectors(sides * (front + setback + extent[..., 0]), -extent[..., 1], z)
    alive = draws.bernoulli("house.is", probability, (count,))
    heading = draws.normal("house.heading", 0.0, 0.05, (count,))
    assembly.add("box", "house", center, extent, material=WALL, base=yaw_rotation(heading), alive=alive)
    # One textured front per house: a door, windows or a sign.
    door = vectors(draws.uniform("door.wide", 0.4, 2.0, (count,)), draws.uniform("door.high", 0.4, 1.3, (count,)), 1.0)
    facing = yaw_rotation(0.5 * math.pi * sides)
    door_position = center - vectors(
        sides * (extent[..., 0] + 0.03), draws.uniform("door.up", -1.0, 0.8, (count,)) * extent[..., 1], 0
    )
    material = Material(repeat=(0.8, 3.0), contrast=(0.6, 1.2))
    assembly.add("rectangle", "door", door_position, door, material=material, base=facing, alive=alive)


def add_fences(assembly: Assembly, side: Tensor) -> None:
    """Add a low wall on one side and on the other a fence: identical pickets on a plinth, under a rail.

    `side` is the distance of their fronts from the center of the street, B x 1, meters.
    """
    draws = assembly.draws
    fence_side = torch.where(draws.bernoulli("fence.left", 0.5, (1,)), -1.0, 1.0)
    inwards = draws.uniform("fence.inwards", 0.0, 1.5, (2,))
    start = draws.uniform("fence.start", -2.0, 10.0, (2,))
    fence_x, wall_x = (side - inwards).split(1, dim=1)
    alive = draws.bernoulli("fence.is", 0.5, (2,))
    wall_half_height = draws.uniform("wall.high", 0.25, 0.8, (1,))
    wall_half_length = draws.log_uniform("wall.long", 3.0, 30.0, (1,))
    position = vectors(-fence_side * wall_x, -wall_half_height, start[:, 1:] + wall_half_length)
    extent = vectors(0.12 + 0.0 * wall_half_height, wall_half_height, wall_half_length)
    assembly.add("box", "wall", position, extent, material=WALL, alive=alive[:, 1:])
    pitch = draws.log_uniform("fence.pitch", 0.12, 0.7, (1,))
    picket_half_width = 0.5 * pitch * draws.uniform("fence.dense", 0.15, 0.6, (1,))
    plinth_half_height = draws.uniform("fence.foot", 0.0, 0.3, (1,))
    picket_half_height = draws.uniform("fence.high", 0.3, 0.8, (1,))
    rail_z, rail_half_length = start[:, :1] + 0.5 * pitch * (PICKETS - 1), 0.5 * pitch * PICKETS
    picket_z = start[:, :1] + pitch * torch.arange(PICKETS)
    size = vectors(0.02 + 0.0 * picket_half_width, picket_half_height, picket_half_width).expand(-1, PICKETS, -1)
    position = vectors(fence_side * fence_x, -2 * plinth_half_height - picket_half_height, picket_z)
    assembly.add("box", "picket", position, size, material=BARS, alive=alive[:, :1])
    rail = vectors(
        fence_side * fence_x,
        torch.stack((-2 * plinth_half_height - 1.9 * picket_half_height, -plinth_half_height), dim=1)[..., 0],
        rail_z,
    )
    rail_half_thickness = torch.cat(
        (draws.uniform("rail.thick", 0.03, 0.08, (1,)), plinth_half_height.clamp_min(0.02)), dim=1
    )
    extent = vectors(0.05 + 0.0 * rail_half_thickness, rail_half_thickness, rail_half_length)
    assembly.add("box", "rail", rail, extent, material=BARS, alive=alive[:, :1])


def add_poles(assembly: Assembly, side: Tensor, count: int = 6) -> None:
    """Add lamp posts and signs at the edge of the sidewalk, `side` meters from the center (B x 1)."""
    draws = assembly.draws
    sides = torch.where(torch.arange(count) % 2 == 0, -1.0, 1.0).double()
    z = draws.uniform("pole.along", 3.0, 60.0, (count,))
    half_height = draws.uniform("pole.high", 1.2, 4.0, (count,))
    half_width = draws.uniform("pole.thick", 0.03, 0.12, (count,))
    base = vectors(sides * (side - 0.3), -half_height, z)
    assembly.add("box", "pole", base, vectors(half_width, half_height, half_width), material=METAL)
    sign = base - vectors(0.0, 0.7 * half_height, 0.15)
    size = vectors(draws.uniform("sign.wide", 0.2, 0.6, (count,)), draws.uniform("sign.high", 0.2, 0.6, (count,)), 1.0)
    alive = draws.bernoulli("sign.is", 0.6, (count,))
    assembly.add("rectangle", "sign", sign, size, material=Material(repeat=(0.5, 1.5)), alive=alive)


def add_trees(assembly: Assembly, side: Tensor, count: int = 8) -> None:
    """Add trees, slightly swaying cutouts on trunks, at least `side` meters from the center (B x 1)."""
    draws = assembly.draws
    sides = torch.where(torch.arange(count) % 2 == 0, -1.0, 1.0).double()
    x = sides * (side + draws.uniform("tree.beyond", 0.0, 8.0, (count,)))
    z = draws.uniform("tree.along", 5.0, 80.0, (count,))
    radius = draws.uniform("tree.radius", 1.0, 3.2, (count,))
    trunk_half_height = draws.uniform("tree.trunk", 0.8, 2.0, (count,))
    alive = draws.bernoulli("tree.is", 0.8, (count,))
    half_width = draws.uniform("tree.thick", 0.06, 0.25, (count,))
    material = Material(repeat=(0.5, 2.0), contrast=(0.3, 0.8), tone=(0.15, 0.4), gloss=0.0)
    position = vectors(x, -trunk_half_height, z)
    assembly.add(
        "box", "trunk", position, vectors(half_width, trunk_half_height, half_width), material=material, alive=alive
    )
    crown = vectors(x, -2 * trunk_half_height - 0.8 * radius, z - 0.02)
    size = vectors(radius, radius * draws.uniform("tree.tall", 0.9, 1.4, (count,)), 1.0)
    waves = draws.uniform("tree.waves", 1.0, 4.0, (count, 2))
    sway = draws.uniform("tree.sway", 0.0, 0.04, (count, 2))
    phase, rate = draws.uniform("tree.phase", 0, 6.28, (count, 2)), draws.uniform("tree.rate", 1.0, 4.0, (count, 2))
    ripple = ripple_waves(sway, waves, phase, rate)
    assembly.add("cutout", "crown", crown, size, material=Material(contrast=(0.7, 1.0)), ripple=ripple, alive=alive)


def add_cars(
    assembly: Assembly, position: MotionPath, heading: Tensor, instance: Tensor, alive: Tensor, name: str = "car"
) -> None:
    """Add cars of three boxes that share a path on the ground, B x n x 3; heading: B x n, radians, 0 is along z."""
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
    for part, extent, offset, material in parts:
        assembly.add(
            "box", f"{name}.{part}", position, extent, material=material, base=base,
            offset=(base @ offset[..., None])[..., 0], instance=instance, alive=alive,
        )  # fmt: skip


def add_people(assembly: Assembly, position: MotionPath, instance: Tensor, alive: Tensor, name: str = "person") -> None:
    """Add people, each with a trunk, legs and a head, on a path on the ground (B x n x 3)."""
    draws, count = assembly.draws, instance.shape[-1]
    height_scale = draws.uniform(f"{name}.tall", 0.75, 1.1, (count,))
    parts = (
        ("legs", vectors(0.17 * height_scale, 0.45 * height_scale, 0.14 * height_scale), -0.43),
        ("trunk", vectors(0.25 * height_scale, 0.37 * height_scale, 0.17 * height_scale), -1.12),
        ("head", vectors(0.11 * height_scale, 0.14 * height_scale, 0.12 * height_scale), -1.6),
    )
    for part, extent, height in parts:
        offset = vectors(0.0, height * height_scale, 0.0)
        assembly.add(
            "ball", f"{name}.{part}", position, extent, material=CLOTH, offset=offset, instance=instance, alive=alive
        )


def sample_walk(assembly: Assembly, name: str, start: Tensor, max_speed: float = 1.8) -> MotionPath:
    """Draw walking paths over the ground from start positions (B x n x 3), with the bounce of steps."""
    draws, count = assembly.draws, start.shape[1]
    heading = draws.uniform(f"{name}.heading", 0.0, 2 * math.pi, (count,))
    speed = draws.uniform(f"{name}.speed", 0.0, max_speed, (count,))
    velocity = vectors(speed * heading.cos(), 0.0, speed * heading.sin())
    bounce = vectors(0.0, 0.03 * (speed > 0.3), 0.0)[..., None]
    step = draws.uniform(f"{name}.step", 1.6, 2.2, (count, 1, 1))
    return MotionPath.of(start, velocity).with_waves(
        bounce, step, draws.uniform(f"{name}.foot", 0.0, 6.28, (count, 1, 1))
    )


def camera_rotation(pitch: Tensor, yaw: Tensor) -> Tensor:
    """Return rotations of a camera that looks along z, pitched up and yawed right by angles: B to B x 3 x 3."""
    zero = torch.zeros_like(yaw)
    return rotation(torch.stack((zero, yaw, zero), -1)) @ rotation(torch.stack((pitch, zero, zero), -1))


DRIVE_FPS = 10.0
"""Frames per second."""
FOCAL = 721.5 / 1242
"""Focal length of KITTI's cameras relative to the image width."""
CARS, DRIVE_PEOPLE = 7, 3
"""Maximum number of cars and of people."""


def build_drive(draws: SceneRandom, size: tuple[int, int], bank: TextureBank, shake: float = 0.0) -> Scenes:
    """Build scenes of a street with traffic, seen from a driving car."""
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    add_ground(assembly)
    front = add_road(assembly)
    add_houses(assembly, front)
    add_fences(assembly, front)
    add_poles(assembly, front)
    add_trees(assembly, front)
    _add_traffic(assembly, front)
    add_sky(assembly)
    return Scenes(
        primitives=assembly.primitives(),
        camera=_sample_car_camera(draws, size, shake),
        atmosphere=sample_atmosphere(draws, foggy=0.4),
        sensor=sample_sensor(draws, focus=(8.0, 40.0)),
        size=size,
        fps=DRIVE_FPS,
    )


def _add_traffic(assembly: Assembly, front: Tensor) -> None:
    """Add oncoming, leading and parked cars, and people on the sidewalks."""
    draws = assembly.draws
    car_kind = draws.choice("car.sort", (0.4, 0.3, 0.3), (CARS,))  # oncoming, leading, parked
    side = torch.where(
        car_kind == 0,
        -1.0,
        torch.where(car_kind == 1, 1.0, torch.where(draws.bernoulli("car.left", 0.5, (CARS,)), -1.0, 1.0)),
    )
    edge = front - draws.uniform("car.edge", 3.0, 4.0, (CARS,))
    lane = torch.where(car_kind == 2, edge, draws.uniform("car.lane", 1.3, 2.2, (CARS,)))
    z = (
        draws.uniform("car.first", 9.0, 18.0, (1,))
        + 9.0 * torch.arange(CARS)
        + draws.uniform("car.gap", 0.0, 5.0, (CARS,))
    )
    speed = draws.uniform("car.speed", 2.0, 25.0, (CARS,)) * torch.where(car_kind == 2, 0.0, side)
    position = vectors(side * lane, 0.0, z)
    velocity = vectors(draws.normal("car.drift", 0.0, 0.15, (CARS,)), 0.0, speed)
    heading = torch.where(speed < 0, torch.pi, 0.0) + draws.normal("car.heading", 0.0, 0.03, (CARS,))
    alive = draws.bernoulli("car.is", 0.7, (CARS,))
    add_cars(assembly, MotionPath.of(position, velocity), heading, torch.arange(1, 1 + CARS), alive)
    edge_distance = draws.uniform("person.beside", 0.3, 3.0, (DRIVE_PEOPLE,))
    person_side = torch.where(draws.bernoulli("person.left", 0.5, (DRIVE_PEOPLE,)), -1.0, 1.0)
    start = vectors(
        person_side * (front - edge_distance), 0.0, draws.uniform("person.along", 5.0, 40.0, (DRIVE_PEOPLE,))
    )
    instance = torch.arange(1 + CARS, 1 + CARS + DRIVE_PEOPLE)
    add_people(
        assembly, sample_walk(assembly, "person", start), instance, draws.bernoulli("person.is", 0.7, (DRIVE_PEOPLE,))
    )


def _sample_car_camera(draws: SceneRandom, size: tuple[int, int], shake: float) -> Camera:
    speed = draws.uniform("ego.speed", 4.0, 26.0) * draws.bernoulli("ego.moves", 0.93)
    yaw = draws.normal("ego.yaw", 0.0, 0.04).clamp(-0.15, 0.15)
    turn_rate = draws.normal("ego.bend", 0.0, 0.10) * (speed > 0)  # radians per second
    start = vectors(draws.uniform("ego.lane", 0.3, 2.4), -draws.uniform("ego.height", 1.3, 1.9), 0.0)
    # The car swerves and returns: the heading is a sine wave, and the lateral offset is its integral.
    swerve_frequency = draws.uniform("ego.swerve", 0.15, 0.3)
    yaw_amplitude = turn_rate / (2 * math.pi * swerve_frequency)
    lateral_amplitude = speed * yaw_amplitude / (2 * math.pi * swerve_frequency)
    zero, quarter_turn = torch.zeros_like(yaw), torch.full((1, 1), -math.pi / 2, dtype=torch.float64)
    roughness = (speed / 20.0)[:, None, None]
    bounce = roughness * draws.normal("ego.bounce", 0.0, 0.006, (3, 3)) * torch.tensor([[1.0], [0.2], [0.6]])
    heave = roughness * draws.normal("ego.heave", 0.0, 0.015, (3, 3)) * torch.tensor([[0.2], [1.0], [0.0]])
    frequency = draws.uniform("ego.rates", 0.6, 2.5, (3, 3))
    phase = draws.uniform("ego.phase", 0.0, 6.28, (3, 3))
    return build_camera(
        draws,
        size,
        focal=FOCAL * size[1] * draws.log_uniform("ego.focal", 0.9, 1.15, (1,)),
        position=MotionPath.of(start + vectors(lateral_amplitude, zero, zero), vectors(zero, zero, speed))
        .with_waves(heave, frequency, phase)
        .with_waves(vectors(lateral_amplitude, zero, zero)[..., None], swerve_frequency[:, None, None], quarter_turn),
        turn=MotionPath.of(vectors(zero, yaw, zero))
        .with_waves(bounce, frequency, phase + 0.7)
        .with_waves(vectors(zero, yaw_amplitude, zero)[..., None], swerve_frequency[:, None, None], 0.0 * quarter_turn),
        base=camera_rotation(draws.normal("ego.pitch", 0.0, 0.02), zero),
        shake=shake,
        horizon=0.47,
    )


HANDHELD_FPS = 30.0
"""Frames per second."""
HANDHELD_PEOPLE = 5
"""Maximum number of people."""


def build_handheld(draws: SceneRandom, size: tuple[int, int], bank: TextureBank, shake: float = 1.0) -> Scenes:
    """Build scenes of a street with people, recorded by a person who stands, turns or walks. shake: strength."""
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    add_ground(assembly)
    front = add_road(assembly)
    add_houses(assembly, front, probability=0.8)
    add_poles(assembly, front)
    add_trees(assembly, front - 1.5)
    x = draws.uniform("walker.at", -1.0, 1.0, (HANDHELD_PEOPLE,)) * front
    start = vectors(x, 0.0, draws.uniform("walker.along", 4.0, 20.0, (HANDHELD_PEOPLE,)))
    alive = draws.bernoulli("walker.is", 0.6, (HANDHELD_PEOPLE,))
    add_people(assembly, sample_walk(assembly, "walker", start), torch.arange(1, 1 + HANDHELD_PEOPLE), alive)
    add_sky(assembly)
    return Scenes(
        primitives=assembly.primitives(),
        camera=_sample_handheld_camera(draws, size, front, shake),
        atmosphere=sample_atmosphere(draws),
        sensor=sample_sensor(draws, focus=(4.0, 20.0)),
        size=size,
        fps=HANDHELD_FPS,
    )


def _sample_handheld_camera(draws: SceneRandom, size: tuple[int, int], front: Tensor, shake: float) -> Camera:
    pace = draws.uniform("walk.pace", 0.0, 1.6) * draws.bernoulli("walk.is", 0.6)
    heading = draws.normal("walk.heading", 0.0, 0.4)
    yaw = heading + draws.normal("walk.gaze", 0.0, 0.4)
    start = vectors(draws.uniform("walk.aside", -0.6, 0.6) * front[:, 0], -draws.uniform("walk.height", 1.3, 1.8), 0.0)
    velocity = vectors(pace * heading.sin(), 0.0, pace * heading.cos())
    gaze_frequency = draws.uniform("walk.slow", 0.03, 0.15, (3, 1))
    gaze = draws.normal("walk.look", 0.0, 0.25, (3, 1)) * torch.tensor([[0.3], [1.0], [0.05]])
    phase = draws.uniform("walk.phase", 0.0, 2 * math.pi, (3, 1))
    return build_camera(
        draws,
        size,
        focal=size[1] * draws.uniform("camera.focal", 0.7, 1.2, (1,)),
        position=MotionPath.of(start, velocity),
        turn=MotionPath.of(torch.zeros(len(draws), 3)).with_waves(gaze, gaze_frequency, phase),
        base=camera_rotation(draws.normal("walk.pitch", 0.0, 0.08), yaw),
        shake=shake,
    )
