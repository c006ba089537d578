"""A video gives every frame upright, once, at its exact time, whatever it is stored in."""

import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.video.decoding import SeekPoint
from protoformer.video.reader import DEMO_CLIPS, demo_clip, open_video
from protoformer.video.types import Video
from protoformer.video.writer import write_video

av = pytest.importorskip("av")

Make = Callable[..., Path]


def smooth(number: int, height: int = 32, width: int = 48) -> np.ndarray:
    """Red grows to the right and green downwards; blue is the frame's number, times 20."""
    y, x = np.mgrid[:height, :width]
    return np.stack((x * 200 // width, y * 200 // height, np.full_like(x, 20 * (number % 12))), axis=-1).astype(
        np.uint8
    )


def quarters(height: int = 32, width: int = 48) -> np.ndarray:
    """Red, green / blue, white: no turn or mirroring looks like another."""
    image = np.zeros((height, width, 3), np.uint8)
    image[: height // 2, : width // 2, 0] = 255
    image[: height // 2, width // 2 :, 1] = 255
    image[height // 2 :, : width // 2, 2] = 255
    image[height // 2 :, width // 2 :] = 255
    return image


def off(found: np.ndarray, given: np.ndarray) -> int:
    return int(np.abs(found.astype(int) - given).max())


def times(video: Video) -> list[Fraction]:
    return [frame.time for frame in video.frames()]


@pytest.mark.parametrize(
    ("name", "codec", "pixels", "worst"),
    [
        ("clip.mp4", "libx264", "yuv420p", 3),
        ("clip.mkv", "libx264", "yuv420p10le", 3),
        ("clip.mp4", "mpeg4", "yuv420p", 3),
        ("clip.avi", "mpeg4", "yuv420p", 3),
        ("clip.avi", "mjpeg", "yuvj444p", 3),
        ("clip.webm", "libvpx-vp9", "yuv420p", 3),
        ("clip.webm", "libvpx", "yuv420p", 3),
        ("clip.mkv", "ffv1", "yuv444p", 0.5),
        ("clip.mkv", "ffv1", "bgr0", 0),
        ("clip.mov", "prores_ks", "yuv422p10le", 1),
        ("clip.mov", "qtrle", "rgb24", 0),
        ("clip.ts", "mpeg2video", "yuv420p", 3),
        ("clip.gif", "gif", "rgb8", 22),
        ("clip.apng", "apng", "rgb24", 0),
    ],
)
def test_every_frame_comes_in_its_place(
    tmp_path: Path, make_video: Make, name: str, codec: str, pixels: str, worst: float
) -> None:
    given = [smooth(number) for number in range(12)]
    if codec not in av.codecs_available:
        pytest.skip(f"this ffmpeg has no {codec}")
    fine = {"flags": "+qscale", "global_quality": "236"} if codec in ("mjpeg", "mpeg2video", "mpeg4") else {}
    fine |= {"threads": "1"}  # with several, ProRes comes out differently each time, and worse on busy cores
    frames = list((video := open_video(make_video(tmp_path / name, given, codec, pixels, options=fine))).frames())
    assert [frame.number for frame in frames] == list(range(12))
    assert [frame.time for frame in frames] == [Fraction(number, 25) for number in range(12)]
    assert all(frame.image.shape == (32, 48, 3) and frame.image.dtype == np.uint8 for frame in frames)
    assert all(frame.image.flags.c_contiguous and frame.image.flags.writeable for frame in frames)
    # Two frames in a row differ by 20 in blue, which is over 6 on average.
    assert max(np.abs(one.image.astype(int) - image).mean() for one, image in zip(frames, given, strict=True)) <= worst
    assert (video.info.size, video.info.fps, video.skipped, video.truncated) == ((32, 48), 25, 0, False)


def test_the_head_says_what_is_known(tmp_path: Path, make_video: Make) -> None:
    path = make_video(tmp_path / "clip.mp4", [smooth(number) for number in range(50)], sound="aac")
    info = open_video(path).info
    assert (info.paths, info.codec, info.has_audio) == ((path,), "h264", True)
    assert (info.num_frames, info.duration, info.fps, info.start) == (50, 2, 25, 0)
    silent = open_video(make_video(tmp_path / "clip.mkv", [smooth(number) for number in range(50)]))
    assert (silent.info.num_frames, silent.info.duration, silent.info.has_audio) == (None, 2, False)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_a_variable_rate_keeps_its_times(tmp_path: Path, make_video: Make, suffix: str) -> None:
    given = [0, 40, 41, 333, 500, 1999, 2000]
    path = make_video(tmp_path / f"clip{suffix}", [smooth(n) for n in range(7)], times=given, tick=Fraction(1, 1000))
    assert times(open_video(path)) == [Fraction(time, 1000) for time in given]


def test_a_rate_of_thousandths_is_exact(tmp_path: Path, make_video: Make) -> None:
    path = make_video(tmp_path / "clip.mp4", [smooth(n) for n in range(5)], tick=Fraction(1001, 30000), rate=30)
    assert times(open_video(path)) == [Fraction(1001 * n, 30000) for n in range(5)]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
def test_times_count_from_the_first_frame(tmp_path: Path, make_video: Make, suffix: str) -> None:
    late = [500 + 40 * number for number in range(5)]
    path = make_video(
        tmp_path / f"clip{suffix}", [smooth(n) for n in range(5)], times=late, tick=Fraction(1, 1000), sound="aac"
    )
    video = open_video(path)
    assert times(video) == [Fraction(number, 25) for number in range(5)]
    with av.open(str(path)) as container:
        assert float(video.info.start) == next(container.decode(video=0)).time
    assert video.info.start >= Fraction(1, 2)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("mirrored", [(False, False), (True, False), (False, True)])
def test_turned_and_mirrored_pictures_are_upright(
    tmp_path: Path, make_video: Make, degrees: int, mirrored: tuple[bool, bool]
) -> None:
    path = make_video(tmp_path / "clip.mp4", [quarters()] * 2, options={"crf": "5"}, turn=(degrees, *mirrored))
    upright = np.rot90(quarters(), degrees // 90)
    upright = upright[:: -1 if mirrored[1] else 1, :: -1 if mirrored[0] else 1]
    video = open_video(path)
    image = next(video.frames()).image
    assert video.info.size == image.shape[:2] == upright.shape[:2]
    centers = (
        slice(upright.shape[0] // 4, None, upright.shape[0] // 2),
        slice(upright.shape[1] // 4, None, upright.shape[1] // 2),
    )
    assert off(image[centers], upright[centers]) < 10


@pytest.mark.parametrize(
    ("aspect", "size"),
    [
        ((4, 3), (32, 64)),
        ((1, 2), (64, 48)),
        ((1, 1), (32, 48)),
        ((100, 99), (32, 48)),  # 1 % off: square, but for rounding
        ((99, 100), (32, 48)),
        ((16, 15), (32, 51)),
    ],
)
def test_pixels_become_square_and_none_is_lost(
    tmp_path: Path, make_video: Make, aspect: tuple[int, int], size: tuple[int, int]
) -> None:
    path = make_video(
        tmp_path / "clip.mp4", [quarters()] * 2, options={"crf": "5"}, sample_aspect_ratio=Fraction(*aspect)
    )
    video = open_video(path)
    image = next(video.frames()).image
    assert video.info.size == image.shape[:2] == size
    expected = quarters(*size)
    edge = np.ones(size, bool)
    edge[size[0] // 2 - 4 : size[0] // 2 + 4] = edge[:, size[1] // 2 - 4 : size[1] // 2 + 4] = False
    assert off(image[edge], expected[edge]) < 16


def test_a_stretched_and_turned_picture_is_as_it_is_shown(tmp_path: Path, make_video: Make) -> None:
    path = make_video(
        tmp_path / "clip.mp4", [quarters()] * 2, options={"crf": "5"}, sample_aspect_ratio=Fraction(2), turn=(90,)
    )
    video = open_video(path)
    assert video.info.size == (96, 32)
    assert (
        off(
            next(video.frames()).image[[4, 4, -4, -4], [4, -4, 4, -4]],
            np.rot90(quarters(32, 96))[[4, 4, -4, -4], [4, -4, 4, -4]],
        )
        < 10
    )


@pytest.mark.parametrize("size", [(33, 47), (2, 2), (1, 1)])
def test_odd_sizes_are_kept(tmp_path: Path, make_video: Make, size: tuple[int, int]) -> None:
    path = make_video(tmp_path / "clip.mkv", [smooth(0, *size)] * 3, "ffv1", "yuv420p")
    video = open_video(path)
    assert [frame.image.shape for frame in video.frames()] == [(*size, 3)] * 3


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("c.mp4", "libx264"),
        ("c.mkv", "libx264"),
        ("c.ts", "libx264"),
        ("c.webm", "libvpx"),
        ("c.avi", "mpeg4"),
        ("c.gif", "gif"),
        ("c.apng", "apng"),
    ],
)
def test_a_part_is_what_the_whole_has_there(tmp_path: Path, make_video: Make, name: str, codec: str) -> None:
    pixels = {"gif": "rgb8", "apng": "rgb24"}.get(codec, "yuv420p")
    options = {"libx264": {"bf": "2"}, "libvpx": {"auto-alt-ref": "1", "lag-in-frames": "16"}}.get(codec, {})
    path = make_video(
        tmp_path / name, [smooth(number) for number in range(60)], codec, pixels, options={"g": "10", **options}
    )
    video = open_video(path)
    whole = list(video.frames())
    for start, end in [(0, 0.5), (0.4, 0.8), (0.79, 1.21), (1.52, 1.6), (2.0, None), (Fraction(33, 25), 1.4)]:
        expected = [frame for frame in whole if float(start) <= float(frame.time) < (end or 99)]
        part = list(video.frames(start, end))
        assert [(frame.number, frame.time) for frame in part] == [(frame.number, frame.time) for frame in expected]
        assert all(np.array_equal(one.image, other.image) for one, other in zip(part, expected, strict=True))
    assert list(video.frames(99)) == []


def test_a_later_part_is_found_without_decoding_what_comes_before(
    tmp_path: Path, make_video: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_video(tmp_path / "clip.mp4", [smooth(number) for number in range(100)], options={"g": "10"})
    video = open_video(path)
    decoded: list[int] = []
    original = video._timed_frames  # type: ignore[attr-defined]

    def counted(decoding: object, *rest: object) -> object:
        frames = decoding.frames  # type: ignore[attr-defined]
        monkeypatch.setattr(decoding, "frames", lambda: (decoded.append(frame.pts) or frame for frame in frames()))
        return original(decoding, *rest)

    monkeypatch.setattr(video, "_timed_frames", counted)
    assert [frame.number for frame in video.frames(3, 3.1)] == [75, 76, 77]
    assert len(decoded) <= 23  # a group of ten, the one before it, and those that are wanted


@pytest.mark.parametrize(
    "place", [SeekPoint(1024 * 50, 512 * 75, 75), SeekPoint(0, 512 * 75 - 1, 75), SeekPoint(0, 512 * 999, 75)]
)
def test_a_place_that_seeking_does_not_find_is_reached_from_the_beginning(
    tmp_path: Path, make_video: Make, monkeypatch: pytest.MonkeyPatch, place: SeekPoint
) -> None:
    path = make_video(tmp_path / "clip.mp4", [smooth(number) for number in range(100)], options={"g": "10"})
    monkeypatch.setattr("protoformer.video.reader.find_seek_point", lambda *_: place)
    frames = list(open_video(path).frames(3, 3.1))
    assert [(frame.number, frame.time) for frame in frames] == [(n, Fraction(n, 25)) for n in (75, 76, 77)]


def test_one_frame_in_so_many_begins_with_the_first(tmp_path: Path, make_video: Make) -> None:
    video = open_video(make_video(tmp_path / "clip.mp4", [smooth(number) for number in range(20)]))
    assert [frame.number for frame in video.frames(frame_step=7)] == [0, 7, 14]
    assert [frame.number for frame in video.frames(start=0.2, end=0.6, frame_step=4)] == [5, 9, 13]


def test_a_frame_is_found_by_its_own_time(tmp_path: Path, make_video: Make) -> None:
    path = make_video(tmp_path / "clip.mp4", [smooth(n) for n in range(40)], tick=Fraction(1001, 30000), rate=30)
    video = open_video(path)
    for frame in list(video.frames())[1:]:
        assert next(video.frames(start=float(frame.time))).number == frame.number
        assert next(video.frames(start=frame.time)).number == frame.number


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((1, 1), "there are no frames"),
        ((2, 1), "there are no frames"),
        ((-1, 1), "0 or more"),
        ((float("nan"), 1), "0 or more"),
    ],
)
def test_bounds_without_a_span_are_refused_at_once(
    tmp_path: Path, make_video: Make, bounds: tuple[float, float], message: str
) -> None:
    video = open_video(make_video(tmp_path / "clip.mp4", [smooth(0)]))
    with pytest.raises(InputError, match=message):
        video.frames(*bounds)
    with pytest.raises(InputError, match="1 or more"):
        video.frames(frame_step=0)


def test_two_readings_at_once_do_not_disturb_each_other(tmp_path: Path, make_video: Make) -> None:
    video = open_video(make_video(tmp_path / "clip.mp4", [smooth(number) for number in range(10)]))
    numbers = [(one.number, other.number) for one, other in zip(video.frames(), video.frames(start=0.2), strict=False)]
    assert numbers == [(0, 5), (1, 6), (2, 7), (3, 8), (4, 9)]


def test_times_that_begin_again_go_on(tmp_path: Path, make_video: Make) -> None:
    """Two recordings one after the other in a stream, as cameras leave them."""
    part = make_video(tmp_path / "part.ts", [smooth(number) for number in range(10)]).read_bytes()
    (tmp_path / "clip.ts").write_bytes(part + part)
    video = open_video(tmp_path / "clip.ts")
    assert times(video) == [Fraction(number, 25) for number in range(20)]
    assert [frame.number for frame in video.frames(start=0.6)] == [15, 16, 17, 18, 19]


def test_times_that_come_twice_are_set_apart(tmp_path: Path, make_video: Make) -> None:
    make_video(tmp_path / "old.mkv", [smooth(number) for number in range(5)], "ffv1", "yuv444p")
    with av.open(str(tmp_path / "old.mkv")) as source, av.open(str(tmp_path / "clip.mkv"), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet, time in zip(source.demux(video=0), (0, 40, 40, 80, 200), strict=False):
            packet.pts = packet.dts = time
            packet.stream = stream
            target.mux(packet)
    video = open_video(tmp_path / "clip.mkv")
    assert times(video) == [Fraction(time, 1000) for time in (0, 40, 80, 120, 200)]
    assert [frame.number for frame in video.frames(start=0.08)] == [2, 3, 4]


def test_a_recording_that_begins_in_the_middle_begins_with_its_first_whole_frame(
    tmp_path: Path, make_video: Make
) -> None:
    path = make_video(tmp_path / "clip.ts", [smooth(number) for number in range(60)], options={"g": "10", "bf": "2"})
    data = path.read_bytes()
    path.write_bytes(data[len(data) // 3 // 188 * 188 :])
    video = open_video(path)
    whole = list(video.frames())
    assert (whole[0].number, whole[0].time) == (0, 0)
    assert 30 <= len(whole) < 45
    assert [frame.number for frame in video.frames(start=0.4)] == [frame.number for frame in whole[10:]]


def test_a_stream_without_times_has_those_of_its_rate(tmp_path: Path, make_video: Make) -> None:
    path = make_video(tmp_path / "clip.h264", [smooth(number) for number in range(10)], options={"bf": "0"})
    video = open_video(path)
    assert times(video) == [Fraction(number, 25) for number in range(10)]


def test_what_a_list_of_edits_cuts_away_is_not_shown(tmp_path: Path, make_video: Make) -> None:
    path = make_video(
        tmp_path / "clip.mp4",
        [smooth(number) for number in range(20)],
        options={"bf": "0"},
        tick=Fraction(1, 12800),
        times=[512 * number for number in range(20)],
    )
    data = bytearray(path.read_bytes())
    entry = data.index(b"elst") + 12
    assert int.from_bytes(data[entry + 4 : entry + 8], "big") == 0
    data[entry : entry + 4] = (600).to_bytes(4, "big")  # thousandths of a second
    data[entry + 4 : entry + 8] = (5 * 512).to_bytes(4, "big")
    path.write_bytes(data)
    video = open_video(path)
    frames = list(video.frames())
    assert [frame.time for frame in frames] == [Fraction(number, 25) for number in range(15)]
    assert off(frames[0].image, smooth(5)) < 20
    assert video.info.num_frames == 15
    assert [frame.number for frame in video.frames(start=0.4)] == [10, 11, 12, 13, 14]


def test_the_default_stream_is_read(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "clip.mkv"), "w") as target:
        streams = [target.add_stream("ffv1", rate=25) for _ in range(2)]
        for stream, height in zip(streams, (16, 32), strict=True):
            stream.width, stream.height, stream.pix_fmt = 48, height, "yuv444p"
        streams[0].disposition, streams[1].disposition = 0, av.stream.Disposition.default
        for stream, height in zip(streams, (16, 32), strict=True):
            target.mux(stream.encode(av.VideoFrame.from_ndarray(smooth(1, height))))
            target.mux(stream.encode(None))
    assert open_video(tmp_path / "clip.mkv").info.size == (32, 48)


def with_cover(path: Path, video: bool) -> Path:
    """A file with sound, a picture on its cover, and maybe a video."""
    with av.open(str(path), "w") as target:
        cover, sound = target.add_stream("mjpeg", rate=1), target.add_stream("aac", rate=48000, layout="mono")
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        film = target.add_stream("libx264", rate=25) if video else None
        if film:
            film.width, film.height, film.pix_fmt = 48, 32, "yuv420p"
        target.mux(cover.encode(av.VideoFrame.from_ndarray(smooth(0, 64, 64))))
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 4800), np.int16), format="s16", layout="mono")
        silence.sample_rate = 48000
        target.mux(sound.encode(silence))
        if film:
            for number in range(3):
                target.mux(film.encode(av.VideoFrame.from_ndarray(smooth(number))))
        for stream in filter(None, (cover, sound, film)):
            target.mux(stream.encode(None))
    return path


def test_a_cover_is_not_a_video(tmp_path: Path) -> None:
    video = open_video(with_cover(tmp_path / "film.mp4", video=True))
    assert (video.info.size, len(list(video.frames()))) == ((32, 48), 3)
    with pytest.raises(InputError, match="sound but no video"):
        open_video(with_cover(tmp_path / "song.mp4", video=False))


def test_names_that_look_like_addresses_are_files(
    tmp_path: Path, make_video: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_video(tmp_path / "clip.mp4", [smooth(0)] * 2)
    monkeypatch.chdir(tmp_path)
    for name in ("http:clip.mp4", "a b%03d.mp4", "[1] was?.mp4", "-.mp4"):
        Path(name).write_bytes(plain.read_bytes())
        assert len(list(open_video(name).frames())) == 2


@pytest.mark.parametrize("aspect", [(1, 1), (4, 1), (1, 4)])
def test_too_many_pixels_are_refused(
    tmp_path: Path, make_video: Make, monkeypatch: pytest.MonkeyPatch, aspect: tuple[int, int]
) -> None:
    path = make_video(tmp_path / "clip.mp4", [smooth(0)], sample_aspect_ratio=Fraction(*aspect))
    monkeypatch.setattr("protoformer.io.files.MAX_PIXELS", 1000 if aspect == (1, 1) else 2000)
    said = {(1, 1): "48x32", (4, 1): "192x32", (1, 4): "48x128"}[aspect]
    with pytest.raises(InputError, match=f"is {said}, over the limit"):
        open_video(path)


def test_the_videos_of_old_are_read(tmp_path: Path) -> None:
    write_video(tmp_path / "clip.avi", (smooth(number, 25, 33) for number in range(5)), 10.0)
    video = open_video(tmp_path / "clip.avi")
    assert times(video) == [Fraction(number, 10) for number in range(5)]
    assert video.info.size == (25, 33)


def test_without_pyav_the_sentence_says_what_to_install(
    tmp_path: Path, make_video: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_video(tmp_path / "clip.mp4", [smooth(0)])
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match=r"pip install av\.$"):
        open_video(path)


@pytest.mark.parametrize(("name", "size", "frames"), [("cockatoo", (360, 640), 60), ("tears_of_steel", (266, 640), 72)])
def test_a_demonstration_clip_is_three_seconds_of_real_footage(name: str, size: tuple[int, int], frames: int) -> None:
    video = open_video(demo_clip(name))
    assert (video.info.size, video.info.num_frames, video.info.duration) == (size, frames, 3)
    assert f"`{name}.mp4`" in (demo_clip(name).parent / "ATTRIBUTION.md").read_text(encoding="utf-8")


def test_the_demonstration_clips_are_small_and_others_are_refused() -> None:
    assert sum(demo_clip(name).stat().st_size for name in DEMO_CLIPS) < 1_500_000
    with pytest.raises(InputError, match="choose one of cockatoo, tears_of_steel"):
        demo_clip("../../secret")
