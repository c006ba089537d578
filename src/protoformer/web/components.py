"""Parts of the page that several tabs have."""

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from protoformer.errors import InputError
from protoformer.tracking.drawing import target_color
from protoformer.web.site import GONE, notice

VIEWER_STYLE = """
.pictures { display: grid; grid-template-columns: 1fr 1fr 84px; gap: 14px; align-items: start }
figure { margin: 0; min-width: 0 }
.stage { position: relative; cursor: crosshair }
.stage img { display: block; width: 100%; height: auto; max-height: none; border-radius: 4px; margin: 0 }
.wheel img { display: block; width: 84px; height: 84px; border-radius: 50%; margin: 0 }
figcaption { padding-top: 4px; font-size: .86rem; opacity: .75 }
.wheel figcaption { text-align: center }
.mark { position: absolute; width: 13px; height: 13px; margin: -7px 0 0 -7px; border: 2px solid #fff;
  border-radius: 50%; box-shadow: 0 0 0 1.5px #000, inset 0 0 0 1px #000; pointer-events: none; display: none }
.readout { margin: 10px 0 0; font-family: var(--font-mono); font-variant-numeric: tabular-nums; min-height: 1.5em;
  white-space: pre-wrap }
.empty { opacity: .75; border: 1px dashed var(--border-color-primary); border-radius: 6px;
  padding: 2.2rem 1rem; text-align: center; margin: 0 }
@media (max-width: 720px) { .pictures { grid-template-columns: 1fr } .wheel { width: 84px } }
"""

_SCRIPT = """
let known = null;
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const unpacked = UNPACKED;
const describe = DESCRIBE;
const read = () => {
  const value = props.value;
  known = value && value.image ? unpacked(value) : null;
};
const clear = () => {
  element.querySelectorAll('.mark').forEach((mark) => { mark.style.display = 'none'; });
  const line = element.querySelector('.readout');
  if (line) line.textContent = props.hint;
};
const show = (event) => {
  const stage = event.target.closest ? event.target.closest('.stage') : null;
  if (!stage || !known) { clear(); return; }
  const value = props.value, box = stage.getBoundingClientRect();
  const across = (event.clientX - box.left) / box.width, down = (event.clientY - box.top) / box.height;
  const place = (share, length, cells) =>
    Math.min(cells - 1, Math.max(0, Math.floor(Math.floor(share * length) / value.step)));
  const column = place(across, value.width, value.columns), row = place(down, value.height, value.rows);
  const cell = row * value.columns + column;
  element.querySelectorAll('.mark').forEach((mark) => {
    mark.style.display = 'block';
    mark.style.left = `${across * 100}%`;
    mark.style.top = `${down * 100}%`;
  });
  element.querySelector('.readout').textContent =
    `pixel (${column * value.step}, ${row * value.step})  ${describe(value, known, cell)}  ` +
    `confidence ${(known.confidence[cell] / 255).toFixed(2)}`;
};
element.addEventListener('mousemove', show);
element.addEventListener('mouseleave', clear);
watch('value', read);
read();
"""


def viewer_script(unpacked: str, describe: str) -> str:
    """The script of a viewer whose value has image, width, height, step, columns and rows.

    Args:
        unpacked: JavaScript function from the value to decoded arrays, with `confidence` (bytes, 255 is 1) among them.
        describe: JavaScript function from the value, those arrays and the index of a cell to a text about the cell.
    """
    return _SCRIPT.replace("UNPACKED", unpacked).replace("DESCRIBE", describe)


def require_gradio() -> Any:
    """The package `gradio`, or an `InputError` that says how to get it."""
    try:
        return import_module("gradio")
    except ImportError:
        raise InputError(
            "the web page is served with gradio, which is not installed: pip install 'protoformer[web]'."
        ) from None


def prepare_gradio(served: Path) -> Any:
    """Import gradio with settings of this page alone.

    gradio reads its environment variables while it is imported and later. Some of them open further files, ports or
    debugging aids, so none is taken over from the user's environment.

    Args:
        served: The folder for uploads and downloads, which is made. gradio puts every other file of its own there, too.
    """
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    served.mkdir(parents=True, exist_ok=True)
    os.environ["GRADIO_TEMP_DIR"] = str(served)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    return require_gradio()


def image_box(label: str, elem_id: str) -> Any:
    """Where an image is given."""
    box = require_gradio().Image(
        label=label, type="filepath", sources=["upload", "clipboard"], height=260, buttons=[], elem_id=elem_id
    )
    box.preprocess = _path_of
    return box


def clip_box(elem_id: str) -> Any:
    """Where a clip is given."""
    box = require_gradio().Video(label="Clip", sources=["upload"], elem_id=elem_id, height=260)
    box.preprocess = _path_of
    return box


def example_buttons(examples: Iterable[tuple[str, tuple[Path, ...]]], boxes: list[Any]) -> None:
    """A button for each example, by its name, that puts its files into the boxes."""
    gr = require_gradio()
    with gr.Row(elem_classes="pf-examples"):
        gr.HTML("<span>Examples:</span>")
        for name, paths in examples:
            chosen = tuple(str(path) for path in paths) if len(paths) > 1 else str(paths[0])
            button = gr.Button(name, size="sm", min_width=90)
            button.click(lambda chosen=chosen: chosen, None, boxes, api_visibility="private")


def download(path: Path | None) -> Any:
    """What the button of a file becomes: hidden where there is none."""
    return require_gradio().update(visible=path is not None, value=None if path is None else str(path))


def connect_slider(slider: Any, result: Any, shown: Any, message: Any, view: Callable[[Path, int], Any]) -> None:
    """Let a slider choose what is shown of a result. view: from its folder and a number, from 0 on, to that."""

    def slid(number: int, folder: Path | None) -> tuple[Any, Any]:
        skip = require_gradio().skip
        if folder is None:
            return skip(), skip()
        if not folder.exists():
            return skip(), notice(GONE)
        try:
            return view(folder, int(number) - 1), skip()
        except FileNotFoundError:  # images have no other frame
            return skip(), skip()

    slider.change(
        slid,
        [slider, result],
        [shown, message],
        queue=False,
        show_progress="hidden",
        trigger_mode="always_last",
        api_visibility="private",
    )


def _path_of(payload: Any) -> str | None:
    """An upload as it is: gradio would decode it before any limit is checked, and change what it holds."""
    return None if payload is None else payload.path


HINT = "Press the mouse on the picture, drag a box around what to follow, and let go. Draw more for more targets."

TEMPLATE = """
<div class="picker">${image ? `
  <div class="stage"><img draggable="false" alt="the first frame of the clip" src="${image}"
    ><div class="boxes"></div></div>
  <p class="line"><span class="status">${hint}</span>
    <button type="button" class="undo" hidden>Take the last box away</button></p>` : `
  <p class="empty">Choose a clip or an example: its first frame appears here, to draw boxes on.</p>`}
</div>
"""

PICKER_STYLE = """
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
.empty { opacity: .75; border: 1px dashed var(--border-color-primary); border-radius: 6px;
  padding: 2.2rem 1rem; text-align: center; margin: 0 }
"""

SCRIPT = """
let start = null;
const boxes = () => Array.isArray(props.value) ? props.value : [];
const place = (event) => {
  const box = element.querySelector('.stage').getBoundingClientRect();
  const share = (value, length) => Math.min(1, Math.max(0, value / length));
  return [share(event.clientX - box.left, box.width) * props.width,
          share(event.clientY - box.top, box.height) * props.height];
};
const between = ([a, b], [c, d]) => {
  const x = Math.floor(Math.min(a, c)), y = Math.floor(Math.min(b, d));
  return [x, y, Math.ceil(Math.max(a, c)) - x, Math.ceil(Math.max(b, d)) - y];
};
const draw = (extra) => {
  const layer = element.querySelector('.boxes');
  if (!layer) return;
  const all = extra ? [...boxes(), extra] : boxes();
  layer.innerHTML = all.map(([x, y, w, h], index) => {
    const color = props.colors[index % props.colors.length];
    const share = (value, length) => `${100 * value / length}%`;
    return `<span style="border-color:${color};left:${share(x, props.width)};top:${share(y, props.height)};` +
      `width:${share(w, props.width)};height:${share(h, props.height)}"><b>${index + 1}</b></span>`;
  }).join('');
  element.querySelector('.undo').hidden = boxes().length === 0;
  const last = all[all.length - 1];
  element.querySelector('.status').textContent = last ?
    `${all.length} ${all.length === 1 ? 'box' : 'boxes'}; the last is ${last.join(',')} (x, y, width, height in pixels)`
    : props.hint;
};
element.addEventListener('pointerdown', (event) => {
  if (event.button !== 0 || !event.target.closest('.stage')) return;
  start = place(event);
  event.preventDefault();
});
window.addEventListener('pointermove', (event) => {
  if (start && element.querySelector('.stage')) draw(between(start, place(event)));
});
window.addEventListener('pointerup', (event) => {
  if (!start || !element.querySelector('.stage')) return;
  const box = between(start, place(event));
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


def box_picker(most: int) -> Any:
    """The component, whose value is a list of boxes [x, y, w, h] in pixels of the clip. most: boxes there may be.

    Its other properties, `image` (an address), `width` and `height`, are those of the frame.
    """
    return require_gradio().HTML(
        value=[],
        html_template=TEMPLATE,
        css_template=PICKER_STYLE,
        js_on_load=SCRIPT,
        elem_id="track-picker",
        image="",
        width=1,
        height=1,
        hint=HINT,
        colors=["#{:02x}{:02x}{:02x}".format(*target_color(index)) for index in range(most)],
    )
