"""Your own data: a csv or json file with a line per sample, whose paths are relative to that file."""

import csv
import io
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protoformer.datasets.pairs import FlowDataset, PairFiles, depth_record, pinhole, read_dense_flo, read_dense_pfm
from protoformer.datasets.stabilization import count_frames
from protoformer.datasets.tracking import read_boxes, track_sequence
from protoformer.datasets.tree import (
    IMAGES,
    Dataset,
    S,
    choose,
    expect_equal_counts,
    expect_file,
    expect_files,
    expect_folder,
    files_in,
    is_folder,
    read_text,
)
from protoformer.errors import InputError, shortened
from protoformer.io.arrays import SparseFlow, as_float32
from protoformer.io.files import check_input, check_pixel_count
from protoformer.io.float_formats import read_dpt, read_pfm
from protoformer.io.image import read_image
from protoformer.io.kitti import read_kitti_flow
from protoformer.io.png import GRAY, read_png16
from protoformer.synthetic.samples import DepthSample, StabilityPair, TrackSequence

_LONGEST_CELL = 500
"""Letters of a path or number in a manifest."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class Row:
    """One line of a manifest: where it stands, the folder its paths start from, and its cells that are not empty."""

    place: str
    folder: Path
    cells: dict[str, str]

    def path(self, column: str) -> Path:
        """The path in a cell."""
        return self.folder / self.cells[column]

    def optional_path(self, column: str) -> Path | None:
        """The path in a cell, or None where the cell is empty."""
        return self.path(column) if column in self.cells else None

    def number(self, column: str) -> float:
        """The finite number in a cell."""
        try:
            value = float(self.cells[column])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{self.place}: {column} is {shortened(repr(self.cells[column]), 60)}; give a number.")
        return value


def read_manifest(
    root: str | os.PathLike[str], required: Sequence[str], optional: Sequence[str] = ()
) -> tuple[Row, ...]:
    """Read a manifest, or manifest.csv or manifest.json in a folder; every row has the required cells."""
    path = _manifest_file(Path(root))
    text = read_text(path)
    known = f"the columns are {', '.join(required)}" + (f" and, where known, {', '.join(optional)}" if optional else "")
    rows = []
    for place, cells in _csv_rows(text, path) if path.suffix.lower() == ".csv" else _json_rows(text, path):
        for column in cells:
            if column not in required and column not in optional:
                raise InputError(f"{place}: there is no column {shortened(repr(column), 60)}; {known}.")
        filled = {column: cell.strip() for column, cell in cells.items() if cell.strip()}
        for column in required:
            if column not in filled:
                raise InputError(f"{place}: {column} is missing; {known}.")
        for column, cell in filled.items():
            if len(cell) > _LONGEST_CELL or _CONTROL.search(cell):
                raise InputError(
                    f"{place}: {column} is {shortened(repr(cell), 60)}; give one line of up to {_LONGEST_CELL} letters."
                )
        rows.append(Row(place, path.parent, filled))
    expect_files(len(rows), "rows", path)
    return tuple(rows)


def read_flow_by_suffix(path: Path) -> SparseFlow:
    """Read a `.flo`, a `.pfm` or a KITTI `.png`."""
    readers = {".flo": read_dense_flo, ".pfm": read_dense_pfm}
    return readers.get(path.suffix.lower(), read_kitti_flow)(path)


class ManifestFlow(FlowDataset):
    """Columns first, second and, where known, flow, valid, occlusion.

    flow: `.flo`, `.pfm` or a KITTI `.png`. valid and occlusion: images, white where it holds; pixels whose flow leaves
    the image are added to the occlusion. A row without flow gives a `FlowPair`.
    """

    name: ClassVar[str] = "own"
    read_flow = staticmethod(read_flow_by_suffix)

    def __init__(self, root: str | os.PathLike[str], split: str = "all") -> None:
        choose("the split", split, ("all",))
        rows = read_manifest(root, ("first", "second"), ("flow", "valid", "occlusion"))
        super().__init__(root, split, [_own_pair(row) for row in rows])


def _own_pair(row: Row) -> PairFiles:
    flow = row.optional_path("flow")
    if flow is None and ("valid" in row.cells or "occlusion" in row.cells):
        raise InputError(f"{row.place}: valid and occlusion are of no use without flow; give the flow too.")
    if flow is not None:
        _expect_suffix(flow, (".flo", ".pfm", ".png"), row)
    return PairFiles(
        name=row.cells["first"],
        first=row.path("first"),
        second=row.path("second"),
        flow=flow,
        valid=row.optional_path("valid"),
        occlusion=row.optional_path("occlusion"),
    )


class _Own(Dataset[S]):
    """A dataset of the rows of a manifest; a row is named by its first column."""

    columns: ClassVar[tuple[str, ...]]
    where_known: ClassVar[tuple[str, ...]] = ()
    rows: tuple[Row, ...]

    def __init__(self, root: str | os.PathLike[str], split: str = "all") -> None:
        super().__init__(root, split)
        choose("the split", split, ("all",))
        self.rows = read_manifest(root, self.columns, self.where_known)
        self.names = tuple(row.cells[self.columns[0]] for row in self.rows)


class ManifestDepth(_Own[DepthSample]):
    """Columns image, depth and, where known, scale, fx, fy, cx, cy.

    depth: `.pfm`, `.dpt` or `.npy` (HxW) in meters, or a 16-bit `.png` whose steps are `scale` meters (0.001 where it
    is left out); values that are not positive and finite are unknown. fx .. cy: the camera's, in pixels.
    """

    name: ClassVar[str] = "own-depth"
    columns = ("image", "depth")
    where_known = ("scale", "fx", "fy", "cx", "cy")

    def _read(self, index: int) -> DepthSample:
        row = self.rows[index]
        image = read_image(expect_file(row.path("image"), f"the image that {row.place} names"))
        path = _expect_suffix(row.path("depth"), (".pfm", ".dpt", ".npy", ".png"), row)
        depth = _stored_depth(expect_file(path, f"the depth that {row.place} names"), row)
        _expect_plane(depth.shape, path)
        return depth_record(self.names[index], image, depth, _intrinsics(row))


class ManifestTracking(_Own[TrackSequence]):
    """Columns frames, boxes.

    frames: a folder of images, or a pattern such as clip/*.jpg; they are taken in natural order. boxes: a text file of
    x, y, w, h a line, a pixel i reaching from i to i + 1; one line per frame, or one in all where only the
    start is known. A box that is not finite, or not wider and higher than 0, says that the object is not seen.
    """

    name: ClassVar[str] = "own-track"
    columns = ("frames", "boxes")

    def _read(self, index: int) -> TrackSequence:
        row = self.rows[index]
        frames = _frames(row)
        boxes = read_boxes(expect_file(row.path("boxes"), f"the boxes that {row.place} names"))
        if len(boxes) == 1:
            boxes = torch.cat((boxes, boxes.new_full((len(frames) - 1, 4), math.nan)))
        expect_equal_counts({"frames": len(frames), f"boxes (in {row.cells['boxes']})": len(boxes)}, row.path("frames"))
        return track_sequence(self.names[index], frames, boxes)


class ManifestStabilization(_Own[StabilityPair]):
    """Columns unstable and, where there is one, stable: videos of one scene."""

    name: ClassVar[str] = "own-stabilize"
    columns = ("unstable",)
    where_known = ("stable",)

    def _read(self, index: int) -> StabilityPair:
        row = self.rows[index]
        unstable = expect_file(row.path("unstable"), f"the shaky video that {row.place} names")
        stable = row.optional_path("stable")
        if stable is not None:
            expect_file(stable, f"the stable video that {row.place} names")
        frames = min(count_frames(path) for path in (unstable, stable) if path is not None)
        return StabilityPair(name=self.names[index], unstable=unstable, stable=stable, frames=frames)


def _manifest_file(root: Path) -> Path:
    """The manifest itself, or the one in a folder."""
    if root.is_dir():
        found = [root / name for name in ("manifest.csv", "manifest.json") if (root / name).is_file()]
        return expect_file((found or [root / "manifest.csv"])[0], "a manifest")
    if root.suffix.lower() not in (".csv", ".json"):
        raise InputError(f"{root} does not end in .csv or .json; give a manifest of one of these kinds.")
    return root


def _csv_rows(text: str, path: Path) -> list[tuple[str, dict[str, str]]]:
    """Rows of a csv file with a header, each with the place it stands at."""
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    rows = []
    try:
        for cells in reader:
            place = f"line {reader.line_num} of {path}"
            if None in cells:
                raise InputError(f"{place} has more cells than the header; put quotes around a path with a comma.")
            rows.append((place, {column.strip(): cell or "" for column, cell in cells.items()}))
    except csv.Error as error:
        raise InputError(f"{path} is not a csv file ({error}); save it with a header and commas.") from None
    return rows


def _json_rows(text: str, path: Path) -> list[tuple[str, dict[str, str]]]:
    """Objects of a json list, each with the place it stands at; null is an empty cell."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a json file ({error}); correct it.") from None
    if not isinstance(stored, list) or not all(isinstance(cells, dict) for cells in stored):
        raise InputError(f"{path} is not a list of objects; write [{{...}}, {{...}}], one object per sample.")
    return [
        (
            f"object {place} of {path}",
            {column: "" if cell is None else str(cell) for column, cell in cells.items()},
        )
        for place, cells in enumerate(stored, start=1)
    ]


def _expect_suffix(path: Path, suffixes: tuple[str, ...], row: Row) -> Path:
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{row.place}: {path} does not end in {', '.join(suffixes)}; give a file of one of these.")
    return path


def _stored_depth(path: Path, row: Row) -> npt.NDArray[np.float32]:
    """Read a depth as float32 HxW in meters, by the suffix of its file."""
    suffix = path.suffix.lower()
    if suffix == ".pfm":
        return read_pfm(path)
    if suffix == ".dpt":
        return read_dpt(path)
    if suffix == ".png":
        scale = row.number("scale") if "scale" in row.cells else 0.001
        return as_float32(read_png16(path, GRAY, "depth", "depth") * np.float64(scale), "a depth")
    return _npy_depth(path)


def _npy_depth(path: Path) -> npt.NDArray[np.float32]:
    """Read a `.npy` file; it is mapped before it is copied, as that alone compares its header with its length."""
    try:
        stored = np.load(check_input(path), mmap_mode="r", allow_pickle=False)
    except InputError:
        raise
    except Exception as error:  # a damaged header fails in as many ways as the parser of Python literals that reads it
        raise InputError(f"{path} is not a .npy file of numbers ({str(error)[:200]}); save it again.") from None
    if not isinstance(stored, np.ndarray):
        stored.close()
        raise InputError(f"{path} is an archive of arrays; save one array as .npy.")
    if stored.dtype.kind not in "fiu":
        raise InputError(f"{path} does not hold an array of real numbers; save it again.")
    height, width = _expect_plane(stored.shape, path)
    check_pixel_count(width, height, path)
    return as_float32(np.array(stored), f"the depth in {path}")


def _expect_plane(shape: tuple[int, ...], path: Path) -> tuple[int, int]:
    if len(shape) != 2:
        raise InputError(f"{path} has shape {shape}; a depth has one number a pixel, HxW: save it so.")
    return shape[0], shape[1]


def _intrinsics(row: Row) -> Tensor | None:
    """The camera of a row, 3 x 3 in pixels, or None where it gives none."""
    given = [column for column in ("fx", "fy", "cx", "cy") if column in row.cells]
    if not given:
        return None
    if len(given) < 4:
        raise InputError(f"{row.place}: of fx, fy, cx, cy only {', '.join(given)} is given; give all four or none.")
    fx, fy, cx, cy = (row.number(column) for column in given)
    return pinhole(fx, fy, cx, cy)


def _frames(row: Row) -> list[Path]:
    """The frames that a cell names, by a folder or by a pattern in its last part."""
    path = row.path("frames")
    if re.search(r"[*?[]", path.name) and not is_folder(path):
        folder = expect_folder(path.parent, f"the folder of frames that {row.place} names")
        try:
            found = files_in(folder, path.name)
        except ValueError as error:
            raise InputError(f"{row.place}: {path.name} is no pattern of names ({error}); correct it.") from None
    else:
        folder = expect_folder(path, f"the folder of frames that {row.place} names")
        found = [file for file in files_in(folder) if file.suffix.lower() in IMAGES]
    expect_files(len(found), "frames", path)
    return found
