"""The flow of what people upload, within limits, as files and as what the viewer shows; gradio has no part in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protoformer.app.web.decoding import clip_writer, decode_clip, decode_image
from protoformer.app.web.kept_views import CLIP_CELLS, keep_view, kept_view
from protoformer.app.web.limits import Deadline, Limits, Told
from protoformer.geometry import resized
from protoformer.inference import FlowModel, FlowStep, FlowVideo
from protoformer.inference.images import as_float, image_pair
from protoformer.inference.planning import plan_flow
from protoformer.model import Prototypes
from protoformer.model.encoder import STRIDES
from protoformer.model.flow import normalised
from protoformer.show import assignment_picture, flow_frame, flow_view, picture
from protoformer.show.addresses import png_address


@dataclass(frozen=True)
class FlowAnswer:
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


def flow_of_pair(
    model: FlowModel, limits: Limits, paths: tuple[Path, Path], folder: Path, told: Told = lambda *_: None
) -> FlowAnswer:
    """The flow between two images; motion.flo goes into the folder."""
    deadline = Deadline(limits.seconds)
    images = image_pair(*(decode_image(limits, path, deadline) for path in paths))
    size = (images[0].shape[2], images[0].shape[3])
    tile = plan_flow(size, model.network.config, model.device).tile

    def progress(done: int, total: int) -> None:
        deadline.check()
        told(done / total, "flow")

    result = model.flow(*images, tile=tile, prototypes=tile is None, progress=progress)
    result.save(folder / "motion.flo")
    lengths = result.flow.norm(dim=0)
    scale = max(1.0, float(lengths.flatten()[:: max(1, lengths.numel() // 10**6)].quantile(0.99)))
    image = images[0][0]
    return FlowAnswer(
        view=flow_view(result, picture(image), scale),
        prototypes=_prototypes(result.prototypes[0][-1], image, result.seen) if tile is None else "",
        download=folder / "motion.flo",
        pairs=1,
        summary=(
            f"{size[1]}x{size[0]} pixels, mean motion {float(lengths.mean()):.2f} px, "
            f"largest {float(lengths.max()):.2f} px; colours are full at {scale:.1f} px."
        ),
    )


def flow_of_clip(
    model: FlowModel, limits: Limits, path: Path, folder: Path, told: Told = lambda *_: None
) -> FlowAnswer:
    """The flow of every pair of a clip; motion.mp4 and what `kept_view` reads go into the folder."""
    deadline = Deadline(limits.seconds)
    with decode_clip(limits, path, deadline) as movie:
        count = len(movie)
        video = model.flow_video(movie)

        def looking(done: int, total: int) -> None:
            deadline.check()
            told(0.0, f"a first look, {done} of {total}")

        scale = video.typical_motion(looking)
        prototypes, motion, pairs = "", 0.0, 0
        with clip_writer(folder / "motion.mp4", movie, limits, deadline) as writer:
            for step in video:
                deadline.check()
                if pairs == 0:
                    prototypes = _first_prototypes(model, video, step)
                beside = flow_frame(step, scale, side_by_side=True)
                writer.write(beside, step.time)
                image = beside[:, : step.flow.shape[2]]
                keep_view(folder, pairs, flow_view(step, image, scale, CLIP_CELLS))
                pairs, motion = pairs + 1, motion + float(step.flow.norm(dim=0).mean())
                told(pairs / max(pairs, count - 1), f"frame {pairs} of {count - 1}")
        height, width = movie.info.size
        return FlowAnswer(
            view=kept_view(folder, 0),
            prototypes=prototypes,
            download=folder / "motion.mp4",
            pairs=pairs,
            summary=(
                f"{pairs + 1} frames of {width}x{height} pixels, mean motion {motion / pairs:.2f} px; "
                f"colours are full at {scale:.1f} px."
            ),
        )


@torch.no_grad()
def _first_prototypes(model: FlowModel, video: FlowVideo, step: FlowStep) -> str:
    """The picture of a frame's prototypes; "" where it is computed in windows."""
    if step.image is None or video.plan is None or video.plan.tile is not None:
        return ""
    image = as_float(step.image)
    shown = resized(image[None].to(model.device), video.plan.seen)
    found = model.network.features(normalised(shown), True).prototypes[0][-1]
    return _prototypes(found.first(1).cpu(), image, step.seen)


def _prototypes(found: Prototypes, image: Tensor, seen: tuple[int, int] | None) -> str:
    """The address of a picture of an image's finest prototypes."""
    return png_address(assignment_picture(found, image, STRIDES[0], seen=seen))
