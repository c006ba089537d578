"""Assembly of primitives, light and sensor parameters into a batch of scenes."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from protoformer.geometry.warps import rotation
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import KINDS, Atmosphere, Camera, MotionPath, Primitives, Sensor, join_paths


@dataclass(frozen=True)
class Material:
    """Ranges from which the material of a group's objects is drawn.

    Attributes:
        repeat: Meters that one repeat of the texture covers, (min, max).
        contrast: Factor on the texture, (min, max).
        tone: Brightness of the texture's middle gray, (min, max); None keeps the texture's own colors up to small
            changes.
        tint: Maximum relative deviation of each color channel.
        color: Factors on the color channels.
        gloss: Maximum strength of the specular highlight.
        plain: Probability of an almost textureless object.
        bare: Brightness of textureless objects, (min, max).
        alike: Whether all objects of the group in a scene look the same.
    """

    repeat: tuple[float, float] = (0.5, 3.0)
    contrast: tuple[float, float] = (0.7, 1.1)
    tone: tuple[float, float] | None = None
    tint: float = 0.15
    color: tuple[float, float, float] = (1.0, 1.0, 1.0)
    gloss: float = 0.3
    plain: float = 0.0
    bare: tuple[float, float] = (0.0, 0.95)
    alike: bool = False


@dataclass
class Assembly:
    """Collects groups of primitives for a batch of scenes.

    Attributes:
        draws: Random numbers of the scenes.
        surfaces: Number of opaque textures in the bank.
        cutouts: Number of cutout textures in the bank.
        groups: The groups added so far.
    """

    draws: SceneRandom
    surfaces: int
    cutouts: int
    groups: list[dict[str, object]] = field(default_factory=list)

    @property
    def batch(self) -> int:
        """The number of scenes."""
        return len(self.draws)

    def add(
        self,
        kind: str,
        name: str,
        position: Tensor | MotionPath,
        extent: Tensor,
        *,
        material: Material = Material(),  # noqa: B008
        spin: MotionPath | None = None,
        base: Tensor | None = None,
        offset: Tensor | None = None,
        stretch: MotionPath | None = None,
        ripple: Tensor | None = None,
        roughness: float = 0.3,
        instance: Tensor | int = 0,
        casts: bool = True,
        alive: Tensor | None = None,
        texture: Tensor | None = None,
        parts: int = 1,
    ) -> None:
        """Add a group of n primitives of one kind.

        Args:
            kind: One of `KINDS`.
            name: Unique name of the group; it keeps the random draws of groups apart.
            position: B x n x 3, or a path.
            extent: B x n x 3.
            material: Ranges of its material.
            spin: As in `Primitives`; no rotation if None.
            base: As in `Primitives`; the identity if None.
            offset: As in `Primitives`; 0 if None.
            stretch: As in `Primitives`; constant size if None.
            ripple: As in `Primitives`; flat if None.
            roughness: Deviation of a blob's outline from a circle.
            instance: As in `Primitives`.
            casts: Whether the group casts shadows.
            alive: As in `Primitives`; all if None.
            texture: B x n / parts, or B x 1 for all, in 0 .. 1, relative index into the bank; drawn if None.
            parts: Number of primitives per object, which share a material. The first parts of all objects come first,
                then the second ones, and so on.
        """
        count = extent.shape[1]
        shape = (self.batch, count)
        zero_path = MotionPath.of(torch.zeros(*shape, 3))
        if base is None:
            base = torch.eye(3, dtype=torch.float64)
        num_materials = 1 if material.alike else count // parts
        texture_index, tiling = self._texture(kind, name, extent.expand(*shape, 3), material, num_materials, texture)
        gain, bias, gloss = (_repeat_parts(values, count) for values in self._color(name, material, num_materials))
        self.groups.append(
            {
                "kind": kind,
                "alive": torch.ones(shape, dtype=torch.bool) if alive is None else alive.expand(shape),
                "position": position if isinstance(position, MotionPath) else MotionPath.of(position.expand(*shape, 3)),
                "spin": zero_path if spin is None else spin,
                "base": base.expand(*shape, 3, 3),
                "offset": torch.zeros(*shape, 3) if offset is None else offset.expand(*shape, 3),
                "extent": extent.expand(*shape, 3),
                "stretch": zero_path if stretch is None else stretch,
                "outline": self._outline(name, count, roughness if kind == "blob" else 0.0),
                "ripple": torch.zeros(*shape, 2, 4) if ripple is None else ripple.expand(*shape, 2, 4),
                "instance": torch.as_tensor(instance).expand(shape),
                "casts": torch.full(shape, casts),
                "texture": texture_index,
                "tiling": tiling,
                "gain": gain,
                "bias": bias,
                "gloss": gloss,
            }
        )

    def primitives(self) -> Primitives:
        """Join all groups, sorted by kind."""
        groups = sorted(self.groups, key=lambda group: KINDS.index(str(group["kind"])))
        counts = [0] * len(KINDS)
        for group in groups:
            counts[KINDS.index(str(group["kind"]))] += group["extent"].shape[1]  # type: ignore[attr-defined]
        joined: dict[str, object] = {}
        for key in groups[0]:
            values = [group[key] for group in groups]
            if isinstance(values[0], MotionPath):
                joined[key] = join_paths(values)  # type: ignore[arg-type]
            elif isinstance(values[0], Tensor):
                dtype = values[0].dtype if not values[0].is_floating_point() else torch.float64
                joined[key] = torch.cat([value.to(dtype) for value in values], dim=1)  # type: ignore[attr-defined]
        return Primitives(counts=tuple(counts), **joined)  # type: ignore[arg-type]

    def _texture(
        self, kind: str, name: str, extent: Tensor, material: Material, num_materials: int, position: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the texture index, B x n, and its tiling, B x n x 2 x 3, with `num_materials` materials per scene."""
        count = extent.shape[1]
        position = self.draws.uniform(f"{name}: texture", shape=(num_materials,)) if position is None else position
        position = _repeat_parts(position, count)
        if kind == "cutout":  # the silhouette fills the rectangle
            tiling = torch.zeros(self.batch, count, 2, 3, dtype=torch.float64)
            tiling[..., 0, 0], tiling[..., 1, 1] = 0.5 / extent[..., 0], 0.5 / extent[..., 1]
            tiling[..., 2] = 0.5
            return self.surfaces + (position * self.cutouts).long(), tiling
        density = 1 / self.draws.log_uniform(f"{name}: repeat", *material.repeat, (num_materials,))
        quarter = 0.5 * math.pi * self.draws.integer(f"{name}: quarter", 0, 4, (num_materials,))
        angle = quarter + self.draws.normal(f"{name}: angle", 0.0, 0.03, (num_materials,))
        cos, sin = density * angle.cos(), density * angle.sin()
        shift = self.draws.uniform(f"{name}: shift", 0.0, 2.0, (num_materials, 2))
        tiling = torch.stack((cos, -sin, shift[..., 0], sin, cos, shift[..., 1]), dim=-1)
        return (position * self.surfaces).long(), _repeat_parts(tiling, count).unflatten(-1, (2, 3))

    def _color(self, name: str, material: Material, num_materials: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the texture's gain and bias, B x num_materials x 3 each, and the gloss, B x num_materials."""
        tint = 1 + self.draws.uniform(f"{name}: tint", -material.tint, material.tint, (num_materials, 3))
        gain = self.draws.uniform(f"{name}: contrast", *material.contrast, (num_materials, 1)) * tint
        if material.tone is None:
            bias = 0.5 - 0.5 * gain + self.draws.uniform(f"{name}: lift", -0.05, 0.05, (num_materials, 1))
        else:
            color = torch.tensor(material.color, dtype=torch.float64)
            gain, tone = gain * color, self.draws.uniform(f"{name}: tone", *material.tone, (num_materials, 1))
            bias = tone * tint * color - 0.5 * gain
        if material.plain:
            plain = self.draws.bernoulli(f"{name}: plain", material.plain, (num_materials, 1))
            faint = gain * self.draws.uniform(f"{name}: faint", 0.02, 0.2, (num_materials, 1))
            bare = self.draws.uniform(f"{name}: bare", *material.bare, (num_materials, 1)) * tint - 0.5 * faint
            gain, bias = torch.where(plain, faint, gain), torch.where(plain, bare, bias)
        gloss = self.draws.uniform(f"{name}: gloss", -material.gloss, material.gloss, (num_materials,)).clamp_min(0)
        return gain, bias, gloss

    def _outline(self, name: str, count: int, roughness: float) -> Tensor:
        """Return the outlines of blobs, B x n x 7; circles if roughness is 0."""
        if not roughness:
            return torch.eye(7, dtype=torch.float64)[0].expand(self.batch, count, 7)
        waves = self.draws.normal(f"{name}: outline", 0.0, roughness, (count, 6)).clamp(-0.5, 0.5)
        waves = waves * torch.tensor([0.5, 0.5, 0.35, 0.35, 0.15, 0.15], dtype=torch.float64)
        total = waves.abs().sum(dim=-1, keepdim=True)
        mean_radius = (1 - total).clamp_min(0.35)
        return torch.cat((mean_radius, waves), dim=-1) / (
            mean_radius + total
        )  # normalized to stay within the unit circle


def _repeat_parts(values: Tensor, count: int) -> Tensor:
    """Repeat per-object values, B x n x ..., for all parts, B x count x ..."""
    return torch.cat((values,) * (count // values.shape[1]), dim=1)


def remove_near(primitives: Primitives, point: Tensor, gap: float) -> Primitives:
    """Remove boxes, balls and cutouts that come closer than `gap` meters to a point (B x 3) at time 0.

    Primitives with the same origin are parts of one body and are removed together.
    """
    zero = torch.zeros(len(point))
    rotations, origin = rotation(primitives.spin.at(zero)), primitives.position.at(zero)
    center = origin + (rotations @ primitives.offset[..., None])[..., 0]
    local = ((rotations @ primitives.base).transpose(-1, -2) @ (point[:, None] - center)[..., None])[..., 0]
    flat = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)  # a cutout has no thickness
    cutouts, boxes = sum(primitives.counts[:2]), sum(primitives.counts[:3])
    index = torch.arange(primitives.alive.shape[1])
    extent = torch.where((index < boxes)[:, None], primitives.extent * flat, primitives.extent)
    distance = (local.abs() - extent).clamp_min(0).norm(dim=-1)
    removable = (index >= cutouts) & (index < sum(primitives.counts[:5]))
    near = removable & primitives.alive & (distance < gap)
    x, y, z = origin.unbind(dim=-1)
    same_body = near[:, None] & (x[:, :, None] == x[:, None])
    same_body = same_body & (y[:, :, None] == y[:, None]) & (z[:, :, None] == z[:, None])
    return replace(primitives, alive=primitives.alive & ~(removable & same_body.any(dim=-1)))


def yaw_rotation(heading: Tensor) -> Tensor:
    """Return rotations about the vertical axis by a heading: ... to ... x 3 x 3."""
    zero = torch.zeros_like(heading)
    return rotation(torch.stack((zero, heading, zero), dim=-1))


def ground_rotation() -> Tensor:
    """Return the rotation that lays a patch on the ground: local x to the right, local y forward."""
    return rotation(torch.tensor([-math.pi / 2, 0.0, 0.0], dtype=torch.float64))


def vectors(x: Tensor | float, y: Tensor | float, z: Tensor | float) -> Tensor:
    """Stack three coordinates, tensors or numbers, into ... x 3."""
    parts = torch.broadcast_tensors(*(torch.as_tensor(part, dtype=torch.float64) for part in (x, y, z)))
    return torch.stack(parts, dim=-1)


SKY_RADIUS = 2000.0
"""Radius of the sky, meters."""


def sample_atmosphere(draws: SceneRandom, fog: tuple[float, float] = (0.0005, 0.02), foggy: float = 0.3) -> Atmosphere:
    """Draw light and fog, with the sun above the horizon.

    `fog` is the range of the density per meter where there is fog, and `foggy` its probability.
    """
    height, heading = draws.uniform("sun.height", 0.3, 1.3), draws.uniform("sun.heading", 0.0, 2 * math.pi)
    sun = vectors(height.cos() * heading.cos(), -height.sin(), height.cos() * heading.sin())
    gray = draws.uniform("fog.grey", 0.45, 0.9, (1,))
    return Atmosphere(
        sun=sun,
        ambient=draws.uniform("sun.ambient", 0.35, 0.75),
        sunlight=1 + draws.uniform("sun.colour", -0.08, 0.08, (3,)),
        fog=draws.log_uniform("fog.density", *fog) * draws.bernoulli("fog.is", foggy),
        fog_color=(gray + draws.uniform("fog.colour", -0.08, 0.08, (3,))).clamp(0, 1),
    )


def sample_sensor(draws: SceneRandom, focus: tuple[float, float] = (2.0, 20.0)) -> Sensor:
    """Draw lens, sensor and codec parameters; some scenes are sharp and clean, others are not.

    `focus` is the range of the focus distance, meters.
    """
    zero = torch.zeros(len(draws), 3, dtype=torch.float64)
    flicker = draws.normal("film.flicker", 0.0, 0.06, (1, 2)) * draws.bernoulli("film.flickers", 0.5, (1, 1))
    return Sensor(
        shutter=draws.uniform("film.shutter", 0.2, 0.9) * draws.bernoulli("film.blur", 0.7),
        aperture=draws.log_uniform("film.aperture", 1.0, 12.0) * draws.bernoulli("film.soft", 0.3),
        focus=draws.log_uniform("film.focus", *focus),
        exposure=MotionPath.of(zero + draws.normal("film.gain", 0.0, 0.05, (3,))).with_waves(
            flicker, draws.uniform("film.rate", 0.2, 4.0, (1, 2)), draws.uniform("film.phase", 0.0, 6.28, (1, 2))
        ),
        gamma=draws.log_uniform("film.gamma", 0.85, 1.2),
        lift=draws.uniform("film.lift", -0.02, 0.04),
        vignette=draws.uniform("film.vignette", -0.2, 0.4).clamp_min(0),
        read=draws.log_uniform("film.read", 0.001, 0.02),
        shot=draws.log_uniform("film.shot", 0.002, 0.03),
        quality=draws.uniform("film.quality", 40.0, 97.0),
        key=draws.integer("film.key", 0, 2**31),
    )


def build_camera(
    draws: SceneRandom,
    size: tuple[int, int],
    focal: Tensor,
    position: MotionPath,
    turn: MotionPath,
    base: Tensor,
    shake: float,
    horizon: float = 0.5,
) -> Camera:
    """Build a camera with hand shake and its principal point in the middle column.

    Args:
        draws: Random numbers of the scenes.
        size: (height, width) of the images.
        focal: B x 1, focal length, pixels.
        position: As in `Camera`.
        turn: As in `Camera`.
        base: As in `Camera`.
        shake: Strength of the hand shake.
        horizon: Row of the principal point, as a fraction of the height.
    """
    center = torch.tensor([0.5 * (size[1] - 1), horizon * (size[0] - 1)], dtype=torch.float64)
    shake_path, shake_turn = sample_hand_motion(draws, shake)
    return Camera(
        focal=focal.expand(-1, 2),
        center=center.expand(len(draws), 2),
        position=position,
        turn=turn,
        base=base,
        shake=shake_path,
        shake_turn=shake_turn,
    )


def ripple_waves(amplitude: Tensor, waves: Tensor, phase: Tensor, rate: Tensor) -> Tensor:
    """Stack the parameters of ripples, B x n x 2 each, as in `Primitives`: B x n x 2 x 4."""
    return torch.stack((amplitude, waves, phase, rate), dim=-1)


def add_sky(assembly: Assembly) -> None:
    """Add a bright sky with wide clouds; it encloses every scene, so that every ray hits something."""
    radius = torch.full((assembly.batch, 1, 3), SKY_RADIUS, dtype=torch.float64)
    blue = (0.88, 1.0, 1.14)
    material = Material(repeat=(900.0, 2500.0), contrast=(0.1, 0.4), tone=(0.6, 0.8), tint=0.06, color=blue, gloss=0.0)
    assembly.add("sky", "sky", torch.zeros(assembly.batch, 1, 3), radius, material=material)


def sample_hand_motion(draws: SceneRandom, strength: float = 1.0) -> tuple[MotionPath, MotionPath]:
    """Draw hand shake: translation along the camera axes (meters) and rotation about them (radians), paths of B x 3.

    Tremor and sway from 0.4 to 12 Hz with an amplitude that falls with frequency; half of the scenes add the steps of a
    walking person: two vertical oscillations and one lateral oscillation per two steps. A strength of 0 is no shake.
    """
    if not strength:
        return MotionPath.of(torch.zeros(len(draws), 3)), MotionPath.of(torch.zeros(len(draws), 3))
    size = strength * draws.log_uniform("hand.size", 0.4, 2.0, (1, 1))
    num_waves = 10
    zero = torch.zeros(len(draws), 3, dtype=torch.float64)

    def tremor(name: str, amplitude: Tensor) -> MotionPath:
        frequency = draws.log_uniform(f"{name}.frequency", 0.4, 12.0, (3, num_waves))
        spectrum = (
            draws.normal(f"{name}.amplitude", 0.0, 1.0, (3, num_waves)) / (1 + frequency) / math.sqrt(num_waves / 2)
        )
        phase = draws.uniform(f"{name}.phase", 0.0, 2 * math.pi, (3, num_waves))
        return MotionPath.of(zero).with_waves(size * amplitude * spectrum, frequency, phase)

    # About one degree and a few millimeters; smallest about the optical axis.
    turn = tremor("hand.turn", torch.tensor([0.045, 0.045, 0.025], dtype=torch.float64)[:, None])
    shift = tremor("hand.shift", torch.tensor([0.012, 0.012, 0.008], dtype=torch.float64)[:, None])
    walk_strength = draws.bernoulli("hand.walks", 0.5, (1, 1)) * size
    step, phase = draws.uniform("hand.step", 1.6, 2.2, (1, 1)), draws.uniform("hand.foot", 0.0, 6.28, (1, 1))
    halves = torch.tensor([0.5, 1.0, 1.0], dtype=torch.float64)[:, None]
    sway = torch.tensor([0.015, 0.025, 0.01], dtype=torch.float64)[:, None]
    nod = torch.tensor([0.008, 0.006, 0.008], dtype=torch.float64)[:, None]
    return (
        shift.with_waves(walk_strength * sway, step * halves, phase),
        turn.with_waves(walk_strength * nod, step * halves.flip(0), phase + 1.0),
    )
