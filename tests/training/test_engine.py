"""What a recipe says of the step is what the step does."""

import dataclasses

import pytest
import torch

from protoformer.training import engine
from protoformer.training.distributed import launch
from protoformer.training.engine import build_engine
from protoformer.training.recipe import OptimizerSection, Recipe

ODD = OptimizerSection(lr=0.03, weight_decay=0.2, betas=(0.6, 0.7), eps=0.05, max_grad_norm=0.4, ema_decay=0.5)


def test_steps_are_those_of_adamw_with_clipped_gradients(lines, tmp_path) -> None:
    recipe = dataclasses.replace(lines.recipe(), optimizer=ODD)
    task = lines.trainer(tmp_path, recipe).task
    made = build_engine(launch("cpu"), recipe, task)
    torch.manual_seed(recipe.data.seed)
    network = task.build()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1.0, betas=(0.6, 0.7), eps=0.05, weight_decay=0.2)
    batches = task.source(0, 1, torch.device("cpu"), pytest.fail).batches(0)
    for rate in (0.03, 0.02, 0.01):
        tensors = task.tensors(next(batches))
        made.step(tensors, rate)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        task.loss(network, tensors, task.weight(tensors)).total.backward()
        assert torch.nn.utils.clip_grad_norm_(network.parameters(), 0.4) > 0.4  # there is something to clip
        optimizer.step()
    for name, tensor in network.state_dict().items():
        assert torch.allclose(made.network.state_dict()[name], tensor, rtol=0, atol=1e-6), name


@pytest.mark.parametrize(
    ("settings", "reached"),
    [
        ([], []),
        (["model.activation_checkpointing=true"], ["recompute_activations"]),
        (["run.execution=compile"], ["compile_parts"]),
    ],
)
def test_options_reach_the_network_that_is_trained(lines, tmp_path, monkeypatch, settings, reached) -> None:
    recipe: Recipe = lines.recipe().changed(settings)
    seen: list[tuple[str, torch.nn.Module]] = []
    for name in ("recompute_activations", "compile_parts"):
        monkeypatch.setattr(engine, name, lambda network, name=name: seen.append((name, network)))
    made = build_engine(launch("cpu"), recipe, lines.trainer(tmp_path, recipe).task)
    assert seen == [(name, made.network) for name in reached]
