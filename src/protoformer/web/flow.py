"""The tab for optical flow: two images or a clip in, colors, vectors and a file out."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.flow.drawing import draw_flow_frame, flow_viewer_data
from protoformer.flow.predictor import FlowPredictor
from protoformer.flow.tiling import plan_flow
from protoformer.flow.video import FlowFrame, FlowVideo
from protoformer.geometry.resizing import resize
from protoformer.io.image_input import as_image, image_pair
from protoformer.models.encoder import STRIDES
from protoformer.models.heads.flow import normalize_images
from protoformer.models.prototyping import Prototypes
from protoformer.viz.colormaps import color_wheel_legend
from protoformer.viz.html import png_data_uri
from protoformer.viz.images import draw_assignment, to_uint8
from protoformer.web.components import (
    VIEWER_STYLE,
    clip_box,
    connect_slider,
    example_buttons,
    image_box,
    require_gradio,
    viewer_script,
)
from protoformer.web.decoding import clip_writer, decode_clip, decode_image
from protoformer.web.limits import Deadline, Limits, ProgressCallback
from protoformer.web.site import CLIP_CELLS, KEEP_SECONDS, Site, error_message, load_view, notice, save_view


@dataclass(frozen=True)
class FlowOutput:
    """What was computed.

    view: for the viewer, of the first pair. prototypes: a picture's address, or "" where the image was computed in
    windows, which have none of their own. download: the file to take away. pairs: how many there are to look at.
    summary: a sentence about it.
    """

    view: dict[str, Any]
    prototypes: str
    download: Path
    pairs: int
    summary: str


def flow_pair(
    model: FlowPredictor,
    limits: Limits,
    paths: tuple[Path, Path],
    folder: Path,
    on_progress: ProgressCallback = lambda *_: None,
) -> FlowOutput:
    """The flow between two images; motion.flo goes into the folder."""
    deadline = Deadline(limits.seconds)
    images = image_pair(*(decode_image(limits, path, deadline) for path in paths))
    size = (images[0].shape[2], images[0].shape[3])
    tile = plan_flow(size, model.network.config, model.device).tile

    def progress(done: int, total: int) -> None:
        deadline.check()
        on_progress(done / total, "flow")

    result = model.flow(*images, tile=tile, return_prototypes=tile is None, progress=progress)
    result.save(folder / "motion.flo")
    lengths = result.flow.norm(dim=0)
    scale = max(1.0, float(lengths.flatten()[:: max(1, lengths.numel() // 10**6)].quantile(0.99)))
    image = images[0][0]
    return FlowOutput(
        view=flow_viewer_data(result, to_uint8(image), scale),
        prototypes=_prototypes(result.prototypes[0][-1], image, result.input_size) if tile is None else "",
        download=folder / "motion.flo",
        pairs=1,
        summary=(
            f"{size[1]}x{size[0]} pixels, mean motion {float(lengths.mean()):.2f} px, "
            f"largest {float(lengths.max()):.2f} px; colors are full at {scale:.1f} px."
        ),
    )


def flow_clip(
    model: FlowPredictor, limits: Limits, path: Path, folder: Path, on_progress: ProgressCallback = lambda *_: None
) -> FlowOutput:
    """The flow of every pair of a clip; motion.mp4 and what `kept_view` reads go into the folder."""
    deadline = Deadline(limits.seconds)
    with decode_clip(limits, path, deadline) as clip:
        count = len(clip)
        video = model.flow_video(clip)

        def looking(done: int, total: int) -> None:
            deadline.check()
            on_progress(0.0, f"sampling frames, {done} of {total}")

        scale = video.typical_motion(looking)
        prototypes, motion, pairs = "", 0.0, 0
        with clip_writer(folder / "motion.mp4", clip, limits, deadline) as writer:
            for step in video:
                deadline.check()
                if pairs == 0:
                    prototypes = _first_prototypes(model, video, step)
                beside = draw_flow_frame(step, scale, side_by_side=True)
                writer.write(beside, step.time)
                image = beside[:, : step.flow.shape[2]]
                save_view(folder, pairs, flow_viewer_data(step, image, scale, CLIP_CELLS))
                pairs, motion = pairs + 1, motion + float(step.flow.norm(dim=0).mean())
                on_progress(pairs / max(pairs, count - 1), f"frame {pairs} of {count - 1}")
        height, width = clip.info.size
        return FlowOutput(
            view=load_view(folder, 0),
            prototypes=prototypes,
            download=folder / "motion.mp4",
            pairs=pairs,
            summary=(
                f"{pairs + 1} frames of {width}x{height} pixels, mean motion {motion / pairs:.2f} px; "
                f"colors are full at {scale:.1f} px."
            ),
        )


@torch.no_grad()
def _first_prototypes(model: FlowPredictor, video: FlowVideo, step: FlowFrame) -> str:
    """The picture of a frame's prototypes; "" where it is computed in windows."""
    if step.frame is None or video.plan is None or video.plan.tile is not None:
        return ""
    image = as_image(step.frame)[0]
    shown = resize(image[None].to(model.device), video.plan.working)
    prototypes = model.network.encoder(normalize_images(shown), True).prototypes[0][-1]
    return _prototypes(prototypes.first(1).cpu(), image, step.input_size)


def _prototypes(prototypes: Prototypes, image: Tensor, seen: tuple[int, int] | None) -> str:
    """The address of a picture of an image's finest prototypes."""
    return png_data_uri(draw_assignment(prototypes, image, STRIDES[0], input_size=seen))


HINT = "Move the mouse over a picture to read the motion of a pixel."

TEMPLATE = """
<div class="viewer">${value && value.image ? `
  <div class="pictures">
    <figure><div class="stage"><img class="first" alt="the first image" src="${value.image}"
      ><span class="mark"></span></div><figcaption>First image</figcaption></figure>
    <figure><div class="stage"><img class="flow" alt="its motion in colors" src="${value.flow}"
      ><span class="mark"></span></div><figcaption>Motion: hue is direction, strength is speed</figcaption></figure>
    <figure class="wheel"><img alt="the color of every direction" src="${wheel}"
      ><figcaption>rim: ${value.scale.toFixed(1)} px</figcaption></figure>
  </div>
  <p class="readout" aria-live="off">${hint}</p>` : `
  <p class="empty">Nothing is computed yet. Choose images, a clip or an example, and press the button.</p>`}
</div>
"""

UNPACKED = "(value) => ({ vectors: new DataView(bytes(value.vectors).buffer), confidence: bytes(value.confidence) })"
DESCRIBE = """(value, known, cell) => {
  const u = known.vectors.getInt16(2 * cell, true) * value.unit;
  const v = known.vectors.getInt16(2 * (value.rows * value.columns + cell), true) * value.unit;
  return `u = ${u.toFixed(2)} px  v = ${v.toFixed(2)} px`;
}"""


def flow_viewer(wheel: str) -> Any:
    """The component, whose value is a `show.flow_view`. wheel: the address of a picture of the colors."""
    return require_gradio().HTML(
        value=None,
        html_template=TEMPLATE,
        css_template=VIEWER_STYLE,
        js_on_load=viewer_script(UNPACKED, DESCRIBE),
        elem_id="flow-viewer",
        wheel=wheel,
        hint=HINT,
    )


UNTRAINED = (
    "The weights of this model are random: it was not trained, so the motion and the prototypes shown here mean "
    "nothing. Everything else works as it would with trained ones; start the page with --model and a file of yours."
)
NO_PROTOTYPES = "The image was computed in windows, which have no prototypes of its own: make it smaller to see them."
PROTOTYPES = "Each color is one prototype, and the pixels of the first image that it stands for."


class FlowTab:
    """Builds the tab inside the page that is being made."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.model, self.examples = site.flow, site.examples

    def build(self) -> None:
        """Make the components and say what they do."""
        gr = require_gradio()
        if not self.model.trained:
            gr.HTML(notice(UNTRAINED, "warning"), elem_id="flow-untrained")
        result = gr.State(None, time_to_live=KEEP_SECONDS, delete_callback=self.site.forget)
        with gr.Tabs():
            with gr.Tab("Two images", id="pair"):
                first, second, compute_pair = self._pair_inputs()
            with gr.Tab("A clip", id="clip"):
                clip, compute_clip = self._clip_inputs()
        message = gr.HTML("", elem_id="flow-message")
        viewer = flow_viewer(png_data_uri(color_wheel_legend(168)))
        slider = gr.Slider(1, 2, value=1, step=1, label="Frame", visible=False, elem_id="flow-slider", buttons=[])
        download = gr.DownloadButton("Download", visible=False, elem_id="flow-download", size="md")
        with gr.Accordion("Prototypes of the first image", open=False, visible=False, elem_id="flow-groups") as groups:
            prototypes = gr.HTML("", elem_id="flow-prototypes")
        shown = [result, message, viewer, slider, download, groups, prototypes]

        def pair_pressed(one: str, two: str, old: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
            return self._run(_given(one, two), 2, old, progress)

        def clip_pressed(path: str, old: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
            return self._run(_given(path), 1, old, progress)

        job = {"concurrency_id": "compute", "concurrency_limit": self.site.limits.jobs, "api_visibility": "private"}
        job |= {"show_progress_on": viewer}
        compute_pair.click(pair_pressed, [first, second, result], shown, **job)
        compute_clip.click(clip_pressed, [clip, result], shown, **job)
        connect_slider(slider, result, viewer, message, load_view)

    def _pair_inputs(self) -> tuple[Any, Any, Any]:
        """Boxes for two images, and the button."""
        gr = require_gradio()
        with gr.Row():
            first, second = (image_box(f"{place} image", f"flow-{place.lower()}") for place in ("First", "Second"))
        example_buttons(((pair.name, (pair.first, pair.second)) for pair in self.examples.pairs), [first, second])
        return first, second, gr.Button("Compute the motion", variant="primary", elem_id="flow-compute-pair")

    def _clip_inputs(self) -> tuple[Any, Any]:
        """A box for a clip, and the button."""
        gr = require_gradio()
        clip = clip_box("flow-clip")
        example_buttons(((example.name, (example.path,)) for example in self.examples.clips), [clip])
        return clip, gr.Button("Compute the motion", variant="primary", elem_id="flow-compute-clip")

    def _run(self, paths: tuple[Path, ...], wanted: int, old: Path | None, progress: Any) -> tuple[Any, ...]:
        """Everything that the page shows next; a sentence, and nothing new, where it cannot be done."""
        gr = require_gradio()
        folder = self.site.new_result()
        try:
            output = self._compute(paths, wanted, folder, lambda share, what: progress(share, desc=what))
        except Exception as error:
            self.site.forget(folder)
            return old, notice(error_message(error, paths)), *(gr.skip() for _ in range(5))
        self.site.finish(folder, old)
        suffix = output.download.suffix
        return (
            folder,
            notice(output.summary, "note"),
            output.view,
            gr.update(visible=output.pairs > 1, minimum=1, maximum=max(2, output.pairs), value=1),
            gr.update(visible=True, value=str(output.download), label=f"Download {suffix}"),
            gr.update(visible=True),
            _prototypes_html(output),
        )

    def _compute(self, paths: tuple[Path, ...], wanted: int, folder: Path, on_progress: Any) -> FlowOutput:
        if len(paths) < wanted:
            raise InputError("choose two images first." if wanted == 2 else "choose a clip first.")
        if len(paths) == 2:
            return flow_pair(self.model, self.site.limits, (paths[0], paths[1]), folder, on_progress)
        return flow_clip(self.model, self.site.limits, paths[0], folder, on_progress)


def _given(*paths: str | None) -> tuple[Path, ...]:
    """The paths of what was given, which may be fewer than needed."""
    return tuple(Path(path) for path in paths if path)


def _prototypes_html(output: FlowOutput) -> str:
    if not output.prototypes:
        return f"<p>{escape(NO_PROTOTYPES)}</p>"
    return f'<p>{escape(PROTOTYPES)}</p><img alt="prototypes of the first image" src="{output.prototypes}">'
