"""Geometry and appearance of ray hits: local coordinates, motion, normals and color."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from protoformer.geometry.warps import rotation
from protoformer.synthetic.casting import ripple, unripple
from protoformer.synthetic.scene import CENTER, FORWARD, INVERSE, KINDS, ORIGIN, RIPPLE, Frame, Primitives, to_device
from protoformer.synthetic.texture_bank import TextureBank

SIZE, LIT, TILING, GAIN, BIAS, GLOSS = slice(0, 3), slice(3, 12), slice(12, 18), slice(18, 21), slice(21, 24), 24
"""Rows of the material table."""
SOFTNESS = 0.8
"""Mip level bias: textures are smoother than the pixel footprint requires, as a lens makes them, so that resampling an
image loses almost nothing.
"""
MIN_FACING = 0.05
"""Minimum cosine of the viewing angle in the footprint; without it roads would blur to one color far away."""


@dataclass(frozen=True, kw_only=True)
class Looks:
    """Materials of the primitives, on the rendering device; constant over time.

    Attributes:
        table: F x B x P, float32. SIZE: half sizes at rest, meters. LIT: from local normals to world normals at time 0.
            TILING, GAIN, BIAS, GLOSS: as in `Primitives`.
        texture: B x P, int64.
        instance: B x P, int64.
        sun: B x 3, world coordinates.
        ambient: B.
        sunlight: B x 3.
    """

    table: Tensor
    texture: Tensor
    instance: Tensor
    sun: Tensor
    ambient: Tensor
    sunlight: Tensor


def gather_rows(table: Tensor, index: Tensor) -> Tensor:
    """Gather the table columns of each ray's primitive: F x B x P and B x N to F x B x N."""
    batch, num_primitives = table.shape[1:]
    flat = index + num_primitives * torch.arange(batch, device=index.device)[:, None]
    return table.flatten(1).index_select(1, flat.flatten()).view(-1, *index.shape)


@dataclass(frozen=True)
class Hits:
    """First hits of N rays in each of B scenes.

    Attributes:
        frame: Moment of the scenes.
        index: B x N, the primitive.
        depth: B x N, meters.
        ray: 2 x B x N, x and y of the directions (x, y, 1).
    """

    frame: Frame
    index: Tensor
    depth: Tensor
    ray: Tensor

    @property
    def points(self) -> Tensor:
        """The hits in camera coordinates: 3 x B x N, meters."""
        return torch.cat((self.ray * self.depth, self.depth[None]))

    @cached_property
    def flat(self) -> Tensor:
        """Whether the primitive is a rectangle, a blob or a cutout: B x N, bool."""
        return self.index < sum(self.frame.counts[: KINDS.index("box")])

    @cached_property
    def local(self) -> Tensor:
        """The hits in the primitives' local coordinates: 3 x B x N."""
        a, o = gather_rows(self.frame.table[INVERSE], self.index), gather_rows(self.frame.table[ORIGIN], self.index)
        x, y, z = *(self.ray * self.depth), self.depth
        return torch.stack([a[3 * i] * x + a[3 * i + 1] * y + a[3 * i + 2] * z + o[i] for i in range(3)])

    @cached_property
    def material(self) -> Tensor:
        """Local coordinates without the ripple, constant over time for a material point: 3 x B x N."""
        x, y = ripple(self.local[0], self.local[1], gather_rows(self.frame.table[RIPPLE], self.index))
        return torch.stack(
            (torch.where(self.flat, x, self.local[0]), torch.where(self.flat, y, self.local[1]), self.local[2])
        )

    @cached_property
    def face(self) -> Tensor:
        """The face of the primitive, 2 * axis + side in local coordinates: B x N, 0 to 5."""
        size = self.local.abs()
        axis = torch.where(size[1] > size[0], 1, 0)
        axis = torch.where(size[2] > torch.maximum(size[0], size[1]), 2, axis)
        coordinate = torch.where(axis == 0, self.local[0], torch.where(axis == 1, self.local[1], self.local[2]))
        return torch.where(self.flat, 4, 2 * axis + (coordinate > 0))


def hits(frame: Frame, index: Tensor, depth: Tensor, positions: Tensor) -> Hits:
    """Build `Hits` from the output of `casting.nearest` for rays through positions (B x 2 x N, pixels)."""
    return Hits(frame, index, depth, torch.stack(frame.rays(positions)))


def transport_points(hit: Hits, frame: Frame) -> Tensor:
    """Compute where the same material points are in another frame: 3 x B x N, meters, its camera coordinates."""
    rows = gather_rows(torch.cat((frame.table[FORWARD], frame.table[CENTER], frame.table[RIPPLE])), hit.index)
    a, center, waves = rows[0:9], rows[9:12], rows[12:18]
    flat_x, flat_y = unripple(hit.material[0], hit.material[1], waves)
    x, y = torch.where(hit.flat, flat_x, hit.material[0]), torch.where(hit.flat, flat_y, hit.material[1])
    z = hit.material[2]
    return torch.stack([a[3 * i] * x + a[3 * i + 1] * y + a[3 * i + 2] * z + center[i] for i in range(3)])


def local_normals(hit: Hits) -> Tensor:
    """Compute unnormalized surface normals in the primitives' local coordinates: 3 x B x N."""
    counts = hit.frame.counts
    start = sum(counts[: KINDS.index("ball")])
    is_ball = (hit.index >= start) & (hit.index < start + counts[KINDS.index("ball")])
    is_ball = is_ball | (hit.index >= sum(counts[: KINDS.index("sky")]))
    axis, side = hit.face // 2, 2.0 * (hit.face % 2) - 1
    return torch.stack([torch.where(is_ball, hit.local[i], torch.where(axis == i, side, 0.0)) for i in range(3)])


def _normalize(vectors: Tensor) -> Tensor:
    """Scale vectors, 3 x ..., to unit length."""
    return vectors / vectors.square().sum(dim=0).clamp_min(1e-24).sqrt()


def normals(hit: Hits) -> Tensor:
    """Compute unit normals in camera coordinates, oriented towards the camera: 3 x B x N."""
    a = gather_rows(hit.frame.table[INVERSE], hit.index)
    n = local_normals(hit)
    unit_normals = _normalize(torch.stack([a[i] * n[0] + a[3 + i] * n[1] + a[6 + i] * n[2] for i in range(3)]))
    facing = unit_normals[0] * hit.ray[0] + unit_normals[1] * hit.ray[1] + unit_normals[2]
    return torch.where(facing > 0, -unit_normals, unit_normals)


@dataclass(frozen=True)
class Surface:
    """Appearance of material points.

    Attributes:
        color: 3 x B x N, albedo.
        light: B x N, irradiance at time 0, which stays attached to the material.
        gloss: B x N.
        normals: 3 x B x N, unit, camera coordinates.
    """

    color: Tensor
    light: Tensor
    gloss: Tensor
    normals: Tensor


def surface(hit: Hits, looks: Looks, bank: TextureBank) -> Surface:
    """Compute the appearance of each hit."""
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
    """Compute the appearance of each hit in PyTorch, on any device."""
    counts = hit.frame.counts
    rows = gather_rows(looks.table, hit.index)
    texture = gather_rows(looks.texture[None], hit.index)[0]
    normal = normals(hit)
    size, tiling = rows[SIZE], rows[TILING]
    x, y, z = hit.material * size
    axis = hit.face // 2
    s, t = torch.where(axis == 0, z, x), torch.where(axis == 1, z, y)
    face_offset = 0.37 * hit.face  # the faces of a box show different parts of its texture
    u = tiling[0] * s + tiling[1] * t + tiling[2] + torch.where(texture < bank.surfaces, face_offset, 0.0)
    v = tiling[3] * s + tiling[4] * t + tiling[5]
    # A pixel covers depth / focal meters across the ray, and more along an oblique surface.
    facing = -(normal[0] * hit.ray[0] + normal[1] * hit.ray[1] + normal[2])
    facing = facing / (1 + hit.ray.square().sum(dim=0)).sqrt()
    area = tiling[0] * tiling[4] - tiling[1] * tiling[3]
    pixel_size = hit.depth / hit.frame.lens[:, :1]
    footprint = bank.side**2 * pixel_size * pixel_size * area.abs() / facing.clamp_min(MIN_FACING)
    color = bank.sample(texture, u, v, SOFTNESS + 0.5 * footprint.clamp_min(1e-12).log2())[:3]
    color = (rows[GAIN] * color + rows[BIAS]).clamp(0, 1)
    n, lit = local_normals(hit), rows[LIT]
    world_normals = _normalize(
        torch.stack([lit[3 * i] * n[0] + lit[3 * i + 1] * n[1] + lit[3 * i + 2] * n[2] for i in range(3)])
    )
    cosine = (world_normals * looks.sun.T[:, :, None]).sum(dim=0)
    light = shade(torch.where(hit.flat, cosine.abs(), cosine), looks.ambient[:, None])
    encloses = hit.index >= sum(counts[: KINDS.index("room")])  # rooms and skies are emissive
    return Surface(color, torch.where(encloses, 1.0, light), rows[GLOSS], normal)


def shade(cosine: Tensor, ambient: Tensor) -> Tensor:
    """Return the light on a surface whose normal has this cosine with the sun direction; softer than Lambert's law."""
    return ambient + (1 - ambient) * (0.5 + 0.5 * cosine).clamp(0, 1)


def build_looks(primitives: Primitives, sun: Tensor, ambient: Tensor, sunlight: Tensor, device: torch.device) -> Looks:
    """Build the materials of scenes on the rendering device."""
    rotations = rotation(primitives.spin.at(torch.zeros(primitives.alive.shape[0]))) @ primitives.base
    lit = rotations / primitives.extent[..., None, :]
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
