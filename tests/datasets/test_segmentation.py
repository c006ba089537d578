"""DAVIS by its official layout, and masks of every kind of png."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoformer.datasets.registry import check_dataset, open_dataset
from protoformer.datasets.segmentation import read_labels
from protoformer.errors import InputError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("bear", "camel", "dance"):
        for kind, suffix in (("JPEGImages", "jpg"), ("Annotations", "png")):
            folder = tmp_path / kind / "480p" / name
            folder.mkdir(parents=True)
            for number in range(3):
                Image.fromarray(np.full((6, 8), 255 * (number > 0), np.uint8)).save(folder / f"{number:05d}.{suffix}")
    return tmp_path


def write_list(root: Path, name: str, text: str) -> None:
    path = root / "ImageSets" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_lists_every_split_has_all_sequences(root: Path) -> None:
    data = open_dataset("davis-2016", root)
    assert data.names == ("bear", "camel", "dance")
    sequence = data[1]
    assert [path.name for path in sequence.frames] == ["00000.jpg", "00001.jpg", "00002.jpg"]
    assert [path.name for path in sequence.masks if path] == ["00000.png", "00001.png", "00002.png"]
    assert check_dataset(data).read == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("2016/val.txt", "camel\ndance\n"),
        ("480p/val.txt", "/JPEGImages/480p/camel/00000.jpg /Annotations/480p/camel/00000.png\n" * 2 + "\ndance\n"),
    ],
)
def test_splits_are_read_from_both_kinds_of_lists(root: Path, name: str, text: str) -> None:
    write_list(root, name, text)
    assert open_dataset("davis-2016", root).names == ("camel", "dance")
    assert open_dataset("davis-2016", root, "all").names == ("bear", "camel", "dance")
    with pytest.raises(InputError, match="no list of the split train; choose one of val, or all"):
        open_dataset("davis-2016", root, "train")


def test_a_listed_sequence_must_exist(root: Path) -> None:
    write_list(root, "2017/val.txt", "zebra\n")
    with pytest.raises(InputError, match="'zebra', which has no frames"):
        open_dataset("davis-2017", root)


def test_frames_without_a_mask_have_none(root: Path) -> None:
    (root / "Annotations" / "480p" / "bear" / "00001.png").unlink()
    masks = open_dataset("davis-2016", root)[0].masks
    assert [mask is None for mask in masks] == [False, True, False]


def test_masks_of_every_kind_are_read(tmp_path: Path) -> None:
    truth = np.array([[0, 1, 2], [2, 0, 255]], np.uint8)
    indexed = Image.fromarray(truth)
    indexed.putpalette([index // 3 for index in range(768)])
    indexed.save(tmp_path / "indexed.png")
    Image.fromarray(truth).save(tmp_path / "gray.png")
    Image.fromarray(np.repeat(truth[..., None], 3, axis=2)).save(tmp_path / "color.png")
    Image.fromarray(truth > 0).save(tmp_path / "bits.png")
    assert np.array_equal(read_labels(tmp_path / "indexed.png"), truth)
    for name in ("gray", "color", "bits"):
        assert np.array_equal(read_labels(tmp_path / f"{name}.png"), truth > 0), name


def test_a_damaged_mask_is_an_input_error(tmp_path: Path) -> None:
    image = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    image.putpalette(list(range(256)) * 3)
    image.save(tmp_path / "mask.png")
    data = (tmp_path / "mask.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="cut short"):
        read_labels(tmp_path / "cut.png")
