"""The points that rays have met: where on the thing they are, where they go, which way they face, their color."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from protoformer.geometry.warps import rotation
from protoformer.synthetic.casting import ripple, unripple
from protoformer.synthetic.scene import FORWARD, INVERSE, KINDS, ORIGIN, PLACE, RIPPLE, Frame, Primitives, to_device
from protoformer.synthetic.texture_bank import TextureBank

SIZE, LIT, TILING, GAIN, BIAS, GLOSS = slice(0, 3), slice(3, 12), slice(12, 18), slice(18, 21), slice(21, 24), 24
"""Rows of the table of looks."""
SOFTNESS = 0.8
"""Levels by which textures are smoother than a pixel's area asks for: as a lens does, and so that resampling an image
loses next to nothing."""
LEAST_FACING = 0.05
"""Surfaces that are seen at a smaller cosine than this are not smoothed further, or roads would turn to fog."""


@dataclass(frozen=True, kw_only=True)
class Looks:
    """How primitives look, on the rendering device; it does not change over time.

    table: F x B x P, float32. SIZE: half sizes at rest, meters. LIT: from own normals to the world's at time 0. TILING,
    GAIN, BIAS, GLOSS: of `Primitives`. texture, instance: B x P, int64. sun: B x 3, in the world; ambient: B;
    sunlight: B x 3.
    """

    table: Tensor
    texture: Tensor
    instance: Tensor
    sun: Tensor
    ambient: Tensor
    sunlight: Tensor


def of_each(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a table for the primitive of each ray: F x B x P and B x N to F x B x N."""
    batch, primitives = table.shape[1:]
    flat = index + primitives * torch.arange(batch, device=index.device)[:, None]
    return table.flatten(1).index_select(1, flat.flatten()).view(-1, *index.shape)


@dataclass(frozen=True)
class Hits:
    """What N rays of each of B scenes met.

    frame: when. index: B x N, the primitive. depth: B x N, meters. ray: 2 x B x N, x and y of the directions (x, y, 1).
    """

    frame: Frame
    index: Tensor
    depth: Tensor
    ray: Tensor

    @property
    def points(self) -> Tensor:
        """In the camera's axes: 3 x B x N, meters."""
        return torch.cat((self.ray * self.depth, self.depth[None]))

    @cached_property
    def flat(self) -> Tensor:
        """Whether it is a rectangle, a blob or a cutout: B x N, bool."""
        return self.index < sum(self.frame.counts[: KINDS.index("box")])

    @cached_property
    def own(self) -> Tensor:
        """Where on the primitive, in its own coordinates: 3 x B x N."""
        a, o = of_each(self.frame.table[INVERSE], self.index), of_each(self.frame.table[ORIGIN], self.index)
        x, y, z = *(self.ray * self.depth), self.depth
        return torch.stack([a[3 * i] * x + a[3 * i + 1] * y + a[3 * i + 2] * z + o[i] for i in range(3)])

    @cached_property
    def material(self) -> Tensor:
        """The same without the ripple, so that it does not change over time: 3 x B x N."""
        x, y = ripple(self.own[0], self.own[1], of_each(self.frame.table[RIPPLE], self.index))
        return torch.stack(
            (torch.where(self.flat, x, self.own[0]), torch.where(self.flat, y, self.own[1]), self.own[2])
        )

    @cached_property
    def face(self) -> Tensor:
        """The axis, of the primitive's own, that the surface lies across, and which side of it: B x N, 0 to 5."""
        size = self.own.abs()
        axis = torch.where(size[1] > size[0], 1, 0)
        axis = torch.where(size[2] > torch.maximum(size[0], size[1]), 2, axis)
        along = torch.where(axis == 0, self.own[0], torch.where(axis == 1, self.own[1], self.own[2]))
        return torch.where(self.flat, 4, 2 * axis + (along > 0))


def hits(frame: Frame, index: Tensor, depth: Tensor, positions: Tensor) -> Hits:
    """What rays through positions (B x 2 x N, pixels) met, given as `casting.nearest` does."""
    return Hits(frame, index, depth, torch.stack(frame.rays(positions)))


def carried(hit: Hits, frame: Frame) -> Tensor:
    """Where the same material is in another frame: 3 x B x N, meters, in that frame's camera axes."""
    rows = of_each(torch.cat((frame.table[FORWARD], frame.table[PLACE], frame.table[RIPPLE])), hit.index)
    a, place, waves = rows[0:9], rows[9:12], rows[12:18]
    flat_x, flat_y = unripple(hit.material[0], hit.material[1], waves)
    x, y = torch.where(hit.flat, flat_x, hit.material[0]), torch.where(hit.flat, flat_y, hit.material[1])
    z = hit.material[2]
    return torch.stack([a[3 * i] * x + a[3 * i + 1] * y + a[3 * i + 2] * z + place[i] for i in range(3)])


def own_normals(hit: Hits) -> Tensor:
    """The surface's gradient in the primitive's own coordinates, of any length: 3 x B x N."""
    counts = hit.frame.counts
    start = sum(counts[: KINDS.index("ball")])
    round_ = (hit.index >= start) & (hit.index < start + counts[KINDS.index("ball")])
    round_ = round_ | (hit.index >= sum(counts[: KINDS.index("sky")]))
    axis, side = hit.face // 2, 2.0 * (hit.face % 2) - 1
    return torch.stack([torch.where(round_, hit.own[i], torch.where(axis == i, side, 0.0)) for i in range(3)])


def _unit(vectors: Tensor) -> Tensor:
    """Vectors, 3 x ..., of length 1."""
    return vectors / vectors.square().sum(dim=0).clamp_min(1e-24).sqrt()


def normals(hit: Hits) -> Tensor:
    """Unit normals in the camera's axes, on the side that is seen: 3 x B x N."""
    a = of_each(hit.frame.table[INVERSE], hit.index)
    n = own_normals(hit)
    across = _unit(torch.stack([a[i] * n[0] + a[3 + i] * n[1] + a[6 + i] * n[2] for i in range(3)]))
    facing = across[0] * hit.ray[0] + across[1] * hit.ray[1] + across[2]
    return torch.where(facing > 0, -across, across)


@dataclass(frozen=True)
class Surface:
    """What the material at points looks like.

    color: 3 x B x N, unlit. light: B x N, what falls on it at time 0 and stays with it. gloss: B x N. normals:
    3 x B x N, unit, in the camera's axes.
    """

    color: Tensor
    light: Tensor
    gloss: Tensor
    normals: Tensor


def surface(hit: Hits, looks: Looks, bank: TextureBank) -> Surface:
    """Look the material up at each point."""
    if hit.index.device.type == "cuda":
        from protoformer.synthetic.kernels import surface_kernels

        frame = hit.frame
        parts = surface_kernels.surface(
            frame.table, looks.table, looks.texture, bank.texels, bank.side, bank.surfaces, frame.counts,
            frame.lens, surface_kernels.light_of(looks), hit.index, hit.depth, hit.ray,
        )  # fmt: skip
        return Surface(parts[:3], parts[3], parts[4], parts[5:])
    return plain_surface(hit, looks, bank)


def plain_surface(hit: Hits, looks: Looks, bank: TextureBank) -> Surface:
    """As `surface`, on any device."""
    counts = hit.frame.counts
    rows = of_each(looks.table, hit.index)
    texture = of_each(looks.texture[None], hit.index)[0]
    normal = normals(hit)
    size, tiling = rows[SIZE], rows[TILING]
    x, y, z = hit.material * size
    axis = hit.face // 2
    s, t = torch.where(axis == 0, z, x), torch.where(axis == 1, z, y)
    apart = 0.37 * hit.face  # faces of a box show different places of its texture
    u = tiling[0] * s + tiling[1] * t + tiling[2] + torch.where(texture < bank.surfaces, apart, 0.0)
    v = tiling[3] * s + tiling[4] * t + tiling[5]
    # A pixel covers depth / focal meters across the ray, and more along a surface that is seen at an angle.
    facing = -(normal[0] * hit.ray[0] + normal[1] * hit.ray[1] + normal[2])
    facing = facing / (1 + hit.ray.square().sum(dim=0)).sqrt()
    area = tiling[0] * tiling[4] - tiling[1] * tiling[3]
    meters = hit.depth / hit.frame.lens[:, :1]
    footprint = bank.side**2 * meters * meters * area.abs() / facing.clamp_min(LEAST_FACING)
    color = bank.sample(texture, u, v, SOFTNESS + 0.5 * footprint.clamp_min(1e-12).log2())[:3]
    color = (rows[GAIN] * color + rows[BIAS]).clamp(0, 1)
    n, lit = own_normals(hit), rows[LIT]
    world = _unit(torch.stack([lit[3 * i] * n[0] + lit[3 * i + 1] * n[1] + lit[3 * i + 2] * n[2] for i in range(3)]))
    towards = (world * looks.sun.T[:, :, None]).sum(dim=0)
    light = shade(torch.where(hit.flat, towards.abs(), towards), looks.ambient[:, None])
    around = hit.index >= sum(counts[: KINDS.index("room")])  # rooms and skies give the light themselves
    return Surface(color, torch.where(around, 1.0, light), rows[GLOSS], normal)


def shade(towards: Tensor, ambient: Tensor) -> Tensor:
    """Light on a surface whose normal has the cosine `towards` with the sun's direction; softer than Lambert's law."""
    return ambient + (1 - ambient) * (0.5 + 0.5 * towards).clamp(0, 1)


def looks_of(primitives: Primitives, sun: Tensor, ambient: Tensor, sunlight: Tensor, device: torch.device) -> Looks:
    """Put the looks of scenes on the rendering device."""
    at_start = rotation(primitives.spin.at(torch.zeros(primitives.alive.shape[0]))) @ primitives.base
    lit = at_start / primitives.extent[..., None, :]
    table = torch.cat(
        (
            primitives.extent,
            lit.flatten(-2),
            primitives.tiling.flatten(-2),
            primitives.gain,
            primitives.bias,
            primitives.gloss[..., None],
        ),
        dim=-1,
    )
    return Looks(
        table=to_device(table.permute(2, 0, 1).float(), device),
        texture=to_device(primitives.texture, device),
        instance=to_device(primitives.instance, device),
        sun=to_device(sun.float(), device),
        ambient=to_device(ambient.float(), device),
        sunlight=to_device(sunlight.float(), device),
    )
