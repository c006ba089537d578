"""One computation of a tab: its deadline, progress, uploads and result folder, and the messages that it ends with."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from protoformer.errors import InputError
from protoformer.io.image import DecodedImage
from protoformer.io.memory import is_out_of_memory
from protoformer.video.pipeline import Output as PipelineOutput
from protoformer.video.pipeline import Result, run_pipeline
from protoformer.video.types import ImageArray
from protoformer.web.decoding import DecodedClip, clip_writer, decode_clip, decode_image
from protoformer.web.limits import Deadline, Limits
from protoformer.web.results import save_view

CLIP_CELLS = 2**18
"""Maximum number of values per frame of a clip that the viewer gets."""


@dataclass(frozen=True)
class JobOutput:
    """Result of a computation, as `ResultPanel` shows it.

    Attributes:
        summary: One sentence.
        downloads: Files to download, by suffix.
        view: Value of the viewer, of a clip for the first frame.
        num_views: Number of saved views, which the slider selects; 0 without a slider.
        video: Video to play.
        prototypes: HTML of the prototypes.
    """

    summary: str
    downloads: dict[str, Path] = field(default_factory=dict)
    view: Any = None
    num_views: int = 0
    video: Path | None = None
    prototypes: str = ""


class Job:
    """One computation within limits.

    Args:
        limits: Limits on uploads and on the duration, which is measured from now.
        folder: Folder of the result.
        on_progress: Called with the completed fraction, 0 to 1, and a description.

    Attributes:
        num_views: Number of views saved so far.
    """

    def __init__(
        self, limits: Limits, folder: Path, on_progress: Callable[[float, str], object] = lambda *_: None
    ) -> None:
        self.limits, self.folder = limits, folder
        self.deadline = Deadline(limits.max_seconds)
        self.num_views = 0
        self._on_progress = on_progress

    def progress(self, label: str, start: float = 0.0, end: float = 1.0) -> Callable[[int, int], None]:
        """Return a callback that checks the deadline and reports progress.

        Args:
            label: Name of a step, such as "frame".
            start: Completed fraction of the job before the first step.
            end: Completed fraction after the last step.

        Returns:
            Function of the number of completed steps and of all steps.
        """

        def report(done: int, total: int) -> None:
            self.deadline.check()
            self._on_progress(start + (end - start) * done / max(done, total), f"{label} {done} of {max(done, total)}")

        return report

    def decode_image(self, path: Path) -> DecodedImage:
        """Decode an uploaded image."""
        return decode_image(self.limits, path, self.deadline)

    def decode_clip(self, path: Path) -> AbstractContextManager[DecodedClip]:
        """Decode an uploaded clip, whose frames can be read inside the `with` block."""
        return decode_clip(self.limits, path, self.deadline)

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
    ) -> None:
        """Draw the results of a clip and write them as a video with the audio of the clip.

        Args:
            output: Video to write.
            clip: The decoded clip.
            results: Results of the frames.
            draw: Draws a result.
            progress: Called after each result with the number of results so far and of the frames of the clip.
            outputs: Further outputs, as for `run_pipeline`.
            on_result: Called with each result and its drawn image.
        """
        writer = clip_writer(output, clip, self.limits, self.deadline)
        run_pipeline(
            results, draw, writer, outputs=outputs, on_result=on_result, progress=lambda done: progress(done, len(clip))
        )


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
