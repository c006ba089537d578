"""Depth from datasets, alone and mixed with synthetic scenes: each batch is a function of its index."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from protoformer.errors import InputError
from protoformer.io.image import write_image
from protoformer.synthetic import generator as generator_module
from protoformer.synthetic.samples import DepthSample
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.training.recipe import DataSection, DatasetSection
from protoformer.training.sources import DEPTH, Source, open_source

FIELDS = ("image", "depth", "valid", "intrinsics")
forks = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def rooms(root: Path, count: int) -> DatasetSection:
    """A tree of NYUv2, and how a recipe names it."""
    for number in range(count):
        pixels = np.random.default_rng(number).integers(30, 220, (24, 32, 3), dtype=np.uint8)
        for kind, values in (("rgb", pixels), ("depth", pixels[..., 0])):
            (root / "train" / kind).mkdir(parents=True, exist_ok=True)
            write_image(root / "train" / kind / f"{number:04d}.{'jpg' if kind == 'rgb' else 'png'}", values)
    return DatasetSection(str(root), augmentation="rooms", overrides={"erase_size": [2, 6]})


@pytest.fixture
def mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSection:
    monkeypatch.setattr(generator_module, "procedural_bank", lambda: procedural_bank(side=64, each=2))
    return DataSection(
        source="mix",
        synthetic_fraction=0.4,
        seed=3,
        batch_size=2,
        crop_size=(16, 24),
        families={"room": 1.0},
        datasets={"nyuv2": rooms(tmp_path, 5)},
        max_broken_samples=1,
    )


def first(batches: Iterator[DepthSample], count: int) -> list[DepthSample]:
    return list(itertools.islice(batches, count))


def same(one: DepthSample, other: DepthSample) -> bool:
    return one.names == other.names and all(torch.equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


def opened(data: DataSection, **options: object) -> Source[DepthSample]:
    return open_source(data, "cpu", DEPTH, **options)  # type: ignore[arg-type]


def test_synthetic_batches_have_their_fraction_and_both_sources_keep_their_order(mix: DataSection) -> None:
    batches = first(opened(mix).batches(0), 10)
    is_rendered = [batch.names[0].startswith("room-") for batch in batches]
    assert is_rendered == [False, False, True, False, True, False, False, True, False, True]
    for source in ("synthetic", "dataset"):
        alone = opened(dataclasses.replace(mix, source=source)).batches(0)
        actual = [
            batch for batch, rendered in zip(batches, is_rendered, strict=True) if rendered == (source == "synthetic")
        ]
        assert all(same(batch, next(alone)) for batch in actual)
    assert all(batch.image.shape == (2, 3, 16, 24) and batch.valid.any() for batch in batches)


def test_a_mix_goes_on_where_it_stopped_and_ranks_divide_it(mix: DataSection) -> None:
    expected = first(opened(mix).batches(0), 8)
    for start in (1, 5):
        for batch, wanted in zip(opened(mix).batches(start), expected[start:], strict=False):
            assert same(batch, wanted)
    ranks = [opened(mix, rank=rank, num_ranks=2).batches(2) for rank in range(2)]
    for wanted in expected[2:5]:
        parts = [next(stream) for stream in ranks]
        assert tuple(name for part in parts for name in part.names) == wanted.names
        assert torch.equal(torch.cat([part.depth for part in parts]), wanted.depth)


@forks
def test_workers_read_the_same_in_the_same_order(mix: DataSection) -> None:
    data = dataclasses.replace(mix, source="dataset")
    batches = opened(dataclasses.replace(data, num_workers=2)).batches(1)
    for expected in first(opened(data).batches(1), 4):
        assert same(next(batches), expected)


def test_a_broken_image_is_replaced_reported_once_and_too_many_stop_the_run(mix: DataSection) -> None:
    depths = Path(str(mix.datasets["nyuv2"].root)) / "train" / "depth"
    (depths / "0002.png").write_bytes(b"")
    said: list[str] = []
    source = opened(mix, on_message=said.append)
    names = {name for batch in first(source.batches(0), 12) for name in batch.names}
    assert "0002" not in names and {"0000", "0001", "0003", "0004"} <= names
    assert len(source.broken) == len(said) == 1 and said[0].startswith("nyuv2 0002 is left out: ")
    (depths / "0004.png").unlink()
    with pytest.raises(InputError, match=r"2 samples cannot be read, and data\.max_broken_samples allows 1: nyuv2 000"):
        first(opened(mix).batches(0), 12)


def test_the_official_file_may_be_the_place_of_a_dataset(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "nyu.mat", "w") as file:
        file["images"] = np.random.default_rng(0).integers(0, 255, (2, 3, 32, 24), dtype=np.uint8)
        file["depths"] = np.full((2, 32, 24), 2.5, dtype=np.float32)
    (tmp_path / "train.txt").write_text("2\n")
    section = DatasetSection(str(tmp_path / "nyu.mat"), augmentation="rooms")
    batch = next(
        opened(DataSection(source="dataset", batch_size=1, crop_size=(16, 24), datasets={"nyuv2": section})).batches(0)
    )
    assert batch.names == ("0002",) and torch.equal(batch.depth.unique(), torch.tensor([2.5]))


def test_an_image_without_a_camera_teaches_nothing(tmp_path: Path) -> None:
    rooms(tmp_path, 2)
    (tmp_path / "steps").mkdir()
    write_image(tmp_path / "steps" / "0.png", np.full((24, 32), 2000, dtype=np.uint16))
    (tmp_path / "manifest.csv").write_text(
        "image,depth,fx,fy,cx,cy\ntrain/rgb/0000.jpg,steps/0.png,30,30,15.5,11.5\ntrain/rgb/0001.jpg,steps/0.png,,,,\n"
    )
    own = DatasetSection(str(tmp_path), split="all", augmentation="rooms")
    said: list[str] = []
    source = opened(
        DataSection(source="dataset", batch_size=2, crop_size=(16, 24), datasets={"own-depth": own}),
        on_message=said.append,
    )
    batch = next(source.batches(0))
    assert set(batch.names) == {"train/rgb/0000.jpg"} and torch.equal(batch.depth.unique(), torch.tensor([2.0]))
    assert said == [
        "own-depth train/rgb/0001.jpg is left out: it has no camera intrinsics, so it cannot be trained on."
    ]
