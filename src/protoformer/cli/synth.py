"""`protoformer synth`."""

import sys
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from protoformer.cli.options import JsonOption, parse_size
from protoformer.cli.terminal import interruptible, print_json, progress_bar
from protoformer.datasets.base import choose
from protoformer.datasets.clips import LAYOUTS, MIN_FRAMES, ClipFolder, clip_names, default_layout, write_clips
from protoformer.errors import InputError
from protoformer.io.files import check_output
from protoformer.io.image import write_image
from protoformer.models.runtime import checked_device
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import bank_from_folder
from protoformer.viz.contact_sheet import contact_sheet
from protoformer.viz.report import format_count

SHEET = "contact_sheet.png"


def synth(
    family: Annotated[str, typer.Argument(help=f"Family of scenes: {', '.join(FAMILIES)}.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to; it is created if necessary.")],
    count: Annotated[int, typer.Option(help="Total number of clips; existing ones are kept.")] = 4,
    seed: Annotated[int, typer.Option(help="Random seed of the scenes.")] = 0,
    frames: Annotated[
        int | None, typer.Option(help="Frames per clip. [default: 5 in the layout of Sintel, 60 in the others]")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="HEIGHTxWIDTH in pixels, such as 436x1024. [default: by family]")
    ] = None,
    layout: Annotated[str | None, typer.Option(help=f"{', '.join(LAYOUTS)}. [default: by family]")] = None,
    textures: Annotated[
        Path | None, typer.Option(help="Folder of images to use as textures. [default: procedural textures]")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto (a GPU if there is one).")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Render synthetic scenes with exact ground truth.

    A run that was interrupted continues where it stopped.

    Example: `protoformer synth objects --count 8 --seed 3 -o scenes`
    """
    if count < 1:
        raise InputError(f"--count is {count}; give 1 or more clips.")
    if seed < 0:
        raise InputError(f"--seed is {seed}; give a whole number, 0 or more.")
    kind = choose("--layout", layout or default_layout(family), tuple(LAYOUTS))
    length = LAYOUTS[kind].frames if frames is None else frames
    if length < MIN_FRAMES:
        raise InputError(f"--frames is {length}, which shows no motion; give {MIN_FRAMES} or more.")
    sides, on = None if size is None else parse_size(size), _device(device)
    start, num_images = time.perf_counter(), count * length * LAYOUTS[kind].images_per_frame
    with interruptible(_report_interruption), progress_bar(f"{family}, {count} clips", num_images) as progress:
        bank = None if textures is None else bank_from_folder(textures)
        scenes = SyntheticScenes(family, seed, sides, bank=bank)
        name = "procedural" if textures is None else textures.resolve().name
        clips = write_clips(scenes, count, output, kind, length, textures=name, device=on, progress=progress)
        sheet = _sheet(scenes, clips)
    _report(scenes, clips, sheet, time.perf_counter() - start, as_json)


def _report_interruption(_: KeyboardInterrupt) -> None:
    print("\nprotoformer: stopped; the same command continues from here.", file=sys.stderr)


def _sheet(scenes: SyntheticScenes, clips: ClipFolder) -> Path | None:
    """Draw a contact sheet of all clips; None if there is none."""
    if not clips.clips:
        return None
    path = check_output(clips.root / SHEET)
    height, width = scenes.size
    title = f"{scenes.family}, seed {scenes.seed}:  scenes of {height}x{width} pixels, {len(clips.clips)} in all"
    write_image(path, contact_sheet(clips.root, clips.layout, clip_names(scenes, clips.clips, clips.layout), title))
    return path


def _report(scenes: SyntheticScenes, clips: ClipFolder, sheet: Path | None, seconds: float, as_json: bool) -> None:
    groups = {"written": clips.written, "there": clips.existing, "left_out": clips.without_target}
    names = {key: list(clip_names(scenes, indices, clips.layout)) for key, indices in groups.items()}
    if as_json:
        summary = {
            "family": scenes.family,
            "seed": scenes.seed,
            "size": list(scenes.size),
            "layout": clips.layout,
            **names,
            "seconds": round(seconds, 2),
            "folder": clips.root,
            "contact_sheet": sheet,
        }
        print_json(summary)
        return
    before = f" ({len(clips.existing)} existed)" if clips.existing else ""
    count = format_count(len(clips.written), "clip")
    print(f"wrote {count} to {clips.root} in {seconds:.1f} s{before}, in the layout of {clips.layout}")
    if clips.without_target:
        print(f"skipped, because nothing in them can be tracked: {', '.join(names['left_out'])}")
    if sheet is not None:
        print(f"see {sheet}")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = checked_device(name)
    if chosen.type not in ("cpu", "cuda"):
        raise InputError(f"the device {name!r} cannot render; choose cpu, or cuda on a machine with a GPU.")
    return chosen
