"""Tests run side by side, so each keeps to one thread: more would only wait for one another."""

import importlib.util
import os
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

# Where there is no GPU, Triton's kernels run in its interpreter. Triton reads this when it is imported, as it is below;
# on a CPU nothing but the tests of kernels calls one.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.training import sources

pytest_plugins = ("datasets_fixtures", "io_fixtures", "predictor_fixtures", "training_fixtures")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
# Where two threads are tested, none spins while it waits; those that test side by side have it from the one that began.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
torch.set_num_threads(1)


# Tests press Ctrl-C, which is ignored in whatever a shell starts in the background, and in all that this starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, so that nobody waits for it alone at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def make_video() -> Callable[..., Path]:
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


@pytest.fixture(scope="session")
def flat_gif() -> Callable[[int, int], bytes]:
    """A gif of one frame of one color, packed as tightly as the format allows: about 1500 pixels a byte."""

    def build(width: int, height: int) -> bytes:
        clear, end, first_free, most = 4, 5, 6, 4094
        packed, bits, filled = bytearray(), 0, 0

        def emit(code: int, length: int) -> None:
            nonlocal bits, filled
            bits, filled = bits | code << filled, filled + length
            while filled >= 8:
                packed.append(bits & 255)
                bits, filled = bits >> 8, filled - 8

        left, length, free, run = width * height, 3, first_free, 0
        emit(clear, length)
        while left > 0:
            # Each code stands for a run that is one longer than the one before.
            emit(free if run else 0, length)
            run += 1
            left -= run
            if run > 1:
                free += 1
            if free == 1 << length and length < 12:
                length += 1
            if free > most:
                emit(clear, length)
                length, free, run = 3, first_free, 0
        emit(end, length)
        packed.append(bits & 255)
        blocks = b"".join(
            bytes([len(packed[at : at + 255])]) + packed[at : at + 255] for at in range(0, len(packed), 255)
        )
        head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x91, 0, 0) + bytes(12)
        frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\2" + blocks + b"\0"
        return head + frame + b";"

    return build


FEW_TEXTURES = (64, 2)
"""Their side, and how many of each family."""


@pytest.fixture
def few_textures(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Scenes to train on have small textures, and few of them, which are soon made: as `procedural_bank` takes them."""
    monkeypatch.setattr(sources, "_bank", lambda _name, _device: procedural_bank(*FEW_TEXTURES))
    return FEW_TEXTURES


@pytest.fixture(scope="session")
def moving_pattern() -> Callable[..., list[np.ndarray]]:
    """A clip of 128x96 pixels, uint8: a pattern of 24x24 that starts at (20, 30) and moves, on ground that it hides."""

    def frames(count: int, right: int = 3, down: int = 0) -> list[np.ndarray]:
        generator = np.random.default_rng(0)
        ground = np.kron(generator.integers(90, 150, (12, 16, 3)), np.ones((8, 8, 1))).astype(np.uint8)
        pattern = np.kron(generator.integers(0, 256, (6, 6, 3)), np.ones((4, 4, 1))).astype(np.uint8)
        found = []
        for number in range(count):
            frame = ground.copy()
            x, y = 20 + right * number, 30 + down * number
            frame[y : y + 24, x : x + 24] = pattern
            found.append(frame)
        return found

    return frames


@pytest.fixture
def load_benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Load a program of the folder of benchmarks, by its name, as a module."""

    def load(name: str) -> ModuleType:
        folder = Path(__file__).parents[1] / "benchmarks"
        spec = importlib.util.spec_from_file_location(f"{name}_benchmark", folder / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.syspath_prepend(folder)  # as for a program that is run there
        monkeypatch.setitem(sys.modules, spec.name, module)  # where its dataclasses look themselves up
        spec.loader.exec_module(module)
        return module

    return load
