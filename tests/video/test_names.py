"""A name is a name: an existing file is that file, whatever its name means to a program, and opens no other."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from protoformer.batch.ledger import list_jobs
from protoformer.cli.clips import is_clip
from protoformer.errors import InputError
from protoformer.io.image import write_image
from protoformer.video.reader import open_video, read_frames
from protoformer.video.writer import VideoWriter, write_video

av = pytest.importorskip("av")

Make = Callable[..., Path]
PROTOCOLS = ["pipe:0", "pipe:", "concat:a.mp4|b.mp4", "http:", "subfile,,start,0,end,9,,:x", "-i", "file:x", "data:,x"]


def gray(value: int, size: tuple[int, int] = (32, 48)) -> np.ndarray:
    return np.full((*size, 3), value, np.uint8)


def levels(path: Path | str) -> list[int]:
    """The mean of every frame, to the nearest ten."""
    return [round(float(frame.image.mean()), -1) for frame in open_video(path).frames()]


def write_clip(path: Path | str, *values: int) -> None:
    with VideoWriter(path, fps=25) as writer:
        for value in values:
            writer.write(gray(value))


@pytest.mark.parametrize(
    "name", ["a%d.gif", "a%d.mp4", "a%02d.gif", "a%*.gif", "a*.gif", "a[1].gif", "a?.gif", "%.gif"]
)
def test_a_video_whose_name_is_a_pattern_is_that_file(tmp_path: Path, name: str) -> None:
    for number in range(3):
        write_clip(tmp_path / f"a{number}{Path(name).suffix}", 200)
        write_clip(tmp_path / f"a{number:02}{Path(name).suffix}", 200)
    write_clip(tmp_path / name, 10, 60, 110)
    assert levels(tmp_path / name) == [10, 60, 110]


@pytest.mark.parametrize("name", ["a%d.png", "a%d.jpg", "a*.png", "a[1].png"])
def test_an_image_whose_name_is_a_pattern_is_that_file(tmp_path: Path, name: str) -> None:
    for number in range(3):
        write_image(tmp_path / f"a{number}{Path(name).suffix}", gray(200))
    write_image(tmp_path / name, gray(50))
    assert levels(tmp_path / name) == [50]


def test_an_animated_png_whose_name_is_a_pattern_is_that_file(tmp_path: Path, make_video: Make) -> None:
    for number in range(3):
        write_image(tmp_path / f"a{number}.png", gray(200))
    moving = make_video(tmp_path / "moving.apng", [gray(10), gray(60)], "apng", "rgb24", container={"plays": "1"})
    shutil.move(moving, tmp_path / "a%d.png")
    assert levels(tmp_path / "a%d.png") == [10, 60]


@pytest.mark.parametrize("folder", ["a%d", "a*", "a[1]", "a?", "**", *PROTOCOLS])
def test_a_folder_of_any_name_is_that_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("a1", 200), ("a0", 200), (folder, 50)):
        Path(name).mkdir()
        write_image(Path(name) / "x1.png", gray(value))
        write_image(Path(name) / "x2.png", gray(value))
    write_clip(Path(folder) / "clip.gif", 10, 60)
    write_clip(Path(folder) / "clip.mp4", 10, 60)
    assert levels(Path(folder) / "clip.gif") == levels(Path(folder) / "clip.mp4") == [10, 60]
    assert levels(f"{folder}/x*.png") == [50, 50]
    assert levels(f"{folder}/*1.png") == [50]
    (Path(folder) / "clip.gif").unlink()
    (Path(folder) / "clip.mp4").unlink()
    assert levels(folder) == [50, 50]
    videos = list_jobs([f"{folder}/x*.png"], Path("out"), (".mp4",), {})
    assert [job.video.parent.name for job in videos] == [Path(folder).name] * 2


@pytest.mark.parametrize("name", PROTOCOLS)
def test_names_like_addresses_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_clip(f"{name}.mp4", 10, 60)
    assert levels(f"{name}.mp4") == [10, 60]
    Path(f"{name}.mp4").rename(name)
    assert levels(name) == [10, 60]
    write_video(f"{name}.avi", [gray(20), gray(70)], 25)
    assert [round(float(frame.mean()), -1) for frame in read_frames(f"{name}.avi", [0, 1])] == [20, 70]


PLAYLISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{name}\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile '{name}'\n",
}


@pytest.mark.parametrize("suffix", [".m3u8", ".ffconcat", ".mp4", ".ts"])
@pytest.mark.parametrize("kind", PLAYLISTS)
def test_a_playlist_opens_no_other_file(tmp_path: Path, make_video: Make, kind: str, suffix: str) -> None:
    make_video(tmp_path / "other.ts", [gray(60)] * 50, "mpeg2video")
    assert levels(tmp_path / "other.ts") == [60] * 50
    path = tmp_path / f"list{suffix}"
    path.write_text(PLAYLISTS[kind].format(name="other.ts"))
    with pytest.raises(InputError, match=r"list.* is a playlist.* give the video itself"):
        open_video(path)


@pytest.mark.parametrize("name", ["x" * 300 + ".mp4", "x" * 300 + "*.mp4", "a\0b.mp4"])
def test_a_name_that_no_file_can_have_is_refused_in_words(name: str) -> None:
    with pytest.raises(InputError):
        open_video(name)
    if "*" not in name:  # a pattern is a clip, of images
        with pytest.raises(InputError):
            is_clip(name)
