"""What a ray meets first: every primitive of a scene against every ray, analytically.

Rays start at the camera, at the origin of its axes, and have the direction (x, y, 1): so the ray's parameter at a hit
is the depth. In the primitive's own coordinates a ray is o + t d, and every test is that of a unit shape.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from protoformer.synthetic.scene import FORWARD, INVERSE, KINDS, ORIGIN, PLACE, RIPPLE, Frame
from protoformer.synthetic.texture_bank import TextureBank

NEAREST = 0.02
"""Nothing nearer than this to where a ray starts is seen, meters."""
TILE = 96
"""Pixels; on a CPU, primitives that a tile cannot see are left out."""

Vector = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Shapes:
    """What does not change over time and decides what a ray meets.

    outline: 7 x B x P. texture: B x P, int64. bank: for silhouettes.
    """

    outline: Tensor
    texture: Tensor
    bank: TextureBank


def ripple(x: Tensor, y: Tensor, waves: Tensor) -> tuple[Tensor, Tensor]:
    """From the plane of a rippling patch to its material. waves: 6 x ..., the table's RIPPLE."""
    x = x + waves[0] * torch.sin(waves[1] * y + waves[2])
    return x, y + waves[3] * torch.sin(waves[4] * x + waves[5])


def unripple(x: Tensor, y: Tensor, waves: Tensor) -> tuple[Tensor, Tensor]:
    """From the material to the plane, exactly."""
    y = y - waves[3] * torch.sin(waves[4] * x + waves[5])
    return x - waves[0] * torch.sin(waves[1] * y + waves[2]), y


def _plane(o: Vector, d: Vector) -> Vector:
    """Depth, and the point of the plane z = 0."""
    depth = -o[2] / d[2]
    return depth, o[0] + depth * d[0], o[1] + depth * d[1]


def _rectangle(o: Vector, d: Vector) -> Tensor:
    depth, x, y = _plane(o, d)
    return torch.where(torch.maximum(x.abs(), y.abs()) <= 1, depth, torch.inf)


def _blob(o: Vector, d: Vector, outline: Tensor, waves: Tensor) -> Tensor:
    depth, x, y = _plane(o, d)
    x, y = ripple(x, y, waves)
    radius = (x * x + y * y).clamp_min(1e-12).sqrt()
    c, s = x / radius, y / radius
    c2, s2 = c * c - s * s, 2 * s * c
    c3, s3 = c2 * c - s2 * s, s2 * c + c2 * s
    c5, s5 = c2 * c3 - s2 * s3, s2 * c3 + c2 * s3
    reach = outline[0] + outline[1] * c2 + outline[2] * s2 + outline[3] * c3 + outline[4] * s3
    return torch.where(radius <= reach + outline[5] * c5 + outline[6] * s5, depth, torch.inf)


def _cutout(o: Vector, d: Vector, waves: Tensor, texture: Tensor, bank: TextureBank) -> Tensor:
    depth, x, y = _plane(o, d)
    x, y = ripple(x, y, waves)
    return torch.where(bank.covers(texture.expand_as(x), 0.5 * x + 0.5, 0.5 * y + 0.5), depth, torch.inf)


def _box(o: Vector, d: Vector, within: bool) -> Tensor:
    enter, leave = None, None
    for start, along in zip(o, d, strict=True):
        inverse = 1 / torch.where(along.abs() < 1e-12, 1e-12, along)  # a ray along a face divides by nothing else
        middle, half = -start * inverse, inverse.abs()
        near, far = middle - half, middle + half
        enter = near if enter is None else torch.maximum(enter, near)
        leave = far if leave is None else torch.minimum(leave, far)
    assert enter is not None and leave is not None
    return torch.where(enter <= leave, leave if within else enter, torch.inf)


def _ball(o: Vector, d: Vector, within: bool) -> Tensor:
    squared = d[0] * d[0] + d[1] * d[1] + d[2] * d[2]
    closest = -(o[0] * d[0] + o[1] * d[1] + o[2] * d[2]) / squared
    # The ray's point closest to the middle: subtracting squares of o instead would lose all digits of a far ball.
    x, y, z = (start + closest * along for start, along in zip(o, d, strict=True))
    within_ball = 1 - (x * x + y * y + z * z)
    reach = (within_ball.clamp_min(0) / squared).sqrt()
    return torch.where(within_ball >= 0, closest + reach if within else closest - reach, torch.inf)


def _depths(kind: str, o: Vector, d: Vector, table: Tensor, shapes: Shapes, part: slice) -> Tensor:
    """Where rays meet the primitives of one kind: B x P' x N, infinite where they do not."""
    if kind == "rectangle":
        return _rectangle(o, d)
    if kind == "blob":
        return _blob(o, d, shapes.outline[:, :, part, None], table[RIPPLE, :, part, None])
    if kind == "cutout":
        waves = table[RIPPLE, :, part, None]
        return _cutout(o, d, waves, shapes.texture[:, part, None], shapes.bank)
    if kind in ("box", "room"):
        return _box(o, d, within=kind == "room")
    return _ball(o, d, within=kind == "sky")


def _turned(matrix: Tensor, x: Tensor, y: Tensor, z: Tensor | float) -> Vector:
    """The product with a matrix, 9 x ..., row by row."""
    rows = [matrix[row] * x + matrix[row + 1] * y + matrix[row + 2] * z for row in (0, 3, 6)]
    return rows[0], rows[1], rows[2]


def parts_of(counts: tuple[int, ...]) -> list[tuple[str, slice]]:
    """The kinds that there are, and where their primitives stand."""
    parts, start = [], 0
    for kind, count in zip(KINDS, counts, strict=True):
        if count:
            parts.append((kind, slice(start, start + count)))
        start += count
    return parts


def _nearest(
    table: Tensor, alive: Tensor, shapes: Shapes, counts: tuple[int, ...], x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Depth and primitive, B x N each, on rays (x, y, 1) from the origin, B x N."""
    depth = torch.full_like(x, torch.inf)
    index = torch.zeros_like(x, dtype=torch.int64)
    across, down = x[:, None], y[:, None]
    for kind, part in parts_of(counts):
        x0, y0, z0 = table[ORIGIN, :, part, None]
        d = _turned(table[INVERSE, :, part, None], across, down, 1.0)
        met = _depths(kind, (x0, y0, z0), d, table, shapes, part)
        met = torch.where((met > NEAREST) & alive[:, part, None], met, torch.inf)
        near, which = met.min(dim=1)
        closer = near < depth
        depth, index = torch.where(closer, near, depth), torch.where(closer, which + part.start, index)
    return depth, index


def _blocked(
    table: Tensor, alive: Tensor, sun: Tensor, shapes: Shapes, counts: tuple[int, ...], points: Tensor, own: Tensor
) -> Tensor:
    """Whether something is between points (3 x B x N) and the sun (B x 3): B x N. own: the primitive of each, or -1."""
    hidden = torch.zeros_like(own, dtype=torch.bool)
    for kind, part in parts_of(counts):
        if kind in ("room", "sky"):
            continue
        inverse, (x0, y0, z0) = table[INVERSE, :, part, None], table[ORIGIN, :, part, None]
        x, y, z = _turned(inverse, *points[:, :, None].unbind(0))
        start = (x + x0, y + y0, z + z0)
        along = _turned(inverse, *sun.T[:, :, None, None].unbind(0))
        met = _depths(kind, start, along, table, shapes, part)
        # Every primitive is convex or flat, so none shadows itself where it faces the light.
        other = torch.arange(part.start, part.stop, device=own.device).view(1, -1, 1) != own[:, None]
        hidden = hidden | ((met > NEAREST) & (met < torch.inf) & other & alive[:, part, None]).any(dim=1)
    return hidden


def nearest(frame: Frame, shapes: Shapes, positions: Tensor) -> tuple[Tensor, Tensor]:
    """What is seen at positions (B x 2 x N, pixels): depth in meters (infinite: nothing) and the primitive, B x N."""
    x, y = frame.rays(positions)
    if x.device.type == "cuda":
        from protoformer.synthetic.kernels import casting_kernels as kernels

        return kernels.nearest(*_tensors(frame, shapes), frame.counts, x, y)
    bounds = _bounds(frame)
    depth, index = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64)
    for scene, rays in _tiles(frame, x.shape[1]):
        across, down = x[scene, rays], y[scene, rays]
        few = (frame.alive[scene] & _overlap(bounds[:, scene], across, down)).nonzero()[:, 0]
        table, some, counts = _of_few(frame, shapes, scene, few)
        near, which = _nearest(table, torch.ones(1, len(few), dtype=torch.bool), some, counts, across[None], down[None])
        depth[scene, rays] = near[0]
        index[scene, rays] = few[which[0]] if len(few) else 0
    return depth, index


def in_shadow(frame: Frame, shapes: Shapes, points: Tensor, own: Tensor) -> Tensor:
    """Whether points (3 x B x N, meters, in the camera's axes) of primitives `own` (B x N) are hidden from the sun.

    What it says of the sky's own points means nothing.
    """
    if points.device.type == "cuda":
        from protoformer.synthetic.kernels import casting_kernels as kernels

        return kernels.blocked(
            *_tensors(replace(frame, alive=frame.casts), shapes), frame.counts, frame.sun, points, own
        )
    across, down, bounds = _against_the_light(frame, points)
    hidden = torch.zeros(own.shape, dtype=torch.bool)
    sky = sum(frame.counts[: KINDS.index("sky")])
    for scene, rays in _tiles(frame, own.shape[1]):
        if bool((own[scene, rays] >= sky).all()):
            continue
        few = (frame.casts[scene] & _overlap(bounds[:, scene], across[scene, rays], down[scene, rays])).nonzero()[:, 0]
        table, some, counts = _of_few(frame, shapes, scene, few)
        alive, sun = torch.ones(1, len(few), dtype=torch.bool), frame.sun[scene : scene + 1]
        among = torch.searchsorted(few, own[scene, rays])
        among = (
            torch.where(few[among.clamp_max(max(0, len(few) - 1))] == own[scene, rays], among, -1)
            if len(few)
            else among
        )
        hidden[scene, rays] = _blocked(
            table, alive, sun, some, counts, points[:, scene : scene + 1, rays], among[None]
        )[0]
    return hidden


def _tensors(frame: Frame, shapes: Shapes) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int, int]:
    """What kernels need of the scenes."""
    bank = shapes.bank
    return frame.table, frame.alive, shapes.outline, shapes.texture, bank.silhouettes, bank.side, bank.surfaces


def _tiles(frame: Frame, rays: int) -> Iterator[tuple[int, Tensor | slice]]:
    """Scene by scene, rays that are near one another: by tiles of the image if there is one through each pixel."""
    order = _in_tiles(frame.size)
    pieces: Sequence[Tensor | slice] = [slice(start, start + TILE * TILE) for start in range(0, rays, TILE * TILE)]
    if order.shape[0] == rays:
        pieces = order.split(TILE * TILE)
    for scene in range(frame.alive.shape[0]):
        for piece in pieces:
            yield scene, piece


@cache
def _in_tiles(size: tuple[int, int]) -> Tensor:
    """Pixels in an order that goes through tiles of TILE x TILE."""
    height, width = size
    row, column = torch.arange(height)[:, None], torch.arange(width)
    tile = (row // TILE) * ((width + TILE - 1) // TILE) + column // TILE
    return tile.flatten().argsort(stable=True)


def _overlap(bounds: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which bounds (4 x P) reach into the rectangle around points: P, bool."""
    return (bounds[0] <= x.max()) & (bounds[1] >= x.min()) & (bounds[2] <= y.max()) & (bounds[3] >= y.min())


def _of_few(frame: Frame, shapes: Shapes, scene: int, few: Tensor) -> tuple[Tensor, Shapes, tuple[int, ...]]:
    """The table, shapes and counts of some primitives of one scene."""
    ends = torch.tensor([0, *frame.counts]).cumsum(0)
    counts = tuple(torch.searchsorted(few, ends).diff().tolist())
    one = slice(scene, scene + 1)
    return frame.table[:, one, few], Shapes(shapes.outline[:, one, few], shapes.texture[one, few], shapes.bank), counts


def _radii(frame: Frame) -> Tensor:
    """Of spheres around the primitives: B x P, meters."""
    squares = frame.table[FORWARD].square().unflatten(0, (3, 3)).sum(dim=0)
    flat = torch.arange(squares.shape[2]) < sum(frame.counts[: KINDS.index("box")])
    wavy = 1 + frame.table[RIPPLE][0].abs() + frame.table[RIPPLE][3].abs()
    return 1.001 * torch.where(flat, (squares[0] + squares[1]).sqrt() * wavy, squares.sum(dim=0).sqrt()) + 1e-6


def _bounds(frame: Frame) -> Tensor:
    """What rays (x, y, 1) may meet each primitive: 4 x B x P, least and most x, least and most y."""
    (x, y, z), radius = frame.table[PLACE], _radii(frame)
    near, far = (z - radius).clamp_min(1e-9), (z + radius).clamp_min(1e-9)
    ends = [
        extreme((middle + side) / near, (middle + side) / far)
        for middle in (x, y)
        for side, extreme in ((-radius, torch.minimum), (radius, torch.maximum))
    ]
    endless = torch.tensor([-torch.inf, torch.inf, -torch.inf, torch.inf]).view(4, 1, 1)
    return torch.where(z <= radius, endless, torch.stack(ends))  # behind the camera or around it, anything is met


def _against_the_light(frame: Frame, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Points (3 x B x N) on a plane across the sun's rays, x and y (B x N), and the bounds of primitives there."""
    aside = torch.linalg.cross(frame.sun, torch.eye(3)[frame.sun.abs().argmin(dim=1)])
    aside = aside / aside.norm(dim=1, keepdim=True)
    axes = torch.stack((aside, torch.linalg.cross(frame.sun, aside)))  # 2 x B x 3
    (across, down), radius = torch.einsum("abi,ibn->abn", axes, points), _radii(frame)
    x, y = torch.einsum("abi,ibn->abn", axes, frame.table[PLACE])
    return across, down, torch.stack((x - radius, x + radius, y - radius, y + radius))
