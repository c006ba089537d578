"""Finding, listing and checking datasets."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protoformer.datasets.base import (
    expect_equal_counts,
    expect_file,
    expect_files,
    expect_folder,
    files_in,
    folders_in,
    read_text,
)
from protoformer.datasets.registry import DATASETS, CheckReport, check_dataset, open_dataset
from protoformer.errors import InputError
from protoformer.io.files import natural_key
from protoformer.io.formats import write_flo

Paint = Callable[..., Path]


@pytest.fixture
def scenes(tmp_path: Path, paint: Paint) -> Path:
    """Three scenes of Middlebury: one whole, one without its second image, one with a flow cut short."""
    for scene in ("Grove2", "Urban2", "Venus"):
        for frame in (10, 11):
            paint(tmp_path / "other-data" / scene / f"frame{frame}.png")
        (tmp_path / "other-gt-flow" / scene).mkdir(parents=True)
        write_flo(tmp_path / "other-gt-flow" / scene / "flow10.flo", np.zeros((4, 6, 2)))
    (tmp_path / "other-data/Grove2/frame11.png").unlink()
    (tmp_path / "other-gt-flow/Venus/flow10.flo").write_bytes(b"PIEH")
    return tmp_path


def test_a_check_goes_on_after_what_is_broken_and_names_it_all(scenes: Path) -> None:
    calls: list[tuple[int, int]] = []
    report = check_dataset(open_dataset("middlebury", scenes), lambda done, total: calls.append((done, total)))
    assert (report.num_samples, report.read) == (3, 1)
    assert calls == [(1, 3), (2, 3), (3, 3)]
    (missing, why), (damaged, reason) = report.broken
    assert (missing, damaged) == ("Grove2", "Venus")
    assert "frame11.png does not exist, but the second image of Grove2 was expected there as a file" in why
    assert "flow10.flo" in reason


def test_a_whole_dataset_has_nothing_broken(scenes: Path, paint: Paint) -> None:
    paint(scenes / "other-data/Grove2/frame11.png")
    write_flo(scenes / "other-gt-flow/Venus/flow10.flo", np.zeros((4, 6, 2)))
    assert check_dataset(open_dataset("middlebury", scenes)) == CheckReport(num_samples=3, read=3, broken=())


def test_a_check_reads_every_frame_of_a_clip(tmp_path: Path, paint: Paint) -> None:
    for clip in ("Ant", "Bag", "Car"):
        for frame in (1, 2, 3):
            paint(tmp_path / clip / "img" / f"{frame:04d}.png")
        (tmp_path / clip / "groundtruth_rect.txt").write_text("1,1,2,2\n" * 3)
    for frame in (2, 3):
        (tmp_path / f"Ant/img/{frame:04d}.png").write_bytes(b"not an image")
    (tmp_path / "Bag/img/0003.png").unlink()
    report = check_dataset(open_dataset("otb", tmp_path))
    assert (report.num_samples, report.read) == (3, 1)
    (damaged, why), (short, reason) = report.broken
    assert (damaged, short) == ("Ant", "Bag")
    assert "Ant/img/0002.png" in why
    assert "holds 2 frames from number 0 on, but groundtruth_rect.txt has 3 boxes" in reason


def test_a_list_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbfcar \xff")
    assert read_text(tmp_path / "list.txt") == "car \ufffd"
    with pytest.raises(InputError, match=r"gone\.txt does not exist"):
        read_text(tmp_path / "gone.txt")
    with pytest.raises(InputError, match="is a folder; give a file inside it"):
        read_text(tmp_path)
    with pytest.raises(InputError, match="gone cannot be listed"):
        folders_in(tmp_path / "gone")


def test_items_end_where_the_dataset_does(scenes: Path) -> None:
    data = open_dataset("middlebury", scenes)
    for index in (3, -1):
        with pytest.raises(IndexError, match=rf"middlebury has 3 samples; index {index} is out of range\."):
            data[index]


def test_the_error_for_an_unknown_dataset_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no dataset 'flying-chair'; the nearest known one is 'flyingchairs'\."):
        open_dataset("flying-chair", tmp_path)


def test_the_error_for_an_unknown_split_or_option_lists_the_valid_ones(scenes: Path) -> None:
    with pytest.raises(InputError, match=r"sintel has no split 'val'; choose one of train, test\."):
        open_dataset("sintel", scenes, "val")
    with pytest.raises(InputError, match=r"Sintel has no option 'passes'; known ones are render_pass\."):
        open_dataset("sintel", scenes, passes="clean")
    with pytest.raises(InputError, match=r"Middlebury has no option 'camera'; it has none\."):
        open_dataset("middlebury", scenes, camera="left")


@pytest.mark.parametrize("name", DATASETS)
def test_every_entry_can_be_opened_and_misses_its_files(tmp_path: Path, name: str) -> None:
    entry = DATASETS[name]
    assert entry.name == name and entry.default_split in entry.splits
    assert entry.task in ("flow", "depth", "track", "stabilize", "segment")
    for split in entry.splits:
        with pytest.raises(InputError) as caught:
            open_dataset(name, tmp_path / "nowhere", split)
        assert str(caught.value).endswith(".") and "nowhere" in str(caught.value)


def test_knowing_the_datasets_imports_none_of_them() -> None:
    code = "import sys, protoformer.datasets; print([name for name in sys.modules if '.datasets.' in name])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "registry" in loaded
    for module in ("flow", "depth", "tracking", "stabilization", "segmentation", "manifest"):
        assert f"'protoformer.datasets.{module}'" not in loaded


def test_frame_2_comes_before_frame_10(tmp_path: Path) -> None:
    for name in ("frame_10.png", "frame_2.png", "frame_1.png", ".frame_0.png", "notes.txt"):
        (tmp_path / name).touch()
    for name in ("scene_10", "scene_9", ".git"):
        (tmp_path / name).mkdir()
    assert [path.name for path in files_in(tmp_path, "*.png")] == ["frame_1.png", "frame_2.png", "frame_10.png"]
    assert [path.name for path in folders_in(tmp_path)] == ["scene_9", "scene_10"]


@given(st.lists(st.text(), unique=True), st.lists(st.integers(0), unique=True))
def test_any_names_have_an_order_and_numbers_their_own(names: list[str], numbers: list[int]) -> None:
    backwards = names[::-1]
    assert sorted(names, key=natural_key) == sorted(backwards, key=natural_key)
    ordered = sorted((f"{number}.jpg" for number in numbers), key=natural_key)
    assert ordered == [f"{number}.jpg" for number in sorted(numbers)]


def test_what_was_expected_and_what_to_do_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert expect_file(tmp_path / "file", "a file") == tmp_path / "file"
    assert expect_folder(tmp_path, "a folder") == tmp_path
    with pytest.raises(InputError, match=r"file is a file, but truth was expected there as a folder; point --root at"):
        expect_folder(tmp_path / "file", "truth")
    with pytest.raises(InputError, match=r"is a folder, but truth was expected there as a file; put it there, or"):
        expect_file(tmp_path, "truth")
    with pytest.raises(
        InputError, match=rf"point --root, which is {tmp_path}, at the folder that holds deep/truth/\.$"
    ):
        expect_folder(tmp_path / "deep" / "truth", "truth", tmp_path)
    with pytest.raises(InputError, match=r"none does not exist, but truth was .*the folder where it was unpacked\.$"):
        expect_folder(tmp_path / "none", "truth", tmp_path / "none")
    for root, result in ((tmp_path / "none", "none does not exist"), (tmp_path / "file", "file is a file")):
        with pytest.raises(InputError, match=rf"{result}; point --root at .*, which holds deep/truth \(the truth\)\.$"):
            expect_file(root / "deep" / "truth", "the truth", root)


def test_counts_that_belong_together_are_equal(tmp_path: Path) -> None:
    expect_equal_counts({"images": 3, "flows": 3}, tmp_path)
    with pytest.raises(InputError, match="holds 3 images but 2 flows, which belong together one to one"):
        expect_equal_counts({"images": 3, "flows": 2}, tmp_path)
    expect_files(1, "images", tmp_path)
    with pytest.raises(InputError, match="holds no images"):
        expect_files(0, "images", tmp_path)


def test_a_name_that_several_begin_with_lists_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no dataset 'kitti'; choose one of kitti-2012, kitti-2015, kitti-eigen"):
        open_dataset("kitti", tmp_path)
