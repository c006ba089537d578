let arrays = null;
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const unpack = UNPACK;
const describe = DESCRIBE;
const read = () => {
  const value = props.value;
  arrays = value && value.image ? { ...unpack(value), confidence: bytes(value.confidence) } : null;
};
const clear = () => {
  element.querySelectorAll('.mark').forEach((mark) => { mark.style.display = 'none'; });
  const line = element.querySelector('.readout');
  if (line) line.textContent = props.hint;
};
const show = (event) => {
  const stage = event.target.closest ? event.target.closest('.stage') : null;
  if (!stage || !arrays) { clear(); return; }
  const value = props.value, box = stage.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
  const index = (fraction, length, cells) =>
    Math.min(cells - 1, Math.max(0, Math.floor(Math.floor(fraction * length) / value.step)));
  const column = index(x, value.width, value.columns), row = index(y, value.height, value.rows);
  const cell = row * value.columns + column;
  element.querySelectorAll('.mark').forEach((mark) => {
    mark.style.display = 'block';
    mark.style.left = `${x * 100}%`;
    mark.style.top = `${y * 100}%`;
  });
  element.querySelector('.readout').textContent =
    `pixel (${column * value.step}, ${row * value.step})  ${describe(value, arrays, cell)}  ` +
    `confidence ${(arrays.confidence[cell] / 255).toFixed(2)}`;
};
element.addEventListener('mousemove', show);
element.addEventListener('mouseleave', clear);
watch('value', read);
read();
