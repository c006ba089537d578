"""The tab for prototypes: images or a clip in, groups that light up under the mouse out."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from protoformer.depth.predictor import DepthPredictor
from protoformer.errors import InputError
from protoformer.explain.drawing import draw_prototype_frame
from protoformer.explain.page import save_explanation
from protoformer.explain.video import TrackingRate, describe_tracking_rate
from protoformer.flow.predictor import FlowPredictor
from protoformer.web.components import clip_box, download, example_buttons, image_box, require_gradio
from protoformer.web.decoding import clip_writer, decode_clip, decode_image
from protoformer.web.examples import PAIRS, render_clip
from protoformer.web.limits import Deadline, Limits, ProgressCallback
from protoformer.web.site import KEEP_SECONDS, Site, error_message, notice


@dataclass(frozen=True)
class ExplainOutput:
    """What was computed: html of the page, or "" for a clip; the files to take away, by suffix; a sentence about it."""

    page: str
    downloads: dict[str, Path]
    summary: str


def explain_images(
    model: FlowPredictor | DepthPredictor,
    limits: Limits,
    paths: list[Path],
    folder: Path,
    on_progress: ProgressCallback = lambda *_: None,
) -> ExplainOutput:
    """The groups of an image, or of two; the page, explanation.json and pictures go into the folder."""
    deadline = Deadline(limits.seconds)
    images = [decode_image(limits, path, deadline) for path in paths]

    def estimating(done: int, total: int) -> None:
        deadline.check()
        on_progress(0.5 * done / total, "estimating")

    def drawing(done: int, total: int) -> None:
        deadline.check()
        on_progress(0.5 + 0.5 * done / total, "drawing")

    explanation = model.explain(*images, progress=estimating)
    deadline.check()
    save_explanation(folder, explanation, progress=drawing)
    layer = explanation.first.layer()
    matched = f", {len(explanation.matches())} of them matched in the second image" if explanation.second else ""
    return ExplainOutput(
        page=(folder / "index.html").read_text(encoding="utf-8"),
        downloads={".html": folder / "index.html", ".json": folder / "explanation.json"},
        summary=(
            f"{layer.size[1]}x{layer.size[0]} pixels; {len(layer.used)} of {layer.num_prototypes} prototypes of the "
            f"last layer have pixels{matched}."
        ),
    )


def explain_clip(
    model: FlowPredictor, limits: Limits, path: Path, folder: Path, on_progress: ProgressCallback = lambda *_: None
) -> ExplainOutput:
    """The groups of every frame of a clip; groups.mp4 goes into the folder."""
    deadline = Deadline(limits.seconds)
    tally = TrackingRate()
    with (
        decode_clip(limits, path, deadline) as video,
        clip_writer(folder / "groups.mp4", video, limits, deadline) as writer,
    ):
        count = len(video)
        for step in model.explain_video(video):
            deadline.check()
            writer.write(draw_prototype_frame(step), step.time)
            tally.add(step)
            on_progress(tally.frames / max(tally.frames, count), f"frame {tally.frames} of {count}")
    height, width = video.info.size
    return ExplainOutput(
        page="",
        downloads={".mp4": folder / "groups.mp4"},
        summary=(
            f"{tally.frames} frames of {width}x{height} pixels, {tally.prototypes} prototypes in all"
            f"{describe_tracking_rate(tally)}."
        ),
    )


UNTRAINED = (
    "The weights of {which} are random: the groups shown here are those of an untrained network. Start the page with "
    "--model or --depth-model and a file of yours."
)
NETWORKS = {"motion": "the motion network", "depth": "the depth network"}
FILES = {".html": "Download .html", ".json": "Download .json", ".mp4": "Download .mp4"}
"""What may be taken away, by its suffix."""
EXAMPLE = PAIRS[0]
"""The scene of its example, two images or a clip."""
HEIGHT = 900
"""Pixels of the page within the page."""


class ExplainTab:
    """Builds the tab inside the page that is being made."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.models: dict[str, Any] = {"motion": site.flow, "depth": site.depth}
        self.pair = site.examples.pairs[0]
        self.clip = render_clip(site.folder / "examples", *EXAMPLE)

    def build(self) -> None:
        """Make the components and say what they do."""
        gr = require_gradio()
        random = [NETWORKS[name] for name, model in self.models.items() if not model.trained]
        if random:
            gr.HTML(notice(UNTRAINED.format(which=" and of ".join(random)), "warning"), elem_id="explain-untrained")
        result = gr.State(None, time_to_live=KEEP_SECONDS, delete_callback=self.site.forget)
        with gr.Tabs():
            with gr.Tab("Images", id="explain-of-images"):
                first, second, which, compute_images = self._image_inputs()
            with gr.Tab("A clip", id="explain-of-clip"):
                clip = clip_box("explain-clip")
                example_buttons([(self.clip.name, (self.clip.path,))], [clip])
                compute_clip = gr.Button("Show the groups", variant="primary", elem_id="explain-compute-clip")
        message = gr.HTML("", elem_id="explain-message")
        page = gr.HTML("", elem_id="explain-page")
        video = gr.Video(label="Groups", visible=False, elem_id="explain-video", interactive=False, buttons=[])
        with gr.Row(elem_classes="pf-examples"):
            files = [
                gr.DownloadButton(label, visible=False, elem_id=f"explain-download-{suffix[1:]}", size="md")
                for suffix, label in FILES.items()
            ]

        def images_pressed(one: str, two: str, which: str, old: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
            return self._run([Path(each) for each in (one, two) if each], which, old, progress)

        def clip_pressed(path: str, old: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
            return self._run([Path(path)] if path else [], None, old, progress)

        job = {"concurrency_id": "compute", "concurrency_limit": self.site.limits.jobs, "api_visibility": "private"}
        job |= {"show_progress_on": message}
        shown = [result, message, page, video, *files]
        compute_images.click(images_pressed, [first, second, which, result], shown, **job)
        compute_clip.click(clip_pressed, [clip, result], shown, **job)

    def _image_inputs(self) -> tuple[Any, ...]:
        """Boxes for two images, the choice of a network, and the button."""
        gr = require_gradio()
        with gr.Row():
            first = image_box("Image", "explain-first")
            second = image_box("Second image, if there is one", "explain-second")
        example_buttons([(self.pair.name, (self.pair.first, self.pair.second))], [first, second])
        which = gr.Radio(list(NETWORKS), value="motion", label="Network", elem_id="explain-network")
        return first, second, which, gr.Button("Show the groups", variant="primary", elem_id="explain-compute-images")

    def _run(self, paths: list[Path], which: str | None, old: Path | None, progress: Any) -> tuple[Any, ...]:
        """Everything that the page shows next; a sentence, and nothing new, where it cannot be done.

        which: the network to explain; None: the motion network on a clip.
        """
        gr = require_gradio()
        folder = self.site.new_result()
        try:
            output = self._compute(paths, which, folder, lambda share, what: progress(share, desc=what))
        except Exception as error:
            self.site.forget(folder)
            return old, notice(error_message(error, paths)), *(gr.skip() for _ in range(2 + len(FILES)))
        self.site.finish(folder, old)
        video = output.downloads.get(".mp4")
        return (
            folder,
            notice(output.summary, "note"),
            _framed(output.page),
            gr.update(visible=video is not None, value=None if video is None else str(video)),
            *(download(output.downloads.get(suffix)) for suffix in FILES),
        )

    def _compute(self, paths: list[Path], which: str | None, folder: Path, on_progress: Any) -> ExplainOutput:
        if not paths:
            raise InputError("choose a clip first." if which is None else "choose an image first.")
        if which is None:
            return explain_clip(self.models["motion"], self.site.limits, paths[0], folder, on_progress)
        return explain_images(self.models[which], self.site.limits, paths, folder, on_progress)


def _framed(page: str) -> str:
    """A whole page within this one, whose script cannot reach this one; nothing for none."""
    style = f"width: 100%; height: {HEIGHT}px; border: 0; border-radius: 6px"
    return (
        f'<iframe title="groups" sandbox="allow-scripts" style="{style}" srcdoc="{escape(page)}"></iframe>'
        if page
        else ""
    )
