"""An explanation as one html page that holds all it shows, and as a folder of files."""

import json
import os
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from protoformer.explain.drawing import draw_em_steps, draw_groups, draw_memberships, draw_parts
from protoformer.explain.groups import FAMILIES
from protoformer.explain.record import FAMILY_COUNTS, explanation_record, page_record
from protoformer.explain.result import Explanation
from protoformer.io.files import check_output, make_folder, write_atomically
from protoformer.io.png import encode_png
from protoformer.models.runtime import ProgressCallback
from protoformer.viz.html import STYLE as PAGE_STYLE
from protoformer.viz.html import Figure, Section
from protoformer.viz.images import Pixels
from protoformer.viz.plots import Curve, line_plot

STYLE = """
.controls { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: center; margin: 1rem 0 }
.controls label { color: var(--soft); font-size: .9rem } .controls select, .controls input { vertical-align: middle }
.stages { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 1rem; align-items: start }
.stage { position: relative; overflow: hidden; border-radius: 4px; cursor: crosshair; background: var(--tint) }
.stage img { display: block; width: 100%; height: auto }
.stage canvas { position: absolute; left: 0; top: 0; image-rendering: pixelated; pointer-events: none }
.stage i { position: absolute; width: 11px; height: 11px; margin: -6px 0 0 -6px; border: 2px solid #fff;
  border-radius: 50%; box-shadow: 0 0 0 1.5px #000; pointer-events: none }
#told { display: flex; gap: .9rem; align-items: center; min-height: 6.4rem; margin: .9rem 0 0; padding: .6rem 1rem;
  background: var(--tint); border-radius: 4px; font-variant-numeric: tabular-nums; white-space: pre-line }
#swatch { flex: 0 0 2.6rem; height: 2.6rem; border-radius: 4px }
"""

BODY = """
<div class="controls">
<label>Layer <select id="layer"></select></label>
<label>Step of EM <input id="step" type="range" min="0"> <output id="at"></output></label>
<label>Colors <select id="families"></select></label>
<label>Strength <input id="strength" type="range" min="0" max="100" value="60"></label>
</div>
<div class="stages" id="stages"></div>
<div id="told"><span id="swatch"></span><span id="words" aria-live="polite"></span></div>
"""

SCRIPT = """
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const at = (id) => document.getElementById(id);
const PARTS = -1, PROTOTYPES_TOLD = 6;
const partsHint = 'Move the mouse over a picture: what moves as one with the pixel under it lights up in both.\\n' +
  'A click holds the part; another lets it go. Choose other colors to see the prototypes themselves.';
const hint = 'Move the mouse over a picture: the group of pixels under it lights up, dimmer its family, and in ' +
  'another picture its match. Rings are its pixels that are nearest to the prototype.\\n' +
  'A click holds the group; another lets it go.';
const DARKNESS = 160, FAMILY_DARKNESS = 100;
let held = null, shown = null;
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
const unrolled = (layer, image) => {
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
const chosen = () => {
  const layer = Number(at('layer').value);
  return { layer, step: Number(at('step').value), of: data.layers[layer], families: Number(at('families').value) };
};
const drawn = (image) => {
  const { layer, step, of, families } = chosen(), part = of.images[image];
  if (families === PARTS) {
    const { rows, columns, colors } = of.parts;
    return { map: unrolled(layer, image), rows, columns, across: 1, down: 1, colors };
  }
  const [down, across] = [part.rows, part.columns].map((count, side) => count * of.stride / part.seen[side]);
  return { map: cells(layer, image, step), rows: part.rows, columns: part.columns, across, down,
    colors: of.colors[families][image] };
};
const partner = (of, image, number) => {
  if (chosen().families === PARTS) return { number };
  const match = of.matches.find((each) => each[image] === number);
  return match ? { number: match[1 - image], similarity: match[2] } : null;
};
const rgb = (text) => [1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16));
const paint = () => {
  const { step, of, families } = chosen();
  const strength = 2.55 * Number(at('strength').value);
  document.querySelectorAll('.stage').forEach((stage, image) => {
    const { map, rows, columns, across, down, colors: own } = drawn(image), canvas = stage.querySelector('canvas');
    canvas.width = columns;
    canvas.height = rows;
    canvas.style.width = `${100 * across}%`;
    canvas.style.height = `${100 * down}%`;
    const colors = own.map(rgb);
    const lit = shown === null ? null : shown.image === image ? shown.number :
      (partner(of, shown.image, shown.number) || { number: -1 }).number;
    const pen = canvas.getContext('2d'), picture = pen.createImageData(columns, rows);
    const family = lit === null || lit < 0 ? null : own[lit];
    const paints = colors.map((color, number) => lit === null ? [...color, strength] :
      number === lit ? [...color, strength * 0.7] : [10, 14, 20, own[number] === family ? FAMILY_DARKNESS : DARKNESS]);
    map.forEach((number, cell) => picture.data.set(paints[number], 4 * cell));
    pen.putImageData(picture, 0, 0);
    stage.querySelectorAll('i').forEach((mark) => mark.remove());
    stage.parentElement.querySelector('figcaption').textContent = caption(image, families);
    const ringed = families !== PARTS && lit !== null && step === of.steps;
    for (const [x, y] of (ringed && of.images[image].nearest[lit]) || []) {
      const mark = stage.appendChild(document.createElement('i'));
      mark.style.left = `${100 * (x + 0.5) / data.images[image].width}%`;
      mark.style.top = `${100 * (y + 0.5) / data.images[image].height}%`;
    }
  });
  tell();
};
const values = (group) => group.mean.length === 2 ?
  `moves by (${group.mean.map((part) => part.toFixed(2)).join(', ')}) ${data.unit}, spread ${group.spread.toFixed(2)}` :
  group.mean.length === 1 ? `${group.mean[0].toFixed(2)} ${data.unit} away, spread ${group.spread.toFixed(2)}` : '';
const about = (name, group) => `${name}: ${group.pixels} pixels, ${(100 * group.share).toFixed(1)} % of the image, ` +
  `around (${group.center.map((part) => part.toFixed(0)).join(', ')}); ${values(group)}`;
const tellPart = (of) => {
  const part = of.parts.groups[shown.number];
  if (!part) { at('words').textContent = 'Nothing of the first image arrives here.'; return; }
  const told = part.prototypes.slice(0, PROTOTYPES_TOLD).map(([number, pixels]) => `${number} (${pixels} pixels)`);
  const more = part.prototypes.length - told.length;
  at('words').textContent = about(`Part ${part.part}`, part) + '\\nPrototypes ' + told.join(', ') +
    (more ? ` and ${more} more` : '');
};
const caption = (image, families) => data.images.length < 2 ? 'The image' : !image ? 'First image' :
  families === PARTS ? 'Second image: the same parts, moved along the flow; dark where none arrives' :
    'Second image: matched groups have the color of their match, others are gray';
const tell = () => {
  const { step, of, families } = chosen();
  at('step').disabled = families === PARTS;
  at('at').textContent = families === PARTS ? 'the last' : step === 0 ? 'start (pooled)' : `${step} of ${of.steps}`;
  at('swatch').style.background = shown ? drawn(shown.image).colors[shown.number] : 'transparent';
  if (!shown) { at('words').textContent = families === PARTS ? partsHint : hint; return; }
  if (families === PARTS) { tellPart(of); return; }
  const group = of.images[shown.image].groups[step].find((each) => each.prototype === shown.number);
  if (!group) { at('words').textContent = `Prototype ${shown.number} has no pixels here.`; return; }
  const other = partner(of, shown.image, shown.number);
  const matched = data.images.length < 2 ? '' : other ?
    `\\nIn the other image: prototype ${other.number}, cosine ${other.similarity.toFixed(2)}` :
    '\\nIn the other image: no match';
  at('words').textContent = about(`Prototype ${shown.number}`, group) + matched;
};
const under = (event, stage, image) => {
  const { map, rows, columns, across, down } = drawn(image), box = stage.getBoundingClientRect();
  const place = (share, whole, count) => Math.min(count - 1, Math.max(0, Math.floor(share / whole * count)));
  const column = place((event.clientX - box.left) / box.width, across, columns);
  const row = place((event.clientY - box.top) / box.height, down, rows);
  return { image, number: map[row * columns + column] };
};
const same = (one, other) => one && other && one.image === other.image && one.number === other.number;
data.images.forEach((each, image) => {
  const figure = at('stages').appendChild(document.createElement('figure'));
  const stage = figure.appendChild(document.createElement('div'));
  stage.className = 'stage';
  const picture = stage.appendChild(document.createElement('img'));
  picture.alt = image ? 'second image' : 'first image';
  picture.src = each.address;
  stage.appendChild(document.createElement('canvas'));
  figure.appendChild(document.createElement('figcaption'));
  stage.addEventListener('mousemove', (event) => {
    const found = under(event, stage, image);
    if (!held && !same(found, shown)) { shown = found; paint(); }
  });
  stage.addEventListener('mouseleave', () => { if (!held) { shown = null; paint(); } });
  stage.addEventListener('click', (event) => {
    const found = under(event, stage, image);
    held = held ? null : found;
    shown = found;
    paint();
  });
});
data.layers.forEach((each, number) => {
  const side = `${each.name}, at 1/${each.stride} of the image`;
  at('layer').add(new Option(side, number));
});
const moving = data.layers.every((each) => each.parts);
if (moving) at('families').add(new Option('moving parts', PARTS));
data.families.forEach((count, number) => {
  at('families').add(new Option(count === null ? 'every prototype' : `${count} families of similar ones`, number));
});
const relayer = () => {
  held = shown = null;
  at('step').max = chosen().of.steps;
  at('step').value = chosen().of.steps;
  paint();
};
at('layer').value = data.layers.length - 1;
at('families').value = moving ? PARTS : data.families.indexOf(12);
let parted = moving;
at('layer').addEventListener('change', relayer);
at('families').addEventListener('input', () => {
  if ((chosen().families === PARTS) !== parted) held = shown = null;  // their numbers are those of others
  parted = chosen().families === PARTS;
  paint();
});
['step', 'strength'].forEach((id) => at(id).addEventListener('input', paint));
relayer();
"""


LEAD = (
    "Before it matches pixels, every layer of the network gathers them around prototypes. Each pixel is shown with the "
    "one prototype that the layer gave it, or, where there is motion, with the part that it moves with: pieces of "
    "prototypes that share one smooth motion."
)
UNTRAINED = "The weights of this model are random: these are the groups of an untrained network."


def explanation_page(
    explanation: Explanation, names: tuple[str, ...] | None = None, record: dict[str, Any] | None = None
) -> str:
    """The whole document. names: the layers to show; None: all. record: of `explanation_record`, if it is there."""
    told = explanation_record(explanation, names) if record is None else record
    data = {**page_record(explanation, names), "families": FAMILY_COUNTS}
    notice = "" if explanation.trained else f'<p class="notice">{escape(UNTRAINED)}</p>'
    # A "</script>" inside the data would end it.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>What the network grouped</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{PAGE_STYLE}{STYLE}</style></head><body><h1>What the network grouped</h1>"
        f'<p class="lead">{escape(LEAD)}</p>{notice}{BODY}{_convergence(told).html()}'
        f'<script type="application/json" id="data">{text}</script><script>{SCRIPT}</script></body></html>\n'
    )


def save_explanation(
    folder: str | os.PathLike[str],
    explanation: Explanation,
    *,
    layer: str | None = None,
    prototypes: tuple[int, ...] = (),
    progress: ProgressCallback | None = None,
) -> list[Path]:
    """Write an explanation into a folder, made if need be, each file whole or not at all; returns what was written.

    index.html, the page; explanation.json; of every layer LAYER-parts.png, in colors of what moves as one, if there is
    a flow, LAYER-groups.png, in colors of prototypes, LAYER-families.png, in those of families of similar ones, all
    with the second image beside the first, and LAYER-steps.png, after each step of EM; LAYER-prototype-N.png, the soft
    membership of prototypes that are asked for. layer: one alone, such as "2.1". progress: told of every layer twice,
    once its numbers are there, which takes longest, and once its pictures are.
    """
    place = make_folder(Path(folder))
    names = None if layer is None else (layer,)
    told = progress or (lambda done, total: None)
    record = explanation_record(explanation, names, lambda done, total: told(done, 2 * total))
    files = {
        "index.html": explanation_page(explanation, names, record).encode(),
        "explanation.json": (json.dumps(record) + "\n").encode(),
    }
    layers = [each["name"] for each in record["layers"]]
    for done, name in enumerate(layers, len(layers) + 1):
        files |= _pictures(explanation, name, prototypes)
        told(done, 2 * len(layers))
    written = []
    for file, content in files.items():
        write_atomically(check_output(place / file), content)
        written.append(place / file)
    return written


def _pictures(explanation: Explanation, name: str, prototypes: tuple[int, ...]) -> dict[str, bytes]:
    shown = {
        "parts": draw_parts(explanation, name),
        "groups": draw_groups(explanation, name),
        "families": draw_groups(explanation, name, FAMILIES),
        "steps": [draw_em_steps(explanation, name)],
    }
    pictures = {f"{name}-{what}.png": _beside(each) for what, each in shown.items() if each}
    for prototype in prototypes:
        pictures[f"{name}-prototype-{prototype}.png"] = encode_png(draw_memberships(explanation, prototype, name))
    return pictures


def _beside(pictures: list[Pixels]) -> bytes:
    """Pictures side by side, one may be taller than another, as a png."""
    tall = max(len(each) for each in pictures)
    padded = [np.pad(each, ((0, tall - len(each)), (0, 0), (0, 0))) for each in pictures]
    return encode_png(np.concatenate(padded, axis=1))


def _convergence(record: dict[str, Any]) -> Section:
    layers = [each for each in record["layers"] if each["steps"]]
    if not layers:
        return Section("Steps of EM", "This network pools its prototypes and leaves them so: there are no steps.")
    plots = (
        ("log_likelihood", "nats a pixel", "log-likelihood of the pixels, from the pooled start on", 0),
        ("changed", "share", "cells that a step gave another prototype", 1),
        ("moved", "share of length", "how far a step moved the prototypes", 1),
    )
    figures = tuple(
        Figure(line_plot([_curve(each, key, first) for each in layers], "step of EM", unit), caption)
        for key, unit, caption, first in plots
    )
    head = ("layer", "prototypes with pixels", "contraction a step", "drift after 40 steps")
    rows = tuple(
        (
            each["name"],
            f"{len(each['images'][0]['groups'])} of {each['prototypes']}",
            f"{each['contraction']:.3f}",
            f"{each['drift']:.3f}",
        )
        for each in layers
    )
    text = "Each layer begins with pooled prototypes, and steps of EM move them to their pixels."
    below = (
        "The contraction is what a step leaves of the distance to where 40 steps lead; the drift is the length of the "
        "last of these over that of the first: near 0 EM has arrived, near 1 it goes on as it began, and above 1 its "
        "last step was even longer than its first: there is no rest in sight."
    )
    return Section("Steps of EM", text, figures, (head, *rows), below)


def _curve(layer: dict[str, Any], key: str, first: int) -> Curve:
    return Curve(layer["name"], tuple((float(first + place), each) for place, each in enumerate(layer[key])))
