"""Batches rendered on a GPU while training steps run equal those rendered alone."""

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
import torch

from protoformer.synthetic.ground_truth import flow_sample
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.samples import FlowSample
from protoformer.training.mixes import SyntheticMix
from protoformer.training.prefetch import prefetch
from protoformer.training.recipe import DataSection

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SCENES = DataSection(seed=3, batch_size=4, crop_size=(96, 128), families={"objects": 0.6, "drive": 0.4})
STEPS = 12


def occupy_gpu() -> None:
    """Keep the stream of the training steps busy, so that it is behind that of the batches."""
    square = torch.randn(2048, 2048, device="cuda")
    for _ in range(20):
        square = square @ square / 2048


def test_batches_rendered_during_steps_equal_those_rendered_alone() -> None:
    mix = SyntheticMix(SCENES, range(4), torch.device("cuda"), flow_sample)
    alone = [mix.make_batch(number).batch for number in range(2, 2 + STEPS)]
    torch.cuda.synchronize()
    copies = []
    for batch in itertools.islice(synthetic_source(SCENES, "cuda").batches(2), STEPS):
        occupy_gpu()
        copies.append(dataclasses.replace(batch, first=batch.first.clone(), flow=batch.flow.clone()))
        del batch  # its memory may be reused while the copies above are pending
    for actual, expected in zip(copies, alone, strict=True):
        assert expected is not None
        assert actual.names == expected.names
        assert torch.equal(actual.first, expected.first)
        assert torch.equal(actual.flow, expected.flow)


def test_gpu_rendering_uses_one_host_thread() -> None:
    threads = []

    def make(renderer: Renderer, look: str) -> FlowSample:
        threads.append(torch.get_num_threads())
        return flow_sample(renderer, look)

    before = torch.get_num_threads()
    SyntheticMix(SCENES, range(4), torch.device("cuda"), make).make_batch(0)
    assert threads == [1] and torch.get_num_threads() == before


def test_batches_from_the_host_are_complete() -> None:
    def batches() -> Iterator[FlowSample]:
        for number in itertools.count():
            image = torch.full((2, 3, 256, 256), float(number)).pin_memory()
            yield FlowSample(first=image, second=image, flow=image[:, :2], valid=image[:, :1] > 0, names=(str(number),))

    for number, batch in enumerate(itertools.islice(prefetch(batches(), torch.device("cuda")), STEPS)):
        occupy_gpu()
        assert batch.first.is_cuda and batch.names == (str(number),)
        assert bool((batch.first == number).all()) and bool((batch.flow == number).all())
