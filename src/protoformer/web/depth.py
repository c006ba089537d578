"""Tab for depth of an image or a clip."""

from functools import partial
from pathlib import Path
from typing import Any

from protoformer.depth.camera import describe_camera
from protoformer.depth.drawing import depth_viewer_data, draw_depth_frame
from protoformer.depth.predictor import DepthPredictor
from protoformer.depth.result import RANGES
from protoformer.depth.video import DepthFrame
from protoformer.geometry.warps import limited_size, shrink
from protoformer.io.image_input import as_image, to_float
from protoformer.video.types import ImageArray
from protoformer.viz.colormaps import to_uint8
from protoformer.viz.depth_colors import default_depth_range, depth_legend
from protoformer.web.components import (
    ResultPanel,
    clip_input,
    columns,
    image_boxes,
    input_column,
    pixel_viewer,
    prototype_figure,
    require_gradio,
    result_column,
)
from protoformer.web.job import CLIP_CELLS, Job, JobOutput, message_html
from protoformer.web.results import load_view
from protoformer.web.site import Example, Site

ANY_SCENE = "any"
SCENES = [(name.capitalize(), name) for name in (ANY_SCENE, *RANGES)]


def depth_image(
    predictor: DepthPredictor, job: Job, path: Path, fov: float | None = None, scene: str = ANY_SCENE
) -> JobOutput:
    """Compute the depth of an image; write depth.png (16 bits, millimeters), depth.npy and depth.ply.

    Args:
        predictor: The depth predictor.
        job: The computation.
        path: The uploaded image.
        fov: Horizontal field of view, degrees; 0 or None if unknown.
        scene: Key of `RANGES`, or `ANY_SCENE`.
    """
    decoded = job.decode_image(path)
    result = predictor.depth(
        decoded, **_camera_options(fov, scene), return_prototypes=True, progress=job.progress("step")
    )
    image = as_image(decoded)[0]
    downloads = {suffix: job.folder / f"depth{suffix}" for suffix in (".png", ".npy", ".ply")}
    result.save(downloads[".png"], "mm")
    result.save(downloads[".npy"])
    result.save(downloads[".ply"], image=image)
    height, width = image.shape[1:]
    camera = describe_camera(result.camera, float(result.intrinsics[0, 0]))
    resized = shrink(to_float(image)[None], limited_size((height, width), predictor.network.config.depth.max_pixels))[0]
    return JobOutput(
        summary=f"{width}x{height} pixels, median depth {float(result.depth.median()):.2f} m; {camera}.",
        downloads=downloads,
        view=depth_viewer_data(result, to_uint8(image), default_depth_range(result.numpy())),
        prototypes=prototype_figure(result.prototypes[0], resized),
    )


def depth_clip(
    predictor: DepthPredictor, job: Job, path: Path, fov: float | None = None, scene: str = ANY_SCENE
) -> JobOutput:
    """Compute the depth of every frame of a clip, with options as for images; write depth.mp4 and all views."""
    camera, count = "", 0
    with job.decode_clip(path) as clip:
        video = predictor.depth_video(clip, **clip.span, **_camera_options(fov, scene))
        view_step = job.view_step(clip)
        colors = video.typical_range(job.progress("sampling frame", end=0))

        def save_frame(frame: DepthFrame, image: ImageArray | None) -> None:
            nonlocal camera, count
            assert image is not None
            if count % view_step == 0:
                job.save_view(depth_viewer_data(frame, image[:, : frame.depth.shape[2]], colors, CLIP_CELLS))
            count += 1
            camera = describe_camera(frame.camera, float(frame.intrinsics[0, 0]))

        draw = partial(draw_depth_frame, colors=colors, side_by_side=True)
        progress = job.progress("frame", keeps=True)
        job.write_clip(job.folder / "depth.mp4", clip, video, draw, progress, on_result=save_frame)
        height, width = clip.info.size
    return JobOutput(
        summary=(
            f"{count} frames of {width}x{height} pixels; colors from {colors[0]:.2f} to {colors[1]:.2f} m; {camera}."
        ),
        downloads={".mp4": job.folder / "depth.mp4"},
        view=load_view(job.folder, 0),
        num_views=job.num_views,
        view_step=view_step,
    )


def _camera_options(fov: float | None, scene: str) -> dict[str, Any]:
    return {"fov": fov or None, "range": None if scene == ANY_SCENE else scene}


UNTRAINED = (
    "The depth model was not trained: its weights are random, so depth and prototypes are meaningless. Start the page "
    "with --depth-model and a file of trained weights."
)
DOWNLOADS = {
    ".png": "Download .png (mm)",
    ".npy": "Download .npy (m)",
    ".ply": "Download .ply",
    ".mp4": "Download .mp4",
}
UNPACK = "(value) => ({ depths: new DataView(bytes(value.depths).buffer) })"
DESCRIBE = """(value, arrays, cell) => {
  const level = arrays.depths.getUint16(2 * cell, true) / 65535;
  const meters = Math.exp(value.low + level * (value.high - value.low));
  return `depth = ${meters.toPrecision(4)} m`;
}"""


def build_depth_tab(site: Site) -> list[Example]:
    """Create the components of the tab, and return its examples."""
    gr = require_gradio()
    photos = [*site.demo_images(count=1), site.example_images("Room (rendered)", "room", 1, count=1)]
    clips = site.demo_clips()
    viewer = pixel_viewer(
        "depth",
        depth_legend(84, 16),
        image_caption="Image",
        caption="Depth",
        legend_caption="From ${value.near.toPrecision(3)} m (light) to ${value.far.toPrecision(3)} m (dark).",
        unpack=UNPACK,
        describe=DESCRIBE,
    )
    with columns():
        with input_column():
            if not site.depth.trained:
                gr.HTML(message_html(UNTRAINED, "warning"), elem_id="depth-untrained")
            tabs = gr.Tabs()
        with result_column():
            panel = ResultPanel(site, "depth", DOWNLOADS, "The depth appears here.", viewer)
    with tabs:
        with gr.Tab("Image", id="depth-of-image"):
            images = image_boxes({"depth-image": "Image"}, photos)
            inputs = [*images, *_camera_inputs("depth-fov", "depth-scene")]
            panel.connect("Compute depth", "image", partial(depth_image, site.depth), inputs, "Choose an image first.")
        with gr.Tab("Clip", id="depth-of-clip"):
            clip = clip_input(site, "depth-clip", clips)
            panel.connect_clip(clip)
            inputs = [clip.box, *_camera_inputs("depth-clip-fov", "depth-clip-scene")]
            compute = partial(depth_clip, site.depth)
            panel.connect("Compute depth", "clip", compute, inputs, "Choose a clip first.", trim=clip.trim)
    return [*photos, *clips]


def _camera_inputs(fov_id: str, scene_id: str) -> list[Any]:
    """Create the inputs for the field of view and the scene."""
    gr = require_gradio()
    with gr.Group(elem_classes="pf-options"):
        scene = gr.Radio(SCENES, value=ANY_SCENE, label="Scene", elem_id=scene_id)
        fov = gr.Number(value=0, label="Horizontal field of view, degrees (0: unknown)", elem_id=fov_id)
    return [fov, scene]
