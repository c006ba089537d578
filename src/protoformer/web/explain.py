"""Tab for the prototypes of one image, two images or a clip."""

from html import escape
from pathlib import Path

from protoformer.depth.predictor import DepthPredictor
from protoformer.errors import InputError
from protoformer.explain.drawing import draw_prototype_frame
from protoformer.explain.page import save_explanation
from protoformer.explain.video import PrototypeFrame, TrackingRate, describe_tracking_rate
from protoformer.flow.predictor import FlowPredictor
from protoformer.video.types import ImageArray
from protoformer.web.components import ResultPanel, clip_box, example_buttons, image_box, require_gradio
from protoformer.web.job import Job, JobOutput, message_html
from protoformer.web.site import Site

FRAME_HEIGHT = 900
"""Height of the embedded page, pixels."""


def explain_images(predictor: FlowPredictor | DepthPredictor, job: Job, paths: list[Path]) -> JobOutput:
    """Explain the prototypes of one image or two; write the interactive page, explanation.json and pictures."""
    images = [job.decode_image(path) for path in paths]
    explanation = predictor.explain(*images, progress=job.progress("step", 0, 0.5))
    job.deadline.check()
    save_explanation(job.folder, explanation, progress=job.progress("drawing", 0.5, 1))
    layer = explanation.first.layer()
    matched = f", {len(explanation.matches())} of them matched in the second image" if explanation.second else ""
    page = (job.folder / "index.html").read_text(encoding="utf-8")
    return JobOutput(
        summary=(
            f"{layer.size[1]}x{layer.size[0]} pixels; {len(layer.used)} of {layer.count} prototypes of the last layer "
            f"have pixels{matched}."
        ),
        downloads={".html": job.folder / "index.html", ".json": job.folder / "explanation.json"},
        # In this sandbox, scripts of the embedded page cannot access the page around it.
        view=(
            f'<iframe title="prototypes" sandbox="allow-scripts" srcdoc="{escape(page)}" '
            f'style="width: 100%; height: {FRAME_HEIGHT}px; border: 0; border-radius: 6px"></iframe>'
        ),
    )


def explain_clip(predictor: FlowPredictor, job: Job, path: Path) -> JobOutput:
    """Draw the prototypes of every frame of a clip; write prototypes.mp4."""
    rate = TrackingRate()
    output = job.folder / "prototypes.mp4"

    def count_prototypes(frame: PrototypeFrame, _: ImageArray | None) -> None:
        rate.add(frame)

    with job.decode_clip(path) as clip:
        frames, progress = predictor.explain_video(clip), job.progress("frame")
        job.write_clip(output, clip, frames, draw_prototype_frame, progress, on_result=count_prototypes)
        height, width = clip.info.size
    return JobOutput(
        summary=(
            f"{rate.frames} frames of {width}x{height} pixels, {rate.prototypes} prototypes in all"
            f"{describe_tracking_rate(rate)}."
        ),
        downloads={".mp4": output},
        view="",
        video=output,
    )


UNTRAINED = (
    "The {models} was not trained: the prototypes are those of random weights. Start the page with --model or "
    "--depth-model and a file of trained weights."
)
MODELS = {"flow": "flow model", "depth": "depth model"}
DOWNLOADS = {".html": "Download .html", ".json": "Download .json", ".mp4": "Download .mp4"}


class ExplainTab:
    """Prototypes: upload boxes and results."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.predictors: dict[str, FlowPredictor | DepthPredictor] = {"flow": site.flow, "depth": site.depth}
        self.pair = site.example_images("Flying objects", "objects", 3)
        self.clip = site.example_clip("Flying objects", "objects", 3)

    def build(self) -> None:
        """Create the components."""
        gr = require_gradio()
        untrained = [MODELS[name] for name, predictor in self.predictors.items() if not predictor.trained]
        if untrained:
            text = UNTRAINED.format(models=" and the ".join(untrained))
            gr.HTML(message_html(text, "warning"), elem_id="explain-untrained")
        with gr.Tabs():
            with gr.Tab("Images", id="explain-of-images"):
                with gr.Row():
                    first = image_box("Image", "explain-first")
                    second = image_box("Second image (optional)", "explain-second")
                example_buttons([self.pair], [first, second])
                model = gr.Radio(list(MODELS), value="flow", label="Model", elem_id="explain-model")
                compute_images = gr.Button("Explain", variant="primary", elem_id="explain-compute-images")
            with gr.Tab("Clip", id="explain-of-clip"):
                clip = clip_box("explain-clip")
                example_buttons([self.clip], [clip])
                compute_clip = gr.Button("Explain", variant="primary", elem_id="explain-compute-clip")
        panel = ResultPanel(self.site, "explain", DOWNLOADS)
        panel.connect(compute_images, "explain_images", self._compute_images, [first, second, model])
        panel.connect(compute_clip, "explain_clip", self._compute_clip, [clip])

    def _compute_images(self, job: Job, first: Path | None, second: Path | None, model: str) -> JobOutput:
        paths = [path for path in (first, second) if path is not None]
        if not paths:
            raise InputError("choose an image first.")
        return explain_images(self.predictors[model], job, paths)

    def _compute_clip(self, job: Job, path: Path | None) -> JobOutput:
        if path is None:
            raise InputError("choose a clip first.")
        return explain_clip(self.site.flow, job, path)
