"""What textures are made of: noise, palettes, bars, bricks, cells, strokes.

`field` names a side x side tensor; a generator alone decides what is drawn.
"""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor


def uniform(generator: Generator, low: float, high: float) -> float:
    """A number between two."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def below(count: int, generator: Generator) -> int:
    """A whole number, 0 .. count - 1."""
    return int(torch.randint(count, (), generator=generator))


def grid(side: int) -> tuple[Tensor, Tensor]:
    """(y, x) of texel centers, -0.5 .. 0.5 across the square: side x 1 and 1 x side."""
    line = (torch.arange(side) + 0.5) / side - 0.5
    return line[:, None], line[None, :]


def turned(side: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Two coordinates at right angles, 0 in the middle, turned by any angle or (half of the time) upright."""
    angle = uniform(generator, 0, 2 * math.pi) if below(2, generator) else math.pi / 2 * below(4, generator)
    y, x = grid(side)
    return math.cos(angle) * x + math.sin(angle) * y, math.cos(angle) * y - math.sin(angle) * x


def spectral(side: int, generator: Generator, slope: float, coarsest: float = 1.0, stretch: float = 1.0) -> Tensor:
    """A field of mean 0 and deviation 1 whose amplitude falls as frequency^-slope (1 is natural, 0 is white).

    Frequencies below `coarsest` periods per side are left out; `stretch` < 1 draws the noise out along x.
    """
    rows, columns = torch.fft.fftfreq(side, 1 / side), torch.fft.rfftfreq(side, 1 / side)
    frequency = torch.hypot(rows[:, None], columns[None, :] / stretch)
    amplitude = frequency.clamp_min(0.5).pow(-slope - 0.5) * (frequency >= coarsest)
    amplitude[0, 0] = 0
    phases = torch.randn(2, *amplitude.shape, generator=generator)
    field = torch.fft.irfft2(torch.complex(amplitude * phases[0], amplitude * phases[1]), s=(side, side))
    unit: Tensor = field / field.std().clamp_min(1e-12)
    return unit


def evened(field: Tensor) -> Tensor:
    """Bring noise of deviation 1 to 0 .. 1 with every value equally likely."""
    return 0.5 + 0.5 * torch.erf(field * math.sqrt(0.5))


def palette(count: int, generator: Generator) -> Tensor:
    """Related colors, count x 3: far apart in brightness, near in hue, now and then saturated."""
    middle, spread = uniform(generator, 0.35, 0.65), uniform(generator, 0.12, 0.32)
    brightness = middle + spread * torch.linspace(-1, 1, count)
    if below(2, generator):
        brightness = brightness[torch.randperm(count, generator=generator)]
    # Earth and wood, leaves and grass, sky and water are the hues of most things.
    common = (0.5, 0.8, 1.7, 3.8, uniform(generator, 0, 2 * math.pi), uniform(generator, 0, 2 * math.pi))
    hue = common[below(6, generator)] + uniform(generator, 0, 0.8) * torch.randn(count, 1, generator=generator)
    chroma = 0.03 + 0.4 * uniform(generator, 0, 1) ** 2 * (0.5 + 0.5 * torch.rand(count, 1, generator=generator))
    thirds = torch.tensor([0.0, 2.0, 4.0]) * (math.pi / 3)
    return (brightness[:, None] + chroma * torch.cos(hue - thirds)).clamp(0.03, 0.97)


def ramp(value: Tensor, colors: Tensor) -> Tensor:
    """Colors (count x 3) blended along 0 .. 1: 3 x the shape of `value`."""
    table = F.interpolate(colors.T[None], size=256, mode="linear", align_corners=True)[0]
    return looked_up(table, (value.clamp(0, 1) * 255).round().int())


def looked_up(table: Tensor, number: Tensor) -> Tensor:
    """Columns of a 3 x count table by their numbers: 3 x the shape of `number`."""
    return torch.stack([row.index_select(0, number.flatten()) for row in table]).view(3, *number.shape)


def bars(phase: Tensor, generator: Generator) -> Tensor:
    """Bars of period 1 in 0 .. 1 with some duty and softness."""
    wave = (phase % 1 - 0.5).abs() * 2
    return torch.sigmoid((wave - uniform(generator, 0.2, 0.8)) / uniform(generator, 0.02, 0.2))


def banded(phase: Tensor, pattern: Tensor) -> Tensor:
    """Bands of the pattern's colors (count x 3), repeated with period 1: 3 x H x W."""
    return looked_up(pattern.T, ((phase % 1) * len(pattern)).int().clamp_max(len(pattern) - 1))


def bricks(side: int, pieces: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """(distance to the joint in pieces, number of the piece) of rows of bricks, each row shifted."""
    rows, columns = pieces, max(1, pieces // (1 + below(4, generator)))
    shift = (torch.arange(rows) % 2 * 0.5, torch.rand(rows, generator=generator), torch.zeros(rows))
    y, x = grid(side)
    y, x = (y + 0.5) * rows, (x + 0.5) * columns
    row = y.long()
    x = x + shift[below(3, generator)][row]
    edge_y, edge_x = 0.5 - (y % 1 - 0.5).abs(), 0.5 - (x % 1 - 0.5).abs()
    edge = torch.minimum(edge_y, edge_x * (rows / columns))
    owner = row * columns + x.long() % columns
    return (edge, owner) if below(2, generator) else (edge.T, owner.T)


def voronoi(side: int, pieces: int, jitter: float, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(distance to the joint, number of the piece, distance to its seed), in pieces; hexagons where nothing jitters."""
    seed_y, seed_x = 0.5 + jitter * (torch.rand(2, pieces, pieces, generator=generator) - 0.5)
    if jitter == 0:
        seed_x = seed_x + 0.5 * (torch.arange(pieces) % 2)[:, None]
    line = (torch.arange(side) + 0.5) * (pieces / side)
    cell, within = line.long(), line % 1
    first, second = torch.full((side, side), 9.0), torch.full((side, side), 9.0)
    owner = torch.zeros(side, side, dtype=torch.long)
    for down in (-1, 0, 1):
        row = (cell + down) % pieces
        for right in (-1, 0, 1):
            column = (cell + right) % pieces
            # Columns first: whole rows are then copied, which is many times quicker than picking elements.
            away_y = seed_y[:, column].index_select(0, row) + (down - within)[:, None]
            away_x = seed_x[:, column].index_select(0, row) + (right - within)[None, :]
            distance = torch.addcmul(away_y.square(), away_x, away_x)
            owner = torch.where(distance < first, row[:, None] * pieces + column, owner)
            second = torch.minimum(second, torch.maximum(first, distance))
            first = torch.minimum(first, distance)
    center = first.sqrt()
    return second.sqrt() - center, owner, center


def strewn(side: int, length: float, plump: float, spread: float, generator: Generator) -> Tensor:
    """Drop ovals (length in sides, `plump` times as wide, turned by up to `spread`): the number of the top one."""
    count = min(6000, int(3.0 / (length * length * plump)))
    angle = uniform(generator, 0, math.pi) + spread * (torch.rand(count, 1, generator=generator) - 0.5)
    middle = torch.rand(2, count, 1, generator=generator)
    points = 10 + int(40 * plump)
    # Points on a sunflower spiral cover a disc evenly.
    steps = torch.arange(points) + 0.5
    radius, turn = (steps / points).sqrt() * length, steps * 2.39996
    along, across = radius * torch.cos(turn), radius * torch.sin(turn) * plump
    y = middle[0] + torch.sin(angle) * along + torch.cos(angle) * across
    x = middle[1] + torch.cos(angle) * along - torch.sin(angle) * across
    place = ((y * side).long() % side) * side + (x * side).long() % side
    number = torch.arange(count)[:, None].expand(-1, points)
    ground = torch.zeros(side * side, dtype=torch.long)
    return ground.scatter_reduce(0, place.flatten(), number.flatten(), "amax").view(side, side)


def written(rows: int, columns: int, generator: Generator) -> Tensor:
    """Ink in 0 .. 1 of letters made of random strokes, in words and ragged lines: (16 rows) x (10 columns)."""
    letters, strokes = 24, 4
    walk = torch.randint(3, (letters, strokes + 1, 2), generator=generator) * torch.tensor([5.0, 3.0]) + 2.5
    y, x = torch.arange(16.0)[:, None] + 0.5, torch.arange(10.0)[None, :] + 0.5
    start, end = walk[:, :-1, :, None, None], walk[:, 1:, :, None, None]
    step = end - start
    reach = ((y - start[:, :, 0]) * step[:, :, 0] + (x - start[:, :, 1]) * step[:, :, 1]) / step.square().sum(
        2
    ).clamp_min(1)
    reach = reach.clamp(0, 1)
    away = torch.hypot(y - start[:, :, 0] - reach * step[:, :, 0], x - start[:, :, 1] - reach * step[:, :, 1])
    ink = (1.6 - away.amin(dim=1)).clamp(0, 1)
    text = ink[torch.randint(letters, (rows, columns), generator=generator)]
    blank = torch.rand(rows, columns, generator=generator) < 0.15
    ends = columns * (0.5 + 0.6 * torch.rand(rows, 1, generator=generator))
    blank |= torch.arange(columns) >= ends
    return (text * ~blank[..., None, None]).permute(0, 2, 1, 3).reshape(16 * rows, 10 * columns)


def thick_lines(side: int, segments: Tensor) -> Tensor:
    """Thick lines, positive inside: segments count x 5 of (y, x) to (y, x) and half their thickness."""
    y, x = grid(side)
    field = torch.full((side, side), -1.0)
    for y0, x0, y1, x1, thick in segments.tolist():
        dy, dx = y1 - y0, x1 - x0
        reach = (((y - y0) * dy + (x - x0) * dx) / max(dy * dy + dx * dx, 1e-9)).clamp_(0, 1)
        away = torch.hypot(y - y0 - reach * dy, x - x0 - reach * dx)
        field = torch.maximum(field, thick - away)
    return field
