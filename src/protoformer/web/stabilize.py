"""Tab for stabilization of a clip."""

from functools import partial
from pathlib import Path

import numpy as np

from protoformer.stabilization.drawing import plot_path
from protoformer.stabilization.predictor import Crop, StabilizationPredictor
from protoformer.stabilization.result import StabilizedFrame
from protoformer.video.types import ImageArray
from protoformer.viz.report import format_count
from protoformer.web.components import ResultPanel, clip_box, require_gradio
from protoformer.web.decoding import clip_writer
from protoformer.web.job import Job, JobOutput
from protoformer.web.site import Site


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
    analyzing, writing = job.progress("analyzing frame", 0, 0.8), job.progress("writing frame", 0.8, 1)
    with job.decode_clip(path) as clip:
        result = predictor.stabilize(
            clip, strength=strength, crop=crop, tripod=tripod, progress=lambda done, _: analyzing(done, len(clip))
        )
        both = clip_writer(comparison, clip, job.limits, job.deadline)

        def write_comparison(frame: StabilizedFrame, _: ImageArray | None) -> None:
            both.write(np.concatenate((frame.frame, frame.stabilized), axis=1), frame.time)

        def draw(frame: StabilizedFrame) -> ImageArray:
            return frame.stabilized

        frames = predictor.frames(clip, result)
        job.write_clip(stable, clip, frames, draw, writing, outputs=[both], on_result=write_comparison)
    (height, width), (before, after) = result.size, result.acceleration
    return JobOutput(
        summary=(
            f"{format_count(len(result.times), 'frame')} of {width}x{height} pixels; {result.cropping:.1%} of each "
            f"side is shown; mean camera acceleration {after:.2f} px/frame\u00b2, {before:.2f} px/frame\u00b2 before."
        ),
        downloads={".mp4": stable},
        view="".join(str(figure.content) for figure in plot_path(result)),
        video=comparison,
    )


CROPS = [("automatic", "auto"), ("none (black borders)", "none")]


def build_stabilize_tab(site: Site) -> None:
    """Create the components of the tab. Without training, the planned camera path is valid, too."""
    gr = require_gradio()
    clip = clip_box("stabilize-clip", site.example_clip("A shaky walk", "handheld", 1, num_frames=16))
    with gr.Row():
        strength = gr.Slider(0, 1, value=1, step=0.05, label="Strength", elem_id="stabilize-strength", buttons=[])
        crop = gr.Radio(CROPS, value="auto", label="Crop", elem_id="stabilize-crop")
        tripod = gr.Checkbox(label="Static camera (tripod)", elem_id="stabilize-tripod")
    button = gr.Button("Stabilize", variant="primary", elem_id="stabilize-compute")
    panel = ResultPanel(site, "stabilize", {".mp4": "Download .mp4"}, video_label="Before and after")
    compute = partial(stabilize_clip, site.stabilizer)
    panel.connect(button, "stabilize_clip", compute, [clip, strength, crop, tripod], "Choose a clip first.")
