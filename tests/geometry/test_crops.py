"""Crops around boxes, and features inside them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoformer.geometry.regions import Crops, roi_align

corner = st.floats(-500, 1500)
side = st.floats(1, 900)
boxes = st.lists(st.tuples(corner, corner, side, side), min_size=1, max_size=4)


@given(boxes, st.floats(0.5, 9), st.integers(8, 352))
def test_what_goes_into_a_crop_comes_out_where_it_was(
    chosen: list[tuple[float, ...]], factor: float, size: int
) -> None:
    given_boxes = torch.tensor(chosen)
    crops = Crops.around(given_boxes, factor, size)
    assert torch.allclose(crops.boxes_out(crops.boxes_in(given_boxes)), given_boxes, atol=1e-3)
    points = given_boxes[:, None, :2] + torch.tensor([[0.0, 1.0], [3.0, -2.0]])
    assert torch.allclose(crops.points_out(crops.points_in(points)), points, atol=1e-3)


@given(boxes, st.floats(0.5, 9), st.integers(8, 352))
def test_the_box_lies_in_the_middle_and_has_its_share(
    chosen: list[tuple[float, ...]], factor: float, size: int
) -> None:
    crops = Crops.around(torch.tensor(chosen), factor, size)
    inside = crops.boxes_in(torch.tensor(chosen))
    assert torch.allclose(inside[:, :2] + inside[:, 2:] / 2, torch.full((len(chosen), 2), size / 2), atol=0.02)
    assert torch.allclose(inside[:, 2:].prod(dim=1).sqrt(), torch.full((len(chosen),), size / factor), rtol=1e-3)


def test_a_crop_of_the_whole_image_is_the_image() -> None:
    images = torch.rand(2, 3, 12, 12)
    crops = Crops(torch.zeros(2, 2), torch.full((2,), 12.0), 12)
    assert torch.allclose(crops.cut(images, torch.zeros(2, 3)), images, atol=1e-6)


def test_a_crop_on_whole_pixels_is_a_slice_and_what_is_beyond_is_filled() -> None:
    images, fill = torch.rand(1, 3, 10, 14), torch.tensor([[0.1, 0.2, 0.3]])
    result = Crops(torch.tensor([[9.0, -2.0]]), torch.tensor([8.0]), 8).cut(images, fill)
    assert torch.allclose(result[..., 2:, :5], images[..., :6, 9:], atol=1e-6)
    assert torch.allclose(result[..., :2, :], fill[:, :, None, None].expand(-1, -1, 2, 8), atol=1e-6)
    assert torch.allclose(result[..., 5:], fill[:, :, None, None].expand(-1, -1, 8, 3), atol=1e-6)


def test_a_reduced_crop_is_the_mean_of_what_its_pixels_cover() -> None:
    images = torch.rand(1, 3, 24, 24)
    result = Crops(torch.zeros(1, 2), torch.tensor([24.0]), 4).cut(images, torch.zeros(1, 3))
    assert torch.allclose(result, torch.nn.functional.avg_pool2d(images, 6), atol=1e-6)


def test_an_enlarged_crop_is_bilinear() -> None:
    images = torch.rand(1, 3, 9, 9)
    result = Crops(torch.zeros(1, 2), torch.tensor([9.0]), 27).cut(images, torch.zeros(1, 3))
    expected = torch.nn.functional.interpolate(images, size=(27, 27), mode="bilinear")
    assert torch.allclose(result[..., 2:-2, 2:-2], expected[..., 2:-2, 2:-2], atol=1e-5)


def test_what_a_box_shows_is_where_the_crop_says_it_is() -> None:
    """A bright rectangle of whole pixels fills its box in the crop, to a pixel of the edge."""
    images = torch.zeros(1, 1, 60, 80)
    images[..., 20:30, 33:53] = 1
    box = torch.tensor([[33.0, 20.0, 20.0, 10.0]])
    crops = Crops.around(box, 3.0, 96)
    result = crops.cut(images, torch.zeros(1, 1))[0, 0]
    (x, y, width, height) = crops.boxes_in(box)[0].tolist()
    assert float(result.sum()) == pytest.approx(width * height, rel=5e-3)
    assert result[int(y) + 4 : int(y + height) - 4, int(x) + 4 : int(x + width) - 4].min() > 0.999
    rows, columns = (result > 0.5).nonzero().unbind(1)
    edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert [float(each) for each in edges] == pytest.approx([x, y, x + width, y + height], abs=1)


def bilinear(plane: torch.Tensor, x: float, y: float) -> float:
    """A sample of a plane, H x W, whose cell i reaches from i to i + 1; 0 beyond its middles."""
    total = 0.0
    for row in range(plane.shape[0]):
        for column in range(plane.shape[1]):
            weight = max(0.0, 1 - abs(x - 0.5 - column)) * max(0.0, 1 - abs(y - 0.5 - row))
            total += weight * float(plane[row, column])
    return total


@settings(max_examples=15)
@given(st.tuples(st.floats(-6, 10), st.floats(-6, 8), st.floats(0, 12), st.floats(0, 12)), st.integers(1, 3))
def test_a_bin_is_the_mean_of_four_bilinear_samples(box: tuple[float, ...], bins: int) -> None:
    plane = torch.rand(1, 2, 5, 7, generator=torch.Generator().manual_seed(0))
    result = roi_align(plane, torch.tensor([box]), bins)
    x, y, width, height = box
    for row in range(bins):
        for column in range(bins):
            samples = [
                bilinear(plane[0, 1], x + width * (column + across) / bins, y + height * (row + down) / bins)
                for across in (0.25, 0.75)
                for down in (0.25, 0.75)
            ]
            assert float(result[0, 1, row, column]) == pytest.approx(sum(samples) / 4, abs=1e-4)


def test_bins_of_several_maps_and_boxes_are_those_of_each_alone() -> None:
    maps = torch.rand(3, 4, 6, 9).contiguous(memory_format=torch.channels_last)
    boxes = torch.tensor([[1.0, 2.0, 3.0, 2.0], [0.5, -1.0, 6.0, 4.0], [4.0, 1.0, 9.0, 9.0]])
    together = roi_align(maps, boxes, 3)
    for index in range(3):
        alone = roi_align(maps[index : index + 1].contiguous(), boxes[index : index + 1], 3)
        assert torch.allclose(together[index], alone[0], atol=1e-6)


def test_an_empty_box_gives_a_crop_of_a_pixel_and_a_box_beyond_the_map_gives_nothing() -> None:
    crops = Crops.around(torch.tensor([[3.0, 3.0, 0.0, 0.0]]), 4.0, 8)
    assert crops.sides.tolist() == [4.0] and crops.cut(torch.rand(1, 3, 9, 9), torch.zeros(1, 3)).isfinite().all()
    assert roi_align(torch.rand(1, 2, 5, 5), torch.tensor([[40.0, 40.0, 3.0, 3.0]]), 2).abs().max() == 0
