"""Scene description: primitives, camera, light and sensor, and their state at a moment.

Lengths are in meters, times in seconds, angles in radians. World and camera axes: x right, y down, z forward. All
tensors of a scene are float64 on the CPU with a leading batch dimension of B scenes; a `Frame` holds one moment of them
in camera coordinates on the rendering device.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.warps import rotation

NEAREST = 0.02
"""Hits closer than this to the start of a ray are ignored, meters."""
TOLERANCE = 2e-4
"""A point is occluded if another surface is closer to the camera by more than this fraction of its depth."""
SOFTNESS = 0.8
"""Mip level bias: textures are smoother than the pixel footprint requires, as a lens makes them, so that resampling an
image loses almost nothing.
"""
MIN_FACING = 0.05
"""Minimum cosine of the viewing angle in the footprint; without it roads would blur to one color far away."""
SHADED = 0.6
"""Fraction of light left on a shadowed room wall."""


@dataclass(frozen=True)
class MotionPath:
    """A smooth function of time: a polynomial plus sine waves; float64, on the CPU.

    Attributes:
        powers: B x ... x C x D, coefficients of 1, t, t^2, ... with t in seconds.
        amplitude: B x ... x C x M, of waves amplitude * sin(2 pi frequency t + phase).
        frequency: B x ... x C x M, Hz.
        phase: B x ... x C x M, radians.
    """

    powers: Tensor
    amplitude: Tensor
    frequency: Tensor
    phase: Tensor

    @classmethod
    def of(cls, *powers: Tensor) -> "MotionPath":
        """Build a polynomial path.

        Args:
            *powers: The value at time 0 (B x ... x C), then optionally the velocity and higher coefficients.
        """
        powers = torch.broadcast_tensors(*powers)
        empty = torch.zeros(*powers[0].shape, 0, dtype=torch.float64)
        return cls(torch.stack(powers, dim=-1).double(), empty, empty, empty)

    def with_waves(self, amplitude: Tensor, frequency: Tensor, phase: Tensor) -> "MotionPath":
        """Return the path with additional waves; each argument is B x ... x C x M or expands to it."""
        shape = (*self.powers.shape[:-1], torch.broadcast_shapes(amplitude.shape, frequency.shape, phase.shape)[-1])
        return replace(
            self,
            amplitude=torch.cat((self.amplitude, amplitude.expand(shape)), dim=-1),
            frequency=torch.cat((self.frequency, frequency.expand(shape)), dim=-1),
            phase=torch.cat((self.phase, phase.expand(shape)), dim=-1),
        )

    def at(self, time: Tensor) -> Tensor:
        """Evaluate the path at times, ... x B, seconds: ... x B x ... x C."""
        num_inner = self.powers.dim() - 1  # inner dimensions that a time does not have
        time = time.double().reshape(*time.shape, *(1,) * num_inner)
        exponents = torch.arange(self.powers.shape[-1], dtype=torch.float64, device=time.device)
        waves = self.amplitude * torch.sin(2 * math.pi * self.frequency * time + self.phase)
        return (self.powers * time**exponents).sum(dim=-1) + waves.sum(dim=-1)


def join_paths(paths: Sequence[MotionPath]) -> MotionPath:
    """Concatenate the paths of several groups along the second dimension; shorter ones are zero-padded."""

    def pad_and_concat(parts: list[Tensor]) -> Tensor:
        longest = max(part.shape[-1] for part in parts)
        gaps = [longest - part.shape[-1] for part in parts]
        return torch.cat([F.pad(part, (0, gap)) if gap else part for part, gap in zip(parts, gaps, strict=True)], dim=1)

    return MotionPath(*(pad_and_concat([getattr(path, field.name) for path in paths]) for field in fields(MotionPath)))


KINDS = ("rectangle", "blob", "cutout", "box", "ball", "room", "sky")
"""Kinds of primitives, in the order in which a scene holds them.

In local coordinates a rectangle, a blob and a cutout lie in the plane z = 0 within -1 .. 1, a box fills -1 .. 1 and a
ball is the unit ball; a room is a box, and a sky a ball, seen from the inside.
"""


@dataclass(frozen=True, kw_only=True)
class Primitives:
    """P primitives per scene, sorted by kind.

    Attributes:
        counts: Number of primitives of each of `KINDS`.
        alive: B x P, bool; the others do not exist.
        position: Path of B x P x 3, the origin of each primitive.
        spin: Path of B x P x 3, a rotation vector applied after `base`.
        base: B x P x 3 x 3, rotation from the primitive's local axes to the world at spin 0.
        offset: B x P x 3, from the origin to the center, rotated by the spin: the parts of one body share a path.
        extent: B x P x 3, half sizes.
        stretch: Path of B x P x 3, logarithms of scale factors on `extent`.
        outline: B x P x 7, for blobs: the radius over the angle a is o0 + o1 cos 2a + o2 sin 2a + o3 cos 3a + o4 sin 3a
            + o5 cos 5a + o6 sin 5a.
        ripple: B x P x 2 x 4, for blobs and cutouts: two waves that shear the plane, (amplitude, waves, phase, rate):
            first x by amplitude sin(waves y + phase + rate t), then y as a function of x in the same way.
        instance: B x P, int64; 0 for what does not move on its own.
        casts: B x P, bool, whether the primitive casts a shadow.
        texture: B x P, int64, index into the texture bank.
        tiling: B x P x 2 x 3, from meters on the surface to repeats of the texture.
        gain: B x P x 3, color = gain * texture + bias.
        bias: B x P x 3.
        gloss: B x P, strength of the specular highlight.
    """

    counts: tuple[int, ...]
    alive: Tensor
    position: MotionPath
    spin: MotionPath
    base: Tensor
    offset: Tensor
    extent: Tensor
    stretch: MotionPath
    outline: Tensor
    ripple: Tensor
    instance: Tensor
    casts: Tensor
    texture: Tensor
    tiling: Tensor
    gain: Tensor
    bias: Tensor
    gloss: Tensor


@dataclass(frozen=True, kw_only=True)
class Camera:
    """A pinhole camera and its path.

    Attributes:
        focal: B x 2, focal lengths (x, y), pixels.
        center: B x 2, principal point (x, y), pixels.
        position: Path of B x 3.
        turn: Path of B x 3, a rotation vector applied after `base`.
        base: B x 3 x 3, rotation from camera to world.
        shake: Path of B x 3, hand shake along the camera axes, meters. The steady version of a path leaves it out.
        shake_turn: Path of B x 3, hand shake about the camera axes, radians.
    """

    focal: Tensor
    center: Tensor
    position: MotionPath
    turn: MotionPath
    base: Tensor
    shake: MotionPath
    shake_turn: MotionPath

    def pose(self, time: Tensor, steady: bool) -> tuple[Tensor, Tensor]:
        """Return the rotation from camera to world (B x 3 x 3) and the position (B x 3) at times, B, seconds.

        `steady` leaves out the hand shake.
        """
        orientation, position = rotation(self.turn.at(time)) @ self.base, self.position.at(time)
        if steady:
            return orientation, position
        position = position + (orientation @ self.shake.at(time)[..., None])[..., 0]
        return orientation @ rotation(self.shake_turn.at(time)), position


@dataclass(frozen=True, kw_only=True)
class Atmosphere:
    """Light and fog.

    Attributes:
        sun: B x 3, unit vector towards the sun.
        ambient: B, fraction of the light that is ambient.
        sunlight: B x 3, color.
        fog: B, density per meter.
        fog_color: B x 3.
    """

    sun: Tensor
    ambient: Tensor
    sunlight: Tensor
    fog: Tensor
    fog_color: Tensor


@dataclass(frozen=True, kw_only=True)
class Sensor:
    """Lens, sensor and codec parameters of the final pass; one value per scene.

    Attributes:
        shutter: Fraction of the frame interval for which the shutter is open.
        aperture: See `sensor.defocus`.
        focus: See `sensor.defocus`.
        exposure: Path of B x 3, logarithms of the color gains.
        gamma: Exponent of the tone curve; 1 leaves the image as rendered.
        lift: Offset added after gamma.
        vignette: Fraction of light lost in the corners.
        read: Standard deviation of the read noise.
        shot: Standard deviation of the shot noise at white.
        quality: JPEG quality, 1 to 100.
        key: int64, key of the noise.
    """

    shutter: Tensor
    aperture: Tensor
    focus: Tensor
    exposure: MotionPath
    gamma: Tensor
    lift: Tensor
    vignette: Tensor
    read: Tensor
    shot: Tensor
    quality: Tensor
    key: Tensor


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """A batch of scenes.

    Attributes:
        primitives: The geometry.
        camera: The camera and its path.
        atmosphere: Light and fog.
        sensor: Lens, sensor and codec.
        size: (height, width) of the images.
        fps: Frames per second.
        target: Instance to track; 0 for none.
        names: B names.
    """

    primitives: Primitives
    camera: Camera
    atmosphere: Atmosphere
    sensor: Sensor
    size: tuple[int, int]
    fps: float
    target: int = 0
    names: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of scenes."""
        return self.camera.focal.shape[0]

    def part(self, start: int, stop: int) -> "Scenes":
        """Return scenes start .. stop - 1 of the batch."""
        return replace(_map_tensors(self, lambda tensor: tensor[start:stop]), names=self.names[start:stop])

    def frame(self, time: float | Tensor, steady: bool = False, device: torch.device | None = None) -> "Frame":
        """Compute the state of the scenes at a time, in camera coordinates.

        Args:
            time: Seconds, one value for all scenes or B.
            steady: Whether to leave out the hand shake.
            device: Device of the frame's tensors.
        """
        time = torch.as_tensor(time, dtype=torch.float64).expand(self.count)
        primitives = self.primitives
        to_world, eye = self.camera.pose(time, steady)
        table, sun = self._compute_tables(to_world, eye, time)
        return Frame(
            counts=primitives.counts,
            size=self.size,
            time=time,
            steady=steady,
            to_world=to_world,
            eye=eye,
            lens=to_device(torch.cat((self.camera.focal, self.camera.center), dim=-1).float(), device),
            table=to_device(table, device),
            sun=to_device(sun, device),
            alive=to_device(primitives.alive, device),
            casts=to_device(primitives.alive & primitives.casts, device),
        )

    def frames(self, times: Tensor, steady: bool = False, device: torch.device | None = None) -> list["Frame"]:
        """Compute the frames at times (T x B) in one batch; with a GPU, on the GPU."""
        times = times.double()
        template, (to_world, eye) = self.frame(times[0], steady, device), self.camera.pose(times, steady)
        tables, suns = self._compute_tables_on(to_world, eye, times, device)
        return [
            replace(template, time=times[i], to_world=to_world[i], eye=eye[i], table=table, sun=sun)
            for i, (table, sun) in enumerate(zip(tables.contiguous(), suns, strict=True))
        ]

    def moments(self, times: Tensor, steady: bool, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Compute the tables (T x F x B x P) and sun directions (T x B x 3) of the frames at times (T x B)."""
        tables, suns = self._compute_tables_on(*self.camera.pose(times, steady), times, device)
        return tables.contiguous(), suns.contiguous()

    def _compute_tables_on(
        self, to_world: Tensor, eye: Tensor, times: Tensor, device: torch.device | None
    ) -> tuple[Tensor, Tensor]:
        """Run `_compute_tables` on a device; the result stays there."""
        scenes = self
        if device:
            move = partial(to_device, device=device)
            parts = _map_tensors(self.primitives, move), _map_tensors(self.atmosphere, move)
            scenes = replace(self, primitives=parts[0], atmosphere=parts[1])
        return scenes._compute_tables(*(to_device(part, device) for part in (to_world, eye, times)))

    def _compute_tables(self, to_world: Tensor, eye: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Compute a frame's table and sun direction, float32, on the device of the scenes.

        Several moments (... x B) add leading dimensions to both.
        """
        primitives = self.primitives
        to_camera = to_world.transpose(-1, -2)[..., None, :, :]
        rotations = rotation(primitives.spin.at(time))
        extent = primitives.extent * primitives.stretch.at(time).exp()
        center = primitives.position.at(time) + (rotations @ primitives.offset[..., None])[..., 0]
        to_camera_axes = to_camera @ rotations @ primitives.base  # B x P x 3 x 3, local axes to the camera's
        center = (to_camera @ (center - eye[..., None, :])[..., None])[..., 0]
        inverse = to_camera_axes.transpose(-1, -2) / extent[..., None]
        phase = primitives.ripple[..., 2:3] + primitives.ripple[..., 3:] * time[..., None, None, None]
        ripple = torch.cat((primitives.ripple[..., :2].expand(*phase.shape[:-1], 2), phase), dim=-1)
        table = torch.cat(
            (
                inverse.flatten(-2),
                -(inverse @ center[..., None])[..., 0],
                (to_camera_axes * extent[..., None, :]).flatten(-2),
                center,
                ripple.flatten(-2),
            ),
            dim=-1,
        )
        sun = (to_camera[..., 0, :, :] @ self.atmosphere.sun[..., None])[..., 0]
        return table.movedim(-1, -3).float(), sun.float()


INVERSE, ORIGIN, FORWARD, CENTER, RIPPLE = slice(0, 9), slice(9, 12), slice(12, 21), slice(21, 24), slice(24, 30)
"""Rows of a frame's table."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One moment of B scenes, in camera coordinates, on the rendering device.

    Attributes:
        counts: Number of primitives of each of `KINDS`.
        size: (height, width) of the image.
        time: B, seconds.
        steady: Whether the hand shake is left out.
        to_world: B x 3 x 3, rotation from camera to world, float64, on the CPU.
        eye: B x 3, camera position in the world, float64, on the CPU.
        lens: B x 4, focal lengths and principal point (x, y), pixels.
        table: F x B x P, float32. INVERSE and ORIGIN map camera coordinates to a primitive's local ones, p_local =
            inverse p + origin; FORWARD and CENTER map back; RIPPLE is (amplitude, waves, phase) of both waves.
        sun: B x 3, unit vector towards the sun.
        alive: B x P, bool, which primitives exist.
        casts: B x P, bool, which primitives cast a shadow.
    """

    counts: tuple[int, ...]
    size: tuple[int, int]
    time: Tensor
    steady: bool
    to_world: Tensor
    eye: Tensor
    lens: Tensor
    table: Tensor
    sun: Tensor
    alive: Tensor
    casts: Tensor

    def rays(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Compute ray directions (x, y, 1) through positions (B x 2 x N, pixels): x and y, B x N each."""
        focal_x, focal_y, center_x, center_y = self.lens[..., None].unbind(1)
        return (positions[:, 0] - center_x) / focal_x, (positions[:, 1] - center_y) / focal_y

    def project(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Project points in camera coordinates (B x N each, meters) to pixels: B x 2 x N."""
        focal_x, focal_y, center_x, center_y = self.lens[..., None].unbind(1)
        return torch.stack((x / z * focal_x + center_x, y / z * focal_y + center_y), dim=1)


Record = TypeVar("Record")


def _map_tensors(record: Record, change: Callable[[Tensor], Tensor]) -> Record:
    """Apply a function to every tensor of a dataclass and of the dataclasses in it."""
    changed: dict[str, Any] = {}
    for field in fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        if is_dataclass(value):
            changed[field.name] = _map_tensors(value, change)
        elif isinstance(value, Tensor):
            changed[field.name] = change(value)
    return replace(record, **changed)  # type: ignore[type-var]


def to_device(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Copy a tensor to a device, contiguous; through pinned memory, so that the copy does not wait for queued work."""
    tensor = tensor.contiguous()
    if device is not None and device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
