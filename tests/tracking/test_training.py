"""Training and validation of the tracking network."""

import shutil
from pathlib import Path

import pytest
import torch

from protoformer.errors import InputError
from protoformer.models.config import preset
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.synthetic.samples import TrackPairs
from protoformer.tasks import task_of
from protoformer.tracking.losses import track_loss
from protoformer.tracking.training import TrackTask
from protoformer.training.checkpoint import find_newest, load
from protoformer.training.distributed import launch
from protoformer.training.engine import build_engine
from protoformer.training.recipe import (
    DataSection,
    ModelSection,
    OptimizerSection,
    Recipe,
    RunSection,
    ScheduleSection,
    read_recipe,
)
from protoformer.training.trainer import Trainer

CPU = torch.device("cpu")
SMALL = {"tracking": {"search_size": 64, "template_size": 48}}


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(
        task="track",
        model=ModelSection("tiny", SMALL),
        data=DataSection(batch_size=2, crop_size=(48, 64), families={"chase": 1.0}, final_fraction=0.0),
        optimizer=OptimizerSection(lr=1e-3),
        schedule=ScheduleSection("constant", 0),
        run=RunSection(validation_scenes=6, validate_every=0, draw_every=0),
    )


def test_a_recipe_of_tracking_trains_tracking(recipe: Recipe) -> None:
    task = task_of(recipe)
    assert isinstance(task, TrackTask) and isinstance(task.build(), ProtoFormer)


@pytest.mark.parametrize(("name", "side"), [("track-synthetic", 192), ("track-lasot", 352)])
def test_the_packages_recipes_can_be_built(name: str, side: int) -> None:
    result = read_recipe(name)
    assert (result.task, result.model.config().tracking.search_size) == ("track", side)
    assert isinstance(task_of(result), TrackTask)


def test_the_loss_is_a_mean_over_located_targets(recipe: Recipe) -> None:
    task = TrackTask(recipe)
    network = task.build().train()
    batch = next(task.source(0, 1, CPU, pytest.fail).batches(0))
    tensors = task.tensors(batch)
    weight = task.weight(tensors).clamp_min(1)
    result = task.loss(network, tensors, weight)
    expected = track_loss(
        network(2 * batch.reference - 1, batch.reference_boxes, 2 * batch.search - 1), batch, corners=0.2
    )
    assert torch.allclose(result.total, expected.total, atol=1e-6)
    assert torch.allclose(task.loss(network, tensors, 2 * weight).total, expected.total / 2, atol=1e-6)
    named = dict(zip(task.metrics, result.metrics, strict=True))
    assert torch.allclose(named["iou"], expected.iou, atol=1e-6) and 0 <= named["accuracy"] <= 1


def test_pairs_that_are_held_out_are_not_trained_on_and_stay_the_same(recipe: Recipe) -> None:
    task = TrackTask(recipe)
    network = task.build().eval()
    held_out = task.validation_set(CPU)
    one, other = held_out.validate(network), held_out.validate(network)
    assert one == other and one.name == "synthetic" and set(one.scores) == {"iou", "success_50", "score_accuracy"}
    assert sum(len(pairs.search) for pairs in held_out._render()) == 6  # of two batches of four
    examples = held_out.examples(network)
    assert len(examples) == 2
    for example in examples:
        assert isinstance(example.sample, TrackPairs) and example.sample.search.shape == (1, 3, 64, 64)
        assert example.predicted.shape == (5,) and 0 <= example.predicted[4] <= 1
    seeds = {example.name.split("-")[1] for example in examples}
    names = next(task.source(0, 1, CPU, pytest.fail).batches(0)).names
    assert not seeds & {name.split("-")[1] for name in names}


def test_weights_of_flow_begin_the_encoder_and_those_of_tracking_everything(recipe: Recipe) -> None:
    flow, track = build_network(preset("tiny"), "flow"), build_network(preset("tiny", **SMALL), "track")
    begun = TrackTask(recipe, flow).build().state_dict()
    assert all(torch.equal(begun[f"encoder.{name}"], each) for name, each in flow.encoder.state_dict().items())
    whole = TrackTask(recipe, track).build().state_dict()
    assert all(torch.equal(whole[name], tensor) for name, tensor in track.state_dict().items())
    with pytest.raises(InputError, match="another encoder than the recipe's"):
        TrackTask(recipe, build_network(preset("tiny", encoder={"embed_dims": (32, 96)}), "flow")).build()


@pytest.mark.parametrize("frozen", ["false", "true"])
def test_four_steps_are_two_and_two_more_bit_for_bit(recipe: Recipe, tmp_path: Path, frozen: str) -> None:
    chosen = recipe.changed(["run.steps=4", "run.checkpoint_every=2", f"model.freeze_encoder={frozen}"])
    Trainer(chosen, TrackTask(chosen), tmp_path / "whole").run()
    shutil.copytree(tmp_path / "whole", tmp_path / "halves")
    shutil.rmtree(tmp_path / "halves" / "checkpoints" / "step-00000004")
    torch.rand(3)  # a new process has drawn other numbers
    Trainer(chosen, TrackTask(chosen), tmp_path / "halves").run()
    paths = [find_newest(tmp_path / run / "checkpoints", pytest.fail) for run in ("whole", "halves")]
    whole, halves = (load(path) for path in paths if path is not None)
    assert whole.step == halves.step == 4
    assert [name for name, tensor in whole.tensors.items() if not torch.equal(tensor, halves.tensors[name])] == []


def test_a_frozen_encoder_keeps_its_weights_while_the_head_learns(recipe: Recipe) -> None:
    chosen = recipe.changed(["model.freeze_encoder=true"])
    task = TrackTask(chosen)
    engine = build_engine(launch("cpu"), chosen, task)
    before = {name: tensor.clone() for name, tensor in engine.network.state_dict().items()}
    batches = task.source(0, 1, CPU, pytest.fail).batches(0)
    for _ in range(2):
        engine.step(task.tensors(next(batches)), 1e-3)
    changed = {name for name, tensor in engine.network.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed and all(name.startswith("tracking_head.") for name in changed)
    state = engine.state()
    assert not any(name.startswith("optimizer.encoder.") for name in state)
    name, parameter = next(iter(engine.network.encoder.named_parameters()))
    engine.restore(state | {f"optimizer.encoder.{name}.exp_avg": torch.zeros_like(parameter)})  # of earlier versions


@pytest.mark.long
def test_the_smallest_network_learns_a_few_targets_by_heart(recipe: Recipe) -> None:
    steps, rate = 90, 3e-3
    task = TrackTask(recipe.changed(["data.batch_size=8", "data.crop_size=[72, 96]"]))
    batch = next(task.source(0, 1, CPU, pytest.fail).batches(0))
    tensors = task.tensors(batch)
    weight = task.weight(tensors)
    assert weight[0] >= 3 and (batch.judged & ~batch.located).any()
    torch.manual_seed(0)
    network = task.build().train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 10) * (1 - step / steps)
        loss = task.loss(network, tensors, weight)
        optimizer.zero_grad()
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    result = dict(zip(task.metrics, task.loss(network.eval(), tensors, weight).metrics, strict=True))
    assert result["iou"] > 0.8 and result["accuracy"] == 1
