"""Clips that people upload made steady, within limits; gradio has no part."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protoformer.app.web.decoding import clip_writer, decode_clip
from protoformer.app.web.limits import Deadline, Limits, Told
from protoformer.inference import StabilizeModel, StabilizeResult
from protoformer.inference.brief import count_fact
from protoformer.inference.stabilize import StabilizeOptions
from protoformer.show.stabilize_page import path_figures


@dataclass(frozen=True)
class StabilizeAnswer:
    """The steady clip; a clip of both side by side; svg pictures of the path; and a sentence about it."""

    movie: Path
    beside: Path
    path: str
    summary: str


def stabilize_upload(
    model: StabilizeModel,
    limits: Limits,
    path: Path,
    options: StabilizeOptions,
    folder: Path,
    told: Told = lambda *_: None,
) -> StabilizeAnswer:
    """Make a clip steady; stable.mp4 and beside.mp4 go into the folder."""
    deadline = Deadline(limits.seconds)
    with decode_clip(limits, path, deadline) as movie:
        count = len(movie)

        def looked(done: int, _: int) -> None:
            deadline.check()
            told(0.8 * done / count, f"frame {done} of {count}")

        result = model.stabilize(
            movie, strength=options.strength, crop=options.crop, tripod=options.tripod, progress=looked
        )
        answer = StabilizeAnswer(folder / "stable.mp4", folder / "beside.mp4", _path(result), _summary(result))
        with (
            clip_writer(answer.movie, movie, limits, deadline) as steady_clip,
            clip_writer(answer.beside, movie, limits, deadline) as both,
        ):
            for moment, shaky, steady in model.frames(movie, result):
                deadline.check()
                steady_clip.write(steady, moment)
                both.write(np.concatenate((shaky, steady), axis=1), moment)
                told(0.8 + 0.2 * steady_clip.frames / count, f"writing frame {steady_clip.frames} of {count}")
    return answer


def _path(result: StabilizeResult) -> str:
    return "".join(str(figure.content) for figure in path_figures(result))


def _summary(result: StabilizeResult) -> str:
    (height, width), (before, after) = result.size, result.acceleration
    many = count_fact(len(result.times), "frame")
    return (
        f"{many} of {width}x{height} pixels; {result.cropping:.1%} of each side is shown; the camera's velocity "
        f"changes by {after:.2f} px a frame, {before:.2f} before."
    )
