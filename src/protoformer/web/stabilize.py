"""Tab for stabilization of a clip."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from protoformer.errors import InputError
from protoformer.stabilization.drawing import plot_path
from protoformer.stabilization.predictor import StabilizationPredictor, StabilizeOptions
from protoformer.stabilization.result import StabilizationResult
from protoformer.video.types import ImageArray
from protoformer.viz.text import format_count
from protoformer.web.components import ResultPanel, clip_box, example_buttons, require_gradio
from protoformer.web.decoding import DecodedClip, clip_writer
from protoformer.web.job import Job, JobOutput
from protoformer.web.site import Site


@dataclass(frozen=True)
class _Frame:
    time: Fraction
    image: ImageArray
    stabilized: ImageArray


def stabilize_clip(predictor: StabilizationPredictor, job: Job, path: Path, options: StabilizeOptions) -> JobOutput:
    """Stabilize a clip; write stable.mp4 and, with the input on the left, comparison.mp4."""
    stable, comparison = job.folder / "stable.mp4", job.folder / "comparison.mp4"
    with job.decode_clip(path) as clip:
        progress = job.progress("analyzing frame", 0, 0.8)
        result = predictor.stabilize(
            clip,
            strength=options.strength,
            crop=options.crop,
            tripod=options.tripod,
            progress=lambda done, _: progress(done, len(clip)),
        )
        second_writer = clip_writer(comparison, clip, job.limits, job.deadline)

        def write_comparison(frame: _Frame, _: ImageArray | None) -> None:
            second_writer.write(np.concatenate((frame.image, frame.stabilized), axis=1), frame.time)

        job.write_clip(
            stable,
            clip,
            _frames(predictor, clip, result),
            lambda frame: frame.stabilized,
            job.progress("writing frame", 0.8, 1),
            outputs=[second_writer],
            on_result=write_comparison,
        )
    return JobOutput(
        summary=_summarize(result),
        downloads={".mp4": stable},
        view="".join(str(figure.content) for figure in plot_path(result)),
        video=comparison,
    )


def _frames(predictor: StabilizationPredictor, clip: DecodedClip, result: StabilizationResult) -> Iterator[_Frame]:
    return (_Frame(*frame) for frame in predictor.frames(clip, result))


def _summarize(result: StabilizationResult) -> str:
    (height, width), (before, after) = result.size, result.acceleration
    return (
        f"{format_count(len(result.times), 'frame')} of {width}x{height} pixels; {result.cropping:.1%} of each side is "
        f"shown; camera acceleration {after:.2f} px per frame, {before:.2f} before."
    )


CROPS = {"automatic": "auto", "none (black borders)": "none"}


class StabilizeTab:
    """Stabilization: upload box, options and results."""

    def __init__(self, site: Site) -> None:
        self.site, self.predictor = site, site.stabilizer  # even untrained, it plans a valid camera path
        self.clip = site.example_clip("A shaky walk", "handheld", 1, num_frames=16)

    def build(self) -> None:
        """Create the components."""
        gr = require_gradio()
        clip = clip_box("stabilize-clip")
        example_buttons([self.clip], [clip])
        with gr.Row():
            strength = gr.Slider(0, 1, value=1, step=0.05, label="Strength", elem_id="stabilize-strength", buttons=[])
            crop = gr.Radio(list(CROPS), value=next(iter(CROPS)), label="Crop", elem_id="stabilize-crop")
            tripod = gr.Checkbox(label="Static camera (tripod)", elem_id="stabilize-tripod")
        compute = gr.Button("Stabilize", variant="primary", elem_id="stabilize-compute")
        panel = ResultPanel(self.site, "stabilize", {".mp4": "Download .mp4"})
        panel.connect(compute, "stabilize_clip", self._compute, [clip, strength, crop, tripod])

    def _compute(self, job: Job, path: Path | None, strength: float, crop: str, tripod: bool) -> JobOutput:
        if path is None:
            raise InputError("choose a clip first.")
        return stabilize_clip(self.predictor, job, path, StabilizeOptions(strength, CROPS.get(crop, crop), tripod))
