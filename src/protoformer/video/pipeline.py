"""The loop that turns a video into a video: predict, draw, write. Shared by all commands, batches and web tabs."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from protoformer.errors import InputError
from protoformer.io.files import PathLike, check_output, defer_interrupts, make_folder, write_atomically
from protoformer.io.png import encode_png
from protoformer.video.clip import ClipFrames, check_folder_not_input
from protoformer.video.encoding import SUFFIXES
from protoformer.video.types import ImageArray


class FrameResult(Protocol):
    """What a task computes for one frame."""

    @property
    def time(self) -> Fraction:
        """Time of the frame, in seconds."""


class NumberedResult(Protocol):
    """A frame result that can be saved to a file."""

    @property
    def number(self) -> int:
        """Index of the frame in the whole video, from 0."""

    def save(self, path: Path) -> object:
        """Write the result; the suffix chooses the format."""


class Output(Protocol):
    """A context manager such as `VideoWriter` or `TableWriter`, which may keep a partial file after Ctrl-C."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...


class FrameWriter(Output, Protocol):
    """Writes a video; see `VideoWriter`."""

    def write(self, image: ImageArray, time: float | Fraction | None = None) -> object:
        """Add a frame, uint8 HxWx3 RGB, displayed at a time in seconds."""


Result = TypeVar("Result", bound=FrameResult)
Item = TypeVar("Item")


@dataclass(frozen=True)
class PipelineOutcome:
    """Summary of a run.

    Attributes:
        num_frames: Number of results that were processed.
        seconds: Run time, from the first prediction until all files are closed.
        kept: After an interruption, the partial files that remain.
    """

    num_frames: int
    seconds: float
    kept: tuple[Path, ...] = ()


class PipelineInterrupt(KeyboardInterrupt):
    """Ctrl-C during `run_pipeline`, raised after all outputs are closed.

    Attributes:
        outcome: What was done before.
    """

    def __init__(self, outcome: PipelineOutcome) -> None:
        super().__init__()
        self.outcome = outcome


_END: Any = object()


def read_ahead(items: Iterator[Item], count: int = 2) -> Iterator[Item]:
    """Compute the items of an iterator in a background thread, at most `count` ahead of the one that is used.

    Decoding, warping and encoding release Python's global lock, so that they overlap. An exception of the iterator is
    raised where its item would have been.
    """
    pending: deque[Future[Item]] = deque()
    with ThreadPoolExecutor(1) as executor:
        try:
            while True:
                while len(pending) <= count:
                    pending.append(executor.submit(next, items, _END))
                item = pending.popleft().result()
                if item is _END:
                    return
                yield item
        finally:
            for each in pending:
                each.cancel()


def run_pipeline(
    results: Iterable[Result],
    draw: Callable[[Result], ImageArray] | None = None,
    writer: FrameWriter | None = None,
    *,
    outputs: Sequence[Output] = (),
    on_result: Callable[[Result, ImageArray | None], object] | None = None,
    progress: Callable[[int], object] | None = None,
    keep_going: Callable[[], bool] | None = None,
) -> PipelineOutcome:
    """Process the results of a video one at a time: draw each, write it, and pass it on.

    Args:
        results: Iterator over the results, in the order of the video; it reads and predicts on demand.
        draw: Draws a result, uint8 HxWx3 RGB; None: nothing is drawn or written.
        writer: Writer of the drawn images.
        outputs: Further outputs that are opened before the first result, and closed after the last one. After an
            interruption, the `partial_path` of an output (if it has one and it is not None) is among the kept files.
        on_result: Called with each result and its drawn image, after the image is written.
        progress: Called with the number of results so far; an exception that it raises ends the run.
        keep_going: Called after each result; False ends the run as if the video ended there.

    Returns:
        The number of results and the run time.

    Raises:
        PipelineInterrupt: Ctrl-C was pressed; the outputs are closed and have kept what they can.
    """
    all_outputs = [output for output in (writer, *outputs) if output is not None]
    num_frames, start = 0, time.perf_counter()
    try:
        with ExitStack() as stack:
            for output in all_outputs:
                stack.enter_context(output)
            for result in results:
                image = None if draw is None else draw(result)
                with defer_interrupts():
                    if writer is not None and image is not None:
                        writer.write(image, result.time)
                    num_frames += 1
                if on_result is not None:
                    on_result(result, image)
                if progress is not None:
                    progress(num_frames)
                if keep_going is not None and not keep_going():
                    break
    except KeyboardInterrupt as error:
        kept = [getattr(output, "partial_path", None) for output in all_outputs]
        outcome = PipelineOutcome(num_frames, time.perf_counter() - start, tuple(path for path in kept if path))
        raise PipelineInterrupt(outcome).with_traceback(error.__traceback__) from None
    return PipelineOutcome(num_frames, time.perf_counter() - start)


class ResultFolder:
    """A folder with one file per result, named by the frame number: 000012.flo.

    Attributes:
        path: The folder.
        partial_path: The folder, if it holds a file of this run; an interruption leaves these files.
    """

    def __init__(self, path: Path, suffix: str) -> None:
        """Create the folder, and check that files can be written to it."""
        self.path = path
        self.partial_path: Path | None = None
        self._suffix, self._num_written = suffix, 0
        check_output(make_folder(path) / f"000000{suffix}")

    def __enter__(self) -> "ResultFolder":
        return self

    def __exit__(self, *error: Any) -> None:
        """Do nothing: each file is written whole."""

    def write(self, image: ImageArray, time: float | Fraction | None = None) -> None:
        """Write a drawn frame as a png, numbered from 0 in the order of the frames."""
        write_atomically(self.path / f"{self._num_written:06d}{self._suffix}", encode_png(image))
        self._num_written += 1
        self.partial_path = self.path

    def save(self, result: NumberedResult) -> None:
        """Write the file of a result."""
        result.save(self.path / f"{result.number:06d}{self._suffix}")
        self.partial_path = self.path


def save_results(
    path: PathLike,
    clip: ClipFrames,
    results: Iterable[Result],
    draw: Callable[[Result], ImageArray],
    format: str | None = None,
    formats: Sequence[str] = (),
    progress: Callable[[int, int], object] | None = None,
) -> PipelineOutcome:
    """Write the results of a clip as a video, or as a folder with one file per result.

    Args:
        path: A video, such as motion.mp4, with the times and the audio of the clip; or a folder, a name without a
            suffix, with files named by the number of the frame.
        clip: The clip.
        results: The results, in the order of the clip.
        draw: Draws a result, uint8 HxWx3 RGB.
        format: Format of the files in a folder, one of `formats` or "png", the drawn frames; None: the first.
        formats: Suffixes, without a dot, that `save` of a result accepts.
        progress: Called with the number of results so far and the estimated total.

    Returns:
        The number of results and the run time.

    Raises:
        InputError: The path or the format is not supported, or the results cannot be computed.
        PipelineInterrupt: Ctrl-C was pressed; what is finished is kept.
    """
    target = Path(path)

    def report(done: int) -> None:
        if progress is not None:
            progress(done, max(done, clip.num_frames))

    if target.suffix.lower() in SUFFIXES and not target.is_dir():
        if format is not None:
            raise InputError(f"the format {format!r} is for the files of a folder; leave it out for {target}.")
        return run_pipeline(results, draw, clip.writer(target), progress=report)
    if target.suffix and not target.is_dir():
        raise InputError(
            f"{target} is no video or folder by its suffix; give one of {', '.join(sorted(SUFFIXES))}, or a folder."
        )
    choices = (*formats, "png")
    chosen = choices[0] if format is None else format
    if chosen not in choices:
        raise InputError(f"there is no format {chosen!r} for a folder; choose one of {', '.join(choices)}.")
    if clip.video is not None:
        check_folder_not_input(target, clip.video)
    folder = ResultFolder(target, f".{chosen}")
    if chosen != "png":
        return run_pipeline(
            results, outputs=[folder], on_result=lambda result, _: folder.save(cast(Any, result)), progress=report
        )
    return run_pipeline(results, draw, folder, progress=report)
