"""One way in for every kind of movie."""

import os
from fractions import Fraction
from pathlib import Path

from protoformer.files.movie import USUAL_RATE, Movie, exact_rate
from protoformer.files.movie_file import FileMovie
from protoformer.files.movie_images import ImageMovie, images_in, images_like, is_still
from protoformer.files.reading import checked_input, is_folder, path_exists


def open_movie(
    source: str | os.PathLike[str], rate: float | Fraction = USUAL_RATE, max_pixels: int | None = None
) -> Movie:
    """Open a video file of any kind that ffmpeg reads, a folder of images, or a pattern such as 'frames/*.png'.

    Images come in natural order, 2 before 10, `rate` of them a second; a video file knows its own times. What cannot
    be read is an `InputError` here and not later: the first frame has been decoded once when this returns.

    Frames of more than `max_pixels` pixels (None: `MAX_PIXELS`) are a `PixelLimitError`, from the header alone.
    """
    path, exact = Path(source), exact_rate(rate, source)
    if is_folder(path):
        return ImageMovie(images_in(path), exact, max_pixels)
    if any(sign in str(source) for sign in "*?[") and not path_exists(path):
        return ImageMovie(images_like(str(source)), exact, max_pixels)
    path = checked_input(path)
    return ImageMovie([path], exact, max_pixels) if is_still(path) else FileMovie(path, max_pixels)
