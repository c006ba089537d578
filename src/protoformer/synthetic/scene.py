"""What a scene is made of, and where everything stands at a moment.

Lengths are meters, times seconds, angles radians. World and camera axes: x right, y down, z forward. All numbers of a
scene are float64 on the CPU and have B scenes in front; a `Frame` is one moment of them, seen from the camera, on the
device that renders.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.warps import rotation


@dataclass(frozen=True)
class MotionPath:
    """Some numbers that change smoothly: a polynomial of time plus waves. float64, on the CPU.

    powers: B x ... x C x D, factors of 1, t, t^2, ... with t in seconds.
    amplitude, frequency, phase: B x ... x C x M each, waves amplitude sin(2 pi frequency t + phase); Hz and radians.
    """

    powers: Tensor
    amplitude: Tensor
    frequency: Tensor
    phase: Tensor

    @classmethod
    def of(cls, *powers: Tensor) -> "MotionPath":
        """A polynomial: its value at time 0 (B x ... x C), then, if it changes, its velocity and so on."""
        powers = torch.broadcast_tensors(*powers)
        none = torch.zeros(*powers[0].shape, 0, dtype=torch.float64)
        return cls(torch.stack(powers, dim=-1).double(), none, none, none)

    def with_waves(self, amplitude: Tensor, frequency: Tensor, phase: Tensor) -> "MotionPath":
        """The same path and more waves; each B x ... x C x M, or of a shape that expands to it."""
        shape = (*self.powers.shape[:-1], torch.broadcast_shapes(amplitude.shape, frequency.shape, phase.shape)[-1])
        return replace(
            self,
            amplitude=torch.cat((self.amplitude, amplitude.expand(shape)), dim=-1),
            frequency=torch.cat((self.frequency, frequency.expand(shape)), dim=-1),
            phase=torch.cat((self.phase, phase.expand(shape)), dim=-1),
        )

    def at(self, time: Tensor) -> Tensor:
        """Values at a time in seconds for each scene (..., B): ... x B x ... x C."""
        between = self.powers.dim() - 1  # dimensions of a scene that a time knows nothing of
        time = time.double().reshape(*time.shape, *(1,) * between)
        exponents = torch.arange(self.powers.shape[-1], dtype=torch.float64, device=time.device)
        waves = self.amplitude * torch.sin(2 * math.pi * self.frequency * time + self.phase)
        return (self.powers * time**exponents).sum(dim=-1) + waves.sum(dim=-1)


def join_paths(paths: Sequence[MotionPath]) -> MotionPath:
    """The paths of several groups of things side by side, along the second dimension; shorter ones are padded."""

    def padded(parts: list[Tensor]) -> Tensor:
        most = max(part.shape[-1] for part in parts)
        short = [most - part.shape[-1] for part in parts]
        return torch.cat(
            [F.pad(part, (0, gap)) if gap else part for part, gap in zip(parts, short, strict=True)], dim=1
        )

    return MotionPath(
        powers=padded([path.powers for path in paths]),
        amplitude=padded([path.amplitude for path in paths]),
        frequency=padded([path.frequency for path in paths]),
        phase=padded([path.phase for path in paths]),
    )


KINDS = ("rectangle", "blob", "cutout", "box", "ball", "room", "sky")
"""Primitives, in the order in which a scene holds them.

In its own coordinates a rectangle, a blob and a cutout lie in the plane z = 0 within -1 .. 1, a box fills -1 .. 1, a
ball is the unit ball; a room is a box, and a sky a ball, seen from within.
"""


@dataclass(frozen=True, kw_only=True)
class Primitives:
    """P things per scene, sorted by kind.

    counts: how many there are of each of KINDS. alive: B x P, bool; others are not there.
    position, spin: paths of B x P x 3, the place of the origin, and a rotation vector applied after `base`.
    base: B x P x 3 x 3, the rotation from its own axes to the world's at spin 0.
    offset: B x P x 3, from the origin to the middle, turned by the spin: parts of one body share a path.
    extent: B x P x 3, half sizes. stretch: path of B x P x 3, logarithms of factors on them.
    outline: B x P x 7, of a blob: the radius over the angle a is o0 + o1 cos 2a + o2 sin 2a + o3 cos 3a + o4 sin 3a
        + o5 cos 5a + o6 sin 5a.
    ripple: B x P x 2 x 4, of a blob or cutout: two waves that shear its plane, (amplitude, waves, phase, rate): first
        x by amplitude sin(waves y + phase + rate t), then y by x alike.
    instance: B x P, int64, 0 for what does not move by itself. casts: B x P, bool, whether it throws a shadow.
    texture: B x P, int64, in the bank. tiling: B x P x 2 x 3, from meters on the surface to repeats of the texture.
    gain, bias: B x P x 3, color = gain * texture + bias. gloss: B x P, strength of the highlight.
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
    """A pinhole and its path.

    focal, center: B x 2, pixels, (x, y). position, turn: paths of B x 3; the turn is a rotation vector, applied after
    base (B x 3 x 3, camera to world). shake, shake_turn: what a hand adds, B x 3: along the camera's own axes, meters,
    and about them, radians. Without them the same path is its steady twin.
    """

    focal: Tensor
    center: Tensor
    position: MotionPath
    turn: MotionPath
    base: Tensor
    shake: MotionPath
    shake_turn: MotionPath

    def pose(self, time: Tensor, steady: bool) -> tuple[Tensor, Tensor]:
        """Rotation (B x 3 x 3, camera to world) and position (B x 3) at a time (B)."""
        turn, position = rotation(self.turn.at(time)) @ self.base, self.position.at(time)
        if steady:
            return turn, position
        position = position + (turn @ self.shake.at(time)[..., None])[..., 0]
        return turn @ rotation(self.shake_turn.at(time)), position


@dataclass(frozen=True, kw_only=True)
class Atmosphere:
    """Light and what is between things and the camera.

    sun: B x 3, unit, towards it. ambient: B, the share of light that comes from everywhere. sunlight: B x 3, color.
    fog: B, per meter. fog_color: B x 3.
    """

    sun: Tensor
    ambient: Tensor
    sunlight: Tensor
    fog: Tensor
    fog_color: Tensor


@dataclass(frozen=True, kw_only=True)
class Sensor:
    """How the final pass takes its pictures; B of each.

    shutter: share of a frame's time for which it is open. aperture, focus: see `photography.defocus`. exposure: path of
    B x 3, logarithms of the gains of the colors. gamma: 1 is as rendered. lift: added after it.
    vignette: share of the light that corners lose. read, shot: noise. quality: of JPEG, 1 to
    100. key: int64, for the noise.
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
    """A batch of scenes. size: (height, width) of its images. rate: frames a second. target: the instance to follow, 0
    for none in particular. names: B.
    """

    primitives: Primitives
    camera: Camera
    air: Atmosphere
    film: Sensor
    size: tuple[int, int]
    rate: float
    target: int = 0
    names: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many scenes there are."""
        return self.camera.focal.shape[0]

    def part(self, start: int, stop: int) -> "Scenes":
        """Some scenes of the batch."""
        return _part(self, start, stop)

    def frame(self, time: float | Tensor, steady: bool = False, device: torch.device | None = None) -> "Frame":
        """Everything as the camera has it at a time: seconds, one for all scenes or one for each (B)."""
        time = torch.as_tensor(time, dtype=torch.float64).expand(self.count)
        parts = self.primitives
        to_world, eye = self.camera.pose(time, steady)
        table, sun = self._seen_from(to_world, eye, time)
        return Frame(
            counts=parts.counts,
            size=self.size,
            time=time,
            steady=steady,
            to_world=to_world,
            eye=eye,
            lens=to_device(torch.cat((self.camera.focal, self.camera.center), dim=-1).float(), device),
            table=to_device(table, device),
            sun=to_device(sun, device),
            alive=to_device(parts.alive, device),
            casts=to_device(parts.alive & parts.casts, device),
        )

    def frames(self, times: Tensor, steady: bool = False, device: torch.device | None = None) -> list["Frame"]:
        """The frames at times (T x B), made at once, on a GPU by the GPU itself."""
        times = times.double()
        one, (to_world, eye) = self.frame(times[0], steady, device), self.camera.pose(times, steady)
        tables, suns = self._there_seen_from(to_world, eye, times, device)
        return [
            replace(one, time=times[number], to_world=to_world[number], eye=eye[number], table=table, sun=sun)
            for number, (table, sun) in enumerate(zip(tables.contiguous(), suns, strict=True))
        ]

    def moments(self, times: Tensor, steady: bool, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """The tables (T x F x B x P) and suns (T x B x 3) of the frames at times (T x B), made as `frames` are."""
        tables, suns = self._there_seen_from(*self.camera.pose(times, steady), times, device)
        return tables.contiguous(), suns.contiguous()

    def _there_seen_from(
        self, to_world: Tensor, eye: Tensor, times: Tensor, device: torch.device | None
    ) -> tuple[Tensor, Tensor]:
        """As `_seen_from`, by the device, and there."""
        moved = replace(self, primitives=_on(self.primitives, device), air=_on(self.air, device)) if device else self
        return moved._seen_from(*(to_device(part, device) for part in (to_world, eye, times)))

    def _seen_from(self, to_world: Tensor, eye: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """A frame's table and sun, float32, where the scenes are; of several moments (... x B), these are in front."""
        parts = self.primitives
        to_camera = to_world.transpose(-1, -2)[..., None, :, :]
        turned = rotation(parts.spin.at(time))
        extent = parts.extent * parts.stretch.at(time).exp()
        place = parts.position.at(time) + (turned @ parts.offset[..., None])[..., 0]
        own = to_camera @ turned @ parts.base  # B x P x 3 x 3, own axes to the camera's
        place = (to_camera @ (place - eye[..., None, :])[..., None])[..., 0]
        inverse = own.transpose(-1, -2) / extent[..., None]
        phase = parts.ripple[..., 2:3] + parts.ripple[..., 3:] * time[..., None, None, None]
        ripple = torch.cat((parts.ripple[..., :2].expand(*phase.shape[:-1], 2), phase), dim=-1)
        table = torch.cat(
            (
                inverse.flatten(-2),
                -(inverse @ place[..., None])[..., 0],
                (own * extent[..., None, :]).flatten(-2),
                place,
                ripple.flatten(-2),
            ),
            dim=-1,
        )
        sun = (to_camera[..., 0, :, :] @ self.air.sun[..., None])[..., 0]
        return table.movedim(-1, -3).float(), sun.float()


INVERSE, ORIGIN, FORWARD, PLACE, RIPPLE = slice(0, 9), slice(9, 12), slice(12, 21), slice(21, 24), slice(24, 30)
"""Rows of a frame's table."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A moment of B scenes, in the camera's axes, on the rendering device.

    time: B. to_world (B x 3 x 3) and eye (B x 3): the camera in the world, float64, on the CPU.
    lens: B x 4, focal lengths and center (x, y), pixels. table: F x B x P, float32: INVERSE and ORIGIN lead from the
    camera's axes to a primitive's own, p_own = inverse p + origin; FORWARD and PLACE lead back; RIPPLE is (amplitude,
    waves, phase) of both waves. sun: B x 3, unit. alive, casts: B x P, bool, what is there and what throws a shadow.
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
        """Directions (x, y, 1) through positions (B x 2 x N, pixels): x and y, B x N each."""
        focal_x, focal_y, center_x, center_y = self.lens[..., None].unbind(1)
        return (positions[:, 0] - center_x) / focal_x, (positions[:, 1] - center_y) / focal_y

    def project(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Points in the camera's axes (B x N each, meters) to pixels: B x 2 x N."""
        focal_x, focal_y, center_x, center_y = self.lens[..., None].unbind(1)
        return torch.stack((x / z * focal_x + center_x, y / z * focal_y + center_y), dim=1)


Record = TypeVar("Record")


def _part(record: Record, start: int, stop: int) -> Record:
    """A record with every tensor and every name cut to some scenes; what has no scenes stays."""
    cut: dict[str, Any] = {}
    for field in fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        if is_dataclass(value):
            cut[field.name] = _part(value, start, stop)
        elif isinstance(value, Tensor) or field.name == "names":
            cut[field.name] = value[start:stop]
    return replace(record, **cut)  # type: ignore[type-var]


def _on(record: Record, device: torch.device) -> Record:
    """A record with every tensor on a device."""
    there: dict[str, Any] = {}
    for field in fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        if is_dataclass(value):
            there[field.name] = _on(value, device)
        elif isinstance(value, Tensor):
            there[field.name] = to_device(value, device)
    return replace(record, **there)  # type: ignore[type-var]


def to_device(tensor: Tensor, device: torch.device | None) -> Tensor:
    """On the device, in one piece; from pinned memory, so that the copy does not wait for earlier work."""
    tensor = tensor.contiguous()
    if device is not None and device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
