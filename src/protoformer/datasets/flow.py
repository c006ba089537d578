"""Datasets of flow made of rendered or indoor scenes: FlyingChairs, FlyingThings3D, Sintel and Middlebury."""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from protoformer.datasets.pairs import FlowDataset, PairFiles, read_dense_flo, read_dense_pfm
from protoformer.datasets.tree import (
    Names,
    choose,
    expect_files,
    expect_folder,
    expect_matching_files,
    files_in,
    folders_in,
    numbered_files,
    read_text,
    variant_folders,
)
from protoformer.errors import InputError
from protoformer.io.files import natural_key
from protoformer.io.kitti import read_kitti_flow, read_vkitti2_flow

_PASSES = ("clean", "final", "both")


class FlyingChairs(FlowDataset):
    """`data/00001_img1.ppm`, `00001_img2.ppm`, `00001_flow.flo`; 384x512.

    Splits "train" and "val" need FlyingChairs_train_val.txt or chairs_split.txt in the root or beside it: line n says
    whether pair n is of the one (1) or the other (2). "all" needs no such file.
    """

    name: ClassVar[str] = "flyingchairs"
    read_flow = staticmethod(read_dense_flo)

    split_files: ClassVar[tuple[str, ...]] = ("FlyingChairs_train_val.txt", "chairs_split.txt")
    _ends: ClassVar[tuple[str, ...]] = ("img1.ppm", "img2.ppm", "flow.flo")

    def __init__(self, root: str | os.PathLike[str], split: str = "all") -> None:
        base = Path(root)
        choose("the split", split, ("train", "val", "all"))
        data = expect_folder(base / "data", "the folder of images and flows", base)
        found = {end: [path.name.removesuffix(f"_{end}") for path in files_in(data, f"*_{end}")] for end in self._ends}
        expect_matching_files(found, data)
        stems = found["flow.flo"]
        expect_files(len(stems), "files *_flow.flo", data)
        if split != "all":
            stems = self._chosen(stems, base, "1" if split == "train" else "2")
        super().__init__(root, split, [self._pair(data, stem) for stem in stems])

    @classmethod
    def _pair(cls, data: Path, stem: str) -> PairFiles:
        first, second, flow = (data / f"{stem}_{end}" for end in cls._ends)
        return PairFiles(name=stem, first=first, second=second, flow=flow)

    @classmethod
    def _chosen(cls, stems: list[str], base: Path, wanted: str) -> list[str]:
        """Keep the pairs whose line in the split file says `wanted`."""
        places = [folder / name for folder in (base, base.absolute().parent) for name in cls.split_files]
        file = next((place for place in places if place.is_file()), places[0])
        if not file.is_file():
            raise InputError(
                f"{file} does not exist, nor does {cls.split_files[1]}: the splits train and val need the file that "
                "says 1 (train) or 2 (val) a line; put it there, or read the split all."
            )
        marks = read_text(file).split()
        for place, mark in enumerate(marks):
            if mark not in ("1", "2"):
                raise InputError(f"line {place + 1} of {file} is not 1 (train) or 2 (val); download it again.")
        return [stem for stem in stems if cls._mark(stem, marks, file) == wanted]

    @staticmethod
    def _mark(stem: str, marks: list[str], file: Path) -> str:
        if not (stem.isdecimal() and 1 <= int(stem) <= len(marks)):
            raise InputError(f"{file} has {len(marks)} lines and so none for pair {stem}; read the split all.")
        return marks[int(stem) - 1]


class FlyingThings3D(FlowDataset):
    """`frames_cleanpass/TRAIN/A/0000/left/0006.png`, `optical_flow/TRAIN/A/0000/into_future/left/*.pfm`; 540x960.

    render_pass: "clean", "final" or "both". camera: "left" or "right". direction: "future" gives (i, i + 1) with the
    flow of frame i, "past" gives (i + 1, i) with the flow of frame i + 1, "both" gives all.
    """

    name: ClassVar[str] = "flyingthings3d"
    read_flow = staticmethod(read_dense_pfm)

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "train",
        *,
        render_pass: str = "clean",
        camera: str = "left",
        direction: str = "both",
    ) -> None:
        base = Path(root)
        folder = choose("the split", split, ("train", "test")).upper()
        choose("camera", camera, ("left", "right"))
        choose("direction", direction, ("future", "past", "both"))
        flows = expect_folder(base / "optical_flow" / folder, "the folder of flows", base)
        pairs: list[PairFiles] = []
        for each in _passes(render_pass):
            frames = expect_folder(base / f"frames_{each}pass" / folder, f"the folder of {each} frames", base)
            for letter in folders_in(frames):
                for sequence in folders_in(letter):
                    expect_folder(sequence / camera, f"the folder of {camera} frames", base)
                    motion = flows / letter.name / sequence.name
                    for way in ("future", "past") if direction == "both" else (direction,):
                        pairs += _things_pairs(sequence / camera, motion, each, way)
        expect_files(len(pairs), f"pairs of {camera} frames", base)
        super().__init__(root, split, pairs)


def _things_pairs(folder: Path, motion: Path, render_pass: str, way: str) -> Iterator[PairFiles]:
    """The pairs of one sequence, whose frames are all that have an image or a flow.

    `motion` holds into_future and into_past; the flow that leads out of the sequence has no pair.
    """
    camera, sequence, letter = folder.name, folder.parent.name, folder.parent.parent.name
    frames = numbered_files(folder)
    flows = numbered_files(motion / f"into_{way}" / camera, (".pfm",))
    known = frames.keys() | flows.keys()
    for earlier in sorted(number for number in known if number + 1 in known):
        start, end = (earlier, earlier + 1) if way == "future" else (earlier + 1, earlier)
        official = f"OpticalFlowInto{way.capitalize()}_{start:04d}_{camera[0].upper()}.pfm"
        yield PairFiles(
            name=f"{render_pass}/{letter}/{sequence}/{camera}/{start:04d}-{end:04d}",
            first=frames.get(start, folder / f"{start:04d}.png"),
            second=frames.get(end, folder / f"{end:04d}.png"),
            flow=flows.get(start, motion / f"into_{way}" / camera / official),
        )


class Sintel(FlowDataset):
    """`training/clean|final|flow|occlusions|invalid/<scene>/frame_0001.*`, `test/clean|final/<scene>`; 436x1024.

    render_pass: "clean", "final" or "both". Masks are read where their folders are there; pixels of the mask `invalid`
    are not valid. The split "test" has no truth.
    """

    name: ClassVar[str] = "sintel"
    read_flow = staticmethod(read_dense_flo)

    def __init__(self, root: str | os.PathLike[str], split: str = "train", *, render_pass: str = "both") -> None:
        base = Path(root)
        folder = base / ("training" if choose("the split", split, ("train", "test")) == "train" else "test")
        pairs: list[PairFiles] = []
        for each in _passes(render_pass):
            frames = expect_folder(folder / each, f"the folder of {each} frames", base)
            for scene in folders_in(frames):
                pairs += _sintel_pairs(scene, folder, split == "train")
        if split == "train":
            expect_folder(folder / "flow", "the folder of flows", base)
        expect_files(len(pairs), "two frames that follow one another", folder)
        super().__init__(root, split, pairs)


def _sintel_pairs(scene: Path, folder: Path, truth: bool) -> Iterator[PairFiles]:
    """The pairs of one scene in one pass: one for each flow, and for each two frames that should have one."""
    frames = numbered_files(scene, (".png",))
    flows = numbered_files(folder / "flow" / scene.name, (".flo",)) if truth else {}
    masks = {
        kind: folder / kind / scene.name for kind in ("occlusions", "invalid") if truth and (folder / kind).is_dir()
    }
    for number in sorted(flows.keys() | {number for number in frames if number + 1 in frames}):
        first, second = (frames.get(each, scene / f"frame_{each:04d}.png") for each in (number, number + 1))
        yield PairFiles(
            name=f"{scene.parent.name}/{scene.name}/{first.stem}",
            first=first,
            second=second,
            flow=folder / "flow" / scene.name / f"{first.stem}.flo" if truth else None,
            occlusion=masks["occlusions"] / first.name if "occlusions" in masks else None,
            invalid=masks["invalid"] / first.name if "invalid" in masks else None,
        )


class Middlebury(FlowDataset):
    """`other-data/<scene>/frame10.png`, `frame11.png` and `other-gt-flow/<scene>/flow10.flo`; sizes differ.

    Scenes without public truth are left out; values over 1e9 are not valid.
    """

    name: ClassVar[str] = "middlebury"
    read_flow = staticmethod(read_dense_flo)

    def __init__(self, root: str | os.PathLike[str], split: str = "all") -> None:
        base = Path(root)
        choose("the split", split, ("all",))
        images = expect_folder(base / "other-data", "the folder of images", base)
        truth = expect_folder(base / "other-gt-flow", "the folder of flows", base)
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
        super().__init__(root, split, pairs)


def _passes(render_pass: str) -> tuple[str, ...]:
    choose("render_pass", render_pass, _PASSES)
    return ("clean", "final") if render_pass == "both" else (render_pass,)


_ENDS = ("10.png", "11.png")


class KittiFlow(FlowDataset):
    """`training|testing/<images>/000000_10.png`, `000000_11.png`, `training/flow_occ|flow_noc/000000_10.png`.

    truth: "occ" for all pixels, "noc" for those that the second image shows as well; pairs without that truth are left
    out. images: the folder to read them from; left out, the first of the known ones that holds the pair. The split
    "test" has no truth.
    """

    read_flow = staticmethod(read_kitti_flow)
    image_folders: ClassVar[tuple[str, ...]]

    def __init__(
        self, root: str | os.PathLike[str], split: str = "train", *, truth: str = "occ", images: str | None = None
    ) -> None:
        base = Path(root)
        choose("the split", split, ("train", "test"))
        choose("truth", truth, ("occ", "noc"))
        if images is not None:
            choose("images", images, self.image_folders)
        folder = expect_folder(base / ("training" if split == "train" else "testing"), f"the split {split}", base)
        known = self.image_folders if images is None else (images,)
        places = [folder / name for name in known if (folder / name).is_dir()]
        if not places:
            expect_folder(folder / known[0], "the folder of images", base)
        if split == "train":
            flows = expect_folder(folder / f"flow_{truth}", "the folder of flows", base)
            found = files_in(flows, "*_10.png")
            expect_files(len(found), "flows *_10.png", flows)
            pairs = [_kitti_pair(places, flow.name, flow) for flow in found]
        else:
            pairs = [_kitti_pair(places, name, None) for name in _kitti_test_names(places)]
        super().__init__(root, split, pairs)


def _kitti_test_names(places: Sequence[Path]) -> list[str]:
    """Names of the first images in the folder that comes first."""
    firsts = files_in(places[0], "*_10.png")
    expect_files(len(firsts), "images *_10.png", places[0])
    ends = {end: [path.name.removesuffix(f"_{end}") for path in files_in(places[0], f"*_{end}")] for end in _ENDS}
    expect_matching_files(ends, places[0])
    return [path.name for path in firsts]


def _kitti_pair(places: Sequence[Path], name: str, flow: Path | None) -> PairFiles:
    """One pair, from the first folder that holds its first image."""
    place = next((place for place in places if (place / name).is_file()), places[0])
    stem = name.removesuffix("_10.png")
    return PairFiles(name=stem, first=place / name, second=place / f"{stem}_11.png", flow=flow)


class Kitti2012(KittiFlow):
    """KITTI 2012: images in `colored_0` or `image_0`, about 375x1242; see `KittiFlow` for the layout and options."""

    name: ClassVar[str] = "kitti-2012"
    image_folders = ("colored_0", "image_0")


class Kitti2015(KittiFlow):
    """KITTI 2015: images in `image_2`, about 375x1242; see `KittiFlow` for the layout and options."""

    name: ClassVar[str] = "kitti-2015"
    image_folders = ("image_2",)


class Hd1k(FlowDataset):
    """`hd1k_input/image_2/000000_0010.png`, `hd1k_flow_gt/flow_occ/000000_0010.png`; 1080x2560.

    The first six digits are the sequence; a pair is two of its frames that are neighbors in order. The flow of a
    sequence's last frame has no pair. The split "test" is `hd1k_challenge/image_2`, without truth.
    """

    name: ClassVar[str] = "hd1k"
    read_flow = staticmethod(read_kitti_flow)

    def __init__(self, root: str | os.PathLike[str], split: str = "train") -> None:
        base = Path(root)
        train = choose("the split", split, ("train", "test")) == "train"
        top = "hd1k_input" if train else "hd1k_challenge"
        images = expect_folder(base / top / "image_2", "the folder of images", base)
        flows = None
        if train:
            flows = expect_folder(base / "hd1k_flow_gt" / "flow_occ", "the folder of flows", base)
        folders = [images] if flows is None else [images, flows]
        pairs = [
            PairFiles(
                name=first.removesuffix(".png"),
                first=images / first,
                second=images / second,
                flow=None if flows is None else flows / first,
            )
            for sequence in _by_sequence(folders)
            for first, second in itertools.pairwise(sequence)
        ]
        expect_files(len(pairs), "pairs of images that follow one another", images)
        super().__init__(root, split, pairs)


def _by_sequence(folders: Sequence[Path]) -> list[list[str]]:
    """The names 000000_0010.png that any of the folders holds, a list per sequence, in order."""
    found = {path.name for folder in folders for path in files_in(folder, "*.png")}
    frames = sorted((name for name in found if re.fullmatch(r"[0-9]{6}_[0-9]+\.png", name)), key=natural_key)
    return [list(group) for _, group in itertools.groupby(frames, key=lambda name: name[:6])]


class Vkitti2(FlowDataset):
    """`Scene01/<variant>/frames/rgb/Camera_0/rgb_00000.jpg` and, beside rgb, `forwardFlow/Camera_0/flow_00000.png` and
    `backwardFlow/Camera_0/backwardFlow_00001.png` (`flow_00001.png` is read as well); 375x1242.

    scenes and variants: names, also as one string with commas; left out, all that are there. camera: 0 or 1.
    direction: "forward" gives (i, i + 1) with forward flow i, "backward" gives (i, i - 1) with backward flow i, "both"
    gives all.
    """

    name: ClassVar[str] = "vkitti2"
    read_flow = staticmethod(read_vkitti2_flow)

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "all",
        *,
        scenes: Names = None,
        variants: Names = None,
        camera: int = 0,
        direction: str = "forward",
    ) -> None:
        choose("the split", split, ("all",))
        choose("camera", str(camera), ("0", "1"))
        choose("direction", direction, ("forward", "backward", "both"))
        pairs: list[PairFiles] = []
        for variant in variant_folders(root, scenes, variants):
            for way in ("forward", "backward") if direction == "both" else (direction,):
                pairs += _vkitti2_pairs(variant, f"Camera_{camera}", way, Path(root))
        expect_files(len(pairs), "pairs of images with flow", Path(root))
        super().__init__(root, split, pairs)


def _vkitti2_pairs(variant: Path, camera: str, way: str, base: Path) -> Iterator[PairFiles]:
    """The pairs of one variant of a scene: one for each flow, and for each two images that should have one."""
    images = expect_folder(variant / "frames" / "rgb" / camera, "the folder of images", base)
    folder = expect_folder(variant / "frames" / f"{way}Flow" / camera, f"the folder of {way} flow", base)
    frames, flows = numbered_files(images), numbered_files(folder, (".png",))
    step, official = (1, "flow") if way == "forward" else (-1, "backwardFlow")
    for number in sorted(flows.keys() | {number for number in frames if number + step in frames}):
        if number + step < 0:
            continue
        first, second = (frames.get(each, images / f"rgb_{each:05d}.jpg") for each in (number, number + step))
        yield PairFiles(
            name=f"{variant.parent.name}/{variant.name}/{camera}/{way}/{number:05d}",
            first=first,
            second=second,
            flow=flows.get(number, folder / f"{official}_{number:05d}.png"),
        )
