"""`protoformer export`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from protoformer.cli.options import JsonOption, ModelOption, UpdatesOption, parse_size
from protoformer.cli.terminal import print_json, progress_bar
from protoformer.errors import InputError
from protoformer.export.exporter import ExportError, export_model

DYNAMIC = "dynamic"


def export(
    task: Annotated[str, typer.Argument(help="Task of the network; only flow.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .onnx or .pt2.")],
    format: Annotated[str | None, typer.Option(help="onnx, or pt2 (torch.export). [default: by suffix]")] = None,
    size: Annotated[
        str, typer.Option(help="HEIGHTxWIDTH of the images, or dynamic (any size of at least 64x64).")
    ] = DYNAMIC,
    model: ModelOption = "flow",
    num_updates: UpdatesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export a network to ONNX or torch.export, and check the file against it.

    Example: `protoformer export flow --size dynamic -o flow.onnx`
    """
    if task != "flow":
        raise InputError(f"{task!r} cannot be exported yet; export flow.")
    sides = None if size == DYNAMIC else parse_size(size)
    try:
        with progress_bar("export", total=4) as progress:
            result = export_model(model, output, format=format, size=sides, updates=num_updates, progress=progress)
    except ExportError as error:
        print(f"protoformer: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if as_json:
        print_json(result)
        return
    images = "images of any size of at least 64x64" if result.size is None else f"images of {size}"
    checked = " and ".join(f"{height}x{width}" for height, width in result.checked)
    print(
        f"wrote {result.path} ({result.bytes / 2**20:.1f} MiB), {result.model} with {result.updates} updates "
        f"for {images}; largest difference to the model {result.difference:.1g} px, at {checked}"
    )
