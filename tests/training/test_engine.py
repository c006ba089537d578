"""The training step follows its recipe: optimizer, weight average, and steps that are not finite."""

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from protoformer.errors import InputError
from protoformer.training import engine
from protoformer.training.distributed import launch
from protoformer.training.engine import MAX_BAD_STEPS, NonFiniteGuard, WeightAverage, build_engine
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


COUNTS, DOES_NOT = torch.ones(()), torch.zeros(())


def constant(value: float) -> nn.Linear:
    network = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        network.weight.fill_(value)
    return network


def put(network: nn.Linear, value: float) -> None:
    with torch.no_grad():
        network.weight.fill_(value)


def test_the_decay_grows_with_the_updates_up_to_its_own() -> None:
    network = constant(0.0)
    average, expected = WeightAverage(network, decay=0.3), 0.0
    for count in range(6):
        put(network, float(count + 1))
        average.update(COUNTS)
        decay = min(0.3, (1 + count) / (10 + count))
        expected = decay * expected + (1 - decay) * (count + 1)
        assert torch.allclose(average.network.weight, torch.tensor(expected))
    assert average.updates == 6


def test_a_skipped_step_leaves_the_average_as_it_was() -> None:
    network = constant(1.0)
    average = WeightAverage(network, decay=0.9)
    put(network, 3.0)
    average.update(COUNTS)
    before = average.network.weight.clone()
    put(network, 5.0)
    average.update(DOES_NOT)
    assert torch.equal(average.network.weight, before) and average.updates == 1


def test_a_decay_of_nothing_is_the_network_itself() -> None:
    network = constant(0.1)
    average = WeightAverage(network, decay=0.0)
    put(network, 0.7)
    average.update(COUNTS)
    assert torch.equal(average.network.weight, network.weight)


def test_floating_buffers_are_averaged_and_others_copied_in_eval_mode() -> None:
    network = nn.BatchNorm1d(1).train()
    average = WeightAverage(network, decay=0.5)
    network(torch.tensor([[0.0], [2.0]]))
    average.update(COUNTS)
    assert average.network.num_batches_tracked == 1
    assert torch.allclose(average.network.running_mean, 0.9 * network.running_mean)  # (1 - 1/10) of the way from 0
    assert not average.network.training and not average.network.weight.requires_grad


def test_the_average_of_half_precision_is_in_float32() -> None:
    assert WeightAverage(constant(1.0).bfloat16(), decay=0.5).network.weight.dtype == torch.float32


def noted(guard: NonFiniteGuard, *bad: int) -> NonFiniteGuard:
    for each in bad:
        guard.count_step(torch.tensor(float(each)), torch.tensor([torch.nan if each else 2.0, 4.0]))
    return guard


def test_means_are_of_the_good_steps_alone() -> None:
    guard = NonFiniteGuard(2, torch.device("cpu"))
    counted = noted(guard, 0, 1, 0).read_counts()
    assert (counted.good, counted.means, counted.skipped, counted.fatal) == (2, (2.0, 4.0), 1, None)
    guard.clear()
    again = noted(guard, 1).read_counts()
    assert again.good == 0 and all(mean != mean for mean in again.means) and again.skipped == 2


def test_ten_bad_steps_in_a_row_are_fatal_and_nine_are_not() -> None:
    guard = noted(NonFiniteGuard(2, torch.device("cpu")), *[1] * (MAX_BAD_STEPS - 1), 0, 0, *[1] * (MAX_BAD_STEPS - 1))
    assert not guard.is_fatal()
    assert noted(guard, 1).read_counts().fatal == MAX_BAD_STEPS + 1  # the first of the second row
    assert noted(guard, 0).is_fatal()  # and it stays known, for those who look late


def test_the_state_goes_on_in_the_middle_of_a_row() -> None:
    first, second = (NonFiniteGuard(2, torch.device("cpu")) for _ in range(2))
    noted(first, 0, *[1] * 6)
    for name, tensor in second.state().items():
        tensor.copy_(first.state()[name])
    assert not second.is_fatal()
    assert noted(second, *[1] * 4).read_counts().fatal == 1


def test_a_poisoned_batch_changes_nothing_but_the_count(lines, tmp_path: Path, recorder) -> None:
    """Steps 3 and 4 are skipped: weights, moments and average are those of a run that never saw their batches."""
    lines.trainer(tmp_path / "a", lines.recipe(steps=3)).run()
    lines.trainer(tmp_path / "b", lines.recipe(steps=5), frozenset({3, 4}), observers=(recorder,)).run()
    clean, skipped = lines.last(tmp_path / "a").tensors, lines.last(tmp_path / "b").tensors
    for name in clean:
        if name.startswith(("model.", "ema", "optimizer.")):
            assert torch.equal(clean[name], skipped[name]), name
    assert (skipped["guard.skipped"], skipped["guard.row"], skipped["guard.step"]) == (2, 2, 5)
    assert recorder.of("on_log")[-1].skipped_steps == 2 and recorder.of("on_log")[-1].loss is not None


def test_training_goes_on_after_a_poisoned_batch(lines, tmp_path: Path) -> None:
    lines.trainer(tmp_path / "a", lines.recipe(steps=10), frozenset({3})).run()
    last = lines.last(tmp_path / "a").tensors
    assert last["guard.row"] == 0 and last["optimizer.0.weight.step"] == 9
    assert all(tensor.isfinite().all() for tensor in last.values() if tensor.is_floating_point())


def test_ten_poisoned_batches_in_a_row_stop_the_run_and_the_first_is_kept(lines, tmp_path: Path) -> None:
    trainer = lines.trainer(tmp_path, lines.recipe(steps=40), frozenset(range(5, 30)))
    with pytest.raises(InputError, match=r"10 steps in a row, from step 5 on, .* not finite; .*bad-batch-00000005"):
        trainer.run()
    batch = load_file(tmp_path / "bad-batch-00000005.safetensors")
    assert batch["y"].isnan().sum() == 1 and batch["x"].shape == (8, 4)
    last = lines.last(tmp_path)
    assert last.step == 15
    with pytest.raises(InputError, match=r"from step 15 on, .*bad-batch-00000015"):  # it bears as many more
        trainer.run()
    assert lines.last(tmp_path).step == 25


def test_one_bad_step_does_not_stop_a_run_that_was_started_again(lines, tmp_path: Path) -> None:
    trainer = lines.trainer(tmp_path, lines.recipe(steps=20), frozenset(range(5, 16)))
    with pytest.raises(InputError, match="from step 5 on"):
        trainer.run()
    assert trainer.run().step == 20
    assert lines.last(tmp_path).tensors["guard.skipped"] == 11


def test_an_infinite_gradient_is_skipped_though_the_loss_is_finite(lines, tmp_path: Path, monkeypatch) -> None:
    trainer = lines.trainer(tmp_path, lines.recipe(steps=3))
    plain = trainer.task.loss

    class Explode(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * torch.inf

    def loss(network, tensors, weight):
        found = plain(network, tensors, weight)
        return type(found)(Explode.apply(found.total), found.metrics)

    monkeypatch.setattr(trainer.task, "loss", loss)
    trainer.run()
    assert lines.last(tmp_path).tensors["guard.skipped"] == 3
