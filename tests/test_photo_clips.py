"""Clips of cut-outs over photographs: layout, boxes, and the split of the images."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoformer.datasets.registry import open_dataset

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "photo_clips.py"


@pytest.fixture(scope="module")
def textures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten gray photographs and ten red discs of two classes."""
    root = tmp_path_factory.mktemp("textures")
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:60, :60]
    inside = (rows - 29.5) ** 2 + (columns - 29.5) ** 2 < 28**2
    (root / "photos").mkdir()
    (root / "cutouts").mkdir()
    for index in range(10):
        gray = rng.integers(60, 120, (40, 60, 1), dtype=np.uint8).repeat(3, axis=2)
        Image.fromarray(gray).resize((480, 320)).save(root / "photos" / f"{index}.jpg")
        disc = np.zeros((60, 60, 4), np.uint8)
        disc[inside] = (250, 10 * index, 0, 255)
        Image.fromarray(disc).save(root / "cutouts" / f"{'ab'[index % 2]}_{index}.png")
    return root


def write(textures: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    paths = ("--photos", textures / "photos", "--cutouts", textures / "cutouts", "-o", output)
    return subprocess.run([sys.executable, SCRIPT, *paths, *options], capture_output=True, text=True, check=False)


def test_clips_are_tracking_data_with_boxes_on_the_target(textures: Path, tmp_path: Path) -> None:
    result = write(textures, tmp_path, "--count", "3", "--frames", "12", "--seed", "4")
    assert result.returncode == 0, result.stderr
    dataset = open_dataset("own-track", tmp_path)
    assert len(dataset) == 3
    for sequence in dataset:
        image = np.asarray(Image.open(sequence.frames[0])).astype(int)
        height, width = image.shape[:2]
        assert len(sequence.frames) == 12 and sequence.present[0]
        x, y, box_width, box_height = (round(value) for value in sequence.boxes[0].tolist())
        assert 0 <= x < x + box_width <= width and 0 <= y < y + box_height <= height
        middle = image[y + box_height // 2, x + box_width // 2]
        if np.ptp(image.reshape(-1, 3), axis=1).max() > 20:  # not a gray clip
            assert middle[0] > middle[2] + 60


def test_a_seed_determines_a_clip_and_validation_has_other_images(textures: Path, tmp_path: Path) -> None:
    for name, part in (("a", "train"), ("b", "train"), ("c", "val")):
        write(textures, tmp_path / name, "--count", "1", "--frames", "10", "--seed", "1", "--part", part)
    files = {name: sorted((tmp_path / name).rglob("*.jpg")) for name in "abc"}
    assert len(files["a"]) == 10
    assert [path.read_bytes() for path in files["a"]] == [path.read_bytes() for path in files["b"]]
    assert [path.read_bytes() for path in files["a"]] != [path.read_bytes() for path in files["c"]]


def test_excluded_cutouts_are_not_used(textures: Path, tmp_path: Path) -> None:
    result = write(textures, tmp_path, "--count", "1", "--exclude", "a_", "--exclude", "b_")
    assert result.returncode != 0 and "photo_clips: there are no" in result.stderr
