"""The depth of what people upload, within limits, as files and as what the viewer shows; gradio has no part in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protoformer.app.camera_words import told_camera
from protoformer.app.web.decoding import clip_writer, decode_clip, decode_image
from protoformer.app.web.kept_views import CLIP_CELLS, keep_view, kept_view
from protoformer.app.web.limits import Deadline, Limits, Told
from protoformer.files.depth_color import usual_range
from protoformer.geometry import shrunk, shrunk_size
from protoformer.inference import DepthModel
from protoformer.inference.depth_range import DepthRange
from protoformer.inference.images import as_float, as_image
from protoformer.model.encoder import STRIDES
from protoformer.show import assignment_picture, depth_frame, depth_view, picture
from protoformer.show.addresses import png_address


@dataclass(frozen=True)
class DepthAsked:
    """What people say of the camera and the scene: degrees across the width, and a range; None: they do not know."""

    fov: float | None = None
    range: DepthRange = None


@dataclass(frozen=True)
class DepthAnswer:
    """What was computed.

    view: for the viewer, of the first frame. prototypes: a picture's address, or "" for a clip. downloads: the files to
    take away, by their suffix. frames: how many there are to look at. summary: a sentence about it.
    """

    view: dict[str, Any]
    prototypes: str
    downloads: dict[str, Path]
    frames: int
    summary: str


def depth_of_image(
    model: DepthModel, limits: Limits, path: Path, folder: Path, asked: DepthAsked, told: Told = lambda *_: None
) -> DepthAnswer:
    """The depth of an image; depth.png (16 bits, millimetres), depth.npy and depth.ply go into the folder."""
    deadline = Deadline(limits.seconds)
    decoded = decode_image(limits, path, deadline)

    def progress(done: int, total: int) -> None:
        deadline.check()
        told(done / total, "depth")

    result = model.depth(decoded, fov=asked.fov, range=asked.range, prototypes=True, progress=progress)
    image = as_image(decoded)[0]
    downloads = {suffix: folder / f"depth{suffix}" for suffix in (".png", ".npy", ".ply")}
    result.save(downloads[".png"], "mm")
    result.save(downloads[".npy"])
    result.save(downloads[".ply"], image=image)
    size = (image.shape[1], image.shape[2])
    camera = told_camera(result.camera, float(result.intrinsics[0, 0]))
    seen = shrunk(as_float(image)[None], shrunk_size(size, model.network.config.depth_pixels))[0]
    return DepthAnswer(
        view=depth_view(result, picture(image), usual_range(result.numpy())),
        prototypes=png_address(assignment_picture(result.prototypes[0][-1], seen, STRIDES[0])),
        downloads=downloads,
        frames=1,
        summary=f"{size[1]}x{size[0]} pixels, median depth {float(result.depth.median()):.2f} m; {camera}.",
    )


def depth_of_clip(
    model: DepthModel, limits: Limits, path: Path, folder: Path, asked: DepthAsked, told: Told = lambda *_: None
) -> DepthAnswer:
    """The depth of every frame of a clip; depth.mp4 and what `kept_view` reads go into the folder."""
    deadline = Deadline(limits.seconds)
    with decode_clip(limits, path, deadline) as movie:
        count = len(movie)
        video = model.depth_video(movie, fov=asked.fov, range=asked.range)

        def looking(done: int, total: int) -> None:
            deadline.check()
            told(0.0, f"a first look, {done} of {total}")

        colours = video.typical_range(looking)
        frames, camera = 0, ""
        with clip_writer(folder / "depth.mp4", movie, limits, deadline) as writer:
            for step in video:
                deadline.check()
                beside = depth_frame(step, colours, side_by_side=True)
                writer.write(beside, step.time)
                keep_view(folder, frames, depth_view(step, beside[:, : step.depth.shape[2]], colours, CLIP_CELLS))
                frames, camera = frames + 1, told_camera(step.camera, float(step.intrinsics[0, 0]))
                told(frames / max(frames, count), f"frame {frames} of {count}")
        height, width = movie.info.size
        return DepthAnswer(
            view=kept_view(folder, 0),
            prototypes="",
            downloads={".mp4": folder / "depth.mp4"},
            frames=frames,
            summary=(
                f"{frames} frames of {width}x{height} pixels; colours from {colours[0]:.2f} to {colours[1]:.2f} m; "
                f"{camera}."
            ),
        )
