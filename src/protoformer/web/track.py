"""Tab for tracking: boxes drawn on the first frame of a clip are tracked through it."""

from collections.abc import Sequence
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
from protoformer.viz.html import jpeg_data_uri
from protoformer.web.components import EMPTY_STYLE, ResultPanel, clip_box, example_buttons, require_gradio
from protoformer.web.decoding import decode_first_frame
from protoformer.web.job import Job, JobOutput, error_message, message_html
from protoformer.web.limits import Deadline, Limits
from protoformer.web.results import load_view
from protoformer.web.site import Site

MAX_TARGETS = 20


def first_frame(limits: Limits, path: Path) -> dict[str, Any]:
    """Return the first frame of a clip for the box picker: `image` (data URI), `width` and `height` (pixels)."""
    image = decode_first_frame(limits, path, Deadline(limits.max_seconds))
    return {"image": jpeg_data_uri(image), "width": image.shape[1], "height": image.shape[0]}


def track_clip(method: NamedMethod, job: Job, path: Path, boxes: Sequence[Sequence[float]]) -> JobOutput:
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
        return draw_targets(frame.image, frame.targets)

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


class TrackTab:
    """Tracking: upload box, box picker and results."""

    def __init__(self, site: Site) -> None:
        self.site, self.method = site, site.tracker
        self.clip = site.example_clip("A chase", "chase", 1, num_frames=16)

    def build(self) -> None:
        """Create the components."""
        gr = require_gradio()
        if not self.method.trained:
            gr.HTML(message_html(UNTRAINED, "warning"), elem_id="track-untrained")
        clip = clip_box("track-clip")
        example_buttons([self.clip], [clip])
        picker = box_picker()
        compute = gr.Button("Track", variant="primary", elem_id="track-compute")
        panel = ResultPanel(self.site, "track", {".mp4": "Download .mp4", ".csv": "Download .csv"})
        panel.connect(compute, "track_clip", self._compute, [clip, picker])
        clip.change(
            self._show_first_frame,
            clip,
            [picker, panel.message],
            api_visibility="private",
            show_progress="hidden",
        )

    def _show_first_frame(self, path: Path | None) -> tuple[Any, Any]:
        """Return the updated box picker and a message."""
        gr = require_gradio()
        message = ""
        if path is not None:
            try:
                return gr.HTML(value=[], **first_frame(self.site.limits, path)), message
            except InputError as error:
                message = message_html(error_message(error, [path]))
        return gr.HTML(value=[], image="", width=1, height=1), message

    def _compute(self, job: Job, path: Path | None, boxes: Any) -> JobOutput:
        if path is None:
            raise InputError("choose a clip first.")
        return track_clip(self.method, job, path, boxes or [])


_PICKER_TEMPLATE = """
<div class="picker">${image ? `
  <div class="stage"><img draggable="false" alt="the first frame of the clip" src="${image}"
    ><div class="boxes"></div></div>
  <p class="line"><span class="status">${hint}</span>
    <button type="button" class="undo" hidden>Remove the last box</button></p>` : `
  <p class="empty">Choose a clip or an example; then draw boxes on its first frame here.</p>`}
</div>
"""
_PICKER_STYLE = """
.stage { position: relative; cursor: crosshair; touch-action: none; user-select: none; max-width: 760px;
  overflow: hidden }
.stage img { display: block; width: 100%; height: auto; max-height: none; border-radius: 4px; margin: 0;
  pointer-events: none }
.boxes { position: absolute; inset: 0; pointer-events: none }
.boxes span { position: absolute; box-sizing: border-box; border: 2px solid;
  box-shadow: 0 0 0 1px #000c, inset 0 0 0 1px #000c }
.boxes b { position: absolute; left: -2px; top: -2px; font: 600 12px/1.4 system-ui, sans-serif; padding: 0 5px;
  color: #000; background: #fffd }
.line { margin: 8px 0 0; display: flex; gap: 12px; align-items: center; flex-wrap: wrap; min-height: 2em }
.status { opacity: .8 }
.undo { border: 1px solid var(--border-color-primary); border-radius: 6px; padding: 2px 10px }
"""

_PICKER_SCRIPT = """
let start = null;
const boxes = () => Array.isArray(props.value) ? props.value : [];
const position = (event) => {
  const box = element.querySelector('.stage').getBoundingClientRect();
  const fraction = (value, length) => Math.min(1, Math.max(0, value / length));
  return [fraction(event.clientX - box.left, box.width) * props.width,
          fraction(event.clientY - box.top, box.height) * props.height];
};
const spannedBox = ([a, b], [c, d]) => {
  const x = Math.floor(Math.min(a, c)), y = Math.floor(Math.min(b, d));
  return [x, y, Math.ceil(Math.max(a, c)) - x, Math.ceil(Math.max(b, d)) - y];
};
const draw = (extra) => {
  const layer = element.querySelector('.boxes');
  if (!layer) return;
  const all = extra ? [...boxes(), extra] : boxes();
  layer.innerHTML = all.map(([x, y, w, h], index) => {
    const color = props.colors[index % props.colors.length];
    const percent = (value, length) => `${100 * value / length}%`;
    return `<span style="border-color:${color};left:${percent(x, props.width)};top:${percent(y, props.height)};` +
      `width:${percent(w, props.width)};height:${percent(h, props.height)}"><b>${index + 1}</b></span>`;
  }).join('');
  element.querySelector('.undo').hidden = boxes().length === 0;
  const last = all[all.length - 1];
  element.querySelector('.status').textContent = last ?
    `${all.length} ${all.length === 1 ? 'box' : 'boxes'}; the last is ${last.join(',')} (x, y, width, height in pixels)`
    : props.hint;
};
element.addEventListener('pointerdown', (event) => {
  if (event.button !== 0 || !event.target.closest('.stage')) return;
  start = position(event);
  event.preventDefault();
});
window.addEventListener('pointermove', (event) => {
  if (start && element.querySelector('.stage')) draw(spannedBox(start, position(event)));
});
window.addEventListener('pointerup', (event) => {
  if (!start || !element.querySelector('.stage')) return;
  const box = spannedBox(start, position(event));
  start = null;
  if (box[2] >= 4 && box[3] >= 4) props.value = [...boxes(), box];
  draw();
});
window.addEventListener('pointercancel', () => { start = null; draw(); });
element.addEventListener('click', (event) => {
  if (event.target.closest('.undo')) { props.value = boxes().slice(0, -1); draw(); }
});
watch('value', () => draw());
watch('image', () => { start = null; draw(); });
draw();
"""


def box_picker() -> Any:
    """Create the component for drawing boxes; its value is a list of boxes [x, y, w, h] in pixels of the clip.

    Its properties `image` (data URI), `width` and `height` (pixels) describe the frame to draw on.
    """
    return require_gradio().HTML(
        value=[],
        html_template=_PICKER_TEMPLATE,
        css_template=_PICKER_STYLE + EMPTY_STYLE,
        js_on_load=_PICKER_SCRIPT,
        elem_id="track-picker",
        image="",
        width=1,
        height=1,
        hint="Drag a box around each target, with the mouse button pressed.",
        colors=["#{:02x}{:02x}{:02x}".format(*target_color(index)) for index in range(MAX_TARGETS)],
    )
