"""Motion, planes and instance labels rebuilt from prototypes."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.models.config import preset
from protoformer.models.encoder import Encoder
from protoformer.tasks import task_of
from protoformer.training.prototype_losses import (
    ERRORS,
    UNLABELED,
    Targets,
    affine_terms,
    mean_errors,
    sample_cells,
)
from protoformer.training.recipe import DataSection, LossSection, ModelSection, Recipe, ScheduleSection
from protoformer.training.sources import DEPTH, FLOW, open_source

SIZE = (12, 16)
REGIONS = (torch.arange(12)[:, None] // 6 * 2 + torch.arange(16) // 8).flatten()
"""Four regions of 6 x 8 cells."""
PARTITION = F.one_hot(REGIONS, 5).T[None].float()
"""Their hard assignment to five prototypes, the last of which has no cells: 1 x 5 x 192."""
TERMS = affine_terms(SIZE, torch.device("cpu"))


def piecewise(channels: int, seed: int = 0) -> Tensor:
    """Return values that are affine in every region, 1 x 192 x channels."""
    coefficients = torch.randn(5, 3, channels, generator=torch.Generator().manual_seed(seed))
    return torch.einsum("nt,ntc->nc", TERMS, coefficients[REGIONS])[None]


EVERYWHERE = torch.ones(1, 192, dtype=torch.bool)


@pytest.mark.parametrize("name", ["motion", "plane", "instances"])
def test_the_true_partition_rebuilds_what_is_affine_in_its_regions(name: str) -> None:
    truths = {"motion": 20 * piecewise(2), "plane": 9 + piecewise(1), "instances": REGIONS.view(1, -1, 1)}
    targets = Targets(truths[name], EVERYWHERE)
    error = ERRORS[name](PARTITION, targets, TERMS) / 192
    assert 0 <= error < 2e-3
    blurred = 0.8 * PARTITION + 0.2 * PARTITION.roll(1, dims=2)
    shifted = PARTITION.roll(3, dims=2)
    for other in (blurred, shifted, torch.full_like(PARTITION, 0.2)):
        assert ERRORS[name](other, targets, TERMS) / 192 > 10 * max(error, torch.tensor(2e-3))


def test_one_affine_motion_needs_no_partition() -> None:
    flow = (TERMS @ torch.tensor([[300.0, -200.0], [7.0, 3.0], [-5.0, 2.0]]))[None]
    uniform = torch.full_like(PARTITION, 0.2)
    assert ERRORS["motion"](uniform, Targets(flow, EVERYWHERE), TERMS) / 192 < 2e-3


def test_the_scale_of_disparity_does_not_matter() -> None:
    disparity = 4 + torch.rand(1, 192, 1, generator=torch.Generator().manual_seed(0))
    near, far = (ERRORS["plane"](PARTITION, Targets(scale * disparity, EVERYWHERE), TERMS) for scale in (1, 0.01))
    assert near.item() == pytest.approx(far.item(), rel=1e-3) and near > 1


def test_the_cross_entropy_is_that_of_the_label_shares_of_a_region() -> None:
    labels = REGIONS.clone()
    labels[:2] = 7  # 2 of the 48 cells of region 0
    error = ERRORS["instances"](PARTITION, Targets(labels.view(1, -1, 1), EVERYWHERE), TERMS)
    shares = torch.tensor([46 / 48, 2 / 48])
    assert error.item() == pytest.approx(float(-(48 * shares * shares.log()).sum()), rel=1e-4)


@pytest.mark.parametrize("name", ["motion", "plane", "instances"])
def test_masked_pixels_do_not_matter(name: str) -> None:
    values, mask = 5 + piecewise(1 if name == "plane" else 2), torch.rand(1, 192) < 0.7
    values = (10 * values[..., :1]).long().clamp(0, 63) if name == "instances" else values + torch.randn(values.shape)
    spoiled = torch.where(mask[..., None], values, 60 if name == "instances" else torch.nan)
    assignment = torch.rand(1, 5, 192).softmax(dim=1).requires_grad_()
    errors = [ERRORS[name](assignment, Targets(each, mask), TERMS) for each in (values, spoiled)]
    assert torch.equal(*errors)
    (gradient,) = torch.autograd.grad(errors[1], assignment)
    assert gradient.isfinite().all() and gradient.any()
    nothing = ERRORS[name](assignment, Targets(spoiled, torch.zeros_like(mask)), TERMS)
    assert nothing == 0 and not torch.autograd.grad(nothing, assignment)[0].any()


def test_labels_that_are_unknown_or_too_many_do_not_count() -> None:
    labels = torch.where(torch.arange(192) < 50, REGIONS, UNLABELED)
    labels[180:] = 64
    error = ERRORS["instances"](torch.full_like(PARTITION, 0.2), Targets(labels.view(1, -1, 1), EVERYWHERE), TERMS)
    shares = torch.bincount(REGIONS[:50]) / 50
    assert error.item() == pytest.approx(float(-50 * (shares * shares.log()).nansum()), rel=1e-4)


def test_cells_have_the_value_of_their_center_and_padding_does_not_count() -> None:
    values = torch.arange(10 * 13).view(1, 1, 10, 13)
    valid = torch.ones_like(values, dtype=torch.bool)
    valid[..., 2, 6] = False
    targets = sample_cells(values, valid, (4, 4), 4)
    assert targets.values[0, :3, 0].tolist() == [2 * 13 + 2, 2 * 13 + 6, 2 * 13 + 10]
    expected = [[True, False, True, False], [True, True, True, False], [False] * 4, [False] * 4]
    assert targets.mask.view(4, 4).tolist() == expected


def test_gradients_reach_every_projection_of_prototyping() -> None:
    torch.manual_seed(0)
    encoder = Encoder(preset("tiny").encoder)
    images = torch.rand(2, 3, 40, 56) * 2 - 1
    blocks = encoder(images, return_prototypes=True).prototypes
    truth = {"motion": 5 * torch.randn(2, 2, 40, 56), "instances": torch.randint(0, 3, (2, 1, 40, 56))}
    mask = torch.ones(2, 1, 40, 56, dtype=torch.bool)
    errors = mean_errors(blocks, truth, mask, mask.sum())
    sum(errors.values()).backward()
    for stage in encoder.stages:
        for name, parameter in stage.blocks[0].mixer.prototyping.named_parameters():
            # The bias of the queries shifts all logits of a pixel equally.
            assert parameter.grad is not None and (parameter.grad.any() or name == "query.bias"), name
    assert all(0 < error < 50 for error in errors.values())


def test_the_soft_assignment_is_largest_where_pixels_are_assigned() -> None:
    encoder = Encoder(preset("tiny").encoder)
    for stage in encoder(torch.rand(2, 3, 40, 56), return_prototypes=True).prototypes:
        for block in stage:
            soft = block.soft_assignment()
            torch.testing.assert_close(soft.sum(dim=1), torch.ones(2, block.size[0] * block.size[1]))
            assert torch.equal(soft.argmax(dim=1), block.assignment)
            first = block.first(1)
            assert torch.equal(first.soft_assignment(), soft[:1])


@pytest.mark.parametrize(("task", "terms"), [("flow", ("motion", "instances")), ("depth", ("plane", "instances"))])
def test_a_training_step_adds_the_weighted_losses(task: str, terms: tuple[str, ...]) -> None:
    recipe = Recipe(
        task=task,
        model=ModelSection("tiny"),
        data=DataSection(batch_size=2, crop_size=(48, 64), families={"objects": 1.0}),
        schedule=ScheduleSection("constant", 0),
    )
    batch = next(open_source(recipe.data, kind=FLOW if task == "flow" else DEPTH).batches(0))
    assert batch.instances.shape == batch.valid.shape and batch.instances.max() > 1
    plain = task_of(recipe)
    network = plain.build().train()
    without = plain.loss(network, plain.tensors(batch), plain.weight(plain.tensors(batch)))
    weights = {f"prototype_{name}": 0.5 + index for index, name in enumerate(terms)}
    trained = task_of(replace(recipe, loss=LossSection(**weights)))
    assert trained.metrics == (*plain.metrics, *terms)
    for labeled in (batch, replace(batch, instances=None)):
        tensors = trained.tensors(labeled)
        loss = trained.loss(network, tensors, trained.weight(tensors))
        errors = dict(zip(terms, loss.metrics[-2:], strict=True))
        added = sum(weights[f"prototype_{name}"] * error for name, error in errors.items())
        torch.testing.assert_close(loss.total, without.total + added)
        assert errors[terms[0]] > 0 and (errors["instances"] > 0) == (labeled is batch)
    loss.total.backward()


@pytest.mark.parametrize("mixer", ["attention", "none"])
@pytest.mark.parametrize("task", ["flow", "depth"])
def test_networks_without_prototypes_train_without_these_losses(task: str, mixer: str) -> None:
    recipe = Recipe(
        task=task,
        model=ModelSection("tiny", overrides={"encoder": {"mixer": mixer}}),
        data=DataSection(batch_size=1, crop_size=(48, 64), families={"objects": 1.0}),
        schedule=ScheduleSection("constant", 0),
        loss=LossSection(prototype_motion=0.3, prototype_plane=0.3, prototype_instances=0.3),
    )
    batch = next(open_source(recipe.data, kind=FLOW if task == "flow" else DEPTH).batches(0))
    training = task_of(recipe)
    tensors = training.tensors(batch)
    assert training.loss(training.build().train(), tensors, training.weight(tensors)).total.isfinite()
    assert set(training.metrics).isdisjoint(ERRORS)
