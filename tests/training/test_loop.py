"""The loop: a run that was stopped is the run that was not, and ends when it should."""

import dataclasses
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from protoformer.errors import InputError
from protoformer.training.checkpoint import Checkpoint
from protoformer.training.prefetch import BrokenSamples
from protoformer.training.recipe import ModelSection, Recipe, ScheduleSection
from protoformer.training.run_folder import read_log
from protoformer.training.task import ValidationResult


def same(one: Checkpoint, other: Checkpoint) -> bool:
    """Every tensor bit for bit, and where the data stands."""
    assert one.tensors.keys() == other.tensors.keys()
    differing = [name for name in one.tensors if not torch.equal(one.tensors[name], other.tensors[name])]
    assert differing == []
    assert one.record["random"] == other.record["random"]
    return (one.step, one.record["position"]) == (other.step, other.record["position"])


def steps_of(folder: Path) -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in read_log(folder / "log.jsonl") if record["event"] == "step"]


@pytest.mark.parametrize("kind", ["lines", "noises"])
def test_forty_steps_are_twenty_and_twenty_more_bit_for_bit(kind: str, request, tmp_path: Path) -> None:
    runs = request.getfixturevalue(kind)
    recipe = runs.recipe(steps=40, checkpoint_every=20)
    runs.trainer(tmp_path / "whole", recipe).run()
    shutil.copytree(tmp_path / "whole", tmp_path / "halves")
    shutil.rmtree(tmp_path / "halves" / "checkpoints" / "step-00000040")  # as if killed before it could be written
    torch.rand(3), random.random(), np.random.rand()  # a new process has drawn other numbers
    runs.trainer(tmp_path / "halves", recipe).run()
    assert same(runs.last(tmp_path / "whole"), runs.last(tmp_path / "halves"))
    assert steps_of(tmp_path / "halves") == steps_of(tmp_path / "whole")


def test_a_run_goes_on_in_the_middle_of_what_is_logged_together(lines, tmp_path: Path) -> None:
    lines.trainer(tmp_path / "whole", lines.recipe(steps=40)).run()
    halves = lines.recipe(steps=40, checkpoint_every=13)
    lines.trainer(tmp_path / "halves", halves).run()
    shutil.rmtree(tmp_path / "halves" / "checkpoints" / "step-00000040")
    lines.trainer(tmp_path / "halves", halves).run()
    assert same(lines.last(tmp_path / "whole"), lines.last(tmp_path / "halves"))
    assert steps_of(tmp_path / "halves") == steps_of(tmp_path / "whole")


def test_a_resumed_run_repeats_no_batch(lines, tmp_path: Path) -> None:
    lines.trainer(tmp_path, lines.recipe(steps=12)).run()
    further = lines.trainer(tmp_path, lines.recipe(steps=15))
    further.run()
    assert further.task.opened.requested == [12, 13, 14]


def test_the_random_state_is_that_of_the_checkpoint(lines, tmp_path: Path) -> None:
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    np.random.randn()  # leaves half a pair behind
    lines.trainer(tmp_path, lines.recipe(steps=2)).run()
    expected = (torch.rand(2), random.random(), np.random.randn(2).tolist())
    torch.manual_seed(2), random.seed(2), np.random.seed(2)
    lines.trainer(tmp_path, lines.recipe(steps=2)).run()
    found = (torch.rand(2), random.random(), np.random.randn(2).tolist())
    assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


def test_a_finished_run_is_finished_again_without_a_step(lines, tmp_path: Path) -> None:
    lines.trainer(tmp_path).run()
    before = lines.last(tmp_path)
    again = lines.trainer(tmp_path)
    ended = again.run()
    assert (ended.step, ended.stop_reason, again.task.opened.requested) == (40, "steps", [])
    assert same(before, lines.last(tmp_path))


def test_observers_are_called_in_order_and_the_log_agrees(lines, tmp_path: Path, recorder) -> None:
    recipe = lines.recipe(steps=12, log_every=5, validate_every=6, draw_every=6, checkpoint_every=8)
    trainer = lines.trainer(
        tmp_path, recipe, observers=(recorder,), draw=lambda example: np.zeros((2, 2, 3), dtype=np.uint8)
    )
    trainer.run()
    heard = [(kind, getattr(what, "step", what)) for kind, what in recorder.events]
    assert heard == [
        ("on_start", 0),
        ("on_checkpoint", 0),
        ("on_log", 5),
        ("on_validation", 6),
        ("on_image", 6),
        ("on_checkpoint", 8),
        ("on_log", 10),
        ("on_validation", 12),
        ("on_image", 12),
        ("on_log", 12),
        ("on_checkpoint", 12),
        ("on_end", 12),
    ]
    events = [(record["event"], record["step"]) for record in read_log(tmp_path / "log.jsonl")]
    names = {"on_start": "start", "on_checkpoint": "checkpoint", "on_log": "step", "on_validation": "validation"}
    assert events == [(names[kind], step) for kind, step in heard if kind in names]
    last = recorder.of("on_log")[-1]
    assert last.samples_per_second > 0 and 0 <= last.data_fraction <= 1 and last.seconds_left == 0
    assert set(last.metrics) == {"off"} and last.peak_memory is None


def test_the_loss_in_the_log_is_the_mean_over_its_steps(lines, tmp_path: Path) -> None:
    lines.trainer(tmp_path / "each", lines.recipe(steps=10, log_every=1)).run()
    lines.trainer(tmp_path / "all", lines.recipe(steps=10, log_every=10)).run()
    each, (together,) = steps_of(tmp_path / "each"), steps_of(tmp_path / "all")
    assert together[1] == pytest.approx(sum(loss for _, loss in each) / 10)


def test_lines_that_a_lost_part_of_a_run_wrote_are_cut(lines, tmp_path: Path) -> None:
    lines.trainer(tmp_path, lines.recipe(steps=20)).run()
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write(json.dumps({"event": "step", "step": 30, "loss": 1.0}) + "\n" + '{"event": "step", "st')
    lines.trainer(tmp_path, lines.recipe(steps=30)).run()
    assert [step for step, _ in steps_of(tmp_path)] == [10, 20, 30]
    assert steps_of(tmp_path)[-1][1] != 1.0


def test_the_average_is_validated_and_written(lines, tmp_path: Path) -> None:
    seen, written = [], []

    def weights(network) -> dict[str, torch.Tensor]:
        assert not network.training
        return {name: tensor.clone() for name, tensor in network.state_dict().items()}

    def judge(network) -> ValidationResult:
        seen.append(weights(network))
        return ValidationResult("judge", {})

    def write(network, path: Path) -> None:
        written.append((weights(network), path))

    ended = lines.trainer(tmp_path, validators=(judge,), write_weights=write).run()
    last = lines.last(tmp_path).tensors
    ((kept, path),) = written
    for found in (seen[-1], kept):
        assert all(torch.equal(tensor, last[f"ema.{name}"]) for name, tensor in found.items())
        assert any(not torch.equal(tensor, last[f"model.{name}"]) for name, tensor in found.items())
    assert ended.weights == path == tmp_path / "weights.safetensors"


def failing(trainer, number: int):
    """The trainer, whose data cannot be had from a batch on."""
    plain = trainer.task.source

    def source(*arguments):
        opened = plain(*arguments)
        batches = opened.batches

        def until(start: int):
            for each, batch in enumerate(batches(start), start):
                if each == number:
                    raise InputError("the data are gone.")
                yield batch

        opened.batches = until
        return opened

    trainer.task.source = source
    return trainer


def test_a_run_whose_data_fail_is_saved_first(lines, tmp_path: Path, recorder) -> None:
    with pytest.raises(InputError, match="the data are gone"):
        failing(lines.trainer(tmp_path / "failed", observers=(recorder,)), 17).run()
    assert recorder.of("on_checkpoint") == [0, 17] and recorder.events[-1] == ("on_end", 17)
    lines.trainer(tmp_path / "failed").run()
    lines.trainer(tmp_path / "whole").run()
    assert same(lines.last(tmp_path / "whole"), lines.last(tmp_path / "failed"))


def test_broken_samples_are_counted_by_name_over_all_sessions(lines, tmp_path: Path, recorder) -> None:
    def breaking(trainer, *names: str):
        plain = trainer.task.source

        def source(rank, ranks, device, recorder):
            opened = plain(rank, ranks, device, recorder)
            opened.broken = BrokenSamples(5, recorder)
            batches = opened.batches

            def with_broken(start: int):
                for batch in batches(start):
                    opened.broken.add(dict.fromkeys(names, "it is torn"))
                    yield batch

            opened.batches = with_broken
            return opened

        trainer.task.source = source
        return trainer

    breaking(lines.trainer(tmp_path, lines.recipe(steps=10)), "a", "b").run()
    breaking(lines.trainer(tmp_path, lines.recipe(steps=20), observers=(recorder,)), "b", "c").run()
    assert recorder.of("on_log")[-1].broken_samples == 3
    assert recorder.of("on_message")[-1] == "c is left out: it is torn." and "b is left out" not in str(
        recorder.of("on_message")
    )
    assert lines.last(tmp_path).record["broken"] == dict.fromkeys("abc", "it is torn")


def changed(recipe: Recipe, *settings: str) -> Recipe:
    return recipe.changed(settings)


def test_changed_settings_are_reported_and_another_network_is_refused(lines, tmp_path: Path, recorder) -> None:
    recipe = lines.recipe(steps=5)
    lines.trainer(tmp_path, recipe).run()
    other = changed(recipe, "run.steps=8", "optimizer.lr=0.01", "run.minutes=5", "model.activation_checkpointing=true")
    lines.trainer(tmp_path, other, observers=(recorder,)).run()
    assert recorder.of("on_message") == [
        "model.activation_checkpointing changes from False to True.",
        "optimizer.lr changes from 0.05 to 0.01.",
        "run.steps changes from 5 to 8.",
    ]
    before = lines.last(tmp_path)
    refused = dataclasses.replace(recipe, model=ModelSection(preset="fast"))
    with pytest.raises(InputError, match=r"has model.preset 'tiny', not 'fast', .* --fresh"):
        lines.trainer(tmp_path, refused).run()
    assert same(before, lines.last(tmp_path))


def test_a_fresh_run_starts_over(lines, tmp_path: Path) -> None:
    lines.trainer(tmp_path, lines.recipe(steps=20)).run()
    (tmp_path / "mine.txt").write_text("keep")
    ended = lines.trainer(tmp_path, lines.recipe(steps=10), fresh=True).run()
    assert ended.step == lines.last(tmp_path).step == 10
    assert [step for step, _ in steps_of(tmp_path)] == [10]
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_a_run_without_a_whole_checkpoint_is_not_written_over(lines, tmp_path: Path, recorder) -> None:
    lines.trainer(tmp_path, lines.recipe(steps=5)).run()
    for path in (tmp_path / "checkpoints").glob("*/record.json"):
        path.write_text("{}")
    with pytest.raises(InputError, match=r"log.jsonl belongs to a run that cannot be resumed, .* --fresh"):
        lines.trainer(tmp_path, lines.recipe(steps=5), observers=(recorder,)).run()
    assert len(recorder.of("on_message")) == 2  # one sentence for each checkpoint that was passed over
    assert lines.trainer(tmp_path, lines.recipe(steps=5), fresh=True).run().step == 5


def test_the_checkpoint_before_a_torn_one_is_taken(lines, tmp_path: Path, recorder) -> None:
    lines.trainer(tmp_path / "whole", lines.recipe(steps=20)).run()
    recipe = lines.recipe(steps=20, checkpoint_every=8)
    lines.trainer(tmp_path / "torn", recipe).run()
    (torn,) = (tmp_path / "torn" / "checkpoints").glob("step-00000020")
    part = next(torn.glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-5])
    lines.trainer(tmp_path / "torn", recipe, observers=(recorder,)).run()
    assert recorder.of("on_start") == [16] and len(recorder.of("on_message")) == 1
    whole, mended = lines.last(tmp_path / "whole"), lines.last(tmp_path / "torn")
    assert all(torch.equal(whole.tensors[name], tensor) for name, tensor in mended.tensors.items())


def test_a_slim_checkpoint_is_smaller_and_goes_on_from_the_same_weights(lines, tmp_path: Path) -> None:
    recipe = lines.recipe(steps=5)
    for name, slim in (("whole", False), ("slim", True)):
        lines.trainer(tmp_path / name, recipe, slim=slim).run()
    whole, slim = lines.last(tmp_path / "whole").tensors, lines.last(tmp_path / "slim").tensors
    moments = {name for name in whole if name.endswith((".exp_avg", ".exp_avg_sq"))}
    assert moments
    for name, tensor in whole.items():
        assert torch.equal(slim[name], tensor.bfloat16() if name in moments else tensor), name
    assert lines.trainer(tmp_path / "slim", lines.recipe(steps=8), slim=True).run().step == 8


def test_steps_that_cannot_be_recorded_are_refused_before_anything_is_made(lines, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs one process on a GPU"):
        lines.trainer(tmp_path / "new", lines.recipe(execution="graph")).run()
    with pytest.raises(InputError, match="needs an end"):
        recipe = dataclasses.replace(lines.recipe(steps=None), schedule=ScheduleSection("constant", 0, decay=0.2))
        lines.trainer(tmp_path / "new", recipe).run()
    with pytest.raises(InputError, match="the device 'mps' is not there"):
        lines.trainer(tmp_path / "new", device="mps").run()
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_of_another_network_is_refused_by_name(lines, tmp_path: Path) -> None:
    lines.trainer(tmp_path, lines.recipe(steps=5)).run()
    trainer = lines.trainer(tmp_path, lines.recipe(steps=6))
    trainer.task.build = lambda: torch.nn.Sequential(torch.nn.Linear(4, 1))
    with pytest.raises(InputError, match=r"tensor ema.0.bias does not fit the recipe's network"):
        trainer.run()


def test_half_precision_trains_in_half_precision_alone_where_it_should(noises, tmp_path: Path) -> None:
    trainer = noises.trainer(tmp_path, noises.recipe(steps=2, precision="bf16"))
    plain, seen = trainer.task.loss, []

    def loss(network, tensors, weight):
        seen.append((torch.is_autocast_enabled("cpu"), {tensor.dtype for tensor in tensors.values()}))
        return plain(network, tensors, weight)

    trainer.task.loss = loss
    trainer.run()
    assert seen == [(True, {torch.float32, torch.bool})] * 2
    assert all(tensor.dtype != torch.bfloat16 for tensor in noises.last(tmp_path).tensors.values())
