"""The colors of a video are those that were meant: by its matrix, its range, its depth and its alpha."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.video.color_conversion import decode_size_tag
from protoformer.video.reader import open_video

av = pytest.importorskip("av")

Make = Callable[..., Path]
COLORS = [(255, 255, 255), (0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255), (128, 128, 128), (200, 60, 30)]
BT709, UNSPECIFIED, BT601, BT2020 = 1, 2, 6, 9
LIMITED, FULL = 1, 2
WEIGHTS = {BT709: (0.2126, 0.0722), BT601: (0.299, 0.114), BT2020: (0.2627, 0.0593)}


def coded(color: tuple[int, int, int], matrix: int, full: bool, bits: int) -> list[int]:
    """Y, Cb and Cr of a color as the recommendations define them."""
    red, green, blue = (channel / 255 for channel in color)
    of_red, of_blue = WEIGHTS[matrix]
    luma = of_red * red + (1 - of_red - of_blue) * green + of_blue * blue
    chroma = ((blue - luma) / (2 - 2 * of_blue), (red - luma) / (2 - 2 * of_red))
    if full:
        most = 2**bits - 1
        return [round(luma * most), *(min(most, round(value * most + 2 ** (bits - 1))) for value in chroma)]
    scale = 2 ** (bits - 8)
    return [round((16 + 219 * luma) * scale), *(round((128 + 224 * value) * scale) for value in chroma)]


def flat(pixels: str, values: list[int], height: int = 16, width: int = 16) -> object:
    """A frame with one value in each of its planes."""
    frame = av.VideoFrame(width, height, pixels)
    for plane, value in zip(frame.planes, values, strict=True):
        kind = np.dtype("<u2" if any(depth in pixels for depth in ("10", "12", "16")) else "u1")
        plane.update(np.full(plane.buffer_size // kind.itemsize, value, kind).tobytes())
    return frame


def seen(path: Path) -> list[tuple[int, ...]]:
    """The color in the middle of every frame, each of which has but one."""
    frames = [frame.image for frame in open_video(path).frames()]
    assert all((image == image[0, 0]).all() for image in frames)
    return [tuple(image[0, 0].tolist()) for image in frames]


def worst(found: list[tuple[int, ...]], given: list[tuple[int, int, int]]) -> int:
    return int(np.abs(np.array(found, int) - np.array(given)).max())


@pytest.mark.parametrize("matrix", [BT709, BT601, BT2020])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("pixels", "bits"), [("yuv420p", 8), ("yuv422p", 8), ("yuv444p", 8), ("yuv420p10le", 10), ("yuv444p12le", 12)]
)
def test_a_named_matrix_and_range_are_obeyed(
    tmp_path: Path, make_video: Make, matrix: int, full: bool, pixels: str, bits: int
) -> None:
    frames = [flat(pixels, coded(color, matrix, full, bits)) for color in COLORS]
    path = make_video(
        tmp_path / "clip.mkv", frames, "ffv1", pixels, colorspace=matrix, color_range=FULL if full else LIMITED
    )
    assert worst(seen(path), COLORS) <= 1


@pytest.mark.parametrize(
    ("size", "matrix"), [((16, 16), BT601), ((576, 16), BT601), ((16, 1280), BT709), ((592, 16), BT709)]
)
def test_without_a_matrix_the_size_tells_it(
    tmp_path: Path, make_video: Make, size: tuple[int, int], matrix: int
) -> None:
    frames = [flat("yuv420p", coded(color, matrix, False, 8), *size) for color in COLORS]
    path = make_video(tmp_path / "clip.mkv", frames, "ffv1", "yuv420p", colorspace=UNSPECIFIED)
    assert worst(seen(path), COLORS) <= 1


def test_gray_is_spread_only_where_its_range_is_named(tmp_path: Path, make_video: Make) -> None:
    for marked, grays in ((LIMITED, [16, 126, 235]), (FULL, [0, 128, 255]), (0, [0, 128, 255])):
        frames = [flat("gray", [gray]) for gray in grays]
        path = make_video(tmp_path / "clip.mkv", frames, "ffv1", "gray", color_range=marked)
        assert worst(seen(path), [(0,) * 3, (128,) * 3, (255,) * 3]) <= 1
    deep = [flat("gray16le", [gray]) for gray in (0, 32896, 65535)]
    path = make_video(tmp_path / "deep.mkv", deep, "ffv1", "gray16le")
    assert worst(seen(path), [(0,) * 3, (128,) * 3, (255,) * 3]) <= 1


def test_what_is_seen_through_is_over_black(tmp_path: Path, make_video: Make) -> None:
    def pale(alpha: int) -> object:
        return av.VideoFrame.from_ndarray(np.full((16, 16, 4), (200, 60, 30, alpha), np.uint8), format="rgba")

    given = [(200, 60, 30), (100, 30, 15), (0, 0, 0)]
    for name, codec, pixels in [
        ("clip.mkv", "ffv1", "bgra"),
        ("clip.apng", "apng", "rgba"),
        ("clip.mov", "qtrle", "argb"),
    ]:
        path = make_video(tmp_path / name, [pale(255), pale(128), pale(0)], codec, pixels)
        assert worst(seen(path), given) <= 1
    through = [flat("yuva420p", [*coded((200, 60, 30), BT601, False, 8), alpha]) for alpha in (255, 128, 0)]
    path = make_video(tmp_path / "through.mkv", through, "ffv1", "yuva420p", colorspace=BT601, color_range=LIMITED)
    assert worst(seen(path), given) <= 1


def test_a_palette_is_looked_up(tmp_path: Path, make_video: Make) -> None:
    palette = np.zeros((256, 4), np.uint8)
    palette[:3] = [[255, 200, 60, 30], [255, 0, 255, 0], [0, 9, 9, 9]]  # alpha, red, green, blue
    frames = [
        av.VideoFrame.from_ndarray((np.full((16, 16), entry, np.uint8), palette), format="pal8") for entry in range(3)
    ]
    path = make_video(tmp_path / "clip.mov", frames, "png", "pal8")
    assert seen(path) == [(200, 60, 30), (0, 255, 0), (0, 0, 0)]


def test_colors_lie_where_they_were(tmp_path: Path, make_video: Make) -> None:
    """Half the frame red and half blue: coarse colors must not be shifted by more than their own step."""
    image = np.zeros((32, 32, 3), np.uint8)
    image[:, :16, 0] = image[:, 16:, 2] = 255
    path = make_video(tmp_path / "clip.mkv", [image], "ffv1", "yuv420p", colorspace=BT601)
    found = next(open_video(path).frames()).image
    assert worst(found[:, :13].reshape(-1, 3).tolist(), [(255, 0, 0)] * 32 * 13) <= 2
    assert worst(found[:, 19:].reshape(-1, 3).tolist(), [(0, 0, 255)] * 32 * 13) <= 2


def test_pixels_that_cannot_be_converted_are_told_at_once(
    tmp_path: Path, make_video: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_video(tmp_path / "clip.mkv", [np.zeros((16, 16, 3), np.uint8)], "ffv1", "yuv420p")

    def refused(*_: object, **__: object) -> None:
        raise av.error.OSError(95, "Operation not supported")

    monkeypatch.setattr("protoformer.video.color_conversion.FrameConverter.convert", refused)
    with pytest.raises(InputError, match=r"pixel format yuv420p.*convert it first\.$"):
        open_video(path)


def test_a_comment_with_endless_numbers_is_no_size() -> None:
    assert decode_size_tag("picture of 64x48; the rest repeats its border") == (48, 64)
    assert decode_size_tag(f"picture of {'9' * 5000}x48") is None and decode_size_tag("picture of 9999999x48") is None
