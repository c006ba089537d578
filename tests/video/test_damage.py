"""What is broken is one clear sentence, or left out and counted; what is cut short gives its whole frames."""

import socket
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.video.reader import open_video

av = pytest.importorskip("av")

Make = Callable[..., Path]


def noise(number: int) -> np.ndarray:
    """Pictures that no codec makes small, so that every packet has its share of the file."""
    return np.random.default_rng(number // 3).integers(0, 256, (48, 64, 3), dtype=np.uint8)


@pytest.fixture
def clips(tmp_path: Path, make_video: Make) -> Callable[[str, str], Path]:
    """A clip of 50 frames, its index in front."""

    def make(name: str, codec: str) -> Path:
        pixels = {"mjpeg": "yuvj420p", "gif": "rgb8"}.get(codec, "yuv420p")
        front = {"movflags": "faststart"} if name.endswith((".mp4", ".mov")) else {}
        return make_video(tmp_path / name, [noise(n) for n in range(50)], codec, pixels, container=front)

    return make


KINDS = [
    ("clip.mp4", "libx264"),
    ("clip.mp4", "mpeg4"),
    ("clip.mov", "mjpeg"),
    ("clip.mkv", "libx264"),
    ("clip.webm", "libvpx-vp9"),
    ("clip.avi", "mpeg4"),
    ("clip.gif", "gif"),
]


@pytest.mark.parametrize(("name", "codec"), KINDS)
def test_a_clip_that_is_cut_short_gives_its_whole_frames(
    clips: Callable[[str, str], Path], name: str, codec: str
) -> None:
    path = clips(name, codec)
    video = open_video(path)
    whole = list(video.frames())
    assert (len(whole), video.truncated, video.skipped) == (50, False, 0)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.6)])
    video = open_video(path)
    rest = list(video.frames())
    assert 10 <= len(rest) < 35
    assert video.truncated
    # The last one of a gif may be truncated as well: its format tells nobody.
    sure = len(rest) - (name == "clip.gif")
    assert all(np.array_equal(one.image, other.image) for one, other in zip(rest[:sure], whole[:sure], strict=True))
    assert [frame.time for frame in rest] == [frame.time for frame in whole[: len(rest)]]
    list(video.frames(end=0.2))
    assert not video.truncated  # the end was not reached


def test_a_sound_that_goes_on_does_not_tear_a_clip(tmp_path: Path, make_video: Make) -> None:
    pictures, quick = [noise(n) for n in range(25)], Fraction(1, 25)
    video = open_video(make_video(tmp_path / "clip.mkv", pictures, sound="aac", rate=5, tick=quick))
    assert (len(list(video.frames())), video.truncated) == (25, False)
    assert video.info.duration == pytest.approx(5, abs=0.03)
    late = [2500 + 40 * number for number in range(25)]
    path = make_video(tmp_path / "late.mkv", [noise(n) for n in range(25)], times=late, tick=Fraction(1, 1000))
    video = open_video(path)
    assert (len(list(video.frames())), video.truncated) == (25, False)


@pytest.mark.parametrize(("name", "codec"), [("clip.mp4", "libx264"), ("clip.mp4", "mpeg4"), ("clip.mov", "mjpeg")])
def test_damage_in_the_middle_is_left_out_and_counted(clips: Callable[[str, str], Path], name: str, codec: str) -> None:
    path = clips(name, codec)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 3000] = bytes(3000)
    path.write_bytes(data)
    video = open_video(path)
    frames = list(video.frames())
    assert video.skipped >= 2
    assert len(frames) + video.skipped == 50
    assert not video.truncated
    assert (frames[-1].number, frames[-1].time) == (49, Fraction(49, 25))
    assert all(one.time < other.time and one.number < other.number for one, other in pairwise(frames))


def test_a_frame_that_the_decoder_made_up_is_left_out(clips: Callable[[str, str], Path]) -> None:
    path = clips("clip.mp4", "libx264")
    data = bytearray(path.read_bytes())
    random = np.random.default_rng(0).integers(0, 256, 600, dtype=np.uint8)
    data[len(data) // 2 : len(data) // 2 + 600] = random.tobytes()
    path.write_bytes(data)
    video = open_video(path)
    assert len(list(video.frames())) + video.skipped == 50
    assert video.skipped >= 1


def test_a_clip_without_its_last_bytes_is_torn(clips: Callable[[str, str], Path]) -> None:
    path = clips("clip.mov", "mjpeg")
    path.write_bytes(path.read_bytes()[:-50])
    video = open_video(path)
    assert (len(list(video.frames())), video.skipped, video.truncated) == (49, 1, True)


def test_a_stream_that_changes_its_size_gives_its_frames_until_then(tmp_path: Path, make_video: Make) -> None:
    small = make_video(tmp_path / "small.ts", [noise(n) for n in range(10)]).read_bytes()
    large = make_video(tmp_path / "large.ts", [np.zeros((96, 128, 3), np.uint8)] * 10).read_bytes()
    (tmp_path / "clip.ts").write_bytes(small + large)
    frames = open_video(tmp_path / "clip.ts").frames()
    numbers = []
    with pytest.raises(InputError, match=r"clip\.ts changes at frame 10 from 64x48 to 128x96 pixels; .*\.$"):
        numbers.extend(frame.number for frame in frames)
    frames = open_video(tmp_path / "clip.ts").frames(end=0.4)
    assert [frame.number for frame in frames] == list(range(10))


def test_a_file_that_is_no_video_is_one_sentence(tmp_path: Path, make_video: Make) -> None:
    whole = make_video(tmp_path / "whole.mp4", [noise(n) for n in range(10)]).read_bytes()
    random = np.random.default_rng(0).integers(0, 256, 60000, dtype=np.uint8).tobytes()
    for name, data, said in [
        ("empty.mp4", b"", "is an empty file"),
        ("text.mp4", b"hello world\n" * 100, "not a video of a known kind"),
        ("text.txt", b"hello world\n" * 100, "not a video of a known kind"),
        ("page.html", b"<html><body>not found</body></html>", "not a video of a known kind"),
        ("noise.mp4", random, "not a video of a known kind"),
        ("noise", random, "not a video of a known kind"),
        ("cut.mp4", whole[: len(whole) * 3 // 4], "cut short, without its index"),
        ("head.mkv", b"\x1aE\xdf\xa3", "not a video of a known kind"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=rf"{name} .*{said}.*; .*\.$"):
            open_video(tmp_path / name)
    with pytest.raises(InputError, match=r"missing\.mp4 does not exist"):
        open_video(tmp_path / "missing.mp4")


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "song.wav"), "w") as target:
        stream = target.add_stream("pcm_s16le", rate=48000, layout="mono")
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 4800), np.int16), format="s16", layout="mono")
        silence.sample_rate = 48000
        target.mux(stream.encode(silence))
    with pytest.raises(InputError, match=r"holds sound but no video; give a file with a video stream\.$"):
        open_video(tmp_path / "song.wav")


def test_a_video_without_a_single_good_frame_is_refused(tmp_path: Path, make_video: Make) -> None:
    path = make_video(tmp_path / "clip.mp4", [noise(n) for n in range(3)], container={"movflags": "faststart"})
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 4
    data[start:] = bytes(len(data) - start)
    path.write_bytes(data)
    with pytest.raises(InputError, match="no frame that can be decoded"):
        open_video(path)


def test_a_playlist_opens_no_address(tmp_path: Path) -> None:
    """A file may name others; those on the net are not asked for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/a.ts"
        (tmp_path / "list.m3u8").write_text(
            f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{address}\n#EXT-X-ENDLIST\n"
        )
        with pytest.raises(InputError, match=r"is a playlist"):
            open_video(tmp_path / "list.m3u8")
        with pytest.raises(TimeoutError):
            server.accept()


def test_an_animated_webp_is_refused_and_a_still_one_read(tmp_path: Path, make_video: Make) -> None:
    pytest.importorskip("PIL.WebPImagePlugin")
    from PIL import Image

    pictures = [Image.fromarray(noise(number)) for number in (0, 3)]
    pictures[0].save(tmp_path / "moving.webp", save_all=True, append_images=pictures[1:])
    with pytest.raises(InputError, match="animated webp"):
        open_video(tmp_path / "moving.webp")
    pictures[0].save(tmp_path / "still.webp", lossless=True)
    (frame,) = open_video(tmp_path / "still.webp").frames()
    assert np.array_equal(frame.image, noise(0))
