"""Steps that the commands for videos share."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import cv2
from typer.core import TyperCommand

from protoformer.cli.options import reject_options
from protoformer.cli.terminal import frames_bar, interruptible, print_json
from protoformer.errors import InputError
from protoformer.io.files import check_input, is_folder, path_exists
from protoformer.video.clip import check_output_not_input as check_output_not_input
from protoformer.video.clip import estimate_frame_count as estimate_frame_count
from protoformer.video.image_sequence import ImageSequence, is_image_file
from protoformer.video.live import TIMEOUT, LiveVideo, is_live_source
from protoformer.video.pipeline import FrameResult, PipelineInterrupt, PipelineOutcome, run_pipeline
from protoformer.video.reader import open_video
from protoformer.video.types import DEFAULT_FPS, Video
from protoformer.video.writer import VideoWriter
from protoformer.viz.colormaps import Pixels
from protoformer.viz.report import format_count

Result = TypeVar("Result", bound=FrameResult)


def is_clip(source: str) -> bool:
    """Return whether a source is a video, a folder, a pattern or live, and not a still image; nothing is decoded."""
    if is_live_source(source) or "://" in source:
        return True
    path = Path(source)
    is_pattern = any(sign in source for sign in "*?[") and not path_exists(path)
    return is_folder(path) or is_pattern or not is_image_file(check_input(path))


def open_clip(source: str, fps: float | None, drop: bool | None = None, timeout: float | None = None) -> Video:
    """Open a source of `open_video`.

    Args:
        source: A video, a folder, a pattern, or a live source.
        fps: Frame rate of images, which must not be given for others.
        drop: As for `open_video`; it must not be given for others than live sources.
        timeout: The same.
    """
    if not is_live_source(source):
        reject_options("cameras, addresses and pipes", source, drop=drop is not None, timeout=timeout)
    video = open_video(
        source, DEFAULT_FPS if fps is None else fps, drop=drop, timeout=TIMEOUT if timeout is None else timeout
    )
    if fps is not None and not isinstance(video, ImageSequence):
        raise InputError(f"--fps is for images, and {source} is a video with times of its own; leave it out.")
    return video


def make_video_writer(outputs: list[Path], default: Path | None, video: Video, frame_step: int) -> VideoWriter | None:
    """Create the writer of a command's video.

    Args:
        outputs: The paths that were given, at most one.
        default: The path to write if none was given; None: no video.
        video: The input.
        frame_step: Number of input frames per output frame.
    """
    if len(outputs) > 1:
        raise InputError("a clip becomes one video; give one output.")
    target = outputs[0] if outputs else default
    if target is None:
        return None
    check_output_not_input(target, video)
    return VideoWriter(target, video, video.info.fps / max(1, frame_step))


def run_with_bar(
    label: str,
    total: int | None,
    results: Iterable[Result],
    draw: Callable[[Result], Pixels] | None,
    writer: VideoWriter | None,
    **options: Any,
) -> PipelineOutcome:
    """Run the video pipeline with a progress bar; `options` are those of `run_pipeline`."""
    with frames_bar(label, total) as progress:
        return run_pipeline(results, draw, writer, progress=progress, **options)


@contextmanager
def report_interruption(unit: str, video: Video | None = None) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, print how many results (called `unit`) were finished and what is kept, and exit.

    A live video ends instead, and the command goes on to its end; only a second Ctrl-C interrupts it.
    """

    def report(error: KeyboardInterrupt) -> None:
        outcome = error.outcome if isinstance(error, PipelineInterrupt) else PipelineOutcome(0, 0.0)
        kept = " and ".join(map(str, outcome.kept)) or "nothing"
        count = format_count(outcome.num_frames, unit)
        print(f"\nprotoformer: stopped after {count}; kept {kept}.", file=sys.stderr)

    with interruptible(report, video.stop if isinstance(video, LiveVideo) else None):
        yield


def print_summary(
    video: Video, outcome: PipelineOutcome, written: Sequence[Path], as_json: bool, summary: dict[str, Any], text: str
) -> None:
    """Print the summary of a command, and notes about damaged input on standard error.

    Args:
        video: The input.
        outcome: Outcome of the pipeline.
        written: The files and folders that were written.
        as_json: Print JSON instead of text.
        summary: The task's part of the JSON.
        text: The task's part of the text.
    """
    name, status = video.info.name, {"skipped": video.skipped, "truncated": video.truncated}
    if video.skipped:
        print(f"note: {video.skipped} damaged frames of {name} were skipped", file=sys.stderr)
    if isinstance(video, LiveVideo):
        status |= {"dropped": video.dropped, "timed_out": video.timed_out}
        if video.dropped:
            dropped = format_count(video.dropped, "frame")
            print(f"note: {dropped} of {name} dropped to keep up; --no-drop processes all", file=sys.stderr)
        if video.timed_out:
            print(f"note: {name} sent nothing for {video.timeout:g} s and was closed", file=sys.stderr)
    if video.truncated:
        print(f"note: {name} is truncated; its intact frames were used", file=sys.stderr)
    if as_json:
        size = {"width": video.info.size[1], "height": video.info.size[0]}
        print_json({**size, **summary, "seconds": round(outcome.seconds, 3), **status, "written": list(written)})
        return
    rate = f"{outcome.num_frames / outcome.seconds:.2f} frames/s"
    print(f"{text}; {rate}" + (f"; wrote {', '.join(map(str, written))}" if written else ""))


PATTERN_ADVICE = "quote a pattern, as in 'img/*.jpg', or give the folder of the images"
"""Advice if the shell has expanded a pattern."""


class ClipCommand(TyperCommand):
    """A command whose error for surplus arguments names the usual cause, an unquoted pattern."""

    allow_extra_args = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, or raise `InputError` if some are left over."""
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            count = format_count(len(rest), "name")
            raise InputError(f"{ctx.command.name} got {count} too many, from {rest[0]} on; {PATTERN_ADVICE}.")
        return rest


_ESCAPE = 27


class LiveWindow:
    """A context manager that shows frames in a window, which q, Esc or its close button close.

    Attributes:
        title: Title of the window.
        open: Whether the window is open.
    """

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
        """Show a frame, uint8 H x W x 3 RGB, if the window is open."""
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
