"""A dataset in memory is the dataset."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from protoformer.datasets.base import Dataset, InMemory, in_memory
from protoformer.datasets.depth import NyuV2
from protoformer.errors import InputError
from protoformer.io.image import write_image
from protoformer.synthetic.samples import DepthSample

FIELDS = ("image", "depth", "valid", "intrinsics")


@pytest.fixture
def rooms(tmp_path: Path, paint: Callable[..., Path]) -> NyuV2:
    for number in range(5):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        paint(tmp_path / "train" / "rgb" / f"{number:04d}.jpg", pixels)
        (tmp_path / "train" / "depth").mkdir(exist_ok=True)
        write_image(tmp_path / "train" / "depth" / f"{number:04d}.png", pixels[..., 0])
    return NyuV2(tmp_path, "train")


def same(one: Dataset[DepthSample], other: Dataset[DepthSample], index: int) -> bool:
    here, there = one[index], other[index]
    return here.names == there.names and all(torch.equal(getattr(here, f), getattr(there, f)) for f in FIELDS)


def test_every_sample_is_the_same_without_its_files(rooms: NyuV2) -> None:
    expected = [rooms[index] for index in range(5)]
    kept = in_memory(rooms, 10_000)
    assert isinstance(kept, InMemory) and (kept.names, kept.name, kept.split) == (rooms.names, "nyuv2", "train")
    for path in rooms.root.rglob("*.*"):
        path.unlink()
    for index in range(5):
        assert all(torch.equal(getattr(kept[index], field), getattr(expected[index], field)) for field in FIELDS)
    assert kept._fields["image"].dtype == torch.uint8


def test_what_is_done_to_a_sample_does_not_change_the_next(rooms: NyuV2) -> None:
    kept = in_memory(rooms, 10_000)
    kept[0].depth.zero_()
    kept[0].image.zero_()
    assert same(kept, rooms, 0)


def test_a_dataset_that_does_not_fit_is_left_on_the_disk(rooms: NyuV2) -> None:
    # 6 x 8 pixels of 3 bytes of color, 4 of depth and 1 of validity, and a camera of 9 numbers: 420 bytes, five times.
    assert isinstance(in_memory(rooms, 2100), InMemory)
    assert in_memory(rooms, 2099) is rooms and in_memory(rooms, 0) is rooms


def test_samples_of_another_size_and_broken_ones_are_read_each_time(rooms: NyuV2, paint: Callable[..., Path]) -> None:
    folder = rooms.root / "train"
    paint(folder / "rgb" / "0001.jpg", np.zeros((4, 4, 3), dtype=np.uint8))
    write_image(folder / "depth" / "0001.png", np.full((4, 4), 51, dtype=np.uint8))
    (folder / "depth" / "0000.png").unlink()
    kept = in_memory(rooms, 10_000)
    assert kept[1].depth.shape == (1, 1, 4, 4) and same(kept, rooms, 2)
    with pytest.raises(InputError, match=r"0000\.png does not exist"):
        kept[0]
