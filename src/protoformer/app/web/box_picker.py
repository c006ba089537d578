"""The first frame of a clip, on which people draw boxes with the mouse: a template, its style and its script."""

from typing import Any

from protoformer.app.web.gradio_package import require_gradio
from protoformer.show.track_frames import target_colour

HINT = "Press the mouse on the picture, drag a box around what to follow, and let go. Draw more for more targets."

TEMPLATE = """
<div class="picker">${image ? `
  <div class="stage"><img draggable="false" alt="the first frame of the clip" src="${image}"
    ><div class="boxes"></div></div>
  <p class="line"><span class="told">${hint}</span>
    <button type="button" class="undo" hidden>Take the last box away</button></p>` : `
  <p class="empty">Choose a clip or an example: its first frame appears here, to draw boxes on.</p>`}
</div>
"""

STYLE = """
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
.told { opacity: .8 }
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
    const colour = props.colours[index % props.colours.length];
    const share = (value, length) => `${100 * value / length}%`;
    return `<span style="border-color:${colour};left:${share(x, props.width)};top:${share(y, props.height)};` +
      `width:${share(w, props.width)};height:${share(h, props.height)}"><b>${index + 1}</b></span>`;
  }).join('');
  element.querySelector('.undo').hidden = boxes().length === 0;
  const last = all[all.length - 1];
  element.querySelector('.told').textContent = last ?
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
        css_template=STYLE,
        js_on_load=SCRIPT,
        elem_id="track-picker",
        image="",
        width=1,
        height=1,
        hint=HINT,
        colours=["#{:02x}{:02x}{:02x}".format(*target_colour(index)) for index in range(most)],
    )
