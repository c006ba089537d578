"""Live sources: cameras, addresses and pipes are read once, by a thread that keeps the newest frames."""

import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.video.live import BUFFERED_FRAMES, LiveVideo, is_live_source
from protoformer.video.reader import open_video

FFMPEG = shutil.which("ffmpeg")
RATE = 30


def numbered(count: int) -> list[np.ndarray]:
    """Frames of 64x48 pixels of one gray, which is 4 times the number of the frame."""
    return [np.full((48, 64, 3), 4 * number % 256, np.uint8) for number in range(count)]


def shade(frame: np.ndarray) -> int:
    return round(float(np.asarray(frame).mean()) / 4)


Served = Callable[..., AbstractContextManager[str]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def stream(make_video: Callable[..., Path], tmp_path: Path) -> Path:
    """A transport stream of 30 frames, which declares no length."""
    return make_video(
        tmp_path / "clip.ts", numbered(30), rate=RATE, options={"tune": "zerolatency", "preset": "ultrafast", "g": "5"}
    )


def test_an_address_is_read_as_it_comes(stream: Path, served: Served) -> None:
    with served(stream.read_bytes()) as address:
        video = open_video(f"tcp://{address}", drop=False)
        assert isinstance(video, LiveVideo) and video.live and not video.info.paths
        assert (video.info.size, video.info.num_frames, video.info.duration) == ((48, 64), None, None)
        frames = list(video.frames())
    assert [shade(frame.image) for frame in frames] == [frame.number for frame in frames] == list(range(30))
    assert [frame.time for frame in frames] == [Fraction(number, RATE) for number in range(30)]
    assert (video.dropped, video.timed_out, video.truncated) == (0, False, False)


def test_a_slow_reader_gets_the_newest_frames_at_their_times(stream: Path, served: Served) -> None:
    with served(stream.read_bytes(), pieces=30, pause=1 / RATE) as address:
        video = open_video(f"tcp://{address}")
        assert video.drop
        frames = []
        for frame in video.frames():
            time.sleep(0.2)
            frames.append(frame)
    assert video.dropped > 5 and len(frames) + video.dropped <= 30
    first = shade(frames[0].image)
    assert [shade(frame.image) - first for frame in frames] == [frame.number for frame in frames]
    assert all(frame.time == Fraction(frame.number, RATE) for frame in frames)
    steps = np.diff([frame.number for frame in frames])
    assert steps.max() > 3


def test_the_end_of_a_span_ends_the_reading(stream: Path, served: Served) -> None:
    with served(stream.read_bytes()) as address:
        video = open_video(f"tcp://{address}", drop=False)
        frames = list(video.frames(start=0.2, end=0.5, frame_step=2))
    assert [frame.number for frame in frames] == [6, 8, 10, 12, 14]


def test_a_source_is_read_once(stream: Path, served: Served) -> None:
    with served(stream.read_bytes()) as address:
        video = open_video(f"tcp://{address}")
        assert list(video.frames())
    with pytest.raises(InputError, match=r"^tcp://127.0.0.1:\d+ can be read only once; open it again\.$"):
        video.frames()


def test_it_stops_on_request(stream: Path, served: Served) -> None:
    with served(stream.read_bytes(), pieces=30, pause=0.03) as address:
        video = open_video(f"tcp://{address}")
        frames = video.frames()
        next(frames)
        video.stop()
        assert list(frames) == []


def test_a_source_that_falls_silent_ends_after_the_timeout(stream: Path, served: Served) -> None:
    with served(stream.read_bytes(), pause=1.5) as address:
        video = open_video(f"tcp://{address}", drop=False, timeout=0.5)
        start = time.monotonic()
        assert len(list(video.frames())) >= 25
        assert video.timed_out and time.monotonic() - start < 1.4


@pytest.mark.parametrize("head", [b"", b"no video " * 200])
def test_a_source_without_video_is_an_error_in_time(head: bytes, served: Served) -> None:
    with served(b"", head=head, pause=0.5) as address:
        start = time.monotonic()
        with pytest.raises(InputError, match=rf"^tcp://{address} .*[.]$"):
            open_video(f"tcp://{address}", timeout=1)
        assert time.monotonic() - start < 3


def test_nobody_who_answers_is_an_error() -> None:
    with pytest.raises(InputError, match=r"cannot be opened .*; check the address, and that it sends video"):
        open_video(f"tcp://127.0.0.1:{free_port()}", timeout=2)
    with pytest.raises(InputError, match=r"udp://127.0.0.1:\d+ (did not answer|sent no frame) within 0.3 seconds"):
        open_video(f"udp://127.0.0.1:{free_port()}", timeout=0.3)


@pytest.mark.parametrize("password", ["secret", "secret@secret"])
def test_a_password_is_not_repeated(password: str) -> None:
    with pytest.raises(InputError) as refused:
        open_video(f"http://user:{password}@127.0.0.1:{free_port()}/clip.ts", timeout=2)
    assert "secret" not in str(refused.value) and "http://127.0.0.1" in str(refused.value)


class Handler(BaseHTTPRequestHandler):
    """Serves the files of a dict by their paths."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        data = self.files.get(self.path)
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(data or b"")

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def web() -> Iterator[str]:
    Handler.files, Handler.asked = {}, []
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_file_that_is_served_declares_its_length_and_loses_nothing(
    web: str, make_video: Callable[..., Path], tmp_path: Path
) -> None:
    clip = make_video(tmp_path / "clip.mkv", numbered(30), rate=RATE)
    Handler.files["/clip.mkv"] = clip.read_bytes()
    video = open_video(f"{web}/clip.mkv")
    assert not video.drop and video.info.duration == 1
    frames = []
    for frame in video.frames():
        time.sleep(0.01)
        frames.append(frame.number)
    assert frames == list(range(30))


def test_playlists_at_an_address_are_not_followed(web: str, stream: Path) -> None:
    Handler.files |= {"/clip.ts": stream.read_bytes()}
    Handler.files["/list.m3u8"] = b"#EXTM3U\n#EXTINF:1,\nclip.ts\n#EXT-X-ENDLIST\n"
    Handler.files["/list.txt"] = f"ffconcat version 1.0\nfile '{stream}'\nfile {web}/clip.ts\n".encode()
    for name in ("list.m3u8", "list.txt"):
        with pytest.raises(InputError, match="cannot be opened"):
            open_video(f"{web}/{name}", timeout=2)
    assert set(Handler.asked) <= {"/list.m3u8", "/list.txt"}


def test_only_a_text_without_a_file_of_that_name_is_an_address(
    web: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_video: Callable[..., Path]
) -> None:
    with pytest.raises(InputError, match="does not exist"):
        open_video(Path(f"{web}/clip.ts"))
    assert Handler.asked == []
    with pytest.raises(InputError, match=r"ftp://.*/a is not an address of a known kind; give one of rtsp, http"):
        open_video("ftp://127.0.0.1/a")
    monkeypatch.chdir(tmp_path)
    clip = make_video(tmp_path / "clip.mp4", numbered(3))
    for name in ("0", "-", "pipe:"):
        (tmp_path / name).write_bytes(clip.read_bytes())
        assert not is_live_source(name) and not open_video(name).live
        (tmp_path / name).unlink()
        assert is_live_source(name)
    assert is_live_source(3) and is_live_source("rtsp://camera/1") and not is_live_source(True)
    assert not is_live_source("clip.mp4") and not is_live_source("4x4") and not is_live_source(None)


def test_a_camera_that_is_not_there_is_an_error() -> None:
    for index in (97, "97"):
        with pytest.raises(
            InputError, match=r"^there is no camera 97; connect it, or give the number of another one.$"
        ):
            open_video(index)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_timeout_is_a_number_of_seconds(timeout: float) -> None:
    with pytest.raises(InputError, match="a timeout of"):
        open_video(0, timeout=timeout)


def test_a_capture_of_a_file_is_read_completely(make_video: Callable[..., Path], tmp_path: Path) -> None:
    capture = cv2.VideoCapture(str(make_video(tmp_path / "clip.mp4", numbered(20), rate=10)))
    video = open_video(capture)
    assert not video.drop and video.info.size == (48, 64)
    frames = []
    for frame in video.frames():
        time.sleep(0.01)
        frames.append(frame)
    assert [shade(frame.image) for frame in frames] == list(range(20))
    assert [frame.time for frame in frames] == [Fraction(number, 10) for number in range(20)]
    assert capture.isOpened()  # it is the caller's


class Camera:
    """A camera without a length, whose frames are numbered by their blue channel and come at 50 a second."""

    def __init__(self) -> None:
        self.count, self.released = 0, False

    def get(self, _: int) -> float:
        return -1.0

    def release(self) -> None:
        self.released = True

    def read(self) -> tuple[bool, np.ndarray]:
        time.sleep(0.02)
        self.count += 1
        image = np.zeros((24, 32, 3), np.uint8)
        image[..., 0] = self.count
        return self.count < 200, image


def test_a_camera_has_the_times_of_its_frames_and_few_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    camera = Camera()
    monkeypatch.setattr("protoformer.video.live._open_camera", lambda _: camera)
    frames, ages = [], []
    for frame in open_video(0).frames(end=1.0):
        ages.append(camera.count - int(frame.image[0, 0, 2]))  # blue is the last channel of RGB
        time.sleep(0.1)
        frames.append(frame)
    assert frames[0].time == 0 and frames[0].number == 0
    assert 5 <= len(frames) <= 11 and max(ages) <= BUFFERED_FRAMES + 1
    assert all(float(frame.time) >= 0.019 * frame.number for frame in frames)


def test_standard_input_is_a_source(stream: Path) -> None:
    code = (
        "import protoformer as pf\n"
        "frames = list(pf.open_video('-', drop=False).frames())\n"
        "print(len(frames), frames[-1].time)"
    )
    with stream.open("rb") as file:
        printed = subprocess.check_output([sys.executable, "-c", code], stdin=file, text=True, timeout=60)
    assert printed.split() == ["30", "29/30"]


@pytest.mark.skipif(FFMPEG is None, reason="ffmpeg, which serves the stream, is not installed")
def test_a_stream_of_ffmpeg_is_read_within_bounded_latency() -> None:
    address = f"udp://127.0.0.1:{free_port()}"
    command = (
        f"{FFMPEG} -loglevel error -re -f lavfi -i testsrc=size=64x48:rate=30 -t 4 -c:v libx264 -preset ultrafast "
        f"-tune zerolatency -g 10 -f mpegts {address}?pkt_size=1316"
    )
    with subprocess.Popen(command.split()) as sender:
        video = open_video(address, timeout=5)
        delays, start = [], None
        for frame in video.frames(end=1.0):
            start = time.monotonic() - float(frame.time) if start is None else start
            delays.append(time.monotonic() - start - float(frame.time))
            time.sleep(0.12)
        sender.terminate()
    assert video.dropped > 10 and max(delays) < 0.4
