"""Where pixels lie, and which cell they lie in."""

import pytest
import torch
import torch.nn.functional as F

from protoformer.geometry.warps import cell_of_pixel, cells, grid_shape, pixel_grid


def test_x_grows_to_the_right_and_y_downwards() -> None:
    grid = pixel_grid(2, 3)
    assert grid.dtype == torch.float32
    assert grid.tolist() == [[[0, 1, 2], [0, 1, 2]], [[0, 0, 0], [1, 1, 1]]]


@pytest.mark.parametrize(
    ("count", "shape"),
    [
        *((100, (10, 10)), (10, (2, 5)), (50, (5, 10)), (200, (10, 20)), (16, (4, 4)), (12, (3, 4))),
        *((1, (1, 1)), (2, (1, 2)), (7, (1, 7)), (97, (1, 97))),
    ],
)
def test_a_grid_is_as_square_as_its_count_allows(count: int, shape: tuple[int, int]) -> None:
    assert grid_shape(count) == shape


def test_no_grid_is_squarer_than_the_one_chosen() -> None:
    for count in range(1, 200):
        rows, columns = grid_shape(count)
        assert rows * columns == count and rows <= columns
        assert not any(count % more == 0 for more in range(rows + 1, columns))


@pytest.mark.parametrize("count", [0, -4])
def test_a_grid_without_cells_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"at least one cell, not {count}"):
        grid_shape(count)


@pytest.mark.parametrize(("length", "count"), [(12, 4), (13, 4), (7, 3), (5, 5), (3, 7), (1, 1), (1, 4), (160, 10)])
def test_bands_are_those_of_adaptive_pooling(length: int, count: int) -> None:
    # Pooling the unit impulse at each position says which bands hold it, and by what share.
    pooled = F.adaptive_avg_pool1d(torch.eye(length)[:, None], count)[:, 0].T
    bands = cells(length, count)
    assert bands.dtype == torch.bool
    assert torch.equal(bands, pooled > 0)
    torch.testing.assert_close(bands / bands.sum(dim=1, keepdim=True), pooled)


def test_a_mean_over_cells_is_the_pooled_map() -> None:
    values = torch.rand(1, 3, 13, 17, generator=torch.Generator().manual_seed(1))
    rows, columns = cells(13, 4).float(), cells(17, 5).float()
    sums = torch.einsum("rh,nchw,sw->ncrs", rows, values, columns)
    means = sums / (rows.sum(dim=1)[:, None] * columns.sum(dim=1))
    torch.testing.assert_close(means, F.adaptive_avg_pool2d(values, (4, 5)))


def test_cells_are_counted_row_by_row() -> None:
    assert cell_of_pixel((4, 6), (2, 3)).view(4, 6).tolist() == [
        [0, 0, 1, 1, 2, 2],
        [0, 0, 1, 1, 2, 2],
        [3, 3, 4, 4, 5, 5],
        [3, 3, 4, 4, 5, 5],
    ]


@pytest.mark.parametrize(("size", "grid"), [((13, 17), (4, 5)), ((10, 10), (10, 10)), ((9, 31), (2, 7))])
def test_a_pixels_one_cell_is_among_those_that_hold_it(size: tuple[int, int], grid: tuple[int, int]) -> None:
    cell = cell_of_pixel(size, grid).view(size)
    row, column = cell // grid[1], cell % grid[1]
    in_row, in_column = cells(size[0], grid[0]), cells(size[1], grid[1])
    assert in_row[row, torch.arange(size[0])[:, None]].all()
    assert in_column[column, torch.arange(size[1])].all()
    assert cell.unique().tolist() == list(range(grid[0] * grid[1]))


def test_an_image_smaller_than_the_grid_leaves_cells_empty() -> None:
    assert cell_of_pixel((1, 1), (4, 4)).tolist() == [0]
    assert cell_of_pixel((2, 2), (4, 4)).tolist() == [0, 2, 8, 10]
