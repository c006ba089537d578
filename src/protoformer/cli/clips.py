"""What every command does with a clip around its own work."""

import os
import sys
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cv2
from typer.core import TyperCommand

from protoformer.errors import InputError
from protoformer.io.files import check_input, check_output, is_folder, make_folder, path_exists
from protoformer.video.image_sequence import ImageSequence, is_image_file
from protoformer.video.reader import open_video
from protoformer.video.types import DEFAULT_FPS, Video
from protoformer.video.writer import VideoWriter
from protoformer.viz.images import Pixels
from protoformer.viz.text import format_count


def is_clip(source: str) -> bool:
    """Whether it is not one still image."""
    path = Path(source)
    pattern = any(sign in source for sign in "*?[") and not path_exists(path)
    return is_folder(path) or pattern or not is_image_file(check_input(path))


def open_clip(source: str, fps: float | None) -> Video:
    """The clip at a path or pattern; fps: frames a second that were asked for, which images alone have to be told."""
    movie = open_video(source, DEFAULT_FPS if fps is None else fps)
    if fps is not None and not isinstance(movie, ImageSequence):
        raise InputError(f"--fps is for images, and {source} is a video with times of its own; leave it out.")
    return movie


def check_output_not_input(target: Path, movie: Video) -> None:
    """Refuse an output that is also what is read."""
    if target.exists() and any(target.samefile(path) for path in movie.info.paths):
        raise InputError(f"the output {target} is also an input and would be lost; choose another name.")


def single_video_output(outputs: list[Path], usual: str, movie: Video, files: Path | None) -> Path | None:
    """The video to write, of those that were named, or the usual one; None where files in a folder are all."""
    if len(outputs) > 1:
        raise InputError("a clip becomes one video; give one output.")
    if not outputs and files is not None:
        return None
    target = outputs[0] if outputs else Path(usual)
    check_output_not_input(target, movie)
    return target


def check_folder(folder: Path | None, name: str) -> None:
    """Make the folder of files of a name like this, and refuse one that takes none, before any time is spent."""
    if folder is not None:
        check_output(make_folder(folder) / name)


def expected_frame_count(
    movie: Video, start: float | Fraction | None, end: float | Fraction | None, frame_step: int
) -> int | None:
    """About how many frames will be taken; None where the clip does not say."""
    length = movie.info.duration if movie.info.num_frames is None else movie.info.num_frames / movie.info.fps
    if length is None:
        return None
    last = min(float(length), float("inf") if end is None else float(end))
    return int((last - float(start or 0)) * movie.info.fps / frame_step)


def report_damage(movie: Video) -> None:
    """Note, on standard error, what the latest reading of a clip had to leave out."""
    if movie.skipped:
        print(f"note: {movie.skipped} damaged frames of {movie.info.paths[0]} were left out", file=sys.stderr)
    if movie.truncated:
        print(f"note: {movie.info.paths[0]} is cut short; its whole frames were used", file=sys.stderr)


def kept_output(writer: VideoWriter | None, folder: Path | None) -> list[str]:
    """What an interruption leaves: what the video's writer kept, and a folder of files (None: there are none)."""
    return [str(path) for path in (writer and writer.partial_path, folder) if path is not None]


def report_interruption(done: str, kept: list[str]) -> None:
    """Say, on standard error, how far it came and what is left of it."""
    print(f"\nprotoformer: stopped after {done}; kept {' and '.join(kept) or 'nothing'}.", file=sys.stderr)


QUOTE = "quote a pattern, as in 'img/*.jpg', or give the folder of the images"
"""What to do where the shell has put all names in the place of a pattern."""


class ClipCommand(TyperCommand):
    """Says what to do about names that are too many, since most often a pattern was not quoted."""

    allow_extra_args = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; refuse what is left over."""
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            what = format_count(len(rest), "name")
            raise InputError(f"{ctx.command.name} got {what} too many, from {rest[0]} on; {QUOTE}.")
        return rest


_ESCAPE = 27


class LiveWindow:
    """Use it in a `with`; q, Esc or its own button close it, and `open` says whether that was done."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.open = False
        if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise InputError("there is no screen to open a window on; leave out --window.")

    def __enter__(self) -> Self:
        try:
            cv2.namedWindow(self.title, cv2.WINDOW_NORMAL)
        except cv2.error:
            raise InputError(
                "the OpenCV that is installed opens no windows; leave out --window, or pip install "
                "opencv-contrib-python in its place."
            ) from None
        self.open = True
        return self

    def show(self, frame: Pixels) -> None:
        """Show a frame, uint8 H x W x 3 RGB, unless the window was closed."""
        if not self.open:
            return
        cv2.imshow(self.title, frame[..., ::-1])
        pressed = cv2.waitKey(1) & 0xFF
        if pressed in (ord("q"), _ESCAPE) or cv2.getWindowProperty(self.title, cv2.WND_PROP_VISIBLE) < 1:
            self._close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.open:
            self._close()

    def _close(self) -> None:
        self.open = False
        cv2.destroyWindow(self.title)
