"""Tab for the prototypes of one image, two images or a clip."""

from functools import partial
from html import escape
from pathlib import Path

from protoformer.depth.predictor import DepthPredictor
from protoformer.explain.drawing import draw_prototype_frame
from protoformer.explain.page import save_explanation
from protoformer.explain.video import PrototypeFrame, TrackingRate, describe_tracking_rate
from protoformer.flow.predictor import FlowPredictor
from protoformer.video.types import ImageArray
from protoformer.web.components import (
    ResultPanel,
    clip_input,
    columns,
    image_boxes,
    input_column,
    require_gradio,
    result_column,
)
from protoformer.web.job import Job, JobOutput, message_html
from protoformer.web.site import Example, Site

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
            f"{layer.size[1]}x{layer.size[0]} pixels; {len(layer.used)} of {layer.num_prototypes} prototypes of the "
            f"last layer have pixels{matched}."
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
        frames, progress = predictor.explain_video(clip, **clip.span), job.progress("frame", keeps=True)
        job.write_clip(output, clip, frames, draw_prototype_frame, progress, on_result=count_prototypes)
        height, width = clip.info.size
    return JobOutput(
        summary=(
            f"{rate.num_frames} frames of {width}x{height} pixels, {rate.num_prototypes} prototypes in all"
            f"{describe_tracking_rate(rate)}."
        ),
        downloads={".mp4": output},
        view="",
        video=output,
    )


UNTRAINED = (
    "The weights of {models} are random, so the prototypes are meaningless. Start the page with --model or "
    "--depth-model and a file of trained weights."
)
MODELS = ["flow", "depth"]
"""Models with prototypes, by their names in `Site`."""
MODEL_LABELS = [(name.capitalize(), name) for name in MODELS]
DOWNLOADS = {".html": "Download .html", ".json": "Download .json", ".mp4": "Download .mp4"}


def build_explain_tab(site: Site) -> list[Example]:
    """Create the components of the tab, and return its examples."""
    gr = require_gradio()
    untrained = [f"the {name} model" for name in MODELS if not getattr(site, name).trained]
    pairs, clips = site.demo_images(), site.demo_clips(seconds=1)
    with columns():
        with input_column():
            if untrained:
                text = UNTRAINED.format(models=" and ".join(untrained))
                gr.HTML(message_html(text, "warning"), elem_id="explain-untrained")
            tabs = gr.Tabs()
        with result_column():
            panel = ResultPanel(site, "explain", DOWNLOADS, "The prototypes appear here.", video_label="Prototypes")

    def explain_uploads(job: Job, first: Path | None, second: Path | None, model: str) -> JobOutput:
        return explain_images(getattr(site, model), job, [path for path in (first, second) if path])

    with tabs:
        with gr.Tab("Images", id="explain-of-images"):
            labels = {"explain-first": "Image", "explain-second": "Second image (optional)"}
            images = image_boxes(labels, pairs)
            model = gr.Radio(MODEL_LABELS, value="flow", label="Model", elem_id="explain-model")
            panel.connect("Explain", "images", explain_uploads, [*images, model], "Choose an image first.")
        with gr.Tab("Clip", id="explain-of-clip"):
            clip = clip_input(site, "explain-clip", clips)
            panel.connect_clip(clip)
            compute = partial(explain_clip, site.flow)
            panel.connect("Explain", "clip", compute, [clip.box], "Choose a clip first.", trim=clip.trim)
    return [*pairs, *clips]
