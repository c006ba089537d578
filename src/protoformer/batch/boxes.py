"""First boxes of many videos, from one file for all of them or from a file beside each."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from protoformer.errors import InputError
from protoformer.io.files import UnfitFileError, check_input, read_small_file, short_repr
from protoformer.tracking.result import Box, parse_boxes

COLUMNS = ("video", "x", "y", "w", "h")
"""Columns of a file for many videos; a file beside a video has all but the first."""
SIDECAR = ".boxes.csv"
"""Ending of a file beside a video: the boxes of clip.mp4 are in clip.boxes.csv."""
MAX_BYTES = 2**24
"""Maximum size of a file of boxes, which has less than a hundred bytes per box."""


def read_boxes_file(path: Path) -> dict[str, tuple[Box, ...]]:
    """Read the boxes of many videos.

    Args:
        path: A .csv file with the header video,x,y,w,h and one row per target; or a .json file that maps videos to a
            box [x, y, w, h] or a list of boxes. Boxes are in pixels of the first frame, from the top-left corner.

    Returns:
        The boxes by the name of the video, as written in the file.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".json"):
        raise InputError(f"{path} does not end in .csv or .json; give a file of boxes of one of these kinds.")
    text = _read_text(path)
    entries: dict[str, Any] = _parse_json(text, path) if suffix == ".json" else {}
    if suffix == ".csv":
        for line, row in _parse_csv(text, path):
            if len(row) != len(COLUMNS):
                raise InputError(f"line {line} of {path} is not {','.join(COLUMNS)}; correct it.")
            entries.setdefault(row[0], []).append(row[1:])
    if not entries:
        raise InputError(f"{path} has no boxes; add a row {','.join(COLUMNS)} for each target.")
    return {name: _check_boxes(boxes, f"the boxes of {short_repr(name)} in {path}") for name, boxes in entries.items()}


def read_sidecar(video: Path) -> tuple[Box, ...]:
    """Read the boxes in the file beside a video, one x,y,w,h per line, with or without a header."""
    path = video.with_name(video.stem + SIDECAR)
    if not path.exists():
        raise InputError(
            f"there are no boxes for {video}; write x,y,w,h of each target in its first frame to {path.name} beside "
            "it, or give a file with --boxes."
        )
    return _check_boxes([row for _, row in _parse_csv(_read_text(path), path)], f"the boxes in {path}")


def find_boxes(boxes: Mapping[str, tuple[Box, ...]], video: Path, path: Path) -> tuple[Box, ...]:
    """Return the boxes of a video, which a file of boxes names by its path or by the last parts of it.

    Args:
        boxes: Boxes by name, from `read_boxes_file`.
        video: Absolute path of the video.
        path: The file of boxes, for the error.
    """
    for first in range(len(video.parts)):  # the whole path is the most specific name
        found = boxes.get(str(PurePath(*video.parts[first:])))
        if found is not None:
            return found
    raise InputError(f"there are no boxes for {video} in {path}; add a row {video.name},x,y,w,h.")


def _read_text(path: Path) -> str:
    try:
        return read_small_file(check_input(path).resolve(), MAX_BYTES).decode("utf-8-sig")
    except UnfitFileError as error:
        raise InputError(f"{path} is not a file of boxes, because {error}; give another.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file in UTF-8; save it again.") from None


def _parse_csv(text: str, path: Path) -> list[tuple[int, list[str]]]:
    """Return the number and the cells of each line that is neither empty nor the header."""
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except csv.Error as error:
        raise InputError(f"{path} is not a csv file ({error}); save it with commas.") from None
    has_header = rows and [cell.lower() for cell in rows[0][1]] in ([*COLUMNS], [*COLUMNS[1:]])
    return rows[1:] if has_header else rows


def _parse_json(text: str, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not a json file; correct it.") from None
    if not isinstance(content, dict) or not all(isinstance(boxes, list) for boxes in content.values()):
        raise InputError(f'{path} does not map videos to boxes; write {{"clip.mp4": [[x, y, w, h]]}}.')
    return content


def _check_boxes(boxes: list[Any], what: str) -> tuple[Box, ...]:
    try:
        return parse_boxes(boxes)
    except InputError as error:
        raise InputError(f"{what} cannot be used: {error}") from None
    except OverflowError:  # an integer of JSON that is no float
        raise InputError(f"{what} have a number that is too large; correct it.") from None
