"""Images seen along a flow, and what a flow hides."""

import pytest
import torch

from protoformer.geometry.warps import occlusion_by_consistency, pixel_grid, sample, warp_back

IMAGE = torch.rand(2, 3, 9, 13, generator=torch.Generator().manual_seed(0))


def pan(right: float, down: float, height: int = 9, width: int = 13) -> torch.Tensor:
    return torch.tensor([float(right), float(down)]).view(1, 2, 1, 1).expand(1, 2, height, width)


def test_samples_at_the_pixels_are_the_pixels() -> None:
    grid = pixel_grid(9, 13).expand(2, -1, -1, -1)
    torch.testing.assert_close(sample(IMAGE, grid), IMAGE, atol=1e-5, rtol=0)


def test_a_sample_between_four_pixels_is_their_mean() -> None:
    between = torch.tensor([4.5, 2.5]).view(1, 2, 1, 1)
    expected = IMAGE[:1, :, 2:4, 4:6].mean(dim=(2, 3), keepdim=True)
    torch.testing.assert_close(sample(IMAGE[:1], between), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("where", [(-1.0, 3.0), (13.0, 3.0), (5.0, -1.0), (5.0, 9.0), (-400.0, 1e6)])
def test_a_sample_outside_is_zero(where: tuple[float, float]) -> None:
    assert sample(IMAGE[:1], torch.tensor(where).view(1, 2, 1, 1)).abs().max() < 1e-5


def test_positions_may_have_a_size_of_their_own() -> None:
    positions = torch.tensor([[[1.0, 2.0, 3.0]], [[5.0, 5.0, 5.0]]])[None]
    torch.testing.assert_close(sample(IMAGE[:1], positions), IMAGE[:1, :, 5:6, 1:4], atol=1e-5, rtol=0)


def test_no_motion_leaves_the_image_as_it_is() -> None:
    torch.testing.assert_close(warp_back(IMAGE, torch.zeros(2, 2, 9, 13)), IMAGE, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("right", "down"), [(3, 0), (0, 2), (-4, 1), (2, -3), (-1, -1)])
def test_a_pan_by_whole_pixels_is_a_shift(right: int, down: int) -> None:
    # What the pan brings in from beyond the image is black.
    expected = torch.zeros_like(IMAGE)
    rows, columns = slice(max(0, -down), 9 - max(0, down)), slice(max(0, -right), 13 - max(0, right))
    from_rows, from_columns = slice(max(0, down), 9 - max(0, -down)), slice(max(0, right), 13 - max(0, -right))
    expected[..., rows, columns] = IMAGE[..., from_rows, from_columns]
    seen = warp_back(IMAGE, pan(right, down).expand(2, -1, -1, -1))
    torch.testing.assert_close(seen, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("right", "down"), [(0, 0), (3, 0), (0, 2), (-4, 1), (2, -3), (13, 0)])
def test_a_pan_hides_exactly_the_pixels_that_leave(right: int, down: int) -> None:
    x, y = pixel_grid(9, 13)
    leaves = (x + right < 0) | (x + right > 12) | (y + down < 0) | (y + down > 8)
    hidden = occlusion_by_consistency(pan(right, down), pan(-right, -down))
    assert hidden.dtype == torch.bool and hidden.shape == (1, 1, 9, 13)
    assert torch.equal(hidden[0, 0], leaves)


def test_a_pixel_that_does_not_come_back_is_hidden() -> None:
    forward, backward = pan(0, 0).clone(), pan(0, 0).clone()
    backward[0, 0, 4, 6] = 3.0  # the surface now seen there came from 3 px away
    hidden = occlusion_by_consistency(forward, backward)[0, 0]
    assert hidden.nonzero().tolist() == [[4, 6]]


@pytest.mark.parametrize(("gap", "hidden"), [(0.70, False), (0.72, True)])
def test_a_still_pixel_may_miss_its_start_by_the_root_of_a_half(gap: float, hidden: bool) -> None:
    # |b|^2 > 0.01 |b|^2 + 0.5 from |b| = 0.7107 on.
    assert bool(occlusion_by_consistency(pan(0, 0), pan(gap, 0)).all()) is hidden
    assert bool(occlusion_by_consistency(pan(0, 0), pan(gap, 0)).any()) is hidden


def test_a_fast_pixel_may_miss_its_start_by_more() -> None:
    # At 20 px the bound is 0.01 (20^2 + 19^2) + 0.5 = 8.11 for a squared gap of 1.
    wide = occlusion_by_consistency(pan(20, 0, 9, 60), pan(-19, 0, 9, 60))
    assert not wide[..., :40].any() and wide[..., 40:].all()
