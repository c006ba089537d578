"""Building blocks of procedural textures: noise, palettes, bars, bricks, cells and strokes.

A `field` is a side x side tensor. All randomness comes from the generator.
"""

import math

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
