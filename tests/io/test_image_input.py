"""Whatever people hand in becomes one kind of tensor, or is refused in one sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protoformer.errors import InputError
from protoformer.io.image_input import as_image

RNG = np.random.default_rng(0)
COLOR = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)
EXPECTED = torch.from_numpy(COLOR.astype(np.float32) / np.float32(255)).permute(2, 0, 1)[None]


def same(image: torch.Tensor, expected: torch.Tensor) -> bool:
    assert image.dtype == torch.float32
    return image.shape == expected.shape and torch.allclose(image, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("as_path", [str, Path])
def test_a_path_is_read(tmp_path: Path, as_path) -> None:
    Image.fromarray(COLOR).save(tmp_path / "a.png")
    assert same(as_image(as_path(tmp_path / "a.png")), EXPECTED)


@pytest.mark.parametrize(
    "array",
    [
        COLOR,
        COLOR.astype(np.uint16) * 257,
        COLOR.astype(np.uint32) * 16843009,
        COLOR / 255,
        (COLOR / 255).astype(np.float32),
        COLOR[::-1][::-1],
        np.asfortranarray(COLOR),
        (COLOR.astype(np.uint16) * 257).astype(">u2"),
        (COLOR / 255).astype(">f4"),
    ],
    ids=[
        "uint8",
        "uint16",
        "uint32",
        "float64",
        "float32",
        "flipped",
        "fortran",
        "big-endian uint16",
        "big-endian float",
    ],
)
def test_an_array_of_any_depth_and_layout_is_the_same_image(array: np.ndarray) -> None:
    assert same(as_image(array), EXPECTED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("batch", [False, True])
def test_a_tensor_with_or_without_a_batch_is_an_image(dtype: torch.dtype, batch: bool) -> None:
    tensor = EXPECTED.to(dtype)
    image = as_image(tensor if batch else tensor[0])
    torch.testing.assert_close(image, tensor.float())


def test_a_tensor_of_bytes_is_scaled() -> None:
    assert same(as_image(torch.from_numpy(COLOR).permute(2, 0, 1)), EXPECTED)


def test_a_tensor_that_needs_a_gradient_is_taken_as_it_is() -> None:
    image = as_image(EXPECTED.clone().requires_grad_())
    assert same(image, EXPECTED) and not image.requires_grad


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1)])
def test_gray_is_repeated_in_three_channels(shape: tuple[int, ...]) -> None:
    gray = COLOR[..., 0].reshape(shape)
    assert same(as_image(gray), EXPECTED[:, :1].expand(1, 3, 5, 7))


def test_black_and_white_is_zero_and_one() -> None:
    mask = RNG.random((4, 6)) > 0.5
    assert same(as_image(mask), torch.from_numpy(mask).float().expand(1, 3, 4, 6))


def test_opacity_is_over_black() -> None:
    pixels = np.zeros((1, 3, 4))
    pixels[..., :3] = 0.8
    pixels[0, :, 3] = [0, 0.5, 1]
    assert same(as_image(pixels), torch.tensor([0.0, 0.4, 0.8]).expand(1, 3, 1, 3))


def test_one_pixel_is_an_image() -> None:
    assert same(as_image(np.full((1, 1), 255, dtype=np.uint8)), torch.ones(1, 3, 1, 1))


def test_the_image_is_a_copy() -> None:
    array = np.zeros((4, 4, 3), dtype=np.float32)
    image = as_image(array)
    array[:] = 1
    assert not image.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["array", "tensor"])
def test_what_is_not_finite_is_refused(kind, bad: float) -> None:
    values = np.zeros((3, 3, 3))
    values[1, 1, 1] = bad
    with pytest.raises(InputError, match="the left one contains NaN or infinite values; replace them first"):
        as_image(kind(values), "the left one")


def test_what_rounding_left_beyond_the_range_is_cut_off() -> None:
    values = torch.tensor([-1e-6, 0.5, 1 + 1e-6]).expand(3, 2, 3)
    assert as_image(values)[0, 0, 0].tolist() == [0, 0.5, 1]


@pytest.mark.parametrize(("low", "high"), [(0.0, 255.0), (-1.0, 1.0), (-0.25, 0.5)])
def test_floats_of_another_range_are_refused(low: float, high: float) -> None:
    values = np.linspace(low, high, 9).reshape(3, 3)
    with pytest.raises(InputError, match=rf"has values from {low:g} to {high:g}; scale floats to \[0, 1\]"):
        as_image(values)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.complex64, object])
def test_types_whose_white_is_unknown_are_refused(dtype: type) -> None:
    with pytest.raises(InputError, match="give unsigned integers, or floats"):
        as_image(np.ones((3, 3, 3)).astype(dtype))


def test_a_tensor_of_signed_integers_is_refused() -> None:
    with pytest.raises(InputError, match="has values of type int64"):
        as_image(torch.ones(3, 4, 4, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(), (7,), (5, 7, 2), (5, 7, 5), (3, 5, 7), (1, 5, 7, 3)])
def test_arrays_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"is an array of shape .*; give H x W, or H x W x 1, 3 or 4"):
        as_image(np.zeros(shape))


@pytest.mark.parametrize("shape", [(), (5, 7), (1, 5, 7), (4, 5, 7), (5, 7, 3), (2, 3, 5, 7), (1, 1, 5, 7)])
def test_tensors_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"is a tensor of shape .*; give 3 x H x W or 1 x 3 x H x W"):
        as_image(torch.zeros(shape))


@pytest.mark.parametrize(
    "empty", [np.zeros((0, 5, 3)), np.zeros((5, 0)), torch.zeros(3, 0, 4), torch.zeros(1, 3, 4, 0)]
)
def test_an_image_without_pixels_is_refused(empty: np.ndarray | torch.Tensor) -> None:
    with pytest.raises(InputError, match="has no pixels"):
        as_image(empty)


def test_a_pillow_image_is_accepted() -> None:
    pixels = np.array([[[255, 0, 0, 255], [255, 255, 255, 51]]], dtype=np.uint8)
    assert same(as_image(Image.fromarray(pixels[..., :3])), torch.tensor([[1.0, 1], [0, 1], [0, 1]]).view(1, 3, 1, 2))
    assert same(as_image(Image.fromarray(pixels)), torch.tensor([[1.0, 0.2], [0, 0.2], [0, 0.2]]).view(1, 3, 1, 2))


def test_half_precision_tensors_are_images() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        assert same(as_image(torch.full((3, 2, 2), 0.5, dtype=dtype)), torch.full((1, 3, 2, 2), 0.5))


@pytest.mark.parametrize("source", [[[1, 2]], 7, None])
def test_other_things_are_refused_by_their_type(source: object) -> None:
    with pytest.raises(
        InputError, match=f"the image is of type {type(source).__name__}; give a path, an array, a tensor"
    ):
        as_image(source)  # type: ignore[arg-type]
