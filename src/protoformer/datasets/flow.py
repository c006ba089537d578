"""Optical flow datasets: FlyingChairs, FlyingThings3D, Sintel, Middlebury, KITTI, HD1K and Virtual KITTI 2."""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from protoformer.datasets.base import (
    FlowDataset,
    Names,
    PairFiles,
    choose,
    expect_files,
    expect_folder,
    expect_matching_files,
    files_in,
    folders_in,
    numbered_files,
    read_dense_flo,
    read_dense_pfm,
    read_text,
    variant_folders,
)
from protoformer.errors import InputError
from protoformer.io.files import PathLike, natural_key
from protoformer.io.formats import read_kitti_flow, read_vkitti2_flow

_PASSES = ("clean", "final", "both")


class FlyingChairs(FlowDataset):
    """FlyingChairs: `data/00001_img1.ppm`, `00001_img2.ppm`, `00001_flow.flo`; 384x512.

    Splits "train" and "val" need FlyingChairs_train_val.txt or chairs_split.txt in the root or its parent: line n is 1
    if pair n belongs to the training split and 2 if it belongs to the validation split. "all" needs no such file.
    """

    name = "flyingchairs"
    splits = ("train", "val", "all")
    read_flow = staticmethod(read_dense_flo)

    split_files: ClassVar[tuple[str, ...]] = ("FlyingChairs_train_val.txt", "chairs_split.txt")
    _suffixes: ClassVar[tuple[str, ...]] = ("img1.ppm", "img2.ppm", "flow.flo")

    def __init__(self, root: PathLike, split: str = "all") -> None:
        super().__init__(root, split)
        data = expect_folder(self.root / "data", "the folder of images and flows", self.root)
        stems_by_suffix = {
            suffix: [path.name.removesuffix(f"_{suffix}") for path in files_in(data, f"*_{suffix}")]
            for suffix in self._suffixes
        }
        expect_matching_files(stems_by_suffix, data)
        stems = stems_by_suffix["flow.flo"]
        expect_files(len(stems), "files *_flow.flo", data)
        if split != "all":
            stems = self._filter_split(stems, self.root, "1" if split == "train" else "2")
        self._set_pairs(self._pair(data, stem) for stem in stems)

    @classmethod
    def _pair(cls, data: Path, stem: str) -> PairFiles:
        first, second, flow = (data / f"{stem}_{suffix}" for suffix in cls._suffixes)
        return PairFiles(name=stem, first=first, second=second, flow=flow)

    @classmethod
    def _filter_split(cls, stems: list[str], base: Path, label_wanted: str) -> list[str]:
        """Select the pairs whose line in the split file equals `label_wanted`."""
        candidates = [folder / name for folder in (base, base.absolute().parent) for name in cls.split_files]
        file = next((path for path in candidates if path.is_file()), candidates[0])
        if not file.is_file():
            raise InputError(
                f"{file} does not exist, nor does {cls.split_files[1]}: the splits train and val need the file that "
                "says 1 (train) or 2 (val) a line; put it there, or read the split all."
            )
        labels = read_text(file).split()
        for path, label in enumerate(labels):
            if label not in ("1", "2"):
                raise InputError(f"line {path + 1} of {file} is not 1 (train) or 2 (val); download it again.")
        return [stem for stem in stems if cls._split_label(stem, labels, file) == label_wanted]

    @staticmethod
    def _split_label(stem: str, labels: list[str], file: Path) -> str:
        if not (stem.isdecimal() and 1 <= int(stem) <= len(labels)):
            raise InputError(f"{file} has {len(labels)} lines and so none for pair {stem}; read the split all.")
        return labels[int(stem) - 1]


class FlyingThings3D(FlowDataset):
    """FlyingThings3D, 540x960.

    Files: `frames_cleanpass/TRAIN/A/0000/left/0006.png`, `optical_flow/TRAIN/A/0000/into_future/left/*.pfm`.

    Args:
        root: Folder of the dataset.
        split: "train" or "test".
        render_pass: "clean", "final" or "both".
        camera: "left" or "right".
        direction: "future" yields (i, i + 1) with the flow of frame i, "past" yields (i + 1, i) with the flow of frame
            i + 1, "both" yields both.
    """

    name = "flyingthings3d"
    splits = ("train", "test")
    read_flow = staticmethod(read_dense_pfm)

    def __init__(
        self,
        root: PathLike,
        split: str = "train",
        *,
        render_pass: str = "clean",
        camera: str = "left",
        direction: str = "both",
    ) -> None:
        super().__init__(root, split)
        folder = split.upper()
        choose("camera", camera, ("left", "right"))
        choose("direction", direction, ("future", "past", "both"))
        flows = expect_folder(self.root / "optical_flow" / folder, "the folder of flows", self.root)
        pairs: list[PairFiles] = []
        for pass_name in _passes(render_pass):
            frames = expect_folder(
                self.root / f"frames_{pass_name}pass" / folder, f"the folder of {pass_name} frames", self.root
            )
            for letter in folders_in(frames):
                for sequence in folders_in(letter):
                    expect_folder(sequence / camera, f"the folder of {camera} frames", self.root)
                    flow_folder = flows / letter.name / sequence.name
                    for flow_direction in ("future", "past") if direction == "both" else (direction,):
                        pairs += _things_pairs(sequence / camera, flow_folder, pass_name, flow_direction)
        expect_files(len(pairs), f"pairs of {camera} frames", self.root)
        self._set_pairs(pairs)


def _things_pairs(folder: Path, flow_folder: Path, render_pass: str, direction: str) -> Iterator[PairFiles]:
    """List the pairs of one sequence, including those of which an image or the flow is missing.

    `flow_folder` holds into_future and into_past; the flow that points out of the sequence has no pair.
    """
    camera, sequence, letter = folder.name, folder.parent.name, folder.parent.parent.name
    frames = numbered_files(folder)
    flows = numbered_files(flow_folder / f"into_{direction}" / camera, (".pfm",))
    numbers = frames.keys() | flows.keys()
    for number in sorted(number for number in numbers if number + 1 in numbers):
        start, end = (number, number + 1) if direction == "future" else (number + 1, number)
        default_name = f"OpticalFlowInto{direction.capitalize()}_{start:04d}_{camera[0].upper()}.pfm"
        yield PairFiles(
            name=f"{render_pass}/{letter}/{sequence}/{camera}/{start:04d}-{end:04d}",
            first=frames.get(start, folder / f"{start:04d}.png"),
            second=frames.get(end, folder / f"{end:04d}.png"),
            flow=flows.get(start, flow_folder / f"into_{direction}" / camera / default_name),
        )


class Sintel(FlowDataset):
    """MPI Sintel, 436x1024.

    Files: `training/clean|final|flow|occlusions|invalid/<scene>/frame_0001.*`, `test/clean|final/<scene>`. Masks are
    read if their folders exist.

    Args:
        root: Folder of the dataset.
        split: "train", or "test", which has no ground truth.
        render_pass: "clean", "final" or "both".
    """

    name = "sintel"
    splits = ("train", "test")
    read_flow = staticmethod(read_dense_flo)

    def __init__(self, root: PathLike, split: str = "train", *, render_pass: str = "both") -> None:
        super().__init__(root, split)
        folder = self.root / ("training" if split == "train" else "test")
        pairs: list[PairFiles] = []
        for pass_name in _passes(render_pass):
            frames = expect_folder(folder / pass_name, f"the folder of {pass_name} frames", self.root)
            for scene in folders_in(frames):
                pairs += _sintel_pairs(scene, folder, split == "train")
        if split == "train":
            expect_folder(folder / "flow", "the folder of flows", self.root)
        expect_files(len(pairs), "two frames that follow one another", folder)
        self._set_pairs(pairs)


def _sintel_pairs(scene: Path, folder: Path, has_flow: bool) -> Iterator[PairFiles]:
    """List the pairs of one scene in one pass: one per flow, and one per two consecutive frames."""
    frames = numbered_files(scene, (".png",))
    flows = numbered_files(folder / "flow" / scene.name, (".flo",)) if has_flow else {}
    masks = {
        kind: folder / kind / scene.name for kind in ("occlusions", "invalid") if has_flow and (folder / kind).is_dir()
    }
    for number in sorted(flows.keys() | {number for number in frames if number + 1 in frames}):
        first, second = (frames.get(index, scene / f"frame_{index:04d}.png") for index in (number, number + 1))
        yield PairFiles(
            name=f"{scene.parent.name}/{scene.name}/{first.stem}",
            first=first,
            second=second,
            flow=folder / "flow" / scene.name / f"{first.stem}.flo" if has_flow else None,
            occlusion=masks["occlusions"] / first.name if "occlusions" in masks else None,
            invalid=masks["invalid"] / first.name if "invalid" in masks else None,
        )


class Middlebury(FlowDataset):
    """Middlebury: `other-data/<scene>/frame10.png`, `frame11.png`, `other-gt-flow/<scene>/flow10.flo`; sizes vary.

    Scenes without public ground truth are skipped; values over 1e9 are invalid.
    """

    name = "middlebury"
    splits = ("all",)
    read_flow = staticmethod(read_dense_flo)

    def __init__(self, root: PathLike, split: str = "all") -> None:
        super().__init__(root, split)
        images = expect_folder(self.root / "other-data", "the folder of images", self.root)
        truth = expect_folder(self.root / "other-gt-flow", "the folder of flows", self.root)
        scenes = folders_in(truth)
        expect_files(len(scenes), "folders of scenes", truth)
        pairs = [
            PairFiles(
                name=scene.name,
                first=images / scene.name / "frame10.png",
                second=images / scene.name / "frame11.png",
                flow=scene / "flow10.flo",
            )
            for scene in scenes
        ]
        self._set_pairs(pairs)


def _passes(render_pass: str) -> tuple[str, ...]:
    choose("render_pass", render_pass, _PASSES)
    return ("clean", "final") if render_pass == "both" else (render_pass,)


_KITTI_SUFFIXES = ("10.png", "11.png")


class KittiFlow(FlowDataset):
    """Base class of KITTI 2012 and 2015.

    Files: `training|testing/<images>/000000_10.png`, `000000_11.png`, `training/flow_occ|flow_noc/000000_10.png`.

    Args:
        root: Folder of the dataset.
        split: "train", or "test", which has no ground truth.
        truth: "occ" for all pixels, "noc" for non-occluded pixels; pairs without that ground truth are skipped.
        images: Folder of the images; None uses the first of `image_folders` that holds the pair.
    """

    splits = ("train", "test")
    read_flow = staticmethod(read_kitti_flow)
    image_folders: ClassVar[tuple[str, ...]]

    def __init__(self, root: PathLike, split: str = "train", *, truth: str = "occ", images: str | None = None) -> None:
        super().__init__(root, split)
        choose("truth", truth, ("occ", "noc"))
        if images is not None:
            choose("images", images, self.image_folders)
        folder = expect_folder(
            self.root / ("training" if split == "train" else "testing"), f"the split {split}", self.root
        )
        names = self.image_folders if images is None else (images,)
        folders = [folder / name for name in names if (folder / name).is_dir()]
        if not folders:
            expect_folder(folder / names[0], "the folder of images", self.root)
        if split == "train":
            flows = expect_folder(folder / f"flow_{truth}", "the folder of flows", self.root)
            flow_files = files_in(flows, "*_10.png")
            expect_files(len(flow_files), "flows *_10.png", flows)
            pairs = [_kitti_pair(folders, flow.name, flow) for flow in flow_files]
        else:
            pairs = [_kitti_pair(folders, name, None) for name in _kitti_test_names(folders)]
        self._set_pairs(pairs)


def _kitti_test_names(folders: Sequence[Path]) -> list[str]:
    """List the names of the first images of the test split, and check that each has a second image."""
    first_images = files_in(folders[0], "*_10.png")
    expect_files(len(first_images), "images *_10.png", folders[0])
    stems_by_suffix = {
        suffix: [path.name.removesuffix(f"_{suffix}") for path in files_in(folders[0], f"*_{suffix}")]
        for suffix in _KITTI_SUFFIXES
    }
    expect_matching_files(stems_by_suffix, folders[0])
    return [path.name for path in first_images]


def _kitti_pair(folders: Sequence[Path], name: str, flow: Path | None) -> PairFiles:
    """Return the files of a pair, with images from the first folder that holds its first image."""
    folder = next((folder for folder in folders if (folder / name).is_file()), folders[0])
    stem = name.removesuffix("_10.png")
    return PairFiles(name=stem, first=folder / name, second=folder / f"{stem}_11.png", flow=flow)


class Kitti2012(KittiFlow):
    """KITTI 2012: images in `colored_0` or `image_0`, about 375x1242; see `KittiFlow` for the layout and options."""

    name = "kitti-2012"
    image_folders = ("colored_0", "image_0")


class Kitti2015(KittiFlow):
    """KITTI 2015: images in `image_2`, about 375x1242; see `KittiFlow` for the layout and options."""

    name = "kitti-2015"
    image_folders = ("image_2",)


class Hd1k(FlowDataset):
    """HD1K: `hd1k_input/image_2/000000_0010.png`, `hd1k_flow_gt/flow_occ/000000_0010.png`; 1080x2560.

    The first six digits are the sequence; a pair is two consecutive frames of a sequence, so the flow of its last frame
    has no pair. The split "test" is `hd1k_challenge/image_2`, without ground truth.
    """

    name = "hd1k"
    splits = ("train", "test")
    read_flow = staticmethod(read_kitti_flow)

    def __init__(self, root: PathLike, split: str = "train") -> None:
        super().__init__(root, split)
        top = "hd1k_input" if split == "train" else "hd1k_challenge"
        images = expect_folder(self.root / top / "image_2", "the folder of images", self.root)
        flows = None
        if split == "train":
            flows = expect_folder(self.root / "hd1k_flow_gt" / "flow_occ", "the folder of flows", self.root)
        folders = [images] if flows is None else [images, flows]
        pairs = [
            PairFiles(
                name=first.removesuffix(".png"),
                first=images / first,
                second=images / second,
                flow=None if flows is None else flows / first,
            )
            for sequence in _group_by_sequence(folders)
            for first, second in itertools.pairwise(sequence)
        ]
        expect_files(len(pairs), "pairs of images that follow one another", images)
        self._set_pairs(pairs)


def _group_by_sequence(folders: Sequence[Path]) -> list[list[str]]:
    """List the file names 000000_0010.png in any of the folders, grouped by sequence and sorted."""
    names = {path.name for folder in folders for path in files_in(folder, "*.png")}
    frames = sorted((name for name in names if re.fullmatch(r"[0-9]{6}_[0-9]+\.png", name)), key=natural_key)
    return [list(group) for _, group in itertools.groupby(frames, key=lambda name: name[:6])]


class Vkitti2(FlowDataset):
    """Virtual KITTI 2, 375x1242.

    Files below `Scene01/<variant>/frames`: `rgb/Camera_0/rgb_00000.jpg`, `forwardFlow/Camera_0/flow_00000.png` and
    `backwardFlow/Camera_0/backwardFlow_00001.png` (or `flow_00001.png`).

    Args:
        root: Folder of the dataset.
        split: "all".
        scenes: Names, or one comma-separated string; None selects all scenes.
        variants: Names, or one comma-separated string; None selects all variants.
        camera: 0 or 1.
        direction: "forward" yields (i, i + 1) with forward flow i, "backward" yields (i, i - 1) with backward flow i,
            "both" yields both.
    """

    name = "vkitti2"
    splits = ("all",)
    read_flow = staticmethod(read_vkitti2_flow)

    def __init__(
        self,
        root: PathLike,
        split: str = "all",
        *,
        scenes: Names = None,
        variants: Names = None,
        camera: int = 0,
        direction: str = "forward",
    ) -> None:
        super().__init__(root, split)
        choose("camera", str(camera), ("0", "1"))
        choose("direction", direction, ("forward", "backward", "both"))
        pairs: list[PairFiles] = []
        for variant in variant_folders(root, scenes, variants):
            for flow_direction in ("forward", "backward") if direction == "both" else (direction,):
                pairs += _vkitti2_pairs(variant, f"Camera_{camera}", flow_direction, self.root)
        expect_files(len(pairs), "pairs of images with flow", self.root)
        self._set_pairs(pairs)


def _vkitti2_pairs(variant: Path, camera: str, direction: str, base: Path) -> Iterator[PairFiles]:
    """List the pairs of one variant of a scene: one per flow, and one per two consecutive images."""
    images = expect_folder(variant / "frames" / "rgb" / camera, "the folder of images", base)
    folder = expect_folder(variant / "frames" / f"{direction}Flow" / camera, f"the folder of {direction} flow", base)
    frames, flows = numbered_files(images), numbered_files(folder, (".png",))
    step, prefix = (1, "flow") if direction == "forward" else (-1, "backwardFlow")
    for number in sorted(flows.keys() | {number for number in frames if number + step in frames}):
        if number + step < 0:
            continue
        first, second = (frames.get(index, images / f"rgb_{index:05d}.jpg") for index in (number, number + step))
        yield PairFiles(
            name=f"{variant.parent.name}/{variant.name}/{camera}/{direction}/{number:05d}",
            first=first,
            second=second,
            flow=flows.get(number, folder / f"{prefix}_{number:05d}.png"),
        )
