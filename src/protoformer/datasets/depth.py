"""Datasets of depth: NYUv2, depth cameras, KITTI by the Eigen lists, Sintel and Virtual KITTI 2."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from protoformer.datasets.depth_indoor import NyuV2, Rgbd
from protoformer.datasets.pairs import depth_record, pinhole
from protoformer.datasets.tree import (
    Dataset,
    Names,
    choose,
    expect_file,
    expect_files,
    expect_folder,
    files_in,
    folders_in,
    numbered_files,
    read_text,
    variant_folders,
)
from protoformer.errors import InputError
from protoformer.io.files import natural_key
from protoformer.io.float_formats import read_cam, read_dpt
from protoformer.io.image import read_image
from protoformer.io.kitti import read_kitti_depth, read_vkitti2_depth
from protoformer.synthetic.samples import DepthSample

__all__ = ["KittiEigen", "NyuV2", "Rgbd", "SintelDepth", "Vkitti2Depth"]


@dataclass(frozen=True)
class _EigenFrame:
    """One line of an Eigen list: where it stands, its image, the places its truth may lie at, focal in pixels."""

    name: str
    line: str
    image: Path
    truths: tuple[Path, Path]
    focal: float


class KittiEigen(Dataset[DepthSample]):
    """KITTI by an Eigen list, about 375x1242: sparse depth from laser.

    The list is `eigen_<split>_files_with_gt.txt` in the root, or `list_file`, with `rgb truth focal` a line:
    `2011_09_26/2011_09_26_drive_0002_sync/image_02/data/0000000069.png`, anything that ends in the name of the same
    frame or `None`, and pixels. Images lie in the root; the truth of a frame is
    `train|val/<drive>/proj_depth/groundtruth/image_02/<frame>.png` in `truth_root` (left out: the root), by the name of
    the frame and never by its place in a list. Frames whose truth is `None` are left out and counted in
    `without_truth`. Intrinsics have the focal length of the list, and the middle of the image as their center.
    """

    name = "kitti-eigen"
    without_truth: int

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "test",
        *,
        list_file: str | os.PathLike[str] | None = None,
        truth_root: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(root, split)
        choose("the split", split, ("train", "val", "test"))
        expect_folder(self.root, "KITTI", self.root)
        source = self.root / f"eigen_{split}_files_with_gt.txt" if list_file is None else Path(list_file)
        expect_file(source, "the Eigen list of lines `rgb truth focal`", self.root)
        text = read_text(source)
        lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        truths = self.root if truth_root is None else Path(truth_root)
        if not (truths / "val").is_dir():
            expect_folder(truths / "train", "KITTI's annotated depth, there or in val,", truths)
        found = [self._frame(words, f"line {number} of {source}", truths) for number, words in lines]
        self._frames = [frame for frame in found if frame is not None]
        self.without_truth = len(found) - len(self._frames)
        expect_files(len(self._frames), "frames with truth", source)
        self.names = tuple(frame.name for frame in self._frames)

    def _read(self, index: int) -> DepthSample:
        frame = self._frames[index]
        truth = next((place for place in frame.truths if place.is_file()), None)
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

    def _frame(self, words: list[str], where: str, truths: Path) -> _EigenFrame | None:
        """What one line names; None where it says that there is no truth."""
        focal = _positive(words[2]) if len(words) == 3 else None
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
        places = (truths / "train" / below, truths / "val" / below)
        return _EigenFrame(f"{drive}/{camera}/{path.stem}", where, self.root / path, places, focal)


class SintelDepth(Dataset[DepthSample]):
    """Sintel: `training/clean|final/<scene>/frame_0001.png`, `training/depth/<scene>/frame_0001.dpt`; 436x1024.

    The only split is "train". render_pass: "clean", "final" or "both". Intrinsics come from
    `training/camdata_left/<scene>/frame_0001.cam`, or are None where there is no folder `camdata_left`. Scenes without
    a folder of depths are left out.
    """

    name = "sintel-depth"

    def __init__(self, root: str | os.PathLike[str], split: str = "train", *, render_pass: str = "final") -> None:
        super().__init__(root, split)
        choose("the split", split, ("train",))
        choose("render_pass", render_pass, ("clean", "final", "both"))
        self._training = expect_folder(self.root / "training", "the training part of Sintel", self.root)
        self._cameras = (self._training / "camdata_left").is_dir()
        depths = expect_folder(self._training / "depth", "the folder of depths", self.root)
        names = []
        for each in ("clean", "final") if render_pass == "both" else (render_pass,):
            images = expect_folder(self._training / each, f"the folder of {each} frames", self.root)
            for scene in folders_in(depths):
                files = files_in(scene, "*.dpt") + files_in(images / scene.name, "*.png")
                frames = sorted({path.stem for path in files}, key=natural_key)
                names += [f"{each}/{scene.name}/{frame}" for frame in frames]
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
    """Virtual KITTI 2: `Scene01/<variant>/frames/rgb|depth/Camera_0/rgb_00000.jpg|depth_00000.png`; 375x1242.

    The only split is "all". scenes and variants: names, also as one string with commas; left out, all that are there.
    camera: 0 or 1. The depth of the sky, stored as the largest value, 655.35 m, is not valid.
    """

    name = "vkitti2-depth"

    _INTRINSICS = (725.0087, 725.0087, 620.5, 187.0)
    # Half a step of 1 cm under the largest value that a 16-bit png of centimeters holds.
    _SKY = 655.345

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "all",
        *,
        scenes: Names = None,
        variants: Names = None,
        camera: int = 0,
    ) -> None:
        super().__init__(root, split)
        choose("the split", split, ("all",))
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
        """The number, image and depth of each frame that has one of them."""
        images_at = expect_folder(folder / "rgb" / camera, "the folder of images", self.root)
        depths_at = expect_folder(folder / "depth" / camera, "the folder of depths", self.root)
        images, depths = numbered_files(images_at), numbered_files(depths_at)
        for number in sorted(images.keys() | depths.keys()):
            image = images.get(number, images_at / f"rgb_{number:05d}.jpg")
            yield number, image, depths.get(number, depths_at / f"depth_{number:05d}.png")


def _positive(word: str) -> float | None:
    """The finite number over 0 that a word is, or None."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
