"""Training and validation of the stabilization network."""

import shutil
from pathlib import Path

import pytest
import torch

from protoformer.errors import InputError
from protoformer.models.config import preset
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.stabilization.drawing import draw_window
from protoformer.stabilization.training import StabilizeTask
from protoformer.tasks import task_of
from protoformer.training.checkpoint import find_newest, load
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
SMALL = {"stabilization": {"field_window": 4, "grid_window": 4}}


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(
        task="stabilize",
        model=ModelSection("tiny", SMALL),
        data=DataSection(batch_size=2, crop_size=(48, 64), families={"handheld": 1.0}, final_fraction=0.0),
        optimizer=OptimizerSection(lr=1e-3),
        schedule=ScheduleSection("constant", 0),
        run=RunSection(validation_scenes=3, validate_every=0, draw_every=0),
    )


def test_a_recipe_of_stabilization_trains_stabilization(recipe: Recipe) -> None:
    task = task_of(recipe)
    assert isinstance(task, StabilizeTask) and isinstance(task.build(), ProtoFormer)
    packaged = read_recipe("stabilize-synthetic")
    assert packaged.model.init_weights == "flow" and isinstance(task_of(packaged), StabilizeTask)
    height, width = packaged.data.crop_size
    assert height * width <= packaged.model.config().stabilization.max_pixels and height % 8 == width % 8 == 0


def test_videos_on_disk_have_no_warps_to_learn_from(recipe: Recipe) -> None:
    chosen = recipe.changed(["data.source=dataset", "data.datasets={deepstab: {weight: 1}}"])
    with pytest.raises(InputError, match="trains on synthetic scenes only; set it to synthetic"):
        StabilizeTask(chosen).source(0, 1, CPU, pytest.fail)


def test_the_loss_is_a_mean_over_cells(recipe: Recipe) -> None:
    task = StabilizeTask(recipe)
    network = task.build().train()
    tensors = task.tensors(next(task.source(0, 1, CPU, pytest.fail).batches(0)))
    weight = task.weight(tensors)
    result, half = task.loss(network, tensors, weight), task.loss(network, tensors, 2 * weight)
    assert weight == 2 * 2 * 6 * 8 and torch.allclose(half.total, result.total / 2)
    named = dict(zip(task.metrics, result.metrics, strict=True))
    assert torch.allclose(named["relative_error"], named["error"] / named["shake"])


def test_frames_that_are_held_out_stay_the_same_and_can_be_drawn(recipe: Recipe) -> None:
    task = StabilizeTask(recipe)
    network = task.build().eval()
    held_out = task.validation_set(CPU)
    one, other = held_out.validate(network), held_out.validate(network)
    assert one == other and set(one.scores) == {"error", "shake", "relative_error"}
    (example,) = held_out.examples(network)
    assert example.predicted.shape == (2, 2, 6, 8)
    assert draw_window(example.sample, example.predicted).shape == (96, 128, 3)


def test_the_encoder_is_flows_and_stays_so(recipe: Recipe) -> None:
    flow, whole = build_network(preset("tiny"), "flow"), build_network(preset("tiny", **SMALL), "stabilize")
    task = StabilizeTask(recipe, flow)
    network = task.build().train()
    tensors = task.tensors(next(task.source(0, 1, CPU, pytest.fail).batches(0)))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    task.loss(network, tensors, task.weight(tensors)).total.backward()
    optimizer.step()
    begun = network.state_dict()
    assert all(torch.equal(begun[f"encoder.{name}"], each) for name, each in flow.encoder.state_dict().items())
    copied = StabilizeTask(recipe, whole).build().state_dict()
    assert all(torch.equal(copied[name], tensor) for name, tensor in whole.state_dict().items())


def test_four_steps_are_two_and_two_more_bit_for_bit(recipe: Recipe, tmp_path: Path) -> None:
    chosen = recipe.changed(["run.steps=4", "run.checkpoint_every=2", "data.batch_size=1"])
    Trainer(chosen, StabilizeTask(chosen), tmp_path / "whole").run()
    shutil.copytree(tmp_path / "whole", tmp_path / "halves")
    shutil.rmtree(tmp_path / "halves" / "checkpoints" / "step-00000004")
    torch.rand(3)  # a new process has drawn other numbers
    Trainer(chosen, StabilizeTask(chosen), tmp_path / "halves").run()
    paths = [find_newest(tmp_path / run / "checkpoints", pytest.fail) for run in ("whole", "halves")]
    whole, halves = (load(path) for path in paths if path is not None)
    assert whole.step == halves.step == 4
    assert [name for name, tensor in whole.tensors.items() if not torch.equal(tensor, halves.tensors[name])] == []


@pytest.mark.long
def test_the_smallest_network_takes_most_of_a_few_shakes_away(recipe: Recipe) -> None:
    steps, rate = 45, 4e-3
    task = StabilizeTask(recipe.changed(["data.batch_size=8", "model.overrides.stabilization.field_window=15"]))
    tensors = task.tensors(next(task.source(0, 1, CPU, pytest.fail).batches(0)))
    torch.manual_seed(0)
    network = task.build().train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate)
    shares = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 10) * (1 - step / steps)
        loss = task.loss(network, tensors, task.weight(tensors))
        shares.append(float(dict(zip(task.metrics, loss.metrics, strict=True))["relative_error"].detach()))
        optimizer.zero_grad()
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    assert shares[-1] < min(0.5, 0.7 * shares[0])
