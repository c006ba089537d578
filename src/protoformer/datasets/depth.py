"""Depth datasets: KITTI (Eigen split), Sintel and Virtual KITTI 2; re-exports NYUv2 and RGB-D folders."""

import math
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
from protoformer.io.files import PathLike, natural_key
from protoformer.io.float_formats import read_cam, read_dpt
from protoformer.io.image import read_image
from protoformer.io.kitti import read_kitti_depth, read_vkitti2_depth
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
