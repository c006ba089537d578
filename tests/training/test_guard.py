"""Losses that are not finite: skipped, counted, and in the end the end."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from protoformer.errors import InputError
from protoformer.training.step import MAX_BAD_STEPS, NonFiniteGuard


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
