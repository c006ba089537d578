"""Kinds of videos: the frames of each container and codec, and the sound that is carried over into a new file."""

from collections.abc import Callable
from fractions import Fraction
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import av
import numpy as np

from protoformer.datasets.video import count_frames
from protoformer.video.reader import open_video, read_frames
from protoformer.video.writer import VideoWriter, write_video
from tests.fuzz.images import pixels, written
from tests.fuzz.kind import Kind
from tests.fuzz.mutations import Mutator, declared_size, mp4_boxes, png_chunks, riff_chunks

FRAMES, RATE = 5, 25
HEIGHT, WIDTH = 40, 64
_OPTIONS = {"threads": "1", "flags": "+bitexact", "x265-params": "log-level=none:pools=none"}
MOST_FRAMES = 100
"""How many frames of a damaged video are read: a few kilobytes can hold thousands."""


def encoded_video(
    suffix: str, codec: str, pixel_format: str = "yuv420p", sound: str | None = None, form: str | None = None
) -> bytes:
    """A clip of a few small frames, the same bytes every time: no date, no random number, one thread."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"clip{suffix}"
        with av.open(str(path), "w", format=form, container_options={"fflags": "+bitexact"}) as target:
            video = target.add_stream(codec, rate=RATE, options=dict(_OPTIONS))
            video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, pixel_format
            audio = target.add_stream(sound, rate=48000, layout="mono", bit_rate=64000) if sound else None
            for number in range(FRAMES):
                frame = av.VideoFrame.from_ndarray(pixels(number, HEIGHT, WIDTH), format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, RATE)
                target.mux(video.encode(frame))
            target.mux(video.encode(None))
            if audio is not None:
                wave = 8000 * np.sin(np.arange(48000 * FRAMES // RATE) / 17)
                samples = av.AudioFrame.from_ndarray(wave.astype(np.int16)[None], format="s16", layout="mono")
                samples.sample_rate, samples.pts = 48000, 0
                target.mux(audio.encode(samples))
                target.mux(audio.encode(None))
        return path.read_bytes()


def read_video(path: Path) -> None:
    """Open a video, read it from its beginning and from the middle."""
    video = open_video(path)
    for frame in islice(video.frames(), MOST_FRAMES):
        assert frame.image.shape == (*video.info.size, 3)
    for _ in islice(video.frames(start=0.1, frame_step=2), 3):
        pass


def _carry_sound(suffix: str) -> Callable[[Path], None]:
    def carry(path: Path) -> None:
        """Write a new video with the sound of this one, as every command does whose output is a video."""
        video = open_video(path)
        image = np.zeros((16, 16, 3), np.uint8)
        with VideoWriter(path.with_name(f"new{suffix}"), like=video, fps=RATE) as writer:
            for number in range(3):
                writer.write(image, Fraction(number, RATE))

    return carry


def _video(
    name: str, suffix: str, *clips: tuple[str | None, ...], change: Mutator | None = None, share: int = 1
) -> Kind:
    """clips: arguments of `encoded_video` behind the suffix, for each seed."""
    resize = declared_size(WIDTH, HEIGHT)
    structured = (change, change, resize) if change else (resize,)
    return Kind(name, suffix, lambda: [encoded_video(suffix, *clip) for clip in clips], read_video, structured, share)


def _motion_jpegs() -> list[bytes]:
    return written(".avi", lambda path: write_video(path, [pixels(seed) for seed in range(3)], 25))


def _read_motion_jpeg(path: Path) -> None:
    for frame in read_frames(path, [0, 2]):
        assert frame.ndim == 3
    count_frames(path)
    count_frames(path, trust_header=True)


_H264, _WITH_AAC = ("libx264",), ("libx264", "yuv420p", "aac")

VIDEOS: tuple[Kind, ...] = (
    _video("mp4", ".mp4", _H264, _WITH_AAC, ("mpeg4",), ("libx265",), change=mp4_boxes, share=2),
    _video("mov", ".mov", _WITH_AAC, ("mjpeg", "yuvj420p"), ("qtrle", "rgb24"), change=mp4_boxes),
    _video("mkv", ".mkv", ("libx264", "yuv420p", "libopus"), ("ffv1",), ("mpeg4",)),
    _video("webm", ".webm", ("libvpx-vp9",), ("libvpx", "yuv420p", "libopus")),
    _video("avi", ".avi", ("mjpeg", "yuvj420p"), ("mpeg4", "yuv420p", "mp2"), change=riff_chunks),
    _video("ts", ".ts", ("mpeg2video", "yuv420p", "mp2"), _WITH_AAC),
    _video("flv", ".flv", ("flv",), _WITH_AAC),
    _video("mpg", ".mpg", ("mpeg2video", "yuv420p", "mp2"), ("mpeg1video",)),
    _video("vob", ".vob", ("mpeg2video", "yuv420p", "mp2")),
    _video("wmv", ".wmv", ("wmv2", "yuv420p", "wmav2")),
    _video("ogv", ".ogv", ("libtheora",)) if "libtheora" in av.codecs_available else _video("nut", ".nut", ("ffv1",)),
    _video("gifclip", ".gif", ("gif", "rgb8")),
    _video("apng", ".apng", ("apng", "rgb24", None, "apng"), change=png_chunks),
    _video("y4m", ".y4m", ("rawvideo", "yuv420p", None, "yuv4mpegpipe")),
    Kind("motionjpeg", ".avi", _motion_jpegs, _read_motion_jpeg, (riff_chunks,)),
    Kind("soundcopied", ".mp4", lambda: [encoded_video(".mp4", *_WITH_AAC)], _carry_sound(".mkv"), (mp4_boxes,)),
    Kind("soundencoded", ".mkv", lambda: [encoded_video(".mkv", "mpeg4", "yuv420p", "libopus")], _carry_sound(".avi")),
)
"""Videos that PyAV and OpenCV decode."""
