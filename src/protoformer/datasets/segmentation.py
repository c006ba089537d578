"""Video object segmentation datasets: DAVIS 2016 and 2017."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from protoformer.datasets.base import Dataset, expect_files, expect_folder, folders_in, numbered_files, read_text
from protoformer.errors import InputError
from protoformer.io.files import PathLike, read_image_bytes
from protoformer.io.image import quiet_pillow, read_image
from protoformer.io.png import check_png


@dataclass(frozen=True, kw_only=True)
class MaskSequence:
    """Frames of a clip and the masks of its objects, read on demand.

    Attributes:
        name: Name of the sequence.
        frames: T image files.
        masks: T files for `read_labels`; None where there is no mask.
    """

    name: str
    frames: tuple[Path, ...]
    masks: tuple[Path | None, ...]


class Davis(Dataset[MaskSequence]):
    """DAVIS: `JPEGImages/480p/<sequence>/00000.jpg` and `Annotations/480p/<sequence>/00000.png`.

    Splits are listed in `ImageSets/<year>/<split>.txt`, `ImageSets/480p/<split>.txt` or `ImageSets/<split>.txt`; "all"
    is every folder of frames. Without any lists, every split has all sequences.

    Args:
        root: The folder.
        split: "train", "val" or "all".
        resolution: Name of the folders of one resolution; if it does not exist, the sequences may be one level up.
    """

    name = "davis"
    splits = ("train", "val", "all")
    year = "2016"

    def __init__(self, root: PathLike, split: str = "val", *, resolution: str = "480p") -> None:
        super().__init__(root, split)
        self._images, self._masks = (
            self._resolution_folder(name, what, resolution)
            for name, what in (("JPEGImages", "the folder of frames"), ("Annotations", "the folder of masks"))
        )
        self.names = tuple(self._split_names(resolution))
        expect_files(len(self.names), f"sequences of the split {split}", self.root)

    def _read(self, index: int) -> MaskSequence:
        name = self.names[index]
        frames = numbered_files(expect_folder(self._images / name, "the frames of a sequence", self.root))
        expect_files(len(frames), "frames", self._images / name)
        masks = numbered_files(expect_folder(self._masks / name, "the masks of a sequence", self.root), (".png",))
        return MaskSequence(
            name=name, frames=tuple(frames.values()), masks=tuple(masks.get(number) for number in frames)
        )

    def _resolution_folder(self, name: str, what: str, resolution: str) -> Path:
        folder = expect_folder(self.root / name, what, self.root)
        return folder / resolution if (folder / resolution).is_dir() else folder

    def _split_names(self, resolution: str) -> Sequence[str]:
        folders = [folder.name for folder in folders_in(self._images)]
        if self.split == "all":
            return folders
        sets = self.root / "ImageSets"
        lists = [sets / part / f"{self.split}.txt" for part in (self.year, resolution, "")]
        for path in lists:
            if path.is_file():
                return _listed_names(path, folders)
        others = [path for path in sets.glob("**/*.txt") if path.stem in self.splits] if sets.is_dir() else []
        if others:
            known = ", ".join(sorted({path.stem for path in others}))
            raise InputError(f"{sets} has no list of the split {self.split}; choose one of {known}, or all.")
        return folders


class Davis2017(Davis):
    """DAVIS 2017, whose masks distinguish several objects; see `Davis`."""

    name = "davis-2017"
    year = "2017"


class Davis2016(Davis):
    """DAVIS 2016, whose masks have one foreground; see `Davis`."""

    name = "davis-2016"


def _listed_names(path: Path, folders: Sequence[str]) -> list[str]:
    """Return the sequences of a list: names, or pairs of paths such as /JPEGImages/480p/bear/00000.jpg."""
    names: dict[str, None] = {}
    for line in read_text(path).splitlines():
        words = line.split()
        if words:
            parts = [part for part in words[0].replace("\\", "/").split("/") if part]
            names[parts[-2] if len(parts) > 1 else parts[0]] = None
    for name in names:
        if name not in folders:
            raise InputError(f"{path} lists the sequence {name!r}, which has no frames; copy them, or remove it.")
    return list(names)


def read_labels(path: PathLike) -> npt.NDArray[np.uint8]:
    """Read a mask: uint8, H x W, 0 for the background.

    An indexed png has the numbers of objects; of a gray or color one, every value over 0 is foreground, number 1. 255
    in an indexed png marks pixels that are not evaluated.
    """
    data = read_image_bytes(path)
    header = check_png(data, path)
    if header.color_type != 3 or header.bit_depth > 8:
        foreground: npt.NDArray[np.uint8] = (read_image(path).max(axis=2) > 0).astype(np.uint8)
        return foreground
    try:
        with quiet_pillow(), Image.open(BytesIO(data), formats=("PNG",)) as image:
            labels = np.array(image, np.uint8)
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"{path} is damaged or cut short ({error}); make or download it again.") from None
    return labels
