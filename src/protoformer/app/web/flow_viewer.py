"""The two pictures of a flow, and the line that says what is under the mouse."""

from typing import Any

from protoformer.app.web.gradio_package import require_gradio
from protoformer.app.web.viewer import STYLE, viewer_script

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

UNPACKED = "(value) => ({ vectors: new DataView(bytes(value.vectors).buffer), confidence: bytes(value.confidence) })"
TOLD = """(value, known, cell) => {
  const u = known.vectors.getInt16(2 * cell, true) * value.unit;
  const v = known.vectors.getInt16(2 * (value.rows * value.columns + cell), true) * value.unit;
  return `u = ${u.toFixed(2)} px  v = ${v.toFixed(2)} px`;
}"""


def flow_viewer(wheel: str) -> Any:
    """The component, whose value is a `show.flow_view`. wheel: the address of a picture of the colours."""
    return require_gradio().HTML(
        value=None,
        html_template=TEMPLATE,
        css_template=STYLE,
        js_on_load=viewer_script(UNPACKED, TOLD),
        elem_id="flow-viewer",
        wheel=wheel,
        hint=HINT,
    )
