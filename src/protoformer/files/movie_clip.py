"""A video that is being written: pictures and sound side by side in one container."""

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING

from protoformer.errors import InputError
from protoformer.files.av_package import require_av
from protoformer.files.movie import LONGEST_SECONDS, Movie, Picture
from protoformer.files.movie_container import opened_container
from protoformer.files.movie_encoding import PictureStream
from protoformer.files.movie_kinds import FINEST, Encoder, Kind, Quality
from protoformer.files.movie_picture import size_mark
from protoformer.files.movie_sound import Soundtrack, soundtrack

if TYPE_CHECKING:
    from av.container import OutputContainer


@dataclass(frozen=True)
class Plan:
    """What a clip is to be."""

    kind: Kind
    encoder: Encoder
    rate: Fraction
    """Frames a second, about; the last frame is shown for as long as this says."""
    like: Movie | None
    """The movie whose sound comes along."""
    quality: Quality

    @property
    def tick(self) -> Fraction:
        """Seconds that the clip's times count: such that those of `like` and of the rate are whole, if that can be."""
        if self.kind.even_times:
            return 1 / self.rate
        if self.kind.tick is not None:
            return self.kind.tick
        most, by_rate = self.encoder.most_ticks, self.rate.numerator
        by_like = self.like.info.tick.denominator if self.like else by_rate
        ticks = next((ticks for ticks in (lcm(by_like, by_rate), by_like, by_rate) if ticks <= most), most)
        return Fraction(1, ticks * max(1, min(FINEST, most) // ticks))


class Clip:
    """An open file with a stream of pictures and, if the plan has one, a stream of sound."""

    def __init__(self, file: Path, plan: Plan, size: tuple[int, int], first: Fraction) -> None:
        """size: (height, width) of all pictures. first: the time of the first one on the clock of `plan.like`."""
        self.size = size
        self._plan, self._tick, self._first = plan, plan.tick, first
        self._place = -1
        self._latest: Picture | None = None
        """A copy of the latest picture, where it may have to be written again."""
        self._source = ExitStack()
        self._container: OutputContainer = require_av().open(
            f"file:{file}", "w", format=plan.kind.format, container_options=dict(plan.kind.options)
        )
        self._pictures: PictureStream | None = PictureStream(
            self._container, plan.encoder, size, plan.rate, self._tick, plan.quality
        )
        if self._pictures.padded:
            self._container.metadata["comment"] = size_mark(size)
        self._sound = self._soundtrack()

    def write(self, image: Picture, second: Fraction, path: Path) -> None:
        """Add a picture at a time on the clock of the first one; `path` is named if it comes too early."""
        place = round((second - self._first) / self._tick)
        if place <= self._place:
            raise InputError(
                f"a frame for {path} at second {float(second):g} does not come after the one before; give times that "
                f"grow by {float(self._tick):g} seconds or more."
            )
        self._check_gap(second, place, path)
        self._fill(place)
        if self._sound is not None:
            self._sound.write_until(second - self._first)
        if self._pictures is not None:
            self._pictures.write(image, place)
        self._place = place
        if self._plan.kind.longest is not None and not self._plan.kind.even_times:
            self._latest = image.copy()

    def finish(self) -> None:
        """Write what is held back, the sound up to the end of the last picture, and the index.

        After an interruption it can be called again and goes on where it stopped.
        """
        end = self._place * self._tick + 1 / self._plan.rate
        self._fill(round(end / self._tick))
        pictures, self._pictures = self._pictures, None
        if pictures is not None:
            pictures.finish()
        sound, self._sound = self._sound, None
        if sound is not None:
            sound.finish(end)
        self._container.close()
        self._source.close()

    def abandon(self) -> None:
        """Let go of the files, whatever state they are in."""
        with suppress(require_av().error.FFmpegError):
            self._container.close()
        self._source.close()

    def _check_gap(self, second: Fraction, place: int, path: Path) -> None:
        """Refuse a frame so long after another that the file could not tell."""
        if second - self._first > LONGEST_SECONDS:
            raise InputError(
                f"a frame for {path} at second {float(second):g} comes more than {LONGEST_SECONDS} seconds after the "
                "first; give times in seconds."
            )
        kind = self._plan.kind
        if kind.even_times and kind.longest is not None and place - self._place > kind.longest:
            raise InputError(
                f"{path} cannot show a frame for more than {float(kind.longest * self._tick):.1f} seconds, as before "
                f"second {float(second):g}; choose another suffix, such as .mp4."
            )

    def _fill(self, place: int) -> None:
        """Write the latest picture again, as often as it takes to show it until `place` ticks."""
        longest = self._plan.kind.longest
        if longest is None or self._latest is None or self._pictures is None:
            return
        while place - self._place > longest:
            self._place += longest
            self._pictures.write(self._latest, self._place, min(longest, place - self._place))

    def _soundtrack(self) -> Soundtrack | None:
        like = self._plan.like
        if like is None or not like.info.sound:
            return None
        source = self._source.enter_context(opened_container(like.info.paths[0], thorough=True))
        return soundtrack(source, like.info.start + self._first, self._container, self._plan.kind)
