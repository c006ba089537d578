"""Casting and shading on a GPU, a block of rays at a time.

A block goes through the primitives of its scene, and only the nearest hit is written; then one pass makes its colour.
These are `casting._nearest`, `casting._blocked` and `surface.plain_surface`, step by step; tests hold them together.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.world import casting
from protoformer.world import surface as surfaces_of

NEAREST = tl.constexpr(casting.NEAREST)
LEAST_FACING = tl.constexpr(surfaces_of.LEAST_FACING)
SOFTNESS = tl.constexpr(surfaces_of.SOFTNESS)
FAR = tl.constexpr(float("inf"))
BLOCK = 512

# A table's rows: see `scene`. All kernels take pointers to row 0 of one primitive, and the distance between rows.


@triton.jit
def _turned(matrix, step, x, y, z):
    a = tl.load(matrix) * x + tl.load(matrix + step) * y + tl.load(matrix + 2 * step) * z
    b = tl.load(matrix + 3 * step) * x + tl.load(matrix + 4 * step) * y + tl.load(matrix + 5 * step) * z
    c = tl.load(matrix + 6 * step) * x + tl.load(matrix + 7 * step) * y + tl.load(matrix + 8 * step) * z
    return a, b, c


@triton.jit
def _plane(ox, oy, oz, dx, dy, dz):
    depth = -oz / dz
    return depth, ox + depth * dx, oy + depth * dy


@triton.jit
def _rippled(x, y, row, step):
    wave = row + 24 * step
    x = x + tl.load(wave) * tl.sin(tl.load(wave + step) * y + tl.load(wave + 2 * step))
    y = y + tl.load(wave + 3 * step) * tl.sin(tl.load(wave + 4 * step) * x + tl.load(wave + 5 * step))
    return x, y


@triton.jit
def _rectangle(ox, oy, oz, dx, dy, dz):
    depth, x, y = _plane(ox, oy, oz, dx, dy, dz)
    return tl.where((tl.abs(x) <= 1) & (tl.abs(y) <= 1), depth, FAR)


@triton.jit
def _blob(ox, oy, oz, dx, dy, dz, row, outline, step):
    depth, x, y = _plane(ox, oy, oz, dx, dy, dz)
    x, y = _rippled(x, y, row, step)
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
    position = (0.5 * coordinate + 0.5) * side - 0.5
    # A position that is not a number compares with nothing, and becomes 0, where every silhouette is empty.
    position = tl.where(position > 0, tl.minimum(position, side - 1.001), 0.0)
    whole = tl.minimum(position.to(tl.int32), side - 2)
    return whole, position - whole


@triton.jit
def _cutout(ox, oy, oz, dx, dy, dz, row, step, texture, silhouettes, side, surfaces):
    depth, x, y = _plane(ox, oy, oz, dx, dy, dz)
    x, y = _rippled(x, y, row, step)
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
def _meet(KIND: tl.constexpr, ox, oy, oz, dx, dy, dz, row, outline, step, texture, silhouettes, side, surfaces):
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
def _nearest(
    table, alive, outline, texture, silhouettes, across, down, depths, indices,
    rays, primitives, step, side, surfaces,
    e0, e1, e2, e3, e4, e5, e6, e7,
    SIZE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    ray = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    there = ray < rays
    place = scene.to(tl.int64) * rays + ray
    x, y = tl.load(across + place, there, 0.0), tl.load(down + place, there, 0.0)
    best, which = tl.full((SIZE,), FAR, tl.float32), tl.zeros((SIZE,), tl.int32)
    ends = (e0, e1, e2, e3, e4, e5, e6, e7)
    for KIND in tl.static_range(7):
        for number in range(ends[KIND], ends[KIND + 1]):
            own = scene * primitives + number
            if tl.load(alive + own) != 0:
                row = table + own
                dx, dy, dz = _turned(row, step, x, y, 1.0)
                ox, oy, oz = tl.load(row + 9 * step), tl.load(row + 10 * step), tl.load(row + 11 * step)
                met = _meet(
                    KIND, ox, oy, oz, dx, dy, dz, row, outline + own, step, texture + own, silhouettes, side, surfaces
                )
                closer = (met > NEAREST) & (met < best)
                best, which = tl.where(closer, met, best), tl.where(closer, number, which)
    tl.store(depths + place, best, there)
    tl.store(indices + place, which.to(tl.int64), there)


@triton.jit
def _blocked(
    table, alive, outline, texture, silhouettes, sun, points, owners, hidden,
    rays, apart, primitives, step, side, surfaces,
    e0, e1, e2, e3, e4, e5,
    SIZE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    ray = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    there = ray < rays
    place = scene.to(tl.int64) * rays + ray
    x, y = tl.load(points + place, there, 0.0), tl.load(points + apart + place, there, 0.0)
    z = tl.load(points + 2 * apart + place, there, 0.0)
    owner = tl.load(owners + place, there, 0)
    sx, sy, sz = tl.load(sun + 3 * scene), tl.load(sun + 3 * scene + 1), tl.load(sun + 3 * scene + 2)
    dark = tl.zeros((SIZE,), tl.int1)
    ends = (e0, e1, e2, e3, e4, e5)
    for KIND in tl.static_range(5):
        for number in range(ends[KIND], ends[KIND + 1]):
            own = scene * primitives + number
            if tl.load(alive + own) != 0:
                row = table + own
                dx, dy, dz = _turned(row, step, sx, sy, sz)
                ox, oy, oz = _turned(row, step, x, y, z)
                ox += tl.load(row + 9 * step)
                oy += tl.load(row + 10 * step)
                oz += tl.load(row + 11 * step)
                met = _meet(
                    KIND, ox, oy, oz, dx, dy, dz, row, outline + own, step, texture + own, silhouettes, side, surfaces
                )
                dark = dark | ((met > NEAREST) & (met < FAR) & (owner != number))
    tl.store(hidden + place, dark, there)


@triton.jit
def _mirrored(coordinate):
    """Fold into 0 .. 1 by reflection."""
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
def _surface(
    table, looks, texture, texels, lens, light, indices, depths, across, down, out,
    rays, apart, primitives, step, side, surfaces, levels, stride,
    boxes, balls, rooms, skies,
    SIZE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    ray = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    there = ray < rays
    place = scene.to(tl.int64) * rays + ray
    index = tl.load(indices + place, there, 0).to(tl.int32)
    depth = tl.load(depths + place, there, 1.0)
    rx, ry = tl.load(across + place, there, 0.0), tl.load(down + place, there, 0.0)
    row, look = table + scene * primitives + index, looks + scene * primitives + index
    flat, around = index < boxes, index >= rooms
    is_round = ((index >= balls) & (index < rooms)) | (index >= skies)
    # Where on the primitive.
    ox, oy, oz = _turned(row, step, rx * depth, ry * depth, depth)
    ox += tl.load(row + 9 * step)
    oy += tl.load(row + 10 * step)
    oz += tl.load(row + 11 * step)
    mx, my = _rippled(ox, oy, row, step)
    mx, my = tl.where(flat, mx, ox), tl.where(flat, my, oy)
    ax, ay, az = tl.abs(ox), tl.abs(oy), tl.abs(oz)
    axis = tl.where(az > tl.maximum(ax, ay), 2, tl.where(ay > ax, 1, 0))
    along = tl.where(axis == 0, ox, tl.where(axis == 1, oy, oz))
    side_sign = tl.where(along > 0, 1.0, -1.0)
    face = 2 * axis + (along > 0).to(tl.int32)
    axis, side_sign, face = tl.where(flat, 2, axis), tl.where(flat, -1.0, side_sign), tl.where(flat, 4, face)
    # Normals: of the primitive's own, then in the camera's axes, then in the world at time 0.
    nx = tl.where(is_round, ox, tl.where(axis == 0, side_sign, 0.0))
    ny = tl.where(is_round, oy, tl.where(axis == 1, side_sign, 0.0))
    nz = tl.where(is_round, oz, tl.where(axis == 2, side_sign, 0.0))
    cx = tl.load(row) * nx + tl.load(row + 3 * step) * ny + tl.load(row + 6 * step) * nz
    cy = tl.load(row + step) * nx + tl.load(row + 4 * step) * ny + tl.load(row + 7 * step) * nz
    cz = tl.load(row + 2 * step) * nx + tl.load(row + 5 * step) * ny + tl.load(row + 8 * step) * nz
    length = 1.0 / tl.sqrt(tl.maximum(cx * cx + cy * cy + cz * cz, 1e-24))
    length = tl.where(cx * rx + cy * ry + cz > 0, -length, length)
    cx, cy, cz = cx * length, cy * length, cz * length
    lx, ly, lz = _turned(look + 3 * step, step, nx, ny, nz)
    sx, sy, sz = tl.load(light + 4 * scene), tl.load(light + 4 * scene + 1), tl.load(light + 4 * scene + 2)
    towards = (lx * sx + ly * sy + lz * sz) / tl.sqrt(tl.maximum(lx * lx + ly * ly + lz * lz, 1e-24))
    towards = tl.where(flat, tl.abs(towards), towards)
    ambient = tl.load(light + 4 * scene + 3)
    lit = ambient + (1 - ambient) * tl.minimum(tl.maximum(0.5 + 0.5 * towards, 0.0), 1.0)
    lit = tl.where(around, 1.0, lit)
    # Where on the texture, and how much of it a pixel covers.
    mx, my, mz = mx * tl.load(look), my * tl.load(look + step), oz * tl.load(look + 2 * step)
    s, t = tl.where(axis == 0, mz, mx), tl.where(axis == 1, mz, my)
    t0, t1, t2 = tl.load(look + 12 * step), tl.load(look + 13 * step), tl.load(look + 14 * step)
    t3, t4, t5 = tl.load(look + 15 * step), tl.load(look + 16 * step), tl.load(look + 17 * step)
    which = tl.load(texture + scene * primitives + index).to(tl.int32)
    u = t0 * s + t1 * t + t2 + tl.where(which < surfaces, 0.37 * face, 0.0)
    v = t3 * s + t4 * t + t5
    facing = -(cx * rx + cy * ry + cz) / tl.sqrt(1 + rx * rx + ry * ry)
    metres = depth / tl.load(lens + 4 * scene)
    footprint = side * side * metres * metres * tl.abs(t0 * t4 - t1 * t3) / tl.maximum(facing, LEAST_FACING)
    level = tl.minimum(tl.maximum(SOFTNESS + 0.5 * tl.log2(tl.maximum(footprint, 1e-12)), 0.0), levels - 1.0)
    whole = tl.minimum(level.to(tl.int32), levels - 2)
    blend = level - whole
    size = side >> whole
    u, v = _mirrored(u), _mirrored(v)
    red, green, blue = _bilinear(texels, which * stride, size, side, u, v)
    red2, green2, blue2 = _bilinear(texels, which * stride, size >> 1, side, u, v)
    red = (red + (red2 - red) * blend) / 255.0
    green = (green + (green2 - green) * blend) / 255.0
    blue = (blue + (blue2 - blue) * blend) / 255.0
    red = tl.load(look + 18 * step) * red + tl.load(look + 21 * step)
    green = tl.load(look + 19 * step) * green + tl.load(look + 22 * step)
    blue = tl.load(look + 20 * step) * blue + tl.load(look + 23 * step)
    tl.store(out + place, tl.minimum(tl.maximum(red, 0.0), 1.0), there)
    tl.store(out + apart + place, tl.minimum(tl.maximum(green, 0.0), 1.0), there)
    tl.store(out + 2 * apart + place, tl.minimum(tl.maximum(blue, 0.0), 1.0), there)
    tl.store(out + 3 * apart + place, lit, there)
    tl.store(out + 4 * apart + place, tl.load(look + 24 * step), there)
    tl.store(out + 5 * apart + place, cx, there)
    tl.store(out + 6 * apart + place, cy, there)
    tl.store(out + 7 * apart + place, cz, there)


def surface(
    table: Tensor, looks: Tensor, texture: Tensor, texels: Tensor, side: int, surfaces: int, counts: tuple[int, ...],
    lens: Tensor, light: Tensor, index: Tensor, depth: Tensor, ray: Tensor,
) -> Tensor:  # fmt: skip
    """`surface.plain_surface` in one kernel: 8 x B x N, colour, light, gloss and normal.

    light: B x 4, the sun's direction in the world and the ambient share.
    """
    batch, rays = index.shape
    primitives = table.shape[2]
    out = torch.empty(8, batch, rays, device=index.device)
    starts = _ends(counts)
    _surface[(triton.cdiv(rays, BLOCK), batch)](
        table, looks, texture, texels, lens, light.contiguous(), index.contiguous(), depth.contiguous(),
        ray[0].contiguous(), ray[1].contiguous(), out,
        rays, batch * rays, primitives, batch * primitives, side, surfaces, side.bit_length(),
        (4 * side * side - 1) // 3, starts[3], starts[4], starts[5], starts[6],
        SIZE=BLOCK,
    )  # fmt: skip
    return out


def _ends(counts: tuple[int, ...]) -> list[int]:
    """Where the primitives of each kind begin, and where the last end."""
    return [sum(counts[:number]) for number in range(len(counts) + 1)]


def nearest(
    table: Tensor, alive: Tensor, outline: Tensor, texture: Tensor, silhouettes: Tensor, side: int, surfaces: int,
    counts: tuple[int, ...], x: Tensor, y: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`casting._nearest` in one kernel: depth and primitive, B x N each."""
    x, y = x.contiguous(), y.contiguous()
    batch, rays = x.shape
    primitives = alive.shape[1]
    depth, index = torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)
    _nearest[(triton.cdiv(rays, BLOCK), batch)](
        table, alive.view(torch.uint8), outline, texture, silhouettes, x, y, depth, index,
        rays, primitives, batch * primitives, side, surfaces, *_ends(counts), SIZE=BLOCK,
    )  # fmt: skip
    return depth, index


def blocked(
    table: Tensor, alive: Tensor, outline: Tensor, texture: Tensor, silhouettes: Tensor, side: int, surfaces: int,
    counts: tuple[int, ...], sun: Tensor, points: Tensor, own: Tensor,
) -> Tensor:  # fmt: skip
    """`casting._blocked` in one kernel: B x N, bool."""
    points, own = points.contiguous(), own.contiguous()
    batch, rays = own.shape
    primitives = alive.shape[1]
    hidden = torch.empty_like(own, dtype=torch.bool)
    _blocked[(triton.cdiv(rays, BLOCK), batch)](
        table, alive.view(torch.uint8), outline, texture, silhouettes, sun.contiguous(), points, own,
        hidden.view(torch.uint8),
        rays, batch * rays, primitives, batch * primitives, side, surfaces, *_ends(counts)[:6], SIZE=BLOCK,
    )  # fmt: skip
    return hidden
