"""Datasets of flow made of rendered or indoor scenes: FlyingChairs, FlyingThings3D, Sintel and Middlebury."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from protoformer.data.flow_pairs import FlowDataset, PairFiles, read_dense_flo, read_dense_pfm
from protoformer.data.tree import (
    choose,
    expect_folder,
    expect_partners,
    expect_some,
    files_in,
    folders_in,
    numbered,
    read_text,
)
from protoformer.errors import InputError

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
        expect_partners(found, data)
        stems = found["flow.flo"]
        expect_some(len(stems), "files *_flow.flo", data)
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
        expect_some(len(pairs), f"pairs of {camera} frames", base)
        super().__init__(root, split, pairs)


def _things_pairs(folder: Path, motion: Path, render_pass: str, way: str) -> Iterator[PairFiles]:
    """The pairs of one sequence, whose frames are all that have an image or a flow.

    `motion` holds into_future and into_past; the flow that leads out of the sequence has no pair.
    """
    camera, sequence, letter = folder.name, folder.parent.name, folder.parent.parent.name
    frames = numbered(folder)
    flows = numbered(motion / f"into_{way}" / camera, (".pfm",))
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
        expect_some(len(pairs), "two frames that follow one another", folder)
        super().__init__(root, split, pairs)


def _sintel_pairs(scene: Path, folder: Path, truth: bool) -> Iterator[PairFiles]:
    """The pairs of one scene in one pass: one for each flow, and for each two frames that should have one."""
    frames = numbered(scene, (".png",))
    flows = numbered(folder / "flow" / scene.name, (".flo",)) if truth else {}
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
        expect_some(len(scenes), "folders of scenes", truth)
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
