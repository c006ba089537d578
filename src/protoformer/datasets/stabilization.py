"""Video stabilization dataset: DeepStab, pairs of shaky and stable videos of the same scene."""

from pathlib import Path

from protoformer.datasets.tree import Dataset, expect_files, expect_folder, files_in, parse_bool
from protoformer.errors import InputError
from protoformer.io.files import PathLike
from protoformer.synthetic.samples import StabilityPair
from protoformer.video.reader import VideoFile


class DeepStab(Dataset[StabilityPair]):
    """DeepStab: `stable/<n>.avi` and `unstable/<n>.avi`, sorted by n; other files are ignored.

    The only split is "all". The length of a pair is that of its shorter video. Frames are counted by decoding all of
    them when a pair is first read, since headers may declare frames that cannot be decoded. `trust_headers` uses the
    declared number instead, which is fast and correct for most files.
    """

    name = "deepstab"
    splits = ("all",)
    trust_headers: bool

    def __init__(self, root: PathLike, split: str = "all", *, trust_headers: bool | str = False) -> None:
        super().__init__(root, split)
        self.trust_headers = parse_bool("trust_headers", trust_headers)
        self._lengths: dict[int, int] = {}
        self._stable = _videos_by_number(expect_folder(self.root / "stable", "the folder of stable videos", self.root))
        self._unstable = _videos_by_number(
            expect_folder(self.root / "unstable", "the folder of shaky videos", self.root)
        )
        expect_files(len(self._stable) + len(self._unstable), "videos stable/<n>.avi and unstable/<n>.avi", self.root)
        self._check_partners()
        self._numbers = sorted(self._stable)
        self.names = tuple(self._stable[number].stem for number in self._numbers)

    def _read(self, index: int) -> StabilityPair:
        number = self._numbers[index]
        stable, unstable = self._stable[number], self._unstable[number]
        if index not in self._lengths:
            self._lengths[index] = min(count_frames(path, self.trust_headers) for path in (stable, unstable))
        return StabilityPair(name=self.names[index], unstable=unstable, stable=stable, frames=self._lengths[index])

    def _check_partners(self) -> None:
        for videos, partners, folder in (
            (self._stable, self._unstable, "unstable"),
            (self._unstable, self._stable, "stable"),
        ):
            for number in sorted(videos.keys() - partners.keys()):
                missing = self.root / folder / videos[number].name
                raise InputError(
                    f"{missing} does not exist, but {videos[number]} needs it as its partner; "
                    "copy the missing video there, or remove the other."
                )


def count_frames(path: Path, trust_header: bool = False) -> int:
    """Count the frames of a video by decoding them, or take the number that its header declares, where it does."""
    video = VideoFile(path)
    return (trust_header and video.info.num_frames) or video.count_frames()


def _videos_by_number(folder: Path) -> dict[int, Path]:
    """Map the number of each video in a folder to its path."""
    return {int(path.stem): path for path in files_in(folder, "*.avi") if path.stem.isdecimal()}
