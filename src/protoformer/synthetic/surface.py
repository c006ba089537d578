"""Ray casting: the hits of rays on the primitives of a scene, their geometry and their appearance.

Rays start at the camera, the origin of its axes, and have the direction (x, y, 1), so that the ray parameter of a hit
is its depth. In a primitive's local coordinates a ray is o + t d, and every intersection test is that of a unit shape.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import Tensor

from protoformer.geometry.warps import rotation
from protoformer.synthetic.scene import (
    CENTER,
    FORWARD,
    INVERSE,
    KINDS,
    MIN_FACING,
    NEAREST,
    ORIGIN,
    RIPPLE,
    SOFTNESS,
    Frame,
    Primitives,
    to_device,
)
from protoformer.synthetic.texture_bank import TextureBank

TILE = 96
"""Side of the CPU's image tiles, pixels; primitives outside a tile's bounds are culled."""

Vector = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Shapes:
    """Static shape data of the primitives, on the rendering device.

    Attributes:
        outline: 7 x B x P.
        texture: B x P, int64.
        bank: Texture bank, for the silhouettes of cutouts.
    """

    outline: Tensor
    texture: Tensor
    bank: TextureBank


def ripple(x: Tensor, y: Tensor, waves: Tensor) -> tuple[Tensor, Tensor]:
    """Map the plane of a rippling patch to its undeformed material. waves: 6 x ..., the table's RIPPLE rows."""
    x = x + waves[0] * torch.sin(waves[1] * y + waves[2])
    return x, y + waves[3] * torch.sin(waves[4] * x + waves[5])


def unripple(x: Tensor, y: Tensor, waves: Tensor) -> tuple[Tensor, Tensor]:
    """Map the undeformed material to the plane: the exact inverse of `ripple`."""
    y = y - waves[3] * torch.sin(waves[4] * x + waves[5])
    return x - waves[0] * torch.sin(waves[1] * y + waves[2]), y


def _intersect_plane(o: Vector, d: Vector) -> Vector:
    """Return the depth and the point (x, y) at which rays meet the plane z = 0."""
    depth = -o[2] / d[2]
    return depth, o[0] + depth * d[0], o[1] + depth * d[1]


def _intersect_rectangle(o: Vector, d: Vector) -> Tensor:
    depth, x, y = _intersect_plane(o, d)
    return torch.where(torch.maximum(x.abs(), y.abs()) <= 1, depth, torch.inf)


def _intersect_blob(o: Vector, d: Vector, outline: Tensor, waves: Tensor) -> Tensor:
    depth, x, y = _intersect_plane(o, d)
    x, y = ripple(x, y, waves)
    radius = (x * x + y * y).clamp_min(1e-12).sqrt()
    c, s = x / radius, y / radius
    c2, s2 = c * c - s * s, 2 * s * c
    c3, s3 = c2 * c - s2 * s, s2 * c + c2 * s
    c5, s5 = c2 * c3 - s2 * s3, s2 * c3 + c2 * s3
    outline_radius = outline[0] + outline[1] * c2 + outline[2] * s2 + outline[3] * c3 + outline[4] * s3
    return torch.where(radius <= outline_radius + outline[5] * c5 + outline[6] * s5, depth, torch.inf)


def _intersect_cutout(o: Vector, d: Vector, waves: Tensor, texture: Tensor, bank: TextureBank) -> Tensor:
    depth, x, y = _intersect_plane(o, d)
    x, y = ripple(x, y, waves)
    return torch.where(bank.covers(texture.expand_as(x), 0.5 * x + 0.5, 0.5 * y + 0.5), depth, torch.inf)


def _intersect_box(o: Vector, d: Vector, inside: bool) -> Tensor:
    entry, exit_ = None, None
    for origin, direction in zip(o, d, strict=True):
        # Rays parallel to a face would divide by 0.
        inverse = 1 / torch.where(direction.abs() < 1e-12, 1e-12, direction)
        center, half = -origin * inverse, inverse.abs()
        near, far = center - half, center + half
        entry = near if entry is None else torch.maximum(entry, near)
        exit_ = far if exit_ is None else torch.minimum(exit_, far)
    assert entry is not None and exit_ is not None
    return torch.where(entry <= exit_, exit_ if inside else entry, torch.inf)


def _intersect_ball(o: Vector, d: Vector, inside: bool) -> Tensor:
    norm_squared = d[0] * d[0] + d[1] * d[1] + d[2] * d[2]
    closest = -(o[0] * d[0] + o[1] * d[1] + o[2] * d[2]) / norm_squared
    # From the point closest to the center: subtracting squares of o would cancel catastrophically for distant balls.
    x, y, z = (origin + closest * direction for origin, direction in zip(o, d, strict=True))
    discriminant = 1 - (x * x + y * y + z * z)
    half_chord = (discriminant.clamp_min(0) / norm_squared).sqrt()
    return torch.where(discriminant >= 0, closest + half_chord if inside else closest - half_chord, torch.inf)


def _intersect(kind: str, o: Vector, d: Vector, table: Tensor, shapes: Shapes, part: slice) -> Tensor:
    """Intersect rays with the primitives of one kind: depths B x P' x N, infinite where they miss."""
    if kind == "rectangle":
        return _intersect_rectangle(o, d)
    if kind == "blob":
        return _intersect_blob(o, d, shapes.outline[:, :, part, None], table[RIPPLE, :, part, None])
    if kind == "cutout":
        waves = table[RIPPLE, :, part, None]
        return _intersect_cutout(o, d, waves, shapes.texture[:, part, None], shapes.bank)
    if kind in ("box", "room"):
        return _intersect_box(o, d, inside=kind == "room")
    return _intersect_ball(o, d, inside=kind == "sky")


def _rotate(matrix: Tensor, x: Tensor, y: Tensor, z: Tensor | float) -> Vector:
    """Multiply vectors by a matrix given row by row, 9 x ..."""
    rows = [matrix[row] * x + matrix[row + 1] * y + matrix[row + 2] * z for row in (0, 3, 6)]
    return rows[0], rows[1], rows[2]


def kind_slices(counts: tuple[int, ...]) -> list[tuple[str, slice]]:
    """Return the kinds that are present and the slice of the primitives of each."""
    parts, start = [], 0
    for kind, count in zip(KINDS, counts, strict=True):
        if count:
            parts.append((kind, slice(start, start + count)))
        start += count
    return parts


def _nearest(
    table: Tensor, alive: Tensor, shapes: Shapes, counts: tuple[int, ...], x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return depth and primitive index, B x N each, of the first hits of rays (x, y, 1) from the origin, B x N."""
    depth = torch.full_like(x, torch.inf)
    index = torch.zeros_like(x, dtype=torch.int64)
    ray_x, ray_y = x[:, None], y[:, None]
    for kind, part in kind_slices(counts):
        x0, y0, z0 = table[ORIGIN, :, part, None]
        d = _rotate(table[INVERSE, :, part, None], ray_x, ray_y, 1.0)
        hit_depth = _intersect(kind, (x0, y0, z0), d, table, shapes, part)
        hit_depth = torch.where((hit_depth > NEAREST) & alive[:, part, None], hit_depth, torch.inf)
        near, argmin = hit_depth.min(dim=1)
        closer = near < depth
        depth, index = torch.where(closer, near, depth), torch.where(closer, argmin + part.start, index)
    return depth, index


def _blocked(
    table: Tensor, alive: Tensor, sun: Tensor, shapes: Shapes, counts: tuple[int, ...], points: Tensor, own: Tensor
) -> Tensor:
    """Compute which points (3 x B x N, meters, camera coordinates) are shadowed: B x N, bool.

    `table`, F x B x P, is that of the frame; `alive`, B x P, are the primitives that cast shadows; `sun`, B x 3, is the
    unit vector towards the sun; `own`, B x N, is the primitive of each point, or -1.
    """
    shadowed = torch.zeros_like(own, dtype=torch.bool)
    for kind, part in kind_slices(counts):
        if kind in ("room", "sky"):
            continue
        inverse, (x0, y0, z0) = table[INVERSE, :, part, None], table[ORIGIN, :, part, None]
        x, y, z = _rotate(inverse, *points[:, :, None].unbind(0))
        origin = (x + x0, y + y0, z + z0)
        direction = _rotate(inverse, *sun.T[:, :, None, None].unbind(0))
        hit_depth = _intersect(kind, origin, direction, table, shapes, part)
        # Primitives are convex or flat, so that none shadows itself where it faces the light.
        other = torch.arange(part.start, part.stop, device=own.device).view(1, -1, 1) != own[:, None]
        shadowed = shadowed | ((hit_depth > NEAREST) & (hit_depth < torch.inf) & other & alive[:, part, None]).any(
            dim=1
        )
    return shadowed


def nearest(frame: Frame, shapes: Shapes, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Find the first hit of rays through image positions, B x 2 x N, pixels.

    Returns the depth in meters (infinite where nothing is hit) and the index of the primitive, B x N each.
    """
    x, y = frame.rays(positions)
    if x.device.type == "cuda":
        from protoformer.synthetic.kernels import surface_kernels as kernels

        return kernels.nearest(*_tensors(frame, shapes), frame.counts, x, y)
    bounds = _bounds(frame)
    depth, index = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64)
    for scene, rays in _tiles(frame, x.shape[1]):
        ray_x, ray_y = x[scene, rays], y[scene, rays]
        candidates = (frame.alive[scene] & _overlap(bounds[:, scene], ray_x, ray_y)).nonzero()[:, 0]
        table, subset, counts = _select_primitives(frame, shapes, scene, candidates)
        near, argmin = _nearest(
            table, torch.ones(1, len(candidates), dtype=torch.bool), subset, counts, ray_x[None], ray_y[None]
        )
        depth[scene, rays] = near[0]
        index[scene, rays] = candidates[argmin[0]] if len(candidates) else 0
    return depth, index


def in_shadow(frame: Frame, shapes: Shapes, points: Tensor, own: Tensor) -> Tensor:
    """Compute which points the sun does not reach: B x N, bool; undefined for points of the sky.

    `points` are 3 x B x N, meters, camera coordinates; `own` is the primitive of each point, B x N.
    """
    if points.device.type == "cuda":
        from protoformer.synthetic.kernels import surface_kernels as kernels

        return kernels.blocked(
            *_tensors(replace(frame, alive=frame.casts), shapes), frame.counts, frame.sun, points, own
        )
    plane_x, plane_y, bounds = _against_the_light(frame, points)
    shadowed = torch.zeros(own.shape, dtype=torch.bool)
    first_sky = sum(frame.counts[: KINDS.index("sky")])
    for scene, rays in _tiles(frame, own.shape[1]):
        if bool((own[scene, rays] >= first_sky).all()):
            continue
        candidates = (
            frame.casts[scene] & _overlap(bounds[:, scene], plane_x[scene, rays], plane_y[scene, rays])
        ).nonzero()[:, 0]
        table, subset, counts = _select_primitives(frame, shapes, scene, candidates)
        alive, sun = torch.ones(1, len(candidates), dtype=torch.bool), frame.sun[scene : scene + 1]
        local_index = torch.searchsorted(candidates, own[scene, rays])
        local_index = (
            torch.where(
                candidates[local_index.clamp_max(max(0, len(candidates) - 1))] == own[scene, rays], local_index, -1
            )
            if len(candidates)
            else local_index
        )
        shadowed[scene, rays] = _blocked(
            table, alive, sun, subset, counts, points[:, scene : scene + 1, rays], local_index[None]
        )[0]
    return shadowed


def _tensors(frame: Frame, shapes: Shapes) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int, int]:
    """Return the scene tensors that the kernels take."""
    bank = shapes.bank
    return frame.table, frame.alive, shapes.outline, shapes.texture, bank.silhouettes, bank.side, bank.surfaces


def _tiles(frame: Frame, num_rays: int) -> Iterator[tuple[int, Tensor | slice]]:
    """Yield (scene, rays) chunks of nearby rays: image tiles if there is one ray per pixel."""
    order = _tile_order(frame.size)
    chunks: Sequence[Tensor | slice] = [slice(start, start + TILE * TILE) for start in range(0, num_rays, TILE * TILE)]
    if order.shape[0] == num_rays:
        chunks = order.split(TILE * TILE)
    for scene in range(frame.alive.shape[0]):
        for chunk in chunks:
            yield scene, chunk


@cache
def _tile_order(size: tuple[int, int]) -> Tensor:
    """Return the pixel indices ordered by tiles of TILE x TILE."""
    height, width = size
    row, column = torch.arange(height)[:, None], torch.arange(width)
    tile = (row // TILE) * ((width + TILE - 1) // TILE) + column // TILE
    return tile.flatten().argsort(stable=True)


def _overlap(bounds: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return which bounds (4 x P) overlap the bounding rectangle of points: P, bool."""
    return (bounds[0] <= x.max()) & (bounds[1] >= x.min()) & (bounds[2] <= y.max()) & (bounds[3] >= y.min())


def _select_primitives(
    frame: Frame, shapes: Shapes, scene: int, selected: Tensor
) -> tuple[Tensor, Shapes, tuple[int, ...]]:
    """Return the table, shapes and counts of selected primitives of one scene."""
    ends = torch.tensor([0, *frame.counts]).cumsum(0)
    counts = tuple(torch.searchsorted(selected, ends).diff().tolist())
    batch_slice = slice(scene, scene + 1)
    return (
        frame.table[:, batch_slice, selected],
        Shapes(shapes.outline[:, batch_slice, selected], shapes.texture[batch_slice, selected], shapes.bank),
        counts,
    )


def _bounding_radii(frame: Frame) -> Tensor:
    """Return the radii of the primitives' bounding spheres: B x P, meters."""
    squares = frame.table[FORWARD].square().unflatten(0, (3, 3)).sum(dim=0)
    flat = torch.arange(squares.shape[2]) < sum(frame.counts[: KINDS.index("box")])
    wavy = 1 + frame.table[RIPPLE][0].abs() + frame.table[RIPPLE][3].abs()
    return 1.001 * torch.where(flat, (squares[0] + squares[1]).sqrt() * wavy, squares.sum(dim=0).sqrt()) + 1e-6


def _bounds(frame: Frame) -> Tensor:
    """Return the bounds of rays (x, y, 1) that may hit each primitive: 4 x B x P, (min x, max x, min y, max y)."""
    (x, y, z), radius = frame.table[CENTER], _bounding_radii(frame)
    near, far = (z - radius).clamp_min(1e-9), (z + radius).clamp_min(1e-9)
    ends = [
        reduce((center + side) / near, (center + side) / far)
        for center in (x, y)
        for side, reduce in ((-radius, torch.minimum), (radius, torch.maximum))
    ]
    unbounded = torch.tensor([-torch.inf, torch.inf, -torch.inf, torch.inf]).view(4, 1, 1)
    return torch.where(z <= radius, unbounded, torch.stack(ends))  # behind or around the camera: never culled


def _against_the_light(frame: Frame, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Project points and primitives along the sun's rays onto a plane perpendicular to them.

    Returns:
        x and y of the points (3 x B x N) in the plane, B x N each, and the bounds of the primitives there, 4 x B x P.
    """
    tangent = torch.linalg.cross(frame.sun, torch.eye(3)[frame.sun.abs().argmin(dim=1)])
    tangent = tangent / tangent.norm(dim=1, keepdim=True)
    axes = torch.stack((tangent, torch.linalg.cross(frame.sun, tangent)))  # 2 x B x 3
    (point_x, point_y), radius = torch.einsum("abi,ibn->abn", axes, points), _bounding_radii(frame)
    x, y = torch.einsum("abi,ibn->abn", axes, frame.table[CENTER])
    return point_x, point_y, torch.stack((x - radius, x + radius, y - radius, y + radius))


SIZE, LIT, TILING, GAIN, BIAS, GLOSS = slice(0, 3), slice(3, 12), slice(12, 18), slice(18, 21), slice(21, 24), 24
"""Rows of the material table."""


@dataclass(frozen=True, kw_only=True)
class Materials:
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
    """Build `Hits` from the output of `surface.nearest` for rays through positions (B x 2 x N, pixels)."""
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


def surface(hit: Hits, materials: Materials, bank: TextureBank) -> Surface:
    """Compute the appearance of each hit."""
    if hit.index.device.type == "cuda":
        from protoformer.synthetic.kernels import surface_kernels

        frame = hit.frame
        parts = surface_kernels.surface(
            frame.table, materials.table, materials.texture, bank.texels, bank.side, bank.surfaces, frame.counts,
            frame.lens, surface_kernels.light_of(materials), hit.index, hit.depth, hit.ray,
        )  # fmt: skip
        return Surface(parts[:3], parts[3], parts[4], parts[5:])
    return plain_surface(hit, materials, bank)


def plain_surface(hit: Hits, materials: Materials, bank: TextureBank) -> Surface:
    """Compute the appearance of each hit in PyTorch, on any device."""
    counts = hit.frame.counts
    rows = gather_rows(materials.table, hit.index)
    texture = gather_rows(materials.texture[None], hit.index)[0]
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
    cosine = (world_normals * materials.sun.T[:, :, None]).sum(dim=0)
    light = shade(torch.where(hit.flat, cosine.abs(), cosine), materials.ambient[:, None])
    encloses = hit.index >= sum(counts[: KINDS.index("room")])  # rooms and skies are emissive
    return Surface(color, torch.where(encloses, 1.0, light), rows[GLOSS], normal)


def shade(cosine: Tensor, ambient: Tensor) -> Tensor:
    """Return the light on a surface whose normal has this cosine with the sun direction; softer than Lambert's law."""
    return ambient + (1 - ambient) * (0.5 + 0.5 * cosine).clamp(0, 1)


def build_materials(
    primitives: Primitives, sun: Tensor, ambient: Tensor, sunlight: Tensor, device: torch.device
) -> Materials:
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
    return Materials(
        table=to_device(table.permute(2, 0, 1).float(), device),
        texture=to_device(primitives.texture, device),
        instance=to_device(primitives.instance, device),
        sun=to_device(sun.float(), device),
        ambient=to_device(ambient.float(), device),
        sunlight=to_device(sunlight.float(), device),
    )
