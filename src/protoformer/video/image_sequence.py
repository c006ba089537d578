"""Videos stored as a sequence of image files."""

import glob
import os
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np

from protoformer.errors import InputError
from protoformer.io.files import natural_key, open_input, system_reason
from protoformer.io.image import read_image
from protoformer.video.types import ImageArray, Video, VideoFrame, VideoInfo

IMAGE_SUFFIXES = frozenset(
    (
        *(".avif", ".bmp", ".dib", ".gif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm"),
        *(".qoi", ".tga", ".tif", ".tiff", ".webp"),
    )
)


class ImageSequence(Video):
    """Images of one size at a constant rate, read by `read_image` and rounded to 8 bits."""

    def __init__(self, paths: Iterable[Path], fps: Fraction, max_pixels: int | None = None) -> None:
        """Read the first image.

        Args:
            paths: The image files in order, at least one.
            fps: Frames per second.
            max_pixels: Maximum number of pixels of an image; None: `MAX_PIXELS`.
        """
        files = tuple(paths)
        self._max_pixels = max_pixels
        info = VideoInfo(
            paths=files,
            size=_read_uint8(files[0], max_pixels).shape[:2],
            fps=fps,
            time_base=1 / fps,
            start=Fraction(0),
            num_frames=len(files),
            duration=len(files) / fps,
            has_audio=False,
            codec=files[0].suffix.lower().removeprefix("."),
        )
        super().__init__(info)

    def _reading(self, start: float, end: float, frame_step: int) -> Iterator[VideoFrame]:
        times = ((number, number / self.info.fps) for number in range(len(self.info.paths)))
        inside = [(number, time) for number, time in times if start <= float(time) < end]
        for number, time in inside[::frame_step]:
            path = self.info.paths[number]
            image = _read_uint8(path, self._max_pixels)
            if image.shape[:2] != self.info.size:
                height, width = self.info.size
                raise InputError(
                    f"{path} is {image.shape[1]}x{image.shape[0]} where the images before it are {width}x{height}; "
                    "give images of one size."
                )
            yield VideoFrame(image, number, time)


def list_images(folder: Path) -> list[Path]:
    """List the images of a folder by their suffix, in natural order (frame_2 before frame_10), without hidden files.

    Raises:
        InputError: The folder cannot be listed or has no images.
    """
    try:
        images = [path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES]
    except OSError as error:
        raise InputError(f"{folder} cannot be listed ({system_reason(error)}); check its permissions.") from None
    files = _sort_visible(images)
    if not files:
        raise InputError(f"the folder {folder} holds no images; give a folder of png, jpeg or other images.")
    return files


def match_images(pattern: str) -> list[Path]:
    """List the files that match a pattern such as 'frames/*.png', in natural order (frame_2 before frame_10).

    Raises:
        InputError: No file matches.
    """
    files = _sort_visible(map(Path, names_like(pattern)))
    if not files:
        raise InputError(f"no file matches {pattern}; check the folder and the pattern.")
    return files


def names_like(pattern: str) -> list[str]:
    """List the paths that match a pattern.

    Leading folders that exist are taken literally, even if their names contain *, ? or [.

    Args:
        pattern: A pattern of `glob`, with ** for any number of folders.
    """
    parts = Path(pattern).parts
    num_literal = 0
    while num_literal < len(parts) - 1 and Path(*parts[: num_literal + 1]).is_dir():
        num_literal += 1
    escaped = [glob.escape(part) for part in parts[:num_literal]]
    return glob.glob(str(Path(*escaped, *parts[num_literal:])), recursive=True)  # noqa: PTH207 - it may be absolute


def is_image_file(path: Path) -> bool:
    """Return whether a file is a still image, by its suffix; animations that ffmpeg reads are not.

    Raises:
        InputError: The file cannot be read, or is an animated webp.
    """
    suffix = path.suffix.lower()
    if suffix not in IMAGE_SUFFIXES or suffix == ".gif":
        return False
    with open_input(path) as file:
        head = file.read(2**16)
    if head.startswith(b"RIFF") and b"ANIM" in head[:64]:
        raise InputError(f"{path} is an animated webp, which cannot be read; save it as gif, apng or mp4.")
    return b"acTL" not in head.split(b"IDAT")[0]


def _sort_visible(paths: Iterable[Path]) -> list[Path]:
    """Sort files in natural order, without hidden ones."""
    visible = [path for path in paths if not path.name.startswith(".") and path.is_file()]
    return sorted(visible, key=lambda path: natural_key(os.fspath(path)))


def _read_uint8(path: Path, max_pixels: int | None) -> ImageArray:
    samples = read_image(path, max_pixels)
    samples *= 255
    return np.rint(samples, out=samples).astype(np.uint8)
