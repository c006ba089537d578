"""Scenes of many flying objects, each on its own path: motion of any magnitude in any direction."""

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
from protoformer.synthetic.families.furniture import LEGS, add_chairs
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import Camera, MotionPath, Scenes
from protoformer.synthetic.texture_bank import TextureBank

FPS = 24.0
"""Frames per second."""
MIN_SPEED, MAX_SPEED = 0.1, 400.0
"""Image speed of the objects, pixels per frame."""
MAX_STEP, MAX_PAN = 0.4, 0.06
"""Maximum motion per frame of objects, relative to the longer side, and of the camera pan, relative to the width.

In a small image faster objects would have left the view in the next frame, which gives no training signal.
"""
OBJECTS = {"blob": 6, "cutout": 5, "rectangle": 3, "box": 3, "ball": 3}
"""Number of objects of each kind."""
CHAIRS = 3
"""Number of chairs."""
LEG_WIDTH = (2 / 352, 6 / 352)
"""Leg width of flying chairs relative to the shorter side, (min, max)."""


def build_objects(draws: SceneRandom, size: tuple[int, int], bank: TextureBank, shake: float = 0.0) -> Scenes:
    """Build scenes of flying objects in front of a wall, in a hall, or over a plain."""
    focal = size[1] * draws.uniform("focal", 0.7, 1.5)
    assembly = Assembly(draws, bank.surfaces, bank.cutouts)
    _add_background(assembly)
    max_speed = min(MAX_SPEED, MAX_STEP * max(size))
    max_objects = sum(OBJECTS.values()) + CHAIRS
    alive = draws.permutation("rank", max_objects) < draws.integer("present", 12, 1 + max_objects)[:, None]
    first = 0
    for kind, count in OBJECTS.items():
        name = f"flying.{kind}"
        start, pixel_size = _sample_start(draws, name, size, focal, count)
        radius = draws.log_uniform(f"{name}.radius", 0.05, 0.45, (count, 1)) * min(size) * pixel_size[..., None]
        slim = draws.log_uniform(f"{name}.slim", 0.3, 1.0, (count, 3))
        thin = torch.where(draws.bernoulli(f"{name}.thin", 0.15, (count,)), 0.12, 1.0)  # sticks and wires
        extent = radius * slim * vectors(thin, 1.0, 1.0)
        instance = torch.arange(first + 1, first + 1 + count)
        assembly.add(
            kind,
            name,
            _sample_orbit(draws, name, start, pixel_size, max_speed, max(size)),
            extent,
            material=Material(repeat=(0.3, 4.0), plain=0.2),
            base=rotation(_sample_tilt(draws, name, kind, count)),
            spin=_sample_spin(draws, name, kind, count),
            stretch=_sample_stretch(draws, name, count),
            ripple=_sample_ripple(draws, name, count) if kind in ("blob", "cutout") else None,
            instance=instance,
            alive=alive[:, first : first + count],
        )
        first += count
    _add_chairs(assembly, size, focal, torch.arange(first + 1, max_objects + 1), alive[:, first:])
    add_sky(assembly)
    return Scenes(
        primitives=assembly.primitives(),
        camera=_sample_camera(draws, size, focal, shake),
        atmosphere=sample_atmosphere(draws),
        sensor=sample_sensor(draws),
        size=size,
        fps=FPS,
    )


def _sample_start(
    draws: SceneRandom, name: str, size: tuple[int, int], focal: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Draw positions anywhere in the view, B x n x 3, and return them with the size of a pixel there, meters, B x n."""
    height, width = size
    depth = draws.log_uniform(f"{name}.depth", 2.0, 25.0, (count,))
    pixel_size = depth / focal[:, None]
    pixel = draws.uniform(f"{name}.spot", -0.55, 0.55, (count, 2)) * torch.tensor([width, height])
    return vectors(pixel[..., 0] * pixel_size, pixel[..., 1] * pixel_size, depth), pixel_size


def _add_chairs(assembly: Assembly, size: tuple[int, int], focal: Tensor, instance: Tensor, alive: Tensor) -> None:
    """Add roughly upright chairs seen from any side; the background is visible between their thin parts."""
    draws, name, count = assembly.draws, "flying.chair", len(instance)
    start, pixel_size = _sample_start(draws, name, size, focal, count)
    image_side = min(size) * pixel_size
    scale = draws.log_uniform(f"{name}.radius", 0.12, 0.4, (count,)) * image_side / LEGS
    lean = draws.normal(f"{name}.lean", 0.0, 0.4, (count, 2))
    tilt = rotation(vectors(lean[..., 0], 0.0, lean[..., 1]))
    add_chairs(
        assembly,
        _sample_orbit(draws, name, start, pixel_size, min(MAX_SPEED, MAX_STEP * max(size)), max(size)),
        tilt @ yaw_rotation(draws.uniform(f"{name}.turned", -math.pi, math.pi, (count,))),
        alive,
        name,
        alike=False,
        scale=scale,
        thick=0.5 * draws.log_uniform(f"{name}.leg", *LEG_WIDTH, (count,)) * image_side / scale,
        spin=_sample_spin(draws, name, "chair", count),
        instance=instance,
    )


def _sample_orbit(
    draws: SceneRandom, name: str, start: Tensor, pixel_size: Tensor, max_speed: float, side: int
) -> MotionPath:
    """Draw circular paths, which keep fast objects in view.

    `start` is the position halfway between the first two frames, B x n x 3; `pixel_size` the size of a pixel there, B x
    n, meters; `max_speed` is in pixels per frame; `side` is the longer side of the image, pixels.
    """
    shape = tuple(pixel_size.shape[1:])
    speed = draws.log_uniform(f"{name}.speed", MIN_SPEED, max_speed, shape)
    radius = torch.maximum(speed * draws.uniform(f"{name}.bend", 1.0, 2.0, shape), torch.as_tensor(0.15 * side))
    angle = speed / radius  # per frame
    phase = draws.uniform(f"{name}.heading", 0.0, 2 * math.pi, shape)
    amplitude = (radius * pixel_size)[..., None] * vectors(1.0, 1.0, draws.uniform(f"{name}.near", -0.4, 0.4, shape))
    max_depth_amplitude = 0.35 * start[..., 2]
    amplitude = torch.cat(
        (amplitude[..., :2], torch.minimum(amplitude[..., 2:].abs(), max_depth_amplitude[..., None])), dim=-1
    )
    phases = torch.stack((phase + math.pi / 2, phase, phase + draws.uniform(f"{name}.rise", 0, 6.28, shape)), dim=-1)
    frequency = (angle * FPS / (2 * math.pi))[..., None].expand_as(phases)
    center = start - amplitude * torch.sin(phases + 0.5 * angle[..., None])
    return MotionPath.of(center).with_waves(amplitude[..., None], frequency[..., None], phases[..., None])


def _sample_tilt(draws: SceneRandom, name: str, kind: str, count: int) -> Tensor:
    """Draw rotation vectors: flat objects roughly face the camera, solid ones have any orientation."""
    lean = draws.normal(f"{name}.lean", 0.0, 0.35, (count, 2)).clamp(-1.0, 1.0)
    roll = draws.uniform(f"{name}.roll", -math.pi, math.pi, (count,))
    if kind == "cutout":
        roll = 0.3 * roll
    scale = 1.0 if kind in ("blob", "cutout", "rectangle") else 3.0
    return vectors(scale * lean[..., 0], scale * lean[..., 1], roll)


def _sample_spin(draws: SceneRandom, name: str, kind: str, count: int) -> MotionPath:
    rate = draws.log_uniform(f"{name}.spin", 0.001, 0.3, (count, 1)) * FPS
    axis = draws.unit_vector(f"{name}.axis", (count,))
    if kind in ("blob", "cutout", "rectangle"):
        # A tumbling flat object would vanish when seen edge-on, so it rotates in its plane and rocks.
        plane_axis = vectors(0.0, 0.0, torch.sign(axis[..., 2]))
        rock = axis * vectors(0.3, 0.3, 0.0)
        frequency = draws.log_uniform(f"{name}.rock", 0.1, 2.0, (count, 1, 1))
        phase = draws.uniform(f"{name}.rocks", 0.0, 6.28, (count, 1, 1))
        return MotionPath.of(torch.zeros_like(plane_axis), rate * plane_axis).with_waves(
            rock[..., None], frequency, phase
        )
    return MotionPath.of(torch.zeros_like(axis), rate * axis)


def _sample_stretch(draws: SceneRandom, name: str, count: int) -> MotionPath:
    """Draw paths of log scale factors: some objects expand and contract, differently along each axis."""
    enabled = draws.bernoulli(f"{name}.breathes", 0.3, (count, 1, 1))
    amplitude = enabled * draws.uniform(f"{name}.breath", -0.2, 0.2, (count, 3, 1))
    frequency = draws.uniform(f"{name}.breathing", 0.3, 3.0, (count, 1, 1))
    phase = draws.uniform(f"{name}.breathed", 0.0, 6.28, (count, 3, 1))
    return MotionPath.of(torch.zeros(len(draws), count, 3)).with_waves(amplitude, frequency, phase)


def _sample_ripple(draws: SceneRandom, name: str, count: int) -> Tensor:
    """Draw ripples: some flat objects wave like cloth."""
    enabled = draws.bernoulli(f"{name}.waves", 0.4, (count, 1))
    waves = draws.uniform(f"{name}.waviness", 1.5, 7.0, (count, 2))
    amplitude = enabled * draws.uniform(f"{name}.wave", 0.05, 0.35, (count, 2)) / waves
    phase = draws.uniform(f"{name}.waved", 0.0, 6.28, (count, 2))
    rate = draws.normal(f"{name}.waving", 0.0, 0.5, (count, 2)) * FPS
    return ripple_waves(amplitude, waves, phase, rate)


def _add_background(assembly: Assembly) -> None:
    """Add a distant wall, a hall or a plain, with the sky behind."""
    draws, batch = assembly.draws, assembly.batch
    background = draws.choice("background", (0.5, 0.25, 0.25))[:, None]
    distance = draws.log_uniform("wall.distance", 25.0, 60.0, (1,))
    lean = vectors(draws.normal("wall.x", 0, 0.3, (1,)), draws.normal("wall.y", 0, 0.3, (1,)), 0.0).clamp(-0.6, 0.6)
    wall = vectors(4.0 * distance, 4.0 * distance, 1.0)
    material = Material(repeat=(8.0, 40.0))
    position, base = vectors(0.0, 0.0, distance), rotation(lean)
    assembly.add("rectangle", "wall", position, wall, material=material, base=base, alive=background == 0)
    hall = draws.log_uniform("hall.size", 12.0, 50.0, (1, 3)) * torch.tensor([1.5, 0.7, 1.0])
    position = draws.uniform("hall.place", -0.5, 0.5, (1, 3)) * hall
    assembly.add("room", "hall", position, hall, material=Material(repeat=(3.0, 20.0)), alive=background == 1)
    depth = draws.log_uniform("plain.depth", 1.5, 12.0, (1,))
    plain = torch.full((batch, 1, 3), 1500.0, dtype=torch.float64)
    material = Material(repeat=(2.0, 30.0))
    position, base = vectors(0.0, depth, 0.0), ground_rotation()
    assembly.add("rectangle", "plain", position, plain, material=material, base=base, alive=background == 2)


def _sample_camera(draws: SceneRandom, size: tuple[int, int], focal: Tensor, shake: float) -> Camera:
    width = size[1]
    pan = draws.log_uniform("camera.pan", 0.2, min(60.0, MAX_PAN * width)) / focal * FPS
    heading = draws.uniform("camera.heading", 0.0, 2 * math.pi)
    roll = draws.normal("camera.roll", 0.0, 0.004) * FPS
    drift = draws.log_uniform("camera.drift", 0.002, 0.4, (1,)) * draws.unit_vector("camera.way") * FPS
    # Waves within a quarter of the view and one meter, so that the camera of a long clip keeps facing the scene.
    angular_velocity = vectors(pan * heading.sin(), pan * heading.cos(), roll)[..., None]
    turn_amplitude, turn_frequency = _bounded_waves(
        angular_velocity, 0.25 * (width / focal)[:, None, None], draws.uniform("camera.slow", 0.1, 0.4, (3, 1))
    )
    shift_amplitude, shift_frequency = _bounded_waves(
        drift[..., None], torch.tensor(1.0), draws.uniform("camera.slower", 0.1, 0.4, (3, 1))
    )
    zero = torch.zeros(len(draws), 3, dtype=torch.float64)
    phase = torch.zeros(1, 1, dtype=torch.float64)
    return build_camera(
        draws,
        size,
        focal=focal[:, None],
        position=MotionPath.of(zero).with_waves(shift_amplitude, shift_frequency, phase),
        turn=MotionPath.of(zero).with_waves(turn_amplitude, turn_frequency, phase),
        base=torch.eye(3, dtype=torch.float64).expand(len(draws), 3, 3),
        shake=shake,
    )


def _bounded_waves(speed: Tensor, max_amplitude: Tensor, min_frequency: Tensor) -> tuple[Tensor, Tensor]:
    """Return the amplitude (at most `max_amplitude`) and frequency (Hz) of sine waves with this initial speed."""
    amplitude = torch.minimum(speed.abs() / (2 * math.pi * min_frequency), max_amplitude)
    frequency = (speed.abs() / (2 * math.pi * amplitude.clamp_min(1e-9))).clamp_min(0.01)
    return amplitude * speed.sign(), frequency
