"""Batches are decided by their numbers: from any start, by any number of processes, in any worker."""

import dataclasses
import itertools
import multiprocessing
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protoformer.datasets.augmentation.flow import augment_flow
from protoformer.datasets.registry import open_dataset
from protoformer.errors import InputError
from protoformer.io.formats import write_flo
from protoformer.synthetic.generator import SyntheticScenes, flow_stream
from protoformer.synthetic.ground_truth import flow_sample
from protoformer.synthetic.samples import FlowSample
from protoformer.training.prefetch import prefetch
from protoformer.training.recipe import DataSection, DatasetSection
from protoformer.training.sources import (
    DatasetMix,
    Source,
    SyntheticMix,
    augment_flow_sample,
    epoch_order,
    family_seed,
    open_source,
)

FAMILIES = {"objects": 0.5, "drive": 0.3, "handheld": 0.2}
SCENES = DataSection(seed=3, batch_size=4, crop_size=(16, 24), families=FAMILIES)
CPU = torch.device("cpu")
forks = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def first(batches: Iterator[FlowSample], count: int) -> list[FlowSample]:
    return list(itertools.islice(batches, count))


def same(one: FlowSample, other: FlowSample) -> bool:
    """Whether both hold the same bits under the same names."""
    return one.names == other.names and all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in ("first", "second", "flow", "valid")
    )


def joined(parts: list[FlowSample]) -> FlowSample:
    tensors = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in ("first", "second", "flow", "valid")
    }
    return FlowSample(**tensors, names=tuple(name for part in parts for name in part.names))


@pytest.fixture(scope="module")
def rendered() -> list[FlowSample]:
    return first(open_source(SCENES).batches(0), 6)


def test_synthetic_batches_resume_at_any_number(rendered: list[FlowSample]) -> None:
    for start in (1, 4):
        for batch, expected in zip(open_source(SCENES).batches(start), rendered[start:], strict=False):
            assert same(batch, expected)


def test_a_source_can_return_to_an_earlier_batch(rendered: list[FlowSample]) -> None:
    source = open_source(SCENES)
    next(source.batches(5))
    assert same(next(source.batches(2)), rendered[2])


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_together_render_what_one_process_does(rendered: list[FlowSample], ranks: int) -> None:
    streams = [open_source(SCENES, rank=rank, num_ranks=ranks).batches(0) for rank in range(ranks)]
    for expected in rendered:
        parts = [next(stream) for stream in streams]
        assert [len(part.names) for part in parts] == [4 // ranks] * ranks
        assert same(joined(parts), expected)


@forks
def test_workers_render_the_same_batches_and_leave_the_global_rng_alone(rendered: list[FlowSample]) -> None:
    before = torch.get_rng_state()
    batches = open_source(dataclasses.replace(SCENES, num_workers=2)).batches(1)
    for expected in rendered[1:]:
        assert same(next(batches), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_scene_of_every_family_comes_once_and_in_turn() -> None:
    large = dataclasses.replace(SCENES, batch_size=32)
    mix = SyntheticMix(large, range(32), CPU, lambda renderer, _: renderer.scenes.names)
    names = [name for number in range(12) for name in mix.make_batch(number).batch or ()]
    for family in FAMILIES:
        of_family = [name for name in names if name.startswith(family)]
        assert len(of_family) > 32
        assert of_family == [f"{family}-{family_seed(3, family)}-{number:06d}" for number in range(len(of_family))]


def test_motion_scale_applies_to_its_family_only() -> None:
    paced = dataclasses.replace(SCENES, motion_scale={"objects": (0.5, 4.0)})
    usual, mix = (
        SyntheticMix(data, range(4), CPU, lambda renderer, _: renderer.scenes.fps) for data in (SCENES, paced)
    )
    motion_scales: dict[str, list[float]] = {family: [] for family in FAMILIES}
    for number in range(60):
        family = mix.generators[mix.locate(number)[0]].family
        rates = usual.make_batch(number).batch, mix.make_batch(number).batch
        motion_scales[family].append(rates[0] / rates[1])
    assert motion_scales["drive"] == [1.0] * len(motion_scales["drive"])
    objects = sorted(motion_scales["objects"])
    assert 0.5 <= objects[0] < 0.6 and 3.5 < objects[-1] <= 4.0
    assert 1.2 < objects[len(objects) // 2] < 1.6  # half of them are below the mean of the ratios


def test_the_seed_of_a_family_is_fixed() -> None:
    assert family_seed(0, "objects") == 2988100851
    seeds = {family_seed(seed, family) for seed in range(3) for family in FAMILIES}
    assert len(seeds) == 9


def test_families_have_their_shares_of_the_batches_at_any_time() -> None:
    mix = SyntheticMix(SCENES, range(4), CPU, flow_sample)
    families = [mix.generators[mix.locate(number)[0]].family for number in range(2000)]
    for length in (100, 500, 2000):
        counted = Counter(families[:length])
        for family, share in FAMILIES.items():
            assert abs(counted[family] - share * length) <= 3
    turns = [mix.locate(number) for number in range(300)]
    assert [mix.locate(number) for number in reversed(range(300))] == turns[::-1]


def test_a_family_alone_gives_the_batches_of_its_stream() -> None:
    alone = dataclasses.replace(SCENES, families={"drive": 2.0, "room": 0.0}, final_fraction=0.4)
    assert [world.family for world in SyntheticMix(alone, range(4), CPU, flow_sample).generators] == ["drive"]
    stream = flow_stream(SyntheticScenes("drive", family_seed(3, "drive"), (16, 24)), 4, final=0.4)
    for batch, expected in zip(open_source(alone).batches(0), itertools.islice(stream, 4), strict=False):
        assert same(batch, expected)


def test_the_order_in_which_families_are_listed_changes_nothing(rendered: list[FlowSample]) -> None:
    turned = dataclasses.replace(SCENES, families=dict(reversed(FAMILIES.items())))
    assert same(next(open_source(turned).batches(3)), rendered[3])


def test_textures_may_come_from_a_folder(tmp_path: Path, rendered: list[FlowSample]) -> None:
    Image.fromarray(np.full((8, 8, 3), 200, dtype=np.uint8)).save(tmp_path / "gray.png")
    batch = next(open_source(dataclasses.replace(SCENES, texture_bank=str(tmp_path))).batches(0))
    assert batch.names == rendered[0].names
    assert not torch.equal(batch.first, rendered[0].first)


def test_a_batch_that_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        open_source(SCENES, rank=0, num_ranks=3)
    assert str(caught.value) == (
        "a batch of 4 cannot be divided among 3 processes; make data.batch_size a multiple of 3."
    )


def test_on_a_cpu_nothing_is_made_ahead() -> None:
    numbers = itertools.count()
    assert prefetch(numbers, CPU) is numbers


def chairs(root: Path, count: int) -> Path:
    """A tree of so many pairs, 32 x 40, whose colors and motion say which they are."""
    rng = np.random.default_rng(0)
    (root / "data").mkdir(parents=True)
    for number in range(1, count + 1):
        for end in ("img1.ppm", "img2.ppm"):
            pixels = rng.integers(0, 256, (32, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "data" / f"{number:05d}_{end}")
        write_flo(root / "data" / f"{number:05d}_flow.flo", np.full((32, 40, 2), number / 8, dtype=np.float32))
    return root


def section(root: Path, weight: int = 1) -> DatasetSection:
    return DatasetSection(root=str(root), split="all", weight=weight, overrides={"erase_size": [4, 8]})


def on_disk(root: Path, **fields: object) -> DataSection:
    whole = {"source": "dataset", "seed": 5, "batch_size": 4, "crop_size": (16, 24), "max_broken_samples": 2, **fields}
    return DataSection(**{"datasets": {"flyingchairs": section(root)}, **whole})  # type: ignore[arg-type]


@pytest.fixture
def ten(tmp_path: Path) -> DataSection:
    return on_disk(chairs(tmp_path, 10))


def silent(sentence: str) -> None:
    raise AssertionError(sentence)


def test_an_epoch_shows_every_sample_once_and_each_epoch_in_its_own_order(ten: DataSection) -> None:
    names = [name for batch in first(open_source(ten, on_message=silent).batches(0), 10) for name in batch.names]
    epochs = [names[start : start + 10] for start in range(0, 40, 10)]
    assert [sorted(epoch) for epoch in epochs] == [[f"{number:05d}" for number in range(1, 11)]] * 4
    assert len({tuple(epoch) for epoch in epochs}) == 4
    other = first(open_source(dataclasses.replace(ten, seed=6)).batches(0), 3)
    assert [name for batch in other for name in batch.names][:10] != epochs[0]


def test_the_order_is_the_same_for_ever() -> None:
    # A run may go on with a later version of everything.
    assert epoch_order(5, 0, 10).tolist() == [5, 1, 7, 3, 4, 6, 8, 9, 2, 0]


def test_a_sample_is_varied_by_its_seed_epoch_and_index(ten: DataSection) -> None:
    dataset = open_dataset("flyingchairs", ten.datasets["flyingchairs"].root, "all")
    batch = next(open_source(ten).batches(4))  # samples 16 .. 19, of the second epoch
    order = epoch_order(5, 1, 10)
    for place, index in enumerate(order[6:10]):
        config = ten.datasets["flyingchairs"].build_augmentation((16, 24))
        expected = augment_flow(dataset[index], config, [(5, 1, int(index))])
        assert batch.names[place] == expected.names[0]
        for name in ("first", "second", "flow", "valid"):
            assert torch.equal(getattr(batch, name)[place], getattr(expected, name)[0])


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_together_read_what_one_process_does(ten: DataSection, ranks: int) -> None:
    streams = [open_source(ten, rank=rank, num_ranks=ranks).batches(1) for rank in range(ranks)]
    for expected in first(open_source(ten).batches(1), 3):
        assert same(joined([next(stream) for stream in streams]), expected)


@forks
def test_workers_read_the_same_in_the_same_order(ten: DataSection) -> None:
    batches = open_source(dataclasses.replace(ten, num_workers=2)).batches(1)
    for expected in first(open_source(ten).batches(1), 4):
        assert same(next(batches), expected)


def counted_reads(source: Source[FlowSample], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the samples that a source reads from now on."""
    read: list[int] = []
    dataset = source.maker.datasets[0]  # type: ignore[attr-defined]
    before = dataset._read
    monkeypatch.setattr(dataset, "_read", lambda index: (read.append(index), before(index))[1])
    return read


def test_going_on_reads_nothing_that_came_before(ten: DataSection, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = first(open_source(ten).batches(0), 2)[1]
    source = open_source(ten)
    read = counted_reads(source, monkeypatch)
    assert same(next(source.batches(1)), expected)
    assert len(read) == 4


def test_weights_say_how_often_an_epoch_shows_a_sample(tmp_path: Path) -> None:
    chairs(tmp_path / "chairs", 3)
    (tmp_path / "manifest.csv").write_text(
        "first,second,flow\n" + "".join(f"chairs/data/0000{n}_img1.ppm,chairs/data/0000{n}_img2.ppm,"
        f"chairs/data/0000{n}_flow.flo\n" for n in (1, 2))
    )  # fmt: skip
    data = on_disk(
        tmp_path / "chairs",
        datasets={
            "flyingchairs": section(tmp_path / "chairs", weight=2),
            "own": section(tmp_path, weight=3),
            "sintel": DatasetSection(weight=0),  # left out, so nobody asks where it is
        },
    )
    mix = DatasetMix(data, range(4), augment_flow_sample)
    assert len(mix) == 12
    batches = [mix.make_batch(number).batch for number in range(3)]
    shown = [pair for batch in batches if batch for pair in zip(batch.names, batch.first, strict=True)]
    assert Counter(name for name, _ in shown) == {
        **{f"0000{number}": 2 for number in (1, 2, 3)},
        **{f"chairs/data/0000{number}_img1.ppm": 3 for number in (1, 2)},
    }
    assert not torch.equal(*(image for name, image in shown if name == "00001"))  # varied differently each time


def damaged(data: DataSection, *numbers: int) -> None:
    for number in numbers:
        os.truncate(Path(str(data.datasets["flyingchairs"].root)) / "data" / f"{number:05d}_flow.flo", 20)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=forks)])
def test_a_broken_sample_is_replaced_and_reported_once(ten: DataSection, workers: int) -> None:
    whole = [name for batch in first(open_source(ten).batches(0), 5) for name in batch.names]
    damaged(ten, 3)
    said: list[str] = []
    source = open_source(dataclasses.replace(ten, num_workers=workers), on_message=said.append)
    names = [name for batch in first(source.batches(0), 5) for name in batch.names]
    following = {place: whole[place - place % 10 + (place + 1) % 10] for place in range(20)}
    assert names == [following[place] if name == "00003" else name for place, name in enumerate(whole)]
    assert len(source.broken) == 1
    assert len(said) == 1
    assert said[0].startswith("flyingchairs 00003 is left out: ") and said[0].endswith(".")
    assert "00003_flow.flo" in said[0] and "\n" not in said[0]


def test_a_replacement_is_augmented_by_the_key_of_the_broken_sample(ten: DataSection) -> None:
    order = epoch_order(5, 0, 10)
    dataset = open_dataset("flyingchairs", ten.datasets["flyingchairs"].root, "all")
    damaged(ten, int(order[0]) + 1)
    batch = next(open_source(ten).batches(0))
    config = ten.datasets["flyingchairs"].build_augmentation((16, 24))
    expected = augment_flow(dataset[int(order[1])], config, [(5, 0, int(order[0]))])
    assert torch.equal(batch.first[:1], expected.first)
    assert batch.names[0] == batch.names[1]
    assert not torch.equal(batch.first[0], batch.first[1])


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=forks)])
def test_more_broken_samples_than_allowed_stop_the_run(ten: DataSection, workers: int) -> None:
    damaged(ten, 2, 4, 6)
    source = open_source(dataclasses.replace(ten, num_workers=workers))
    with pytest.raises(InputError) as caught:
        first(source.batches(0), 3)
    message = str(caught.value)
    assert message.startswith("3 samples cannot be read, and data.max_broken_samples allows 2: flyingchairs 0000")
    assert all(f"flyingchairs 0000{number} (" in message for number in (2, 4, 6))
    assert message.endswith("); repair them or allow more.") and "\n" not in message
    assert len(source.broken) == 3
    assert not multiprocessing.active_children()


def test_as_many_broken_samples_as_allowed_do_not(ten: DataSection) -> None:
    damaged(ten, 2, 4)
    source = open_source(ten)
    first(source.batches(0), 10)
    assert len(source.broken) == 2


@pytest.mark.parametrize(("budget", "tries"), [(50, 10), (2, 3)])
def test_where_nothing_can_be_read_each_is_tried_once_until_too_many_failed(
    ten: DataSection, monkeypatch: pytest.MonkeyPatch, budget: int, tries: int
) -> None:
    damaged(ten, *range(1, 11))
    often = {"flyingchairs": dataclasses.replace(ten.datasets["flyingchairs"], weight=5)}
    source = open_source(dataclasses.replace(ten, max_broken_samples=budget, datasets=often))
    read = counted_reads(source, monkeypatch)
    with pytest.raises(
        InputError, match=rf"{tries} samples cannot be read, and data\.max_broken_samples allows {budget}"
    ):
        next(source.batches(0))
    assert len(read) == tries


def test_a_missing_file_is_broken_too(ten: DataSection) -> None:
    source = open_source(ten)
    (Path(str(ten.datasets["flyingchairs"].root)) / "data" / "00007_img2.ppm").unlink()
    first(source.batches(0), 3)
    assert len(source.broken) == 1


def test_a_pair_without_ground_truth_is_broken(tmp_path: Path) -> None:
    chairs(tmp_path, 2)
    (tmp_path / "manifest.csv").write_text(
        "first,second,flow\ndata/00001_img1.ppm,data/00001_img2.ppm,data/00001_flow.flo\n"
        "data/00002_img1.ppm,data/00002_img2.ppm,\n"
    )
    said: list[str] = []
    data = on_disk(tmp_path, datasets={"own": section(tmp_path)})
    batch = next(open_source(data, on_message=said.append).batches(0))
    assert set(batch.names) == {"data/00001_img1.ppm"}
    assert said == ["own data/00002_img1.ppm is left out: it has no ground-truth flow, so it cannot be trained on."]


def test_a_dataset_without_a_root_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        open_source(DataSection(source="dataset", datasets={"sintel": DatasetSection()}))
    assert str(caught.value) == ("the recipe has no folder for sintel; set data.datasets.sintel.root to it.")


def test_a_dataset_whose_folder_is_missing_is_named_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_source(on_disk(tmp_path / "nowhere"))
    assert str(caught.value) == (
        f"data.datasets.flyingchairs.root is {tmp_path / 'nowhere'}, which does not exist; set it to the folder of "
        "flyingchairs."
    )


@forks
def test_workers_ignore_stop_signals_and_end_with_the_run(ten: DataSection) -> None:
    expected = first(open_source(ten).batches(0), 12)
    others = set(multiprocessing.active_children())
    batches = open_source(dataclasses.replace(ten, num_workers=1)).batches(0)
    assert same(next(batches), expected[0])
    (worker,) = set(multiprocessing.active_children()) - others
    for name in ("INT", "TERM"):
        subprocess.run(["kill", f"-{name}", str(worker.pid)], check=True)
    for batch in expected[1:]:
        assert same(next(batches), batch)
    worker.terminate()  # but the run itself can end it
    worker.join(timeout=20)
    assert worker.exitcode == 0
