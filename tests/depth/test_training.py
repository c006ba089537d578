"""The depth task of the trainer."""

import dataclasses
from pathlib import Path

import pytest
import torch

from protoformer.depth.losses import depth_loss
from protoformer.depth.training import DepthTask
from protoformer.errors import InputError
from protoformer.flow.training import FlowTask
from protoformer.models.config import preset
from protoformer.models.heads.depth import focal_length, metric_depth
from protoformer.models.protoformer import build_network
from protoformer.synthetic import generator as generator_module
from protoformer.synthetic.generator import SyntheticScenes, depth_stream
from protoformer.synthetic.samples import DepthSample
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.tasks import task_of
from protoformer.training.recipe import DataSection, ModelSection, Recipe, RunSection, ScheduleSection
from protoformer.training.schedule import one_cycle

CPU = torch.device("cpu")


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setattr(generator_module, "procedural_bank", lambda: procedural_bank(side=64, each=2))
    return Recipe(
        task="depth",
        model=ModelSection("tiny"),
        data=DataSection(batch_size=2, crop_size=(32, 48), families={"room": 1.0}),
        schedule=ScheduleSection("constant", 0),
        run=RunSection(validation_scenes=6),
    )


def test_the_loss_is_that_of_the_recipe(recipe: Recipe) -> None:
    settings = ["loss.gamma=0.5", "loss.confidence=0.3", "loss.edges=2", "loss.min_depth=2", "loss.max_depth=4"]
    task = task_of(recipe.changed(settings))
    assert isinstance(task, DepthTask)
    network = task.build().train()
    batch = next(task.source(0, 1, CPU, pytest.fail).batches(0))
    tensors = task.tensors(batch)
    counted = batch.valid & (batch.depth > 2) & (batch.depth < 4)
    assert 0 < counted.sum() < batch.valid.sum() and torch.equal(task.weight(tensors), counted.sum())
    focal = focal_length(batch.intrinsics)
    prediction = network(2 * batch.image - 1, return_all=True)
    expected = depth_loss(prediction, batch.depth, counted, focal, gamma=0.5, confidence=0.3, edges=2.0)
    result = task.loss(network, tensors, task.weight(tensors))
    assert torch.allclose(result.total, expected.total)
    assert torch.allclose(task.loss(network, tensors, 2 * task.weight(tensors)).total, expected.total / 2)
    named = dict(zip(task.metrics, result.metrics, strict=True))
    fields = {name: "nll" if name == "surprise" else name for name in task.metrics}
    assert all(torch.allclose(named[name], getattr(expected, field)) for name, field in fields.items())


def test_scenes_that_are_held_out_are_not_trained_on_and_are_judged_in_meters(recipe: Recipe) -> None:
    task = DepthTask(recipe)
    network = task.build().eval()
    held_out = task.validation_set(CPU)
    first, second = held_out.validate(network), held_out.validate(network)
    assert first == second and first.name == "synthetic"
    assert set(first.scores) == {"abs_rel", "rmse", "delta1", "silog"}
    examples = held_out.examples(network)
    assert [example.name[-7:] for example in examples] == ["-000000", "-000004"]
    for example in examples:
        sample = example.sample
        assert isinstance(sample, DepthSample) and len(sample.image) == 1 and example.predicted.shape == (1, 32, 48)
        with torch.no_grad():
            log = network(2 * sample.image - 1).log_depths[-1]
        expected = metric_depth(log, focal_length(sample.intrinsics))[0]
        assert torch.allclose(example.predicted, expected, rtol=1e-3)
    seeds = {example.name.split("-")[1] for example in examples}
    names = next(task.source(0, 1, CPU, pytest.fail).batches(0)).names
    assert len(seeds) == 1 and not seeds & {name.split("-")[1] for name in names}


def test_depth_begins_with_the_encoder_of_flow_and_flow_with_that_of_depth(recipe: Recipe) -> None:
    torch.manual_seed(5)
    flow = build_network(preset("tiny"), "flow")
    network = DepthTask(recipe, start=flow).build()
    assert all(
        torch.equal(tensor, network.encoder.state_dict()[key]) for key, tensor in flow.encoder.state_dict().items()
    )
    torch.manual_seed(0)
    again = FlowTask(dataclasses.replace(recipe, task="flow"), start=network).build()
    assert all(
        torch.equal(tensor, again.encoder.state_dict()[key]) for key, tensor in flow.encoder.state_dict().items()
    )


def test_weights_to_begin_with_must_fit(recipe: Recipe) -> None:
    given = build_network(preset("tiny", depth={"num_updates": 9}), "depth")
    built = DepthTask(recipe, start=given).build()
    assert all(torch.equal(tensor, given.state_dict()[name]) for name, tensor in built.state_dict().items())
    for fields in ({"embed_dims": (32, 64)}, {"min_depth": 0.1}, {"max_depth": 80.0}, {"max_pixels": 480 * 640}):
        with pytest.raises(InputError, match="are of another network than the recipe's"):
            DepthTask(recipe, start=build_network(preset("tiny", depth=fields), "depth")).build()
    for other in (preset("tiny", encoder={"num_prototypes": 4}), preset("fast")):
        with pytest.raises(InputError, match="are of another encoder than the recipe's"):
            DepthTask(recipe, start=build_network(other, "flow")).build()


def test_weights_without_a_spatial_prior_start_a_network_with_one(recipe: Recipe) -> None:
    given = build_network(preset("tiny", encoder={"spatial_prior": False}), "flow")
    built, given_state = DepthTask(recipe, start=given).build().encoder.state_dict(), given.encoder.state_dict()
    assert all(torch.equal(built[name], tensor) for name, tensor in given_state.items())
    added = {name.rpartition(".")[2] for name in built.keys() - given_state.keys()}
    assert added == {"log_width", "log_temperature"}


def test_the_network_gets_the_principal_point_of_each_camera(recipe: Recipe) -> None:
    """A crop that was cut beside the middle is not one of a camera that looks at its middle."""
    task = DepthTask(recipe)
    network, batch = task.build().eval(), next(task.source(0, 1, CPU, pytest.fail).batches(0))
    beside = batch.intrinsics.clone()
    beside[:, 0, 2] -= 40
    tensors = task.tensors(dataclasses.replace(batch, intrinsics=beside))
    assert torch.equal(tensors["center"], beside[:, :2, 2])
    heard: list[torch.Tensor] = []
    network.register_forward_pre_hook(lambda _, given: heard.append(given[1]))
    task.loss(network, tensors, task.weight(tensors))
    task.validation_set(CPU).predict(network, dataclasses.replace(batch, intrinsics=beside))
    assert len(heard) == 2 and all(torch.equal(center, beside[:, :2, 2]) for center in heard)


def test_a_run_that_stops_and_goes_on_is_the_same_bit_by_bit(tmp_path: Path, depths, stored) -> None:
    for steps in (3, 6):
        depths.trainer(tmp_path / "parts", depths.recipe(steps=steps)).run()
    depths.trainer(tmp_path / "whole", depths.recipe(steps=6)).run()
    one, other = (depths.last(tmp_path / name) for name in ("whole", "parts"))
    assert one.step == other.step == 6 and stored.same(one.tensors, other.tensors)


@pytest.mark.long
def test_the_smallest_network_learns_a_room_by_heart() -> None:
    scenes = SyntheticScenes("room", 0, (64, 96), bank=procedural_bank(side=64, each=2))
    batch = next(iter(depth_stream(scenes, 2)))
    steps = 90
    task = DepthTask(Recipe(task="depth", model=ModelSection("tiny"), schedule=ScheduleSection("constant", 0)))
    torch.manual_seed(0)
    network = task.build().train()
    tensors = task.tensors(batch)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1.5e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: one_cycle(step, steps))
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(network, tensors, task.weight(tensors)).total.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        log = network.eval()(2 * batch.image - 1).log_depths[-1]
    depth = metric_depth(log, focal_length(batch.intrinsics))
    assert float(((depth - batch.depth).abs() / batch.depth).mean()) < 0.05
