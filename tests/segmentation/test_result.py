"""Masks as indexed png, COCO run-length encoding and pictures."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoformer.datasets.segmentation import read_labels
from protoformer.errors import InputError
from protoformer.segmentation.result import davis_palette, decode_rle, encode_rle, make_frame


def labels() -> np.ndarray:
    result = np.zeros((12, 20), np.uint8)
    result[2:6, 3:9] = 1
    result[5:11, 12:18] = 4
    return result


def test_the_encoding_is_that_of_pycocotools() -> None:
    # The strings are from pycocotools.mask.encode(np.asfortranarray(mask)), version 2.0.
    y, x = np.mgrid[0:60, 0:90]
    disk = (x - 40) ** 2 + (y - 30) ** 2 < 500
    stripes = ((x * 7 + y * 3) % 11 < 4)[:5, :9]
    assert encode_rle(disk)["counts"] == (
        "cR17a18J4L4L4M2N2N2N2N2O0O2O0O2O0O2O00000O2O000000000001N1000001N101N101N101N2N2N2N2N3L4L4L6Hma1"
    )
    assert encode_rle(stripes) == {"size": [5, 9], "counts": "022O0000000000000001OO41LO20"}


def expected_counts(mask: np.ndarray) -> str:
    """The compressed string of the COCO format, written from its description."""
    flat = mask.flatten(order="F").tolist()
    runs, value = [], 0
    position = 0
    while position < len(flat):
        length = 0
        while position + length < len(flat) and flat[position + length] == value:
            length += 1
        runs.append(length)
        position, value = position + length, 1 - value
    text = ""
    for index, run in enumerate(runs):
        number = run - runs[index - 2] if index > 2 else run
        while True:
            bits = number & 31
            number >>= 5
            if (number == 0 and not bits & 16) or (number == -1 and bits & 16):
                text += chr(bits + 48)
                break
            text += chr((bits | 32) + 48)
    return text


@pytest.mark.parametrize("seed", range(5))
def test_every_mask_survives_its_encoding(seed: int) -> None:
    random = np.random.default_rng(seed)
    mask = np.kron(random.random((7, 9)) < 0.5, np.ones((11, 13), bool)).astype(bool)
    for each in (mask, ~mask, np.zeros_like(mask), np.ones_like(mask)):
        encoded = encode_rle(each)
        assert encoded["counts"] == expected_counts(each)
        assert np.array_equal(decode_rle(encoded), each)


def test_damaged_counts_are_an_input_error() -> None:
    with pytest.raises(InputError, match="does not have 3x4 pixels"):
        decode_rle({"size": [3, 4], "counts": "9"})
    with pytest.raises(InputError, match="over the limit of"):  # before a terabyte is allocated
        decode_rle({"size": [2**20, 2**20], "counts": "PPPPPPPP1"})


def test_the_palette_is_that_of_davis() -> None:
    expected = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (0, 0, 128), (128, 0, 128), (0, 128, 128)]
    assert davis_palette()[:7].tolist() == [list(color) for color in expected]
    assert davis_palette()[255].tolist() == [224, 224, 192]


def test_a_frame_knows_its_objects() -> None:
    frame = make_frame(labels(), {1: (2.0, -1.0)}, number=3, time=Fraction(1, 5))
    assert frame.ids == (1, 4)
    assert frame.boxes.tolist() == [[3, 2, 6, 4], [12, 5, 6, 6]]
    assert frame.motion.tolist() == [[2, -1], [0, 0]]
    assert np.array_equal(np.asarray(frame), labels()) and frame.foreground.sum() == 24 + 36
    assert "2 objects" in repr(frame)


def test_labels_are_saved_in_every_format(tmp_path: Path) -> None:
    frame = make_frame(labels(), {}, frame=np.full((12, 20, 3), 100, np.uint8))
    for name in ("mask.png", "mask.npy", "mask.json"):
        frame.save(tmp_path / name)
    with Image.open(tmp_path / "mask.png") as image:
        assert image.mode == "P"
        assert image.getpalette()[3:6] == [128, 0, 0]
    assert np.array_equal(read_labels(tmp_path / "mask.png"), labels())
    assert np.array_equal(np.load(tmp_path / "mask.npy"), labels())
    objects = json.loads((tmp_path / "mask.json").read_text())["objects"]
    assert [each["area"] for each in objects] == [24, 36]
    assert np.array_equal(decode_rle(objects[1]["segmentation"]), labels() == 4)
    with pytest.raises(InputError, match=r"\.png, \.npy or \.json"):
        frame.save(tmp_path / "mask.gif")


def test_the_overlay_colors_objects_alone() -> None:
    drawn = make_frame(labels(), {}, frame=np.full((12, 20, 3), 100, np.uint8)).draw()
    assert (drawn[labels() == 0] == 100).all()
    assert (drawn[labels() > 0] != 100).any(axis=1).all()
