"""Frames of depth cameras, such as those of 7-Scenes and TUM RGB-D, a folder a scene."""

import os
import re
from pathlib import Path

from torch import Tensor

from protoformer.data.depth_record import depth_record, pair_names, pinhole
from protoformer.data.tree import (
    Dataset,
    choose,
    expect_file,
    expect_folder,
    expect_some,
    folders_in,
    named,
    read_text,
)
from protoformer.data.vkitti2 import Names
from protoformer.errors import InputError
from protoformer.files import read_image, read_mm_depth
from protoformer.files.depth_png import FARTHEST_MM
from protoformer.world.sample import DepthSample

_NUMBER = r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?"


class Rgbd(Dataset[DepthSample]):
    """Scenes before a depth camera: `<scene>/rgb/0000.jpg`, `<scene>/depth/0000.png`, `<scene>/intrinsics.txt`.

    Depth is a 16-bit grey png of the image's size, in millimetres; 0 and 65535 are none. The intrinsics are four
    numbers, fx fy cx cy, in pixels of these images, the centre of the first pixel being (0, 0); a text that ends with a
    colon may stand before them. The only split is "all". scenes: names, also as one string with commas; left out, all
    that are there.
    """

    name = "rgbd"

    def __init__(self, root: str | os.PathLike[str], split: str = "all", *, scenes: Names = None) -> None:
        super().__init__(root, split)
        choose("the split", split, ("all",))
        folders = folders_in(expect_folder(self.root, "the folder of scenes"))
        found = [folder for folder in folders if (folder / "rgb").is_dir() or (folder / "depth").is_dir()]
        expect_some(len(found), "folders <scene>/rgb and <scene>/depth", self.root)
        self._cameras: dict[str, Tensor] = {}
        names = []
        for scene in named(found, scenes, self.root):
            self._cameras[scene.name] = _camera(scene / "intrinsics.txt", self.root)
            names += [f"{scene.name}/{frame}" for frame in pair_names(scene, self.root)]
        self.names = tuple(names)

    def _read(self, index: int) -> DepthSample:
        name = self.names[index]
        scene, frame = name.split("/")
        picture, truth = (self.root / scene / kind for kind in (f"rgb/{frame}.jpg", f"depth/{frame}.png"))
        image = read_image(expect_file(picture, f"the image of {name}", self.root))
        depth = read_mm_depth(expect_file(truth, f"the depth of {name}", self.root))
        # The largest value is how some cameras say that they saw nothing.
        return depth_record(name, image, depth.values, self._cameras[scene], farthest=FARTHEST_MM)


def _camera(path: Path, root: Path) -> Tensor:
    text = read_text(expect_file(path, "the intrinsics fx fy cx cy", root))
    numbers = text.rpartition(":")[2].split()
    right = len(numbers) == 4 and all(re.fullmatch(_NUMBER, number) for number in numbers)
    if not right or min(float(number) for number in numbers[:2]) <= 0:
        raise InputError(f"{path} does not hold fx fy cx cy, four numbers in pixels; write them on one line.")
    return pinhole(*(float(number) for number in numbers))
