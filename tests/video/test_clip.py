"""Where a clip is looked at, everywhere if it is short and all over it if it is long, and how its frames come."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from protoformer.errors import InputError
from protoformer.io.image import write_image
from protoformer.io.image_input import as_image
from protoformer.video.clip import ClipFrames, Span, estimate_frame_count
from protoformer.video.reader import open_video

MOST = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred small images."""
    made = tmp_path_factory.mktemp("frames")
    for number in range(100):
        write_image(made / f"{number:02d}.png", np.full((2, 2, 3), number, np.uint8))
    return made


def looked_at(folder: Path, span: Span, together: int) -> list[list[int]]:
    """Numbers of the frames that a look at each instant begins with, as many as it takes together."""
    video = open_video(folder, span.fps)
    clip = ClipFrames(video, span)
    looks = [clip.read(video, instant) for instant in clip.instants(video, MOST, together)]
    return [[frame.number for frame, _ in zip(look, range(together), strict=False)] for look in looks]


@pytest.mark.parametrize("rate", [25, 29.97, 7])
def test_each_pair_of_a_short_clip_is_looked_at(folder: Path, rate: float) -> None:
    for frames in range(2, 10):
        pairs = [[number, number + 1] for number in range(10, 9 + frames)]
        assert looked_at(folder, Span(9.95 / rate, (9.7 + frames) / rate, fps=rate), together=2) == pairs


def test_each_frame_of_a_short_clip_is_looked_at(folder: Path) -> None:
    assert looked_at(folder, Span(3.8, fps=25), together=1) == [[95], [96], [97], [98], [99]]
    assert looked_at(folder, Span(3.78, fps=25), together=1)[:-1] == [[95], [96], [97], [98], [99]]


def test_frames_left_out_are_not_looked_at(folder: Path) -> None:
    assert looked_at(folder, Span(end=0.4, frame_step=3, fps=25), together=2) == [[0, 3], [3, 6], [6, 9]]


def test_looks_at_a_long_clip_are_few_and_spread_evenly(folder: Path) -> None:
    starts = [look[0] for look in looked_at(folder, Span(fps=25), together=2)]
    assert starts == [6, 18, 30, 43, 55, 68, 80, 92]


def test_a_clip_of_one_frame_is_looked_at_once(folder: Path) -> None:
    assert looked_at(folder, Span(0, 0.02, fps=25), together=2) == [[0]]


@pytest.mark.parametrize(
    "frame",
    [
        torch.randint(0, 256, (3, 6, 8), dtype=torch.uint8),
        torch.randint(0, 256, (1, 3, 6, 8), dtype=torch.uint8),
        np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8),
    ],
    ids=["tensor", "batch of one", "array"],
)
def test_bytes_that_are_handed_in_stay_bytes(frame: torch.Tensor | npt.NDArray[np.uint8]) -> None:
    (given,) = ClipFrames([frame], Span())
    assert given.pixels.dtype == torch.uint8 and given.pixels.shape == (3, 6, 8)
    assert torch.equal(given.pixels.float() / 255, as_image(frame)[0])


def test_other_frames_that_are_handed_in_become_fractions() -> None:
    gray, clear = np.full((6, 8), 51, dtype=np.uint8), np.full((6, 8, 4), 51, dtype=np.uint8)
    for given, value in zip(ClipFrames([gray, clear], Span()), (0.2, 0.04), strict=True):
        assert given.pixels.dtype == torch.float32 and torch.allclose(given.pixels, torch.full((3, 6, 8), value))


@pytest.mark.parametrize("shape", [(2, 6, 8), (6, 8), (2, 3, 6, 8), (3, 0, 8)])
def test_bytes_of_no_image_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="frame 0"):
        list(ClipFrames([torch.zeros(shape, dtype=torch.uint8)], Span()))


def test_bytes_counted_backwards_or_locked_are_taken() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    locked = pixels.copy()
    locked.flags.writeable = False
    turned, mirrored, kept = ClipFrames([pixels[..., ::-1], pixels[:, ::-1], locked], Span())
    assert torch.equal(turned.pixels.flip(0), kept.pixels) and torch.equal(mirrored.pixels.flip(2), kept.pixels)
    assert np.array_equal(kept.pixels.permute(1, 2, 0).numpy(), pixels)


def test_a_frame_may_be_written_over_once_it_was_handed_in() -> None:
    def frames() -> Iterator[npt.NDArray[np.uint8]]:
        buffer = np.zeros((6, 8, 3), dtype=np.uint8)
        for number in range(3):
            buffer[:] = number
            yield buffer

    assert [int(frame.pixels.max()) for frame in list(ClipFrames(frames(), Span()))] == [0, 1, 2]


def test_what_is_no_clip_is_refused() -> None:
    with pytest.raises(InputError, match=r"5\.5 is not a clip; give a path, an open video, or frames"):
        ClipFrames(5.5, Span())  # type: ignore[arg-type]


@pytest.mark.parametrize("span", [Span(), Span(frame_step=7), Span(start=1, end=2.02, frame_step=3), Span(start=9)])
def test_the_number_of_frames_is_that_of_the_span(folder: Path, span: Span) -> None:
    clip = ClipFrames(folder, span)
    assert clip.num_frames == len(list(clip))


@pytest.mark.parametrize("span", [Span(start=float("nan")), Span(end=float("inf")), Span(start=-1.0)])
def test_a_span_without_a_time_is_one_sentence(folder: Path, span: Span) -> None:
    with pytest.raises(InputError, match="of a video is at second"):
        estimate_frame_count(open_video(folder), span.start, span.end)
