"""What the viewer shows of every frame of a clip, kept as files until somebody looks."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

CLIP_CELLS = 2**18
"""Numbers of each frame of a clip that the viewer gets; see `flow_view` and `depth_view`."""


def keep_view(folder: Path, place: int, view: dict[str, Any]) -> None:
    """Keep a view under its number, from 0."""
    _file(folder, place).write_text(json.dumps(view))


def kept_view(folder: Path, place: int) -> dict[str, Any]:
    """The view of a number; FileNotFoundError where there is none. The folder counts as used now."""
    view: dict[str, Any] = json.loads(_file(folder, place).read_text())
    with suppress(OSError):
        os.utime(folder)
    return view


def _file(folder: Path, place: int) -> Path:
    return folder / f"{place:06d}.json"
