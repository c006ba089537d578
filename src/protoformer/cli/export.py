"""`protoformer export`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from protoformer.cli.options import parse_size
from protoformer.cli.terminal import progress_bar
from protoformer.errors import InputError
from protoformer.export.exporter import ExportError
from protoformer.export.exporter import export_model as exported_to

DYNAMIC = "dynamic"


def export(
    task: Annotated[str, typer.Argument(help="What to export: flow.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write: .onnx or .pt2.")],
    format: Annotated[
        str | None, typer.Option(help="onnx, or pt2 (torch.export); by default the suffix decides.")
    ] = None,
    size: Annotated[
        str, typer.Option(help="HEIGHTxWIDTH of the images, or dynamic: any size from 64x64 on.")
    ] = DYNAMIC,
    model: Annotated[
        str, typer.Option(help="A task, a preset or a .safetensors file; see `protoformer models`.")
    ] = "flow",
    updates: Annotated[int | None, typer.Option(help="Refinements; they are written into the file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for programs.")] = False,
) -> None:
    """Export a network to ONNX or torch.export, and check the file against it.

    Example: `protoformer export flow --size dynamic -o flow.onnx`
    """
    if task != "flow":
        raise InputError(f"{task!r} cannot be exported yet; export flow.")
    sides = None if size == DYNAMIC else parse_size(size)
    try:
        with progress_bar("export", total=4) as told:
            done = exported_to(model, output, format=format, size=sides, updates=updates, progress=told)
    except ExportError as error:
        print(f"protoformer: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps(dataclasses.asdict(done) | {"path": str(done.path)}))
        return
    takes = "images of any size from 64x64 on" if done.size is None else f"images of {size}"
    checked = " and ".join(f"{height}x{width}" for height, width in done.checked)
    print(
        f"wrote {done.path} ({done.bytes / 2**20:.1f} MiB), {done.model} with {done.updates} updates for {takes}; "
        f"largest difference to the model {done.difference:.1g} px, at {checked}"
    )
