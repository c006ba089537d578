"""`protoformer flow`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from protoformer.app.progress import progress_bar
from protoformer.errors import InputError
from protoformer.files import checked_input, checked_output
from protoformer.inference import load
from protoformer.inference.images import image_pair
from protoformer.inference.results import flow_format


def flow(
    first: Annotated[str, typer.Argument(help="The first image.")],
    second: Annotated[str, typer.Argument(help="The second image, of the same size.")],
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write: .flo, or .png (a picture). Repeat for several. [default: motion.png]",
        ),
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="flo, kitti (16-bit png) or picture (colours); by default the suffix decides.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="A task, a preset or a .safetensors file; see `protoformer models`.")
    ] = "flow",
    updates: Annotated[int | None, typer.Option(help="Refinements; more are slower and better, up to a point.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for programs.")] = False,
) -> None:
    """Motion of every pixel from one image to the next.

    Example: `protoformer flow frame1.png frame2.png -o motion.flo -o motion.png`
    """
    outputs = output or [Path("motion.png")]
    for path in outputs:  # all of this is cheap, and estimating flow is not
        flow_format(path, format)
        checked_output(path)
    for image in (first, second):
        source = checked_input(image)
        if any(path.exists() and path.samefile(source) for path in outputs):
            raise InputError(f"the output {image} is also an input and would be lost; choose another name.")
    images = image_pair(first, second)
    loaded = load(model, device)
    with progress_bar("flow", total=updates or loaded.network.config.updates) as told:
        result = loaded.flow(*images, updates=updates, progress=told)
    for path in outputs:
        result.save(path, format)
    lengths = result.flow.norm(dim=0)
    summary = {
        "width": result.flow.shape[2],
        "height": result.flow.shape[1],
        "mean_motion_px": round(float(lengths.mean()), 4),
        "largest_motion_px": round(float(lengths.max()), 4),
        "mean_confidence": round(float(result.confidence.mean()), 4),
        "trained": result.trained,
        "written": [str(path) for path in outputs],
    }
    if as_json:
        print(json.dumps(summary))
    else:
        print(
            f"{summary['width']}x{summary['height']} pixels, mean motion {summary['mean_motion_px']:.2f} px, "
            f"largest {summary['largest_motion_px']:.2f} px; wrote {', '.join(map(str, outputs))}"
        )
