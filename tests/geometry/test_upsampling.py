"""Fine pixels are mixtures of the coarse ones around them."""

import pytest
import torch

from protoformer.geometry.warps import convex_upsample, upsample_2x

CERTAIN = 1000.0  # a logit beside which the other eight are exactly nothing in float32


def certain(height: int, width: int, factor: int, neighbor: int) -> torch.Tensor:
    """Weights that pick one of the nine neighbors (0 top left, 8 bottom right), everywhere."""
    weights = torch.zeros(1, 9, factor, factor, height, width)
    weights[:, neighbor] = CERTAIN
    return weights.view(1, -1, height, width)


@pytest.mark.parametrize("factor", [1, 2, 8])
def test_a_constant_flow_stays_constant_up_to_the_border(factor: int) -> None:
    weights = torch.randn(2, 9 * factor**2, 3, 5, generator=torch.Generator().manual_seed(0))
    flow = torch.tensor([3.5, -2.0]).view(1, 2, 1, 1).expand(2, 2, 3, 5)
    fine = convex_upsample(flow, weights, factor)
    torch.testing.assert_close(fine, flow[..., :1, :1].expand(2, 2, 3 * factor, 5 * factor))


@pytest.mark.parametrize("neighbor", range(9))
def test_a_certain_weight_picks_one_neighbor(neighbor: int) -> None:
    field = torch.arange(20.0).view(1, 1, 4, 5)
    down, right = neighbor // 3 - 1, neighbor % 3 - 1
    rows = (torch.arange(4) + down).clamp(0, 3)
    columns = (torch.arange(5) + right).clamp(0, 4)
    picked = field[..., rows[:, None], columns]
    expected = picked.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    assert torch.equal(convex_upsample(field, certain(4, 5, 2, neighbor), 2), expected)


def test_no_value_leaves_the_range_of_its_neighbors() -> None:
    generator = torch.Generator().manual_seed(3)
    field, weights = torch.randn(1, 2, 6, 6, generator=generator), torch.randn(1, 9 * 16, 6, 6, generator=generator)
    fine = convex_upsample(field, 10 * weights, 4)
    assert fine.min() >= field.min() - 1e-6 and fine.max() <= field.max() + 1e-6


def test_every_pixel_is_the_sum_written_out() -> None:
    generator = torch.Generator().manual_seed(7)
    height, width, factor = 3, 4, 2
    field = torch.randn(2, 2, height, width, generator=generator)
    weights = torch.randn(2, 9 * factor**2, height, width, generator=generator)
    expected = torch.empty(2, 2, factor * height, factor * width)
    for image, y, x in torch.cartesian_prod(
        torch.arange(2), torch.arange(factor * height), torch.arange(factor * width)
    ).tolist():
        row, column = y // factor, x // factor
        # Channel (n, i, j) of the weights: neighbor n, and the place (i, j) of the fine pixel in its coarse one.
        channels = [(n * factor + y % factor) * factor + x % factor for n in range(9)]
        shares = weights[image, channels, row, column].softmax(dim=0)
        near = [
            field[image, :, min(max(row + down, 0), height - 1), min(max(column + right, 0), width - 1)]
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
        ]
        expected[image, :, y, x] = sum(share * value for share, value in zip(shares, near, strict=True))
    torch.testing.assert_close(convex_upsample(field, weights, factor), expected)


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (5, 3)])
def test_doubled_maps_are_torchs_own_with_the_same_gradient(size: tuple[int, int]) -> None:
    maps = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1), requires_grad=True)
    expected = torch.nn.functional.interpolate(maps, scale_factor=2, mode="bilinear", align_corners=False)
    torch.testing.assert_close(upsample_2x(maps), expected)
    arriving = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(
        *(torch.autograd.grad(result, maps, arriving)[0] for result in (upsample_2x(maps), expected))
    )
