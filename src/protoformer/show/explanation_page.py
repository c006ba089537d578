"""An explanation as one html page that holds all it shows, and as a folder of files."""

import json
import os
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from protoformer.files import checked_output, encode_png, write_atomically
from protoformer.files.folders import made_folder
from protoformer.inference.explanation import Explanation
from protoformer.inference.prototype_groups import FAMILIES
from protoformer.model.flow_decoder import Progress
from protoformer.show.explanation_pictures import (
    groups_pictures,
    membership_picture,
    parts_pictures,
    steps_picture,
)
from protoformer.show.explanation_record import FAMILY_COUNTS, explanation_record, page_record
from protoformer.show.explanation_script import BODY, SCRIPT, STYLE
from protoformer.show.page import STYLE as PAGE_STYLE
from protoformer.show.page import Figure, Section
from protoformer.show.plots import Curve, line_plot
from protoformer.show.prototypes import Pixels

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
    progress: Progress | None = None,
) -> list[Path]:
    """Write an explanation into a folder, made if need be, each file whole or not at all; returns what was written.

    index.html, the page; explanation.json; of every layer LAYER-parts.png, in colours of what moves as one, if there is
    a flow, LAYER-groups.png, in colours of prototypes, LAYER-families.png, in those of families of similar ones, all
    with the second image beside the first, and LAYER-steps.png, after each step of EM; LAYER-prototype-N.png, the soft
    membership of prototypes that are asked for. layer: one alone, such as "2.1". progress: told of every layer twice,
    once its numbers are there, which takes longest, and once its pictures are.
    """
    place = made_folder(Path(folder))
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
        write_atomically(checked_output(place / file), content)
        written.append(place / file)
    return written


def _pictures(explanation: Explanation, name: str, prototypes: tuple[int, ...]) -> dict[str, bytes]:
    shown = {
        "parts": parts_pictures(explanation, name),
        "groups": groups_pictures(explanation, name),
        "families": groups_pictures(explanation, name, FAMILIES),
        "steps": [steps_picture(explanation, name)],
    }
    pictures = {f"{name}-{what}.png": _beside(each) for what, each in shown.items() if each}
    for prototype in prototypes:
        pictures[f"{name}-prototype-{prototype}.png"] = encode_png(membership_picture(explanation, prototype, name))
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
