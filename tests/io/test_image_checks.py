"""A header may not declare more pixels than its file can hold; flat images, which need few bytes, are still read."""

import re
import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoformer.errors import InputError
from protoformer.io.image import read_image

SIDE = 11_000
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def saved(kind: str, mode: str = "RGB", size: tuple[int, int] = (8, 8), **options: object) -> bytes:
    buffer = BytesIO()
    Image.new(mode, size).save(buffer, kind, **options)
    return buffer.getvalue()


def replaced(data: bytes, place: int, layout: str, *numbers: int) -> bytes:
    return data[:place] + struct.pack(layout, *numbers) + data[place + struct.calcsize(layout) :]


def forged_jpeg(**options: object) -> bytes:
    data = saved("JPEG", **options)
    return replaced(data, max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2")) + 5, ">HH", SIDE, SIDE)


def forged_tiff(tags: tuple[int, int] = (256, 257), **options: object) -> bytes:
    """Give two tags of a TIFF, the size or two others, the forged number."""
    data = saved("TIFF", **options)
    first = struct.unpack_from("<I", data, 4)[0] + 2
    places = [first + 12 * number for number in range(struct.unpack_from("<H", data, first - 2)[0])]
    for wanted in tags:
        place = next(at for at in places if struct.unpack_from("<H", data, at)[0] == wanted)
        data = replaced(data, place + 2, "<HII", 4, 1, SIDE)
    return data


def forged_ico(kind: str) -> bytes:
    data = saved("ICO", "RGBA", (16, 16), sizes=[(16, 16)], bitmap_format=kind)
    offset = struct.unpack_from("<I", data, 18)[0]
    return (
        replaced(data, offset + 16, ">II", SIDE, SIDE)
        if kind == "png"
        else replaced(data, offset + 4, "<ii", SIDE, SIDE)
    )


FORGED = {
    "jpeg": forged_jpeg(),
    "gray jpeg": forged_jpeg(mode="L"),
    "progressive jpeg": forged_jpeg(progressive=True),
    "gif": replaced(saved("GIF", "P"), 6, "<HH", SIDE, SIDE),
    "bmp": replaced(saved("BMP"), 18, "<ii", SIDE, SIDE),
    "palette bmp": replaced(saved("BMP", "P"), 18, "<ii", SIDE, SIDE),
    "tga": replaced(saved("TGA"), 12, "<HH", SIDE, SIDE),
    "tga of runs": replaced(saved("TGA", compression="tga_rle"), 12, "<HH", SIDE, SIDE),
    "ppm": f"P6 {SIDE} {SIDE} 255\n".encode() + bytes(200),
    "qoi": replaced(saved("QOI"), 4, ">II", SIDE, SIDE),
    "sgi": replaced(saved("SGI"), 6, ">HH", SIDE, SIDE),
    "tiff": forged_tiff(),
    "lzw tiff": forged_tiff(compression="tiff_lzw"),
    "deflate tiff": forged_tiff(compression="tiff_adobe_deflate"),
    "zstd tiff": forged_tiff(compression="zstd"),
    "fax tiff": forged_tiff(mode="1", compression="group4"),
    "webp": replaced(saved("WEBP"), 26, "<HH", SIDE, SIDE),
    "lossless webp": replaced(saved("WEBP", lossless=True), 21, "<I", (SIDE - 1) | (SIDE - 1) << 14),
    "ico of a png": forged_ico("png"),
    "ico of a bitmap": forged_ico("bmp"),
}


def kilobytes(name: str) -> int:
    result = re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())
    assert result is not None
    return int(result[1])


def grown_by(read: Callable[[], object]) -> int:
    """Count the bytes by which the process grew at most during a call (Linux; 0 elsewhere)."""
    if not CLEAR.exists():
        read()
        return 0
    CLEAR.write_text("5")
    before = kilobytes("VmRSS")
    read()
    return 1024 * (kilobytes("VmHWM") - before)


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_size_is_refused_before_anything_is_allocated(tmp_path: Path, name: str) -> None:
    path = tmp_path / "forged.img"
    path.write_bytes(FORGED[name])

    def read() -> None:
        with pytest.raises(InputError) as caught:
            read_image(path)
        text = str(caught.value)
        reason = "its image is too large" if name.startswith("ico") else f"declares {SIDE}x{SIDE} pixels, more than its"
        assert str(path) in text and reason in text and text.endswith(".")

    assert len(FORGED[name]) < 2000
    assert grown_by(read) < 16 * 2**20


def test_a_tiff_of_tiles_far_larger_than_itself_is_refused(tmp_path: Path) -> None:
    data = forged_tiff((65000, 65001), tiffinfo={65000: 16, 65001: 16})
    for private, tile in ((65000, 322), (65001, 323)):
        data = data.replace(struct.pack("<HHI", private, 4, 1), struct.pack("<HHI", tile, 4, 1))
    (tmp_path / "a.tif").write_bytes(data)
    with pytest.raises(InputError, match="bytes plausibly hold"):
        read_image(tmp_path / "a.tif")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {"quality": 1}),
        ("JPEG", {"quality": 1, "optimize": True}),
        ("JPEG", {"quality": 1, "progressive": True}),
        ("GIF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
        ("TIFF", {"compression": "packbits"}),
        ("TGA", {"compression": "tga_rle"}),
    ],
)
def test_a_large_flat_image_is_read(tmp_path: Path, kind: str, options: dict) -> None:
    (tmp_path / "flat.img").write_bytes(saved(kind, "L", (6000, 4000), **options))
    pixels = read_image(tmp_path / "flat.img")
    assert pixels.shape == (4000, 6000, 3)
    # Quality 1 moves a jpeg's one gray by a single step.
    assert pixels.max() == pixels.min() <= np.float32(1 / 255)


@pytest.mark.parametrize(
    ("kind", "options"), [("WEBP", {"lossless": True, "method": 0}), ("WEBP", {"method": 0}), ("JPEG2000", {})]
)
def test_a_flat_video_frame_of_a_few_dozen_bytes_is_read(tmp_path: Path, kind: str, options: dict) -> None:
    (tmp_path / "flat.img").write_bytes(saved(kind, size=(1920, 1080), **options))
    pixels = read_image(tmp_path / "flat.img")
    assert pixels.shape == (1080, 1920, 3)
    assert not pixels.any()


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_the_largest_size_that_is_never_doubted_takes_little_memory(tmp_path: Path, mode: str) -> None:
    size = (1024, 1024) if mode == "RGBA" else (2048, 1024)
    path = tmp_path / "flat.webp"
    path.write_bytes(saved("WEBP", mode, size, lossless=True, method=0))
    read_image(path)
    assert path.stat().st_size < 200
    assert grown_by(lambda: read_image(path)) < 64 * 2**20


def test_a_transparent_image_is_composited_over_black(tmp_path: Path) -> None:
    samples = np.random.default_rng(7).integers(0, 256, (5, 6, 4), dtype=np.uint8)
    Image.fromarray(samples).save(tmp_path / "a.png")
    scaled = samples.astype(np.float32) / np.float32(255)
    assert np.array_equal(read_image(tmp_path / "a.png"), scaled[..., :3] * scaled[..., 3:])
