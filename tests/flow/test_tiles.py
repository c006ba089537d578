"""Tiles cover an image, and their predictions blend into one map without seams."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoformer.flow.tiling import (
    MIN_OVERLAP,
    PAPER_TILE,
    Tile,
    blending_weights,
    make_tiles,
    predict_tiled,
    tile_starts,
)

SIDES = st.integers(1, 300)
TILE_SIDES = st.integers(MIN_OVERLAP + 1, 200)


def ramp(size: tuple[int, int]) -> torch.Tensor:
    """A map that differs at every pixel and in each of its two channels: 2 x H x W, float32."""
    y, x = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="ij")
    return torch.stack((0.3 * x - 0.7 * y, x * y + 0.1)).float()


def test_the_paper_takes_windows_of_432_by_960_that_overlap_by_20() -> None:
    assert PAPER_TILE == (432, 960)
    assert MIN_OVERLAP == 20


@pytest.mark.parametrize(
    ("length", "window", "begins"),
    [
        (100, 100, [0]),
        (99, 100, [0]),
        (5, 10, [0]),
        (101, 100, [0, 1]),
        (180, 100, [0, 80]),
        (181, 100, [0, 80, 81]),
        (260, 100, [0, 80, 160]),
        (250, 100, [0, 80, 150]),
        (23, 21, [0, 1, 2]),
        (1024, 960, [0, 64]),
        (1242, 960, [0, 282]),
        (2560, 960, [0, 940, 1600]),
    ],
)
def test_windows_begin_as_far_apart_as_the_overlap_allows(length: int, window: int, begins: list[int]) -> None:
    assert tile_starts(length, window) == begins


def test_another_overlap_may_be_asked_for() -> None:
    assert tile_starts(100, 40, overlap=0) == [0, 40, 60]
    assert tile_starts(100, 40, overlap=30) == [0, 10, 20, 30, 40, 50, 60]


@given(SIDES, TILE_SIDES)
def test_windows_overlap_by_twenty_and_the_last_ends_flush(length: int, window: int) -> None:
    begins = tile_starts(length, window)
    assert begins[0] == 0
    assert begins[-1] == max(0, length - window)
    steps = [later - earlier for earlier, later in itertools.pairwise(begins)]
    assert all(0 < step <= window - MIN_OVERLAP for step in steps)


@pytest.mark.parametrize("window", [1, 19, 20])
def test_a_window_no_longer_than_the_overlap_would_never_advance(window: int) -> None:
    with pytest.raises(ValueError, match=rf"a tile of {window} pixels cannot overlap the next by 20"):
        tile_starts(100, window)
    assert tile_starts(window, window) == [0]


@pytest.mark.parametrize(
    ("size", "corners"),
    [
        ((436, 1024), [(0, 432, 0, 960), (0, 432, 64, 1024), (4, 436, 0, 960), (4, 436, 64, 1024)]),
        ((375, 1242), [(0, 375, 0, 960), (0, 375, 282, 1242)]),
        ((384, 512), [(0, 384, 0, 512)]),
    ],
)
def test_sintel_kitti_and_chairs_are_cut_row_by_row(size: tuple[int, int], corners: list[tuple[int, ...]]) -> None:
    result = [(rows.start, rows.stop, columns.start, columns.stop) for rows, columns in make_tiles(size, PAPER_TILE)]
    assert result == corners


@settings(deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(21, 90), st.integers(21, 90))
def test_windows_have_one_size_and_cover_every_pixel(height: int, width: int, rows: int, columns: int) -> None:
    covered = np.zeros((height, width), dtype=np.bool_)
    for window in make_tiles((height, width), (rows, columns)):
        assert covered[window].shape == (min(rows, height), min(columns, width))
        covered[window] = True
    assert covered.all()


def test_weights_are_a_gaussian_of_a_twentieth_of_each_side() -> None:
    row = blending_weights(1, 10)
    assert row.dtype == torch.float64 and row.shape == (1, 10)
    for column, distance in ((5, 0.05), (6, 0.15), (9, 0.45)):
        assert float(row[0, column]) == pytest.approx(math.exp(-((distance / 0.05) ** 2) / 2), rel=1e-12)
    assert float(blending_weights(10, 10)[5, 6]) == pytest.approx(math.exp(-0.5 - 4.5), rel=1e-12)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 7), (33, 65), (31, 961)])
def test_weights_are_positive_and_fall_from_the_center_alike_on_all_sides(size: tuple[int, int]) -> None:
    weights = blending_weights(*size)
    assert weights.shape == size
    assert (weights > 0).all()
    assert float(weights[size[0] // 2, size[1] // 2]) == 1
    torch.testing.assert_close(weights, weights.flip(0, 1), rtol=1e-9, atol=0)
    right = weights[:, size[1] // 2 :]
    below = weights[size[0] // 2 :]
    assert (right.diff(dim=1) < 0).all() and (below.diff(dim=0) < 0).all()


@pytest.mark.parametrize("tile", [(21, 21), (30, 50), (40, 200), (200, 31), (432, 960)])
def test_a_map_cut_into_windows_comes_back_exactly(tile: tuple[int, int]) -> None:
    whole = ramp((61, 103))
    blended = predict_tiled((61, 103), tile, lambda window: whole[:, *window])
    assert blended.dtype == torch.float32
    assert torch.equal(blended, whole)


@settings(deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(30, 90), st.integers(30, 90))
def test_blending_is_a_partition_of_unity(height: int, width: int, rows: int, columns: int) -> None:
    def constant(window: Tile) -> torch.Tensor:
        return torch.full((1, *torch.empty(height, width)[window].shape), -7.3)

    assert torch.equal(predict_tiled((height, width), (rows, columns), constant), torch.full((1, height, width), -7.3))


def test_every_window_is_asked_for_once_and_in_order() -> None:
    asked: list[Tile] = []

    def predict(window: Tile) -> torch.Tensor:
        asked.append(window)
        return torch.zeros(2, 30, 50)

    predict_tiled((61, 103), (30, 50), predict)
    assert asked == make_tiles((61, 103), (30, 50))


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_all_channels_are_blended(channels: int) -> None:
    whole = torch.rand(channels, 40, 70, generator=torch.Generator().manual_seed(0))
    assert torch.equal(predict_tiled((40, 70), (32, 32), lambda window: whole[:, *window]), whole)


def test_an_image_in_one_window_is_what_was_said_of_it() -> None:
    said = torch.randn(2, 24, 33, generator=torch.Generator().manual_seed(1))
    assert torch.equal(predict_tiled((24, 33), (24, 33), lambda _: said), said)
    assert torch.equal(predict_tiled((24, 33), PAPER_TILE, lambda _: said), said)


def test_windows_that_disagree_fade_into_one_another_within_their_overlap() -> None:
    """Two of the paper's windows, of which the right one says one pixel more."""
    size, whole = (24, 1900), ramp((24, 1900))
    blended = predict_tiled(size, PAPER_TILE, lambda window: whole[:, *window] + (window[1].start > 0))
    excess = (blended.double() - whole.double())[0]
    assert torch.equal(blended[..., :940], whole[..., :940])
    assert torch.equal(blended[..., 960:], whole[..., 960:] + 1)
    torch.testing.assert_close(excess[:, 949:951].mean(dim=1), torch.full((24,), 0.5).double(), atol=1e-4, rtol=0)
    steps = excess.diff(dim=1)
    assert steps.min() > -1e-3
    assert steps.max() < 0.11


def test_windows_that_disagree_are_never_exceeded_by_their_blend() -> None:
    size, whole = (61, 103), ramp((61, 103))
    says = {(rows.start, columns.start): number for number, (rows, columns) in enumerate(make_tiles(size, (30, 40)))}
    offsets = torch.rand(len(says), generator=torch.Generator().manual_seed(2)) - 0.5

    def predict(window: Tile) -> torch.Tensor:
        return whole[:, *window] + offsets[says[window[0].start, window[1].start]]

    excess = predict_tiled(size, (30, 40), predict) - whole
    assert excess.min() >= offsets.min() - 1e-3 and excess.max() <= offsets.max() + 1e-3
    spread = float(offsets.max() - offsets.min())
    assert excess.diff(dim=1).abs().max() <= spread and excess.diff(dim=2).abs().max() <= spread
    corner = says[0, 0]
    torch.testing.assert_close(excess[:, 0, 0], offsets[corner].expand(2), atol=1e-5, rtol=0)
