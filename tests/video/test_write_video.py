"""A video holds every frame as it was given, at any size, and is written whole or not at all."""

import os
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.video.reader import VideoFile, read_frames
from protoformer.video.writer import write_video


def smooth(number: int, height: int = 24, width: int = 32) -> np.ndarray:
    """Red grows to the right and green downwards; blue is the frame's number, times 20."""
    y, x = np.mgrid[:height, :width]
    return np.stack((x * 200 // width, y * 200 // height, np.full_like(x, 20 * number)), axis=-1).astype(np.uint8)


def frames_of(path: Path) -> list[np.ndarray]:
    """What OpenCV decodes, RGB."""
    video, frames = cv2.VideoCapture(str(path)), []
    while (decoded := video.read())[0]:
        frames.append(decoded[1][..., ::-1])
    return frames


@pytest.mark.parametrize("size", [(24, 32), (25, 33), (17, 16), (360, 640)])
def test_every_frame_comes_back_whole(tmp_path: Path, size: tuple[int, int]) -> None:
    given = [smooth(number, *size) for number in range(4)]
    assert write_video(tmp_path / "clip.avi", iter(given), 25.0) == 4
    found = frames_of(tmp_path / "clip.avi")
    assert [frame.shape for frame in found] == [(*size, 3)] * 4
    for one, other in zip(found, given, strict=True):
        # Up to the last row and column: the chroma of a jpeg is coarse, but a spoilt border would be off by far more.
        assert np.abs(one.astype(int) - other).max() < 20
        assert np.abs(one.astype(int) - other).mean() < 5
    assert [path.name for path in tmp_path.iterdir()] == ["clip.avi"]


@pytest.mark.parametrize("rate", [10.0, 23.976, 60.0])
def test_the_rate_and_the_length_stand_in_the_header(tmp_path: Path, rate: float) -> None:
    write_video(tmp_path / "clip.avi", (smooth(number) for number in range(7)), rate)
    video = cv2.VideoCapture(str(tmp_path / "clip.avi"))
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(rate, abs=1e-3)
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == 7


def test_the_index_leads_to_the_frames(tmp_path: Path) -> None:
    write_video(tmp_path / "clip.avi", (smooth(number) for number in range(6)), 25.0)
    data = (tmp_path / "clip.avi").read_bytes()
    assert int.from_bytes(data[4:8], "little") == len(data) - 8
    video, index = data.index(b"movi"), data.rindex(b"idx1")
    for number in range(6):
        entry = data[index + 8 + 16 * number :][:16]
        place, size = (int.from_bytes(entry[start : start + 4], "little") for start in (8, 12))
        assert entry[:4] == b"00dc" == data[video + place :][:4]
        assert data[video + place + 8 :][:2] == b"\xff\xd8"
        assert data[video + place + 8 : video + place + 8 + size].endswith(b"\xff\xd9")


def test_frames_are_taken_one_at_a_time(tmp_path: Path) -> None:
    largest = 0

    def given() -> Iterator[np.ndarray]:
        nonlocal largest
        for number in range(3):
            yield smooth(number)
            (part,) = tmp_path.glob(".*.part")
            assert part.stat().st_size >= largest
            largest = part.stat().st_size

    write_video(tmp_path / "clip.avi", given(), 25.0)


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_what_ends_the_frames_leaves_the_old_file(tmp_path: Path, end: type[BaseException]) -> None:
    def broken() -> Iterator[np.ndarray]:
        yield smooth(0)
        raise end

    (tmp_path / "clip.avi").write_bytes(b"old")
    with pytest.raises(end):
        write_video(tmp_path / "clip.avi", broken(), 25.0)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"clip.avi": b"old"}


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(InputError, match=r"clip\.avi could not be written \(No space left on device\)"):
        write_video(tmp_path / "clip.avi", [smooth(0)], 25.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "frames", "rate", "message"),
    [
        ("clip.txt", [smooth(0)], 25.0, r"does not end in \.avi"),
        ("none/clip.avi", [smooth(0)], 25.0, "none does not exist"),
        ("clip.avi", [smooth(0)], 0.0, "0.0 frames per second"),
        ("clip.avi", [smooth(0)], float("nan"), "nan frames per second"),
        ("clip.avi", [], 25.0, "without frames"),
        ("clip.avi", [smooth(0), smooth(1, 24, 30)], 25.0, "are 32x24 and then 30x24"),
        ("clip.avi", [smooth(0) / 255], 25.0, "float64 of shape"),
        ("clip.avi", [smooth(0)[..., 0]], 25.0, r"shape \(24, 32\)"),
        ("clip.avi", [np.zeros((1, 70_000, 3), np.uint8)], 25.0, "70000x1 cannot be encoded"),
    ],
)
def test_what_cannot_be_written_is_said(tmp_path: Path, name: str, frames: list, rate: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_video(tmp_path / name, frames, rate)
    assert list(tmp_path.iterdir()) == []


def test_chosen_frames_are_read_in_their_order(tmp_path: Path) -> None:
    write_video(tmp_path / "clip.avi", (smooth(number) for number in range(6)), 25.0)
    blue = [round(float(frame[..., 2].mean()) / 20) for frame in read_frames(tmp_path / "clip.avi", [4, 1, 2, 1])]
    assert blue == [1, 2, 4]


def test_a_frame_that_is_not_there_is_refused(tmp_path: Path) -> None:
    write_video(tmp_path / "clip.avi", [smooth(0)], 25.0)
    with pytest.raises(InputError, match=r"clip\.avi has no frame 1"):
        list(read_frames(tmp_path / "clip.avi", [0, 1]))


@pytest.mark.parametrize("damage", ["pixels", "end"])
def test_a_damaged_frame_is_refused_when_it_is_requested(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "clip.avi"
    write_video(path, [smooth(number) for number in range(3)], 25)
    assert len(list(read_frames(path, [0, 1, 2]))) == VideoFile(path).count_frames() == 3
    data = bytearray(path.read_bytes())
    frame = data.index(b"00dc", data.index(b"00dc", data.index(b"movi")) + 4)
    if damage == "pixels":
        size = int.from_bytes(data[frame + 4 : frame + 8], "little")
        data[frame + 8 : frame + 8 + size] = bytes(size)
    else:
        del data[frame:]
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"clip\.avi has no frame 1, or it is damaged"):
        list(read_frames(path, [0, 1, 2]))
    assert VideoFile(path).count_frames() == (2 if damage == "pixels" else 1)
