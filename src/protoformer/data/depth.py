"""Datasets of depth: NYUv2, KITTI by the Eigen lists, Sintel and Virtual KITTI 2."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from protoformer.data.depth_nyu import NyuV2
from protoformer.data.depth_record import depth_record, pinhole
from protoformer.data.flow_pairs import choose, numbered
from protoformer.data.tree import Dataset, expect_file, expect_folder, expect_some, files_in, folders_in
from protoformer.errors import InputError
from protoformer.files import checked_input, read_cam, read_dpt, read_image, read_kitti_depth, read_vkitti2_depth
from protoformer.world.sample import DepthSample

__all__ = ["KittiEigen", "NyuV2", "SintelDepth", "Vkitti2Depth"]


@dataclass(frozen=True)
class _EigenFrame:
    """One line of an Eigen list, found on disk; focal length in pixels."""

    name: str
    image: Path
    depth: Path
    focal: float


class KittiEigen(Dataset[DepthSample]):
    """KITTI by an Eigen list, about 375x1242: sparse depth from laser.

    The list is `eigen_<split>_files_with_gt.txt` in the root, or `list_file`, with `rgb truth focal` a line:
    `2011_09_26/2011_09_26_drive_0002_sync/image_02/data/0000000069.png`, anything that ends in the name of the same
    frame or `None`, and pixels. Images lie in the root; the truth of a frame is
    `train|val/<drive>/proj_depth/groundtruth/image_02/<frame>.png` in `truth_root` (left out: the root), by the name of
    the frame and never by its place in a list. Frames whose truth is `None` are left out and counted in
    `without_truth`. Intrinsics have the focal length of the list, and the middle of the image as their centre.
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
        text = checked_input(source).read_text(encoding="utf-8", errors="replace")
        lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        truths = self.root if truth_root is None else Path(truth_root)
        found = [self._frame(words, f"line {number} of {source}", truths) for number, words in lines]
        self._frames = [frame for frame in found if frame is not None]
        self.without_truth = len(found) - len(self._frames)
        expect_some(len(self._frames), "frames with truth", source)
        self.names = tuple(frame.name for frame in self._frames)

    def _read(self, index: int) -> DepthSample:
        frame = self._frames[index]
        image, depth = read_image(frame.image), read_kitti_depth(frame.depth)
        height, width = image.shape[:2]
        camera = pinhole(frame.focal, frame.focal, (width - 1) / 2, (height - 1) / 2)
        return depth_record(frame.name, image, depth.values, camera)

    def _frame(self, words: list[str], where: str, truths: Path) -> _EigenFrame | None:
        """Find what one line names; None where it says that there is no truth."""
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
        places = [
            truths / part / drive / "proj_depth" / "groundtruth" / camera / f"{path.stem}.png"
            for part in ("train", "val")
        ]
        truth = next((place for place in places if place.is_file()), None)
        if truth is None:
            raise InputError(
                f"{places[0]} does not exist, nor does it under val/, but {where} names it as truth; "
                "unpack KITTI's annotated depth there, or write None in the list."
            )
        image = expect_file(self.root / path, f"the image that {where} names", self.root)
        return _EigenFrame(f"{drive}/{camera}/{path.stem}", image, truth, focal)


class SintelDepth(Dataset[DepthSample]):
    """Sintel: `training/clean|final/<scene>/frame_0001.png`, `training/depth/<scene>/frame_0001.dpt`; 436x1024.

    The only split is "train". render_pass: "clean", "final" or "both". Intrinsics come from
    `training/camdata_left/<scene>/frame_0001.cam`, or are None where there is no folder `camdata_left`. Frames without
    depth are left out.
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
            expect_folder(self._training / each, f"the folder of {each} frames", self.root)
            for depth in (path for scene in folders_in(depths) for path in files_in(scene, "*.dpt")):
                name = f"{each}/{depth.parent.name}/{depth.stem}"
                expect_file(self._training / f"{name}.png", f"the image of {depth}", self.root)
                names.append(name)
        expect_some(len(names), "files <scene>/*.dpt", depths)
        self.names = tuple(names)

    def _read(self, index: int) -> DepthSample:
        name = self.names[index]
        _, scene, frame = name.split("/")
        intrinsics = None
        if self._cameras:
            camera = self._training / "camdata_left" / scene / f"{frame}.cam"
            expect_file(camera, f"the camera of {name}", self.root)
            intrinsics = torch.from_numpy(read_cam(camera).intrinsics)
        depth = read_dpt(self._training / "depth" / scene / f"{frame}.dpt")
        return depth_record(name, read_image(self._training / f"{name}.png"), depth, intrinsics)


class Vkitti2Depth(Dataset[DepthSample]):
    """Virtual KITTI 2: `Scene01/<variant>/frames/rgb|depth/Camera_0/rgb_00000.jpg|depth_00000.png`; 375x1242.

    The only split is "all". scenes and variants: names, also as one string with commas; left out, all that are there.
    camera: 0 or 1. The depth of the sky, stored as the largest value, 655.35 m, is not valid.
    """

    name = "vkitti2-depth"

    _INTRINSICS = (725.0087, 725.0087, 620.5, 187.0)
    # Half a step of 1 cm under the largest value that a 16-bit png of centimetres holds.
    _SKY = 655.345

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "all",
        *,
        scenes: str | Sequence[str] | None = None,
        variants: str | Sequence[str] | None = None,
        camera: int = 0,
    ) -> None:
        super().__init__(root, split)
        choose("the split", split, ("all",))
        choose("camera", str(camera), ("0", "1"))
        base = expect_folder(self.root, "Virtual KITTI 2", self.root)
        found = [folder for folder in folders_in(base) if re.fullmatch(r"Scene[0-9]+", folder.name)]
        expect_some(len(found), "folders Scene01, Scene02 and so on", base)
        self._files: list[tuple[Path, Path]] = []
        names = []
        for scene in _named(found, scenes, base):
            for variant in _named(folders_in(scene), variants, scene):
                for number, image, depth in self._frames(variant / "frames", f"Camera_{camera}"):
                    names.append(f"{scene.name}/{variant.name}/Camera_{camera}/{number:05d}")
                    self._files.append((image, depth))
        expect_some(len(names), "images with depth", base)
        self.names = tuple(names)

    def _read(self, index: int) -> DepthSample:
        image, depth = self._files[index]
        camera = pinhole(*self._INTRINSICS)
        return depth_record(self.names[index], read_image(image), read_vkitti2_depth(depth), camera, self._SKY)

    def _frames(self, folder: Path, camera: str) -> Iterator[tuple[int, Path, Path]]:
        """The number, image and depth of each frame; an image without depth, or the reverse, is an error."""
        images_at = expect_folder(folder / "rgb" / camera, "the folder of images", self.root)
        depths_at = expect_folder(folder / "depth" / camera, "the folder of depths", self.root)
        images, depths = numbered(images_at), numbered(depths_at)
        for number in sorted(images.keys() | depths.keys()):
            if number not in images:
                expect_file(images_at / f"rgb_{number:05d}.jpg", f"the image of {depths[number]}", self.root)
            if number not in depths:
                expect_file(depths_at / f"depth_{number:05d}.png", f"the depth of {images[number]}", self.root)
            yield number, images[number], depths[number]


def _positive(word: str) -> float | None:
    """The finite number over 0 that a word is, or None."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _named(folders: list[Path], names: str | Sequence[str] | None, where: Path) -> list[Path]:
    """The folders of these names, or all."""
    if names is None:
        return folders
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    there = [folder.name for folder in folders]
    for name in wanted:
        if name not in there:
            raise InputError(f"{where} holds no {name}; choose among {', '.join(there)}.")
    return [folder for folder in folders if folder.name in wanted]
