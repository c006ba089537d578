"""Tab for stabilization of a clip."""

from functools import partial
from html import escape
from pathlib import Path

import numpy as np

from protoformer.stabilization.drawing import plot_path
from protoformer.stabilization.predictor import Crop, StabilizationPredictor
from protoformer.stabilization.result import StabilizedFrame
from protoformer.video.types import ImageArray
from protoformer.viz.report import format_count
from protoformer.web.components import (
    ResultPanel,
    clip_input,
    columns,
    input_column,
    require_gradio,
    result_column,
)
from protoformer.web.decoding import clip_writer
from protoformer.web.job import Job, JobOutput
from protoformer.web.site import Example, Site


def stabilize_clip(
    predictor: StabilizationPredictor,
    job: Job,
    path: Path,
    strength: float = 1.0,
    crop: Crop = "auto",
    tripod: bool = False,
) -> JobOutput:
    """Stabilize a clip; write stable.mp4 and, with the input on the left, comparison.mp4."""
    stable, comparison = job.folder / "stable.mp4", job.folder / "comparison.mp4"
    analyzing = job.progress("analyzing frame", 0, 0.8, keeps=True)
    writing = job.progress("writing frame", 0.8, 1, keeps=True)
    with job.decode_clip(path) as clip:
        clip.is_stopped = lambda: job.control.stopped  # the frames that were analyzed are then stabilized
        result = predictor.stabilize(
            clip,
            **clip.span,
            strength=strength,
            crop=crop,
            tripod=tripod,
            progress=lambda done, _: analyzing(done, len(clip)),
        )
        clip.is_stopped = lambda: False
        both = clip_writer(comparison, clip, job.limits, job.deadline)

        def write_comparison(frame: StabilizedFrame, _: ImageArray | None) -> None:
            both.write(np.concatenate((frame.frame, frame.stabilized), axis=1), frame.time)

        def draw(frame: StabilizedFrame) -> ImageArray:
            return frame.stabilized

        frames, total = predictor.frames(clip, result), len(result.times)
        count = job.write_clip(
            stable,
            clip,
            frames,
            draw,
            lambda done, _: writing(done, total),
            outputs=[both],
            on_result=write_comparison,
            stops=not job.control.stopped,
        )
    charts = "".join(
        f"<figure><figcaption>{escape(figure.caption.capitalize())}</figcaption>{figure.content}</figure>"
        for figure in plot_path(result)
        if isinstance(figure.content, str)  # an SVG
    )
    (height, width), (before, after) = result.size, result.acceleration
    return JobOutput(
        summary=(
            f"{format_count(count, 'frame')} of {width}x{height} pixels; {result.cropping:.1%} of each "
            f"side is shown; mean camera acceleration {after:.2f} px/frame\u00b2, {before:.2f} px/frame\u00b2 before."
        ),
        downloads={".mp4": stable},
        view=f'<div class="pf-charts">{charts}</div>',
        video=comparison,
    )


CROPS = [("automatic", "auto"), ("none (black borders)", "none")]


def build_stabilize_tab(site: Site) -> list[Example]:
    """Create the components of the tab, and return its examples. Without training, the planned path is valid, too."""
    gr = require_gradio()
    clips = [*site.demo_clips(), site.example_clip("Shaky walk (rendered)", "handheld", 1, num_frames=16)]
    with columns():
        with input_column():
            clip = clip_input(site, "stabilize-clip", clips)
            with gr.Group(elem_classes="pf-options"):
                strength = gr.Slider(
                    0, 1, value=1, step=0.05, label="Strength", elem_id="stabilize-strength", buttons=[]
                )
                crop = gr.Radio(CROPS, value="auto", label="Crop", elem_id="stabilize-crop")
                tripod = gr.Checkbox(label="Static camera (tripod)", elem_id="stabilize-tripod")
            buttons = gr.Column(elem_classes="pf-buttons")
        with result_column():
            empty = "The stabilized clip appears here, beside the input."
            panel = ResultPanel(site, "stabilize", {".mp4": "Download .mp4"}, empty, video_label="Before | after")
    with buttons:
        panel.connect_clip(clip)
        compute, inputs = partial(stabilize_clip, site.stabilizer), [clip.box, strength, crop, tripod]
        panel.connect("Stabilize", "clip", compute, inputs, "Choose a clip first.", trim=clip.trim)
    return clips
