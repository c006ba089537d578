"""A small file cannot make a decoder allocate gigabytes or work for minutes: its header is refused first."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import protoformer
from protoformer.errors import InputError
from protoformer.io.files import PixelLimitError
from protoformer.io.image import MAX_JPEG_SCANS, focal_in_35mm, image_size, load_image, read_image
from protoformer.video.reader import open_video

SIDE = 11_584
"""Pixels of a side of the largest square that is read without a limit of one's own."""
MOST = 2**21
MEASURED = r"""
import json, re, sys
import numpy, cv2, PIL.Image, av
from protoformer.io.image import image_size, load_image
from protoformer.video.reader import open_video
def peak():  # getrusage counts what the process had that started this one
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
before, said = peak(), ""
try:
    eval(sys.argv[1])(sys.argv[2])
except ValueError as error:
    said = f"{type(error).__name__}: {error}"
print(json.dumps([said, peak() - before]))
"""


def measured(call: str, path: Path) -> tuple[str, int]:
    """What a call refuses a file with in a process of its own, and the bytes by which the process grew."""
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not tell the memory of a process")
    paths = [str(Path(protoformer.__file__).parents[1]), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, call, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    said, grown = json.loads(done.stdout)
    return said, grown


def saved(kind: str, mode: str = "RGB", size: tuple[int, int] = (8, 8), **options: object) -> bytes:
    buffer = BytesIO()
    Image.new(mode, size).save(buffer, kind, **options)
    return buffer.getvalue()


def test_a_flat_gif_is_small_and_what_it_says(tmp_path: Path, flat_gif: Callable[[int, int], bytes]) -> None:
    (tmp_path / "flat.gif").write_bytes(flat_gif(70, 50))
    assert image_size(tmp_path / "flat.gif") == (50, 70) and not read_image(tmp_path / "flat.gif").any()
    (frame,) = open_video(tmp_path / "flat.gif").frames()
    assert frame.image.shape == (50, 70, 3) and not frame.image.any()
    assert len(flat_gif(SIDE, SIDE)) < 100_000


def test_a_clip_of_too_many_pixels_is_refused_before_a_frame_is_decoded(
    tmp_path: Path, flat_gif: Callable[[int, int], bytes]
) -> None:
    path = tmp_path / "bomb.gif"
    path.write_bytes(flat_gif(SIDE, SIDE))
    begin = time.monotonic()
    said, grown = measured(f"lambda path: open_video(path, max_pixels={MOST})", path)
    assert said.startswith(f"PixelLimitError: {path} ") and f"over the limit of {MOST} pixels" in said
    assert grown < 2**24 and time.monotonic() - begin < 10


def test_a_short_file_declares_no_huge_frames(tmp_path: Path, flat_gif: Callable[[int, int], bytes]) -> None:
    path = tmp_path / "bomb.gif"
    path.write_bytes(flat_gif(SIDE, SIDE))
    said, grown = measured("open_video", path)
    assert said.startswith(f"PixelLimitError: {path} ") and grown < 2**24
    path.write_bytes(flat_gif(3840, 2160))  # 4K of one color, in six kilobytes
    assert open_video(path).info.size == (2160, 3840)


@pytest.mark.parametrize(
    ("suffix", "codec", "fast"),
    [("mp4", "libx264", {"preset": "ultrafast"}), ("webm", "libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"})],
)
def test_opening_does_not_decode_a_frame_that_is_too_large(
    tmp_path: Path, make_video: Callable[..., Path], suffix: str, codec: str, fast: dict[str, str]
) -> None:
    # These are formats of which ffmpeg decodes a frame to learn the kind of pixels.
    path = make_video(tmp_path / f"a.{suffix}", [np.zeros((3000, 4000, 3), np.uint8)], codec, options=fast)
    said, grown = measured("lambda path: open_video(path, max_pixels=10_000)", path)
    assert said.startswith("PixelLimitError") and "over the limit of 10000 pixels" in said
    assert grown < 3000 * 4000


def test_frames_within_a_limit_of_pixels_are_read_in_every_codec(
    tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    images = [np.full((50, 70, 3), 40 * number, np.uint8) for number in range(3)]
    for codec, name in (("libx264", "a.mp4"), ("libvpx-vp9", "a.webm"), ("mpeg4", "a.avi"), ("ffv1", "a.mkv")):
        path = make_video(tmp_path / name, images, codec)
        assert len(list(open_video(path, max_pixels=3500).frames())) == 3
        with pytest.raises(PixelLimitError, match="is 70x50, over the limit of 3499 pixels") as refused:
            open_video(path, max_pixels=3499)
        assert refused.value.size == (50, 70)


def test_a_decoder_that_finds_larger_frames_than_the_header_says_does_not_decode_them(
    tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    path = make_video(tmp_path / "a.mkv", [np.zeros((3000, 4000, 3), np.uint8)], "mjpeg", "yuvj420p")
    data = path.read_bytes()
    # PixelWidth and PixelHeight of the track.
    forged = data.replace(b"\xb0\x82\x0f\xa0", b"\xb0\x82\x00\x40").replace(b"\xba\x82\x0b\xb8", b"\xba\x82\x00\x40")
    assert forged != data
    path.write_bytes(forged)
    said, grown = measured("lambda path: open_video(path, max_pixels=10_000)", path)
    assert said and grown < 3000 * 4000


def test_a_folder_of_images_has_the_limit_too(tmp_path: Path) -> None:
    Image.new("RGB", (70, 50)).save(tmp_path / "a.png")
    assert open_video(tmp_path, max_pixels=3500).info.size == (50, 70)
    with pytest.raises(PixelLimitError, match="over the limit of 3499 pixels"):
        open_video(tmp_path, max_pixels=3499)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_an_image_of_too_many_pixels_is_refused_undecoded(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.img"
    path.write_bytes(saved(kind, size=(70, 50)))
    assert load_image(path, 3500).pixels.shape == (50, 70, 3)
    with pytest.raises(PixelLimitError, match="is 70x50, over the limit of 3499 pixels"):
        read_image(path, 3499)


def test_the_size_of_an_icon_is_not_found_by_decoding_a_huge_one(tmp_path: Path) -> None:
    path, whole = tmp_path / "a.ico", saved("PNG", "L", (9000, 9000), compress_level=1)
    path.write_bytes(struct.pack("<3H4B2H2I", 0, 1, 1, 16, 16, 0, 0, 1, 8, len(whole), 22) + whole)
    for call in (image_size, focal_in_35mm):
        with pytest.raises(InputError, match="its image is too large for one"):
            call(path)
    said, grown = measured("image_size", path)
    assert "its image is too large for one" in said and grown < 2**24


def jpeg_of_scans(extra: int, hidden: bytes = b"") -> bytes:
    """A progressive jpeg whose last scan comes `extra` times more, each after some bytes."""
    data = saved("JPEG", "L", (256, 256), progressive=True)
    last = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + (hidden + last) * extra + data[-2:]


def test_a_jpeg_of_thousands_of_scans_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    # A comment that looks like the end, or like the beginning, of an image does not hide what follows.
    for hidden in (b"", b"\xff\xfe\x00\x06\xff\xd9\xff\xd8", b"\xff\xff\xff"):
        path.write_bytes(jpeg_of_scans(20_000, hidden))
        begin = time.monotonic()
        for call in (read_image, image_size):
            with pytest.raises(InputError, match=f"a jpeg of more than {MAX_JPEG_SCANS} scans"):
                call(path)
        assert time.monotonic() - begin < 1


def test_a_jpeg_of_many_but_not_too_many_scans_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    for data in (jpeg_of_scans(0), jpeg_of_scans(MAX_JPEG_SCANS - 10), saved("JPEG", size=(64, 64))):
        path.write_bytes(data)
        assert read_image(path).ndim == 3
    # What follows the end of the image, such as a second picture of a camera, is not counted.
    path.write_bytes(saved("JPEG", size=(64, 64)) + jpeg_of_scans(20_000))
    assert read_image(path).shape == (64, 64, 3)


def tiled(data: bytes, side: int) -> bytes:
    """A jpeg 2000 image whose header declares tiles of another size."""
    at = data.find(b"\xff\x4f\xff\x51") + 24
    return data[:at] + struct.pack(">II", side, side) + data[at + 8 :]


def test_a_jpeg_2000_image_of_tens_of_thousands_of_tiles_is_refused(tmp_path: Path) -> None:
    path, plain = tmp_path / "a.jp2", saved("JPEG2000", size=(255, 257))
    path.write_bytes(plain)
    assert read_image(path).shape == (257, 255, 3)
    path.write_bytes(tiled(plain, 1))
    said, grown = measured("load_image", path)
    assert "a jpeg 2000 image of 65535 tiles and 3 components" in said and grown < 2**24
    path.write_bytes(plain[plain.find(b"\xff\x4f\xff\x51") :][:30])
    with pytest.raises(InputError, match="a damaged jpeg 2000 image"):
        read_image(path)


def test_an_icon_may_not_hold_such_an_image_either(tmp_path: Path) -> None:
    inner = tiled(saved("JPEG2000", "RGBA", (128, 128)), 1)
    entry = b"ic07" + struct.pack(">I", 8 + len(inner)) + inner
    (tmp_path / "a.icns").write_bytes(b"icns" + struct.pack(">I", 8 + len(entry)) + entry)
    with pytest.raises(InputError, match="16384 tiles"):
        read_image(tmp_path / "a.icns")


@pytest.mark.parametrize(
    "header",
    [
        b"P5 " + b"#" * 10**7 + b"\n8 8 255\n",
        b"P5 8 " + b"#\n" * 10**6 + b"8 255\n",
        b"P4" + b" " * 10**7 + b"8 8\n",
        b"P6 8 8" + b"#" * 10**7,
    ],
)
def test_a_header_of_endless_comments_is_refused_at_once(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "a.ppm").write_bytes(header + bytes(64))
    begin = time.monotonic()
    with pytest.raises(InputError, match="has a header of more than 65536 bytes"):
        read_image(tmp_path / "a.ppm")
    assert time.monotonic() - begin < 1


@pytest.mark.parametrize("mode", ["1", "L", "RGB"])
def test_pixels_that_look_like_blanks_and_comments_are_no_header(tmp_path: Path, mode: str) -> None:
    size = (800, 800) if mode == "1" else (400, 400)
    for pixel in b" #1\n":
        bits = bytes([pixel]) * (80_000 if mode == "1" else 160_000 * len(mode))
        Image.frombytes(mode, size, bits).save(tmp_path / "a.ppm")
        assert read_image(tmp_path / "a.ppm").shape == (size[1], size[0], 3)
    (tmp_path / "a.ppm").write_bytes(b"P5\n# made by hand\n2 2 # width, height\n255\n" + bytes(4))
    assert read_image(tmp_path / "a.ppm").shape == (2, 2, 3)


def test_a_run_of_fill_bytes_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "fill.jpg"
    path.write_bytes(b"\xff\xd8" + b"\xff" * 2**20 + b"\x00")
    begin = time.monotonic()
    with pytest.raises(InputError):
        read_image(path)
    assert time.monotonic() - begin < 2
