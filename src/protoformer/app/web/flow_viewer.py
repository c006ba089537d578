"""The two pictures of a flow, and the line that says what is under the mouse: a template, its style and its script."""

from typing import Any

from protoformer.app.web.gradio_package import require_gradio

HINT = "Move the mouse over a picture to read the motion of a pixel."

TEMPLATE = """
<div class="viewer">${value && value.image ? `
  <div class="pictures">
    <figure><div class="stage"><img class="first" alt="the first image" src="${value.image}"
      ><span class="mark"></span></div><figcaption>First image</figcaption></figure>
    <figure><div class="stage"><img class="flow" alt="its motion in colours" src="${value.flow}"
      ><span class="mark"></span></div><figcaption>Motion: hue is direction, strength is speed</figcaption></figure>
    <figure class="wheel"><img alt="the colour of every direction" src="${wheel}"
      ><figcaption>rim: ${value.scale.toFixed(1)} px</figcaption></figure>
  </div>
  <p class="readout" aria-live="off">${hint}</p>` : `
  <p class="empty">Nothing is computed yet. Choose images, a clip or an example, and press the button.</p>`}
</div>
"""

STYLE = """
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

SCRIPT = """
let known = null;
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const read = () => {
  const value = props.value;
  known = null;
  if (!value || !value.vectors) return;
  const raw = bytes(value.vectors);
  known = { vectors: new DataView(raw.buffer), confidence: bytes(value.confidence) };
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
  const cell = row * value.columns + column, all = value.rows * value.columns;
  const u = known.vectors.getInt16(2 * cell, true) * value.unit;
  const v = known.vectors.getInt16(2 * (all + cell), true) * value.unit;
  const sure = known.confidence[cell] / 255;
  element.querySelectorAll('.mark').forEach((mark) => {
    mark.style.display = 'block';
    mark.style.left = `${across * 100}%`;
    mark.style.top = `${down * 100}%`;
  });
  element.querySelector('.readout').textContent =
    `pixel (${column * value.step}, ${row * value.step})  u = ${u.toFixed(2)} px  v = ${v.toFixed(2)} px  ` +
    `confidence ${sure.toFixed(2)}`;
};
element.addEventListener('mousemove', show);
element.addEventListener('mouseleave', clear);
watch('value', read);
read();
"""


def flow_viewer(wheel: str) -> Any:
    """The component, whose value is a `show.flow_view`. wheel: the address of a picture of the colours."""
    return require_gradio().HTML(
        value=None,
        html_template=TEMPLATE,
        css_template=STYLE,
        js_on_load=SCRIPT,
        elem_id="flow-viewer",
        wheel=wheel,
        hint=HINT,
    )
