"""Video datasets: LaSOT, TrackingNet, OTB and VOT for tracking one object, DeepStab for stabilization.

Boxes are (x, y, w, h) in pixels, where pixel i extends from i to i + 1; frames are sorted by number. In all four
tracking datasets a box that is not finite, or whose width or height is not positive, means that there is no box: it
becomes NaN with `present` False, so `boxes[present]` never holds NaN. A valid box of an object that is marked as
occluded stays in `boxes` with `present` False.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from protoformer.datasets.base import (
    IMAGES,
    Dataset,
    expect_equal_counts,
    expect_file,
    expect_files,
    expect_folder,
    files_in,
    folders_in,
    parse_bool,
    parse_integers,
    read_text,
)
from protoformer.errors import InputError
from protoformer.io.files import PathLike, natural_key
from protoformer.synthetic.samples import StabilityPair, TrackSequence
from protoformer.video.reader import VideoFile


class Lasot(Dataset[TrackSequence]):
    """LaSOT: `<class>/<class>-<n>/img/00000001.jpg` with groundtruth.txt, full_occlusion.txt and out_of_view.txt.

    Splits: "test" is listed in `testing_set.txt` of the official toolkit, which must be in the root; "train" is listed
    in `training_set.txt`, or, if that does not exist, consists of all clips that `testing_set.txt` does not list. Clips
    may also be directly in the root, as in the official test archive. Boxes are as stored; the object is present where
    neither flag is 1.
    """

    name = "lasot"
    splits = ("train", "test")

    def __init__(self, root: PathLike, split: str = "test") -> None:
        super().__init__(root, split)
        expect_folder(self.root, "LaSOT", self.root)
        self.names = tuple(self._split_names(split))
        expect_files(len(self.names), f"clips of the {split} split", self.root)
        self._folders = [expect_folder(self._folder(name), "a LaSOT clip", self.root) for name in self.names]

    def _read(self, index: int) -> TrackSequence:
        folder = self._folders[index]
        boxes = read_boxes(expect_file(folder / "groundtruth.txt", "the list of boxes of a LaSOT clip", self.root))
        frames = _list_frames(folder / "img", self.root)
        absent_flags = [
            _read_flags(expect_file(folder / f"{flag}.txt", f"the line of {flag} flags of a LaSOT clip", self.root))
            for flag in ("full_occlusion", "out_of_view")
        ]
        counts = {"frames": len(frames), "boxes": len(boxes)}
        expect_equal_counts(
            counts | {"full_occlusion flags": len(absent_flags[0]), "out_of_view flags": len(absent_flags[1])}, folder
        )
        return track_sequence(self.names[index], frames, boxes, absent_flags[0] | absent_flags[1])

    def _folder(self, name: str) -> Path:
        flat = self.root / name
        return flat if flat.is_dir() else self.root / name.rpartition("-")[0] / name

    def _split_names(self, split: str) -> list[str]:
        if split == "test":
            return self._read_names("testing_set.txt")
        if (self.root / "training_set.txt").is_file():
            return self._read_names("training_set.txt")
        testing = set(self._read_names("testing_set.txt"))
        outer = folders_in(self.root)
        names = {path.name for folder in outer for path in [folder, *folders_in(folder)] if _is_clip(path)}
        return sorted(names - testing, key=natural_key)

    def _read_names(self, file: str) -> list[str]:
        path = expect_file(self.root / file, "the list of names from LaSOT's toolkit", self.root)
        return read_text(path).split()


class TrackingNet(Dataset[TrackSequence]):
    """TrackingNet: `TRAIN_0` .. `TRAIN_11` and `TEST`, each with `anno/<video>.txt` and `frames/<video>/0.jpg`.

    Splits: "train" reads all training folders, or those numbered in `chunks` (which may be a comma-separated string).
    In "test" only the first box is public; the others are NaN with `present` False. Boxes are as stored.
    """

    name = "trackingnet"
    splits = ("train", "test")

    def __init__(
        self,
        root: PathLike,
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
        boxes, frames = read_boxes(path), _list_frames(video, self.root)
        if self.split == "test" and len(boxes) == 1:
            boxes = torch.cat([boxes, boxes.new_full((len(frames) - 1, 4), math.nan)])
        expect_equal_counts({"frames": len(frames), f"boxes (in {path.name})": len(boxes)}, video)
        return track_sequence(path.stem, frames, boxes)

    def _parts(self, split: str, chunks: str | int | Sequence[str | int] | None) -> list[Path]:
        if split == "test":
            return [expect_folder(self.root / "TEST", "the test part of TrackingNet", self.root)]
        if chunks is not None:
            folders = [self.root / f"TRAIN_{chunk}" for chunk in parse_integers("chunks", chunks)]
            return [expect_folder(path, "a training part of TrackingNet", self.root) for path in folders]
        parts = [path for path in folders_in(self.root) if re.fullmatch(r"TRAIN_\d+", path.name)]
        expect_files(len(parts), "folder TRAIN_0 .. TRAIN_11", self.root)
        return parts


class Otb(Dataset[TrackSequence]):
    """OTB-50 and OTB-100: `<clip>/img/0001.jpg` and `<clip>/groundtruth_rect.txt`.

    The only split is "all". Numbers are separated by commas, tabs or spaces. Pixel coordinates are 1-based, so 1 is
    subtracted from x and y. A clip with two objects has groundtruth_rect.1.txt and .2.txt and becomes `Jogging-1` and
    `Jogging-2`. If a clip has more frames than boxes, the boxes belong to its first frames, as in Football1 and Diving,
    or, for the clips in `FIRST_FRAMES`, to the frames from that number on. Fewer frames than boxes is an error.
    """

    name = "otb"
    splits = ("all",)
    FIRST_FRAMES: ClassVar[dict[str, int]] = {"BlurCar1": 247, "BlurCar3": 3, "BlurCar4": 18, "David": 300}
    """Number of the frame that the first box belongs to, for clips that the benchmark does not start at frame 1."""

    def __init__(self, root: PathLike, split: str = "all") -> None:
        super().__init__(root, split)
        clips = folders_in(expect_folder(self.root, "OTB", self.root))
        self._boxes = [path for clip in clips for path in files_in(clip, "groundtruth_rect*.txt")]
        expect_files(len(self._boxes), "clip with a groundtruth_rect.txt", self.root)
        self.names = tuple(_otb_name(path) for path in self._boxes)

    def _read(self, index: int) -> TrackSequence:
        path = self._boxes[index]
        first = self.FIRST_FRAMES.get(path.parent.name, 0)
        boxes = read_boxes(path) - torch.tensor([1.0, 1.0, 0.0, 0.0])
        frames = [frame for frame in _list_frames(path.parent / "img", self.root) if _frame_number(frame) >= first]
        if len(frames) < len(boxes):
            raise InputError(
                f"{path.parent / 'img'} holds {len(frames)} frames from number {first} on, "
                f"but {path.name} has {len(boxes)} boxes; download or copy the clip again."
            )
        return track_sequence(self.names[index], frames[: len(boxes)], boxes)


class Vot(Dataset[TrackSequence]):
    """VOT: `<clip>/groundtruth.txt` with the frames in `<clip>/color/` or in `<clip>/` itself.

    The only split is "all": the clips listed in `list.txt`, or, if that does not exist, all folders with a
    groundtruth.txt. A line has 4 numbers (a box) or 8 (the corners of a polygon, which is replaced by its axis-aligned
    bounding box); coordinates are as stored. The masks of VOT 2020 and later are not supported.
    """

    name = "vot"
    splits = ("all",)

    def __init__(self, root: PathLike, split: str = "all") -> None:
        super().__init__(root, split)
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
        frames = _list_frames(folder / "color" if (folder / "color").is_dir() else folder, self.root)
        expect_equal_counts({"frames": len(frames), "boxes": len(boxes)}, folder)
        return track_sequence(self.names[index], frames, boxes)


def track_sequence(name: str, frames: Sequence[Path], boxes: Tensor, occluded: Tensor | None = None) -> TrackSequence:
    """Build a sample from T frames and their boxes, T x 4, (x, y, w, h) in pixels; invalid boxes become NaN.

    `occluded`: T, bool; where the object is not visible.
    """
    valid = boxes.isfinite().all(dim=1) & (boxes[:, 2:] > 0).all(dim=1)
    present = valid if occluded is None else valid & ~occluded
    return TrackSequence(
        name=name, frames=tuple(frames), boxes=boxes.where(valid[:, None], math.nan), present=present.clone()
    )


def read_boxes(path: Path, polygons: bool = False) -> Tensor:
    """Read boxes, one per line.

    Args:
        path: Text file.
        polygons: Whether lines of 8 numbers (4 corners) are allowed; they are replaced by their bounding boxes.

    Returns:
        T x 4, float32, as stored.
    """
    boxes = []
    for number, line in enumerate(read_text(path).rstrip().splitlines(), start=1):
        values = _parse_numbers(line)
        if len(values) == 8 and polygons:
            values = _bounding_box(values)
        if len(values) != 4:
            kinds = "4 numbers (x, y, w, h) or 8 (a polygon)" if polygons else "4 numbers (x, y, w, h)"
            raise InputError(f"line {number} of {path} is not {kinds} but {line.strip()[:60]!r}; correct the file.")
        boxes.append(values)
    expect_files(len(boxes), "boxes", path)
    return torch.tensor(boxes, dtype=torch.float32)


def _bounding_box(corners: list[float]) -> list[float]:
    """Return the axis-aligned bounding box of a polygon x, y, x, y, ...; NaN if a corner is not finite."""
    if not all(math.isfinite(value) for value in corners):
        return [math.nan] * 4
    left, top = min(corners[0::2]), min(corners[1::2])
    return [left, top, max(corners[0::2]) - left, max(corners[1::2]) - top]


def _read_flags(path: Path) -> Tensor:
    """Read T flags, bool, from one line of 0 and 1."""
    values = _parse_numbers(read_text(path))
    if not values or not set(values) <= {0.0, 1.0}:
        raise InputError(f"{path} is not one line of 0 and 1 separated by commas; download or copy it again.")
    return torch.tensor(values) == 1


def _parse_numbers(text: str) -> list[float]:
    """Parse numbers separated by commas, semicolons, tabs or spaces; return [] if one of them is not a number."""
    try:
        return [float(part) for part in re.split(r"[\s,;]+", text.strip(" \t\r\n,;"))]
    except ValueError:
        return []


def _list_frames(folder: Path, root: Path) -> list[Path]:
    """List the images of a folder in natural order; raise `InputError` if there are none."""
    frames = [path for path in files_in(expect_folder(folder, "the folder of frames", root)) if _is_image(path)]
    expect_files(len(frames), "frames", folder)
    return frames


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGES


def _is_clip(folder: Path) -> bool:
    return (folder / "groundtruth.txt").is_file()


def _frame_number(frame: Path) -> int:
    """Return the number in the name of a frame: 300 for 0300.jpg."""
    digits = re.sub(r"\D", "", frame.stem)
    return int(digits) if digits else 0


def _otb_name(boxes: Path) -> str:
    """Return the name of a clip, with the number of the object if the box file has one."""
    target = boxes.stem.removeprefix("groundtruth_rect").strip("._")
    return f"{boxes.parent.name}-{target}" if target else boxes.parent.name


class DeepStab(Dataset[StabilityPair]):
    """DeepStab: `stable/<n>.avi` and `unstable/<n>.avi`, sorted by n; other files are ignored.

    The only split is "all". The length of a pair is that of its shorter video. Frames are counted by decoding all of
    them when a pair is first read, since headers may declare frames that cannot be decoded. `trust_headers` uses the
    declared number instead, which is fast and correct for most files.
    """

    name = "deepstab"
    splits = ("all",)
    trust_headers: bool

    def __init__(self, root: PathLike, split: str = "all", *, trust_headers: bool | str = False) -> None:
        super().__init__(root, split)
        self.trust_headers = parse_bool("trust_headers", trust_headers)
        self._lengths: dict[int, int] = {}
        self._stable = _videos_by_number(expect_folder(self.root / "stable", "the folder of stable videos", self.root))
        self._unstable = _videos_by_number(
            expect_folder(self.root / "unstable", "the folder of shaky videos", self.root)
        )
        expect_files(len(self._stable) + len(self._unstable), "videos stable/<n>.avi and unstable/<n>.avi", self.root)
        self._check_partners()
        self._numbers = sorted(self._stable)
        self.names = tuple(self._stable[number].stem for number in self._numbers)

    def _read(self, index: int) -> StabilityPair:
        number = self._numbers[index]
        stable, unstable = self._stable[number], self._unstable[number]
        if index not in self._lengths:
            self._lengths[index] = min(count_frames(path, self.trust_headers) for path in (stable, unstable))
        return StabilityPair(name=self.names[index], unstable=unstable, stable=stable, frames=self._lengths[index])

    def _check_partners(self) -> None:
        for videos, partners, folder in (
            (self._stable, self._unstable, "unstable"),
            (self._unstable, self._stable, "stable"),
        ):
            for number in sorted(videos.keys() - partners.keys()):
                missing = self.root / folder / videos[number].name
                raise InputError(
                    f"{missing} does not exist, but {videos[number]} needs it as its partner; "
                    "copy the missing video there, or remove the other."
                )


def count_frames(path: Path, trust_header: bool = False) -> int:
    """Count the frames of a video by decoding them, or take the number that its header declares, where it does."""
    video = VideoFile(path)
    return (trust_header and video.info.num_frames) or video.count_frames()


def _videos_by_number(folder: Path) -> dict[int, Path]:
    """Map the number of each video in a folder to its path."""
    return {int(path.stem): path for path in files_in(folder, "*.avi") if path.stem.isdecimal()}
