"""Light augmentation on a GPU equals that on a CPU and does not synchronize."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from protoformer.datasets.augmentation.photometric import Light, relight_depth, relight_flow
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import DepthSample, FlowSample

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
STRONG = Light(
    brightness=0.5, contrast=0.4, saturation=0.7, hue=0.6, gamma=0.8, asymmetric=0.5, shadow=1.0, erase=1.0,
    erase_size=(8, 24),
)  # fmt: skip


def make_pairs() -> FlowSample:
    random = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 4, 3, 64, 96, generator=random)
    valid = torch.rand(4, 1, 64, 96, generator=random) < 0.9
    flow = 8 * torch.randn(4, 2, 64, 96, generator=random)
    return FlowSample(first=first, second=second, flow=flow, valid=valid, occlusion=~valid)


def to_gpu(sample: FlowSample) -> FlowSample:
    names = ("first", "second", "flow", "valid", "occlusion")
    return dataclasses.replace(sample, **{name: getattr(sample, name).cuda() for name in names})


def test_relit_pairs_equal_those_on_a_cpu() -> None:
    sample = make_pairs()
    expected = relight_flow(sample, STRONG, SceneRandom(3, range(4)))
    actual = relight_flow(to_gpu(sample), STRONG, SceneRandom(3, range(4)))
    torch.testing.assert_close(actual.first.cpu(), expected.first, rtol=0, atol=1e-4)
    torch.testing.assert_close(actual.second.cpu(), expected.second, rtol=0, atol=1e-4)
    assert actual.occlusion is not None and expected.occlusion is not None
    assert torch.equal(actual.occlusion.cpu(), expected.occlusion)


def test_relighting_does_not_synchronize(sync_refused: Callable[[], AbstractContextManager[None]]) -> None:
    sample = to_gpu(make_pairs())
    depth = DepthSample(image=sample.first, depth=sample.flow[:, :1], valid=sample.valid)
    relight_flow(sample, STRONG, SceneRandom(3, range(4)))
    relight_depth(depth, STRONG, SceneRandom(3, range(4)))
    torch.cuda.synchronize()
    with sync_refused():
        relight_flow(sample, STRONG, SceneRandom(5, range(4)))
        relight_depth(depth, STRONG, SceneRandom(5, range(4)))
