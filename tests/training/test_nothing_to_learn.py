"""Data without a single valid target: such steps change nothing, and a run of them writes no weights."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.tasks import task_of
from protoformer.training.checkpoint import Checkpoint, find_newest, load, save
from protoformer.training.engine import NonFiniteGuard
from protoformer.training.recipe import DataSection, ModelSection, Recipe, RunSection, ScheduleSection
from protoformer.training.trainer import Trainer

UNTAUGHT = r"^no step changed the weights, so none were written: of 3 steps, {} had no valid target, .*\.$"
MASKS = ("valid", "located", "judged")


def synthetic_trainer(task: str, folder: Path, **options: Any) -> Trainer[Any]:
    """Three steps on small scenes."""
    small = {
        "tracking": {"search_size": 64, "template_size": 48},
        "stabilization": {"field_window": 4, "grid_window": 4},
    }
    family = {"track": "chase", "stabilize": "handheld"}[task]
    recipe = Recipe(
        task=task,
        model=ModelSection("tiny", small),
        data=DataSection(batch_size=2, crop_size=(48, 64), families={family: 1.0}, final_fraction=0.0),
        schedule=ScheduleSection("constant", 0),
        run=RunSection(steps=3, validation_scenes=0, validate_every=0, draw_every=0, log_every=2),
    )
    return Trainer(recipe, task_of(recipe), folder, **options)


def blind(task: Any, steps: range = range(10**6)) -> Any:
    """The same task, whose batches of these numbers have no valid target."""
    tensors_of, seen = task.tensors, iter(range(10**6))

    def tensors(batch: Any) -> dict[str, Tensor]:
        hidden = next(seen) in steps
        return {
            name: torch.zeros_like(tensor) if hidden and name in MASKS else tensor
            for name, tensor in tensors_of(batch).items()
        }

    task.tensors = tensors
    return task


def last(folder: Path) -> Checkpoint:
    path = find_newest(folder / "checkpoints", pytest.fail)
    assert path is not None
    return load(path)


def unreachable(*_: object) -> None:
    pytest.fail("weights were written")


@pytest.mark.parametrize("name", ["flow", "depth", "track", "stabilize"])
def test_a_run_without_a_valid_target_ends_with_an_error(name: str, tmp_path: Path, recorder, noises, depths) -> None:
    options = {"observers": (recorder,), "write_weights": unreachable}
    if name in ("flow", "depth"):
        runs = noises if name == "flow" else depths
        trainer = runs.trainer(tmp_path, runs.recipe(steps=3, log_every=2), **options)
    else:
        trainer = synthetic_trainer(name, tmp_path, **options)
    blind(trainer.task)
    with pytest.raises(InputError, match=UNTAUGHT.format(3)):
        trainer.run()
    assert not (tmp_path / "weights.safetensors").exists()
    assert [
        each
        for each in recorder.of("on_message")
        if each.startswith("no step has changed the weights so far: of 2 steps, 2 had no")
    ]
    assert all(progress.loss is None for progress in recorder.of("on_log"))
    torch.manual_seed(trainer.recipe.data.seed)
    tensors = last(tmp_path).tensors
    for key, tensor in trainer.task.build().state_dict().items():
        assert torch.equal(tensors[f"model.{key}"], tensor), key


def test_depths_outside_the_valid_range_do_not_change_the_weights(tmp_path: Path, depths) -> None:
    recipe = depths.recipe(steps=3).changed(["loss.min_depth=5000", "loss.max_depth=6000"])
    with pytest.raises(InputError, match=UNTAUGHT.format(3)):
        depths.trainer(tmp_path, recipe).run()


def test_steps_that_are_not_finite_do_not_change_the_weights(lines, tmp_path: Path) -> None:
    trainer = lines.trainer(tmp_path, lines.recipe(steps=3), frozenset(range(3)), write_weights=unreachable)
    with pytest.raises(InputError, match=r"of 3 steps, 0 had no .* and 3 had a loss or a gradient that is not finite"):
        trainer.run()


def test_a_step_without_a_target_changes_nothing_but_counts(lines, tmp_path: Path, recorder) -> None:
    """Weights, moments and average after steps 3 and 4 are those of a run that never saw their batches."""
    lines.trainer(tmp_path / "a", lines.recipe(steps=3)).run()
    trainer = lines.trainer(tmp_path / "b", lines.recipe(steps=5, log_every=5), observers=(recorder,))
    blind(trainer.task, range(3, 5))
    trainer.run()
    clean, skipped = last(tmp_path / "a").tensors, last(tmp_path / "b").tensors
    for name in clean:
        if name.startswith(("model.", "ema", "optimizer.")):
            assert torch.equal(clean[name], skipped[name]), name
    assert [int(skipped[f"guard.{name}"]) for name in ("step", "skipped", "empty", "learned")] == [5, 0, 2, 3]
    (progress,) = recorder.of("on_log")
    assert progress.skipped_steps == 0 and progress.loss is not None


def test_data_that_comes_to_have_targets_is_learned_from(lines, tmp_path: Path) -> None:
    trainer = lines.trainer(tmp_path, lines.recipe(steps=3), write_weights=unreachable)
    blind(trainer.task)
    with pytest.raises(InputError, match=UNTAUGHT.format(3)):
        trainer.run()
    assert lines.trainer(tmp_path, lines.recipe(steps=6)).run().step == 6


def test_means_are_of_steps_with_targets_alone() -> None:
    guard = NonFiniteGuard(1, torch.device("cpu"))
    for bad, value, empty in ((0, 2.0, 0), (0, 0.0, 1), (1, torch.nan, 0), (1, torch.nan, 1), (0, 4.0, 0)):
        guard.count_step(torch.tensor(float(bad)), torch.tensor([value]), torch.tensor(float(empty)))
    counted = guard.read_counts()
    assert counted.means == (3.0,)
    assert (counted.good, counted.skipped, counted.empty, counted.learned) == (2, 2, 1, 2)


def test_a_checkpoint_whose_weights_are_not_finite_is_refused(lines, tmp_path: Path) -> None:
    lines.trainer(tmp_path, lines.recipe(steps=4)).run()
    found = last(tmp_path)
    name = next(each for each in found.tensors if each.startswith("model."))
    save(
        tmp_path / "checkpoints",
        dataclasses.replace(found, tensors={**found.tensors, name: torch.full_like(found.tensors[name], torch.inf)}),
    )
    with pytest.raises(InputError, match=rf"the checkpoint's tensor {name} has values that are not finite"):
        lines.trainer(tmp_path, lines.recipe(steps=6)).run()
