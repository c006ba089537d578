"""Datasets of flow seen from a car: KITTI 2012 and 2015, HD1K and Virtual KITTI 2."""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from protoformer.data.flow_pairs import FlowDataset, PairFiles
from protoformer.data.tree import (
    choose,
    expect_folder,
    expect_partners,
    expect_some,
    files_in,
    numbered,
)
from protoformer.data.vkitti2 import Names, variant_folders
from protoformer.files import read_kitti_flow, read_vkitti2_flow
from protoformer.files.folders import natural_key

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
            expect_some(len(found), "flows *_10.png", flows)
            pairs = [_kitti_pair(places, flow.name, flow) for flow in found]
        else:
            pairs = [_kitti_pair(places, name, None) for name in _kitti_test_names(places)]
        super().__init__(root, split, pairs)


def _kitti_test_names(places: Sequence[Path]) -> list[str]:
    """Names of the first images in the folder that comes first."""
    firsts = files_in(places[0], "*_10.png")
    expect_some(len(firsts), "images *_10.png", places[0])
    ends = {end: [path.name.removesuffix(f"_{end}") for path in files_in(places[0], f"*_{end}")] for end in _ENDS}
    expect_partners(ends, places[0])
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

    The first six digits are the sequence; a pair is two of its frames that are neighbours in order. The flow of a
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
        expect_some(len(pairs), "pairs of images that follow one another", images)
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
        expect_some(len(pairs), "pairs of images with flow", Path(root))
        super().__init__(root, split, pairs)


def _vkitti2_pairs(variant: Path, camera: str, way: str, base: Path) -> Iterator[PairFiles]:
    """The pairs of one variant of a scene: one for each flow, and for each two images that should have one."""
    images = expect_folder(variant / "frames" / "rgb" / camera, "the folder of images", base)
    folder = expect_folder(variant / "frames" / f"{way}Flow" / camera, f"the folder of {way} flow", base)
    frames, flows = numbered(images), numbered(folder, (".png",))
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
