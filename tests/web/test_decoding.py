"""Uploads are decoded in a limited process, with the same results as in the library."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import protoformer
from protoformer.errors import InputError
from protoformer.io import image as images
from protoformer.io.image import focal_in_35mm, read_image
from protoformer.loading import load_method
from protoformer.video import decoding as container_decoding
from protoformer.video.reader import open_video
from protoformer.video.writer import VideoWriter
from protoformer.web.components import first_frame
from protoformer.web.decoding import clip_writer, decode_clip, decode_image
from protoformer.web.depth import depth_clip, depth_image
from protoformer.web.explain import explain_clip, explain_images
from protoformer.web.flow import flow_clip, flow_pair
from protoformer.web.job import Job
from protoformer.web.limits import Deadline, Limits
from protoformer.web.stabilize import stabilize_clip
from protoformer.web.track import track_clip

pytest.importorskip("av")
pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")

Make = Callable[..., Path]
LIMITS = Limits(max_megabytes=10, max_pixels=20_000, max_frames=8, max_seconds=60, max_jobs=1)
PAGE = Limits(max_megabytes=200, max_pixels=2**21, max_frames=120, max_seconds=120, max_jobs=1)
"""Default limits of the page."""


def decoders() -> list[int]:
    """The processes that decode for this one and were not waited for (Linux; none elsewhere)."""
    started = [each for path in Path("/proc/self/task").glob("*/children") for each in path.read_text().split()]
    # One that has ended has no command line.
    commands = {int(each): Path(f"/proc/{each}/cmdline").read_bytes() for each in started}
    return [each for each, command in commands.items() if b"decode_child" in command or not command]


MEASURED = r"""
import json, re, resource, sys, time
from pathlib import Path
from protoformer.web import decoding
from protoformer.web.limits import Deadline, Limits
path, limits, work, memory = json.loads(sys.argv[1])
if memory:
    decoding.DECODING_BYTES, decoding.DECODING_BYTES_PER_PIXEL = memory, 0
begin, message = time.monotonic(), ""
try:
    getattr(decoding, work)(Limits(**limits), Path(path), Deadline(60))
except ValueError as error:
    message = str(error)
# getrusage of this process counts what the one that started it had.
own = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
peak = max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) // 1024
print(json.dumps([message, time.monotonic() - begin, peak]))
"""


def measured(path: Path, limits: Limits, work: str, memory: int = 0) -> tuple[str, float, int]:
    """What a function of `decoding` refuses a file with in a process without torch; its seconds and megabytes.

    memory: bytes for the decoder, instead of the default.
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not tell the memory of a process")
    paths = [str(Path(protoformer.__file__).parents[1]), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, json.dumps([str(path), asdict(limits), work, memory])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    message, seconds, megabytes = json.loads(done.stdout)
    return message, seconds, megabytes


def noise(number: int, height: int = 48, width: int = 64) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_the_program_starts_quickly_and_without_torch() -> None:
    paths = [str(Path(protoformer.__file__).parents[1]), *sys.path]
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", "import sys, protoformer.web.decode_child; print('torch' in sys.modules)"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
    assert time.monotonic() - begin < 5  # 0.3 s, where nothing else runs


@pytest.mark.parametrize("sound", [None, "aac"])
def test_a_decoded_clip_equals_that_of_the_library(tmp_path: Path, make_video: Make, sound: str | None) -> None:
    times, tick = [0, 10, 15, 30, 31], Fraction(1, 100)
    path = make_video(tmp_path / "a.mp4", [noise(n) for n in range(5)], times=times, tick=tick, sound=sound)
    expected = open_video(path)
    with decode_clip(LIMITS, path, Deadline(60)) as clip:
        assert len(clip) == 5 and clip.has_audio == expected.info.has_audio and not clip.info.has_audio
        for name in ("paths", "size", "fps", "time_base", "start", "num_frames", "duration", "codec"):
            assert getattr(clip.info, name) == getattr(expected.info, name)
        for span in ((), (0.1, None, 1), (0.05, 0.31, 2), (None, 0.1)):
            for one, other in zip(clip.frames(*span), expected.frames(*span), strict=True):
                assert (one.number, one.time) == (other.number, other.time)
                np.testing.assert_array_equal(one.image, other.image)
    assert not decoders()


def test_a_decoded_image_equals_that_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0xA405] = 50
    Image.fromarray(noise(0)).save(path, exif=exif)
    image = decode_image(LIMITS, path, Deadline(60))
    np.testing.assert_array_equal(image.pixels, read_image(path))
    assert image.focal_in_35mm == focal_in_35mm(path) == 50
    deep = tmp_path / "deep.png"
    Image.fromarray(np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) * 21).save(deep)
    np.testing.assert_array_equal(decode_image(LIMITS, deep, Deadline(60)).pixels, read_image(deep))


def test_depth_uses_the_focal_length_of_the_upload(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0xA405] = 50
    Image.fromarray(noise(0)).save(path, exif=exif)
    model = protoformer.load("tiny", "cpu", task="depth")
    answer = depth_image(model, Job(LIMITS, tmp_path), path)
    assert answer.summary.endswith(f"focal length {50 / np.hypot(36, 24) * 80:.1f} px (from EXIF).")
    np.testing.assert_array_equal(np.load(answer.downloads[".npy"]), model.depth(path).numpy())


@pytest.mark.parametrize("codec", ["aac", "libopus"])
def test_audio_is_written_as_by_the_library(tmp_path: Path, make_video: Make, codec: str) -> None:
    path = make_video(tmp_path / "a.mkv", [noise(n) for n in range(6)], sound=codec)
    like = open_video(path)
    with VideoWriter(tmp_path / "expected.mp4", like, like.info.fps) as writer:
        for frame in like.frames(0.05):
            writer.write(frame.image, frame.time)
    with (
        decode_clip(LIMITS, path, Deadline(60)) as clip,
        clip_writer(tmp_path / "actual.mp4", clip, LIMITS, Deadline(60)) as kept,
    ):
        for frame in clip.frames(0.05):
            kept.write(frame.image, frame.time)
    assert kept.frames == writer.frames == 4
    assert open_video(tmp_path / "actual.mp4").info.has_audio
    assert (tmp_path / "actual.mp4").read_bytes() == (tmp_path / "expected.mp4").read_bytes()
    assert not decoders()


def test_an_error_while_writing_audio_leaves_no_process_and_no_clip(tmp_path: Path, make_video: Make) -> None:
    path = make_video(tmp_path / "a.mp4", [noise(n) for n in range(4)], sound="aac")
    with decode_clip(LIMITS, path, Deadline(60)) as clip:
        with pytest.raises(ZeroDivisionError), clip_writer(tmp_path / "b.mp4", clip, LIMITS, Deadline(60)) as writer:
            writer.write(noise(0), Fraction(0))
            raise ZeroDivisionError
        with (
            pytest.raises(InputError, match="give them one size"),
            clip_writer(tmp_path / "b.mp4", clip, LIMITS, Deadline(60)) as writer,
        ):
            writer.write(noise(0), Fraction(0))
            writer.write(noise(0, 32), Fraction(1))
        with (
            pytest.raises(InputError, match="stopped after 0 seconds"),
            clip_writer(tmp_path / "b.mp4", clip, LIMITS, Deadline(0)) as writer,
        ):
            writer.write(noise(0), Fraction(0))
    assert not decoders() and not (tmp_path / "b.mp4").exists()


def test_a_decompression_bomb_is_refused_at_little_cost(tmp_path: Path, flat_gif: Callable[[int, int], bytes]) -> None:
    path = tmp_path / "bomb.gif"
    path.write_bytes(flat_gif(11_584, 11_584))
    image, clip = measured(path, PAGE, "decode_image"), measured(path, PAGE, "decode_first_frame")
    assert image[0] == f"{path} is 11584x11584, 134189056 pixels, and the limit is 2097152; scale it down."
    assert clip[0].startswith(f"{path} has frames over the limit of 2097152 pixels")
    for _, seconds, megabytes in (image, clip):
        assert seconds < 10 and megabytes < 150


def test_a_decoder_over_its_memory_limit_is_reported(tmp_path: Path, flat_gif: Callable[[int, int], bytes]) -> None:
    path = tmp_path / "large.gif"
    path.write_bytes(flat_gif(11_000, 11_000) + bytes(200_000))  # long enough to declare such a frame
    roomy = Limits(max_megabytes=200, max_pixels=2**27, max_frames=120, max_seconds=60, max_jobs=1)
    image, clip = (measured(path, roomy, work, 2**27) for work in ("decode_image", "decode_first_frame"))
    assert image[0] == f"{path} takes more memory to decode than this page allows; make it smaller."
    assert clip[0] == f"{path} has no frame that can be decoded; make or download it again."
    assert max(image[2], clip[2]) < 250


def test_a_crash_of_the_decoder_is_reported(tmp_path: Path, make_video: Make) -> None:
    path = make_video(tmp_path / "a.mp4", [noise(n % 3, 480, 640) for n in range(100)], options={"preset": "ultrafast"})
    if not list(Path("/proc/self/task").glob("*/children")):
        pytest.skip("this system does not tell which processes were started")

    def crash() -> None:
        while not decoders():
            time.sleep(0.01)
        os.kill(decoders()[0], signal.SIGSEGV)

    thread = threading.Thread(target=crash)
    thread.start()
    with (
        pytest.raises(InputError, match=r"could not be decoded: its decoder crashed"),
        decode_clip(PAGE, path, Deadline(60)),
    ):
        pass
    thread.join()
    assert not decoders()


def test_the_deadline_covers_decoding(tmp_path: Path, make_video: Make) -> None:
    path = make_video(tmp_path / "a.mp4", [noise(n % 3, 480, 640) for n in range(100)], options={"preset": "ultrafast"})
    begin = time.monotonic()
    with pytest.raises(InputError, match=r"stopped after 0\.5 seconds"), decode_clip(PAGE, path, Deadline(0.5)):
        pass
    assert 0.5 <= time.monotonic() - begin < 3
    assert not decoders()


def test_a_clip_of_too_many_frames_is_not_decoded_to_its_end(tmp_path: Path, make_video: Make) -> None:
    # The header of a stream of this kind does not say how many there are.
    path = make_video(tmp_path / "a.ts", [noise(n) for n in range(30)], "mpeg2video")
    with (
        pytest.raises(InputError, match="has more than 8 frames, the limit of this page; select a shorter part"),
        decode_clip(LIMITS, path, Deadline(60)),
    ):
        pass


def test_no_computation_decodes_an_upload_in_the_server(
    tmp_path: Path, make_video: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, clip = tmp_path / "a.png", make_video(tmp_path / "a.mp4", [noise(n) for n in range(3)], sound="aac")
    Image.fromarray(noise(0)).save(image)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the server opened an upload")

    flow, depth = protoformer.load("tiny", "cpu"), protoformer.load("tiny", "cpu", task="depth")
    steady = protoformer.load("tiny", "cpu", task="stabilize", stabilization={"field_window": 2})
    monkeypatch.setattr(images, "_identify", refuse)  # of this process alone
    monkeypatch.setattr(container_decoding, "open_container", refuse)
    monkeypatch.setattr("protoformer.video.reader.open_container", refuse)
    monkeypatch.setattr("protoformer.video.writer.open_container", refuse)
    with pytest.raises(AssertionError):
        open_video(clip)
    with pytest.raises(AssertionError):
        read_image(image)
    flow_pair(flow, Job(LIMITS, tmp_path), image, image)
    flow_clip(flow, Job(LIMITS, tmp_path), clip)
    depth_image(depth, Job(LIMITS, tmp_path), image)
    depth_clip(depth, Job(LIMITS, tmp_path), clip)
    explain_images(flow, Job(LIMITS, tmp_path), [image, image])
    explain_clip(flow, Job(LIMITS, tmp_path), clip)
    first_frame(LIMITS, clip)
    track_clip(load_method("correlation"), Job(LIMITS, tmp_path), clip, [(10, 10, 20, 20)])
    stabilize_clip(steady, Job(LIMITS, tmp_path), clip)
    monkeypatch.undo()
    for name in ("motion.mp4", "depth.mp4", "prototypes.mp4", "track.mp4", "stable.mp4", "comparison.mp4"):
        assert open_video(tmp_path / name).info.has_audio, name
