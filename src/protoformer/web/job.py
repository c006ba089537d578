"""One computation of a tab: its deadline, progress, uploads and result folder, and the messages that it ends with."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from html import escape
from math import ceil
from pathlib import Path
from typing import Any, TypeGuard

from protoformer.errors import InputError
from protoformer.io.image import DecodedImage
from protoformer.io.memory import is_out_of_memory
from protoformer.video.pipeline import Output as PipelineOutput
from protoformer.video.pipeline import Result, run_pipeline
from protoformer.video.types import ImageArray
from protoformer.viz.report import jpeg_data_uri
from protoformer.web.decoding import DecodedClip, clip_writer, decode_clip, decode_image
from protoformer.web.limits import Deadline, Limits
from protoformer.web.results import cancellation_check, save_view

CLIP_CELLS = 2**17
"""Maximum number of values per frame of a clip that the viewer gets."""
MAX_VIEWS = 600
"""Maximum number of frames of a clip that the viewer shows; of longer ones, it shows every second frame, and so on."""
PREVIEW_SECONDS, PREVIEW_WIDTH = 0.5, 400
"""Interval between two previews of a running computation, and about their width, pixels."""
CANCELED_EARLY = "the computation was canceled before its first result."


@dataclass(frozen=True)
class JobOutput:
    """Result of a computation, as `ResultPanel` shows it.

    Attributes:
        summary: One sentence.
        downloads: Files to download, by suffix.
        view: Value of the viewer, of a clip for the first frame.
        num_views: Number of saved views, which the slider selects; 0 without a slider.
        view_step: Step between the frames of two views.
        video: Video to play.
        prototypes: HTML of the prototypes.
    """

    summary: str
    downloads: dict[str, Path] = field(default_factory=dict)
    view: Any = None
    num_views: int = 0
    view_step: int = 1
    video: Path | None = None
    prototypes: str = ""


class JobControl:
    """Progress of a computation, and the wishes of its client, shared between two threads.

    Args:
        is_gone: Tells whether the client disconnected.

    Attributes:
        text: Description of the latest progress.
        fraction: Completed fraction, 0 to 1; None if the number of steps is unknown.
        preview: Data URI of the latest drawn frame; "" without one.
    """

    def __init__(self, is_gone: Callable[[], bool] = lambda: False) -> None:
        self.text, self.fraction, self.preview = "", 0.0, ""
        self._is_gone, self._stops = is_gone, 0
        self._begin = time.monotonic()

    def report(self, fraction: float, text: str) -> None:
        """Set the progress."""
        if fraction == 0:  # preparations do not count for the remaining time
            self._begin = time.monotonic()
        self.fraction, self.text = fraction, text

    def stop(self) -> None:
        """End the computation after the current frame and keep what is done; called again, end it at once."""
        self._stops += 1

    @property
    def stopped(self) -> bool:
        """Whether the client wants no further frames."""
        return self._stops > 0

    def is_canceled(self) -> bool:
        """Return whether the computation must end at once."""
        return self._stops > 1 or self._is_gone()

    @property
    def seconds_left(self) -> float | None:
        """Estimated time to the end, from that of the completed fraction; None at the beginning."""
        passed = time.monotonic() - self._begin
        return passed * (1 - self.fraction) / self.fraction if self.fraction > 0 and passed > 1 else None


class Job:
    """One computation within limits.

    Args:
        limits: Limits on uploads and on the duration, which is measured from now.
        folder: Folder of the result.
        on_progress: Called with the completed fraction, 0 to 1, and a description.
        span: Start and end of the part of a clip to process, seconds; None: those of the clip.
        control: Progress and cancellation by the client of the page.

    Attributes:
        num_views: Number of saved views.
    """

    def __init__(
        self,
        limits: Limits,
        folder: Path,
        on_progress: Callable[[float, str], object] = lambda *_: None,
        span: tuple[float | None, float | None] = (None, None),
        control: JobControl | None = None,
    ) -> None:
        self.limits, self.folder, self.span = limits, folder, span
        self.control = control or JobControl(cancellation_check())
        self.deadline = Deadline(limits.max_seconds, self.control.is_canceled)
        self.num_views = 0
        self._on_progress = on_progress
        self._previewed = 0.0

    def progress(
        self, label: str, start: float = 0.0, end: float = 1.0, keeps: bool = False
    ) -> Callable[[int, int], None]:
        """Return a callback that checks the deadline and reports progress.

        Args:
            label: Name of a step, such as "frame".
            start: Completed fraction of the job before the first step.
            end: Completed fraction after the last step.
            keeps: Whether the caller ends by itself, and keeps its steps, when the client stops the computation.

        Returns:
            Function of the number of completed steps and of all steps, 0 if that is unknown.
        """

        def report(done: int, total: int) -> None:
            self.deadline.check()
            if self.control.stopped and not keeps:
                raise InputError(CANCELED_EARLY)
            fraction = start + (end - start) * done / max(done, total) if total > 0 else start
            text = f"{label} {done} of {max(done, total)}" if total > 0 else f"{label} {done}"
            self.control.report(fraction, text)
            self._on_progress(fraction, text)

        return report

    def decode_image(self, path: Path) -> DecodedImage:
        """Decode an uploaded image."""
        return decode_image(self.limits, path, self.deadline)

    def decode_clip(self, path: Path) -> AbstractContextManager[DecodedClip]:
        """Decode the selected part of an uploaded clip, whose frames can be read inside the `with` block."""
        return decode_clip(self.limits, path, self.deadline, self.span)

    def view_step(self, clip: DecodedClip) -> int:
        """Return the step between frames whose views are saved, so that there are at most `MAX_VIEWS`."""
        return max(1, -(-len(clip) // MAX_VIEWS))

    def save_view(self, view: Any) -> None:
        """Save the view of the next frame for the slider."""
        save_view(self.folder, self.num_views, view)
        self.num_views += 1

    def write_clip(
        self,
        output: Path,
        clip: DecodedClip,
        results: Iterable[Result],
        draw: Callable[[Result], ImageArray],
        progress: Callable[[int, int], None],
        *,
        outputs: Sequence[PipelineOutput] = (),
        on_result: Callable[[Result, ImageArray | None], object] | None = None,
        stops: bool = True,
    ) -> int:
        """Draw the results of a clip and write them as a video with the audio of the clip.

        Args:
            output: Video to write.
            clip: The decoded clip.
            results: Results of the frames.
            draw: Draws a result.
            progress: Called after each result with the number of results so far and of the frames of the clip.
            outputs: Further outputs, as for `run_pipeline`.
            on_result: Called with each result and its drawn image.
            stops: Whether the video ends where the client stops the computation; otherwise `results` end by themselves.

        Returns:
            The number of results.
        """
        writer = clip_writer(output, clip, self.limits, self.deadline)

        def show(result: Result, image: ImageArray | None) -> None:
            if image is not None:
                self._preview(image)
            if on_result is not None:
                on_result(result, image)

        return run_pipeline(
            results,
            draw,
            writer,
            outputs=outputs,
            on_result=show,
            progress=lambda done: progress(done, len(clip)),
            keep_going=lambda: not (stops and self.control.stopped),
        ).num_frames

    def _preview(self, image: ImageArray) -> None:
        """Offer a small copy of a drawn frame to the page, not more often than it asks."""
        now = time.monotonic()
        if now - self._previewed >= PREVIEW_SECONDS:
            self._previewed = now
            step = max(1, image.shape[1] // PREVIEW_WIDTH)
            self.control.preview = jpeg_data_uri(image[::step, ::step])


OUT_OF_MEMORY = "The server ran out of memory; give smaller images."
DELETED = "This result was deleted in the meantime; compute it again."


def error_message(error: Exception, uploads: Sequence[Path] = ()) -> str:
    """Return the message for an error that the user can act on; raise any other error again.

    Args:
        error: What a computation raised.
        uploads: Uploaded files, which the message names without their folders on the server.
    """
    if not isinstance(error, InputError):
        if is_out_of_memory(error):
            return OUT_OF_MEMORY
        raise error
    text = str(error)
    if not text.startswith(tuple(str(path) for path in uploads)):
        text = text[:1].upper() + text[1:]
    for path in uploads:
        text = text.replace(str(path), path.name)
    return text


def message_html(text: str, kind: str = "error") -> str:
    """Return the HTML of a message, "" without text. Kinds: error, warning, note."""
    role = "alert" if kind == "error" else "status"
    return f'<p class="pf-{kind}" role="{role}">{escape(text)}</p>' if text else ""


def progress_html(control: JobControl) -> str:
    """Return the HTML of the progress of a computation: a bar, the current step, the time left, and a preview."""
    left = control.seconds_left
    text = "Finishing with the frames so far" if control.stopped else control.text or "Starting"
    preview = f'<img class="pf-preview" alt="latest frame" src="{control.preview}">' if control.preview else ""
    return (
        f'<div class="pf-progress" role="status"><p><span>{escape(text[:1].upper() + text[1:])}</span>'
        f"<span>{'' if left is None else format_seconds(left) + ' left'}</span></p>"
        f'<div class="pf-bar"><div style="width: {100 * control.fraction:.1f}%"></div></div>{preview}</div>'
    )


def format_seconds(seconds: float) -> str:
    """Format a duration, rounded up to whole seconds: 0:07, 12:30, 1:05:00."""
    minutes, rest = divmod(ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def parse_span(value: object) -> tuple[float | None, float | None]:
    """Return the start and end, seconds, that the trim control of a clip sent; None: those of the clip.

    Raises:
        InputError: If it is no such pair, which the page itself does not send.
    """
    match value:
        case None:
            return None, None
        case [start, end]:
            times = [None if each is None else float(each) for each in (start, end) if _is_seconds(each)]
            if len(times) == 2 and (times[1] is None or (times[0] or 0.0) < times[1]):
                return times[0], times[1]
    raise InputError("the selected part of the clip is empty; move its start before its end.")


def _is_seconds(value: object) -> TypeGuard[float | None]:
    return value is None or (isinstance(value, (int, float)) and 0 <= value < float("inf"))
