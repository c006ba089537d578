"""Tab for optical flow of two images or a clip."""

from functools import partial
from pathlib import Path

import torch

from protoformer.flow.drawing import draw_flow_frame, flow_viewer_data, frame_scale
from protoformer.flow.predictor import FlowPredictor
from protoformer.flow.tiling import plan_flow
from protoformer.flow.video import FlowFrame, FlowVideo
from protoformer.geometry.warps import resize
from protoformer.io.image_input import as_image, image_pair
from protoformer.models.runtime import normalize_images
from protoformer.video.types import ImageArray
from protoformer.viz.colormaps import color_wheel_legend, to_uint8
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

NO_PROTOTYPES = "<p>The image was processed in tiles, which have no common prototypes; use a smaller image.</p>"


def flow_pair(predictor: FlowPredictor, job: Job, first: Path, second: Path) -> JobOutput:
    """Compute the flow between two images, and write motion.flo."""
    images = image_pair(job.decode_image(first), job.decode_image(second))
    height, width = images[0].shape[2:]
    tile = plan_flow((height, width), predictor.network.config, predictor.device).tile
    progress = job.progress("step")
    result = predictor.flow(*images, tile=tile, return_prototypes=tile is None, progress=progress)
    result.save(job.folder / "motion.flo")
    lengths = result.flow.norm(dim=0)
    scale = frame_scale(lengths.flatten()[:: max(1, lengths.numel() // 10**6)])
    image = images[0][0]
    return JobOutput(
        summary=(
            f"{width}x{height} pixels, mean motion {float(lengths.mean()):.2f} px, "
            f"largest {float(lengths.max()):.2f} px; colors are saturated at {scale:.1f} px."
        ),
        downloads={".flo": job.folder / "motion.flo"},
        view=flow_viewer_data(result, to_uint8(image), scale),
        prototypes=(
            prototype_figure(result.prototypes[0], image, result.input_size) if tile is None else NO_PROTOTYPES
        ),
    )


def flow_clip(predictor: FlowPredictor, job: Job, path: Path) -> JobOutput:
    """Compute the flow of every pair of consecutive frames; write motion.mp4 and the views of all pairs."""
    motion: list[float] = []
    prototypes = ""
    with job.decode_clip(path) as clip:
        video = predictor.flow_video(clip, **clip.span)
        view_step = job.view_step(clip)
        scale = video.typical_motion(job.progress("sampling frame", end=0))

        def save_frame(frame: FlowFrame, image: ImageArray | None) -> None:
            nonlocal prototypes
            assert image is not None
            prototypes = prototypes or _first_prototypes(predictor, video, frame)
            if len(motion) % view_step == 0:
                job.save_view(flow_viewer_data(frame, image[:, : frame.flow.shape[2]], scale, CLIP_CELLS))
            motion.append(float(frame.flow.norm(dim=0).mean()))

        draw = partial(draw_flow_frame, scale=scale, side_by_side=True)
        progress = job.progress("frame", keeps=True)
        job.write_clip(job.folder / "motion.mp4", clip, video, draw, progress, on_result=save_frame)
        height, width = clip.info.size
    return JobOutput(
        summary=(
            f"{len(motion) + 1} frames of {width}x{height} pixels, mean motion {sum(motion) / len(motion):.2f} px; "
            f"colors are saturated at {scale:.1f} px."
        ),
        downloads={".mp4": job.folder / "motion.mp4"},
        view=load_view(job.folder, 0),
        num_views=job.num_views,
        view_step=view_step,
        prototypes=prototypes,
    )


@torch.no_grad()
def _first_prototypes(predictor: FlowPredictor, video: FlowVideo, frame: FlowFrame) -> str:
    """Return the figure of the prototypes of a frame, or a note if it is processed in tiles."""
    if frame.frame is None or video.plan is None or video.plan.tile is not None:
        return NO_PROTOTYPES
    image = as_image(frame.frame)[0]
    resized = resize(image[None].to(predictor.device), video.plan.working)
    blocks = predictor.network.encoder(normalize_images(resized), True).prototypes[0]
    return prototype_figure([each.first(1).cpu() for each in blocks[-1:]], image, frame.input_size)


UNTRAINED = (
    "The flow model was not trained: its weights are random, so flow and prototypes are meaningless. Start the page "
    "with --model and a file of trained weights."
)
DOWNLOADS = {".flo": "Download .flo", ".mp4": "Download .mp4"}
UNPACK = "(value) => ({ vectors: new DataView(bytes(value.vectors).buffer) })"
DESCRIBE = """(value, arrays, cell) => {
  const u = arrays.vectors.getInt16(2 * cell, true) * value.unit;
  const v = arrays.vectors.getInt16(2 * (value.rows * value.columns + cell), true) * value.unit;
  return `u = ${u.toFixed(2)} px  v = ${v.toFixed(2)} px`;
}"""


def build_flow_tab(site: Site) -> list[Example]:
    """Create the components of the tab, and return its examples."""
    gr = require_gradio()
    pairs = [*site.demo_images(), site.example_images("Street (rendered)", "drive", 0)]
    clips = site.demo_clips(seconds=1)
    viewer = pixel_viewer(
        "flow",
        color_wheel_legend(168),
        image_caption="Frame",
        caption="Flow",
        legend_caption="Hue: direction. Saturation: speed, full at ${value.scale.toFixed(1)} px.",
        unpack=UNPACK,
        describe=DESCRIBE,
    )
    with columns():
        with input_column():
            if not site.flow.trained:
                gr.HTML(message_html(UNTRAINED, "warning"), elem_id="flow-untrained")
            tabs = gr.Tabs()
        with result_column():
            panel = ResultPanel(site, "flow", DOWNLOADS, "The optical flow appears here.", viewer)
    with tabs:
        with gr.Tab("Two images", id="flow-of-pair"):
            images = image_boxes({"flow-first": "First image", "flow-second": "Second image"}, pairs)
            compute_pair = partial(flow_pair, site.flow)
            panel.connect("Compute flow", "pair", compute_pair, images, "Choose two images first.", 2)
        with gr.Tab("Clip", id="flow-of-clip"):
            clip = clip_input(site, "flow-clip", clips)
            panel.connect_clip(clip)
            compute_clip = partial(flow_clip, site.flow)
            panel.connect("Compute flow", "clip", compute_clip, [clip.box], "Choose a clip first.", trim=clip.trim)
    return [*pairs, *clips]
