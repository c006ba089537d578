"""The tab for tracking: a clip in, boxes drawn on its first frame, the drawn clip and a table out."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from protoformer.errors import InputError, UntrainedWarning
from protoformer.io.files import TableWriter
from protoformer.loading import NamedMethod, load_method
from protoformer.tracking.drawing import draw_targets
from protoformer.tracking.result import HEAD, check_boxes, describe_targets, table_rows
from protoformer.tracking.video import TrackFrame, track_frames
from protoformer.video.types import Video
from protoformer.viz.html import jpeg_data_uri
from protoformer.web.components import box_picker, clip_box, connect_slider, example_buttons, require_gradio
from protoformer.web.decoding import clip_writer, decode_clip, decode_first_frame
from protoformer.web.examples import ClipExample, render_clip
from protoformer.web.limits import Deadline, Limits, ProgressCallback
from protoformer.web.site import KEEP_SECONDS, Site, error_message, load_view, notice, save_view, user_message

MOST_TARGETS = 20


@dataclass(frozen=True)
class TrackOutput:
    """What was followed.

    video, table: the files to take away. frames: how many there are to look at. summary: a sentence about it.
    """

    video: Path
    table: Path
    frames: int
    summary: str


def first_frame(limits: Limits, path: Path) -> dict[str, Any]:
    """The first frame of a clip for the page to draw boxes on: its address, width and height."""
    image = decode_first_frame(limits, path, Deadline(limits.seconds))
    return {"image": jpeg_data_uri(image), "width": image.shape[1], "height": image.shape[0]}


def track_clip(
    method: NamedMethod,
    limits: Limits,
    path: Path,
    boxes: Sequence[Sequence[float]],
    folder: Path,
    on_progress: ProgressCallback = lambda *_: None,
) -> TrackOutput:
    """Follow boxes through a clip; track.mp4, track.csv and a view of every frame go into the folder."""
    deadline = Deadline(limits.seconds)
    if not boxes:
        raise InputError("draw a box around something in the first frame; press the mouse, drag, and let go.")
    if len(boxes) > MOST_TARGETS:
        raise InputError(f"there are {len(boxes)} boxes and the limit is {MOST_TARGETS}; take some away.")
    with decode_clip(limits, path, deadline) as video:
        count = len(video)
        check_boxes(boxes, video.info.size)
        lost, frames = [0] * len(boxes), 0
        with (
            clip_writer(folder / "track.mp4", video, limits, deadline) as writer,
            TableWriter(folder / "track.csv", HEAD) as table,
        ):
            for step in track_frames(video, boxes, method.begin):
                deadline.check()
                drawn = draw_targets(step.frame, step.targets)
                writer.write(drawn, step.time)
                for row in table_rows(step.number, step.time, step.targets):
                    table.write(*row)
                save_view(folder, frames, {"image": jpeg_data_uri(drawn), "lines": _lines(step)})
                lost = [before + target.lost for before, target in zip(lost, step.targets, strict=True)]
                frames += 1
                on_progress(frames / count, f"frame {frames} of {count}")
        return TrackOutput(folder / "track.mp4", folder / "track.csv", frames, _summary(video, frames, lost))


def _lines(step: TrackFrame) -> list[str]:
    """What the page says of every target in a frame."""
    lines = []
    for place, target in enumerate(step.targets, 1):
        x, y, width, height = target.box
        state = "lost" if target.lost else f"score {target.score:.2f}"
        lines.append(f"target {place}  x = {x:.1f}  y = {y:.1f}  w = {width:.1f}  h = {height:.1f} px  {state}")
    return lines


def _summary(video: Video, frames: int, lost: list[int]) -> str:
    height, width = video.info.size
    return f"{frames} frames of {width}x{height} pixels, {describe_targets(lost)}."


UNTRAINED = "The weights of this tracker are random: it was not trained, so the boxes shown here mean nothing."
EXAMPLE = ("A chase", "chase", 1, 16)
"""What it is called, the family and number of its scene, and its frames."""


class TrackTab:
    """Builds the tab inside the page that is being made."""

    def __init__(self, site: Site) -> None:
        self.site = site
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UntrainedWarning)  # the page itself says so
            self.method = load_method("model", site.track_model)
        self.notice = "" if self.method.trained else UNTRAINED
        self.example: ClipExample = render_clip(site.folder / "examples", *EXAMPLE)

    def build(self) -> None:
        """Make the components and say what they do."""
        gr = require_gradio()
        if self.notice:
            gr.HTML(notice(self.notice, "warning"), elem_id="track-notice")
        clip = clip_box("track-clip")
        example_buttons([(self.example.name, (self.example.path,))], [clip])
        picker = box_picker(MOST_TARGETS)
        compute = gr.Button("Follow the boxes", variant="primary", elem_id="track-compute")
        message = gr.HTML("", elem_id="track-message")
        clip.change(self._chosen, clip, [picker, message], api_visibility="private", show_progress="hidden")
        self._connect(compute, clip, picker, message)

    def _connect(self, compute: Any, clip: Any, picker: Any, message: Any) -> None:
        """The tracked video, after it was requested."""
        gr = require_gradio()
        result = gr.State(None, time_to_live=KEEP_SECONDS, delete_callback=self.site.forget)
        drawn = gr.Video(label="Followed", visible=False, elem_id="track-video", interactive=False, buttons=[])
        slider = gr.Slider(1, 2, value=1, step=1, label="Frame", visible=False, elem_id="track-slider", buttons=[])
        frame = gr.HTML("", elem_id="track-frame")
        with gr.Row(elem_classes="pf-examples"):
            video = gr.DownloadButton("Download .mp4", visible=False, elem_id="track-download-mp4", size="md")
            table = gr.DownloadButton("Download .csv", visible=False, elem_id="track-download-csv", size="md")

        def pressed(path: str | None, boxes: Any, old: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
            return self._run(path, boxes, old, lambda share, what: progress(share, desc=what))

        compute.click(
            pressed,
            [clip, picker, result],
            [result, message, drawn, slider, frame, video, table],
            concurrency_id="compute",
            concurrency_limit=self.site.limits.jobs,
            api_visibility="private",
            show_progress_on=message,
        )
        connect_slider(slider, result, frame, message, _shown)

    def _chosen(self, path: str | None) -> tuple[Any, Any]:
        """The first frame of a clip, to draw on; a sentence where it cannot be used."""
        gr = require_gradio()
        nothing = gr.HTML(value=[], image="", width=1, height=1)
        if not path:
            return nothing, ""
        try:
            return gr.HTML(value=[], **first_frame(self.site.limits, Path(path))), ""
        except InputError as error:
            return nothing, notice(user_message(error, [Path(path)]))

    def _run(self, path: str | None, boxes: Any, old: Path | None, on_progress: Any) -> tuple[Any, ...]:
        """Everything that the page shows next; a sentence, and nothing new, where it cannot be done."""
        gr = require_gradio()
        folder = self.site.new_result()
        try:
            if not path:
                raise InputError("choose a clip first.")
            output = track_clip(self.method, self.site.limits, Path(path), boxes or [], folder, on_progress)
        except Exception as error:
            self.site.forget(folder)
            told_of = error_message(error, [Path(path)] if path else [])
            return old, notice(told_of), *(gr.skip() for _ in range(5))
        self.site.finish(folder, old)
        return (
            folder,
            notice(output.summary, "note"),
            gr.update(visible=True, value=str(output.video)),
            gr.update(visible=True, minimum=1, maximum=max(2, output.frames), value=1),
            _shown(folder, 0),
            gr.update(visible=True, value=str(output.video)),
            gr.update(visible=True, value=str(output.table)),
        )


def _shown(folder: Path, place: int) -> str:
    view = load_view(folder, place)
    lines = escape("\n".join(view["lines"]))
    return f'<img alt="frame {place + 1} with its boxes" src="{view["image"]}"><pre>{lines}</pre>'
