"""Explanations as JSON, for programs and for the page."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protoformer.explain.drawing import part_colors, prototype_colors, value_colors
from protoformer.explain.groups import Group, cells_to_pixels
from protoformer.explain.parts import MovingPart
from protoformer.models.runtime import ProgressCallback
from protoformer.viz.colormaps import hex_colors, to_uint8
from protoformer.viz.report import jpeg_data_uri, to_base64

if TYPE_CHECKING:
    from protoformer.explain.result import Explanation, ImageExplanation, LayerExplanation

UNITS = {"flow": "px", "depth": "m"}
NUM_NEAREST = 3
"""Most similar cells listed for each prototype."""
FAMILY_COUNTS = (None, 24, 12, 6)
"""Numbers of families that the page offers; None: no families."""


def explanation_record(
    explanation: "Explanation",
    names: tuple[str, ...] | None = None,
    progress: ProgressCallback | None = None,
    removals: int = 0,
) -> dict[str, Any]:
    """Return an explanation as JSON.

    The keys are task, trained, unit (of means and spreads: px or m), width, height and layers. Each layer has name,
    stride, prototypes (K), steps (N, of EM), log_likelihood, changed, moved, contraction and drift of EM (null without
    EM), matches, the assignment (rows of indices) and groups of each image, the effects of removing prototypes of the
    first image, and the moving parts (null without flow): run-length encoded maps of both images, row by row (a part,
    its number of pixels, the next part, ...; -1 is none), and their description.

    Args:
        explanation: The explanation.
        names: Names of the layers; None: all.
        progress: Called after every layer.
        removals: Number of prototypes that are removed from each layer, the largest ones; see `Explanation.removals`.
    """
    layer_names = _layer_names(explanation, names)
    layers = []
    for done, name in enumerate(layer_names, 1):
        layers.append(_layer(explanation, name, removals))
        if progress is not None:
            progress(done, len(layer_names))
    return {
        "task": explanation.task,
        "trained": explanation.trained,
        "unit": UNITS[explanation.task],
        "width": explanation.first.image.shape[2],
        "height": explanation.first.image.shape[1],
        "layers": layers,
    }


def page_record(explanation: "Explanation", names: tuple[str, ...] | None = None, removals: int = 0) -> dict[str, Any]:
    """Return the data of the page's script: images, maps and groups by iteration, matches, removals and colors."""
    return {
        "unit": UNITS[explanation.task],
        "images": [
            {
                "address": jpeg_data_uri(to_uint8(image.image)),
                "width": image.image.shape[2],
                "height": image.image.shape[1],
            }
            for image in explanation.images
        ],
        "layers": [_page_layer(explanation, name, removals) for name in _layer_names(explanation, names)],
    }


def _layer_names(explanation: "Explanation", names: tuple[str, ...] | None) -> list[str]:
    all_names = [layer.name for layer in explanation.first.layers]
    return all_names if names is None else [explanation.first.layer(name).name for name in names]


def _layer(explanation: "Explanation", name: str, removals: int) -> dict[str, Any]:
    layer = explanation.first.layer(name)
    convergence = layer.convergence(likelihood=False)
    moving = explanation.parts(name)
    return {
        "name": name,
        "stride": layer.trace.stride,
        "prototypes": layer.num_prototypes,
        "steps": layer.num_iterations,
        "log_likelihood": [round(value, 6) for value in layer.log_likelihood],
        "changed": [round(value, 6) for value in layer.changed],
        "moved": [round(value, 6) for value in layer.moved],
        "contraction": None if convergence is None else round(convergence.contraction, 6),
        "drift": None if convergence is None else round(convergence.drift, 6),
        "matches": [
            {"first": match.first, "second": match.second, "similarity": round(match.similarity, 6)}
            for match in explanation.matches(name)
        ],
        "images": [
            {
                "assignment": image.layer(name).assignment.tolist(),
                "groups": [
                    {**_group(group), "nearest": _nearest(image.layer(name), group.prototype)}
                    for group in image.groups(name)
                ],
            }
            for image in explanation.images
        ],
        "removals": [
            {
                "prototype": effect.prototype,
                "share": round(effect.share, 6),
                "inside": round(effect.inside, 6),
                "outside": round(effect.outside, 6),
            }
            for effect in explanation.removals(name, removals)
        ],
        "parts": None
        if moving is None
        else {
            "maps": [[_runs(row) for row in labels] for labels in (moving.labels, moving.second)],
            "parts": [_part(part) for part in moving.parts],
        },
    }


def _page_layer(explanation: "Explanation", name: str, removals: int) -> dict[str, Any]:
    layer = explanation.first.layer(name)
    colors = [
        [hex_colors(image_colors) for image_colors in prototype_colors(explanation, name, count)]
        for count in FAMILY_COUNTS
    ]
    return {
        "name": name,
        "stride": layer.trace.stride,
        "wide": _index_bytes(layer),
        "steps": layer.num_iterations,
        "colors": colors,
        "matches": [[match.first, match.second, round(match.similarity, 3)] for match in explanation.matches(name)],
        "values": [hex_colors(colors) for colors in value_colors(explanation, name)],
        "removals": {
            effect.prototype: [effect.inside, effect.outside] for effect in explanation.removals(name, removals)
        },
        "images": [_page_image(image, name) for image in explanation.images],
        "parts": _page_parts(explanation, name),
    }


def _page_parts(explanation: "Explanation", name: str) -> dict[str, Any] | None:
    """Moving parts at the size of the network's input; each map is one sequence of runs."""
    moving, layer = explanation.parts(name), explanation.first.layer(name)
    if moving is None:
        return None
    maps = [cells_to_pixels(labels, layer.input_size, layer.size, 1) for labels in (moving.labels, moving.second)]
    return {
        "rows": layer.input_size[0],
        "columns": layer.input_size[1],
        "maps": [_runs(labels.flatten()) for labels in maps],
        "colors": hex_colors(part_colors(len(moving.parts))),
        "groups": [_part(part) for part in moving.parts],
    }


def _page_image(image: "ImageExplanation", name: str) -> dict[str, Any]:
    layer = image.layer(name)
    rows, columns = layer.assignment.shape
    dtype = f"<u{_index_bytes(layer)}"
    return {
        "rows": rows,
        "columns": columns,
        "inputSize": list(layer.input_size),
        "maps": [to_base64(cells.numpy().astype(dtype).tobytes()) for cells in layer.maps],
        "groups": [[_group(group) for group in image.groups(name, step)] for step in range(layer.num_iterations + 1)],
        "nearest": {str(prototype): _nearest(layer, prototype) for prototype in layer.used.tolist()},
    }


def _runs(values: Tensor) -> list[int]:
    """Run-length encode: a value, its number of repetitions, the next value, and so on."""
    unique, counts = values.unique_consecutive(return_counts=True)
    runs: list[int] = torch.stack((unique, counts), dim=1).flatten().tolist()
    return runs


def _pixels(group: Group | MovingPart) -> dict[str, Any]:
    return {
        "pixels": group.pixels,
        "share": round(group.share, 6),
        "center": [round(value, 2) for value in group.center],
        "mean": [round(value, 4) for value in group.mean],
        "spread": None if group.spread is None else round(group.spread, 4),
    }


def _group(group: Group) -> dict[str, Any]:
    return {"prototype": group.prototype, **_pixels(group)}


def _part(part: MovingPart) -> dict[str, Any]:
    return {"part": part.part, **_pixels(part), "prototypes": [list(pair) for pair in part.prototypes]}


def _nearest(layer: "LayerExplanation", prototype: int) -> list[list[float]]:
    """Positions (x, y) of the most similar cells, pixels, to a tenth."""
    return [[round(x, 1), round(y, 1)] for x, y in layer.nearest(prototype, NUM_NEAREST)]


def _index_bytes(layer: "LayerExplanation") -> int:
    """Bytes of a prototype's index in the page's maps."""
    return 2 if layer.num_prototypes > 256 else 1
