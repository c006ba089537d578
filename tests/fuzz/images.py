"""Kinds of images, and of flow, depth and cameras as arrays."""

import io
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from protoformer.datasets.manifest import ManifestDepth
from protoformer.datasets.segmentation import read_labels
from protoformer.io.formats import (
    Camera,
    read_cam,
    read_dpt,
    read_flo,
    read_kitti_depth,
    read_kitti_disparity,
    read_kitti_flow,
    read_mm_depth,
    read_pfm,
    read_pfm_flow,
    read_vkitti2_depth,
    read_vkitti2_flow,
    write_cam,
    write_dpt,
    write_flo,
    write_kitti_depth,
    write_kitti_disparity,
    write_kitti_flow,
    write_mm_depth,
    write_pfm,
    write_pfm_flow,
)
from protoformer.io.image import focal_in_35mm, image_size, read_cutout, read_image
from protoformer.io.png import encode_png
from protoformer.segmentation.result import encode_labels
from tests.fuzz.kind import Kind
from tests.fuzz.mutations import (
    declared_size,
    jpeg_segments,
    mp4_boxes,
    png_chunks,
    replace_word,
    riff_chunks,
    tiff_tags,
)
from tests.support.vkitti2_writers import write_vkitti2_depth, write_vkitti2_flow

HEIGHT, WIDTH = 18, 29


def pixels(seed: int = 0, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """A gradient with noise, uint8 HxWx3."""
    rows, columns = np.mgrid[:height, :width]
    smooth = np.stack((rows * 9, columns * 6, rows + columns), axis=-1)
    return (smooth + np.random.default_rng(seed).integers(0, 40, smooth.shape)).clip(0, 255).astype(np.uint8)


def encoded(image: Image.Image, format_name: str, **options: Any) -> bytes:
    """The bytes of a picture in a format of Pillow's."""
    buffer = io.BytesIO()
    image.save(buffer, format_name, **options)
    return buffer.getvalue()


def written(suffix: str, *writers: Callable[[Path], object]) -> list[bytes]:
    """The bytes of what functions write to a path."""
    found = []
    with TemporaryDirectory() as folder:
        for number, write in enumerate(writers):
            path = Path(folder) / f"{number}{suffix}"
            write(path)
            found.append(path.read_bytes())
    return found


def read_decoded(path: Path) -> None:
    """Read all that the package reads of an image."""
    image_size(path)
    focal_in_35mm(path)
    assert read_image(path).ndim == 3
    read_cutout(path)


def _rgb() -> Image.Image:
    return Image.fromarray(pixels())


def _modes(format_name: str, modes: Sequence[str], **options: Any) -> Callable[[], list[bytes]]:
    return lambda: [encoded(_rgb().convert(mode), format_name, **options) for mode in modes]


def _pngs() -> list[bytes]:
    deep = np.repeat(pixels()[..., :1].astype(np.uint16) * 257, 3, axis=-1)
    return [
        *_modes("PNG", ("RGB", "L", "P", "1", "RGBA", "LA"))(),
        encode_png(deep),
        encode_png(deep[..., 0]),
        encoded(_rgb(), "PNG", save_all=True, append_images=[Image.fromarray(pixels(1))]),
        encoded(_rgb(), "PNG", exif=_exif(), dpi=(72, 72)),
    ]


def _jpegs() -> list[bytes]:
    return [
        encoded(_rgb(), "JPEG"),
        encoded(_rgb(), "JPEG", progressive=True, exif=_exif()),
        encoded(_rgb().convert("CMYK"), "JPEG", restart_marker_blocks=2),
        encoded(_rgb().convert("L"), "JPEG", subsampling=0, comment=b"comment"),
    ]


def _exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.get_ifd(0x8769)[0xA405] = 28
    return exif.tobytes()


def _tiffs() -> list[bytes]:
    methods = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")
    plain = [encoded(_rgb(), "TIFF", compression=method) for method in methods]
    fax = encoded(_rgb().convert("1"), "TIFF", compression="group4")
    deep = encoded(Image.fromarray(pixels()[..., 0].astype(np.uint16) * 257), "TIFF")
    floats = encoded(Image.fromarray(pixels()[..., 0].astype(np.float32) / 255), "TIFF")
    import cv2

    color = cv2.imencode(".tiff", pixels().astype(np.uint16) * 257)[1].tobytes()
    return [*plain, fax, deep, floats, color]


def _ppms() -> list[bytes]:
    deep = pixels().astype(">u2") * 257
    return [
        *_modes("PPM", ("RGB", "L", "1"))(),
        b"P6 29 18 65535\n" + deep.astype(">u2").tobytes(),
        b"P2\n# comment\n3 2\n255\n1 2 3\n4 5 6\n",
        b"P3 2 1 255 1 2 3 4 5 6\n",
    ]


def _gifs() -> list[bytes]:
    frames = [Image.fromarray(pixels(seed)) for seed in range(3)]
    animated = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=40, loop=0)
    return [encoded(_rgb(), "GIF"), encoded(_rgb().convert("L"), "GIF", transparency=3), animated]


def _psds() -> list[bytes]:
    """Photoshop files by hand, since Pillow writes none: planes as they are, and in runs."""
    head = b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, HEIGHT, WIDTH, 8, 3) + bytes(12)
    planes = pixels().transpose(2, 0, 1)
    rows = [b"".join(b"\0" + bytes((value,)) for value in row) for plane in planes for row in plane.tolist()]
    lengths = b"".join(struct.pack(">H", len(row)) for row in rows)
    return [head + struct.pack(">H", 0) + planes.tobytes(), head + struct.pack(">H", 1) + lengths + b"".join(rows)]


def _suns() -> list[bytes]:
    """Sun raster files by hand, since Pillow writes none; rows have an even number of bytes."""
    rows = np.pad(pixels()[..., ::-1].reshape(HEIGHT, -1), ((0, 0), (0, 3 * WIDTH % 2))).tobytes()
    return [struct.pack(">8I", 0x59A66A95, WIDTH, HEIGHT, 24, len(rows), 1, 0, 0) + rows]


def _flow() -> np.ndarray:
    return (pixels()[..., :2].astype(np.float32) - 128) / 16


def _depth() -> np.ndarray:
    return pixels()[..., 0].astype(np.float32) / 16 + 0.5


def _camera() -> Camera:
    return Camera(np.diag([500.0, 500.0, 1.0]), np.eye(3, 4))


def _npys() -> list[bytes]:
    def saved(array: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, array)
        return buffer.getvalue()

    return [saved(_depth()), saved(np.asfortranarray(_depth().astype(np.float64))), saved(_depth().astype(np.uint16))]


def _read_npy(path: Path) -> None:
    (path.parent / "image.png").write_bytes(encode_png(pixels()))
    manifest = path.parent / "manifest.csv"
    manifest.write_text(f"image,depth\nimage.png,{path.name}\n")
    ManifestDepth(manifest)[0]


def _image(name: str, suffix: str, seeds: Callable[[], Sequence[bytes]], *structured: Any, share: int = 1) -> Kind:
    return Kind(name, suffix, seeds, read_decoded, (*structured, declared_size(WIDTH, HEIGHT)), share)


def _labels() -> np.ndarray:
    """Numbers of objects, as in masks."""
    return (np.arange(WIDTH * HEIGHT, dtype=np.int64) // 7 % 4).astype(np.uint8).reshape(HEIGHT, WIDTH)


def _truth(name: str, suffix: str, write: Callable[[Path], object], read: Callable[[Path], object]) -> Kind:
    """A 16-bit PNG or an array, by the package's own writer."""
    structured = (declared_size(WIDTH, HEIGHT), *{".png": (png_chunks,), ".pfm": (replace_word,)}.get(suffix, ()))
    return Kind(name, suffix, lambda: written(suffix, write), read, structured)


IMAGES: tuple[Kind, ...] = (
    _image("png", ".png", _pngs, png_chunks, share=2),
    _image("jpeg", ".jpg", _jpegs, jpeg_segments, share=2),
    _image("tiff", ".tif", _tiffs, tiff_tags, share=2),
    _image("ppm", ".ppm", _ppms, replace_word),
    _image("bmp", ".bmp", _modes("BMP", ("RGB", "L", "P", "1", "RGBA"))),
    _image("dib", ".dib", _modes("DIB", ("RGB", "P"))),
    _image("gif", ".gif", _gifs, share=2),
    _image(
        "webp",
        ".webp",
        lambda: [
            encoded(_rgb().convert(mode), "WEBP", lossless=lossless) for mode in ("RGB", "RGBA") for lossless in (0, 1)
        ],
        riff_chunks,
        share=2,
    ),
    _image("ico", ".ico", lambda: [encoded(_rgb(), "ICO", bitmap_format=kind) for kind in ("png", "bmp")], png_chunks),
    _image("icns", ".icns", lambda: [encoded(_rgb().resize((32, 32)), "ICNS")]),
    _image("avif", ".avif", _modes("AVIF", ("RGB", "RGBA")), mp4_boxes),
    _image("jp2", ".jp2", _modes("JPEG2000", ("RGB", "L", "RGBA")), mp4_boxes),
    _image(
        "dds", ".dds", lambda: [encoded(_rgb(), "DDS"), encoded(_rgb().convert("RGBA"), "DDS", pixel_format="DXT5")]
    ),
    _image("pcx", ".pcx", _modes("PCX", ("RGB", "L", "P", "1"))),
    _image("psd", ".psd", _psds),
    _image("sun", ".ras", _suns),
    _image("qoi", ".qoi", _modes("QOI", ("RGB", "RGBA"))),
    _image("sgi", ".sgi", _modes("SGI", ("RGB", "L", "RGBA"))),
    _image("tga", ".tga", lambda: [encoded(_rgb(), "TGA"), encoded(_rgb().convert("P"), "TGA", compression="tga_rle")]),
)
"""Images that Pillow and OpenCV decode."""

ARRAYS: tuple[Kind, ...] = (
    _truth("flo", ".flo", lambda path: write_flo(path, _flow()), read_flo),
    _truth("pfm", ".pfm", lambda path: write_pfm(path, _depth()), read_pfm),
    _truth("pfmflow", ".pfm", lambda path: write_pfm_flow(path, _flow()), read_pfm_flow),
    _truth("dpt", ".dpt", lambda path: write_dpt(path, _depth()), read_dpt),
    _truth("cam", ".cam", lambda path: write_cam(path, _camera()), read_cam),
    Kind("masks", ".png", lambda: [encode_labels(_labels()), encode_png(_labels())], read_labels, (png_chunks,)),
    Kind("npy", ".npy", _npys, _read_npy, (replace_word,)),
    _truth("kittiflow", ".png", lambda path: write_kitti_flow(path, _flow()), read_kitti_flow),
    _truth("kittidepth", ".png", lambda path: write_kitti_depth(path, _depth()), read_kitti_depth),
    _truth("kittidisparity", ".png", lambda path: write_kitti_disparity(path, _depth()), read_kitti_disparity),
    _truth("vkitti2flow", ".png", lambda path: write_vkitti2_flow(path, _flow()), read_vkitti2_flow),
    _truth("vkitti2depth", ".png", lambda path: write_vkitti2_depth(path, _depth()), read_vkitti2_depth),
    _truth("mmdepth", ".png", lambda path: write_mm_depth(path, _depth()), read_mm_depth),
)
"""Flow, depth and cameras, as benchmarks store them."""
