"""Procedural textures and silhouettes, in families that resemble real surfaces.

Every texture is 3 x side x side RGB in [0, 1] and determined by its generator. Coordinates run over 0 .. 1 across the
square; a `field` is a side x side tensor. The building blocks (noise, palettes, bars, bricks, cells, strokes) come
first.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor


def uniform(generator: Generator, low: float, high: float) -> float:
    """Draw a float uniformly from [low, high)."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def randint(count: int, generator: Generator) -> int:
    """Draw an integer from 0 .. count - 1."""
    return int(torch.randint(count, (), generator=generator))


def grid(side: int) -> tuple[Tensor, Tensor]:
    """Return (y, x) of texel centers, -0.5 .. 0.5 across the square: side x 1 and 1 x side."""
    line = (torch.arange(side) + 0.5) / side - 0.5
    return line[:, None], line[None, :]


def rotated_grid(side: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return two orthogonal coordinates, 0 in the center, rotated by any angle or, half the time, a right angle."""
    angle = uniform(generator, 0, 2 * math.pi) if randint(2, generator) else math.pi / 2 * randint(4, generator)
    y, x = grid(side)
    return math.cos(angle) * x + math.sin(angle) * y, math.cos(angle) * y - math.sin(angle) * x


def spectral_noise(
    side: int, generator: Generator, slope: float, coarsest: float = 1.0, stretch: float = 1.0
) -> Tensor:
    """Generate noise with mean 0, standard deviation 1 and an amplitude that falls as frequency^-slope.

    Args:
        side: Texels along the field.
        generator: Random generator.
        slope: Spectral slope; 1 is like natural images, 0 is white.
        coarsest: Lowest frequency, periods per side.
        stretch: Below 1, elongates the noise along x.
    """
    rows, columns = torch.fft.fftfreq(side, 1 / side), torch.fft.rfftfreq(side, 1 / side)
    frequency = torch.hypot(rows[:, None], columns[None, :] / stretch)
    amplitude = frequency.clamp_min(0.5).pow(-slope - 0.5) * (frequency >= coarsest)
    amplitude[0, 0] = 0
    phases = torch.randn(2, *amplitude.shape, generator=generator)
    field = torch.fft.irfft2(torch.complex(amplitude * phases[0], amplitude * phases[1]), s=(side, side))
    unit: Tensor = field / field.std().clamp_min(1e-12)
    return unit


def equalize(field: Tensor) -> Tensor:
    """Map Gaussian noise of standard deviation 1 to a uniform distribution on 0 .. 1."""
    return 0.5 + 0.5 * torch.erf(field * math.sqrt(0.5))


def palette(count: int, generator: Generator) -> Tensor:
    """Draw related colors, count x 3: distinct in brightness, similar in hue, occasionally saturated."""
    middle, spread = uniform(generator, 0.35, 0.65), uniform(generator, 0.12, 0.32)
    brightness = middle + spread * torch.linspace(-1, 1, count)
    if randint(2, generator):
        brightness = brightness[torch.randperm(count, generator=generator)]
    # Common hues: earth and wood, leaves and grass, sky and water.
    common = (0.5, 0.8, 1.7, 3.8, uniform(generator, 0, 2 * math.pi), uniform(generator, 0, 2 * math.pi))
    hue = common[randint(6, generator)] + uniform(generator, 0, 0.8) * torch.randn(count, 1, generator=generator)
    chroma = 0.03 + 0.4 * uniform(generator, 0, 1) ** 2 * (0.5 + 0.5 * torch.rand(count, 1, generator=generator))
    thirds = torch.tensor([0.0, 2.0, 4.0]) * (math.pi / 3)
    return (brightness[:, None] + chroma * torch.cos(hue - thirds)).clamp(0.03, 0.97)


def ramp(value: Tensor, colors: Tensor) -> Tensor:
    """Map values in 0 .. 1 to interpolated colors (count x 3): 3 x the shape of `value`."""
    table = F.interpolate(colors.T[None], size=256, mode="linear", align_corners=True)[0]
    return lookup_colors(table, (value.clamp(0, 1) * 255).round().int())


def lookup_colors(table: Tensor, index: Tensor) -> Tensor:
    """Gather columns of a 3 x count table by index: 3 x the shape of `index`."""
    return torch.stack([row.index_select(0, index.flatten()) for row in table]).view(3, *index.shape)


def bars(phase: Tensor, generator: Generator) -> Tensor:
    """Return bars of period 1 in 0 .. 1 with random duty cycle and softness."""
    wave = (phase % 1 - 0.5).abs() * 2
    return torch.sigmoid((wave - uniform(generator, 0.2, 0.8)) / uniform(generator, 0.02, 0.2))


def color_bands(phase: Tensor, pattern: Tensor) -> Tensor:
    """Return bands of the pattern's colors (count x 3), repeated with period 1: 3 x H x W."""
    return lookup_colors(pattern.T, ((phase % 1) * len(pattern)).int().clamp_max(len(pattern) - 1))


def bricks(side: int, pieces: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return (distance to the joint in bricks, index of the brick) for rows of bricks with random offsets."""
    rows, columns = pieces, max(1, pieces // (1 + randint(4, generator)))
    shift = (torch.arange(rows) % 2 * 0.5, torch.rand(rows, generator=generator), torch.zeros(rows))
    y, x = grid(side)
    y, x = (y + 0.5) * rows, (x + 0.5) * columns
    row = y.long()
    x = x + shift[randint(3, generator)][row]
    edge_y, edge_x = 0.5 - (y % 1 - 0.5).abs(), 0.5 - (x % 1 - 0.5).abs()
    edge = torch.minimum(edge_y, edge_x * (rows / columns))
    owner = row * columns + x.long() % columns
    return (edge, owner) if randint(2, generator) else (edge.T, owner.T)


def voronoi(side: int, num_cells: int, jitter: float, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return (distance to the border, index of the cell, distance to its seed) in cells; hexagons if jitter is 0."""
    seed_y, seed_x = 0.5 + jitter * (torch.rand(2, num_cells, num_cells, generator=generator) - 0.5)
    if jitter == 0:
        seed_x = seed_x + 0.5 * (torch.arange(num_cells) % 2)[:, None]
    line = (torch.arange(side) + 0.5) * (num_cells / side)
    cell, within = line.long(), line % 1
    first, second = torch.full((side, side), 9.0), torch.full((side, side), 9.0)
    owner = torch.zeros(side, side, dtype=torch.long)
    for dy in (-1, 0, 1):
        row = (cell + dy) % num_cells
        for dx in (-1, 0, 1):
            column = (cell + dx) % num_cells
            # Columns first: copying whole rows is many times faster than gathering elements.
            offset_y = seed_y[:, column].index_select(0, row) + (dy - within)[:, None]
            offset_x = seed_x[:, column].index_select(0, row) + (dx - within)[None, :]
            distance = torch.addcmul(offset_y.square(), offset_x, offset_x)
            owner = torch.where(distance < first, row[:, None] * num_cells + column, owner)
            second = torch.minimum(second, torch.maximum(first, distance))
            first = torch.minimum(first, distance)
    center = first.sqrt()
    return second.sqrt() - center, owner, center


def scatter_ovals(side: int, length: float, aspect: float, spread: float, generator: Generator) -> Tensor:
    """Scatter overlapping ovals and return the index of the topmost one at each texel.

    `length` is that of an oval, in sides; `aspect` its width relative to the length; `spread` the range of
    orientations, radians.
    """
    count = min(6000, int(3.0 / (length * length * aspect)))
    angle = uniform(generator, 0, math.pi) + spread * (torch.rand(count, 1, generator=generator) - 0.5)
    center = torch.rand(2, count, 1, generator=generator)
    points = 10 + int(40 * aspect)
    # Points on a sunflower spiral cover a disc evenly.
    steps = torch.arange(points) + 0.5
    radius, turn = (steps / points).sqrt() * length, steps * 2.39996
    along, across = radius * torch.cos(turn), radius * torch.sin(turn) * aspect
    y = center[0] + torch.sin(angle) * along + torch.cos(angle) * across
    x = center[1] + torch.cos(angle) * along - torch.sin(angle) * across
    position = ((y * side).long() % side) * side + (x * side).long() % side
    index = torch.arange(count)[:, None].expand(-1, points)
    ground = torch.zeros(side * side, dtype=torch.long)
    return ground.scatter_reduce(0, position.flatten(), index.flatten(), "amax").view(side, side)


def render_text(rows: int, columns: int, generator: Generator) -> Tensor:
    """Render ink in 0 .. 1 of random letters in words and ragged lines: (16 rows) x (10 columns)."""
    letters, strokes = 24, 4
    walk = torch.randint(3, (letters, strokes + 1, 2), generator=generator) * torch.tensor([5.0, 3.0]) + 2.5
    y, x = torch.arange(16.0)[:, None] + 0.5, torch.arange(10.0)[None, :] + 0.5
    start, end = walk[:, :-1, :, None, None], walk[:, 1:, :, None, None]
    step = end - start
    projection = ((y - start[:, :, 0]) * step[:, :, 0] + (x - start[:, :, 1]) * step[:, :, 1]) / step.square().sum(
        2
    ).clamp_min(1)
    projection = projection.clamp(0, 1)
    distance = torch.hypot(
        y - start[:, :, 0] - projection * step[:, :, 0], x - start[:, :, 1] - projection * step[:, :, 1]
    )
    ink = (1.6 - distance.amin(dim=1)).clamp(0, 1)
    text = ink[torch.randint(letters, (rows, columns), generator=generator)]
    blank = torch.rand(rows, columns, generator=generator) < 0.15
    ends = columns * (0.5 + 0.6 * torch.rand(rows, 1, generator=generator))
    blank |= torch.arange(columns) >= ends
    return (text * ~blank[..., None, None]).permute(0, 2, 1, 3).reshape(16 * rows, 10 * columns)


def line_field(side: int, segments: Tensor) -> Tensor:
    """Compute a field that is positive inside lines: count x 5, (y, x) to (y, x) and half the thickness, in sides."""
    y, x = grid(side)
    field = torch.full((side, side), -1.0)
    for y0, x0, y1, x1, half_thickness in segments.tolist():
        dy, dx = y1 - y0, x1 - x0
        projection = (((y - y0) * dy + (x - x0) * dx) / max(dy * dy + dx * dx, 1e-9)).clamp_(0, 1)
        distance = torch.hypot(y - y0 - projection * dy, x - x0 - projection * dx)
        field = torch.maximum(field, half_thickness - distance)
    return field


_MARGIN = 2  # empty texels around a silhouette
_MIN_SIDE = 64  # minimum resolution of a silhouette; thin shapes would vanish below it


def cloud(side: int, generator: Generator) -> Tensor:
    """Generate noise from smooth to grainy, some of it ridged like rock or veined like marble."""
    field = spectral_noise(side, generator, slope=uniform(generator, 0.8, 2.0), stretch=uniform(generator, 0.5, 2.0))
    kind = randint(4, generator)
    if kind == 0:
        value = torch.exp(-uniform(generator, 1.0, 3.0) * field.abs())
    elif kind == 1:
        across, _ = rotated_grid(side, generator)
        bend = uniform(generator, 0.1, 0.5) * field
        value = 0.5 + 0.5 * torch.sin(2 * math.pi * (uniform(generator, 1, 6) * across + bend))
    else:
        value = equalize(field)
    return _normalize_brightness(ramp(value, palette(3 + randint(3, generator), generator)), generator)


def stripes(side: int, generator: Generator) -> Tensor:
    """Generate straight or wavy bars, multicolored bars, checks and plaid."""
    across, along = rotated_grid(side, generator)
    if randint(2, generator):
        bend = uniform(generator, 0.01, 0.06) * spectral_noise(side, generator, slope=uniform(generator, 2.0, 3.0))
        across, along = across + bend, along - bend
    count, kind = uniform(generator, 3, 22), randint(4, generator)
    colors = palette(6, generator)
    if kind == 0:
        return _normalize_brightness(ramp(bars(across * count, generator), colors[:2]), generator)
    if kind == 1:
        one, other = bars(across * count, generator), bars(along * count, generator)
        return _normalize_brightness(ramp(one + other - 2 * one * other, colors[:2]), generator)
    pattern = colors[torch.randint(6, (5 + randint(20, generator),), generator=generator)]
    image = color_bands(across * count / len(pattern), pattern)
    if kind == 2:
        return _normalize_brightness(image, generator)
    weave = 0.5 + 0.2 * torch.sin((across + along) * (math.pi * side / 4)).sign()
    return _normalize_brightness(
        weave * image + (1 - weave) * color_bands(along * count / len(pattern), pattern), generator
    )


def cells(side: int, generator: Generator) -> Tensor:
    """Generate bricks, planks, tiles, hexagons, cracked ground and pebbles: related colors between joints."""
    num_cells = 2 * (2 + randint(7, generator))
    kind = randint(5, generator)
    if kind < 2:
        distance, cell_index = bricks(side, num_cells, generator)
        rounding = torch.zeros(())
    else:
        jitter = (0.0, 0.6, 1.0)[kind - 2]
        distance, cell_index, center = voronoi(side, num_cells, jitter, generator)
        rounding = uniform(generator, 0.0, 0.5) * center
    colors = palette(5, generator)
    shades = torch.rand(num_cells * num_cells, generator=generator)
    image = lookup_colors(ramp(shades, colors[1:]), cell_index)
    wear = spectral_noise(side, generator, slope=uniform(generator, 0.6, 1.5))
    image = image * (1 - rounding + uniform(generator, 0.02, 0.12) * wear)
    width = uniform(generator, 0.0, 0.15)
    joint = torch.sigmoid((distance + 0.02 * wear - width) * uniform(generator, 20, 80))
    return _normalize_brightness(joint * image + (1 - joint) * colors[0, :, None, None] * (1 + 0.1 * wear), generator)


def gradient(side: int, generator: Generator) -> Tensor:
    """Generate smooth color ramps, straight, round or irregular, with a little grain."""
    across, along = rotated_grid(side, generator)
    kind = randint(3, generator)
    if kind == 0:
        value = across + 0.5
    elif kind == 1:
        radius = torch.hypot(across - uniform(generator, -0.4, 0.4), along - uniform(generator, -0.4, 0.4))
        value = radius * uniform(generator, 0.7, 1.5)
    else:
        value = equalize(spectral_noise(side, generator, slope=3.0))
    value = value + uniform(generator, 0.0, 0.08) * spectral_noise(side, generator, slope=2.5)
    grain = uniform(generator, 0.005, 0.03) * spectral_noise(side, generator, slope=uniform(generator, 0.2, 1.2))
    return _normalize_brightness(ramp(value, palette(2 + randint(3, generator), generator)) + grain, generator)


def marks(side: int, generator: Generator) -> Tensor:
    """Generate rows of letter-like strokes in words on paper, or a few large ones on a sign."""
    sign = randint(3, generator) == 0
    rows = 1 + randint(3, generator) if sign else 5 + randint(12, generator)
    columns = max(2, round(rows * uniform(generator, 1.3, 2.2)))
    ink = render_text(rows, columns, generator)
    ink = F.interpolate(ink[None, None], size=(side, side), mode="bilinear", antialias=True)[0, 0]
    ink = ((ink - 0.5) * max(1.0, side / (32 * rows)) + 0.5).clamp(0, 1)  # sharpen edges blurred by the enlargement
    colors = palette(3, generator)
    # Ink and paper must differ in brightness to be legible.
    paper, inked = colors[0] * 0 + uniform(generator, 0.6, 0.85), colors[1] * uniform(generator, 0.2, 0.6)
    paper = paper + (0.9 if sign else 0.4) * (colors[0] - colors[0].mean())
    if randint(3, generator) == 0:
        paper, inked = inked, paper
    if sign:
        across = torch.linspace(-1, 1, side).abs()
        border = torch.maximum(across[:, None], across[None, :])
        ink = torch.maximum(ink, torch.exp(-((border - 0.93) * 40).square()))
    wear = 1 + uniform(generator, 0.02, 0.08) * spectral_noise(side, generator, slope=1.2)
    return _normalize_brightness(torch.lerp(paper[:, None, None] * wear, inked[:, None, None], ink), generator)


def flat(side: int, generator: Generator) -> Tensor:
    """Generate one color with faint blotches and some scratches."""
    color = palette(3, generator)[1, :, None, None]
    blotches = uniform(generator, 0.005, 0.03) * spectral_noise(side, generator, slope=uniform(generator, 0.5, 2.0))
    brushed = uniform(generator, 0.0, 0.02) * spectral_noise(
        side, generator, slope=0.7, stretch=uniform(generator, 0.02, 1)
    )
    position, half, angle = (torch.rand(3, 1, 1, generator=generator) for _ in range(3))
    y, x = grid(side)
    cos, sin = torch.cos(angle * math.pi), torch.sin(angle * math.pi)
    distance, on = cos * x + sin * y - (position - 0.5) * 0.8, cos * y - sin * x
    scratches = (1 - distance.abs() * side).clamp_min(0) * ((on - half + 0.5).abs() < 0.5 * half)
    depth = uniform(generator, -0.1, 0.1)
    return _normalize_brightness(color + blotches + brushed + depth * scratches.amax(dim=0), generator)


def speckle(side: int, generator: Generator) -> Tensor:
    """Generate fine natural textures: grass, leaf litter, gravel, moss, fur."""
    colors = palette(5, generator)
    if randint(4, generator) == 0:
        strands = spectral_noise(
            side, generator, slope=0.3, coarsest=uniform(generator, 3, 10), stretch=uniform(generator, 0.2, 1)
        )
        clump = spectral_noise(side, generator, slope=1.5)
        return _normalize_brightness(ramp(equalize(strands) * (0.75 + 0.25 * torch.tanh(clump)), colors), generator)
    length, aspect = uniform(generator, 0.012, 0.035), uniform(generator, 0.12, 0.9)
    oval_index = scatter_ovals(side, length, aspect, spread=uniform(generator, 0.2, math.pi), generator=generator)
    count = int(oval_index.max()) + 1
    # Later ovals lie on top and are brighter.
    height = torch.linspace(0, 1, count)
    shade = 0.55 * height + 0.45 * torch.rand(count, generator=generator)
    image = lookup_colors(ramp(shade, colors[colors.mean(dim=1).argsort()]), oval_index)
    blurred = F.avg_pool2d(F.pad(image[None], (1, 1, 1, 1), mode="replicate"), 3, stride=1)[0]
    image = 0.6 * image + 0.4 * blurred
    return _normalize_brightness(image * (1 + 0.12 * spectral_noise(side, generator, slope=1.5)), generator)


FAMILIES: dict[str, Callable[[int, Generator], Tensor]] = {
    "cloud": cloud,
    "stripes": stripes,
    "cells": cells,
    "gradient": gradient,
    "marks": marks,
    "flat": flat,
    "speckle": speckle,
}
"""Families of opaque textures by name."""


def cutout(side: int, generator: Generator) -> Tensor:
    """Generate a silhouette filled with a texture of some family: 4 x side x side RGBA.

    The shape is centered, its longer extent fills the square, and `_MARGIN` texels along every border are empty. Alpha
    is 0 or 1 except along the antialiased outline.
    """
    shape = _SHAPES[randint(len(_SHAPES), generator)](max(_MIN_SIDE, side), generator)
    alpha = _fit_silhouette(shape, side)
    names = sorted(FAMILIES)
    color = FAMILIES[names[randint(len(names), generator)]](side, generator)
    return torch.cat((color, alpha[None]))


# Silhouettes are implicit fields, positive inside, over the square of `grid`; they are cropped to their extent later.


def _leaf(side: int, generator: Generator) -> Tensor:
    y, x = rotated_grid(side, generator)
    angle, radius = torch.atan2(x, y), torch.hypot(x, y)
    lobes = 1 + 2 * randint(4, generator)
    outline = 0.18 + 0.14 * torch.cos(angle) + 0.1 * torch.cos(angle * lobes).abs() * (1.2 + torch.cos(angle))
    teeth = 0.012 * torch.cos(angle * (20 + randint(30, generator)))
    stem = 0.012 - torch.maximum(x.abs(), (y + 0.2).abs() - 0.2)
    return torch.maximum(outline + teeth - radius, stem)


def _star(side: int, generator: Generator) -> Tensor:
    y, x = rotated_grid(side, generator)
    points, waist = 3 + randint(7, generator), uniform(generator, 0.3, 0.8)
    sector = math.pi / points
    # By symmetry one straight edge, from a tip to the next waist, represents all of them.
    angle = (torch.atan2(x, y) % (2 * sector) - sector).abs()
    radius = torch.hypot(x, y)
    u, v = radius * torch.cos(sector - angle), radius * torch.sin(sector - angle)
    tip, end_u, end_v = 0.45, 0.45 * waist * math.cos(sector), 0.45 * waist * math.sin(sector)
    return (tip - u) * end_v - v * (tip - end_u)


def _blob(side: int, generator: Generator) -> Tensor:
    y, x = grid(side)
    body = 0.36 - torch.hypot(x, y) + 0.05 * spectral_noise(side, generator, slope=uniform(generator, 1.8, 2.6))
    holes = spectral_noise(side, generator, slope=2.2, coarsest=3)
    return torch.minimum(body, 0.08 * (uniform(generator, 0.6, 1.6) - holes))


def _lattice(side: int, generator: Generator) -> Tensor:
    y, x = grid(side)
    slope = 1.0 if randint(2, generator) else 0.0
    one, other = x + slope * y, y - slope * x
    pitch, thick = uniform(generator, 0.08, 0.25), uniform(generator, 0.15, 0.45)
    bars = [thick / 2 - ((line / pitch) % 1 - 0.5).abs() for line in (one, other)]
    frame = torch.maximum(x.abs(), y.abs() / uniform(generator, 0.7, 1.0))
    lattice = torch.maximum(torch.maximum(*bars) * pitch, 0.02 - (frame - 0.42).abs())
    return torch.minimum(lattice, 0.44 - frame)


def _tree(side: int, generator: Generator) -> Tensor:
    forks, branches = 4, []
    base, angle, length, thick = torch.tensor([[0.45, 0.0]]), torch.zeros(1), torch.full((1,), 0.3), 0.03
    for _ in range(forks + 1):
        tip = base + length[:, None] * torch.stack((-torch.cos(angle), torch.sin(angle)), dim=1)
        branches.append(torch.cat((base, tip, torch.full((len(base), 1), thick)), dim=1))
        turn = 0.25 + 0.45 * torch.rand(2, len(base), generator=generator)
        shrink = 0.6 + 0.25 * torch.rand(2, len(base), generator=generator)
        base, angle = tip.repeat(2, 1), torch.cat((angle - turn[0], angle + turn[1]))
        length, thick = length.repeat(2) * shrink.flatten(), thick * 0.65
    # Half the resolution suffices, because the distance to the branches is smooth.
    branch_field = line_field(side // 2, torch.cat(branches))
    branch_field = F.interpolate(branch_field[None, None], size=(side, side), mode="bilinear", align_corners=False)[
        0, 0
    ]
    if randint(3, generator) == 0:
        return branch_field
    y, x = grid(side)
    crown = 0.3 - torch.hypot(x, (y + 0.12) * uniform(generator, 0.9, 1.3))
    leaves = crown + uniform(generator, 0.04, 0.1) * spectral_noise(side, generator, slope=1.1, coarsest=4)
    return torch.maximum(branch_field, leaves)


def _glyph(side: int, generator: Generator) -> Tensor:
    strokes = 3 + randint(4, generator)
    walk = torch.randint(3, (strokes + 1, 2), generator=generator) * torch.tensor([0.36, 0.28]) - torch.tensor(
        [0.36, 0.28]
    )
    walk[0], walk[1] = torch.tensor([-0.36, -0.28]), torch.tensor([0.36, walk[1, 1].item()])
    thick = torch.full((strokes, 1), uniform(generator, 0.04, 0.09))
    return line_field(side, torch.cat((walk[:-1], walk[1:], thick), dim=1))


def _ring(side: int, generator: Generator) -> Tensor:
    y, x = rotated_grid(side, generator)
    radius, angle = torch.hypot(x, y * uniform(generator, 1.0, 1.4)), torch.atan2(x, y)
    width = uniform(generator, 0.04, 0.12)
    teeth = randint(2, generator) * 0.02 * torch.tanh(4 * torch.cos(angle * (8 + randint(12, generator))))
    band = width - (radius - 0.4 + width).abs() + teeth * (radius > 0.4 - width)
    spokes = 0.02 - (radius * torch.sin(angle * (1 + randint(4, generator)))).abs() * 0.5
    return torch.maximum(band, torch.minimum(spokes, 0.38 - radius)) if randint(2, generator) else band


_SHAPES = (_leaf, _star, _blob, _lattice, _tree, _glyph, _ring)


def _fit_silhouette(field: Tensor, side: int) -> Tensor:
    """Crop a field (positive inside) to its extent, fit it into the square and convert it to alpha."""
    inside = field > 0
    rows, columns = inside.any(dim=1).nonzero()[:, 0], inside.any(dim=0).nonzero()[:, 0]
    top, bottom, left, right = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
    available = side - 2 * _MARGIN - 2  # one more texel on each side for the antialiased outline
    longest = max(bottom - top, right - left)
    # Thin shapes are widened to 55 % of the square to be clearly visible.
    height, width = (max(2, round(available * max(0.55, extent / longest))) for extent in (bottom - top, right - left))
    crop = F.interpolate(field[None, None, top:bottom, left:right], size=(height, width), mode="bilinear")[0, 0]
    pad_top, pad_left = (side - height) // 2, (side - width) // 2
    crop = F.pad(crop[None], (1, 1, 1, 1), mode="replicate")[0]
    grad_y, grad_x = crop[2:, 1:-1] - crop[:-2, 1:-1], crop[1:-1, 2:] - crop[1:-1, :-2]
    # Value divided by gradient approximates the distance to the outline in texels.
    distance = 2 * crop[1:-1, 1:-1] / torch.hypot(grad_y, grad_x).clamp_min(1e-6)
    alpha = (distance + 0.5).clamp(0, 1)
    return F.pad(alpha, (pad_left, side - width - pad_left, pad_top, side - height - pad_top))


def _normalize_brightness(image: Tensor, generator: Generator) -> Tensor:
    """Add large-scale shading to a 3 x side x side image and move its mean brightness into a middle range."""
    side = image.shape[-1]
    # Smooth enough to be generated small and enlarged, which is faster.
    shading = uniform(generator, 0.0, 0.06) * spectral_noise(max(4, side // 4), generator, slope=2.0)
    shading = F.interpolate(shading[None, None], size=(side, side), mode="bilinear")[0]
    image = (image * (1 + shading)).clamp(0, 1)
    mean = float(image.mean())
    target = min(max(mean, 0.27), 0.73)
    # A power moves the mean and keeps black and white.
    return image.clamp_min(1e-4) ** (math.log(target) / math.log(mean))


def noise(height: int, width: int, generator: torch.Generator, coarsest: int = 64, falloff: float = 0.7) -> Tensor:
    """Generate colored multi-octave noise: 3 x height x width in [0, 1].

    `coarsest` is the scale of the coarsest octave, pixels; the finest is 2. `falloff` is the strength of each octave
    relative to the next coarser one; near 1 is grainy, near 0 is smooth.
    """
    total = torch.zeros(3, height, width)
    strength, spacing = 1.0, coarsest
    while spacing >= 2:
        control_points = torch.rand(1, 3, height // spacing + 2, width // spacing + 2, generator=generator) - 0.5
        size = (spacing * control_points.shape[2], spacing * control_points.shape[3])
        fine = F.interpolate(control_points, size=size, mode="bicubic", align_corners=False)[0]
        total += strength * fine[:, spacing // 2 :, spacing // 2 :][:, :height, :width]
        strength, spacing = strength * falloff, spacing // 2
    # Natural surfaces vary more in brightness than in color.
    mixed = 0.75 * total.mean(dim=0, keepdim=True) + 0.25 * total
    centered = mixed - mixed.mean(dim=(1, 2), keepdim=True)
    contrast = 0.2 / centered.std(dim=(1, 2), keepdim=True, correction=0).clamp_min(1e-6)
    tint = 0.25 + 0.5 * torch.rand(3, 1, 1, generator=generator)
    return (centered * contrast + tint).clamp(0, 1)
