"""An explanation as a self-contained HTML page, and as a folder of files."""

import json
import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protoformer.explain.drawing import draw_em_iterations, draw_groups, draw_memberships, draw_parts, draw_values
from protoformer.explain.groups import FAMILIES
from protoformer.explain.record import FAMILY_COUNTS, explanation_record, page_record
from protoformer.io.files import check_output, make_folder, write_atomically
from protoformer.io.png import encode_png
from protoformer.models.runtime import ProgressCallback
from protoformer.viz.colormaps import Pixels
from protoformer.viz.plots import Curve, line_plot
from protoformer.viz.report import STYLE as PAGE_STYLE
from protoformer.viz.report import Figure, Section

if TYPE_CHECKING:
    from protoformer.explain.result import Explanation

STYLE = """
.controls { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: center; margin: 1rem 0 }
.controls label { color: var(--soft); font-size: .9rem } .controls select, .controls input { vertical-align: middle }
#at { display: inline-block; min-width: 7em } /* its longest text, so that the images stay where they are */
.stages { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 1rem; align-items: start }
.stage { position: relative; overflow: hidden; border-radius: 4px; cursor: crosshair; background: var(--tint) }
.stage img { display: block; width: 100%; height: auto }
.stage canvas { position: absolute; left: 0; top: 0; image-rendering: pixelated; pointer-events: none }
.stage i { position: absolute; width: 11px; height: 11px; margin: -6px 0 0 -6px; border: 2px solid #fff;
  border-radius: 50%; box-shadow: 0 0 0 1.5px #000; pointer-events: none }
#info { display: flex; gap: .9rem; align-items: center; min-height: 6.4rem; margin: .9rem 0 0; padding: .6rem 1rem;
  background: var(--tint); border-radius: 4px; font-variant-numeric: tabular-nums; white-space: pre-line }
#swatch { flex: 0 0 2.6rem; height: 2.6rem; border-radius: 4px }
"""

BODY = """
<div class="controls">
<label>Layer <select id="layer"></select></label>
<label>EM iteration <input id="step" type="range" min="0"> <output id="at"></output></label>
<label>Colors <select id="families"></select></label>
<label>Strength <input id="strength" type="range" min="0" max="100" value="60"></label>
</div>
<div class="stages" id="stages"></div>
<div id="info"><span id="swatch"></span><span id="words" aria-live="polite"></span></div>
"""

SCRIPT = """
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const at = (id) => document.getElementById(id);
const PARTS = -1, VALUES = -2, MAX_LISTED = 6, SIDE = 4;
const partsHint = 'Move the mouse over an image to highlight the moving part under it in both images.\\n' +
  'Click to keep it selected; click again to release it. Choose other colors to see the prototypes themselves.';
const hint = 'Move the mouse over an image to highlight the prototype under it, its family (dimmer), and its ' +
  'match in the other image. Rings mark the pixels most similar to the prototype.\\n' +
  'Click to keep it selected; click again to release it.';
const DARKNESS = 160, FAMILY_DARKNESS = 100;
let pinned = null, shown = null;
const decoded = new Map();
const cells = (layer, image, step) => {
  const key = `${layer}/${image}/${step}`;
  if (!decoded.has(key)) {
    const text = atob(data.layers[layer].images[image].maps[step]);
    const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    decoded.set(key, data.layers[layer].wide === 2 ? new Uint16Array(bytes.buffer) : bytes);
  }
  return decoded.get(key);
};
const partMap = (layer, image) => {
  const key = `${layer}/${image}/parts`;
  if (!decoded.has(key)) {
    const { rows, columns, maps, groups } = data.layers[layer].parts, map = new Uint16Array(rows * columns);
    for (let run = 0, start = 0; run < maps[image].length; run += 2) {
      const number = maps[image][run];
      map.fill(number < 0 ? groups.length : number, start, start += maps[image][run + 1]);
    }
    decoded.set(key, map);
  }
  return decoded.get(key);
};
const selection = () => {
  const layer = Number(at('layer').value);
  const of = data.layers[layer], families = Number(at('families').value);
  return { layer, step: families === VALUES ? of.steps : Number(at('step').value), of, families };
};
const layerMap = (image) => {
  const { layer, step, of, families } = selection(), part = of.images[image];
  if (families === PARTS) {
    const { rows, columns, colors } = of.parts;
    return { map: partMap(layer, image), rows, columns, across: 1, down: 1, colors };
  }
  const [down, across] = [part.rows, part.columns].map((count, side) => count * of.stride / part.inputSize[side]);
  return { map: cells(layer, image, step), rows: part.rows, columns: part.columns, across, down,
    colors: families === VALUES ? of.values[image] : of.colors[families][image] };
};
const partner = (of, image, number) => {
  if (selection().families === PARTS) return { number };
  const match = of.matches.find((pair) => pair[image] === number);
  return match ? { number: match[1 - image], similarity: match[2] } : null;
};
const rgb = (text) => [1, 3, 5].map((index) => parseInt(text.slice(index, index + 2), 16));
const paint = () => {
  const { step, of, families } = selection();
  const strength = 2.55 * Number(at('strength').value);
  document.querySelectorAll('.stage').forEach((stage, image) => {
    const { map, rows, columns, across, down, colors: own } = layerMap(image), canvas = stage.querySelector('canvas');
    const side = families === PARTS ? 1 : SIDE, wide = side * columns;
    canvas.width = wide;
    canvas.height = side * rows;
    canvas.style.width = `${100 * across}%`;
    canvas.style.height = `${100 * down}%`;
    const colors = own.map(rgb);
    const lit = shown === null ? null : shown.image === image ? shown.number :
      (partner(of, shown.image, shown.number) || { number: -1 }).number;
    const context = canvas.getContext('2d'), pixels = context.createImageData(wide, side * rows);
    const family = lit === null || lit < 0 ? null : own[lit];
    const paints = colors.map((color, number) => lit === null ? [...color, strength] :
      number === lit ? [...color, strength * 0.7] : [10, 14, 20, own[number] === family ? FAMILY_DARKNESS : DARKNESS]);
    const outline = [10, 14, 20, lit === null ? 2 * strength / 3 : DARKNESS];
    map.forEach((number, cell) => {
      const column = cell % columns, top = side * (cell - column) * side;
      const right = column + 1 < columns && map[cell + 1] !== number;
      const below = cell + columns < map.length && map[cell + columns] !== number;
      for (let y = 0; y < side; y += 1) {
        for (let x = 0; x < side; x += 1) {
          const edge = side > 1 && ((right && x === side - 1) || (below && y === side - 1));
          pixels.data.set(edge ? outline : paints[number], 4 * (top + y * wide + side * column + x));
        }
      }
    });
    context.putImageData(pixels, 0, 0);
    stage.querySelectorAll('i').forEach((mark) => mark.remove());
    stage.parentElement.querySelector('figcaption').textContent = caption(image, families);
    const ringed = families !== PARTS && lit !== null && step === of.steps;
    for (const [x, y] of (ringed && of.images[image].nearest[lit]) || []) {
      const mark = stage.appendChild(document.createElement('i'));
      mark.style.left = `${100 * (x + 0.5) / data.images[image].width}%`;
      mark.style.top = `${100 * (y + 0.5) / data.images[image].height}%`;
    }
  });
  describe();
};
const spread = (group) => `spread ${group.spread.toFixed(2)}`;
const values = (group) => group.mean.length === 2 ?
  `mean motion (${group.mean.map((each) => each.toFixed(2)).join(', ')}) ${data.unit}, ${spread(group)}` :
  group.mean.length === 1 ? `mean depth ${group.mean[0].toFixed(2)} ${data.unit}, ${spread(group)}` : '';
const about = (name, group) => `${name}: ${group.pixels} pixels, ${(100 * group.share).toFixed(1)} % of the image, ` +
  `center (${group.center.map((part) => part.toFixed(0)).join(', ')}); ${values(group)}`;
const describePart = (of) => {
  const part = of.parts.groups[shown.number];
  if (!part) { at('words').textContent = 'No pixel of the first image moves here.'; return; }
  const listed = part.prototypes.slice(0, MAX_LISTED).map(([number, pixels]) => `${number} (${pixels} pixels)`);
  const more = part.prototypes.length - listed.length;
  at('words').textContent = about(`Part ${part.part}`, part) + '\\nPrototypes ' + listed.join(', ') +
    (more ? ` and ${more} more` : '');
};
const caption = (image, families) => data.images.length < 2 ? 'The image' : !image ? 'First image' :
  families === PARTS ? 'Second image: the same parts, moved along the flow; dark where no pixel arrives' :
    'Second image: matched groups have the color of their match, others are gray';
const describe = () => {
  const { step, of, families } = selection();
  at('step').disabled = families === PARTS || families === VALUES;
  at('at').textContent = at('step').disabled ? 'last' : step === 0 ? 'start (pooled)' : `${step} of ${of.steps}`;
  at('swatch').style.background = shown ? layerMap(shown.image).colors[shown.number] : 'transparent';
  if (!shown) { at('words').textContent = families === PARTS ? partsHint : hint; return; }
  if (families === PARTS) { describePart(of); return; }
  const group = of.images[shown.image].groups[step].find((each) => each.prototype === shown.number);
  if (!group) { at('words').textContent = `Prototype ${shown.number} has no pixels after this iteration.`; return; }
  const other = partner(of, shown.image, shown.number);
  const removed = shown.image === 0 && step === of.steps && of.removals[shown.number];
  const effect = !removed ? '' : `\\nWithout it, ${data.unit === 'm' ? 'depth' : 'flow'} changes by ` +
    `${removed[0].toPrecision(2)} ${data.unit} in its region and ${removed[1].toPrecision(2)} ${data.unit} outside`;
  const matched = data.images.length < 2 ? '' : other ?
    `\\nIn the other image: prototype ${other.number}, cosine ${other.similarity.toFixed(2)}` :
    '\\nIn the other image: no match';
  at('words').textContent = about(`Prototype ${shown.number}`, group) + matched + effect;
};
const labelAt = (event, stage, image) => {
  const { map, rows, columns, across, down } = layerMap(image), box = stage.getBoundingClientRect();
  const cell = (share, whole, count) => Math.min(count - 1, Math.max(0, Math.floor(share / whole * count)));
  const column = cell((event.clientX - box.left) / box.width, across, columns);
  const row = cell((event.clientY - box.top) / box.height, down, rows);
  return { image, number: map[row * columns + column] };
};
const same = (one, other) => one && other && one.image === other.image && one.number === other.number;
data.images.forEach((each, image) => {
  const figure = at('stages').appendChild(document.createElement('figure'));
  const stage = figure.appendChild(document.createElement('div'));
  stage.className = 'stage';
  const img = stage.appendChild(document.createElement('img'));
  img.alt = image ? 'second image' : 'first image';
  img.src = each.address;
  stage.appendChild(document.createElement('canvas'));
  figure.appendChild(document.createElement('figcaption'));
  stage.addEventListener('mousemove', (event) => {
    const label = labelAt(event, stage, image);
    if (!pinned && !same(label, shown)) { shown = label; paint(); }
  });
  stage.addEventListener('mouseleave', () => { if (!pinned) { shown = null; paint(); } });
  stage.addEventListener('click', (event) => {
    const label = labelAt(event, stage, image);
    pinned = pinned ? null : label;
    shown = label;
    paint();
  });
});
data.layers.forEach((each, number) => {
  const side = `${each.name}, at 1/${each.stride} of the image`;
  at('layer').add(new Option(side, number));
});
data.families.forEach((count, number) => {
  const text = count === null ? 'every prototype' : `${count} families of similar prototypes`;
  at('families').add(new Option(text, number));
});
const meaning = data.unit === 'm' ? 'mean depth of every prototype' : 'mean motion of every prototype';
if (data.layers.every((each) => each.values.length)) at('families').add(new Option(meaning, VALUES));
if (data.layers.every((each) => each.parts)) at('families').add(new Option('moving parts', PARTS));
const relayer = () => {
  pinned = shown = null;
  at('step').max = selection().of.steps;
  at('step').value = selection().of.steps;
  paint();
};
at('layer').value = data.layers.length - 1;
at('families').value = data.families.indexOf(null);
let showsParts = false;
at('layer').addEventListener('change', relayer);
at('families').addEventListener('input', () => {
  if ((selection().families === PARTS) !== showsParts) pinned = shown = null;  // indices of parts and prototypes differ
  showsParts = selection().families === PARTS;
  paint();
});
['step', 'strength'].forEach((id) => at(id).addEventListener('input', paint));
relayer();
"""


LEAD = (
    "Every layer of the encoder groups the pixels around prototypes. Each pixel is shown with the prototype that the "
    "layer assigned to it. For two images, the color mode with moving parts shows pieces of prototypes that share one "
    "smooth motion."
)
UNTRAINED = "The weights of this model are random: these are the groups of an untrained network."


def explanation_page(
    explanation: "Explanation",
    names: tuple[str, ...] | None = None,
    record: dict[str, Any] | None = None,
    removals: int = 0,
) -> str:
    """Return the HTML page.

    Args:
        explanation: The explanation.
        names: Names of the layers to show; None: all.
        record: Result of `explanation_record`, if already computed.
        removals: Number of prototypes that are removed from each layer; see `Explanation.removals`.
    """
    record = explanation_record(explanation, names, removals=removals) if record is None else record
    data = {**page_record(explanation, names, removals), "families": FAMILY_COUNTS}
    notice = "" if explanation.trained else f'<p class="notice">{escape(UNTRAINED)}</p>'
    # "</script>" inside the data would end the script element.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Prototypes of the encoder</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{PAGE_STYLE}{STYLE}</style></head><body><h1>Prototypes of the encoder</h1>"
        f'<p class="lead">{escape(LEAD)}</p>{notice}{BODY}{_convergence(record).html()}'
        f'<script type="application/json" id="data">{text}</script><script>{SCRIPT}</script></body></html>\n'
    )


def save_explanation(
    folder: str | os.PathLike[str],
    explanation: "Explanation",
    *,
    layer: str | None = None,
    prototypes: tuple[int, ...] = (),
    removals: int = 0,
    progress: ProgressCallback | None = None,
) -> list[Path]:
    """Write an explanation to a folder; every file is written whole or not at all.

    The files are index.html, the page; explanation.json; and for every layer LAYER-groups.png (colored by prototype),
    LAYER-motion.png or LAYER-depth.png (by the mean motion or depth of the prototype, if known), LAYER-families.png (by
    family of similar prototypes), LAYER-parts.png (by moving part, if there is flow), all with both images side by
    side; LAYER-steps.png (after each EM iteration); and LAYER-prototype-N.png (soft membership).

    Args:
        folder: Created if it does not exist.
        explanation: The explanation.
        layer: Name of a single layer, such as "2.1"; None: all.
        prototypes: Prototypes whose soft memberships are drawn.
        removals: Number of prototypes that are removed from each layer, the largest ones; see `Explanation.removals`.
        progress: Called twice for every layer: after its numbers, which take longest, and after its images.

    Returns:
        The paths of the files.
    """
    target = make_folder(Path(folder))
    names = None if layer is None else (layer,)
    on_progress = progress or (lambda done, total: None)
    record = explanation_record(explanation, names, lambda done, total: on_progress(done, 2 * total), removals)
    files = {
        "index.html": explanation_page(explanation, names, record, removals).encode(),
        "explanation.json": (json.dumps(record) + "\n").encode(),
    }
    layers = [entry["name"] for entry in record["layers"]]
    for done, name in enumerate(layers, len(layers) + 1):
        files |= _images(explanation, name, prototypes)
        on_progress(done, 2 * len(layers))
    written = []
    for file, content in files.items():
        write_atomically(check_output(target / file), content)
        written.append(target / file)
    return written


def _images(explanation: "Explanation", name: str, prototypes: tuple[int, ...]) -> dict[str, bytes]:
    drawn = {
        "groups": draw_groups(explanation, name),
        "motion" if explanation.task == "flow" else "depth": draw_values(explanation, name),
        "families": draw_groups(explanation, name, FAMILIES),
        "parts": draw_parts(explanation, name),
        "steps": [draw_em_iterations(explanation, name)],
    }
    files = {f"{name}-{content}.png": _side_by_side(images) for content, images in drawn.items() if images}
    for prototype in prototypes:
        files[f"{name}-prototype-{prototype}.png"] = encode_png(draw_memberships(explanation, prototype, name))
    return files


def _side_by_side(images: list[Pixels]) -> bytes:
    """Encode images side by side as a PNG, padded to the same height."""
    height = max(map(len, images))
    padded = [np.pad(image, ((0, height - len(image)), (0, 0), (0, 0))) for image in images]
    return encode_png(np.concatenate(padded, axis=1))


def _convergence(record: dict[str, Any]) -> Section:
    layers = [layer for layer in record["layers"] if layer["steps"]]
    if not layers:
        return Section("EM iterations", "This network pools its prototypes without EM: there are no iterations.")
    plots = (
        ("log_likelihood", "nats per pixel", "log-likelihood of the pixels, from the pooled start on", 0),
        ("changed", "fraction", "cells whose assignment an iteration changed", 1),
        ("moved", "fraction of length", "mean distance that an iteration moved the prototypes", 1),
    )
    figures = tuple(
        Figure(line_plot([_curve(layer, key, first) for layer in layers], "EM iteration", unit), caption)
        for key, unit, caption, first in plots
    )
    head = ("layer", "prototypes with pixels", "contraction per iteration", "drift after 40 iterations")
    rows = tuple(
        (
            layer["name"],
            f"{len(layer['images'][0]['groups'])} of {layer['prototypes']}",
            f"{layer['contraction']:.3f}",
            f"{layer['drift']:.3f}",
        )
        for layer in layers
    )
    text = "Each layer starts with pooled prototypes, and EM iterations move them to their pixels."
    below = (
        "The contraction is the factor by which an iteration shrinks the distance to the prototypes after 40 "
        "iterations. Drift is the length of the last of these iterations relative to the first: near 0 EM has "
        "converged, near 1 it keeps moving, and above 1 it diverges."
    )
    return Section("EM iterations", text, figures, (head, *rows), below)


def _curve(layer: dict[str, Any], key: str, first: int) -> Curve:
    return Curve(layer["name"], tuple((float(first + index), value) for index, value in enumerate(layer[key])))
