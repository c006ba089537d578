"""Padding changes no pixel's coordinates, and cropping undoes it."""

import pytest
import torch

from protoformer.geometry.warps import Padding

SIZES = [(1, 1), (15, 15), (16, 24), (37, 61), (61, 37), (8, 2000)]


def numbered(height: int, width: int) -> torch.Tensor:
    return torch.arange(height * width, dtype=torch.float32).view(1, 1, height, width)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("multiple", "least"), [(8, 1), (8, 64), (1, 1), (64, 64)])
def test_the_padded_size_is_the_next_multiple(size: tuple[int, int], multiple: int, least: int) -> None:
    padded = Padding.to_multiple(*size, multiple, least).pad(torch.zeros(1, 1, *size))
    for before, after in zip(size, padded.shape[2:], strict=True):
        assert after % multiple == 0
        assert after >= max(before, least)
        assert after - multiple < max(before, least)


@pytest.mark.parametrize("size", SIZES)
def test_every_pixel_keeps_its_coordinates(size: tuple[int, int]) -> None:
    image = numbered(*size)
    padded = Padding.to_multiple(*size, 8, 64).pad(image)
    assert torch.equal(padded[..., : size[0], : size[1]], image)


@pytest.mark.parametrize("size", SIZES)
def test_a_crop_undoes_a_pad(size: tuple[int, int]) -> None:
    padding, image = Padding.to_multiple(*size, 8, 64), numbered(*size)
    assert torch.equal(padding.crop(padding.pad(image)), image)


def test_the_last_row_and_column_are_repeated() -> None:
    assert Padding.to_multiple(2, 2, 3).pad(numbered(2, 2))[0, 0].tolist() == [[0, 1, 1], [2, 3, 3], [2, 3, 3]]


def test_one_pixel_fills_everything() -> None:
    padded = Padding.to_multiple(1, 1, 8, 64).pad(torch.full((2, 3, 1, 1), 0.25))
    assert torch.equal(padded, torch.full((2, 3, 64, 64), 0.25))


@pytest.mark.parametrize("size", [(64, 64), (64, 128), (128, 72)])
def test_an_image_of_the_right_size_is_handed_on_as_it_is(size: tuple[int, int]) -> None:
    padding, image = Padding.to_multiple(*size, 8, 64), numbered(*size)
    assert (padding.bottom, padding.right) == (0, 0)
    assert padding.pad(image) is image


@pytest.mark.parametrize(
    ("size", "stride", "cut"), [((15, 15), 8, (2, 2)), ((16, 17), 8, (2, 3)), ((37, 61), 4, (10, 16))]
)
def test_a_crop_of_coarse_maps_keeps_every_cell_that_holds_a_pixel(
    size: tuple[int, int], stride: int, cut: tuple[int, int]
) -> None:
    assert Padding.to_multiple(*size, 8, 64).crop(torch.zeros(2, 5, 16, 16), stride).shape == (2, 5, *cut)
