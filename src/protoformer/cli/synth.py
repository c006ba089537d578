"""`protoformer synth`."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from protoformer.cli.options import parse_size
from protoformer.cli.terminal import progress_bar, stoppable
from protoformer.datasets.clips import LAYOUTS, MIN_FRAMES, ClipFolder, clip_names, default_layout, write_clips
from protoformer.datasets.tree import choose
from protoformer.errors import InputError
from protoformer.io.files import check_output
from protoformer.io.image import write_image
from protoformer.loading import checked_device
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import bank_from_folder
from protoformer.viz.contact_sheet import contact_sheet
from protoformer.viz.text import format_count

SHEET = "contact_sheet.png"


def synth(
    family: Annotated[str, typer.Argument(help=f"What the scenes are of: {', '.join(FAMILIES)}.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to; made if need be.")],
    count: Annotated[int, typer.Option(help="Clips in all; with more than before, only the new ones are made.")] = 4,
    seed: Annotated[int, typer.Option(help="Another number is another world.")] = 0,
    frames: Annotated[
        int | None, typer.Option(help="Frames of a clip. [default: 5 in sintel's layout, 60 in the others]")
    ] = None,
    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH, such as 436x1024; by default the family's.")] = None,
    layout: Annotated[
        str | None, typer.Option(help=f"{', '.join(LAYOUTS)}; by default the one that suits the family.")
    ] = None,
    textures: Annotated[
        Path | None, typer.Option(help="A folder of your images to cover surfaces with; by default made-up ones.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; auto takes a GPU if there is one.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for programs.")] = False,
) -> None:
    """Render synthetic scenes with exact ground truth.

    A run that was stopped goes on where it was. Example: `protoformer synth objects --count 8 --seed 3 -o scenes`
    """
    if count < 1:
        raise InputError(f"--count is {count}; ask for at least 1 clip.")
    if seed < 0:
        raise InputError(f"--seed is {seed}; give a whole number from 0 on.")
    kind = choose("--layout", layout or default_layout(family), tuple(LAYOUTS))
    length = LAYOUTS[kind].frames if frames is None else frames
    if length < MIN_FRAMES:
        raise InputError(f"--frames is {length}, which shows no motion; ask for at least {MIN_FRAMES}.")
    sides, on = None if size is None else parse_size(size), _device(device)
    start, images_per_frame = time.perf_counter(), count * length * LAYOUTS[kind].images_per_frame
    with stoppable(_tell_stopped), progress_bar(f"{family}, {count} clips", images_per_frame) as told:
        bank = None if textures is None else bank_from_folder(textures)
        scenes = SyntheticScenes(family, seed, sides, bank=bank)
        called = "procedural" if textures is None else textures.resolve().name
        found = write_clips(scenes, count, output, kind, length, textures=called, device=on, progress=told)
        sheet = _sheet(scenes, found)
    _report(scenes, found, sheet, time.perf_counter() - start, as_json)


def _tell_stopped() -> None:
    print("\nprotoformer: stopped; the same command goes on with what is missing.", file=sys.stderr)


def _sheet(scenes: SyntheticScenes, found: ClipFolder) -> Path | None:
    """Draw what is there now; None where every scene was left out."""
    if not found.clips:
        return None
    path = check_output(found.root / SHEET)
    height, width = scenes.size
    title = f"{scenes.family}, seed {scenes.seed}:  scenes of {height}x{width} pixels, {len(found.clips)} in all"
    write_image(path, contact_sheet(found.root, found.layout, clip_names(scenes, found.clips, found.layout), title))
    return path


def _report(scenes: SyntheticScenes, found: ClipFolder, sheet: Path | None, seconds: float, as_json: bool) -> None:
    names = {
        key: list(clip_names(scenes, indices, found.layout))
        for key, indices in (
            ("written", found.written),
            ("there", found.existing),
            ("left_out", found.without_target),
        )
    }
    if as_json:
        summary = {
            "family": scenes.family,
            "seed": scenes.seed,
            "size": list(scenes.size),
            "layout": found.layout,
            **names,
            "seconds": round(seconds, 2),
            "folder": str(found.root),
            "contact_sheet": None if sheet is None else str(sheet),
        }
        print(json.dumps(summary))
        return
    before = f" ({len(found.existing)} were there before)" if found.existing else ""
    clips = format_count(len(found.written), "clip")
    print(f"wrote {clips} to {found.root} in {seconds:.1f} s{before}, in the layout of {found.layout}")
    if found.without_target:
        print(f"left out, since nothing in them can be followed: {', '.join(names['left_out'])}")
    if sheet is not None:
        print(f"see {sheet}")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = checked_device(name)
    if chosen.type not in ("cpu", "cuda"):
        raise InputError(f"the device {name!r} cannot render; choose cpu, or cuda on a machine with a GPU.")
    return chosen
