"""Targets through a clip that people upload, within limits, as files and as what the page shows; gradio has no part."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protoformer.app.track_methods import NamedMethod
from protoformer.app.web.decoding import clip_writer, decode_clip, decode_first_frame
from protoformer.app.web.kept_views import keep_view
from protoformer.app.web.limits import Deadline, Limits, Told
from protoformer.errors import InputError
from protoformer.files import Movie
from protoformer.files.table import TableWriter
from protoformer.inference.track_boxes import checked_boxes
from protoformer.inference.track_steps import TrackStep, track_steps
from protoformer.inference.track_table import HEAD, table_rows, told_of_targets
from protoformer.show.addresses import jpeg_address
from protoformer.show.track_frames import draw_targets

MOST_TARGETS = 20


@dataclass(frozen=True)
class TrackAnswer:
    """What was followed.

    movie, table: the files to take away. frames: how many there are to look at. summary: a sentence about it.
    """

    movie: Path
    table: Path
    frames: int
    summary: str


def first_picture(limits: Limits, path: Path) -> dict[str, Any]:
    """The first frame of a clip for the page to draw boxes on: its address, width and height."""
    image = decode_first_frame(limits, path, Deadline(limits.seconds))
    return {"image": jpeg_address(image), "width": image.shape[1], "height": image.shape[0]}


def track_of_clip(
    method: NamedMethod,
    limits: Limits,
    path: Path,
    boxes: Sequence[Sequence[float]],
    folder: Path,
    told: Told = lambda *_: None,
) -> TrackAnswer:
    """Follow boxes through a clip; track.mp4, track.csv and a view of every frame go into the folder."""
    deadline = Deadline(limits.seconds)
    if not boxes:
        raise InputError("draw a box around something in the first frame; press the mouse, drag, and let go.")
    if len(boxes) > MOST_TARGETS:
        raise InputError(f"there are {len(boxes)} boxes and the limit is {MOST_TARGETS}; take some away.")
    with decode_clip(limits, path, deadline) as movie:
        count = len(movie)
        checked_boxes(boxes, movie.info.size)
        lost, frames = [0] * len(boxes), 0
        with (
            clip_writer(folder / "track.mp4", movie, limits, deadline) as writer,
            TableWriter(folder / "track.csv", HEAD) as table,
        ):
            for step in track_steps(movie, boxes, method.begin):
                deadline.check()
                drawn = draw_targets(step.image, step.targets)
                writer.write(drawn, step.time)
                for row in table_rows(step.number, step.time, step.targets):
                    table.write(*row)
                keep_view(folder, frames, {"image": jpeg_address(drawn), "lines": _lines(step)})
                lost = [before + target.lost for before, target in zip(lost, step.targets, strict=True)]
                frames += 1
                told(frames / count, f"frame {frames} of {count}")
        return TrackAnswer(folder / "track.mp4", folder / "track.csv", frames, _summary(movie, frames, lost))


def _lines(step: TrackStep) -> list[str]:
    """What the page says of every target in a frame."""
    lines = []
    for place, target in enumerate(step.targets, 1):
        x, y, width, height = target.box
        state = "lost" if target.lost else f"score {target.score:.2f}"
        lines.append(f"target {place}  x = {x:.1f}  y = {y:.1f}  w = {width:.1f}  h = {height:.1f} px  {state}")
    return lines


def _summary(movie: Movie, frames: int, lost: list[int]) -> str:
    height, width = movie.info.size
    return f"{frames} frames of {width}x{height} pixels, {told_of_targets(lost)}."
