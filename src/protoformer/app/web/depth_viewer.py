"""The two pictures of a depth, and the line that says what is under the mouse."""

from typing import Any

from protoformer.app.web.gradio_package import require_gradio
from protoformer.app.web.viewer import STYLE, viewer_script

HINT = "Move the mouse over a picture to read the depth of a pixel."

TEMPLATE = """
<div class="viewer">${value && value.image ? `
  <div class="pictures">
    <figure><div class="stage"><img class="first" alt="the image" src="${value.image}"
      ><span class="mark"></span></div><figcaption>Image</figcaption></figure>
    <figure><div class="stage"><img class="depth" alt="its depth in colours" src="${value.depth}"
      ><span class="mark"></span></div><figcaption>Depth: near is light and warm, far is dark and cool</figcaption>
    </figure>
    <figure class="wheel"><img class="strip" alt="the colour of every depth" src="${legend}"
      ><figcaption>${value.near.toPrecision(3)} to ${value.far.toPrecision(3)} m</figcaption></figure>
  </div>
  <p class="readout" aria-live="off">${hint}</p>` : `
  <p class="empty">Nothing is computed yet. Choose an image, a clip or an example, and press the button.</p>`}
</div>
"""

STRIP = ".wheel img.strip { height: 16px; border-radius: 3px }"
UNPACKED = "(value) => ({ depths: new DataView(bytes(value.depths).buffer), confidence: bytes(value.confidence) })"
TOLD = """(value, known, cell) => {
  const share = known.depths.getUint16(2 * cell, true) / 65535;
  const metres = Math.exp(value.low + share * (value.high - value.low));
  return `depth = ${metres.toPrecision(4)} m`;
}"""


def depth_viewer(legend: str) -> Any:
    """The component, whose value is a `show.depth_view`. legend: the address of a picture of the colours."""
    return require_gradio().HTML(
        value=None,
        html_template=TEMPLATE,
        css_template=STYLE + STRIP,
        js_on_load=viewer_script(UNPACKED, TOLD),
        elem_id="depth-viewer",
        legend=legend,
        hint=HINT,
    )
