"""The tab for stabilization: a shaky clip in, the steady one and its path out."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protoformer.errors import InputError, UntrainedWarning
from protoformer.loading import load_stabilizer
from protoformer.stabilization.drawing import plot_path
from protoformer.stabilization.predictor import StabilizationPredictor, StabilizeOptions
from protoformer.stabilization.result import StabilizationResult
from protoformer.viz.text import format_count
from protoformer.web.components import clip_box, example_buttons, require_gradio
from protoformer.web.decoding import clip_writer, decode_clip
from protoformer.web.examples import ClipExample, render_clip
from protoformer.web.limits import Deadline, Limits, ProgressCallback
from protoformer.web.site import KEEP_SECONDS, Site, error_message, notice


@dataclass(frozen=True)
class StabilizeOutput:
    """The steady clip; a clip of both side by side; svg pictures of the path; and a sentence about it."""

    video: Path
    beside: Path
    path: str
    summary: str


def stabilize_upload(
    model: StabilizationPredictor,
    limits: Limits,
    path: Path,
    options: StabilizeOptions,
    folder: Path,
    on_progress: ProgressCallback = lambda *_: None,
) -> StabilizeOutput:
    """Make a clip steady; stable.mp4 and beside.mp4 go into the folder."""
    deadline = Deadline(limits.seconds)
    with decode_clip(limits, path, deadline) as video:
        count = len(video)

        def looked(done: int, _: int) -> None:
            deadline.check()
            on_progress(0.8 * done / count, f"frame {done} of {count}")

        result = model.stabilize(
            video, strength=options.strength, crop=options.crop, tripod=options.tripod, progress=looked
        )
        output = StabilizeOutput(folder / "stable.mp4", folder / "beside.mp4", _path(result), _summary(result))
        with (
            clip_writer(output.video, video, limits, deadline) as steady_clip,
            clip_writer(output.beside, video, limits, deadline) as both,
        ):
            for moment, shaky, steady in model.frames(video, result):
                deadline.check()
                steady_clip.write(steady, moment)
                both.write(np.concatenate((shaky, steady), axis=1), moment)
                on_progress(0.8 + 0.2 * steady_clip.frames / count, f"writing frame {steady_clip.frames} of {count}")
    return output


def _path(result: StabilizationResult) -> str:
    return "".join(str(figure.content) for figure in plot_path(result))


def _summary(result: StabilizationResult) -> str:
    (height, width), (before, after) = result.size, result.acceleration
    many = format_count(len(result.times), "frame")
    return (
        f"{many} of {width}x{height} pixels; {result.cropping:.1%} of each side is shown; the camera's velocity "
        f"changes by {after:.2f} px a frame, {before:.2f} before."
    )


EXAMPLE = ("A shaky walk", "handheld", 1, 16)
"""What it is called, the family and number of its scene, and its frames."""
CROPS = {"as much as there is": "auto", "all, black at the rim": "none"}


class StabilizeTab:
    """Builds the tab inside the page that is being made."""

    def __init__(self, site: Site) -> None:
        self.site = site
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UntrainedWarning)  # its paths are planned, and true without training
            self.model = load_stabilizer(site.stabilize_model)
        self.example: ClipExample = render_clip(site.folder / "examples" / "stabilize", *EXAMPLE)

    def build(self) -> None:
        """Make the components and say what they do."""
        gr = require_gradio()
        clip = clip_box("stabilize-clip")
        example_buttons([(self.example.name, (self.example.path,))], [clip])
        with gr.Row():
            strength = gr.Slider(0, 1, value=1, step=0.05, label="Strength", elem_id="stabilize-strength", buttons=[])
            crop = gr.Radio(list(CROPS), value=next(iter(CROPS)), label="Shown", elem_id="stabilize-crop")
            tripod = gr.Checkbox(label="As if the camera stood still", elem_id="stabilize-tripod")
        compute = gr.Button("Make it steady", variant="primary", elem_id="stabilize-compute")
        self._connect(compute, [clip, strength, crop, tripod])

    def _connect(self, compute: Any, given: list[Any]) -> None:
        gr = require_gradio()
        message = gr.HTML("", elem_id="stabilize-message")
        result = gr.State(None, time_to_live=KEEP_SECONDS, delete_callback=self.site.forget)
        video = gr.Video(
            label="Before and after", visible=False, elem_id="stabilize-video", interactive=False, buttons=[]
        )
        path = gr.HTML("", elem_id="stabilize-path")
        download = gr.DownloadButton("Download .mp4", visible=False, elem_id="stabilize-download", size="md")

        def pressed(
            path: str | None,
            strength: float,
            crop: str,
            tripod: bool,
            old: Any,
            progress: Any = gr.Progress(),  # noqa: B008
        ) -> Any:
            return self._run(path, (strength, crop, tripod), old, lambda share, what: progress(share, desc=what))

        compute.click(
            pressed,
            [*given, result],
            [result, message, video, path, download],
            concurrency_id="compute",
            concurrency_limit=self.site.limits.jobs,
            api_visibility="private",
            show_progress_on=message,
        )

    def _run(
        self, path: str | None, wanted: tuple[float, str, bool], old: Path | None, on_progress: Any
    ) -> tuple[Any, ...]:
        """Everything that the page shows next; a sentence, and nothing new, where it cannot be done."""
        gr = require_gradio()
        folder = self.site.new_result()
        try:
            if not path:
                raise InputError("choose a clip first.")
            strength, crop, tripod = wanted
            options = StabilizeOptions(strength, CROPS.get(crop, crop), tripod)
            output = stabilize_upload(self.model, self.site.limits, Path(path), options, folder, on_progress)
        except Exception as error:
            self.site.forget(folder)
            told_of = error_message(error, [Path(path)] if path else [])
            return old, notice(told_of), *(gr.skip() for _ in range(3))
        self.site.finish(folder, old)
        return (
            folder,
            notice(output.summary, "note"),
            gr.update(visible=True, value=str(output.beside)),
            output.path,
            gr.update(visible=True, value=str(output.video)),
        )
