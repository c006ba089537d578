"""The tab for depth: an image or a clip in, colors, meters and files out."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from protoformer.depth.camera import describe_camera
from protoformer.depth.drawing import depth_viewer_data, draw_depth_frame
from protoformer.depth.predictor import DepthPredictor
from protoformer.depth.result import RANGES, DepthRange
from protoformer.errors import InputError
from protoformer.geometry.resizing import limited_size, shrink
from protoformer.io.image_input import as_image, to_float
from protoformer.models.encoder import STRIDES
from protoformer.viz.colormaps import default_depth_range, depth_legend
from protoformer.viz.html import png_data_uri
from protoformer.viz.images import draw_assignment, to_uint8
from protoformer.web.components import (
    VIEWER_STYLE,
    clip_box,
    connect_slider,
    download,
    example_buttons,
    image_box,
    require_gradio,
    viewer_script,
)
from protoformer.web.decoding import clip_writer, decode_clip, decode_image
from protoformer.web.examples import render_clip, render_image
from protoformer.web.limits import Deadline, Limits, ProgressCallback
from protoformer.web.site import CLIP_CELLS, KEEP_SECONDS, Site, error_message, load_view, notice, save_view


@dataclass(frozen=True)
class DepthRequest:
    """What people say of the camera and the scene: degrees across the width, and a range; None: they do not know."""

    fov: float | None = None
    range: DepthRange = None


@dataclass(frozen=True)
class DepthOutput:
    """What was computed.

    view: for the viewer, of the first frame. prototypes: a picture's address, or "" for a clip. downloads: the files to
    take away, by their suffix. frames: how many there are to look at. summary: a sentence about it.
    """

    view: dict[str, Any]
    prototypes: str
    downloads: dict[str, Path]
    frames: int
    summary: str


def depth_image(
    model: DepthPredictor,
    limits: Limits,
    path: Path,
    folder: Path,
    request: DepthRequest,
    on_progress: ProgressCallback = lambda *_: None,
) -> DepthOutput:
    """The depth of an image; depth.png (16 bits, millimeters), depth.npy and depth.ply go into the folder."""
    deadline = Deadline(limits.seconds)
    decoded = decode_image(limits, path, deadline)

    def progress(done: int, total: int) -> None:
        deadline.check()
        on_progress(done / total, "depth")

    result = model.depth(decoded, fov=request.fov, range=request.range, return_prototypes=True, progress=progress)
    image = as_image(decoded)[0]
    downloads = {suffix: folder / f"depth{suffix}" for suffix in (".png", ".npy", ".ply")}
    result.save(downloads[".png"], "mm")
    result.save(downloads[".npy"])
    result.save(downloads[".ply"], image=image)
    size = (image.shape[1], image.shape[2])
    camera = describe_camera(result.camera, float(result.intrinsics[0, 0]))
    seen = shrink(to_float(image)[None], limited_size(size, model.network.config.depth.max_pixels))[0]
    return DepthOutput(
        view=depth_viewer_data(result, to_uint8(image), default_depth_range(result.numpy())),
        prototypes=png_data_uri(draw_assignment(result.prototypes[0][-1], seen, STRIDES[0])),
        downloads=downloads,
        frames=1,
        summary=f"{size[1]}x{size[0]} pixels, median depth {float(result.depth.median()):.2f} m; {camera}.",
    )


def depth_clip(
    model: DepthPredictor,
    limits: Limits,
    path: Path,
    folder: Path,
    request: DepthRequest,
    on_progress: ProgressCallback = lambda *_: None,
) -> DepthOutput:
    """The depth of every frame of a clip; depth.mp4 and what `kept_view` reads go into the folder."""
    deadline = Deadline(limits.seconds)
    with decode_clip(limits, path, deadline) as movie:
        count = len(movie)
        video = model.depth_video(movie, fov=request.fov, range=request.range)

        def looking(done: int, total: int) -> None:
            deadline.check()
            on_progress(0.0, f"sampling frames, {done} of {total}")

        colors = video.typical_range(looking)
        frames, camera = 0, ""
        with clip_writer(folder / "depth.mp4", movie, limits, deadline) as writer:
            for step in video:
                deadline.check()
                beside = draw_depth_frame(step, colors, side_by_side=True)
                writer.write(beside, step.time)
                save_view(folder, frames, depth_viewer_data(step, beside[:, : step.depth.shape[2]], colors, CLIP_CELLS))
                frames, camera = frames + 1, describe_camera(step.camera, float(step.intrinsics[0, 0]))
                on_progress(frames / max(frames, count), f"frame {frames} of {count}")
        height, width = movie.info.size
        return DepthOutput(
            view=load_view(folder, 0),
            prototypes="",
            downloads={".mp4": folder / "depth.mp4"},
            frames=frames,
            summary=(
                f"{frames} frames of {width}x{height} pixels; colors from {colors[0]:.2f} to {colors[1]:.2f} m; "
                f"{camera}."
            ),
        )


HINT = "Move the mouse over a picture to read the depth of a pixel."

TEMPLATE = """
<div class="viewer">${value && value.image ? `
  <div class="pictures">
    <figure><div class="stage"><img class="first" alt="the image" src="${value.image}"
      ><span class="mark"></span></div><figcaption>Image</figcaption></figure>
    <figure><div class="stage"><img class="depth" alt="its depth in colors" src="${value.depth}"
      ><span class="mark"></span></div><figcaption>Depth: near is light and warm, far is dark and cool</figcaption>
    </figure>
    <figure class="wheel"><img class="strip" alt="the color of every depth" src="${legend}"
      ><figcaption>${value.near.toPrecision(3)} to ${value.far.toPrecision(3)} m</figcaption></figure>
  </div>
  <p class="readout" aria-live="off">${hint}</p>` : `
  <p class="empty">Nothing is computed yet. Choose an image, a clip or an example, and press the button.</p>`}
</div>
"""

STRIP = ".wheel img.strip { height: 16px; border-radius: 3px }"
UNPACKED = "(value) => ({ depths: new DataView(bytes(value.depths).buffer), confidence: bytes(value.confidence) })"
DESCRIBE = """(value, known, cell) => {
  const share = known.depths.getUint16(2 * cell, true) / 65535;
  const meters = Math.exp(value.low + share * (value.high - value.low));
  return `depth = ${meters.toPrecision(4)} m`;
}"""


def depth_viewer(legend: str) -> Any:
    """The component, whose value is a `show.depth_view`. legend: the address of a picture of the colors."""
    return require_gradio().HTML(
        value=None,
        html_template=TEMPLATE,
        css_template=VIEWER_STYLE + STRIP,
        js_on_load=viewer_script(UNPACKED, DESCRIBE),
        elem_id="depth-viewer",
        legend=legend,
        hint=HINT,
    )


UNTRAINED = (
    "The weights of this model are random: it was not trained, so the depth and the prototypes shown here mean "
    "nothing. Everything else works as it would with trained ones; start the page with --depth-model and a file of "
    "yours."
)
PROTOTYPES = "Each color is one prototype, and the pixels that it stands for."
ANY_RANGE = "any"
FILES = {
    ".png": "Download .png (16 bits, mm)",
    ".npy": "Download .npy",
    ".ply": "Download .ply",
    ".mp4": "Download .mp4",
}
"""What may be taken away, by its suffix."""


class DepthTab:
    """Builds the tab inside the page that is being made."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.model = site.depth
        self.image = render_image(site.folder / "examples", "A room", "room", 1)
        self.clip = render_clip(site.folder / "examples", "A walk in a room", "room", 1)

    def build(self) -> None:
        """Make the components and say what they do."""
        gr = require_gradio()
        if not self.model.trained:
            gr.HTML(notice(UNTRAINED, "warning"), elem_id="depth-untrained")
        result = gr.State(None, time_to_live=KEEP_SECONDS, delete_callback=self.site.forget)
        with gr.Tabs():
            with gr.Tab("An image", id="depth-of-image"):
                image, compute_image = self._image_input()
            with gr.Tab("A clip", id="depth-of-clip"):
                clip, compute_clip = self._clip_input()
        with gr.Row():
            fov = gr.Number(value=0, label="Degrees across the width (0: not known)", elem_id="depth-fov")
            bounds = gr.Radio([ANY_RANGE, *RANGES], value=ANY_RANGE, label="Range of depth", elem_id="depth-range")
        message = gr.HTML("", elem_id="depth-message")
        viewer = depth_viewer(png_data_uri(depth_legend(84, 16)))
        slider = gr.Slider(1, 2, value=1, step=1, label="Frame", visible=False, elem_id="depth-slider", buttons=[])
        with gr.Row(elem_classes="pf-examples"):
            files = [
                gr.DownloadButton(label, visible=False, elem_id=f"depth-download-{suffix[1:]}", size="md")
                for suffix, label in FILES.items()
            ]
        with gr.Accordion("Prototypes of the image", open=False, visible=False, elem_id="depth-groups") as groups:
            prototypes = gr.HTML("", elem_id="depth-prototypes")
        shown = [result, message, viewer, slider, groups, prototypes, *files]

        def image_depth(path: str, fov: Any, bounds: str, old: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
            return self._run(depth_image, path, (fov, bounds), old, progress)

        def clip_depth(path: str, fov: Any, bounds: str, old: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
            return self._run(depth_clip, path, (fov, bounds), old, progress)

        job = {"concurrency_id": "compute", "concurrency_limit": self.site.limits.jobs, "api_visibility": "private"}
        job |= {"show_progress_on": viewer}
        compute_image.click(image_depth, [image, fov, bounds, result], shown, **job)
        compute_clip.click(clip_depth, [clip, fov, bounds, result], shown, **job)
        connect_slider(slider, result, viewer, message, load_view)

    def _image_input(self) -> tuple[Any, Any]:
        """A box for an image, and the button."""
        gr = require_gradio()
        image = image_box("Image", "depth-image")
        example_buttons([(self.image.name, (self.image.path,))], [image])
        return image, gr.Button("Compute the depth", variant="primary", elem_id="depth-compute-image")

    def _clip_input(self) -> tuple[Any, Any]:
        """A box for a clip, and the button."""
        gr = require_gradio()
        clip = clip_box("depth-clip")
        example_buttons([(self.clip.name, (self.clip.path,))], [clip])
        return clip, gr.Button("Compute the depth", variant="primary", elem_id="depth-compute-clip")

    def _run(
        self, work: Any, path: str | None, options: tuple[float | None, str], old: Path | None, progress: Any
    ) -> tuple[Any, ...]:
        """Everything that the page shows next; a sentence, and nothing new, where it cannot be done."""
        gr = require_gradio()
        folder = self.site.new_result()
        paths = [Path(path)] if path else []
        try:
            if not paths:
                raise InputError("choose an image first." if work is depth_image else "choose a clip first.")
            request = DepthRequest(options[0] or None, None if options[1] == ANY_RANGE else options[1])
            output: DepthOutput = work(
                *(self.model, self.site.limits, paths[0], folder, request),
                lambda share, what: progress(share, desc=what),
            )
        except Exception as error:
            self.site.forget(folder)
            return old, notice(error_message(error, paths)), *(gr.skip() for _ in range(4 + len(FILES)))
        self.site.finish(folder, old)
        return (
            folder,
            notice(output.summary, "note"),
            output.view,
            gr.update(visible=output.frames > 1, minimum=1, maximum=max(2, output.frames), value=1),
            gr.update(visible=bool(output.prototypes)),
            f'<p>{escape(PROTOTYPES)}</p><img alt="prototypes" src="{output.prototypes}">' if output.prototypes else "",
            *(download(output.downloads.get(suffix)) for suffix in FILES),
        )
