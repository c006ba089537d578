"""The flow task of the trainer."""

import pytest
import torch

from protoformer.errors import InputError
from protoformer.flow.losses import flow_loss
from protoformer.flow.training import FlowTask
from protoformer.models.config import preset
from protoformer.models.protoformer import build_network
from protoformer.synthetic import generator as generator_module
from protoformer.synthetic.samples import FlowSample
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.training.recipe import DataSection, ModelSection, Recipe, RunSection, ScheduleSection

CPU = torch.device("cpu")


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setattr(generator_module, "procedural_bank", lambda: procedural_bank(side=64, each=2))
    return Recipe(
        model=ModelSection("tiny"),
        data=DataSection(batch_size=2, crop_size=(32, 48), families={"objects": 1.0}),
        schedule=ScheduleSection("constant", 0),
        run=RunSection(validation_scenes=6),
    )


@pytest.mark.parametrize("name", ["tiny", "fast", "paper"])
def test_every_parameter_gets_a_gradient(name: str) -> None:
    """So that processes that train together need not look for those that do not."""
    task = FlowTask(
        Recipe(model=ModelSection(name, {"flow": {"num_train_updates": 1}}), schedule=ScheduleSection("constant", 0))
    )
    network = task.build().train()
    tensors = {
        "first": torch.rand(1, 3, 64, 64),
        "second": torch.rand(1, 3, 64, 64),
        "flow": torch.rand(1, 2, 64, 64),
        "valid": torch.ones(1, 1, 64, 64, dtype=torch.bool),
        "occlusion": torch.zeros(1, 1, 64, 64, dtype=torch.bool),
    }
    task.loss(network, tensors, task.weight(tensors)).total.backward()
    assert [key for key, parameter in network.named_parameters() if parameter.grad is None] == []


def test_the_loss_is_that_of_the_recipe(recipe: Recipe) -> None:
    changed = recipe.changed(["loss.gamma=0.5", "loss.confidence=0.3"])
    task = FlowTask(changed)
    network = task.build().train()
    batch = next(task.source(0, 1, CPU, pytest.fail).batches(0))
    tensors = task.tensors(batch)
    prediction = network(2 * batch.first - 1, 2 * batch.second - 1, return_all=True)
    expected = flow_loss(prediction, batch.flow, batch.valid, gamma=0.5, confidence=0.3)
    result = task.loss(network, tensors, task.weight(tensors))
    assert torch.allclose(result.total, expected.total)
    assert torch.allclose(task.loss(network, tensors, 2 * task.weight(tensors)).total, expected.total / 2)
    named = dict(zip(task.metrics, result.metrics, strict=True))
    assert all(torch.allclose(named[name], getattr(expected, name)) for name in ("epe", "distance"))
    assert torch.allclose(named["nll"], expected.nll)


def test_scenes_that_are_held_out_are_not_trained_on_and_stay_the_same(recipe: Recipe) -> None:
    task = FlowTask(recipe)
    network = task.build().eval()
    held_out = task.validation_set(CPU)
    first, second = held_out.validate(network), held_out.validate(network)
    assert first == second and first.name == "synthetic" and set(first.scores) == {"epe", "fl", "px1"}
    assert sum(len(batch.first) for batch in held_out._render()) == 6  # of two batches of four
    examples = held_out.examples(network)
    assert [example.name[-7:] for example in examples] == ["-000000", "-000004"]
    for example in examples:
        assert isinstance(example.sample, FlowSample) and len(example.sample.first) == 1
        assert example.predicted.shape == (2, 32, 48)
    seeds = {example.name.split("-")[1] for example in examples}
    names = next(task.source(0, 1, CPU, pytest.fail).batches(0)).names
    assert len(seeds) == 1 and not seeds & {name.split("-")[1] for name in names}


def test_weights_to_begin_with_must_be_of_the_same_network(recipe: Recipe) -> None:
    given = build_network(preset("tiny"), "flow")
    built = FlowTask(recipe, start=given).build()
    assert all(torch.equal(tensor, given.state_dict()[name]) for name, tensor in built.state_dict().items())
    with pytest.raises(InputError, match="another network"):
        FlowTask(recipe, start=build_network(preset("tiny", encoder={"num_prototypes": 4}), "flow")).build()
