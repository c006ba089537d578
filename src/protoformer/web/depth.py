"""Tab for depth of an image or a clip."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from protoformer.depth.camera import describe_camera
from protoformer.depth.drawing import depth_viewer_data, draw_depth_frame
from protoformer.depth.predictor import DepthPredictor
from protoformer.depth.result import RANGES, DepthRange
from protoformer.depth.video import DepthFrame
from protoformer.errors import InputError
from protoformer.geometry.resizing import limited_size, shrink
from protoformer.io.image_input import as_image, to_float
from protoformer.video.types import ImageArray
from protoformer.viz.colormaps import default_depth_range, depth_legend
from protoformer.viz.images import to_uint8
from protoformer.web.components import (
    ResultPanel,
    clip_box,
    example_buttons,
    image_box,
    pixel_viewer,
    prototype_figure,
    require_gradio,
)
from protoformer.web.job import CLIP_CELLS, Job, JobOutput, message_html
from protoformer.web.results import load_view
from protoformer.web.site import Site


@dataclass(frozen=True)
class DepthOptions:
    """Options of the depth tab.

    Attributes:
        fov: Horizontal field of view, degrees; None: estimated.
        range: Range of depth; None: that of the network.
    """

    fov: float | None = None
    range: DepthRange = None


def depth_image(predictor: DepthPredictor, job: Job, path: Path, options: DepthOptions) -> JobOutput:
    """Compute the depth of an image; write depth.png (16 bits, millimeters), depth.npy and depth.ply."""
    decoded = job.decode_image(path)
    result = predictor.depth(
        decoded, fov=options.fov, range=options.range, return_prototypes=True, progress=job.progress("step")
    )
    image = as_image(decoded)[0]
    downloads = {suffix: job.folder / f"depth{suffix}" for suffix in (".png", ".npy", ".ply")}
    result.save(downloads[".png"], "mm")
    result.save(downloads[".npy"])
    result.save(downloads[".ply"], image=image)
    height, width = image.shape[1:]
    camera = describe_camera(result.camera, float(result.intrinsics[0, 0]))
    resized = shrink(to_float(image)[None], limited_size((height, width), predictor.network.config.depth_pixels))[0]
    return JobOutput(
        summary=f"{width}x{height} pixels, median depth {float(result.depth.median()):.2f} m; {camera}.",
        downloads=downloads,
        view=depth_viewer_data(result, to_uint8(image), default_depth_range(result.numpy())),
        prototypes=prototype_figure(result.prototypes[0][-1], resized),
    )


def depth_clip(predictor: DepthPredictor, job: Job, path: Path, options: DepthOptions) -> JobOutput:
    """Compute the depth of every frame of a clip; write depth.mp4 and the views of all frames."""
    camera = ""
    with job.decode_clip(path) as clip:
        video = predictor.depth_video(clip, fov=options.fov, range=options.range)
        colors = video.typical_range(job.progress("sampling frame", end=0))

        def save_frame(frame: DepthFrame, image: ImageArray | None) -> None:
            nonlocal camera
            assert image is not None
            job.save_view(depth_viewer_data(frame, image[:, : frame.depth.shape[2]], colors, CLIP_CELLS))
            camera = describe_camera(frame.camera, float(frame.intrinsics[0, 0]))

        draw = partial(draw_depth_frame, colors=colors, side_by_side=True)
        job.write_clip(job.folder / "depth.mp4", clip, video, draw, job.progress("frame"), on_result=save_frame)
        height, width = clip.info.size
    return JobOutput(
        summary=(
            f"{job.num_views} frames of {width}x{height} pixels; colors from {colors[0]:.2f} to {colors[1]:.2f} m; "
            f"{camera}."
        ),
        downloads={".mp4": job.folder / "depth.mp4"},
        view=load_view(job.folder, 0),
        num_views=job.num_views,
    )


UNTRAINED = (
    "The depth model was not trained: its weights are random, so depth and prototypes are meaningless. Start the page "
    "with --depth-model and a file of trained weights."
)
ANY_RANGE = "any"
DOWNLOADS = {
    ".png": "Download .png (16 bits, mm)",
    ".npy": "Download .npy",
    ".ply": "Download .ply",
    ".mp4": "Download .mp4",
}
UNPACK = "(value) => ({ depths: new DataView(bytes(value.depths).buffer) })"
DESCRIBE = """(value, arrays, cell) => {
  const level = arrays.depths.getUint16(2 * cell, true) / 65535;
  const meters = Math.exp(value.low + level * (value.high - value.low));
  return `depth = ${meters.toPrecision(4)} m`;
}"""


class DepthTab:
    """Depth: upload boxes, camera options and results."""

    def __init__(self, site: Site) -> None:
        self.site, self.predictor = site, site.depth
        self.image = site.example_images("A room", "room", 1, count=1)
        self.clip = site.example_clip("A walk in a room", "room", 1)

    def build(self) -> None:
        """Create the components."""
        gr = require_gradio()
        if not self.predictor.trained:
            gr.HTML(message_html(UNTRAINED, "warning"), elem_id="depth-untrained")
        with gr.Tabs():
            with gr.Tab("Image", id="depth-of-image"):
                image = image_box("Image", "depth-image")
                example_buttons([self.image], [image])
                compute_image = gr.Button("Compute depth", variant="primary", elem_id="depth-compute-image")
            with gr.Tab("Clip", id="depth-of-clip"):
                clip = clip_box("depth-clip")
                example_buttons([self.clip], [clip])
                compute_clip = gr.Button("Compute depth", variant="primary", elem_id="depth-compute-clip")
        with gr.Row():
            fov = gr.Number(value=0, label="Horizontal field of view, degrees (0: unknown)", elem_id="depth-fov")
            bounds = gr.Radio([ANY_RANGE, *RANGES], value=ANY_RANGE, label="Depth range", elem_id="depth-range")
        viewer = pixel_viewer(
            "depth",
            depth_legend(84, 16),
            image_caption="Image",
            caption="Depth: near is light and warm, far is dark and cool",
            legend_caption="${value.near.toPrecision(3)} to ${value.far.toPrecision(3)} m",
            unpack=UNPACK,
            describe=DESCRIBE,
        )
        panel = ResultPanel(self.site, "depth", DOWNLOADS, viewer)
        panel.connect(compute_image, "depth_image", self._compute_image, [image, fov, bounds])
        panel.connect(compute_clip, "depth_clip", self._compute_clip, [clip, fov, bounds])

    def _compute_image(self, job: Job, path: Path | None, fov: float | None, bounds: str) -> JobOutput:
        if path is None:
            raise InputError("choose an image first.")
        return depth_image(self.predictor, job, path, _options(fov, bounds))

    def _compute_clip(self, job: Job, path: Path | None, fov: float | None, bounds: str) -> JobOutput:
        if path is None:
            raise InputError("choose a clip first.")
        return depth_clip(self.predictor, job, path, _options(fov, bounds))


def _options(fov: float | None, bounds: str) -> DepthOptions:
    return DepthOptions(fov or None, None if bounds == ANY_RANGE else bounds)
