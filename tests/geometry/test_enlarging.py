"""Small images are enlarged to one number of pixels, and a flow keeps its meaning at any size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protoformer.geometry.warps import enlarged_size, pixel_grid, resize, resize_flow

PIXELS = 440 * 1024


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_small_images_are_enlarged_to_one_number_of_pixels_and_others_are_left(height: int, width: int) -> None:
    high, wide = enlarged_size((height, width), PIXELS)
    if (high, wide) == (height, width):
        assert 1.21 * height * width > PIXELS * 0.999
    else:
        assert height < high <= 2 * height and width < wide <= 2 * width
        assert high * wide == pytest.approx(min(PIXELS, 4 * height * width), rel=0.6 / min(high, wide) * 2)


@pytest.mark.parametrize("size", [(440, 1024), (436, 1024), (370, 1224), (432, 960), (1080, 1920)])
def test_an_image_of_nearly_as_many_pixels_is_not_resampled(size: tuple[int, int]) -> None:
    assert enlarged_size(size, PIXELS) == size


@pytest.mark.parametrize(
    ("size", "seen", "padded"),
    [
        ((384, 512), (576, 768), (581, 775)),
        ((480, 640), (576, 768), (581, 775)),
        ((90, 160), (176, 320), (180, 320)),
        ((20, 20), (40, 40), (40, 40)),  # 32 and 48 are too far from 40
        ((5, 11), (10, 22), (10, 22)),
        ((92, 160), (184, 320), (184, 320)),  # 192 is more than twice 92
    ],
)
def test_small_frames_are_seen_at_the_size_of_large_ones_or_at_twice_their_own(
    size: tuple[int, int], seen: tuple[int, int], padded: tuple[int, int]
) -> None:
    assert enlarged_size(size, PIXELS, 16) == seen
    assert enlarged_size(size, PIXELS) == padded


@given(st.integers(1, 600), st.integers(1, 600))
def test_a_multiple_is_taken_only_where_it_is_near(height: int, width: int) -> None:
    sizes = (enlarged_size((height, width), PIXELS, multiple) for multiple in (1, 16))
    for rounded, chosen in zip(*sizes, strict=True):
        assert chosen == rounded or (chosen % 16 == 0 and abs(chosen - rounded) <= 0.05 * rounded + 0.5)


@pytest.mark.parametrize("seen", [(61, 78), (41, 53), (80, 104), (160, 208), (20, 26), (40, 52)])
def test_an_affine_flow_is_the_same_motion_at_every_size(seen: tuple[int, int]) -> None:
    size = (40, 52)
    turn, shift = torch.tensor([[0.03, -0.02], [0.05, 0.01]]), torch.tensor([3.0, -2.0])

    def motion(height: int, width: int) -> torch.Tensor:
        """Of a scene whose places are told by the first size's pixels, in pixels of an image of another size."""
        scale = torch.tensor([width / size[1], height / size[0]]).view(2, 1, 1)
        places = (pixel_grid(height, width) + 0.5) / scale
        flow = torch.einsum("ij,jhw->ihw", turn, places) + shift.view(2, 1, 1)
        return (flow * scale)[None]

    inside = (..., slice(4, -4), slice(4, -4))
    torch.testing.assert_close(resize_flow(motion(*seen), size)[inside], motion(*size)[inside], atol=1e-5, rtol=1e-5)


def test_what_lies_below_a_flow_is_no_longer_or_shorter() -> None:
    maps = torch.full((2, 3, 30, 40), 0.5)
    small = resize_flow(maps, (20, 30))
    torch.testing.assert_close(small, torch.tensor([0.375, 1 / 3, 0.5]).view(1, 3, 1, 1).expand(2, 3, 20, 30))
    assert resize_flow(maps, (30, 40)) is maps


def test_half_the_size_is_the_mean_of_four() -> None:
    flow = torch.rand(1, 2, 12, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(resize_flow(flow, (6, 8)), torch.nn.functional.avg_pool2d(flow, 2) / 2)


@pytest.mark.parametrize("size", [(45, 70), (60, 80), (20, 27)])
def test_a_place_of_an_image_stays_where_it_is_between_the_edges(size: tuple[int, int]) -> None:
    image = ((torch.arange(40) + 0.5) / 40).expand(1, 3, 30, 40)  # brightness is the place
    seen = resize(image, size)[0, 0]
    expected = (torch.arange(size[1]) + 0.5) / size[1]
    inside = expected[6:-6].expand(size[0], -1)
    torch.testing.assert_close(seen[:, 6:-6], inside, atol=0.05 / 40, rtol=0)  # a twentieth of a pixel
    assert resize(image, (30, 40)) is image


def test_an_enlarged_image_stays_within_its_range() -> None:
    image = torch.rand(1, 3, 9, 9, generator=torch.Generator().manual_seed(0)).round()
    seen = resize(image, (18, 18))
    assert seen.min() == 0 and seen.max() == 1
