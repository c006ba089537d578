"""A pair of videos is as long as the shorter one, by what can be decoded."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from protoformer.datasets.registry import check_dataset
from protoformer.datasets.stabilization import DeepStab, count_frames
from protoformer.errors import InputError


def write_video(path: Path, frames: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 25.0, (32, 24))
    assert writer.isOpened()
    for number in range(frames):
        writer.write(np.full((24, 32, 3), 10 * number, dtype=np.uint8))
    writer.release()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, stable, unstable in (("1", 5, 7), ("2", 4, 4), ("10", 6, 3)):
        write_video(tmp_path / "stable" / f"{name}.avi", stable)
        write_video(tmp_path / "unstable" / f"{name}.avi", unstable)
    return tmp_path


def declare_frames(path: Path, count: int) -> None:
    """Change the number of frames that the headers of an avi state, and nothing else."""
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"avih", 8 + 16), (b"strh", 8 + 32)):
        place = data.index(mark) + offset
        data[place : place + 4] = count.to_bytes(4, "little")
    path.write_bytes(data)


@pytest.mark.parametrize("trust_headers", [False, True])
def test_pairs_come_by_number_with_the_shorter_length(root: Path, trust_headers: bool) -> None:
    pairs = list(DeepStab(root, trust_headers=trust_headers))
    assert [(pair.name, pair.frames) for pair in pairs] == [("1", 5), ("2", 4), ("10", 3)]
    assert pairs[2].stable == root / "stable" / "10.avi"
    assert pairs[2].unstable == root / "unstable" / "10.avi"


def test_a_video_cut_short_counts_the_frames_that_are_left(root: Path) -> None:
    path = root / "stable" / "2.avi"
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"\xff\xd8\xff")])
    assert count_frames(path) == 3
    assert DeepStab(root)[1].frames == 3


def test_a_header_that_promises_too_much_is_believed_only_on_request(root: Path) -> None:
    path = root / "stable" / "1.avi"
    declare_frames(path, 40)
    assert count_frames(path) == 5
    assert count_frames(path, trust_header=True) == 40


@pytest.mark.parametrize(("word", "meant"), [("false", False), ("0", False), ("True", True), ("1", True)])
def test_trust_may_come_as_a_word(root: Path, word: str, meant: bool) -> None:
    assert DeepStab(root, trust_headers=word).trust_headers is meant


def test_trust_of_another_word_is_refused(root: Path) -> None:
    with pytest.raises(InputError, match="trust_headers is 'perhaps'; choose one of true, false, 1, 0"):
        DeepStab(root, trust_headers="perhaps")


def test_a_check_decodes_what_a_header_promises(root: Path) -> None:
    for folder in ("stable", "unstable"):
        declare_frames(root / folder / "1.avi", 40)
    (root / "unstable" / "2.avi").write_bytes(b"not a video at all")
    report = check_dataset(DeepStab(root, trust_headers=True))
    assert (report.found, report.read) == (3, 1)
    (first, promise), (second, damage) = report.broken
    assert (first, second) == ("1", "2")
    assert "unstable/1.avi has 7 frames that can be read, but 40 are declared" in promise
    assert "unstable/2.avi is not a video" in damage


@pytest.mark.parametrize(("missing", "partner"), [("stable", "unstable"), ("unstable", "stable")])
def test_a_missing_partner_is_named(root: Path, missing: str, partner: str) -> None:
    (root / missing / "2.avi").unlink()
    with pytest.raises(InputError, match=rf"/{missing}/2\.avi does not exist, but .*/{partner}/2\.avi needs it"):
        DeepStab(root)


def test_other_files_are_not_looked_at(root: Path) -> None:
    (root / "stable" / "readme.txt").write_text("about")
    (root / "stable" / "preview.avi").write_bytes(b"-")
    assert DeepStab(root).names == ("1", "2", "10")


def test_a_file_that_is_no_video_is_refused_when_it_is_asked_for(root: Path) -> None:
    (root / "stable" / "2.avi").write_bytes(b"not a video at all")
    with pytest.raises(InputError, match=r"stable/2\.avi is not a video of a known kind"):
        DeepStab(root)[1]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="stable does not exist, but the folder of stable videos was expected there"):
        DeepStab(tmp_path)
    for folder in ("stable", "unstable"):
        (tmp_path / folder).mkdir()
    with pytest.raises(InputError, match=r"holds no videos stable/<n>\.avi"):
        DeepStab(tmp_path)


def test_there_is_one_split(root: Path) -> None:
    with pytest.raises(InputError, match="the split is 'test'; choose one of all"):
        DeepStab(root, "test")
