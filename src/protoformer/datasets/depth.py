"""Depth datasets: KITTI (Eigen split), Sintel, Virtual KITTI 2, NYU Depth V2 and folders of RGB-D scenes."""

import importlib
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protoformer.datasets.base import (
    Dataset,
    Names,
    choose,
    depth_record,
    expect_file,
    expect_files,
    expect_folder,
    files_in,
    folders_in,
    numbered_files,
    pair_names,
    pinhole,
    read_text,
    select_folders,
    variant_folders,
)
from protoformer.errors import InputError, install_command
from protoformer.io.files import PathLike, natural_key, read_image_bytes
from protoformer.io.formats import (
    MAX_MM_DEPTH,
    FloatArray,
    read_cam,
    read_dpt,
    read_kitti_depth,
    read_mm_depth,
    read_vkitti2_depth,
)
from protoformer.io.image import read_image
from protoformer.io.png import GRAY, check_png
from protoformer.synthetic.samples import DepthSample

__all__ = ["KittiEigen", "NyuV2", "Rgbd", "SintelDepth", "Vkitti2Depth"]


@dataclass(frozen=True)
class _EigenFrame:
    """One line of an Eigen list, with the two possible paths of the depth map and the focal length in pixels."""

    name: str
    line: str
    image: Path
    truths: tuple[Path, Path]
    focal: float


class KittiEigen(Dataset[DepthSample]):
    """KITTI with an Eigen split, about 375x1242: sparse lidar depth.

    Each line of the list is `rgb truth focal`:
    `2011_09_26/2011_09_26_drive_0002_sync/image_02/data/0000000069.png`, a path that ends in the name of the same frame
    or `None`, and the focal length in pixels. Images are in the root. The depth map of a frame is
    `train|val/<drive>/proj_depth/groundtruth/image_02/<frame>.png` in `truth_root`, identified by the frame name. The
    principal point is the center of the image.

    Args:
        root: Folder of the images.
        split: "train", "val" or "test".
        list_file: The list; None uses `eigen_<split>_files_with_gt.txt` in the root.
        truth_root: Folder of the depth maps; None uses the root.

    Attributes:
        without_truth: Number of frames that are skipped because their ground truth is `None`.
    """

    name = "kitti-eigen"
    splits = ("train", "val", "test")
    without_truth: int

    def __init__(
        self,
        root: PathLike,
        split: str = "test",
        *,
        list_file: PathLike | None = None,
        truth_root: PathLike | None = None,
    ) -> None:
        super().__init__(root, split)
        expect_folder(self.root, "KITTI", self.root)
        source = self.root / f"eigen_{split}_files_with_gt.txt" if list_file is None else Path(list_file)
        expect_file(source, "the Eigen list of lines `rgb truth focal`", self.root)
        text = read_text(source)
        lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        truths = self.root if truth_root is None else Path(truth_root)
        if not (truths / "val").is_dir():
            expect_folder(truths / "train", "KITTI's annotated depth, there or in val,", truths)
        frames = [self._parse_line(words, f"line {number} of {source}", truths) for number, words in lines]
        self._frames = [frame for frame in frames if frame is not None]
        self.without_truth = len(frames) - len(self._frames)
        expect_files(len(self._frames), "frames with truth", source)
        self.names = tuple(frame.name for frame in self._frames)

    def _read(self, index: int) -> DepthSample:
        frame = self._frames[index]
        truth = next((path for path in frame.truths if path.is_file()), None)
        if truth is None:
            raise InputError(
                f"{frame.truths[0]} does not exist, nor does it under val/, but {frame.line} names it as truth; "
                "unpack KITTI's annotated depth there, or write None in the list."
            )
        image = read_image(expect_file(frame.image, f"the image that {frame.line} names", self.root))
        depth = read_kitti_depth(truth)
        height, width = image.shape[:2]
        camera = pinhole(frame.focal, frame.focal, (width - 1) / 2, (height - 1) / 2)
        return depth_record(frame.name, image, depth.values, camera)

    def _parse_line(self, words: list[str], where: str, truths: Path) -> _EigenFrame | None:
        """Parse one line of the list; return None if the frame has no ground truth."""
        focal = _parse_positive(words[2]) if len(words) == 3 else None
        path = PurePosixPath(words[0].lstrip("/"))
        if focal is None or len(path.parts) < 4 or path.parts[-2] != "data":
            raise InputError(
                f"{where} is not `<date>/<drive>/image_02/data/<frame>.png truth focal` but {' '.join(words)[:120]!r}; "
                "give an Eigen list."
            )
        if words[1] == "None":
            return None
        drive, camera = path.parts[-4], path.parts[-3]
        if PurePosixPath(words[1]).stem != path.stem:
            raise InputError(f"{where} joins frame {path.stem} with the truth {words[1]}; give each frame its own.")
        below = Path(drive) / "proj_depth" / "groundtruth" / camera / f"{path.stem}.png"
        candidates = (truths / "train" / below, truths / "val" / below)
        return _EigenFrame(f"{drive}/{camera}/{path.stem}", where, self.root / path, candidates, focal)


class SintelDepth(Dataset[DepthSample]):
    """MPI Sintel depth, 436x1024.

    Files: `training/clean|final/<scene>/frame_0001.png`, `training/depth/<scene>/frame_0001.dpt` and
    `training/camdata_left/<scene>/frame_0001.cam`. Intrinsics are None if there is no folder `camdata_left`. Scenes
    without a depth folder are skipped.

    Args:
        root: Folder of the dataset.
        split: "train".
        render_pass: "clean", "final" or "both".
    """

    name = "sintel-depth"
    splits = ("train",)

    def __init__(self, root: PathLike, split: str = "train", *, render_pass: str = "final") -> None:
        super().__init__(root, split)
        choose("render_pass", render_pass, ("clean", "final", "both"))
        self._training = expect_folder(self.root / "training", "the training part of Sintel", self.root)
        self._cameras = (self._training / "camdata_left").is_dir()
        depths = expect_folder(self._training / "depth", "the folder of depths", self.root)
        names = []
        for pass_name in ("clean", "final") if render_pass == "both" else (render_pass,):
            images = expect_folder(self._training / pass_name, f"the folder of {pass_name} frames", self.root)
            for scene in folders_in(depths):
                files = files_in(scene, "*.dpt") + files_in(images / scene.name, "*.png")
                frames = sorted({path.stem for path in files}, key=natural_key)
                names += [f"{pass_name}/{scene.name}/{frame}" for frame in frames]
        expect_files(len(names), "files <scene>/*.dpt", depths)
        self.names = tuple(names)

    def _read(self, index: int) -> DepthSample:
        name = self.names[index]
        _, scene, frame = name.split("/")
        intrinsics = None
        if self._cameras:
            camera = self._training / "camdata_left" / scene / f"{frame}.cam"
            expect_file(camera, f"the camera of {name}", self.root)
            intrinsics = torch.from_numpy(read_cam(camera).intrinsics)
        image = expect_file(self._training / f"{name}.png", f"the image of {name}", self.root)
        depth = expect_file(self._training / "depth" / scene / f"{frame}.dpt", f"the depth of {name}", self.root)
        return depth_record(name, read_image(image), read_dpt(depth), intrinsics)


class Vkitti2Depth(Dataset[DepthSample]):
    """Virtual KITTI 2 depth, 375x1242.

    Files: `Scene01/<variant>/frames/rgb|depth/Camera_0/rgb_00000.jpg|depth_00000.png`. The depth of the sky, stored as
    the maximum, 655.35 m, is invalid.

    Args:
        root: Folder of the dataset.
        split: "all".
        scenes: Names, or one comma-separated string; None selects all scenes.
        variants: Names, or one comma-separated string; None selects all variants.
        camera: 0 or 1.
    """

    name = "vkitti2-depth"
    splits = ("all",)

    _INTRINSICS = (725.0087, 725.0087, 620.5, 187.0)
    # Half a step of 1 cm under the largest value that a 16-bit png of centimeters holds.
    _SKY = 655.345

    def __init__(
        self,
        root: PathLike,
        split: str = "all",
        *,
        scenes: Names = None,
        variants: Names = None,
        camera: int = 0,
    ) -> None:
        super().__init__(root, split)
        choose("camera", str(camera), ("0", "1"))
        self._files: list[tuple[Path, Path]] = []
        names = []
        for variant in variant_folders(self.root, scenes, variants):
            for number, image, depth in self._frames(variant / "frames", f"Camera_{camera}"):
                names.append(f"{variant.parent.name}/{variant.name}/Camera_{camera}/{number:05d}")
                self._files.append((image, depth))
        expect_files(len(names), "images with depth", self.root)
        self.names = tuple(names)

    def _read(self, index: int) -> DepthSample:
        image, depth = self._files[index]
        expect_file(image, f"the image of {self.names[index]}", self.root)
        expect_file(depth, f"the depth of {self.names[index]}", self.root)
        camera = pinhole(*self._INTRINSICS)
        return depth_record(self.names[index], read_image(image), read_vkitti2_depth(depth), camera, self._SKY)

    def _frames(self, folder: Path, camera: str) -> Iterator[tuple[int, Path, Path]]:
        """Yield the number, image and depth of each frame of which at least one file exists."""
        image_folder = expect_folder(folder / "rgb" / camera, "the folder of images", self.root)
        depth_folder = expect_folder(folder / "depth" / camera, "the folder of depths", self.root)
        images, depths = numbered_files(image_folder), numbered_files(depth_folder)
        for number in sorted(images.keys() | depths.keys()):
            image = images.get(number, image_folder / f"rgb_{number:05d}.jpg")
            yield number, image, depths.get(number, depth_folder / f"depth_{number:05d}.png")


def _parse_positive(word: str) -> float | None:
    """Parse a finite positive number; return None if the word is not one."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


OFFICIAL_FILE = "nyu_depth_v2_labeled.mat"

# Width, height, then the color camera's fx, fy, cx, cy as the dataset's toolbox gives them.
_KINECT_CAMERA = (640, 480, 518.8579, 519.4696, 325.5824, 253.7362)
_STEPS_PER_METER = 25.5

# A bit per image of the official 1,449, the first image first: 1 where the official split trains on it (795 images).
_OFFICIAL_COUNT = 1449
_OFFICIAL_TRAINING = (
    "07ef06fc00033fc83ffc3c03fffffe3e086fffe3ff881c00000781fc7ffffff7ffdf8f80ffc07f18fe003fff98"
    "01ffffc078fff87fff03e01fff0600fffffffc080078e3fe380003f83f87f83ce0ffe07cf3c79c0c0f0663f00e"
    "7c187f9fff80000003ffc1f07e3fe00071e07e3ffffffff1fe3f1c3fe3ff86300fff83e1f1fe3fc73fcce7fff8"
    "01c01010fe38039fc0007033181fc1e001c1f063ff87000ff81e002301f3ffe181f8e1fccfffc0300f807e1f0fe00"
)


class NyuV2(Dataset[DepthSample]):
    """NYU Depth V2, indoor rooms at 480x640, in one of two layouts.

    Folders: `<split>/rgb/0002.jpg` and `<split>/depth/0002.png`, with splits "train" and "val" (or "test" if there is
    such a folder). Depth is an 8-bit gray png, meters = value / 25.5, 0 = invalid: 10 m in steps of 4 cm.

    Official file: `nyu_depth_v2_labeled.mat` in the root, or the root itself, with splits "train" (795 images) and
    "test" (654). Reading it requires h5py. The 1-based image numbers of a split are taken from the first of these that
    exists next to that file: `train.txt` or `test.txt` with one number per line; `splits.mat` with `trainNdxs` and
    `testNdxs` in MATLAB 7.3 format (the published file is older and is ignored). Otherwise the built-in official split
    is used.

    If both layouts exist, the `<split>` folder is used. Intrinsics are those of the color camera of the Kinect, scaled
    to the size of the image.
    """

    name = "nyuv2"
    splits = ("train", "val", "test")

    def __init__(self, root: PathLike, split: str = "test") -> None:
        super().__init__(root, split)
        official = self.root if self.root.is_file() else self.root / OFFICIAL_FILE
        self._official: Path | None = None
        self._indices: list[int] = []
        self._folder = self.root / split
        if self._folder.is_dir():
            self.names = tuple(pair_names(self._folder, self.root))
        elif official.is_file():
            self._official = official
            self._indices = _split_indices(official, split)
            self.names = tuple(f"{index + 1:04d}" for index in self._indices)
        else:
            raise InputError(self._missing_message())

    def _missing_message(self) -> str:
        """Return the error message for a split without files."""
        others = [split for split in self.splits if (self.root / split).is_dir()]
        if others:
            choices = " or ".join(f"--split {split}" for split in others)
            return f"{self.root} has no split {self.split!r}, but {' and '.join(others)}; choose {choices}."
        return (
            f"{self.root} holds neither {OFFICIAL_FILE} nor {self.split}/rgb and {self.split}/depth; "
            "point --root at the folder that holds one of them."
        )

    def _read(self, index: int) -> DepthSample:
        name = self.names[index]
        if self._official is not None:
            image, depth = _read_official(self._official, self._indices[index])
        else:
            image_path, depth_path = self._folder / "rgb" / f"{name}.jpg", self._folder / "depth" / f"{name}.png"
            image = read_image(expect_file(image_path, f"the image of {name}", self.root))
            depth = _read_meters(expect_file(depth_path, f"the depth of {name}", self.root))
        height, width = image.shape[:2]
        return depth_record(name, image, depth, kinect(width, height))


def kinect(width: int, height: int) -> Tensor:
    """Return the intrinsics, 3 x 3 in pixels, of the 640x480 Kinect camera scaled to another image size."""
    full_width, full_height, fx, fy, cx, cy = _KINECT_CAMERA
    scale_x, scale_y = width / full_width, height / full_height
    # Scaling aligns the edges of the image, which lie half a pixel outside the centers of its outer pixels.
    return pinhole(fx * scale_x, fy * scale_y, (cx + 0.5) * scale_x - 0.5, (cy + 0.5) * scale_y - 0.5)


def _read_meters(path: Path) -> FloatArray:
    """Read an 8-bit gray png, H x W, as meters."""
    header = check_png(read_image_bytes(path), path)
    if (header.bit_depth, header.color_type) != (8, GRAY):
        raise InputError(f"{path} is not an 8-bit gray png, as the depths of NYUv2 are here; convert or replace it.")
    steps = np.rint(read_image(path)[..., 0] * 255)
    return (steps / _STEPS_PER_METER).astype(np.float32)


def _read_official(path: Path, index: int) -> tuple[FloatArray, FloatArray]:
    """Read an image, H x W x 3 in [0, 1], and its depth, H x W in meters.

    MATLAB stores columns first, so that the file reads as images x 3 x width x height.
    """
    with _open_mat(path) as file:
        image, depth = file["images"][index], file["depths"][index]
    pixels = np.ascontiguousarray(image.transpose(2, 1, 0), dtype=np.float32) / np.float32(255)
    return pixels, depth.T.astype(np.float32)


def _split_indices(official: Path, split: str) -> list[int]:
    """Return the 0-based indices of the images of a split in the official file."""
    if split == "val":
        raise InputError(f"{official} has no split 'val'; choose train or test.")
    count = _count_images(official)
    listed = _read_split_list(official.parent, split)
    if listed is None and count == _OFFICIAL_COUNT:
        bits = f"{int(_OFFICIAL_TRAINING, 16):0{count}b}"
        return [index for index, bit in enumerate(bits) if (bit == "1") == (split == "train")]
    if listed is None:
        raise InputError(
            f"{official} has {count} images instead of {_OFFICIAL_COUNT}, so its {split} split is not known; "
            f"put the numbers of its images, from 1 and one a line, into {official.parent / f'{split}.txt'}."
        )
    source, numbers = listed
    expect_files(len(numbers), "numbers of images", source)
    for number in numbers:
        if not 1 <= number <= count:
            raise InputError(f"{source} names image {number}, but {official} has 1 to {count}; correct the list.")
    return [number - 1 for number in numbers]


def _count_images(official: Path) -> int:
    """Return the number of images, after checking that this is the official file."""
    with _open_mat(official) as file:
        for key, dimensions in (("images", 4), ("depths", 3)):
            if key not in file or file[key].ndim != dimensions:
                raise InputError(f"{official} has no {key} of {dimensions} dimensions; give NYUv2's {OFFICIAL_FILE}.")
        return min(len(file["images"]), len(file["depths"]))


def _read_split_list(folder: Path, split: str) -> tuple[Path, list[int]] | None:
    """Return the split file in a folder and its 1-based image numbers, or None if there is no such file."""
    text = folder / f"{split}.txt"
    if text.is_file():
        words = read_text(text).split()
        for word in words:
            if not re.fullmatch("[0-9]{1,9}", word):
                raise InputError(f"{text} holds {word[:40]!r}, which is not an image number; correct the list.")
        return text, [int(word) for word in words]
    matrix = folder / "splits.mat"
    if not matrix.is_file() or not _import_h5py().is_hdf5(matrix):
        return None
    with _open_mat(matrix) as file:
        key = f"{split}Ndxs"
        if key not in file:
            raise InputError(f"{matrix} has no {key}; give NYUv2's splits.mat, or a {split}.txt beside it.")
        return matrix, [int(number) for number in np.asarray(file[key]).ravel()]


@contextmanager
def _open_mat(path: Path) -> Iterator[Any]:
    """Open a .mat file of version 7.3, which is HDF5."""
    try:
        with _import_h5py().File(path, "r") as file:
            yield file
    except OSError as error:
        raise InputError(
            f"{path} cannot be read as a MATLAB 7.3 file ({str(error)[:80]}); download it again."
        ) from None


def _import_h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError:
        raise InputError(
            f"reading NYUv2's {OFFICIAL_FILE} requires h5py, which is not installed: {install_command('mat')}."
        ) from None


_NUMBER = r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?"


class Rgbd(Dataset[DepthSample]):
    """RGB-D scenes: `<scene>/rgb/0000.jpg`, `<scene>/depth/0000.png`, `<scene>/intrinsics.txt`.

    Depth is a 16-bit gray png of the size of the image, in millimeters; 0 and 65535 are invalid. The intrinsics are
    four numbers, fx fy cx cy, in pixels, with the center of the first pixel at (0, 0); text that ends with a colon may
    precede them.

    Args:
        root: Folder of the dataset.
        split: "all".
        scenes: Names, or one comma-separated string; None selects all scenes.
    """

    name = "rgbd"
    splits = ("all",)

    def __init__(self, root: PathLike, split: str = "all", *, scenes: Names = None) -> None:
        super().__init__(root, split)
        folders = folders_in(expect_folder(self.root, "the folder of scenes"))
        scene_folders = [folder for folder in folders if (folder / "rgb").is_dir() or (folder / "depth").is_dir()]
        expect_files(len(scene_folders), "folders <scene>/rgb and <scene>/depth", self.root)
        self._cameras: dict[str, Tensor] = {}
        names = []
        for scene in select_folders(scene_folders, scenes, self.root):
            self._cameras[scene.name] = read_intrinsics(scene / "intrinsics.txt", self.root)
            names += [f"{scene.name}/{frame}" for frame in pair_names(scene, self.root)]
        self.names = tuple(names)

    def _read(self, index: int) -> DepthSample:
        name = self.names[index]
        scene, frame = name.split("/")
        image_path, depth_path = (self.root / scene / kind for kind in (f"rgb/{frame}.jpg", f"depth/{frame}.png"))
        image = read_image(expect_file(image_path, f"the image of {name}", self.root))
        depth = read_mm_depth(expect_file(depth_path, f"the depth of {name}", self.root))
        # Some cameras store the maximum value for pixels without a measurement.
        return depth_record(name, image, depth.values, self._cameras[scene], farthest=MAX_MM_DEPTH)


def read_intrinsics(path: Path, root: Path) -> Tensor:
    """Read the intrinsics, 3 x 3 in pixels, from a text file with fx fy cx cy."""
    text = read_text(expect_file(path, "the intrinsics fx fy cx cy", root))
    numbers = text.rpartition(":")[2].split()
    is_valid = len(numbers) == 4 and all(re.fullmatch(_NUMBER, number) for number in numbers)
    if not is_valid or min(float(number) for number in numbers[:2]) <= 0:
        raise InputError(f"{path} does not hold fx fy cx cy, four numbers in pixels; write them on one line.")
    return pinhole(*(float(number) for number in numbers))
