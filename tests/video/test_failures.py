"""Whatever ends the writing of a video, the old file is whole, and what was written is either there or gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import protoformer
from protoformer.errors import InputError
from protoformer.video.reader import open_video
from protoformer.video.writer import VideoWriter

av = pytest.importorskip("av")

Make = Callable[..., Path]
SUFFIXES = [".mp4", ".mov", ".mkv", ".webm", ".avi", ".gif"]


def noise(number: int, height: int = 48, width: int = 64) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python of its own, with this package."""
    paths = [str(Path(protoformer.__file__).parents[1]), *sys.path]
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("end", [ZeroDivisionError, SystemExit, InputError, OSError])
def test_an_exception_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, suffix: str, end: type[BaseException]
) -> None:
    path = tmp_path / f"clip{suffix}"
    path.write_bytes(b"old")
    with pytest.raises((end, InputError)), VideoWriter(path, fps=25) as writer:
        for number in range(10):
            writer.write(noise(number))
        raise end
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_ctrl_c_leaves_what_was_written_as_a_video_of_its_own(tmp_path: Path, make_video: Make, suffix: str) -> None:
    like = open_video(make_video(tmp_path / "old.mkv", [noise(0)] * 50, sound="aac"))
    path = tmp_path / f"clip{suffix}"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), VideoWriter(path, like) as writer:
        for number in range(20):
            writer.write(noise(number))
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert {each.name for each in tmp_path.iterdir()} == {path.name, f"clip.partial{suffix}", "old.mkv"}
    partial = open_video(tmp_path / f"clip.partial{suffix}")
    assert (len(list(partial.frames())), partial.truncated) == (20, False)
    assert partial.info.has_audio == (suffix != ".gif")


def test_ctrl_c_before_the_first_frame_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), VideoWriter(tmp_path / "clip.mp4", fps=25):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_the_file_is_finished_leaves_it_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from protoformer.video.encoding import VideoEncoder

    finish = VideoEncoder.finish
    monkeypatch.setattr(VideoEncoder, "finish", lambda self: (finish(self), signal.raise_signal(signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt), VideoWriter(tmp_path / "clip.mp4", fps=25) as writer:
        for number in range(5):
            writer.write(noise(number))
    assert [each.name for each in tmp_path.iterdir()] == ["clip.partial.mp4"]
    assert len(list(open_video(tmp_path / "clip.partial.mp4").frames())) == 5


def test_a_real_ctrl_c_ends_a_program_and_keeps_its_frames(tmp_path: Path) -> None:
    program = """
import sys
import numpy as np
from protoformer.video.writer import VideoWriter
random = np.random.default_rng(0)
with VideoWriter(sys.argv[1], fps=25) as writer:
    while True:
        writer.write(random.integers(0, 256, (48, 64, 3), dtype=np.uint8))
        if writer.frames == 100:
            print("on the way", flush=True)
"""
    (tmp_path / "clip.mp4").write_bytes(b"old")
    with started(program, str(tmp_path / "clip.mp4")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on the way\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert said.strip().endswith("KeyboardInterrupt")
    assert (tmp_path / "clip.mp4").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mp4", "clip.partial.mp4"]
    assert len(list(open_video(tmp_path / "clip.partial.mp4").frames())) >= 100


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi", ".gif"])
def test_a_disk_that_fills_up_is_one_sentence(tmp_path: Path, suffix: str) -> None:
    program = """
import resource
import sys
import numpy as np
from protoformer.errors import InputError
from protoformer.video.writer import VideoWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
random = np.random.default_rng(0)
try:
    with VideoWriter(sys.argv[1], fps=25) as writer:
        for _ in range(400):
            writer.write(random.integers(0, 256, (48, 64, 3), dtype=np.uint8))
except InputError as error:
    print(error)
"""
    pytest.importorskip("resource")
    path = tmp_path / f"clip{suffix}"
    path.write_bytes(b"old")
    with started(program, str(path)) as process:
        said, noise_of_it = process.communicate(timeout=60)
    assert said.startswith(f"{path} could not be written (File too large), so nothing was changed; check the disk")
    assert noise_of_it == ""
    assert process.returncode == 0
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.usefixtures("full_disk")
def test_a_disk_that_is_full_at_the_end_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"old")
    with (
        pytest.raises(InputError, match=r"clip\.mp4 could not be written \(No space left on device\)"),
        VideoWriter(tmp_path / "clip.mp4", fps=25) as writer,
    ):
        writer.write(noise(0))
    assert (tmp_path / "clip.mp4").read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["clip.mp4"]


def test_a_written_file_has_the_usual_permissions_and_a_replaced_one_its_own(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        with VideoWriter(path, fps=25) as writer:
            writer.write(noise(0))

    old = os.umask(0o027)
    try:
        write(tmp_path / "new.mp4")
    finally:
        os.umask(old)
    assert (tmp_path / "new.mp4").stat().st_mode & 0o777 == 0o640
    (tmp_path / "new.mp4").chmod(0o600)
    (tmp_path / "link.mp4").symlink_to("new.mp4")
    write(tmp_path / "link.mp4")
    assert (tmp_path / "new.mp4").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "link.mp4").is_symlink()


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(steps: Iterator[object]) -> int:
    """Bytes by which memory grows after the first 500 steps."""
    for _ in range(500):
        next(steps)
    before = resident()
    assert sum(1 for _ in steps) >= 2000
    return resident() - before


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell how much memory there is")
def test_memory_does_not_grow_with_length(tmp_path: Path, make_video: Make) -> None:
    """2000 frames of 64x64 are 25 MB."""
    like = open_video(
        make_video(tmp_path / "like.mkv", [noise(n % 3, 64, 64) for n in range(2500)], "mpeg4", sound="aac")
    )

    def written() -> Iterator[None]:
        with VideoWriter(tmp_path / "long.mp4", like, quality="small") as writer:
            for frame in like.frames():
                writer.write(frame.image, frame.time)
                yield

    assert growth(written()) < 8e6
    assert growth(open_video(tmp_path / "long.mp4").frames()) < 8e6
