import os
import struct
import zlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session")
def build_png() -> Callable[..., bytes]:
    """Assemble a png by hand from samples (HxW or HxWxC), so that no encoder stands between the test and the bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    def build(
        samples: np.ndarray,
        color_type: int,
        extra: dict[bytes, bytes] | None = None,
        size: tuple[int, int] | None = None,
    ) -> bytes:
        height, width = samples.shape[:2]
        declared = size or (width, height)
        depth = 8 * samples.dtype.itemsize
        rows = samples.astype(samples.dtype.newbyteorder(">")).reshape(height, -1)
        raw = b"".join(b"\0" + row.tobytes() for row in rows)
        return (
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">IIBBBBB", *declared, depth, color_type, 0, 0, 0))
            + b"".join(chunk(kind, body) for kind, body in (extra or {}).items())
            + chunk(b"IDAT", zlib.compress(raw))
            + chunk(b"IEND", b"")
        )

    return build


@pytest.fixture(scope="session")
def benchmarks() -> Path:
    """The folder of public benchmark samples beside the checkout."""
    folder = Path(__file__).parents[2].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the benchmark samples are not beside this checkout")
    return folder


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every write fail when it must reach the disk."""

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)


@pytest.fixture(scope="session")
def make_movie() -> Callable[..., Path]:
    """Encode a video with ffmpeg itself, so that reading is not tested against our own writing.

    images: uint8 HxWx3, or frames of ffmpeg as they are. times: in ticks. sound: codec; a sine of 440 Hz as long as the
    video. context: attributes of the encoder. turn: arguments of `set_display_rotation`.
    """
    av = pytest.importorskip("av")

    def make(
        path: Path,
        images: Sequence[Any],
        codec: str = "libx264",
        pixels: str = "yuv420p",
        rate: int = 25,
        times: Sequence[int] | None = None,
        tick: Fraction | None = None,
        sound: str | None = None,
        turn: tuple[Any, ...] | None = None,
        options: dict[str, str] | None = None,
        container: dict[str, str] | None = None,
        **context: Any,
    ) -> Path:
        frames = [
            av.VideoFrame.from_ndarray(image, format="rgb24") if isinstance(image, np.ndarray) else image
            for image in images
        ]
        tick = tick or Fraction(1, rate)
        with av.open(str(path), "w", container_options=container or {}) as target:
            video = target.add_stream(codec, rate=rate, options=options or {})
            video.width, video.height, video.pix_fmt = frames[0].width, frames[0].height, pixels
            video.codec_context.time_base = tick
            for name, value in context.items():
                setattr(video.codec_context, name, value)
            if turn is not None:
                video.set_display_rotation(*turn)
            audio = target.add_stream(sound, rate=48000, layout="mono") if sound else None
            for number, frame in enumerate(frames):
                frame.pts, frame.time_base = times[number] if times else number, tick
                target.mux(video.encode(frame))
            target.mux(video.encode(None))
            if audio:
                count = round(len(frames) / rate * 48000)
                wave = 8000 * np.sin(2 * np.pi * 440 / 48000 * np.arange(count))
                samples = av.AudioFrame.from_ndarray(wave.astype(np.int16)[None], format="s16", layout="mono")
                samples.sample_rate, samples.pts = 48000, 0
                target.mux(audio.encode(samples))
                target.mux(audio.encode(None))
        return path

    return make
