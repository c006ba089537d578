"""Which pixel belongs to which prototype, in colors."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from protoformer.geometry.warps import cell_of_pixel
from protoformer.models.prototyping import Prototypes
from protoformer.viz.images import distinct_colors, draw_assignment, draw_gray, to_uint8


def belonging(owner: torch.Tensor, count: int, heads: int = 1) -> Prototypes:
    """Prototypes of which each pixel of a map (H x W) belongs wholly to one."""
    memberships = F.one_hot(owner.flatten(), count).T.float().expand(1, heads, -1, -1)
    return Prototypes(torch.zeros(1, count, 4), memberships, (owner.shape[0], owner.shape[1]))


def test_colors_are_always_the_same() -> None:
    assert torch.equal(distinct_colors(20), distinct_colors(20))
    assert torch.equal(distinct_colors(200)[:20], distinct_colors(20))


@pytest.mark.parametrize("count", [1, 16, 100, 200])
def test_colors_are_distinct_even_in_bytes(count: int) -> None:
    colors = distinct_colors(count)
    assert colors.shape == (count, 3)
    assert colors.min() >= 0 and colors.max() <= 1
    assert len((255 * colors).round().unique(dim=0)) == count


def test_successive_colors_are_far_apart() -> None:
    colors = distinct_colors(100)
    assert (colors[1:] - colors[:-1]).norm(dim=1).min() > 0.3


def test_an_image_becomes_bytes() -> None:
    image = torch.tensor([0.0, 0.5, 1.0, 1.5, -1.0]).view(1, 1, 5).expand(3, 2, 5)
    assert to_uint8(image).tolist() == [[[value] * 3 for value in (0, 128, 255, 255, 0)]] * 2
    assert draw_gray(image[0]).tolist() == [[0, 128, 255, 255, 0]] * 2


@pytest.mark.parametrize("stride", [1, 4, 8])
def test_every_region_has_its_own_color_and_a_dark_rim(stride: int) -> None:
    owner = cell_of_pixel((8, 12), (2, 3)).view(8, 12)
    height, width = 8 * stride, 12 * stride
    shown = draw_assignment(belonging(owner, 6), torch.zeros(3, height, width), stride, strength=1.0)
    assert shown.shape == (height, width, 3) and shown.dtype == np.uint8
    cell = cell_of_pixel((height, width), (2, 3)).view(height, width)
    colors = (255 * distinct_colors(6)).round().byte()
    rim = torch.zeros(height, width, dtype=torch.bool)
    rim[height // 2 - 1] = True
    rim[:, [width // 3 - 1, 2 * width // 3 - 1]] = True
    painted = torch.from_numpy(shown)
    assert torch.equal(painted[~rim], colors[cell][~rim])
    assert torch.equal(painted[rim], (0.4 * 255 * distinct_colors(6)).round().byte()[cell][rim])


def test_one_prototype_for_all_has_one_color() -> None:
    shown = draw_assignment(belonging(torch.zeros(4, 4, dtype=torch.long), 3), torch.zeros(3, 32, 32), 8, strength=1.0)
    assert (shown == shown[0, 0]).all()


def test_the_image_shows_through_in_gray() -> None:
    owner = torch.zeros(4, 4, dtype=torch.long)
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
    shown = draw_assignment(belonging(owner, 2), image, 4, strength=0.0)
    assert np.array_equal(shown, to_uint8(image.mean(dim=0).expand(3, -1, -1)))


def test_padding_at_the_bottom_and_right_is_cut_off() -> None:
    # 93 x 121 pixels padded to 96 x 128, at 1/8.
    owner = cell_of_pixel((12, 16), (3, 4)).view(12, 16)
    whole = draw_assignment(belonging(owner, 12), torch.zeros(3, 96, 128), 8)
    cut = draw_assignment(belonging(owner, 12), torch.zeros(3, 93, 121), 8)
    assert cut.shape == (93, 121, 3)
    assert np.array_equal(cut[:-1, :-1], whole[:92, :120])


@pytest.mark.parametrize("side", [1, 15, 33, 40])
def test_a_small_image_that_the_network_pads_a_lot_is_shown_in_its_own_pixels(side: int) -> None:
    # The network pads it to 64 x 64, so that the map at 1/4 has 16 x 16 cells.
    owner = torch.arange(256).view(16, 16)
    shown = draw_assignment(belonging(owner, 256), torch.zeros(3, side, side), 4, strength=1.0)
    assert shown.shape == (side, side, 3)
    assert shown[0, 0].tolist() == (255 * distinct_colors(256)[0]).round().int().tolist()


def test_heads_are_averaged() -> None:
    memberships = torch.tensor([[[0.6], [0.4]], [[0.1], [0.9]]])[None]  # the second head is the surer one
    shown = draw_assignment(
        Prototypes(torch.zeros(1, 2, 4), memberships, (1, 1)), torch.zeros(3, 1, 1), 1, strength=1.0
    )
    assert shown[0, 0].tolist() == (255 * distinct_colors(2)[1]).round().int().tolist()


def test_the_assignment_that_was_made_goes_before_memberships() -> None:
    prototypes = belonging(torch.zeros(2, 2, dtype=torch.long), 3)
    assigned = dataclasses.replace(prototypes, assignment=torch.full((1, 4), 2))
    image = torch.zeros(3, 2, 2)
    expected = draw_assignment(belonging(torch.full((2, 2), 2), 3), image, 1)
    assert np.array_equal(draw_assignment(assigned, image, 1), expected)
    assert not np.array_equal(draw_assignment(prototypes, image, 1), expected)


def test_groups_of_an_image_that_was_seen_enlarged_lie_where_they_are_in_it() -> None:
    enlarged = cell_of_pixel((16, 24), (2, 3)).view(16, 24)
    shown = draw_assignment(belonging(enlarged, 6), torch.zeros(3, 32, 48), 4, strength=1.0, input_size=(64, 96))
    assert shown.shape == (32, 48, 3)
    cell = cell_of_pixel((32, 48), (2, 3)).view(32, 48)
    near_a_rim = (torch.arange(32) % 16 - 15).abs().lt(3)[:, None] | (torch.arange(48) % 16 - 15).abs().lt(3)
    near_a_rim |= (torch.arange(32) % 16).lt(3)[:, None] | (torch.arange(48) % 16).lt(3)
    colors = (255 * distinct_colors(6)).round().byte()
    assert torch.equal(torch.from_numpy(shown)[~near_a_rim], colors[cell][~near_a_rim])
