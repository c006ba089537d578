"""What the viewers of all tabs share: their style, and the script that reads the pixel under the mouse."""

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

_SCRIPT = """
let known = null;
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const unpacked = UNPACKED;
const told = TOLD;
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
    `pixel (${column * value.step}, ${row * value.step})  ${told(value, known, cell)}  ` +
    `confidence ${(known.confidence[cell] / 255).toFixed(2)}`;
};
element.addEventListener('mousemove', show);
element.addEventListener('mouseleave', clear);
watch('value', read);
read();
"""


def viewer_script(unpacked: str, told: str) -> str:
    """The script of a viewer whose value has image, width, height, step, columns and rows.

    unpacked: a function of the value to what is read from it, `confidence` (bytes, 255 is 1) among it. told: a function
    of the value, of that, and of the number of a cell to what is said of the cell.
    """
    return _SCRIPT.replace("UNPACKED", unpacked).replace("TOLD", told)
