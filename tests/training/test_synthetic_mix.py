"""Scenes of a recipe are relit and shown as parts of larger pictures, each by its own number."""

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
import torch

from protoformer.datasets.augmentation.photometric import Light
from protoformer.errors import InputError
from protoformer.stabilization.training import StabilizeTask
from protoformer.synthetic.samples import FlowSample
from protoformer.tracking.training import TrackTask
from protoformer.training.recipe import DataSection, ModelSection, Recipe
from protoformer.training.sources import DEPTH, SyntheticMix, open_source

PLAIN = DataSection(seed=3, batch_size=4, crop_size=(16, 24), families={"objects": 0.5, "drive": 0.5})
LIGHT = Light(
    brightness=0.5, contrast=0.4, hue=0.6, gamma=0.8, asymmetric=0.5, shadow=0.6, erase=0.6, erase_size=(3, 6)
)
ZOOMED = dataclasses.replace(PLAIN, zoom={"drive": (1.0, 2.5)})
VARIED = dataclasses.replace(ZOOMED, relighting=LIGHT)
FIELDS = ("first", "second", "flow", "valid", "occlusion")


def first(batches: Iterator[FlowSample], count: int) -> list[FlowSample]:
    return list(itertools.islice(batches, count))


def same(one: FlowSample, other: FlowSample, places: slice = slice(None)) -> bool:
    """Whether one holds the same bits as some of the other."""
    return one.names == other.names[places] and all(
        torch.equal(getattr(one, name), getattr(other, name)[places]) for name in FIELDS
    )


@pytest.fixture(scope="module")
def varied() -> list[FlowSample]:
    return first(open_source(VARIED).batches(0), 4)


def test_varied_batches_resume_at_any_number(varied: list[FlowSample]) -> None:
    for batch, expected in zip(open_source(VARIED).batches(2), varied[2:], strict=False):
        assert same(batch, expected)


def test_ranks_together_vary_as_one_process_does(varied: list[FlowSample]) -> None:
    for rank in range(2):
        for part, whole in zip(open_source(VARIED, rank=rank, num_ranks=2).batches(0), varied, strict=False):
            assert same(part, whole, slice(2 * rank, 2 * rank + 2))


def test_light_leaves_the_motion_as_it_was(varied: list[FlowSample]) -> None:
    unlit = first(open_source(ZOOMED).batches(0), 4)
    hidden = 0
    for lit, batch in zip(varied, unlit, strict=True):
        assert torch.equal(lit.flow, batch.flow) and torch.equal(lit.valid, batch.valid)
        assert not any(torch.equal(*images) for images in zip(lit.first, batch.first, strict=True))
        assert lit.occlusion is not None and batch.occlusion is not None
        assert (lit.occlusion >= batch.occlusion).all()
        hidden += int((lit.occlusion & ~batch.occlusion).sum())
    assert hidden > 0


def test_images_of_depth_are_relit_and_their_depth_is_not() -> None:
    lit, rendered = (next(open_source(data, "cpu", DEPTH).batches(0)) for data in (VARIED, ZOOMED))
    assert not torch.equal(lit.image, rendered.image)
    assert torch.equal(lit.depth, rendered.depth) and torch.equal(lit.valid, rendered.valid)


def test_zoom_crops_the_scenes_of_its_family_only() -> None:
    places, cpu = range(4), torch.device("cpu")
    usual, mix = (
        SyntheticMix(data, places, cpu, lambda renderer, _: renderer.scenes.camera) for data in (PLAIN, ZOOMED)
    )
    times, corners = [], []
    for number in range(60):
        whole, part = usual.make_batch(number).batch, mix.make_batch(number).batch
        if mix.generators[mix.locate(number)[0]].family == "objects":
            assert torch.equal(part.center, whole.center) and torch.equal(part.focal, whole.focal)
            continue
        ratio = part.focal / whole.focal
        assert torch.equal(ratio[:, 0], ratio[:, 1])
        times.append(ratio[:, 0])
        corner = (whole.center + 0.5) * ratio - 0.5 - part.center
        corners.append(corner / ((ratio - 1) * torch.tensor([24.0, 16.0])))
    found, where = torch.cat(times), torch.cat(corners)
    assert 1 <= found.amin() < 1.1 and 2.3 < found.amax() <= 2.5
    assert 1.4 < found.median() < 1.8  # half of them are below the mean of the ratios
    assert where.amin() < 0.1 and where.amax() > 0.9 and -1e-6 <= where.amin() <= where.amax() <= 1 + 1e-6


@pytest.mark.parametrize(("task", "kind"), [("track", TrackTask), ("stabilize", StabilizeTask)])
def test_a_task_that_takes_scenes_as_they_are_refuses_a_light(
    task: str, kind: type[TrackTask] | type[StabilizeTask]
) -> None:
    data = dataclasses.replace(PLAIN, relighting=Light(gamma=0.5))
    recipe = Recipe(task=task, model=ModelSection("tiny"), data=data)
    with pytest.raises(InputError) as caught:
        open_source(data, "cpu", kind(recipe).kind)
    assert str(caught.value) == ("data.relighting is set, but this task does not relight scenes; leave it out.")
