"""What the network grouped in what people upload, within limits, as a page and as files; gradio has no part in it."""

from dataclasses import dataclass
from pathlib import Path

from protoformer.app.followed_words import followed_words
from protoformer.app.web.decoding import clip_writer, decode_clip, decode_image
from protoformer.app.web.limits import Deadline, Limits, Told
from protoformer.inference import DepthModel, FlowModel
from protoformer.inference.prototype_video import FollowedTally
from protoformer.show.explanation_page import save_explanation
from protoformer.show.explanation_pictures import prototype_frame


@dataclass(frozen=True)
class ExplainAnswer:
    """What was computed: html of the page, or "" for a clip; the files to take away, by suffix; a sentence about it."""

    page: str
    downloads: dict[str, Path]
    summary: str


def explain_images(
    model: FlowModel | DepthModel, limits: Limits, paths: list[Path], folder: Path, told: Told = lambda *_: None
) -> ExplainAnswer:
    """The groups of an image, or of two; the page, explanation.json and pictures go into the folder."""
    deadline = Deadline(limits.seconds)
    images = [decode_image(limits, path, deadline) for path in paths]

    def estimating(done: int, total: int) -> None:
        deadline.check()
        told(0.5 * done / total, "estimating")

    def drawing(done: int, total: int) -> None:
        deadline.check()
        told(0.5 + 0.5 * done / total, "drawing")

    explanation = model.explain(*images, progress=estimating)
    deadline.check()
    save_explanation(folder, explanation, progress=drawing)
    layer = explanation.first.layer()
    matched = f", {len(explanation.matches())} of them matched in the second image" if explanation.second else ""
    return ExplainAnswer(
        page=(folder / "index.html").read_text(encoding="utf-8"),
        downloads={".html": folder / "index.html", ".json": folder / "explanation.json"},
        summary=(
            f"{layer.size[1]}x{layer.size[0]} pixels; {len(layer.used)} of {layer.count} prototypes of the last layer "
            f"have pixels{matched}."
        ),
    )


def explain_clip(
    model: FlowModel, limits: Limits, path: Path, folder: Path, told: Told = lambda *_: None
) -> ExplainAnswer:
    """The groups of every frame of a clip; groups.mp4 goes into the folder."""
    deadline = Deadline(limits.seconds)
    tally = FollowedTally()
    with (
        decode_clip(limits, path, deadline) as movie,
        clip_writer(folder / "groups.mp4", movie, limits, deadline) as writer,
    ):
        count = len(movie)
        for step in model.explain_video(movie):
            deadline.check()
            writer.write(prototype_frame(step), step.time)
            tally.add(step)
            told(tally.frames / max(tally.frames, count), f"frame {tally.frames} of {count}")
    height, width = movie.info.size
    return ExplainAnswer(
        page="",
        downloads={".mp4": folder / "groups.mp4"},
        summary=(
            f"{tally.frames} frames of {width}x{height} pixels, {tally.prototypes} prototypes in all"
            f"{followed_words(tally)}."
        ),
    )
