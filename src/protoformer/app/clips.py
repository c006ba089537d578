"""What every command does with a clip around its own work."""

import sys
from fractions import Fraction
from pathlib import Path

from protoformer.errors import InputError
from protoformer.files import Movie

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended."""


def check_not_read(target: Path, movie: Movie) -> None:
    """Refuse an output that is also what is read."""
    if target.exists() and any(target.samefile(path) for path in movie.info.paths):
        raise InputError(f"the output {target} is also an input and would be lost; choose another name.")


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


def tell_interrupted(done: str, kept: list[str]) -> None:
    """Say, on standard error, how far it came and what is left of it."""
    print(f"\nprotoformer: stopped after {done}; kept {' and '.join(kept) or 'nothing'}.", file=sys.stderr)
