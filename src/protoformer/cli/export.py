"""`protoformer export`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from protoformer.cli.options import JsonOption, UpdatesOption, parse_size
from protoformer.cli.terminal import print_json, progress_bar
from protoformer.export.exporter import ExportError, ExportResult, export_model

DYNAMIC = "dynamic"
UNITS = {"flow": "px", "depth": "of the depth", "track": "px", "stabilize": "px"}
"""Unit of the difference of each task's first output."""


def export(
    task: Annotated[str, typer.Argument(help="Task of the network: flow, depth, track or stabilize.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="File to write: .onnx or .pt2; for track, also NAME-template beside it."),
    ],
    format: Annotated[str | None, typer.Option(help="onnx, or pt2 (torch.export). [default: by suffix]")] = None,
    size: Annotated[
        str,
        typer.Option(
            help="HEIGHTxWIDTH of the images, or dynamic (flow, depth: any size of at least 64x64; stabilize: the size "
            "at which 16:9 videos are analyzed)."
        ),
    ] = DYNAMIC,
    model: Annotated[
        str | None, typer.Option(help="A preset or a .safetensors file. [default: the task's weights]")
    ] = None,
    num_updates: UpdatesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export a network to ONNX or torch.export, and check the file against it.

    Example: `protoformer export flow --size dynamic -o flow.onnx`

    Example: `protoformer export track -o track.onnx`
    """
    sides = None if size == DYNAMIC else parse_size(size)
    try:
        with progress_bar("export", total=4) as progress:
            result = export_model(
                model or task, output, task=task, format=format, size=sides, num_updates=num_updates, progress=progress
            )
    except ExportError as error:
        print(f"protoformer: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if as_json:
        print_json(result)
        return
    for each in (result.template, result):
        if each is not None:
            print(_describe(each, task))


def _describe(result: ExportResult, task: str) -> str:
    updates = "" if result.num_updates is None else f" with {result.num_updates} updates"
    checked = [f"{height}x{width}" for height, width in result.checked]
    images = "images of any size of at least 64x64" if result.size is None else f"images of {checked[0]}"
    images = f"crops of {checked[0]}" if task == "track" else images
    difference = f"{result.difference:.1g}" + ("" if result.template is None and task == "track" else f" {UNITS[task]}")
    return (
        f"wrote {result.path} ({result.bytes / 2**20:.1f} MiB), {result.model}{updates} for {images}; "
        f"largest difference to the model {difference}, at {' and '.join(checked)}"
    )
