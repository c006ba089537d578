"""`protoformer flow` of two images."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protoformer.app.progress import progress_bar
from protoformer.errors import InputError
from protoformer.files import checked_input, checked_output
from protoformer.inference import FlowResult, load
from protoformer.inference.images import image_pair
from protoformer.inference.planning import FlowPlan, Tile, plan_flow
from protoformer.inference.results import flow_format


@dataclass(frozen=True)
class PairOptions:
    """What was asked for on the command line; None where nothing was."""

    format: str | None
    updates: int | None
    tile: Tile
    memory: int | None
    zoom: float | None


def flow_of_pair(
    paths: tuple[str, str], outputs: list[Path], named: tuple[str, str | None], options: PairOptions, as_json: bool
) -> None:
    """Write the motion between two images as files. named: the model and the device, as given."""
    for path in outputs:  # all of this is cheap, and estimating flow is not
        flow_format(path, options.format)
        checked_output(path)
    for image in paths:
        source = checked_input(image)
        if any(path.exists() and path.samefile(source) for path in outputs):
            raise InputError(f"the output {image} is also an input and would be lost; choose another name.")
    images = image_pair(*paths)
    model = load(*named, task="flow")
    config, size = model.network.config, (images[0].shape[2], images[0].shape[3])
    tile, memory, zoom = options.tile, options.memory, options.zoom
    plan = plan_flow(size, config, model.device, tile, memory, zoom=zoom)
    with progress_bar("flow", total=options.updates or config.updates) as told:
        result = model.flow(*images, updates=options.updates, tile=tile, memory=memory, zoom=zoom, progress=told)
    for path in outputs:
        result.save(path, options.format)
    _tell(result, plan, outputs, as_json)


def _tell(result: FlowResult, plan: FlowPlan, outputs: list[Path], as_json: bool) -> None:
    lengths = result.flow.norm(dim=0)
    summary: dict[str, Any] = {
        "width": result.flow.shape[2],
        "height": result.flow.shape[1],
        "mean_motion_px": round(float(lengths.mean()), 4),
        "largest_motion_px": round(float(lengths.max()), 4),
        "mean_confidence": round(float(result.confidence.mean()), 4),
        "tile": plan.tile,
        "zoom": round(plan.zoom, 4),
        "trained": result.trained,
        "written": [str(path) for path in outputs],
    }
    if as_json:
        print(json.dumps(summary))
        return
    how = f" {plan};" if plan.tile or plan.other_size else ""
    print(
        f"{summary['width']}x{summary['height']} pixels, mean motion {summary['mean_motion_px']:.2f} px, "
        f"largest {summary['largest_motion_px']:.2f} px;{how} wrote {', '.join(map(str, outputs))}"
    )
