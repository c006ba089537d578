"""Classical baselines recover the flow of a camera pan over a texture."""

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from protoformer.errors import InputError
from protoformer.flow.baselines import BASELINES, baseline_flow


def texture(height: int, width: int) -> torch.Tensor:
    """Color noise whose details are a few pixels wide: 3 x H x W in [0, 1]."""
    noise = torch.rand(1, 3, height + 16, width + 16, generator=torch.Generator().manual_seed(0))
    for _ in range(4):
        noise = F.avg_pool2d(noise, 5, stride=1)
    low, high = noise.min(), noise.max()
    return ((noise - low) / (high - low))[0]


def pan(u: int, v: int, size: tuple[int, int] = (180, 220)) -> tuple[torch.Tensor, torch.Tensor]:
    """Two views of one texture, of which the second shows everything (u, v) pixels further right and down."""
    scenes = texture(size[0] + 20, size[1] + 20)
    views = [scenes[:, 10 - y : 10 - y + size[0], 10 - x : 10 - x + size[1]] for x, y in ((0, 0), (u, v))]
    return views[0], views[1]


def test_the_methods_have_these_names() -> None:
    assert list(BASELINES) == ["dis", "dis-fast", "farneback"]


@pytest.mark.parametrize("motion", [(3, -2), (-5, 4), (0, 0)])
@pytest.mark.parametrize(("method", "accuracy"), [("dis", 0.1), ("dis-fast", 0.5), ("farneback", 0.1)])
def test_a_pan_is_found_to_a_tenth_of_a_pixel(method: str, accuracy: float, motion: tuple[int, int]) -> None:
    """The fast preset stops at a coarser scale, and is held to half a pixel."""
    flow = baseline_flow(method, *pan(*motion))
    assert flow.shape == (2, 180, 220) and flow.dtype == torch.float32 and flow.is_contiguous()
    middle = flow[:, 60:-60, 60:-60]
    assert (middle - torch.tensor(motion).view(2, 1, 1)).norm(dim=0).max() < accuracy


@pytest.mark.parametrize("method", BASELINES)
def test_motion_does_not_depend_on_what_was_asked_before(method: str) -> None:
    first, second = pan(3, -2, (48, 64))
    flow = baseline_flow(method, first, second)
    baseline_flow(method, second, first)
    assert torch.equal(baseline_flow(method, first, second), flow)


def test_dis_refines_more_than_its_fast_preset() -> None:
    pair = pan(3, -2)
    truth = torch.tensor((3.0, -2.0)).view(2, 1, 1)
    fine, fast = ((baseline_flow(method, *pair) - truth).norm(dim=0).mean() for method in ("dis", "dis-fast"))
    assert fine < fast / 2


def test_dis_is_opencvs_at_full_resolution_with_ten_refinements_on_gray() -> None:
    first, second = pan(3, -2, (48, 64))
    gray = [
        cv2.cvtColor(np.rint(255 * image.permute(1, 2, 0).numpy()).astype(np.uint8), cv2.COLOR_RGB2GRAY)
        for image in (first, second)
    ]
    method = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    method.setFinestScale(0)
    method.setVariationalRefinementIterations(10)
    expected = method.calc(gray[0], gray[1], None)
    np.testing.assert_array_equal(baseline_flow("dis", first, second).permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("method", ["dis", "dis-fast"])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (4, 6), (8, 8)])
def test_images_too_small_for_dense_inverse_search_are_refused(method: str, height: int, width: int) -> None:
    image = torch.rand(3, height, width, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=rf"^{method} does not support images of {width}x{height} pixels; give larger"):
        baseline_flow(method, image, image)


@pytest.mark.parametrize(("height", "width"), [(12, 12), (16, 64), (64, 16)])
@pytest.mark.parametrize("method", ["dis", "dis-fast"])
def test_small_images_that_stand_still_do_not_move(method: str, height: int, width: int) -> None:
    image = texture(height, width)
    assert torch.equal(baseline_flow(method, image, image), torch.zeros(2, height, width))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (4, 6), (16, 64)])
def test_farneback_takes_images_of_any_size(height: int, width: int) -> None:
    image = texture(height, width) if height > 1 else torch.full((3, 1, 1), 0.5)
    flow = baseline_flow("farneback", image, image)
    assert flow.shape == (2, height, width)
    assert flow.abs().max() < 0.2
