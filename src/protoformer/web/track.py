"""Tab for tracking: boxes drawn on the first frame of a clip are tracked through it."""

from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from protoformer.errors import InputError
from protoformer.io.files import TableWriter
from protoformer.loading import NamedMethod
from protoformer.tracking.drawing import draw_targets, target_color
from protoformer.tracking.result import HEAD, check_boxes, describe_targets, table_rows
from protoformer.tracking.video import TrackFrame, track_frames
from protoformer.video.types import ImageArray
from protoformer.viz.report import jpeg_data_uri
from protoformer.web.components import ResultPanel, clip_box, read_asset, require_gradio
from protoformer.web.decoding import decode_first_frame
from protoformer.web.job import Job, JobOutput, error_message, message_html
from protoformer.web.limits import Deadline, Limits
from protoformer.web.results import load_view
from protoformer.web.site import Site

MAX_TARGETS = 20
NO_FRAME: dict[str, Any] = {"image": "", "width": 1, "height": 1}


def first_frame(limits: Limits, path: Path) -> dict[str, Any]:
    """Return the first frame of a clip for the box picker: `image` (data URI), `width` and `height` (pixels)."""
    image = decode_first_frame(limits, path, Deadline(limits.max_seconds))
    return {"image": jpeg_data_uri(image), "width": image.shape[1], "height": image.shape[0]}


def track_clip(method: NamedMethod, job: Job, path: Path, boxes: Sequence[Sequence[float]] | None) -> JobOutput:
    """Track boxes through a clip; write track.mp4, track.csv and the views of all frames."""
    if not boxes:
        raise InputError("draw a box around a target in the first frame: press the mouse button, drag, and release.")
    if len(boxes) > MAX_TARGETS:
        raise InputError(f"there are {len(boxes)} boxes and the limit is {MAX_TARGETS}; remove some.")
    downloads = {suffix: job.folder / f"track{suffix}" for suffix in (".mp4", ".csv")}
    table = TableWriter(downloads[".csv"], HEAD)
    lost = [0] * len(boxes)

    def save_frame(frame: TrackFrame, image: ImageArray | None) -> None:
        assert image is not None
        for row in table_rows(frame.number, frame.time, frame.targets):
            table.write(*row)
        job.save_view(_frame_html(frame, image))
        for index, target in enumerate(frame.targets):
            lost[index] += target.lost

    def draw(frame: TrackFrame) -> ImageArray:
        return draw_targets(frame.frame, frame.targets)

    with job.decode_clip(path) as clip:
        check_boxes(boxes, clip.info.size)
        frames, progress = track_frames(clip, boxes, method.begin), job.progress("frame")
        job.write_clip(downloads[".mp4"], clip, frames, draw, progress, outputs=[table], on_result=save_frame)
        height, width = clip.info.size
    return JobOutput(
        summary=f"{job.num_views} frames of {width}x{height} pixels, {describe_targets(lost)}.",
        downloads=downloads,
        view=load_view(job.folder, 0),
        num_views=job.num_views,
        video=downloads[".mp4"],
    )


def _frame_html(frame: TrackFrame, image: ImageArray) -> str:
    """Return the HTML of a frame: the image with its boxes, and a line of numbers for each target."""
    lines = []
    for number, target in enumerate(frame.targets, 1):
        x, y, width, height = target.box
        state = "lost" if target.lost else f"score {target.score:.2f}"
        lines.append(f"target {number}  x = {x:.1f}  y = {y:.1f}  w = {width:.1f}  h = {height:.1f} px  {state}")
    text = escape("\n".join(lines))
    return f'<img alt="frame {frame.number + 1} with its boxes" src="{jpeg_data_uri(image)}"><pre>{text}</pre>'


UNTRAINED = "The tracking model was not trained: its weights are random, so the boxes are meaningless."


def build_track_tab(site: Site) -> None:
    """Create the components of the tab."""
    gr = require_gradio()
    if not site.tracker.trained:
        gr.HTML(message_html(UNTRAINED, "warning"), elem_id="track-untrained")
    clip = clip_box("track-clip", site.example_clip("A chase", "chase", 1, num_frames=16))
    picker = gr.HTML(
        value=[],  # boxes [x, y, w, h] in pixels of the clip
        html_template=read_asset("box_picker.html"),
        css_template=read_asset("box_picker.css"),
        js_on_load=read_asset("box_picker.js"),
        elem_id="track-picker",
        **NO_FRAME,
        hint="Drag a box around each target, with the mouse button pressed.",
        colors=["#{:02x}{:02x}{:02x}".format(*target_color(index)) for index in range(MAX_TARGETS)],
    )
    compute = gr.Button("Track", variant="primary", elem_id="track-compute")
    panel = ResultPanel(site, "track", {".mp4": "Download .mp4", ".csv": "Download .csv"})
    panel.connect(compute, "track_clip", partial(track_clip, site.tracker), [clip, picker], "Choose a clip first.")

    def show_first_frame(path: Path | None) -> tuple[Any, Any]:
        """Return the updated box picker and a message."""
        try:
            return gr.HTML(value=[], **(first_frame(site.limits, path) if path else NO_FRAME)), ""
        except InputError as error:
            return gr.HTML(value=[], **NO_FRAME), message_html(error_message(error, [path] if path else []))

    clip.change(show_first_frame, clip, [picker, panel.message], api_visibility="private", show_progress="hidden")
