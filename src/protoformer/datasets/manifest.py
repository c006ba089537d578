"""Custom datasets: a csv or json manifest with one row per sample and paths relative to it, or a folder as it is."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from protoformer.datasets.base import (
    IMAGES,
    Dataset,
    FlowDataset,
    PairFiles,
    S,
    depth_record,
    expect_equal_counts,
    expect_file,
    expect_files,
    expect_folder,
    files_in,
    folders_in,
    pinhole,
    read_dense_flo,
    read_dense_pfm,
    read_text,
)
from protoformer.datasets.depth import read_intrinsics
from protoformer.datasets.video import count_frames, read_boxes, track_sequence
from protoformer.errors import InputError, shorten
from protoformer.io.files import PathLike, check_input, check_pixel_count, is_file, is_folder, short_repr
from protoformer.io.formats import FloatArray, SparseFlow, as_float32, read_dpt, read_kitti_flow, read_pfm
from protoformer.io.image import read_image
from protoformer.io.png import GRAY, read_png16
from protoformer.synthetic.samples import DepthSample, StabilityPair, TrackSequence

_MAX_CELL_LENGTH = 500
"""Maximum number of characters of a cell."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class Row:
    """One row of a manifest: its location for error messages, the folder of its paths, and its non-empty cells."""

    location: str
    folder: Path
    cells: dict[str, str]

    def path(self, column: str) -> Path:
        """Return the path in a cell."""
        return self.folder / self.cells[column]

    def optional_path(self, column: str) -> Path | None:
        """Return the path in a cell, or None if the cell is empty."""
        return self.path(column) if column in self.cells else None

    def number(self, column: str) -> float:
        """Return the finite number in a cell, or raise `InputError`."""
        try:
            value = float(self.cells[column])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{self.location}: {column} is {shorten(repr(self.cells[column]), 60)}; give a number.")
        return value


Layout = Callable[[Path], Iterator[dict[str, str]]]
"""Lists the rows of a folder without a manifest."""


def read_manifest(
    root: PathLike, required: Sequence[str], optional: Sequence[str] = (), layout: Layout | None = None
) -> tuple[Row, ...]:
    """Read a manifest.

    Args:
        root: The manifest, or a folder with manifest.csv or manifest.json.
        required: Columns that every row must have.
        optional: Other allowed columns.
        layout: Lists the rows of a folder without a manifest; None: there must be one.
    """
    folder = Path(root)
    if layout is not None and is_folder(folder) and not _manifests_in(folder):
        rows = [Row(f"{cells[required[0]]} in {folder}", folder, cells) for cells in layout(folder)]
        if not rows:
            raise InputError(
                f"{folder}/manifest.csv does not exist, but a manifest was expected there, or {LAYOUTS[required[0]]}; "
                "put one of these there."
            )
        return tuple(rows)
    path = _manifest_file(folder)
    text = read_text(path)
    column_help = f"the columns are {', '.join(required)}" + (
        f" and, where known, {', '.join(optional)}" if optional else ""
    )
    rows = []
    for location, cells in _csv_rows(text, path) if path.suffix.lower() == ".csv" else _json_rows(text, path):
        for column in cells:
            if column not in required and column not in optional:
                raise InputError(f"{location}: there is no column {shorten(repr(column), 60)}; {column_help}.")
        filled = {column: cell.strip() for column, cell in cells.items() if cell.strip()}
        for column in required:
            if column not in filled:
                raise InputError(f"{location}: {column} is missing; {column_help}.")
        for column, cell in filled.items():
            if len(cell) > _MAX_CELL_LENGTH or _CONTROL.search(cell):
                raise InputError(
                    f"{location}: {column} is {shorten(repr(cell), 60)}; "
                    f"give one line of up to {_MAX_CELL_LENGTH} characters."
                )
        rows.append(Row(location, path.parent, filled))
    expect_files(len(rows), "rows", path)
    return tuple(rows)


LAYOUTS = {
    "first": "folders first, second and flow with files of the same names",
    "image": "folders image and depth with files of the same names",
    "frames": "a folder for each clip with frames and a groundtruth.txt",
}
"""What a folder without a manifest has to contain, by the first column."""
BOX_FILES = ("groundtruth.txt", "groundtruth_rect.txt", "boxes.txt")
"""Names of the boxes of a clip in a folder of clips, as in GOT-10k and VOT, in OTB, and simply."""


def paired_layout(columns: Sequence[str], required: int) -> Layout:
    """Return the layout of a folder with one folder per column, whose files are matched by their names.

    Args:
        columns: Names of the columns and folders.
        required: Number of columns, from the first, that there must be; other folders need not exist.
    """

    def list_rows(root: Path) -> Iterator[dict[str, str]]:
        folders = [column for index, column in enumerate(columns) if index < required or is_folder(root / column)]
        if not is_folder(root / columns[0]):
            return
        files = {column: _files_by_stem(root, column) for column in folders}
        for stem, first in files[columns[0]].items():
            for column in folders:
                if stem not in files[column]:
                    raise InputError(f"{root / column} has no file for {first}; add {stem} there, or remove {first}.")
            yield {column: files[column][stem] for column in folders}

    return list_rows


def clips_layout(root: Path) -> Iterator[dict[str, str]]:
    """List the clips of a folder: CLIP/groundtruth.txt, with the frames in CLIP, CLIP/img or CLIP/color."""
    for clip in folders_in(root):
        boxes = [name for name in BOX_FILES if is_file(clip / name)]
        frames = [name for name in ("img", "color") if is_folder(clip / name)]
        if boxes:
            yield {"frames": "/".join((clip.name, *frames[:1])), "boxes": f"{clip.name}/{boxes[0]}"}


def _files_by_stem(root: Path, column: str) -> dict[str, str]:
    """Return the files of a folder, relative to its parent, by their names without the suffix."""
    files: dict[str, str] = {}
    for path in files_in(expect_folder(root / column, f"the folder {column} of your data", root)):
        if path.stem in files:
            raise InputError(f"{path} and {files[path.stem]} have the same name; remove one of them.")
        files[path.stem] = f"{column}/{path.name}"
    return files


def read_flow_by_suffix(path: Path) -> SparseFlow:
    """Read flow from a `.flo`, `.pfm` or KITTI `.png` file."""
    readers = {".flo": read_dense_flo, ".pfm": read_dense_pfm}
    return readers.get(path.suffix.lower(), read_kitti_flow)(path)


class ManifestFlow(FlowDataset):
    """Custom flow dataset with columns first, second and, optionally, flow, valid, occlusion.

    flow: `.flo`, `.pfm` or KITTI `.png`. valid and occlusion: masks, white where true; pixels whose flow leaves the
    image are added to the occlusion. A row without flow yields a `FlowPair`. A folder without a manifest has folders of
    these names.
    """

    name = "own"
    splits = ("all",)
    read_flow = staticmethod(read_flow_by_suffix)

    def __init__(self, root: PathLike, split: str = "all") -> None:
        super().__init__(root, split)
        required, optional = ("first", "second"), ("flow", "valid", "occlusion")
        rows = read_manifest(root, required, optional, paired_layout((*required, *optional), required=2))
        self._set_pairs(_pair_files(row) for row in rows)


def _pair_files(row: Row) -> PairFiles:
    flow = row.optional_path("flow")
    if flow is None and ("valid" in row.cells or "occlusion" in row.cells):
        raise InputError(f"{row.location}: valid and occlusion need a flow; give the flow too.")
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


class _ManifestDataset(Dataset[S]):
    """Base class of manifest datasets; a sample is named by its first column.

    Attributes:
        columns: Required columns.
        optional_columns: Optional columns.
        rows: Rows of the manifest.
    """

    splits = ("all",)
    columns: ClassVar[tuple[str, ...]]
    optional_columns: ClassVar[tuple[str, ...]] = ()
    rows: tuple[Row, ...]

    def __init__(self, root: PathLike, split: str = "all") -> None:
        super().__init__(root, split)
        self.rows = read_manifest(root, self.columns, self.optional_columns, self._layout())
        self.names = tuple(row.cells[self.columns[0]] for row in self.rows)

    def _layout(self) -> Layout | None:
        """Return what lists the rows of a folder without a manifest; None: there must be one."""
        return None


class ManifestDepth(_ManifestDataset[DepthSample]):
    """Custom depth dataset with columns image, depth and, optionally, scale, fx, fy, cx, cy.

    depth: `.pfm`, `.dpt` or `.npy` (HxW) in meters, or a 16-bit `.png` in units of `scale` meters (0.001 by default);
    values that are not positive and finite are invalid. fx .. cy: intrinsics, in pixels. A folder without a manifest
    has folders image and depth and, where known, a file camera.txt with fx fy cx cy of all images.
    """

    name = "own-depth"
    columns = ("image", "depth")
    optional_columns = ("scale", "fx", "fy", "cx", "cy")

    def __init__(self, root: PathLike, split: str = "all", fov: float | str | None = None) -> None:
        """Open a dataset.

        Args:
            root: The manifest, or a folder with one, or a folder without.
            split: "all".
            fov: Field of view along the longer side, degrees, of images whose intrinsics are not known; None: they
                stay unknown.
        """
        super().__init__(root, split)
        self._fov = None if fov is None else _parse_fov(fov)
        camera = self.root / "camera.txt"
        self._camera = read_intrinsics(camera, self.root) if is_file(camera) else None

    def _layout(self) -> Layout:
        return paired_layout(self.columns, required=2)

    def _read(self, index: int) -> DepthSample:
        row = self.rows[index]
        image = read_image(expect_file(row.path("image"), f"the image that {row.location} names"))
        path = _expect_suffix(row.path("depth"), (".pfm", ".dpt", ".npy", ".png"), row)
        depth = _read_depth(expect_file(path, f"the depth that {row.location} names"), row)
        _expect_2d(depth.shape, path)
        intrinsics = _row_intrinsics(row)
        if intrinsics is None:
            intrinsics = self._camera
        if intrinsics is None and self._fov is not None:
            height, width = image.shape[:2]
            focal = max(height, width) / 2 / math.tan(math.radians(self._fov) / 2)
            intrinsics = pinhole(focal, focal, (width - 1) / 2, (height - 1) / 2)
        return depth_record(self.names[index], image, depth, intrinsics)


class ManifestTracking(_ManifestDataset[TrackSequence]):
    """Custom tracking dataset with columns frames, boxes.

    frames: a folder of images, or a pattern such as clip/*.jpg, in natural order. boxes: a text file with x, y, w, h
    per line, where pixel i extends from i to i + 1; one line per frame, or one line if only the first box is known.
    A box that is not finite, or has no positive width and height, means that the object is not visible. A folder
    without a manifest has a folder for each clip with frames and groundtruth.txt; see `clips_layout`.
    """

    name = "own-track"
    columns = ("frames", "boxes")

    def _layout(self) -> Layout:
        return clips_layout

    def _read(self, index: int) -> TrackSequence:
        row = self.rows[index]
        frames = _list_frames(row)
        boxes = read_boxes(expect_file(row.path("boxes"), f"the boxes that {row.location} names"))
        if len(boxes) == 1:
            boxes = torch.cat((boxes, boxes.new_full((len(frames) - 1, 4), math.nan)))
        expect_equal_counts({"frames": len(frames), f"boxes (in {row.cells['boxes']})": len(boxes)}, row.path("frames"))
        return track_sequence(self.names[index], frames, boxes)


class ManifestStabilization(_ManifestDataset[StabilityPair]):
    """Custom stabilization dataset with columns unstable and, optionally, stable: videos of one scene."""

    name = "own-stabilize"
    columns = ("unstable",)
    optional_columns = ("stable",)

    def _read(self, index: int) -> StabilityPair:
        row = self.rows[index]
        unstable = expect_file(row.path("unstable"), f"the shaky video that {row.location} names")
        stable = row.optional_path("stable")
        if stable is not None:
            expect_file(stable, f"the stable video that {row.location} names")
        frames = min(count_frames(path) for path in (unstable, stable) if path is not None)
        return StabilityPair(name=self.names[index], unstable=unstable, stable=stable, frames=frames)


def _manifest_file(root: Path) -> Path:
    """Return the manifest itself, or the one in a folder."""
    if root.is_dir():
        return expect_file((_manifests_in(root) or [root / "manifest.csv"])[0], "a manifest")
    if root.suffix.lower() not in (".csv", ".json"):
        raise InputError(f"{root} does not end in .csv or .json; give a manifest of one of these kinds.")
    return root


def _manifests_in(folder: Path) -> list[Path]:
    return [folder / name for name in ("manifest.csv", "manifest.json") if is_file(folder / name)]


def _csv_rows(text: str, path: Path) -> list[tuple[str, dict[str, str]]]:
    """Parse a csv file with a header into (location, cells) per row."""
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    rows = []
    try:
        for cells in reader:
            location = f"line {reader.line_num} of {path}"
            if None in cells:
                raise InputError(f"{location} has more cells than the header; put quotes around a path with a comma.")
            rows.append((location, {column.strip(): cell or "" for column, cell in cells.items()}))
    except csv.Error as error:
        raise InputError(f"{path} is not a csv file ({error}); save it with a header and commas.") from None
    return rows


def _json_rows(text: str, path: Path) -> list[tuple[str, dict[str, str]]]:
    """Parse a json list of objects into (location, cells) per object; null is an empty cell."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a json file ({error}); correct it.") from None
    if not isinstance(stored, list) or not all(isinstance(cells, dict) for cells in stored):
        raise InputError(f"{path} is not a list of objects; write [{{...}}, {{...}}], one object per sample.")
    return [
        (
            f"object {location} of {path}",
            {column: "" if cell is None else str(cell) for column, cell in cells.items()},
        )
        for location, cells in enumerate(stored, start=1)
    ]


def _expect_suffix(path: Path, suffixes: tuple[str, ...], row: Row) -> Path:
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{row.location}: {path} does not end in {', '.join(suffixes)}; give a file of one of these.")
    return path


def _parse_fov(fov: float | str) -> float:
    with suppress(TypeError, ValueError):
        if 0 < float(fov) < 180:
            return float(fov)
    raise InputError(f"a field of view is between 0 and 180 degrees, not {short_repr(fov)}; give one, or none.")


def _read_depth(path: Path, row: Row) -> FloatArray:
    """Read a depth as float32 HxW in meters, by the suffix of its file."""
    suffix = path.suffix.lower()
    if suffix == ".pfm":
        return read_pfm(path)
    if suffix == ".dpt":
        return read_dpt(path)
    if suffix == ".png":
        scale = row.number("scale") if "scale" in row.cells else 0.001
        return as_float32(read_png16(path, GRAY, "depth", "depth") * np.float64(scale), "a depth")
    return _read_npy_depth(path)


def _read_npy_depth(path: Path) -> FloatArray:
    """Read a `.npy` file; it is memory-mapped first, since only that compares the header with the file length."""
    try:
        stored = np.load(check_input(path), mmap_mode="r", allow_pickle=False)
    except InputError:
        raise
    except Exception as error:  # numpy parses the header as a Python literal, which raises many kinds of errors
        raise InputError(f"{path} is not a .npy file of numbers ({str(error)[:200]}); save it again.") from None
    if not isinstance(stored, np.ndarray):
        stored.close()
        raise InputError(f"{path} is an archive of arrays; save one array as .npy.")
    if stored.dtype.kind not in "fiu":
        raise InputError(f"{path} does not hold an array of real numbers; save it again.")
    height, width = _expect_2d(stored.shape, path)
    check_pixel_count(width, height, path)
    return as_float32(np.array(stored), f"the depth in {path}")


def _expect_2d(shape: tuple[int, ...], path: Path) -> tuple[int, int]:
    if len(shape) != 2:
        raise InputError(f"{path} has shape {shape}; a depth has shape HxW; save one number per pixel.")
    return shape[0], shape[1]


def _row_intrinsics(row: Row) -> Tensor | None:
    """Return the intrinsics of a row, 3 x 3 in pixels, or None if it has none."""
    given = [column for column in ("fx", "fy", "cx", "cy") if column in row.cells]
    if not given:
        return None
    if len(given) < 4:
        raise InputError(f"{row.location}: of fx, fy, cx, cy only {', '.join(given)} is given; give all four or none.")
    fx, fy, cx, cy = (row.number(column) for column in given)
    return pinhole(fx, fy, cx, cy)


def _list_frames(row: Row) -> list[Path]:
    """List the frames of a row, given as a folder or as a glob pattern in the last path component."""
    path = row.path("frames")
    if re.search(r"[*?[]", path.name) and not is_folder(path):
        folder = expect_folder(path.parent, f"the folder of frames that {row.location} names")
        try:
            frames = files_in(folder, path.name)
        except ValueError as error:
            raise InputError(f"{row.location}: {path.name} is not a valid pattern ({error}); correct it.") from None
    else:
        folder = expect_folder(path, f"the folder of frames that {row.location} names")
        frames = [file for file in files_in(folder) if file.suffix.lower() in IMAGES]
    expect_files(len(frames), "frames", path)
    return frames
