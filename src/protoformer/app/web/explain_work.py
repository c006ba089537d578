"""What the network grouped in what people upload, within limits, as a page and as files; gradio has no part in it."""

from dataclasses import dataclass
from pathlib import Path

from protoformer.app.web.limits import Deadline, Limits, Told
from protoformer.files import MovieWriter
from protoformer.inference import DepthModel, FlowModel
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
    for path in paths:
        limits.check_image(path)

    def progress(done: int, total: int) -> None:
        deadline.check()
        told(0.6 * done / total, "estimating")

    explanation = model.explain(*paths, progress=progress)
    deadline.check()
    told(0.7, "drawing")
    save_explanation(folder, explanation)
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
    movie, count = limits.opened_clip(path, deadline)
    frames, kept = 0, 0.0
    with MovieWriter(folder / "groups.mp4", movie, movie.info.rate) as writer:
        for step in model.explain_video(movie):
            deadline.check()
            writer.write(prototype_frame(step), step.time)
            frames, kept = frames + 1, kept + step.kept
            told(frames / max(frames, count), f"frame {frames} of {count}")
    height, width = movie.info.size
    return ExplainAnswer(
        page="",
        downloads={".mp4": folder / "groups.mp4"},
        summary=(
            f"{frames} frames of {width}x{height} pixels; {kept / frames:.0%} of a frame's pixels belong to a "
            "prototype that the frame before had."
        ),
    )
