"""Clips with the box of one object: LaSOT, TrackingNet, OTB and VOT.

Boxes leave as (x, y, w, h) in pixels, a pixel i reaching from i to i + 1; frames come in the order of their numbers. A
box that is not finite, or whose width or height is not positive, is how all four say that there is none: it becomes NaN
with `present` False. So `boxes[present]` never holds a NaN; a box that is known while the object is marked as hidden
stays in `boxes` with `present` False.
"""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from protoformer.datasets.tree import (
    IMAGES,
    Dataset,
    choose,
    expect_equal_counts,
    expect_file,
    expect_files,
    expect_folder,
    files_in,
    folders_in,
    parse_integers,
    read_text,
)
from protoformer.errors import InputError
from protoformer.io.files import natural_key
from protoformer.synthetic.samples import TrackSequence


class Lasot(Dataset[TrackSequence]):
    """LaSOT: `<class>/<class>-<n>/img/00000001.jpg` with groundtruth.txt, full_occlusion.txt and out_of_view.txt.

    Splits: "test", the names in `testing_set.txt` of the official toolkit, put in the root; "train", those in
    `training_set.txt`, or where there is none every clip that `testing_set.txt` does not name. A clip may also lie
    straight in the root, as the official test archive unpacks. Boxes are as stored; the object is present where neither
    flag is 1.
    """

    name = "lasot"

    def __init__(self, root: str | os.PathLike[str], split: str = "test") -> None:
        super().__init__(root, split)
        expect_folder(self.root, "LaSOT", self.root)
        self.names = tuple(self._listed(split))
        expect_files(len(self.names), f"clips of the {split} split", self.root)
        self._folders = [expect_folder(self._folder(name), "a LaSOT clip", self.root) for name in self.names]

    def _read(self, index: int) -> TrackSequence:
        folder = self._folders[index]
        boxes = read_boxes(expect_file(folder / "groundtruth.txt", "the list of boxes of a LaSOT clip", self.root))
        frames = _pictures(folder / "img", self.root)
        hidden = [
            _flags(expect_file(folder / f"{flag}.txt", f"the line of {flag} flags of a LaSOT clip", self.root))
            for flag in ("full_occlusion", "out_of_view")
        ]
        counts = {"frames": len(frames), "boxes": len(boxes)}
        expect_equal_counts(
            counts | {"full_occlusion flags": len(hidden[0]), "out_of_view flags": len(hidden[1])}, folder
        )
        return track_sequence(self.names[index], frames, boxes, hidden[0] | hidden[1])

    def _folder(self, name: str) -> Path:
        flat = self.root / name
        return flat if flat.is_dir() else self.root / name.rpartition("-")[0] / name

    def _listed(self, split: str) -> list[str]:
        choose("the split", split, ("train", "test"))
        if split == "test":
            return self._names_in("testing_set.txt")
        if (self.root / "training_set.txt").is_file():
            return self._names_in("training_set.txt")
        testing = set(self._names_in("testing_set.txt"))
        outer = folders_in(self.root)
        found = {path.name for folder in outer for path in [folder, *folders_in(folder)] if _is_clip(path)}
        return sorted(found - testing, key=natural_key)

    def _names_in(self, file: str) -> list[str]:
        path = expect_file(self.root / file, "the list of names that LaSOT's toolkit brings", self.root)
        return read_text(path).split()


class TrackingNet(Dataset[TrackSequence]):
    """TrackingNet: `TRAIN_0` .. `TRAIN_11` and `TEST`, each with `anno/<video>.txt` and `frames/<video>/0.jpg`.

    Splits: "train", of all the training folders there are, or of those numbered in `chunks` (also as one string
    with commas); "test", where only the first box is public: the others are NaN and `present` is False there, since
    nobody knows. Boxes are as stored.
    """

    name = "trackingnet"

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "test",
        *,
        chunks: str | int | Sequence[str | int] | None = None,
    ) -> None:
        super().__init__(root, split)
        expect_folder(self.root, "TrackingNet", self.root)
        self._boxes: list[Path] = []
        for part in self._parts(split, chunks):
            anno = expect_folder(part / "anno", "the folder of boxes", self.root)
            expect_folder(part / "frames", "the folder of frames", self.root)
            self._boxes += files_in(anno, "*.txt")
        self.names = tuple(path.stem for path in self._boxes)
        expect_files(len(self.names), "box files anno/<video>.txt", self.root)

    def _read(self, index: int) -> TrackSequence:
        path = self._boxes[index]
        video = path.parent.parent / "frames" / path.stem
        boxes, frames = read_boxes(path), _pictures(video, self.root)
        if self.split == "test" and len(boxes) == 1:
            boxes = torch.cat([boxes, boxes.new_full((len(frames) - 1, 4), math.nan)])
        expect_equal_counts({"frames": len(frames), f"boxes (in {path.name})": len(boxes)}, video)
        return track_sequence(path.stem, frames, boxes)

    def _parts(self, split: str, chunks: str | int | Sequence[str | int] | None) -> list[Path]:
        choose("the split", split, ("train", "test"))
        if split == "test":
            return [expect_folder(self.root / "TEST", "the test part of TrackingNet", self.root)]
        if chunks is not None:
            wanted = [self.root / f"TRAIN_{chunk}" for chunk in parse_integers("chunks", chunks)]
            return [expect_folder(path, "a training part of TrackingNet", self.root) for path in wanted]
        parts = [path for path in folders_in(self.root) if re.fullmatch(r"TRAIN_\d+", path.name)]
        expect_files(len(parts), "folder TRAIN_0 .. TRAIN_11", self.root)
        return parts


class Otb(Dataset[TrackSequence]):
    """OTB-50 and OTB-100: `<clip>/img/0001.jpg` and `<clip>/groundtruth_rect.txt`.

    The only split is "all". Numbers are separated by commas, tabs or spaces, and count pixels from 1: one is taken off
    x and y. A clip with two objects has groundtruth_rect.1.txt and .2.txt, and becomes `Jogging-1` and `Jogging-2`.
    Where a clip has more frames than boxes, the boxes belong to the first of them, as in Football1 and Diving, or, for
    the clips of `FIRST_FRAMES`, to those from the frame of that number on. Fewer frames than boxes is an error.
    """

    name = "otb"
    FIRST_FRAMES: ClassVar[dict[str, int]] = {"BlurCar1": 247, "BlurCar3": 3, "BlurCar4": 18, "David": 300}
    """The number of the frame that the first box belongs to, where the benchmark does not start at the first one."""

    def __init__(self, root: str | os.PathLike[str], split: str = "all") -> None:
        super().__init__(root, split)
        choose("the split", split, ("all",))
        clips = folders_in(expect_folder(self.root, "OTB", self.root))
        self._boxes = [path for clip in clips for path in files_in(clip, "groundtruth_rect*.txt")]
        expect_files(len(self._boxes), "clip with a groundtruth_rect.txt", self.root)
        self.names = tuple(_otb_name(path) for path in self._boxes)

    def _read(self, index: int) -> TrackSequence:
        path = self._boxes[index]
        first = self.FIRST_FRAMES.get(path.parent.name, 0)
        boxes = read_boxes(path) - torch.tensor([1.0, 1.0, 0.0, 0.0])
        frames = [frame for frame in _pictures(path.parent / "img", self.root) if _number(frame) >= first]
        if len(frames) < len(boxes):
            raise InputError(
                f"{path.parent / 'img'} holds {len(frames)} frames from number {first} on, "
                f"but {path.name} has {len(boxes)} boxes; download or copy the clip again."
            )
        return track_sequence(self.names[index], frames[: len(boxes)], boxes)


class Vot(Dataset[TrackSequence]):
    """VOT: `<clip>/groundtruth.txt` with the frames in `<clip>/color/` or in `<clip>/` itself.

    The only split is "all": the clips that `list.txt` names, or where there is none every folder with a
    groundtruth.txt. A line has 4 numbers, a box, or 8, the corners of a polygon, which becomes the smallest box with
    level sides around it; coordinates are as stored. The masks of VOT 2020 and later are refused.
    """

    name = "vot"

    def __init__(self, root: str | os.PathLike[str], split: str = "all") -> None:
        super().__init__(root, split)
        choose("the split", split, ("all",))
        expect_folder(self.root, "VOT", self.root)
        listing = self.root / "list.txt"
        if listing.is_file():
            self.names = tuple(read_text(listing).split())
            for name in self.names:
                expect_folder(self.root / name, f"a clip that {listing} names", self.root)
        else:
            self.names = tuple(path.name for path in folders_in(self.root) if (path / "groundtruth.txt").is_file())
        expect_files(len(self.names), "clip with a groundtruth.txt", self.root)

    def _read(self, index: int) -> TrackSequence:
        folder = self.root / self.names[index]
        boxes = read_boxes(
            expect_file(folder / "groundtruth.txt", "the list of boxes of a VOT clip", self.root), polygons=True
        )
        frames = _pictures(folder / "color" if (folder / "color").is_dir() else folder, self.root)
        expect_equal_counts({"frames": len(frames), "boxes": len(boxes)}, folder)
        return track_sequence(self.names[index], frames, boxes)


def track_sequence(name: str, frames: Sequence[Path], boxes: Tensor, hidden: Tensor | None = None) -> TrackSequence:
    """Join frames with boxes, T x 4, after the rule on what is no box; `hidden`: T, bool."""
    known = boxes.isfinite().all(dim=1) & (boxes[:, 2:] > 0).all(dim=1)
    present = known if hidden is None else known & ~hidden
    return TrackSequence(
        name=name, frames=tuple(frames), boxes=boxes.where(known[:, None], math.nan), present=present.clone()
    )


def read_boxes(path: Path, polygons: bool = False) -> Tensor:
    """Read T x 4 boxes as they are stored, one a line; polygons, where allowed, as the box around them."""
    boxes = []
    for number, line in enumerate(read_text(path).rstrip().splitlines(), start=1):
        values = _numbers(line)
        if len(values) == 8 and polygons:
            values = _around(values)
        if len(values) != 4:
            kinds = "4 numbers (x, y, w, h) or 8 (a polygon)" if polygons else "4 numbers (x, y, w, h)"
            raise InputError(f"line {number} of {path} is not {kinds} but {line.strip()[:60]!r}; correct the file.")
        boxes.append(values)
    expect_files(len(boxes), "boxes", path)
    return torch.tensor(boxes, dtype=torch.float32)


def _around(corners: list[float]) -> list[float]:
    """The smallest box with level sides around a polygon x, y, x, y, ...; NaN where a corner is."""
    if not all(math.isfinite(value) for value in corners):
        return [math.nan] * 4
    left, top = min(corners[0::2]), min(corners[1::2])
    return [left, top, max(corners[0::2]) - left, max(corners[1::2]) - top]


def _flags(path: Path) -> Tensor:
    """Read T flags, bool, from one line of 0 and 1."""
    values = _numbers(read_text(path))
    if not values or not set(values) <= {0.0, 1.0}:
        raise InputError(f"{path} is not one line of 0 and 1 separated by commas; download or copy it again.")
    return torch.tensor(values) == 1


def _numbers(text: str) -> list[float]:
    """The numbers of a line separated by commas, semicolons, tabs or spaces; none where one of them is no number."""
    try:
        return [float(part) for part in re.split(r"[\s,;]+", text.strip(" \t\r\n,;"))]
    except ValueError:
        return []


def _pictures(folder: Path, root: Path) -> list[Path]:
    """The images of a folder in the order of their numbers, at least one."""
    found = [path for path in files_in(expect_folder(folder, "the folder of frames", root)) if _is_picture(path)]
    expect_files(len(found), "frames", folder)
    return found


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in IMAGES


def _is_clip(folder: Path) -> bool:
    return (folder / "groundtruth.txt").is_file()


def _number(frame: Path) -> int:
    """The number in a frame's name, 300 in 0300.jpg."""
    digits = re.sub(r"\D", "", frame.stem)
    return int(digits) if digits else 0


def _otb_name(boxes: Path) -> str:
    """The name of a clip, with the object's number where the file of boxes has one."""
    target = boxes.stem.removeprefix("groundtruth_rect").strip("._")
    return f"{boxes.parent.name}-{target}" if target else boxes.parent.name
