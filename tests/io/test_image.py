"""Every kind of image becomes float RGB in [0, 1] with the values its format defines."""

import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from protoformer.errors import InputError
from protoformer.io.image import read_cutout, read_image, write_image
from protoformer.io.png import encode_png

RNG = np.random.default_rng(7)
GRAY8 = RNG.integers(0, 256, (4, 5), dtype=np.uint8)
RGB8 = RNG.integers(0, 256, (4, 5, 3), dtype=np.uint8)
GRAY16 = RNG.integers(0, 65536, (4, 5), dtype=np.uint16)
RGB16 = RNG.integers(0, 65536, (4, 5, 3), dtype=np.uint16)
RGBA16 = RNG.integers(0, 65536, (4, 5, 4), dtype=np.uint16)

# How an upright picture is stored under each EXIF orientation, from the standard's table.
STORED = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: np.rot90(upright, 2).swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def scaled(samples: np.ndarray, white: int) -> np.ndarray:
    """Samples as RGB in [0, 1]: gray repeated, alpha over black."""
    values = samples.astype(np.float32) / np.float32(white)
    if values.ndim == 2:
        return np.stack([values] * 3, axis=-1)
    return values[..., :3] * values[..., 3:] if values.shape[2] == 4 else values


def tiff(shape: tuple[int, int, int], bits: int, body: bytes, **declared: int) -> bytes:
    """A little-endian uncompressed TIFF (HxWxC) in one strip, `body` being its packed samples."""
    height, width, channels = shape
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: declared["photometric"], 273: 0}
    tags |= {274: declared.get("orientation", 1), 277: channels, 278: height, 279: len(body)}
    tags |= {284: declared.get("planes", 1)}
    if "extra_sample" in declared:
        tags[338] = declared["extra_sample"]
    end = 8 + 2 + 12 * len(tags) + 4
    tags[273] = end + 2 * channels
    entries = b"".join(struct.pack("<HHIHH", number, 3, 1, value, 0) for number, value in tags.items())
    if channels > 2:
        # Three values of two bytes do not fit in the entry, which then says where they are.
        entries = entries.replace(
            struct.pack("<HHIHH", 258, 3, 1, bits, 0), struct.pack("<HHII", 258, 3, channels, end)
        )
    depths = struct.pack(f"<{channels}H", *[bits] * channels)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4) + depths + body


def tiff16(samples: np.ndarray, **declared: int) -> bytes:
    """A 16-bit TIFF of uint16 HxWxC samples."""
    return tiff(samples.shape, 16, samples.astype("<u2").tobytes(), **declared)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], np.ndarray]:
    """Read bytes as an image file; the name says nothing, the content must."""

    def read_bytes(data: bytes) -> np.ndarray:
        (tmp_path / "image").write_bytes(data)
        pixels = read_image(tmp_path / "image")
        assert pixels.dtype == np.float32
        assert pixels.flags.c_contiguous
        return pixels

    return read_bytes


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("PPM", {}),
        ("BMP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {"lossless": True}),
        ("TGA", {}),
        ("QOI", {}),
    ],
)
def test_8_bit_rgb_is_value_over_255_in_every_lossless_format(read, kind: str, options: dict) -> None:
    np.testing.assert_array_equal(read(saved(Image.fromarray(RGB8), kind, **options)), scaled(RGB8, 255))


def test_jpeg_is_what_its_decoder_gives(read) -> None:
    data = saved(Image.fromarray(np.full((16, 16, 3), (200, 100, 50), dtype=np.uint8)), "JPEG", quality=95)
    np.testing.assert_allclose(read(data)[8, 8] * 255, (200, 100, 50), atol=2)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF", "GIF"])
def test_8_bit_gray_is_repeated_in_three_channels(read, kind: str) -> None:
    np.testing.assert_array_equal(read(saved(Image.fromarray(GRAY8), kind)), scaled(GRAY8, 255))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM", "BMP"])
def test_one_bit_is_black_or_white(read, kind: str) -> None:
    bits = GRAY8 > 127
    np.testing.assert_array_equal(read(saved(Image.fromarray(bits), kind)), scaled(bits, 1))


def test_gray_with_alpha_is_over_black(read, build_png) -> None:
    samples = np.array([[(200, 255), (200, 0), (100, 51)]], dtype=np.uint8)
    expected = [[[200 / 255] * 3, [0] * 3, [100 / 255 * 0.2] * 3]]
    np.testing.assert_allclose(read(build_png(samples, 4)), expected, rtol=1e-6)


def test_rgba_is_over_black(read, build_png) -> None:
    samples = np.array([[(255, 128, 0, 255), (255, 128, 0, 0), (255, 0, 255, 102)]], dtype=np.uint8)
    expected = [[[1, 128 / 255, 0], [0, 0, 0], [0.4, 0, 0.4]]]
    np.testing.assert_allclose(read(build_png(samples, 6)), expected, rtol=1e-6)
    np.testing.assert_array_equal(read(build_png(samples, 6)), scaled(samples, 255))


def test_a_palette_gives_its_colors(read, build_png) -> None:
    indices = np.array([[0, 1], [2, 1]], dtype=np.uint8)
    palette = {b"PLTE": bytes([255, 0, 0, 0, 255, 0, 0, 0, 51])}
    expected = np.array([[(1, 0, 0), (0, 1, 0)], [(0, 0, 0.2), (0, 1, 0)]], dtype=np.float32)
    np.testing.assert_array_equal(read(build_png(indices, 3, palette)), expected)


def test_a_palette_with_transparency_is_over_black(read, build_png) -> None:
    indices = np.array([[0, 1], [2, 1]], dtype=np.uint8)
    chunks = {b"PLTE": bytes([255, 0, 0, 0, 255, 0, 0, 0, 255]), b"tRNS": bytes([255, 0, 51])}
    expected = np.array([[(1, 0, 0), (0, 0, 0)], [(0, 0, 0.2), (0, 0, 0)]], dtype=np.float32)
    np.testing.assert_array_equal(read(build_png(indices, 3, chunks)), expected)


@pytest.mark.parametrize("transparent", [None, 1])
def test_the_first_frame_of_a_gif_is_read(read, transparent: int | None) -> None:
    frames = [Image.new("P", (3, 2), index) for index in (1, 2)]
    for frame in frames:
        frame.putpalette([0, 0, 0, 255, 0, 51, 0, 0, 255])
    options = {} if transparent is None else {"transparency": transparent}
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:], **options)
    expected = np.zeros((2, 3, 3), dtype=np.float32)
    if transparent is None:
        expected[:] = (1, 0, 0.2)
    np.testing.assert_array_equal(read(data), expected)


@pytest.mark.parametrize("kind", ["TIFF", "JPEG"])
def test_cmyk_becomes_rgb(read, kind: str) -> None:
    # Cyan at full strength with no black: red is gone, green and blue stay.
    pixels = read(saved(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), kind))
    np.testing.assert_allclose(pixels, np.broadcast_to([0, 1, 1], (16, 16, 3)), atol=2 / 255)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied(read, kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](RGB8)))
    options = {"lossless": True} if kind == "WEBP" else {}
    np.testing.assert_array_equal(read(saved(stored, kind, exif=exif, **options)), scaled(RGB8, 255))


def test_exif_orientation_of_a_jpeg_is_applied(read) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the stored left column is the top row
    stored = np.zeros((32, 48, 3), dtype=np.uint8)
    stored[:, :16] = 255
    pixels = read(saved(Image.fromarray(stored), "JPEG", exif=exif, quality=95))
    assert pixels.shape == (48, 32, 3)
    assert pixels[:16].min() > 0.98 and pixels[16:].max() < 0.02


@pytest.mark.parametrize("orientation", [0, 9, 300])
def test_an_orientation_outside_the_standard_is_ignored(read, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(read(saved(Image.fromarray(RGB8), "PNG", exif=exif)), scaled(RGB8, 255))


def test_damaged_exif_does_not_stop_the_pixels(read, build_png) -> None:
    np.testing.assert_array_equal(read(build_png(RGB8, 2, {b"eXIf": b"II*\0\xff\xff"})), scaled(RGB8, 255))


@pytest.mark.parametrize(("samples", "color_type"), [(GRAY16, 0), (RGB16, 2), (RGBA16, 6)])
def test_16_bit_png_keeps_every_bit(read, build_png, samples: np.ndarray, color_type: int) -> None:
    np.testing.assert_array_equal(read(build_png(samples, color_type)), scaled(samples, 65535))


def test_16_bit_gray_with_alpha_keeps_every_bit(read, build_png) -> None:
    expected = scaled(RGBA16[..., [0, 0, 0, 3]], 65535)
    np.testing.assert_array_equal(read(build_png(RGBA16[..., [0, 3]], 4)), expected)


def test_the_one_transparent_color_of_a_png_is_black(read, build_png) -> None:
    for samples, color_type in ((GRAY8, 0), (RGB8, 2), (GRAY16, 0), (RGB16, 2)):
        chosen = samples[1, 2]
        expected = scaled(samples, 65535 if samples.dtype == np.uint16 else 255)
        expected[np.atleast_3d(samples == chosen).all(axis=-1)] = 0
        chunk = {b"tRNS": np.atleast_1d(chosen).astype(">u2").tobytes()}
        np.testing.assert_array_equal(read(build_png(samples, color_type, chunk)), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_16_bit_png_is_turned_upright(read, build_png, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    body = exif.tobytes().removeprefix(b"Exif\0\0")
    data = build_png(np.ascontiguousarray(STORED[orientation](RGB16)), 2, {b"eXIf": body})
    np.testing.assert_array_equal(read(data), scaled(RGB16, 65535))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("samples", "photometric"), [(GRAY16[..., None], 1), (RGB16, 2)])
def test_16_bit_tiff_keeps_every_bit_and_is_turned_upright(
    read, samples: np.ndarray, photometric: int, orientation: int
) -> None:
    data = tiff16(np.ascontiguousarray(STORED[orientation](samples)), photometric=photometric, orientation=orientation)
    np.testing.assert_array_equal(read(data), scaled(samples if samples.shape[2] == 3 else samples[..., 0], 65535))


def test_16_bit_tiff_where_zero_is_white_is_inverted(read) -> None:
    np.testing.assert_array_equal(read(tiff16(GRAY16[..., None], photometric=0)), scaled(65535 - GRAY16, 65535))


def test_12_bit_tiff_is_value_over_4095(read) -> None:
    # Two samples of twelve bits share three bytes: 0xFFF and 0x800.
    pixels = read(tiff((1, 2, 1), 12, b"\xff\xf8\x00", photometric=1))
    np.testing.assert_allclose(pixels, [[[1] * 3, [0x800 / 4095] * 3]], rtol=1e-6)


def test_16_bit_tiff_in_separate_planes_is_refused_not_misread(read) -> None:
    with pytest.raises(InputError, match="image "):
        read(tiff16(RGB16, photometric=2, planes=2))


def test_compressed_16_bit_tiff_keeps_every_bit(read) -> None:
    _, data = cv2.imencode(".tiff", RGB16[..., ::-1])
    np.testing.assert_array_equal(read(data.tobytes()), scaled(RGB16, 65535))


@pytest.mark.parametrize(("extra_sample", "multiplied"), [(0, False), (1, False), (2, True)])
def test_alpha_of_a_16_bit_tiff_counts_as_its_header_says(read, extra_sample: int, multiplied: bool) -> None:
    expected = scaled(RGBA16 if multiplied else RGBA16[..., :3], 65535)
    np.testing.assert_array_equal(read(tiff16(RGBA16, photometric=2, extra_sample=extra_sample)), expected)


@pytest.mark.parametrize("white", [1023, 65535])
def test_deep_ppm_is_value_over_its_own_white(read, white: int) -> None:
    samples = np.minimum(RGB16, white)
    data = f"P6 # a comment\n5 4\n{white}\n".encode() + samples.astype(">u2").tobytes()
    np.testing.assert_array_equal(read(data), scaled(samples, white))


def test_deep_gray_ppm_keeps_every_bit(read) -> None:
    data = b"P5\n5 4\n65535\n" + GRAY16.astype(">u2").tobytes()
    np.testing.assert_array_equal(read(data), scaled(GRAY16, 65535))


def test_float_samples_in_range_are_taken_as_they_are(read) -> None:
    samples = RNG.random((4, 5), dtype=np.float32)
    samples[0, :2] = (0, 1)
    np.testing.assert_array_equal(read(saved(Image.fromarray(samples), "TIFF")), scaled(samples, 1))


@pytest.fixture
def cut(tmp_path: Path) -> Callable[[bytes], np.ndarray]:
    """Read bytes as an image file with its alpha."""

    def read_bytes(data: bytes) -> np.ndarray:
        (tmp_path / "image").write_bytes(data)
        pixels = read_cutout(tmp_path / "image")
        assert pixels.dtype == np.float32
        assert pixels.flags.c_contiguous
        return pixels

    return read_bytes


@pytest.mark.parametrize("samples", [RGBA16, (RGBA16 >> 8).astype(np.uint8)])
def test_a_cut_out_keeps_its_colors_where_it_is_transparent(cut, build_png, samples: np.ndarray) -> None:
    white = np.float32(np.iinfo(samples.dtype).max)
    np.testing.assert_array_equal(cut(build_png(samples, 6)), samples.astype(np.float32) / white)


def test_a_cut_out_of_gray_repeats_it_in_three_channels(cut, build_png) -> None:
    expected = RGBA16[..., [0, 0, 0, 3]].astype(np.float32) / np.float32(65535)
    np.testing.assert_array_equal(cut(build_png(RGBA16[..., [0, 3]], 4)), expected)


@pytest.mark.parametrize("samples", [GRAY8, RGB8, GRAY16, RGB16])
def test_an_image_without_transparency_is_a_cut_out_of_alpha_1(cut, samples: np.ndarray) -> None:
    pixels = cut(encode_png(samples))
    np.testing.assert_array_equal(pixels[..., :3], scaled(samples, np.iinfo(samples.dtype).max))
    np.testing.assert_array_equal(pixels[..., 3], np.ones((4, 5)))


@pytest.mark.parametrize(("samples", "color_type"), [(GRAY8, 0), (RGB8, 2), (GRAY16, 0), (RGB16, 2)])
def test_the_one_transparent_color_of_a_png_has_alpha_0(cut, build_png, samples: np.ndarray, color_type: int) -> None:
    chosen = samples[1, 2]
    pixels = cut(build_png(samples, color_type, {b"tRNS": np.atleast_1d(chosen).astype(">u2").tobytes()}))
    np.testing.assert_array_equal(pixels[..., 3] == 0, np.atleast_3d(samples == chosen).all(axis=-1))
    np.testing.assert_array_equal(pixels[..., :3], scaled(samples, np.iinfo(samples.dtype).max))


@pytest.mark.parametrize(("extra_sample", "kept"), [(0, False), (2, True)])
def test_a_cut_out_of_a_16_bit_tiff_has_its_alpha(cut, extra_sample: int, kept: bool) -> None:
    expected = RGBA16.astype(np.float32) / np.float32(65535)
    if not kept:
        expected[..., 3] = 1
    np.testing.assert_array_equal(cut(tiff16(RGBA16, photometric=2, extra_sample=extra_sample)), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_cut_out_is_turned_upright(cut, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    samples = (RGBA16 >> 8).astype(np.uint8)
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](samples)))
    np.testing.assert_array_equal(cut(saved(stored, "PNG", exif=exif)), samples.astype(np.float32) / np.float32(255))


@pytest.mark.parametrize("data", [b"text", b"", encode_png(RGB8)[:-20]])
def test_a_cut_out_that_cannot_be_read_is_refused(cut, data: bytes) -> None:
    with pytest.raises(InputError, match=r"image .*\.$"):
        cut(data)


@pytest.mark.parametrize("suffix", [".png", ".PNG"])
@pytest.mark.parametrize("pixels", [GRAY8, RGB8, RGB8[::-1, ::2]])
def test_a_written_png_reads_back_exactly(tmp_path: Path, suffix: str, pixels: np.ndarray) -> None:
    write_image(tmp_path / f"a{suffix}", pixels)
    np.testing.assert_array_equal(read_image(str(tmp_path / f"a{suffix}")), scaled(pixels, 255))


@pytest.mark.parametrize("pixels", [GRAY16, RGB16, RGB16[::-1, ::2]])
def test_a_written_16_bit_png_reads_back_exactly(tmp_path: Path, pixels: np.ndarray) -> None:
    write_image(tmp_path / "a.png", pixels)
    read = read_image(tmp_path / "a.png")
    np.testing.assert_array_equal(read, scaled(pixels, 65535))
    again = np.rint(read * 65535).astype(np.uint16)
    np.testing.assert_array_equal(again, pixels if pixels.ndim == 3 else np.stack([pixels] * 3, axis=-1))


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".JPG"])
def test_a_written_jpeg_is_a_jpeg_close_to_its_pixels(tmp_path: Path, suffix: str) -> None:
    pixels = np.broadcast_to(np.array([30, 140, 220], dtype=np.uint8), (16, 16, 3))
    write_image(tmp_path / f"a{suffix}", pixels)
    assert (tmp_path / f"a{suffix}").read_bytes().startswith(b"\xff\xd8\xff")
    np.testing.assert_allclose(read_image(tmp_path / f"a{suffix}"), scaled(pixels, 255), atol=3 / 255)


@settings(deadline=None, max_examples=40)
@given(
    pixels=st.sampled_from([np.uint8, np.uint16]).flatmap(
        lambda kind: hnp.arrays(
            kind,
            st.one_of(
                st.tuples(st.integers(1, 6), st.integers(1, 6), st.just(3)), hnp.array_shapes(min_dims=2, max_dims=2)
            ),
        )
    )
)
def test_an_encoded_png_decodes_to_the_same_pixels(
    tmp_path_factory: pytest.TempPathFactory, pixels: np.ndarray
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.png"
    path.write_bytes(encode_png(pixels))
    white = 255 if pixels.dtype == np.uint8 else 65535
    np.testing.assert_array_equal(read_image(path), scaled(pixels, white))


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.zeros((2, 2), dtype=np.float32), "uint8 or uint16 pixels, not float32"),
        (np.zeros((2, 2, 4), dtype=np.uint8), r"HxW or HxWx3 with at least one pixel, not \(2, 2, 4\)"),
        (np.zeros((0, 2), dtype=np.uint8), r"not \(0, 2\)"),
        (np.zeros(4, dtype=np.uint16), r"not \(4,\)"),
    ],
)
def test_what_a_png_cannot_hold_is_refused(pixels: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        encode_png(pixels)


@pytest.mark.parametrize(
    ("name", "pixels", "message"),
    [
        ("a.bmp", RGB8, r"a\.bmp does not end in \.png, \.jpg or \.jpeg"),
        ("a", RGB8, "does not end in"),
        ("a.jpg", RGB16, r"a\.jpg are uint16; convert them to uint8 first"),
        ("a.png", RGB8 / 255, r"a\.png are float64; convert them to uint8 or uint16 first"),
        ("a.jpg", np.zeros((2, 2, 2), dtype=np.uint8), "HxW or HxWx3"),
        ("a.jpg", np.zeros((1, 70000), dtype=np.uint8), "do not fit in a jpeg; write a png"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, name: str, pixels: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_image(tmp_path / name, pixels)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_a_full_disk_keeps_the_old_image(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"old")
    with pytest.raises(InputError, match="No space left"):
        write_image(tmp_path / name, RGB8)
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"old"]
