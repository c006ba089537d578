"""Explanations as plain numbers and texts, for programs and for the page."""

from typing import Any

import torch
from torch import Tensor

from protoformer.explain.drawing import part_colors, prototype_colors
from protoformer.explain.groups import Group, at_pixels
from protoformer.explain.parts import MovingPart
from protoformer.explain.result import Explanation, ImageExplanation, LayerExplanation
from protoformer.models.runtime import ProgressCallback
from protoformer.viz.html import jpeg_data_uri, to_base64
from protoformer.viz.images import hex_colors, to_uint8


def parts_record(explanation: Explanation, layer: str) -> dict[str, Any] | None:
    """Of a layer: maps, of the first image and of the second, and parts; None where there is no flow.

    A map is, of each row of pixels, a part and how many pixels it goes on for, and so on; -1 is none.
    """
    found = explanation.parts(layer)
    if found is None:
        return None
    maps = [[_runs(row) for row in each] for each in (found.labels, found.second)]
    return {"maps": maps, "parts": [_part_numbers(each) for each in found.parts]}


def page_parts_record(explanation: Explanation, layer: str) -> dict[str, Any] | None:
    """The same for the script of the page: rows and columns of the maps, each all runs of one image, and colors.

    Maps are at the size at which the network saw the image for its groups.
    """
    found, chosen = explanation.parts(layer), explanation.first.layer(layer)
    if found is None:
        return None
    maps = [at_pixels(each, chosen.seen, chosen.size, 1) for each in (found.labels, found.second)]
    return {
        "rows": chosen.seen[0],
        "columns": chosen.seen[1],
        "maps": [_runs(each.flatten()) for each in maps],
        "colors": hex_colors(part_colors(len(found.parts))),
        "groups": [_part_numbers(each) for each in found.parts],
    }


def _runs(line: Tensor) -> list[int]:
    """A line of numbers as the first, how often it comes, the next, how often it comes, and so on."""
    values, counts = line.unique_consecutive(return_counts=True)
    runs: list[int] = torch.stack((values, counts), dim=1).flatten().tolist()
    return runs


def _part_numbers(part: MovingPart) -> dict[str, Any]:
    return {"part": part.part, **group_record(part), "prototypes": [list(each) for each in part.prototypes]}


def group_record(group: Group | MovingPart) -> dict[str, Any]:
    """Where pixels are and what they do, to as many digits as anybody wants."""
    return {
        "pixels": group.pixels,
        "share": round(group.share, 6),
        "center": [round(each, 2) for each in group.center],
        "mean": [round(each, 4) for each in group.mean],
        "spread": None if group.spread is None else round(group.spread, 4),
    }


UNITS = {"flow": "px", "depth": "m"}
NEAREST = 3
"""Pixels nearest to a prototype that are told of it."""
FAMILY_COUNTS = (None, 24, 12, 6)
"""Into how many families of similar prototypes the page can sort them; None: each by itself."""


def explanation_record(
    explanation: Explanation, names: tuple[str, ...] | None = None, progress: ProgressCallback | None = None
) -> dict[str, Any]:
    """All of it for programs, as json holds it. names: the layers to tell of; None: all. progress: told of every layer.

    task, trained, unit (of means and spreads: px or m), width, height; of each layer name, stride, prototypes (K),
    steps (N), log_likelihood, changed, moved, contraction and drift of EM (null where there is none), matches, of each
    image its assignment, rows of prototypes' numbers, and its groups, and what `parts_record` tells.
    """
    chosen = _chosen(explanation, names)
    layers = []
    for done, name in enumerate(chosen, 1):
        layers.append(_layer(explanation, name))
        if progress is not None:
            progress(done, len(chosen))
    return {
        "task": explanation.task,
        "trained": explanation.trained,
        "unit": UNITS[explanation.task],
        "width": explanation.first.image.shape[2],
        "height": explanation.first.image.shape[1],
        "layers": layers,
    }


def page_record(explanation: Explanation, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """What the script of the page needs: pictures, every step's map and groups, matches and colors."""
    return {
        "unit": UNITS[explanation.task],
        "images": [
            {
                "address": jpeg_data_uri(to_uint8(each.image)),
                "width": each.image.shape[2],
                "height": each.image.shape[1],
            }
            for each in explanation.images
        ],
        "layers": [_page_layer(explanation, name) for name in _chosen(explanation, names)],
    }


def _chosen(explanation: Explanation, names: tuple[str, ...] | None) -> list[str]:
    known = [each.name for each in explanation.first.layers]
    return known if names is None else [explanation.first.layer(name).name for name in names]


def _layer(explanation: Explanation, name: str) -> dict[str, Any]:
    layer = explanation.first.layer(name)
    many = layer.convergence(likelihood=False)
    return {
        "name": name,
        "stride": layer.trace.stride,
        "prototypes": layer.count,
        "steps": layer.steps,
        "log_likelihood": [round(each, 6) for each in layer.log_likelihood],
        "changed": [round(each, 6) for each in layer.changed],
        "moved": [round(each, 6) for each in layer.moved],
        "contraction": None if many is None else round(many.contraction, 6),
        "drift": None if many is None else round(many.drift, 6),
        "matches": [
            {"first": each.first, "second": each.second, "similarity": round(each.similarity, 6)}
            for each in explanation.matches(name)
        ],
        "images": [
            {
                "assignment": each.layer(name).assignment.tolist(),
                "groups": [_group(group, each.layer(name)) for group in each.groups(name)],
            }
            for each in explanation.images
        ],
        "parts": parts_record(explanation, name),
    }


def _group(group: Group, layer: LayerExplanation) -> dict[str, Any]:
    return {**_numbers(group), "nearest": _nearest(layer, group.prototype)}


def _nearest(layer: LayerExplanation, prototype: int) -> list[list[float]]:
    """Places (x, y), pixels, to a tenth."""
    return [[round(x, 1), round(y, 1)] for x, y in layer.nearest(prototype, NEAREST)]


def _numbers(group: Group) -> dict[str, Any]:
    return {"prototype": group.prototype, **group_record(group)}


def _page_layer(explanation: Explanation, name: str) -> dict[str, Any]:
    layer = explanation.first.layer(name)
    colors = [[hex_colors(own) for own in prototype_colors(explanation, name, families)] for families in FAMILY_COUNTS]
    return {
        "name": name,
        "stride": layer.trace.stride,
        "wide": _cell_bytes(layer),
        "steps": layer.steps,
        "colors": colors,
        "matches": [[each.first, each.second, round(each.similarity, 3)] for each in explanation.matches(name)],
        "images": [_page_image(each, name) for each in explanation.images],
        "parts": page_parts_record(explanation, name),
    }


def _page_image(image: ImageExplanation, name: str) -> dict[str, Any]:
    layer = image.layer(name)
    rows, columns = layer.assignment.shape
    cells = f"<u{_cell_bytes(layer)}"
    return {
        "rows": rows,
        "columns": columns,
        "seen": list(layer.seen),
        "maps": [to_base64(each.numpy().astype(cells).tobytes()) for each in layer.maps],
        "groups": [[_numbers(group) for group in image.groups(name, step)] for step in range(layer.steps + 1)],
        "nearest": {str(number): _nearest(layer, number) for number in layer.used.tolist()},
    }


def _cell_bytes(layer: LayerExplanation) -> int:
    """How many bytes the number of a prototype takes."""
    return 2 if layer.count > 256 else 1
