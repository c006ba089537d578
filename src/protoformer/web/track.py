"""Tab for tracking: boxes drawn on the first frame of a clip are tracked through it."""

from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path

from protoformer.errors import InputError
from protoformer.io.files import TableWriter
from protoformer.loading import NamedMethod
from protoformer.tracking.drawing import draw_targets, target_color
from protoformer.tracking.result import HEAD, check_boxes, describe_targets, table_rows
from protoformer.tracking.video import TrackFrame, track_frames
from protoformer.video.types import ImageArray
from protoformer.viz.report import jpeg_data_uri
from protoformer.web.components import (
    NO_FRAME,
    ResultPanel,
    clip_input,
    columns,
    input_column,
    read_asset,
    require_gradio,
    result_column,
)
from protoformer.web.job import Job, JobOutput, message_html
from protoformer.web.results import load_view
from protoformer.web.site import Example, Site

MAX_TARGETS = 20


def track_clip(method: NamedMethod, job: Job, path: Path, boxes: Sequence[Sequence[float]] | None) -> JobOutput:
    """Track boxes through a clip; write track.mp4, track.csv and the views of all frames."""
    if not boxes:
        raise InputError("draw a box around a target in the first frame: press the mouse button, drag, and release.")
    if len(boxes) > MAX_TARGETS:
        raise InputError(f"there are {len(boxes)} boxes and the limit is {MAX_TARGETS}; remove some.")
    downloads = {suffix: job.folder / f"track{suffix}" for suffix in (".mp4", ".csv")}
    table = TableWriter(downloads[".csv"], HEAD)
    lost, count = [0] * len(boxes), 0

    def save_frame(frame: TrackFrame, image: ImageArray | None) -> None:
        nonlocal count
        assert image is not None
        for row in table_rows(frame.number, frame.time, frame.targets):
            table.write(*row)
        if count % view_step == 0:
            job.save_view(_frame_html(frame, image))
        count += 1
        for index, target in enumerate(frame.targets):
            lost[index] += target.lost

    def draw(frame: TrackFrame) -> ImageArray:
        return draw_targets(frame.frame, frame.targets)

    with job.decode_clip(path) as clip:
        check_boxes(boxes, clip.info.size)
        view_step = job.view_step(clip)
        frames, progress = track_frames(clip, boxes, method.begin, **clip.span), job.progress("frame", keeps=True)
        job.write_clip(downloads[".mp4"], clip, frames, draw, progress, outputs=[table], on_result=save_frame)
        height, width = clip.info.size
    return JobOutput(
        summary=f"{count} frames of {width}x{height} pixels, {describe_targets(lost)}.",
        downloads=downloads,
        view=load_view(job.folder, 0),
        num_views=job.num_views,
        view_step=view_step,
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


DOWNLOADS = {".mp4": "Download .mp4", ".csv": "Download .csv"}
UNTRAINED = "The tracking model was not trained: its weights are random, so the boxes are meaningless."


def build_track_tab(site: Site) -> list[Example]:
    """Create the components of the tab, and return its examples."""
    gr = require_gradio()
    clips = site.demo_clips()
    with columns():
        with input_column():
            if not site.tracker.trained:
                gr.HTML(message_html(UNTRAINED, "warning"), elem_id="track-untrained")
            clip = clip_input(site, "track-clip", clips)
            picker = gr.HTML(
                value=[],  # boxes [x, y, w, h] in pixels of the clip
                html_template=read_asset("box_picker.html"),
                css_template=read_asset("box_picker.css"),
                js_on_load=read_asset("box_picker.js"),
                elem_id="track-picker",
                **NO_FRAME,
                hint="Drag a box around each target.",
                colors=["#{:02x}{:02x}{:02x}".format(*target_color(index)) for index in range(MAX_TARGETS)],
            )
            buttons = gr.Column(elem_classes="pf-buttons")
        with result_column():
            panel = ResultPanel(site, "track", DOWNLOADS, "The tracked boxes appear here.", video_label="Tracks")
    with buttons:
        panel.connect_clip(clip, picker)
        compute, inputs = partial(track_clip, site.tracker), [clip.box, picker]
        panel.connect("Track", "clip", compute, inputs, "Choose a clip first.", trim=clip.trim)
    return clips
