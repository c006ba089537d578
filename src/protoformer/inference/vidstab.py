"""vid.stab, where there is an ffmpeg that has it: a classical stabilizer to compare with."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from protoformer.errors import InputError
from protoformer.files import Movie, open_movie
from protoformer.files.movie import Picture

SHAKINESS = 7
"""Of 10, for clips that shake more than a little; its own is 5."""


def vidstab_missing() -> str:
    """Why vid.stab cannot be run here; nothing if it can."""
    program = shutil.which("ffmpeg")
    if program is None:
        return "there is no ffmpeg on this machine"
    listed = subprocess.run([program, "-hide_banner", "-filters"], capture_output=True, text=True, check=False)
    return "" if "vidstabtransform" in listed.stdout else "the ffmpeg of this machine has no vid.stab"


def by_vidstab(movie: Movie, frames: int | None) -> Iterator[tuple[Picture, Picture]]:
    """The frames of a clip as they were, and as vid.stab shows them."""
    source = movie.info.paths[0]
    some = [] if frames is None else ["-frames:v", str(frames)]
    with tempfile.TemporaryDirectory() as folder:
        steady = Path(folder) / "steady.mkv"
        given, moves = ["-i", str(source), *some, "-vf"], f"{folder}/moves"
        _run([*given, f"vidstabdetect=shakiness={SHAKINESS}:result={moves}", "-f", "null", "-"], source)
        _run([*given, f"vidstabtransform=input={moves}", "-an", "-c:v", "ffv1", str(steady)], source)
        shown = open_movie(steady).frames()
        for before, after in zip(islice(movie.frames(), frames), shown, strict=False):
            yield before.image, after.image


def _run(arguments: list[str], source: Path) -> None:
    done = subprocess.run(["ffmpeg", "-v", "error", "-y", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"vid.stab could not be run on {source}: {done.stderr.strip()[-200:]}; leave it out.")
