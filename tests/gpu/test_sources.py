"""Batches that a GPU makes beside the steps are those it would make by themselves."""

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
import torch

from protoformer.synthetic.ground_truth import flow_sample
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.samples import FlowSample
from protoformer.training.prefetch import prefetch
from protoformer.training.recipe import DataSection
from protoformer.training.sources import SyntheticMix, open_source

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SCENES = DataSection(seed=3, batch_size=4, crop_size=(96, 128), families={"objects": 0.6, "drive": 0.4})
STEPS = 12


def busy() -> None:
    """Work that keeps the stream of the steps behind that of the batches."""
    square = torch.randn(2048, 2048, device="cuda")
    for _ in range(20):
        square = square @ square / 2048


def test_batches_rendered_beside_busy_steps_are_those_rendered_alone() -> None:
    mix = SyntheticMix(SCENES, range(4), torch.device("cuda"), flow_sample)
    alone = [mix.make_batch(number).batch for number in range(2, 2 + STEPS)]
    torch.cuda.synchronize()
    kept = []
    for batch in itertools.islice(open_source(SCENES, "cuda").batches(2), STEPS):
        busy()
        kept.append(dataclasses.replace(batch, first=batch.first.clone(), flow=batch.flow.clone()))
        del batch  # its memory may be used again while the copies above still wait
    for found, expected in zip(kept, alone, strict=True):
        assert expected is not None
        assert found.names == expected.names
        assert torch.equal(found.first, expected.first)
        assert torch.equal(found.flow, expected.flow)


def test_one_thread_of_the_host_works_for_a_gpu_that_renders() -> None:
    threads = []

    def make(renderer: Renderer, render_pass: str) -> FlowSample:
        threads.append(torch.get_num_threads())
        return flow_sample(renderer, render_pass)

    before = torch.get_num_threads()
    SyntheticMix(SCENES, range(4), torch.device("cuda"), make).make_batch(0)
    assert threads == [1] and torch.get_num_threads() == before


def test_batches_from_the_host_arrive_whole() -> None:
    def batches() -> Iterator[FlowSample]:
        for number in itertools.count():
            image = torch.full((2, 3, 256, 256), float(number)).pin_memory()
            yield FlowSample(first=image, second=image, flow=image[:, :2], valid=image[:, :1] > 0, names=(str(number),))

    for number, batch in enumerate(itertools.islice(prefetch(batches(), torch.device("cuda")), STEPS)):
        busy()
        assert batch.first.is_cuda and batch.names == (str(number),)
        assert bool((batch.first == number).all()) and bool((batch.flow == number).all())
