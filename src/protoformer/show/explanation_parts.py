"""What moves as one, as plain numbers, for programs and for the page."""

from typing import Any

import torch
from torch import Tensor

from protoformer.inference.explanation import Explanation
from protoformer.inference.part_records import MovingPart
from protoformer.inference.prototype_groups import Group, at_pixels
from protoformer.show.explanation_pictures import part_colours
from protoformer.show.prototypes import hex_colours


def parts_record(explanation: Explanation, layer: str) -> dict[str, Any] | None:
    """Of a layer: maps, of the first image and of the second, and parts; None where there is no flow.

    A map is, of each row of pixels, a part and how many pixels it goes on for, and so on; -1 is none.
    """
    found = explanation.parts(layer)
    if found is None:
        return None
    maps = [[_runs(row) for row in each] for each in (found.labels, found.second)]
    return {"maps": maps, "parts": [_numbers(each) for each in found.parts]}


def page_parts(explanation: Explanation, layer: str) -> dict[str, Any] | None:
    """The same for the script of the page: rows and columns of the maps, each all runs of one image, and colours.

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
        "colours": hex_colours(part_colours(len(found.parts))),
        "groups": [_numbers(each) for each in found.parts],
    }


def _runs(line: Tensor) -> list[int]:
    """A line of numbers as the first, how often it comes, the next, how often it comes, and so on."""
    values, counts = line.unique_consecutive(return_counts=True)
    runs: list[int] = torch.stack((values, counts), dim=1).flatten().tolist()
    return runs


def _numbers(part: MovingPart) -> dict[str, Any]:
    return {"part": part.part, **group_numbers(part), "prototypes": [list(each) for each in part.prototypes]}


def group_numbers(group: Group | MovingPart) -> dict[str, Any]:
    """Where pixels are and what they do, to as many digits as anybody wants."""
    return {
        "pixels": group.pixels,
        "share": round(group.share, 6),
        "centre": [round(each, 2) for each in group.centre],
        "mean": [round(each, 4) for each in group.mean],
        "spread": None if group.spread is None else round(group.spread, 4),
    }
