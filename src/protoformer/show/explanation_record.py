"""Explanations as plain numbers and texts, for programs and for the page."""

from typing import Any

from protoformer.inference.explanation import Explanation, ImageExplanation, LayerExplanation
from protoformer.inference.prototype_groups import Group
from protoformer.model.flow_decoder import Progress
from protoformer.show.addresses import base64_text, jpeg_address
from protoformer.show.explanation_parts import group_numbers, page_parts, parts_record
from protoformer.show.explanation_pictures import prototype_colours
from protoformer.show.prototypes import hex_colours, picture

UNITS = {"flow": "px", "depth": "m"}
NEAREST = 3
"""Pixels nearest to a prototype that are told of it."""
FAMILY_COUNTS = (None, 24, 12, 6)
"""Into how many families of similar prototypes the page can sort them; None: each by itself."""


def explanation_record(
    explanation: Explanation, names: tuple[str, ...] | None = None, progress: Progress | None = None
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
    """What the script of the page needs: pictures, every step's map and groups, matches and colours."""
    return {
        "unit": UNITS[explanation.task],
        "images": [
            {"address": jpeg_address(picture(each.image)), "width": each.image.shape[2], "height": each.image.shape[1]}
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
    return {"prototype": group.prototype, **group_numbers(group)}


def _page_layer(explanation: Explanation, name: str) -> dict[str, Any]:
    layer = explanation.first.layer(name)
    colours = [
        [hex_colours(own) for own in prototype_colours(explanation, name, families)] for families in FAMILY_COUNTS
    ]
    return {
        "name": name,
        "stride": layer.trace.stride,
        "wide": _cell_bytes(layer),
        "steps": layer.steps,
        "colours": colours,
        "matches": [[each.first, each.second, round(each.similarity, 3)] for each in explanation.matches(name)],
        "images": [_page_image(each, name) for each in explanation.images],
        "parts": page_parts(explanation, name),
    }


def _page_image(image: ImageExplanation, name: str) -> dict[str, Any]:
    layer = image.layer(name)
    rows, columns = layer.assignment.shape
    cells = f"<u{_cell_bytes(layer)}"
    return {
        "rows": rows,
        "columns": columns,
        "seen": list(layer.seen),
        "maps": [base64_text(each.numpy().astype(cells).tobytes()) for each in layer.maps],
        "groups": [[_numbers(group) for group in image.groups(name, step)] for step in range(layer.steps + 1)],
        "nearest": {str(number): _nearest(layer, number) for number in layer.used.tolist()},
    }


def _cell_bytes(layer: LayerExplanation) -> int:
    """How many bytes the number of a prototype takes."""
    return 2 if layer.count > 256 else 1
