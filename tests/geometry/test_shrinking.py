"""Large images are shrunk to one number of pixels, and what lies where in them is known."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protoformer.geometry.warps import limited_size, shrink, shrink_position

PIXELS = 240 * 320


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_large_images_are_shrunk_to_one_number_of_pixels_and_small_ones_are_left(height: int, width: int) -> None:
    low, narrow = limited_size((height, width), PIXELS)
    if height * width <= PIXELS:
        assert (low, narrow) == (height, width)
    else:
        assert low <= height and narrow <= width
        if min(low, narrow) >= 20:
            assert low * narrow == pytest.approx(PIXELS, rel=0.05)
            assert low / narrow == pytest.approx(height / width, rel=0.05)


def test_a_place_of_an_image_is_where_the_shrunk_one_shows_it() -> None:
    image = torch.linspace(0, 1, 40).expand(1, 3, 30, 40)  # brightness is the place
    small = shrink(image, (15, 20))[0, 0, 7]
    for column in range(3, 17):
        place = small[column] * 39
        assert float(shrink_position(place, 40, 20)) == pytest.approx(column, abs=1e-3)
    assert shrink(image, (30, 40)) is image
