"""A folder of clips of one world: what it was made with, and going on where an earlier run stopped."""

import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from protoformer import __version__
from protoformer.data.clips import LAYOUTS, LEAST_FRAMES, clip_files, clip_name, write_clip
from protoformer.data.tree import choose, read_text
from protoformer.errors import InputError
from protoformer.files import checked_output, write_atomically
from protoformer.files.folders import made_folder
from protoformer.world.bank import TextureBank
from protoformer.world.world import World

SETTINGS = "world.json"
_WITHOUT_TARGET = "without_target"


@dataclass(frozen=True)
class ClipFolder:
    """What a run found and left: numbers of scenes.

    written: clips that this run wrote. there: those that an earlier one had. left_out: those without a target.
    """

    root: Path
    layout: str
    written: tuple[int, ...]
    there: tuple[int, ...]
    left_out: tuple[int, ...]

    @property
    def clips(self) -> tuple[int, ...]:
        """All that are whole now."""
        return tuple(sorted(self.written + self.there))


def write_clips(
    world: World,
    count: int,
    root: Path,
    layout: str,
    frames: int,
    *,
    textures: str = "procedural",
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> ClipFolder:
    """Write scenes 0 .. count - 1 as clips into a folder, but for those whose files are all there.

    `world.json` in it keeps the settings; a folder with others is refused. textures: what the world's are called there.
    progress: called with (done, total), in pictures.
    """
    choose("the layout", layout, tuple(LAYOUTS))
    if count < 1:
        raise InputError(f"{count} clips cannot be written; ask for at least 1.")
    if frames < LEAST_FRAMES:
        raise InputError(f"a clip of {frames} frames shows no motion; ask for at least {LEAST_FRAMES}.")
    settings = settings_of(world, layout, frames, textures)
    without = set(_agreed(made_folder(root) / SETTINGS, settings))
    world = world.on(device)
    pictures = frames * LAYOUTS[layout].pictures
    written, there, left_out = [], [], []
    for index in range(count):
        finished = itertools.count(index * pictures + 1)
        if index in without:
            left_out.append(index)
        elif all(path.is_file() for path in clip_files(world, index, root, layout, frames)):
            there.append(index)
        elif write_clip(
            world, index, root, layout, frames, device, partial(_tell, progress, finished, count * pictures)
        ):
            written.append(index)
        else:
            left_out.append(index)
            without.add(index)
            _save(root / SETTINGS, settings, without)
        progress((index + 1) * pictures, count * pictures)
    return ClipFolder(root, layout, tuple(written), tuple(there), tuple(left_out))


def _tell(progress: Callable[[int, int], object], finished: Iterator[int], total: int) -> None:
    progress(next(finished), total)


def settings_of(world: World, layout: str, frames: int, textures: str = "procedural") -> dict[str, Any]:
    """Everything that decides what the files of a folder hold."""
    return {
        "family": world.family,
        "seed": world.seed,
        "size": list(world.size),
        "shake": world.shake,
        "layout": layout,
        "frames": frames,
        "rate": world.scenes([0]).rate,
        "textures": f"{textures} {_fingerprint(world.bank)}",
        "version": __version__,
    }


def clip_names(world: World, indices: tuple[int, ...], layout: str) -> tuple[str, ...]:
    """What the clips of these numbers are called."""
    return tuple(clip_name(world, index, layout) for index in indices)


def _fingerprint(bank: TextureBank) -> str:
    """Textures that differ have another; a folder may change while its name stays."""
    return f"{zlib.crc32(bank.texels.cpu().numpy().data):08x}"


def _agreed(path: Path, settings: dict[str, Any]) -> list[int]:
    """Save the settings, or check them against those of an earlier run: the scenes that it found without a target."""
    checked_output(path)
    if not path.exists():
        _save(path, settings, set())
        return []
    try:
        earlier = json.loads(read_text(path))
        without = [int(index) for index in earlier.pop(_WITHOUT_TARGET, [])]
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InputError(f"{path} is not what this command writes; remove it or choose another folder.") from None
    for key in settings.keys() | earlier.keys():
        if key not in settings or key not in earlier:
            raise InputError(f"{path} is not what this version writes ({key}); choose another folder.")
    for key, value in settings.items():
        if earlier[key] != value:
            raise InputError(
                f"{path.parent} holds clips whose {key} is {_said(earlier[key])}, not {_said(value)}; "
                "choose another folder, or the same settings."
            )
    return without


def _save(path: Path, settings: dict[str, Any], without: set[int]) -> None:
    write_atomically(path, (json.dumps(settings | {_WITHOUT_TARGET: sorted(without)}, indent=1) + "\n").encode())


def _said(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
