const part = (name) => element.querySelector(name);
const limits = () => {
  const [start, end] = Array.isArray(props.value) ? props.value : [null, null];
  return [start === null ? 0 : start, end === null ? props.duration : Math.min(end, props.duration)];
};
const show = ([start, end]) => {
  if (!part('.from')) return;
  const frames = Math.max(1, Math.round((end - start) * props.fps));
  const over = props.max_frames > 0 && frames > props.max_frames;
  part('.chosen').style.left = `${100 * start / props.duration}%`;
  part('.chosen').style.right = `${100 - 100 * end / props.duration}%`;
  part('.words').textContent = `${start.toFixed(1)} to ${end.toFixed(1)} s, ${frames} frames` +
    (over ? `; select at most ${props.max_frames}` : '');
  part('.words').classList.toggle('over', over);
};
const draw = () => {
  if (!part('.from')) return;
  const [start, end] = limits();
  part('.from').value = start;
  part('.to').value = end;
  show([start, end]);
};
const chosen = (moved) => {
  const from = part('.from'), to = part('.to'), gap = Math.min(props.duration, 2 / props.fps);
  if (+to.value - +from.value < gap) {
    if (moved === from) from.value = Math.max(0, +to.value - gap);
    else to.value = Math.min(props.duration, +from.value + gap);
  }
  return [+from.value, +to.value];
};
element.addEventListener('input', (event) => {
  if (!event.target.matches('input[type=range]')) return;
  event.stopPropagation();
  const span = chosen(event.target);
  show(span);
  const column = element.closest('.pf-input'), video = column && column.querySelector('.pf-clip:not(.hidden) video');
  if (video) { video.pause(); video.currentTime = event.target === part('.from') ? span[0] : span[1]; }
});
element.addEventListener('change', (event) => {
  if (!event.target.matches('input[type=range]')) return;
  event.stopPropagation();
  const [start, end] = chosen(event.target);
  props.value = [start > 0 ? start : null, end < props.duration ? end : null];
  trigger('release');
});
watch(['value', 'duration'], draw);
draw();
