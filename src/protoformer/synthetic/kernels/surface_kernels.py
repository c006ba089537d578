"""Triton kernels for ray casting, and for the appearance and the motion of hits.

A block of rays iterates over the primitives of its scene and writes only the nearest hit. The kernels mirror
`surface._nearest`, `surface._blocked`, `surface.plain_surface` and `Renderer.moved` step by step; tests compare them.
"""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.synthetic import scene
from protoformer.synthetic.scene import Frame

if TYPE_CHECKING:
    from protoformer.synthetic.surface import Hits, Materials, Shapes

NEAREST = tl.constexpr(scene.NEAREST)
FAR = tl.constexpr(float("inf"))
WHOLE = tl.constexpr(12582912.0)
"""1.5 * 2^23: adding and subtracting it rounds a float32 to an integer."""
BLOCK = 512

# Table rows: see `scene`. All kernels take pointers to row 0 of one primitive and the stride between rows.


@triton.jit
def multiply(matrix, step, x, y, z):
    """Multiply a 3x3 matrix, nine rows of a table, with a vector."""
    a = tl.load(matrix) * x + tl.load(matrix + step) * y + tl.load(matrix + 2 * step) * z
    b = tl.load(matrix + 3 * step) * x + tl.load(matrix + 4 * step) * y + tl.load(matrix + 5 * step) * z
    c = tl.load(matrix + 6 * step) * x + tl.load(matrix + 7 * step) * y + tl.load(matrix + 8 * step) * z
    return a, b, c


@triton.jit
def _plane(ox, oy, oz, dx, dy, dz):
    """Intersect rays (origin o, direction d, local coordinates) with the plane z = 0: depth, x and y."""
    depth = -oz / dz
    return depth, ox + depth * dx, oy + depth * dy


@triton.jit
def ripple(x, y, row, step):
    """Displace points of a flat primitive by its two sine waves."""
    wave = row + 24 * step
    x = x + tl.load(wave) * tl.sin(tl.load(wave + step) * y + tl.load(wave + 2 * step))
    y = y + tl.load(wave + 3 * step) * tl.sin(tl.load(wave + 4 * step) * x + tl.load(wave + 5 * step))
    return x, y


@triton.jit
def _rectangle(ox, oy, oz, dx, dy, dz):
    """Return the depth of the hit of |x|, |y| <= 1 in the plane, or infinity; also below, for other shapes."""
    depth, x, y = _plane(ox, oy, oz, dx, dy, dz)
    return tl.where((tl.abs(x) <= 1) & (tl.abs(y) <= 1), depth, FAR)


@triton.jit
def _blob(ox, oy, oz, dx, dy, dz, row, outline, step):
    depth, x, y = _plane(ox, oy, oz, dx, dy, dz)
    x, y = ripple(x, y, row, step)
    radius = tl.sqrt(tl.maximum(x * x + y * y, 1e-12))
    c, s = x / radius, y / radius
    c2, s2 = c * c - s * s, 2 * s * c
    c3, s3 = c2 * c - s2 * s, s2 * c + c2 * s
    c5, s5 = c2 * c3 - s2 * s3, s2 * c3 + c2 * s3
    reach = tl.load(outline) + tl.load(outline + step) * c2 + tl.load(outline + 2 * step) * s2
    reach += tl.load(outline + 3 * step) * c3 + tl.load(outline + 4 * step) * s3
    reach += tl.load(outline + 5 * step) * c5 + tl.load(outline + 6 * step) * s5
    return tl.where(radius <= reach, depth, FAR)


@triton.jit
def _texel(coordinate, side):
    """Return the texel below a coordinate in -1 .. 1, and the fraction."""
    position = (0.5 * coordinate + 0.5) * side - 0.5
    # NaN compares false and becomes 0, where every silhouette is empty.
    position = tl.where(position > 0, tl.minimum(position, side - 1.001), 0.0)
    whole = tl.minimum(position.to(tl.int32), side - 2)
    return whole, position - whole


@triton.jit
def _cutout(ox, oy, oz, dx, dy, dz, row, step, texture, silhouettes, side, surfaces):
    depth, x, y = _plane(ox, oy, oz, dx, dy, dz)
    x, y = ripple(x, y, row, step)
    left, x = _texel(x, side)
    top, y = _texel(y, side)
    start = tl.maximum(tl.load(texture).to(tl.int32) - (surfaces - 1), 0) * side * side
    corners = tl.load(silhouettes + start + top * side + left)
    a, b = (corners & 255).to(tl.float32), ((corners >> 8) & 255).to(tl.float32)
    c, d = ((corners >> 16) & 255).to(tl.float32), ((corners >> 24) & 255).to(tl.float32)
    upper, lower = a + (b - a) * x, c + (d - c) * x
    return tl.where(upper + (lower - upper) * y >= 127.5, depth, FAR)


@triton.jit
def _span(start, along):
    """Return the depths at which rays enter and leave the slab -1 .. 1 of one axis."""
    inverse = 1.0 / tl.where(tl.abs(along) < 1e-12, 1e-12, along)
    middle, half = -start * inverse, tl.abs(inverse)
    return middle - half, middle + half


@triton.jit
def _box(ox, oy, oz, dx, dy, dz, WITHIN: tl.constexpr):
    near_x, far_x = _span(ox, dx)
    near_y, far_y = _span(oy, dy)
    near_z, far_z = _span(oz, dz)
    enter = tl.maximum(tl.maximum(near_x, near_y), near_z)
    leave = tl.minimum(tl.minimum(far_x, far_y), far_z)
    return tl.where(enter <= leave, leave if WITHIN else enter, FAR)


@triton.jit
def _ball(ox, oy, oz, dx, dy, dz, WITHIN: tl.constexpr):
    squared = dx * dx + dy * dy + dz * dz
    closest = -(ox * dx + oy * dy + oz * dz) / squared
    x, y, z = ox + closest * dx, oy + closest * dy, oz + closest * dz
    within = 1 - (x * x + y * y + z * z)
    reach = tl.sqrt(tl.maximum(within, 0.0) / squared)
    return tl.where(within >= 0, closest + reach if WITHIN else closest - reach, FAR)


@triton.jit
def _hit_depth(KIND: tl.constexpr, ox, oy, oz, dx, dy, dz, row, outline, step, texture, silhouettes, side, surfaces):
    if KIND == 0:
        return _rectangle(ox, oy, oz, dx, dy, dz)
    elif KIND == 1:
        return _blob(ox, oy, oz, dx, dy, dz, row, outline, step)
    elif KIND == 2:
        return _cutout(ox, oy, oz, dx, dy, dz, row, step, texture, silhouettes, side, surfaces)
    elif KIND == 3:
        return _box(ox, oy, oz, dx, dy, dz, False)
    elif KIND == 4:
        return _ball(ox, oy, oz, dx, dy, dz, False)
    elif KIND == 5:
        return _box(ox, oy, oz, dx, dy, dz, True)
    else:
        return _ball(ox, oy, oz, dx, dy, dz, True)


@triton.jit
def nearest_hit(
    table, alive, outline, texture, silhouettes, bounds, x, y, low_x, high_x, low_y, high_y, scene,
    primitives, step, side, surfaces,
    e0, e1, e2, e3, e4, e5, e6, e7,
    CULLED: tl.constexpr,
):  # fmt: skip
    """Return depth and primitive index of the first hits of rays (x, y, 1).

    CULLED: skip primitives whose bounds do not overlap low .. high; see `shading_kernels`.
    """
    best, which = tl.full(x.shape, FAR, tl.float32), tl.zeros(x.shape, tl.int32)
    ends = (e0, e1, e2, e3, e4, e5, e6, e7)
    for KIND in tl.static_range(7):
        for number in range(ends[KIND], ends[KIND + 1]):
            own = scene * primitives + number
            active = tl.load(alive + own) != 0
            if CULLED:
                active = active & overlap(bounds + own, step, low_x, high_x, low_y, high_y)
            if active:
                row = table + own
                dx, dy, dz = multiply(row, step, x, y, 1.0)
                ox, oy, oz = tl.load(row + 9 * step), tl.load(row + 10 * step), tl.load(row + 11 * step)
                hit = _hit_depth(
                    KIND, ox, oy, oz, dx, dy, dz, row, outline + own, step, texture + own, silhouettes, side, surfaces
                )
                closer = (hit > NEAREST) & (hit < best)
                best, which = tl.where(closer, hit, best), tl.where(closer, number, which)
    return best, which


@triton.jit
def overlap(bound, step, low_x, high_x, low_y, high_y):
    """Test whether the bounds of one primitive, four rows, overlap a rectangle."""
    across = (tl.load(bound) <= high_x) & (tl.load(bound + step) >= low_x)
    return across & (tl.load(bound + 2 * step) <= high_y) & (tl.load(bound + 3 * step) >= low_y)


@triton.jit
def in_shadow(
    table, casts, outline, texture, silhouettes, bounds, sx, sy, sz, x, y, z, owner, low_x, high_x, low_y, high_y,
    scene, primitives, step, side, surfaces,
    e0, e1, e2, e3, e4, e5,
    CULLED: tl.constexpr,
):  # fmt: skip
    """Test whether a primitive other than the owner lies between points and the sun."""
    shadowed = tl.zeros(x.shape, tl.int1)
    ends = (e0, e1, e2, e3, e4, e5)
    for KIND in tl.static_range(5):
        for number in range(ends[KIND], ends[KIND + 1]):
            own = scene * primitives + number
            active = tl.load(casts + own) != 0
            if CULLED:
                active = active & overlap(bounds + own, step, low_x, high_x, low_y, high_y)
            if active:
                row = table + own
                dx, dy, dz = multiply(row, step, sx, sy, sz)
                ox, oy, oz = multiply(row, step, x, y, z)
                ox += tl.load(row + 9 * step)
                oy += tl.load(row + 10 * step)
                oz += tl.load(row + 11 * step)
                hit = _hit_depth(
                    KIND, ox, oy, oz, dx, dy, dz, row, outline + own, step, texture + own, silhouettes, side, surfaces
                )
                shadowed = shadowed | ((hit > NEAREST) & (hit < FAR) & (owner != number))
    return shadowed


@triton.jit
def directions(lens, x, y):
    """Compute rays through pixels: x and y of (x, y, 1). lens: of the scene."""
    across = tl.div_rn(x - tl.load(lens + 2), tl.load(lens))
    return across, tl.div_rn(y - tl.load(lens + 3), tl.load(lens + 1))


@triton.jit
def rounded(value):
    """Round to the nearest integer, halves to even, for magnitudes below 2^22."""
    return (value + WHOLE) - WHOLE


@triton.jit
def _nearest(
    table, alive, outline, texture, silhouettes, across, down, depths, indices,
    rays, primitives, step, side, surfaces,
    e0, e1, e2, e3, e4, e5, e6, e7,
    SIZE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    ray = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = ray < rays
    offset = scene.to(tl.int64) * rays + ray
    x, y = tl.load(across + offset, inside, 0.0), tl.load(down + offset, inside, 0.0)
    best, which = nearest_hit(
        table, alive, outline, texture, silhouettes, table, x, y, 0.0, 0.0, 0.0, 0.0, scene,
        primitives, step, side, surfaces, e0, e1, e2, e3, e4, e5, e6, e7, False,
    )  # fmt: skip
    tl.store(depths + offset, best, inside)
    tl.store(indices + offset, which.to(tl.int64), inside)


@triton.jit
def _blocked(
    table, alive, outline, texture, silhouettes, sun, points, owners, out,
    rays, apart, primitives, step, side, surfaces,
    e0, e1, e2, e3, e4, e5,
    SIZE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    ray = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = ray < rays
    offset = scene.to(tl.int64) * rays + ray
    x, y = tl.load(points + offset, inside, 0.0), tl.load(points + apart + offset, inside, 0.0)
    z = tl.load(points + 2 * apart + offset, inside, 0.0)
    owner = tl.load(owners + offset, inside, 0)
    sx, sy, sz = tl.load(sun + 3 * scene), tl.load(sun + 3 * scene + 1), tl.load(sun + 3 * scene + 2)
    shadowed = in_shadow(
        table, alive, outline, texture, silhouettes, table, sx, sy, sz, x, y, z, owner, 0.0, 0.0, 0.0, 0.0, scene,
        primitives, step, side, surfaces, e0, e1, e2, e3, e4, e5, False,
    )  # fmt: skip
    tl.store(out + offset, shadowed, inside)


def ends_of(counts: tuple[int, ...]) -> list[int]:
    """Return the start index of each kind of primitive, and the end of the last."""
    return [sum(counts[:number]) for number in range(len(counts) + 1)]


def nearest(
    table: Tensor, alive: Tensor, outline: Tensor, texture: Tensor, silhouettes: Tensor, side: int, surfaces: int,
    counts: tuple[int, ...], x: Tensor, y: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Run `surface._nearest` in one kernel: depth and primitive index, B x N each."""
    x, y = x.contiguous(), y.contiguous()
    batch, rays = x.shape
    primitives = alive.shape[1]
    depth, index = torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)
    _nearest[(triton.cdiv(rays, BLOCK), batch)](
        table, alive.view(torch.uint8), outline, texture, silhouettes, x, y, depth, index,
        rays, primitives, batch * primitives, side, surfaces, *ends_of(counts), SIZE=BLOCK,
    )  # fmt: skip
    return depth, index


def blocked(
    table: Tensor, alive: Tensor, outline: Tensor, texture: Tensor, silhouettes: Tensor, side: int, surfaces: int,
    counts: tuple[int, ...], sun: Tensor, points: Tensor, own: Tensor,
) -> Tensor:  # fmt: skip
    """Run `surface._blocked` in one kernel: B x N, bool."""
    points, own = points.contiguous(), own.contiguous()
    batch, rays = own.shape
    primitives = alive.shape[1]
    out = torch.empty_like(own, dtype=torch.bool)
    _blocked[(triton.cdiv(rays, BLOCK), batch)](
        table, alive.view(torch.uint8), outline, texture, silhouettes, sun.contiguous(), points, own,
        out.view(torch.uint8),
        rays, batch * rays, primitives, batch * primitives, side, surfaces, *ends_of(counts)[:6], SIZE=BLOCK,
    )  # fmt: skip
    return out


MIN_FACING = tl.constexpr(scene.MIN_FACING)
SOFTNESS = tl.constexpr(scene.SOFTNESS)


@triton.jit
def _mirrored(coordinate):
    """Fold coordinates into 0 .. 1 by reflection."""
    folded = coordinate - 2 * tl.floor(0.5 * coordinate)
    return tl.minimum(folded, 2 - folded)


@triton.jit
def _bilinear(texels, start, size, side, u, v):
    start = start + (side * side - size * size) * 4 // 3
    width = size.to(tl.float32)
    x, y = tl.maximum(u * width - 0.5, 0.0), tl.maximum(v * width - 0.5, 0.0)
    left, top = tl.minimum(x.to(tl.int32), size - 1), tl.minimum(y.to(tl.int32), size - 1)
    x, y = x - tl.floor(x), y - tl.floor(y)
    right, bottom = tl.minimum(left + 1, size - 1), tl.minimum(top + 1, size - 1)
    a, b = tl.load(texels + start + top * size + left), tl.load(texels + start + top * size + right)
    c, d = tl.load(texels + start + bottom * size + left), tl.load(texels + start + bottom * size + right)
    red = _between(a & 255, b & 255, c & 255, d & 255, x, y)
    green = _between((a >> 8) & 255, (b >> 8) & 255, (c >> 8) & 255, (d >> 8) & 255, x, y)
    blue = _between((a >> 16) & 255, (b >> 16) & 255, (c >> 16) & 255, (d >> 16) & 255, x, y)
    return red, green, blue


@triton.jit
def _between(a, b, c, d, x, y):
    a, b, c, d = a.to(tl.float32), b.to(tl.float32), c.to(tl.float32), d.to(tl.float32)
    upper, lower = a + (b - a) * x, c + (d - c) * x
    return upper + (lower - upper) * y


@triton.jit
def to_local(row, step, rx, ry, depth):
    """Transform a hit to the primitive's local coordinates."""
    ox, oy, oz = multiply(row, step, rx * depth, ry * depth, depth)
    ox += tl.load(row + 9 * step)
    oy += tl.load(row + 10 * step)
    oz += tl.load(row + 11 * step)
    return ox, oy, oz


@triton.jit
def face_of(ox, oy, oz, flat):
    """Return the axis of the face, its side, and both encoded in one number."""
    ax, ay, az = tl.abs(ox), tl.abs(oy), tl.abs(oz)
    axis = tl.where(az > tl.maximum(ax, ay), 2, tl.where(ay > ax, 1, 0))
    along = tl.where(axis == 0, ox, tl.where(axis == 1, oy, oz))
    side_sign = tl.where(along > 0, 1.0, -1.0)
    face = 2 * axis + (along > 0).to(tl.int32)
    axis, side_sign, face = tl.where(flat, 2, axis), tl.where(flat, -1.0, side_sign), tl.where(flat, 4, face)
    return axis, side_sign, face


@triton.jit
def shade_hits(
    table, materials, texture, texels, lens, light, scene, index, depth, rx, ry,
    primitives, step, side, surfaces, levels, stride,
    boxes, balls, rooms, skies,
):  # fmt: skip
    """Compute color, light, gloss and normal of hits."""
    row, own = table + scene * primitives + index, materials + scene * primitives + index
    flat, around = index < boxes, index >= rooms
    is_round = ((index >= balls) & (index < rooms)) | (index >= skies)
    ox, oy, oz = to_local(row, step, rx, ry, depth)
    mx, my = ripple(ox, oy, row, step)
    mx, my = tl.where(flat, mx, ox), tl.where(flat, my, oy)
    axis, side_sign, face = face_of(ox, oy, oz, flat)
    # Normals: in local coordinates, then in camera coordinates, then in world coordinates at time 0.
    nx = tl.where(is_round, ox, tl.where(axis == 0, side_sign, 0.0))
    ny = tl.where(is_round, oy, tl.where(axis == 1, side_sign, 0.0))
    nz = tl.where(is_round, oz, tl.where(axis == 2, side_sign, 0.0))
    cx = tl.load(row) * nx + tl.load(row + 3 * step) * ny + tl.load(row + 6 * step) * nz
    cy = tl.load(row + step) * nx + tl.load(row + 4 * step) * ny + tl.load(row + 7 * step) * nz
    cz = tl.load(row + 2 * step) * nx + tl.load(row + 5 * step) * ny + tl.load(row + 8 * step) * nz
    length = 1.0 / tl.sqrt(tl.maximum(cx * cx + cy * cy + cz * cz, 1e-24))
    length = tl.where(cx * rx + cy * ry + cz > 0, -length, length)
    cx, cy, cz = cx * length, cy * length, cz * length
    lx, ly, lz = multiply(own + 3 * step, step, nx, ny, nz)
    sx, sy, sz = tl.load(light + 4 * scene), tl.load(light + 4 * scene + 1), tl.load(light + 4 * scene + 2)
    towards = (lx * sx + ly * sy + lz * sz) / tl.sqrt(tl.maximum(lx * lx + ly * ly + lz * lz, 1e-24))
    towards = tl.where(flat, tl.abs(towards), towards)
    ambient = tl.load(light + 4 * scene + 3)
    lit = ambient + (1 - ambient) * tl.minimum(tl.maximum(0.5 + 0.5 * towards, 0.0), 1.0)
    lit = tl.where(around, 1.0, lit)
    # Texture coordinates and pixel footprint.
    mx, my, mz = mx * tl.load(own), my * tl.load(own + step), oz * tl.load(own + 2 * step)
    s, t = tl.where(axis == 0, mz, mx), tl.where(axis == 1, mz, my)
    t0, t1, t2 = tl.load(own + 12 * step), tl.load(own + 13 * step), tl.load(own + 14 * step)
    t3, t4, t5 = tl.load(own + 15 * step), tl.load(own + 16 * step), tl.load(own + 17 * step)
    which = tl.load(texture + scene * primitives + index).to(tl.int32)
    u = t0 * s + t1 * t + t2 + tl.where(which < surfaces, 0.37 * face, 0.0)
    v = t3 * s + t4 * t + t5
    facing = -(cx * rx + cy * ry + cz) / tl.sqrt(1 + rx * rx + ry * ry)
    meters = depth / tl.load(lens + 4 * scene)
    footprint = side * side * meters * meters * tl.abs(t0 * t4 - t1 * t3) / tl.maximum(facing, MIN_FACING)
    level = tl.minimum(tl.maximum(0.5 * tl.log2(tl.maximum(footprint, 1e-12)) + SOFTNESS, 0.0), levels - 1.0)
    whole = tl.minimum(level.to(tl.int32), levels - 2)
    blend = level - whole
    size = side >> whole
    u, v = _mirrored(u), _mirrored(v)
    red, green, blue = _bilinear(texels, which.to(tl.int64) * stride, size, side, u, v)
    red2, green2, blue2 = _bilinear(texels, which.to(tl.int64) * stride, size >> 1, side, u, v)
    red = (red + (red2 - red) * blend) / 255.0
    green = (green + (green2 - green) * blend) / 255.0
    blue = (blue + (blue2 - blue) * blend) / 255.0
    red = tl.load(own + 18 * step) * red + tl.load(own + 21 * step)
    green = tl.load(own + 19 * step) * green + tl.load(own + 22 * step)
    blue = tl.load(own + 20 * step) * blue + tl.load(own + 23 * step)
    red, green, blue = clamp01(red), clamp01(green), clamp01(blue)
    return red, green, blue, lit, tl.load(own + 24 * step), cx, cy, cz


@triton.jit
def clamp01(value):
    """Clamp to 0 .. 1."""
    return tl.minimum(tl.maximum(value, 0.0), 1.0)


@triton.jit
def _surface(
    table, materials, texture, texels, lens, light, indices, depths, across, down, out,
    rays, apart, primitives, step, side, surfaces, levels, stride,
    boxes, balls, rooms, skies,
    SIZE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    ray = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = ray < rays
    offset = scene.to(tl.int64) * rays + ray
    index = tl.load(indices + offset, inside, 0).to(tl.int32)
    depth = tl.load(depths + offset, inside, 1.0)
    rx, ry = tl.load(across + offset, inside, 0.0), tl.load(down + offset, inside, 0.0)
    red, green, blue, lit, gloss, cx, cy, cz = shade_hits(
        table, materials, texture, texels, lens, light, scene, index, depth, rx, ry,
        primitives, step, side, surfaces, levels, stride, boxes, balls, rooms, skies,
    )  # fmt: skip
    tl.store(out + offset, red, inside)
    tl.store(out + apart + offset, green, inside)
    tl.store(out + 2 * apart + offset, blue, inside)
    tl.store(out + 3 * apart + offset, lit, inside)
    tl.store(out + 4 * apart + offset, gloss, inside)
    tl.store(out + 5 * apart + offset, cx, inside)
    tl.store(out + 6 * apart + offset, cy, inside)
    tl.store(out + 7 * apart + offset, cz, inside)


def light_of(materials: "Materials") -> Tensor:
    """Return the sun direction in world coordinates and the ambient fraction: B x 4."""
    return torch.cat((materials.sun, materials.ambient[:, None]), dim=1)


def surface(
    table: Tensor, materials: Tensor, texture: Tensor, texels: Tensor, side: int, surfaces: int,
    counts: tuple[int, ...], lens: Tensor, light: Tensor, index: Tensor, depth: Tensor, ray: Tensor,
) -> Tensor:  # fmt: skip
    """Run `surface.plain_surface` in one kernel: 8 x B x N, color, light, gloss and normal.

    light: B x 4, the sun direction in world coordinates and the ambient fraction.
    """
    batch, rays = index.shape
    primitives = table.shape[2]
    out = torch.empty(8, batch, rays, device=index.device)
    starts = ends_of(counts)
    _surface[(triton.cdiv(rays, BLOCK), batch)](
        table, materials, texture, texels, lens, light.contiguous(), index.contiguous(), depth.contiguous(),
        ray[0].contiguous(), ray[1].contiguous(), out,
        rays, batch * rays, primitives, batch * primitives, side, surfaces, side.bit_length(),
        (4 * side * side - 1) // 3, starts[3], starts[4], starts[5], starts[6],
        SIZE=BLOCK,
    )  # fmt: skip
    return out


KEPT = tl.constexpr(1 - scene.TOLERANCE)


@triton.jit
def move_points(before, after, step, rx, ry, depth, flat):
    """Compute where the same material point is in another frame, camera coordinates. before, after: table rows."""
    x, y, z = to_local(before, step, rx, ry, depth)
    mx, my = ripple(x, y, before, step)
    wave = after + 24 * step
    my = my - tl.load(wave + 3 * step) * tl.sin(tl.load(wave + 4 * step) * mx + tl.load(wave + 5 * step))
    mx = mx - tl.load(wave) * tl.sin(tl.load(wave + step) * my + tl.load(wave + 2 * step))
    x, y = tl.where(flat, mx, x), tl.where(flat, my, y)
    x, y, z = multiply(after + 12 * step, step, x, y, z)
    return x + tl.load(after + 21 * step), y + tl.load(after + 22 * step), z + tl.load(after + 23 * step)


@triton.jit
def _moved(
    before, after, alive, outline, texture, silhouettes, lens, indices, depths, across, down, positions,
    flow, valid, occluded,
    rays, own_positions, height, width, primitives, step, side, surfaces,
    e0, e1, e2, e3, e4, e5, e6, e7,
    SIZE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    ray = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = ray < rays
    offset = scene.to(tl.int64) * rays + ray
    index = tl.load(indices + offset, inside, 0).to(tl.int32)
    depth = tl.load(depths + offset, inside, 1.0)
    rx, ry = tl.load(across + offset, inside, 0.0), tl.load(down + offset, inside, 0.0)
    own = scene * primitives + index
    x, y, z = move_points(before + own, after + own, step, rx, ry, depth, index < e3)
    ahead = z > NEAREST
    start = positions + 2 * scene.to(tl.int64) * own_positions * rays + ray
    from_x, from_y = tl.load(start, inside, 0.0), tl.load(start + rays, inside, 0.0)
    eye, along = lens + 4 * scene, tl.where(ahead, z, 1.0)
    to_x = tl.where(ahead, tl.div_rn(x, along) * tl.load(eye) + tl.load(eye + 2), from_x)
    to_y = tl.where(ahead, tl.div_rn(y, along) * tl.load(eye + 1) + tl.load(eye + 3), from_y)
    rx, ry = directions(eye, to_x, to_y)
    depth, _ = nearest_hit(
        after, alive, outline, texture, silhouettes, after, rx, ry, 0.0, 0.0, 0.0, 0.0, scene,
        primitives, step, side, surfaces, e0, e1, e2, e3, e4, e5, e6, e7, False,
    )  # fmt: skip
    # Round to a thousandth of a pixel, so that rounding errors do not put static border points outside.
    x, y = rounded(to_x * 1024) * (1 / 1024), rounded(to_y * 1024) * (1 / 1024)
    within = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
    seen = ahead & within & ~(depth < z * KEPT)
    out = flow + 2 * scene.to(tl.int64) * rays + ray
    tl.store(out, to_x - from_x, inside)
    tl.store(out + rays, to_y - from_y, inside)
    tl.store(valid + offset, ahead.to(tl.uint8), inside)
    tl.store(occluded + offset, 1 - seen.to(tl.uint8), inside)


def moved(hit: "Hits", shapes: "Shapes", positions: Tensor, frame: Frame) -> tuple[Tensor, Tensor, Tensor]:
    """Run `Renderer.moved` in one kernel: flow B x 2 x N, valid and occluded B x 1 x N, bool."""
    batch, rays = hit.index.shape
    primitives, bank, ray = frame.table.shape[2], shapes.bank, hit.ray.contiguous()
    flow = hit.depth.new_empty(batch, 2, rays)
    valid, occluded = (torch.empty(batch, 1, rays, dtype=torch.bool, device=flow.device) for _ in range(2))
    _moved[(triton.cdiv(rays, BLOCK), batch)](
        hit.frame.table, frame.table, frame.alive.view(torch.uint8), shapes.outline, shapes.texture, bank.silhouettes,
        frame.lens, hit.index.contiguous(), hit.depth.contiguous(), ray[0], ray[1], positions.contiguous(),
        flow, valid.view(torch.uint8), occluded.view(torch.uint8),
        rays, int(len(positions) > 1), *frame.size, primitives, batch * primitives, bank.side, bank.surfaces,
        *ends_of(frame.counts),
        SIZE=BLOCK,
    )  # fmt: skip
    return flow, valid, occluded
