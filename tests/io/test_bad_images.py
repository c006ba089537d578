"""A bad image file is one clear sentence, never another library's error or a warning."""

import os
import struct
import threading
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from protoformer.errors import InputError
from protoformer.io.files import MAX_PIXELS, check_input
from protoformer.io.image import quiet_pillow, read_image

PIXELS = np.random.default_rng(11).integers(0, 256, (24, 31, 3), dtype=np.uint8)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[[bytes], str]:
    """The message with which bytes are refused as an image."""

    def message(data: bytes) -> str:
        path = tmp_path / "bad.img"
        path.write_bytes(data)
        with pytest.raises(InputError) as caught:
            read_image(path)
        text = str(caught.value)
        assert str(path) in text
        assert text.endswith(".") and "; " in text and "\n" not in text
        return text

    return message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.png", r"missing\.png does not exist; check the path\."),
        ("plain/inside.png", "does not exist"),
        (".", "is a folder; give a file inside it"),
        ("n" * 300, "File name too long"),
        ("zero\0byte", "null byte"),
    ],
)
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "plain").write_bytes(b"x")
    with pytest.raises(InputError, match=message):
        read_image(tmp_path / name)


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a regular file"):
        check_input(tmp_path / "pipe")


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(saved(Image.fromarray(PIXELS), "PNG"))

    def forbid(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbid)
    with pytest.raises(InputError, match=r"a\.png cannot be read \(Permission denied\); check its permissions"):
        read_image(tmp_path / "a.png")


def test_an_empty_file_is_refused(refusal) -> None:
    assert "is an empty file" in refusal(b"")


@pytest.mark.parametrize(
    "data", [b"hello\n", b"P6 says the text, and no more", b"%!PS-Adobe-3.0 EPSF-3.0\n", bytes(500)]
)
def test_what_is_no_image_is_refused(refusal, data: bytes) -> None:
    text = refusal(data)
    assert "is not an image" in text or "damaged" in text


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PPM", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ],
)
def test_an_image_cut_anywhere_is_refused(refusal, kind: str, options: dict) -> None:
    data = saved(Image.fromarray(PIXELS), kind, **options)
    for cut in [*range(1, len(data), 13), *range(len(data) - 24, len(data))]:
        refusal(data[:cut])


@pytest.mark.parametrize(("kind", "trailer"), [("GIF", 2), ("BMP", 3)])
def test_a_gif_or_bmp_that_lost_pixels_is_refused(refusal, kind: str, trailer: int) -> None:
    # The last bytes hold an end mark and row padding; what comes before them is pixels.
    data = saved(Image.fromarray(PIXELS).quantize() if kind == "GIF" else Image.fromarray(PIXELS), kind)
    for cut in [*range(1, len(data) - trailer, 13), len(data) - trailer - 1]:
        refusal(data[:cut])


def test_a_deep_image_cut_anywhere_is_refused(refusal, build_png) -> None:
    samples = np.random.default_rng(1).integers(0, 65536, (6, 7, 3), dtype=np.uint16)
    for data in (build_png(samples, 2), b"P6\n7 6\n65535\n" + samples.astype(">u2").tobytes()):
        for cut in range(1, len(data), 2):
            refusal(data[:cut])
        refusal(data[:-1])


def test_a_flipped_bit_anywhere_in_a_png_is_refused(refusal) -> None:
    data = saved(Image.fromarray(PIXELS[:6, :6]), "PNG")
    for place in range(len(data)):
        refusal(data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM", "TGA", "QOI", "ICO", "AVIF"])
def test_random_damage_gives_an_image_or_a_refusal(tmp_path: Path, kind: str) -> None:
    data = np.frombuffer(saved(Image.fromarray(PIXELS), kind), np.uint8)
    rng = np.random.default_rng(5)
    for _ in range(40):
        damaged = data.copy()
        places = rng.integers(0, min(len(data), rng.choice([40, 400, len(data)])), 4)
        damaged[places] = rng.integers(0, 256, 4)
        (tmp_path / "bad.img").write_bytes(damaged.tobytes())
        try:
            pixels = read_image(tmp_path / "bad.img")
        except InputError:
            continue
        assert pixels.dtype == np.float32 and pixels.shape[2] == 3
        assert pixels.min() >= 0 and pixels.max() <= 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.nan, "contains NaN or infinite samples"),
        (np.inf, "contains NaN or infinite samples"),
        (1.5, r"float samples in [0, 1.5]; scale them to [0, 1]"),
        (-0.25, r"float samples in [-0.25, 0]"),
    ],
)
def test_float_samples_out_of_range_are_refused(refusal, bad: float, message: str) -> None:
    samples = np.zeros((3, 3), dtype=np.float32)
    samples[1, 1] = bad
    assert message in refusal(saved(Image.fromarray(samples), "TIFF"))


def test_samples_whose_white_is_unknown_are_refused(refusal) -> None:
    samples = Image.fromarray(np.full((3, 3), 70000, dtype=np.int32))
    assert "32-bit integer samples" in refusal(saved(samples, "TIFF"))


def test_lab_colors_are_refused(refusal) -> None:
    assert "Lab colors" in refusal(saved(Image.new("LAB", (3, 3)), "TIFF"))


def huge_header(kind: str, width: int, height: int) -> bytes:
    if kind == "BMP":
        return struct.pack("<2sIIIIiiHHIIiiII", b"BM", 54, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return f"P6\n{width} {height}\n255\n".encode()


@pytest.mark.parametrize("kind", ["BMP", "PPM"])
@pytest.mark.parametrize("size", [(2**14, 2**13 + 1), (2**15, 2**15), (2**30, 2**30)])
def test_an_image_over_the_pixel_limit_is_refused_from_its_header(refusal, kind: str, size: tuple[int, int]) -> None:
    assert f"over the limit of {MAX_PIXELS} pixels" in refusal(huge_header(kind, *size))


def test_a_png_over_the_pixel_limit_is_refused_from_its_header(refusal, build_png) -> None:
    data = build_png(np.zeros((2, 2, 3), dtype=np.uint8), 2, size=(2**14, 2**13 + 1))
    assert "is 16384x8193, over the limit" in refusal(data)


def test_a_large_image_within_the_limit_raises_no_warning(refusal) -> None:
    # 100 million pixels: Pillow warns here, and the file is too short for them.
    assert "declares 10000x10000 pixels, more than its 54 bytes" in refusal(huge_header("BMP", 10_000, 10_000))


def test_a_file_too_large_for_any_image_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "sparse.png").open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(InputError, match=r"sparse\.png is 8589934592 bytes long, too large for an image"):
        read_image(tmp_path / "sparse.png")


def test_a_decoder_that_breaks_is_a_refusal(refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(_: object) -> None:
        raise KeyError("no such table")

    monkeypatch.setattr(ImageFile.ImageFile, "load", break_down)
    assert "damaged or cut short" in refusal(saved(Image.fromarray(PIXELS), "BMP"))


def test_reading_in_threads_leaves_the_warning_filters_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(saved(Image.fromarray(PIXELS), "PNG"))
    before = list(warnings.filters)
    threads = [threading.Thread(target=read_image, args=(tmp_path / "a.png",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before


def test_quiet_scopes_may_end_in_any_order() -> None:
    before = list(warnings.filters)
    first, second = quiet_pillow(), quiet_pillow()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert list(warnings.filters) == before
    with quiet_pillow(), pytest.raises(UserWarning, match="mine"):
        warnings.warn("mine", stacklevel=1)
