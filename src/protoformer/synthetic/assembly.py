"""Putting a batch of scenes together, group by group."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from protoformer.geometry.warps import rotation
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import KINDS, Atmosphere, MotionPath, Primitives, Sensor, join_paths


@dataclass(frozen=True)
class Look:
    """How the things of a group are colored.

    repeat: meters that one repeat of the texture covers, (least, most). contrast: factor on the texture, (least, most).
    tone: brightness that the texture's middle gray takes, (least, most); None leaves a texture its own colors, but for
    small changes. tint: how much the three colors may differ; color: what they are multiplied by. gloss: the most
    that a highlight adds. plain: the share of things with hardly any texture, of a brightness within `bare`, anything
    from black to white unless told otherwise. alike: whether all things of the group in a scene look the same.
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
    """Collects groups of primitives for the scenes of `draws`; textures come from a bank of so many of each sort."""

    draws: SceneRandom
    surfaces: int
    cutouts: int
    groups: list[dict[str, object]] = field(default_factory=list)

    @property
    def batch(self) -> int:
        """How many scenes are made at once."""
        return len(self.draws)

    def add(
        self,
        kind: str,
        name: str,
        position: Tensor | MotionPath,
        extent: Tensor,
        *,
        look: Look = Look(),  # noqa: B008
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
        """Add a group of one kind. position: B x n x 3, or a path; extent: B x n x 3; the others as in `Primitives`.

        roughness: how far a blob's outline is from a circle. texture: B x n / parts, or B x 1 for all of them, in 0 ..
        1, where in the bank to look; drawn if not given. parts: how many primitives make up a thing, and look the same:
        the first parts of all things come first, then the second ones. The name keeps the draws of groups apart.
        """
        count = extent.shape[1]
        shape = (self.batch, count)
        still = MotionPath.of(torch.zeros(*shape, 3))
        if base is None:
            base = torch.eye(3, dtype=torch.float64)
        looks = 1 if look.alike else count // parts
        chosen, tiling = self._texture(kind, name, extent.expand(*shape, 3), look, looks, texture)
        gain, bias, gloss = (_shared(values, count) for values in self._color(name, look, looks))
        self.groups.append(
            {
                "kind": kind,
                "alive": torch.ones(shape, dtype=torch.bool) if alive is None else alive.expand(shape),
                "position": position if isinstance(position, MotionPath) else MotionPath.of(position.expand(*shape, 3)),
                "spin": still if spin is None else spin,
                "base": base.expand(*shape, 3, 3),
                "offset": torch.zeros(*shape, 3) if offset is None else offset.expand(*shape, 3),
                "extent": extent.expand(*shape, 3),
                "stretch": still if stretch is None else stretch,
                "outline": self._outline(name, count, roughness if kind == "blob" else 0.0),
                "ripple": torch.zeros(*shape, 2, 4) if ripple is None else ripple.expand(*shape, 2, 4),
                "instance": torch.as_tensor(instance).expand(shape),
                "casts": torch.full(shape, casts),
                "texture": chosen,
                "tiling": tiling,
                "gain": gain,
                "bias": bias,
                "gloss": gloss,
            }
        )

    def primitives(self) -> Primitives:
        """All groups, sorted by kind."""
        groups = sorted(self.groups, key=lambda group: KINDS.index(str(group["kind"])))
        counts = [0] * len(KINDS)
        for group in groups:
            counts[KINDS.index(str(group["kind"]))] += group["extent"].shape[1]  # type: ignore[attr-defined]
        whole: dict[str, object] = {}
        for key in groups[0]:
            parts = [group[key] for group in groups]
            if isinstance(parts[0], MotionPath):
                whole[key] = join_paths(parts)  # type: ignore[arg-type]
            elif isinstance(parts[0], Tensor):
                wanted = parts[0].dtype if not parts[0].is_floating_point() else torch.float64
                whole[key] = torch.cat([part.to(wanted) for part in parts], dim=1)  # type: ignore[attr-defined]
        return Primitives(counts=tuple(counts), **whole)  # type: ignore[arg-type]

    def _texture(
        self, kind: str, name: str, extent: Tensor, look: Look, drawn: int, place: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Which texture, B x n, and how it lies, B x n x 2 x 3; so many are drawn."""
        count = extent.shape[1]
        place = self.draws.uniform(f"{name}: texture", shape=(drawn,)) if place is None else place
        place = _shared(place, count)
        if kind == "cutout":  # the silhouette fills the patch
            tiling = torch.zeros(self.batch, count, 2, 3, dtype=torch.float64)
            tiling[..., 0, 0], tiling[..., 1, 1] = 0.5 / extent[..., 0], 0.5 / extent[..., 1]
            tiling[..., 2] = 0.5
            return self.surfaces + (place * self.cutouts).long(), tiling
        density = 1 / self.draws.log_uniform(f"{name}: repeat", *look.repeat, (drawn,))
        quarter = 0.5 * math.pi * self.draws.integer(f"{name}: quarter", 0, 4, (drawn,))
        angle = quarter + self.draws.normal(f"{name}: angle", 0.0, 0.03, (drawn,))
        cos, sin = density * angle.cos(), density * angle.sin()
        shift = self.draws.uniform(f"{name}: shift", 0.0, 2.0, (drawn, 2))
        tiling = torch.stack((cos, -sin, shift[..., 0], sin, cos, shift[..., 1]), dim=-1)
        return (place * self.surfaces).long(), _shared(tiling, count).unflatten(-1, (2, 3))

    def _color(self, name: str, look: Look, drawn: int) -> tuple[Tensor, Tensor, Tensor]:
        """Factor and offset of the texture, B x drawn x 3 each, and the strength of a highlight, B x drawn."""
        tint = 1 + self.draws.uniform(f"{name}: tint", -look.tint, look.tint, (drawn, 3))
        gain = self.draws.uniform(f"{name}: contrast", *look.contrast, (drawn, 1)) * tint
        if look.tone is None:
            bias = 0.5 - 0.5 * gain + self.draws.uniform(f"{name}: lift", -0.05, 0.05, (drawn, 1))
        else:
            color = torch.tensor(look.color, dtype=torch.float64)
            gain, tone = gain * color, self.draws.uniform(f"{name}: tone", *look.tone, (drawn, 1))
            bias = tone * tint * color - 0.5 * gain
        if look.plain:
            plain = self.draws.whether(f"{name}: plain", look.plain, (drawn, 1))
            faint = gain * self.draws.uniform(f"{name}: faint", 0.02, 0.2, (drawn, 1))
            bare = self.draws.uniform(f"{name}: bare", *look.bare, (drawn, 1)) * tint - 0.5 * faint
            gain, bias = torch.where(plain, faint, gain), torch.where(plain, bare, bias)
        gloss = self.draws.uniform(f"{name}: gloss", -look.gloss, look.gloss, (drawn,)).clamp_min(0)
        return gain, bias, gloss

    def _outline(self, name: str, count: int, roughness: float) -> Tensor:
        """Of blobs, B x n x 7; a circle where there is no roughness."""
        if not roughness:
            return torch.eye(7, dtype=torch.float64)[0].expand(self.batch, count, 7)
        waves = self.draws.normal(f"{name}: outline", 0.0, roughness, (count, 6)).clamp(-0.5, 0.5)
        waves = waves * torch.tensor([0.5, 0.5, 0.35, 0.35, 0.15, 0.15], dtype=torch.float64)
        total = waves.abs().sum(dim=-1, keepdim=True)
        round_ = (1 - total).clamp_min(0.35)
        return torch.cat((round_, waves), dim=-1) / (round_ + total)  # no point is outside the unit circle


def _shared(values: Tensor, count: int) -> Tensor:
    """The looks of some things, B x n x ..., for all their parts, B x count x ..."""
    return torch.cat((values,) * (count // values.shape[1]), dim=1)


def clear_of(primitives: Primitives, point: Tensor, gap: float) -> Primitives:
    """Without the bodies of boxes, balls and cutouts that come nearer than `gap` meters to a point (B x 3) at time 0.

    Parts that are at one place but for their offsets are of one body, and go together.
    """
    zero = torch.zeros(len(point))
    turned, origin = rotation(primitives.spin.at(zero)), primitives.position.at(zero)
    middle = origin + (turned @ primitives.offset[..., None])[..., 0]
    own = ((turned @ primitives.base).transpose(-1, -2) @ (point[:, None] - middle)[..., None])[..., 0]
    flat = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)  # a cutout has no depth
    cutouts, boxes = sum(primitives.counts[:2]), sum(primitives.counts[:3])
    number = torch.arange(primitives.alive.shape[1])
    extent = torch.where((number < boxes)[:, None], primitives.extent * flat, primitives.extent)
    distance = (own.abs() - extent).clamp_min(0).norm(dim=-1)
    solid = (number >= cutouts) & (number < sum(primitives.counts[:5]))
    near = solid & primitives.alive & (distance < gap)
    x, y, z = origin.unbind(dim=-1)
    shared = near[:, None] & (x[:, :, None] == x[:, None])
    shared = shared & (y[:, :, None] == y[:, None]) & (z[:, :, None] == z[:, None])
    return replace(primitives, alive=primitives.alive & ~(solid & shared.any(dim=-1)))


def upright(heading: Tensor) -> Tensor:
    """Rotation of a thing that stands, turned about the vertical by an angle: ... to ... x 3 x 3."""
    zero = torch.zeros_like(heading)
    return rotation(torch.stack((zero, heading, zero), dim=-1))


def lying() -> Tensor:
    """Rotation that lays a patch flat on the ground: its own x to the right and y forward."""
    return rotation(torch.tensor([-math.pi / 2, 0.0, 0.0], dtype=torch.float64))


def vectors(x: Tensor | float, y: Tensor | float, z: Tensor | float) -> Tensor:
    """Stack three coordinates, tensors or numbers, into ... x 3."""
    parts = torch.broadcast_tensors(*(torch.as_tensor(part, dtype=torch.float64) for part in (x, y, z)))
    return torch.stack(parts, dim=-1)


SKY_RADIUS = 2000.0
"""Meters."""


def sample_air(draws: SceneRandom, fog: tuple[float, float] = (0.0005, 0.02), foggy: float = 0.3) -> Atmosphere:
    """A sun above the horizon. fog: least and most, per meter, where there is any, which is in the share `foggy`."""
    height, heading = draws.uniform("sun.height", 0.3, 1.3), draws.uniform("sun.heading", 0.0, 2 * math.pi)
    sun = vectors(height.cos() * heading.cos(), -height.sin(), height.cos() * heading.sin())
    gray = draws.uniform("fog.grey", 0.45, 0.9, (1,))
    return Atmosphere(
        sun=sun,
        ambient=draws.uniform("sun.ambient", 0.35, 0.75),
        sunlight=1 + draws.uniform("sun.colour", -0.08, 0.08, (3,)),
        fog=draws.log_uniform("fog.density", *fog) * draws.whether("fog.is", foggy),
        fog_color=(gray + draws.uniform("fog.colour", -0.08, 0.08, (3,))).clamp(0, 1),
    )


def sample_sensor(draws: SceneRandom, focus: tuple[float, float] = (2.0, 20.0)) -> Sensor:
    """A camera's habits: some scenes are sharp and clean, some are not. focus: least and most, meters."""
    still = torch.zeros(len(draws), 3, dtype=torch.float64)
    flicker = draws.normal("film.flicker", 0.0, 0.06, (1, 2)) * draws.whether("film.flickers", 0.5, (1, 1))
    return Sensor(
        shutter=draws.uniform("film.shutter", 0.2, 0.9) * draws.whether("film.blur", 0.7),
        aperture=draws.log_uniform("film.aperture", 1.0, 12.0) * draws.whether("film.soft", 0.3),
        focus=draws.log_uniform("film.focus", *focus),
        exposure=MotionPath.of(still + draws.normal("film.gain", 0.0, 0.05, (3,))).with_waves(
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


def add_sky(assembly: Assembly) -> None:
    """Bright, with wide clouds; it closes every scene, so that every ray meets something."""
    radius = torch.full((assembly.batch, 1, 3), SKY_RADIUS, dtype=torch.float64)
    blue = (0.88, 1.0, 1.14)
    look = Look(repeat=(900.0, 2500.0), contrast=(0.1, 0.4), tone=(0.6, 0.8), tint=0.06, color=blue, gloss=0.0)
    assembly.add("sky", "sky", torch.zeros(assembly.batch, 1, 3), radius, look=look)


def sample_hand_motion(draws: SceneRandom, strength: float = 1.0) -> tuple[MotionPath, MotionPath]:
    """The shake of a hand: position along the camera's axes and turn about them, of B x 3; none at strength 0.

    Tremor and sway from 0.4 to 12 Hz whose amplitude falls as the frequency grows, and in some scenes the steps of
    someone who walks: up and down twice, and sideways once, in every two steps.
    """
    if not strength:
        return MotionPath.of(torch.zeros(len(draws), 3)), MotionPath.of(torch.zeros(len(draws), 3))
    size = strength * draws.log_uniform("hand.size", 0.4, 2.0, (1, 1))
    waves = 10
    still = torch.zeros(len(draws), 3, dtype=torch.float64)

    def tremor(name: str, amplitude: Tensor) -> MotionPath:
        frequency = draws.log_uniform(f"{name}.frequency", 0.4, 12.0, (3, waves))
        falling = draws.normal(f"{name}.amplitude", 0.0, 1.0, (3, waves)) / (1 + frequency) / math.sqrt(waves / 2)
        phase = draws.uniform(f"{name}.phase", 0.0, 2 * math.pi, (3, waves))
        return MotionPath.of(still).with_waves(size * amplitude * falling, frequency, phase)

    # About a degree and a few millimeters; least about the optical axis.
    turn = tremor("hand.turn", torch.tensor([0.045, 0.045, 0.025], dtype=torch.float64)[:, None])
    shift = tremor("hand.shift", torch.tensor([0.012, 0.012, 0.008], dtype=torch.float64)[:, None])
    walks = draws.whether("hand.walks", 0.5, (1, 1)) * size
    step, phase = draws.uniform("hand.step", 1.6, 2.2, (1, 1)), draws.uniform("hand.foot", 0.0, 6.28, (1, 1))
    halves = torch.tensor([0.5, 1.0, 1.0], dtype=torch.float64)[:, None]
    sway = torch.tensor([0.015, 0.025, 0.01], dtype=torch.float64)[:, None]
    nod = torch.tensor([0.008, 0.006, 0.008], dtype=torch.float64)[:, None]
    return (
        shift.with_waves(walks * sway, step * halves, phase),
        turn.with_waves(walks * nod, step * halves.flip(0), phase + 1.0),
    )
