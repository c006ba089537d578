"""NYUv2 in its two layouts: folders of pictures, and the official file."""

import re
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from protoformer.datasets.depth import NyuV2, kinect
from protoformer.errors import InputError, install_command
from protoformer.io.image import write_image

HEIGHT, WIDTH = 3, 4


def write_pair(folder: Path, name: str, depth: np.ndarray, gray: int = 128) -> None:
    for kind in ("rgb", "depth"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    write_image(folder / "rgb" / f"{name}.jpg", np.full((*depth.shape, 3), gray, dtype=np.uint8))
    write_image(folder / "depth" / f"{name}.png", depth)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    depth = np.arange(0, 240, 20, dtype=np.uint8).reshape(HEIGHT, WIDTH)
    for name in ("0002", "0010"):
        write_pair(tmp_path / "train", name, depth)
    write_pair(tmp_path / "val", "0006", depth)
    return tmp_path


def write_official(path: Path, count: int = 5, height: int = HEIGHT, width: int = WIDTH) -> None:
    """Write images x 3 x width x height, MATLAB's order; red is 10 x number + column, depth is row + column / 10."""
    path.parent.mkdir(parents=True, exist_ok=True)
    row, column = np.mgrid[:height, :width]
    images = np.zeros((count, 3, width, height), dtype=np.uint8)
    depths = np.zeros((count, width, height), dtype=np.float32)
    for number in range(count):
        images[number, 0] = (10 * number + column).T
        images[number, 2] = row.T
        depths[number] = (row + column / 10).T
    with h5py.File(path, "w") as file:
        file["images"], file["depths"] = images, depths


@pytest.fixture
def official(tmp_path: Path) -> Path:
    write_official(tmp_path / "nyu_depth_v2_labeled.mat")
    (tmp_path / "train.txt").write_text("1\n4\n")
    (tmp_path / "test.txt").write_text("5\n2\n3\n")
    return tmp_path


def test_eight_bits_hold_ten_meters(folders: Path) -> None:
    sample = NyuV2(folders, "train")[0]
    expected = torch.arange(0, 240, 20).reshape(1, 1, HEIGHT, WIDTH) / 25.5
    assert torch.allclose(sample.depth, expected, rtol=1e-7)
    assert sample.depth.dtype == torch.float32
    assert torch.equal(sample.valid, expected > 0)
    assert sample.names == ("0002",)
    assert torch.allclose(sample.image, torch.full((1, 3, HEIGHT, WIDTH), 128 / 255), atol=1.5 / 255)


def test_folders_are_splits(folders: Path) -> None:
    assert NyuV2(folders, "train").names == ("0002", "0010")
    assert NyuV2(folders, "val").names == ("0006",)
    with pytest.raises(InputError, match="has no split 'test', but train and val; choose --split train or --split val"):
        NyuV2(folders, "test")
    with pytest.raises(InputError, match=r"holds neither nyu_depth_v2_labeled\.mat nor test/rgb and test/depth"):
        NyuV2(folders / "train", "test")
    with pytest.raises(InputError, match="the split is 'all'; choose one of train, val, test"):
        NyuV2(folders, "all")


@pytest.mark.parametrize(("kind", "file"), [("depth", "0010.png"), ("rgb", "0010.jpg")])
def test_one_without_the_other_is_an_error_when_it_is_read(folders: Path, kind: str, file: str) -> None:
    (folders / "train" / kind / file).unlink()
    rooms = NyuV2(folders, "train")
    assert rooms.names == ("0002", "0010") and rooms[0].valid.any()
    with pytest.raises(InputError, match=rf"{kind}/{file} does not exist, but the \w+ of 0010 was expected there"):
        rooms[1]


def test_depth_of_another_kind_is_refused(folders: Path) -> None:
    write_image(folders / "val" / "depth" / "0006.png", np.ones((HEIGHT, WIDTH), dtype=np.uint16))
    with pytest.raises(InputError, match=r"0006\.png is not an 8-bit gray png"):
        NyuV2(folders, "val")[0]


def test_depth_of_another_size_is_refused(folders: Path) -> None:
    write_image(folders / "val" / "depth" / "0006.png", np.ones((HEIGHT, WIDTH + 1), dtype=np.uint8))
    with pytest.raises(InputError, match="the image of 0006 is 4x3 but its depth is 5x3"):
        NyuV2(folders, "val")[0]


@pytest.mark.parametrize("as_file", [False, True])
def test_the_official_file_comes_out_upright(official: Path, as_file: bool) -> None:
    root = official / "nyu_depth_v2_labeled.mat" if as_file else official
    sample = NyuV2(root, "train")[1]
    row, column = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    assert sample.names == ("0004",)
    assert torch.equal(sample.image[0, 0], (30 + column) / 255)
    assert torch.equal(sample.image[0, 1], torch.zeros(HEIGHT, WIDTH))
    assert torch.equal(sample.image[0, 2], row / 255)
    assert torch.allclose(sample.depth[0, 0], row + column / 10)
    assert torch.equal(sample.valid[0, 0], (row + column) > 0)
    assert sample.image.is_contiguous()


def test_lists_of_text_count_from_1_and_keep_their_order(official: Path) -> None:
    assert NyuV2(official, "train").names == ("0001", "0004")
    assert NyuV2(official).names == ("0005", "0002", "0003")


def test_a_split_file_of_version_7_is_read(official: Path) -> None:
    (official / "train.txt").unlink()
    (official / "test.txt").unlink()
    with h5py.File(official / "splits.mat", "w") as file:
        file["trainNdxs"] = np.array([[2.0, 3.0]])
        file["testNdxs"] = np.array([[1.0, 4.0, 5.0]])
    assert NyuV2(official, "train").names == ("0002", "0003")
    assert NyuV2(official, "test").names == ("0001", "0004", "0005")


def test_an_old_split_file_says_nothing_of_a_part_of_the_dataset(official: Path) -> None:
    (official / "test.txt").unlink()
    (official / "splits.mat").write_bytes(b"MATLAB 5.0 MAT-file".ljust(200, b" "))
    with pytest.raises(InputError, match=r"has 5 images instead of 1449, so its test split is not known; .*test\.txt"):
        NyuV2(official)


def test_the_official_split_is_known_by_heart(tmp_path: Path) -> None:
    write_official(tmp_path / "nyu_depth_v2_labeled.mat", count=1449, height=1, width=1)
    train, test = NyuV2(tmp_path, "train").names, NyuV2(tmp_path, "test").names
    assert (len(train), len(test)) == (795, 654)
    assert set(train) | set(test) == {f"{number:04d}" for number in range(1, 1450)}
    assert train[:8] == ("0003", "0004", "0005", "0006", "0007", "0008", "0010", "0011")
    assert test[:8] == ("0001", "0002", "0009", "0014", "0015", "0016", "0017", "0018")


@pytest.mark.parametrize(
    ("text", "said"), [("1\n6\n", "names image 6"), ("0\n", "names image 0"), ("1 x\n", "holds 'x'")]
)
def test_a_list_that_does_not_fit_is_refused(official: Path, text: str, said: str) -> None:
    (official / "test.txt").write_text(text)
    with pytest.raises(InputError, match=said):
        NyuV2(official)


def test_the_official_file_has_no_validation_split(official: Path) -> None:
    with pytest.raises(InputError, match="has no split 'val'; choose train or test"):
        NyuV2(official, "val")


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nyu_depth_v2_labeled.mat"
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros((2, 3, 4, 3), dtype=np.uint8)
    with pytest.raises(InputError, match="has no depths of 3 dimensions"):
        NyuV2(tmp_path)
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match=r"cannot be read as a MATLAB 7\.3 file"):
        NyuV2(tmp_path)


def test_without_h5py_it_is_said_what_to_install(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=f"requires h5py, .*{re.escape(install_command('mat'))}"):
        NyuV2(official)


def test_the_camera_scales_with_the_image(folders: Path) -> None:
    full = torch.tensor([[518.8579, 0, 325.5824], [0, 519.4696, 253.7362], [0, 0, 1]])
    assert torch.allclose(kinect(640, 480), full)
    half = torch.tensor([[259.42895, 0, 162.5412], [0, 259.7348, 126.6181], [0, 0, 1]])
    assert torch.allclose(kinect(320, 240), half)
    sample = NyuV2(folders, "val")[0]
    assert sample.intrinsics is not None
    assert torch.equal(sample.intrinsics, kinect(WIDTH, HEIGHT)[None])


@pytest.mark.parametrize(("split", "count", "size"), [("train", 700, (240, 320)), ("val", 95, (480, 640))])
def test_the_real_rooms_are_read(split: str, count: int, size: tuple[int, int]) -> None:
    root = Path(__file__).parents[2].parent / "shared" / "data" / "NYUv2"
    if not root.is_dir():
        pytest.skip("the NYUv2 samples are not beside this checkout")
    rooms = NyuV2(root, split)
    assert len(rooms) == count
    for index in (0, count // 2, count - 1):
        sample = rooms[index]
        assert sample.image.shape == (1, 3, *size)
        assert sample.depth.shape == sample.valid.shape == (1, 1, *size)
        known = sample.depth[sample.valid]
        assert 0.5 < known.min() < known.median() < known.max() <= 10
        assert sample.valid.float().mean() > 0.9
        assert 0 <= sample.image.min() < sample.image.max() <= 1
