"""What every command does with a clip around its own work."""

import sys
from fractions import Fraction
from pathlib import Path

from protoformer.errors import InputError
from protoformer.files import Movie, MovieWriter, checked_input, checked_output, open_movie
from protoformer.files.folders import made_folder
from protoformer.files.movie import USUAL_RATE
from protoformer.files.movie_images import ImageMovie, is_still
from protoformer.files.reading import is_folder, path_exists


def is_clip(source: str) -> bool:
    """Whether it is not one still image."""
    path = Path(source)
    pattern = any(sign in source for sign in "*?[") and not path_exists(path)
    return is_folder(path) or pattern or not is_still(checked_input(path))


def opened_clip(source: str, rate: float | None) -> Movie:
    """The clip at a path or pattern; rate: frames a second that were asked for, which images alone have to be told."""
    movie = open_movie(source, USUAL_RATE if rate is None else rate)
    if rate is not None and not isinstance(movie, ImageMovie):
        raise InputError(f"--rate is for images, and {source} is a video with times of its own; leave it out.")
    return movie


def check_not_read(target: Path, movie: Movie) -> None:
    """Refuse an output that is also what is read."""
    if target.exists() and any(target.samefile(path) for path in movie.info.paths):
        raise InputError(f"the output {target} is also an input and would be lost; choose another name.")


def one_video(outputs: list[Path], usual: str, movie: Movie, files: Path | None) -> Path | None:
    """The video to write, of those that were named, or the usual one; None where files in a folder are all."""
    if len(outputs) > 1:
        raise InputError("a clip becomes one video; give one output.")
    if not outputs and files is not None:
        return None
    target = outputs[0] if outputs else Path(usual)
    check_not_read(target, movie)
    return target


def check_folder(folder: Path | None, name: str) -> None:
    """Make the folder of files of a name like this, and refuse one that takes none, before any time is spent."""
    if folder is not None:
        checked_output(made_folder(folder) / name)


def expected_frames(
    movie: Movie, start: float | Fraction | None, end: float | Fraction | None, every: int
) -> int | None:
    """About how many frames will be taken; None where the clip does not say."""
    length = movie.info.seconds if movie.info.frames is None else movie.info.frames / movie.info.rate
    if length is None:
        return None
    last = min(float(length), float("inf") if end is None else float(end))
    return int((last - float(start or 0)) * movie.info.rate / every)


def tell_damage(movie: Movie) -> None:
    """Note, on standard error, what the latest reading of a clip had to leave out."""
    if movie.skipped:
        print(f"note: {movie.skipped} damaged frames of {movie.info.paths[0]} were left out", file=sys.stderr)
    if movie.torn:
        print(f"note: {movie.info.paths[0]} is cut short; its whole frames were used", file=sys.stderr)


def what_is_kept(writer: MovieWriter | None, folder: Path | None) -> list[str]:
    """What an interruption leaves: what the video's writer kept, and a folder of files (None: there are none)."""
    return [str(path) for path in (writer and writer.kept, folder) if path is not None]


def tell_interrupted(done: str, kept: list[str]) -> None:
    """Say, on standard error, how far it came and what is left of it."""
    print(f"\nprotoformer: stopped after {done}; kept {' and '.join(kept) or 'nothing'}.", file=sys.stderr)
