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
