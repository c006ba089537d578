"""Sections of the demonstration page on real footage: the packaged clips through every task."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from protoformer.depth.drawing import colorize_depth
from protoformer.explain.drawing import draw_groups, draw_parts
from protoformer.flow.drawing import colorize_flow
from protoformer.loading import Predictor
from protoformer.stabilization.drawing import plot_path
from protoformer.stabilization.result import StabilizedFrame
from protoformer.video.reader import demo_clip, open_video
from protoformer.video.writer import write_video
from protoformer.viz.colormaps import Pixels, frame_pixels, stack_2x2
from protoformer.viz.depth_colors import default_depth_range
from protoformer.viz.report import Figure, Section, encode_webp

CREDITS = (
    "The clips are real footage on which no network was trained. Cockatoo: standard images of imageio, public domain. "
    "Tears of Steel: (CC) Blender Foundation, mango.blender.org, CC BY 3.0."
)
HEAD = (212.0, 12.0, 100.0, 130.0)
"""The cockatoo's head in the first frame, (x, y, w, h) in pixels, chosen by hand."""
TRACK_SHOWN = (0, 20, 40, 59)
"""Frames that are shown with the tracked box."""
TEARS_SPAN, TEARS_SHOWN = (1.25, 2.25), 6
"""Seconds of Tears of Steel that are processed, and the index of the frame that is shown of them."""
EXPLAINED = (0, 2)
"""The two frames of the cockatoo whose prototypes are shown."""
ZOOM = 0.5
"""Fraction of the size of the frames at which the flow is estimated, for a quarter of the run time."""
LABEL_SIZE = 0.08
"""Font size of labels, as a fraction of the height of an image."""


@dataclass(frozen=True)
class TaskViews:
    """Frames of a clip and drawn results of three tasks: uint8 H x W x 3, one per frame.

    Attributes:
        frames: The frames.
        flow: Optical flow to the next frame, in colors.
        objects: The frames with colored moving objects.
        depth: Depth, in colors.
        fps: Frames per second.
        max_motion: Motion of pure colors, pixels.
        depth_range: Depths of the first and the last color, meters.
    """

    frames: list[Pixels]
    flow: list[Pixels]
    objects: list[Pixels]
    depth: list[Pixels]
    fps: Fraction
    max_motion: float
    depth_range: tuple[float, float]

    def grids(self) -> list[Pixels]:
        """Draw each frame in a labeled 2 x 2 grid: uint8 2H x 2W x 3."""
        labels = ("frame", "flow", "moving objects", "depth")
        views = zip(self.frames, self.flow, self.objects, self.depth, strict=True)
        return [stack_2x2(*map(draw_label, view, labels)) for view in views]

    @property
    def legend(self) -> str:
        """Caption that explains the colors."""
        near, far = self.depth_range
        return (
            f"Flow: hue is direction, the pure color is {self.max_motion:.0f} px. "
            f"Depth: light is {near:.1f} m, dark {far:.1f} m."
        )


def run_tasks(
    model: Predictor, clip: Path, frame_step: int, start: float | None = None, end: float | None = None
) -> TaskViews:
    """Predict and draw flow, moving objects and depth of a span of a clip, seconds, but for its last frame."""
    flows = list(model.flow_video(clip, start=start, end=end, frame_step=frame_step, zoom=ZOOM))
    depths = list(model.depth_video(clip, start=start, end=end, frame_step=frame_step))[:-1]
    objects = list(model.segment.segment(clip, start=start, end=end, frame_step=frame_step))[:-1]
    lengths = np.stack([result.flow.norm(dim=0)[::4, ::4].numpy() for result in flows])
    max_motion = max(1.0, float(np.percentile(lengths, 95)))
    depth_range = default_depth_range(np.stack([result.depth[0, ::4, ::4].numpy() for result in depths]))
    return TaskViews(
        frames=[frame_pixels(result.frame) for result in flows],
        flow=[colorize_flow(result.flow, max_motion) for result in flows],
        objects=[result.draw() for result in objects],
        depth=[colorize_depth(result.depth, depth_range) for result in depths],
        fps=Fraction(open_video(clip).info.fps) / frame_step,
        max_motion=max_motion,
        depth_range=depth_range,
    )


def draw_label(image: Pixels, text: str) -> Pixels:
    """Draw a label into the top left corner of a copy of an image, uint8 H x W x 3."""
    picture = Image.fromarray(image)
    draw, size = ImageDraw.Draw(picture), LABEL_SIZE * picture.height
    font, margin = ImageFont.load_default(size), size / 2
    _, _, right, bottom = draw.textbbox((2 * margin, 1.6 * margin), text, font=font, anchor="lt")
    draw.rounded_rectangle((margin, margin, right + margin, bottom + 0.6 * margin), margin / 2, fill=(20, 24, 30))
    draw.text((2 * margin, 1.6 * margin), text, font=font, anchor="lt", fill="white")
    return np.asarray(picture)


def draw_before_after(results: Iterable[StabilizedFrame]) -> list[Pixels]:
    """Draw the middle of each frame before and after stabilization, side by side: uint8 H x W x 3."""
    drawn = []
    for result in results:
        width = result.frame.shape[1]
        middle = slice(width // 4, width // 4 + width // 2)
        before, after = result.frame[:, middle], result.stabilized[:, middle]
        drawn.append(np.concatenate((draw_label(before, "shaky"), draw_label(after, "steady")), axis=1))
    return drawn


def animate(frames: Sequence[Pixels], fps: Fraction, width: int, quality: int = 60) -> bytes:
    """Encode frames, uint8 H x W x 3, as an animated WebP of a width in pixels."""
    size = (width, 2 * round(frames[0].shape[0] * width / frames[0].shape[1] / 2))
    resized = [np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.LANCZOS)) for frame in frames]
    return encode_webp(resized, float(fps), quality)


def _still(image: Pixels, caption: str) -> Figure:
    return Figure(encode_webp([image]), caption)


def tasks_sections(model: Predictor, output: Path) -> tuple[Section, ...]:
    """Show flow, moving objects and depth of both clips; writes tasks.mp4 to a folder."""
    cockatoo = run_tasks(model, demo_clip("cockatoo"), frame_step=2)
    grids = cockatoo.grids()
    write_video(output / "tasks.mp4", grids, cockatoo.fps)
    tears = run_tasks(model, demo_clip("tears_of_steel"), 2, *TEARS_SPAN)
    views = {"a frame": tears.frames, "flow": tears.flow, "moving objects": tears.objects, "depth": tears.depth}
    return (
        Section(
            "Flow, moving objects and depth",
            "A cockatoo walks up to a hand-held camera. The flow is the motion of every pixel to the next frame, most "
            "of it by the camera; moving objects are what moves on its own; depth is the distance, from each image "
            "alone and smoothed along the flow.",
            (
                Figure(
                    animate(grids, cockatoo.fps, 960),
                    f"Every second frame; the flow is that to the next one shown. {cockatoo.legend}",
                    wide=True,
                ),
            ),
        ),
        Section(
            "The same tasks on Tears of Steel",
            "A man turns while the camera pans. The machine beside him is near the camera and becomes a part of the "
            "same object, and the wall between them an object of its own: strong parallax looks like independent "
            "motion. The estimated depth of the machine is far too large. "
            f"{tears.legend}",
            tuple(_still(images[TEARS_SHOWN], caption) for caption, images in views.items()),
        ),
    )


def tracked_section(model: Predictor, output: Path) -> Section:
    """Track the head of the cockatoo; writes track.mp4 to a folder."""
    clip = demo_clip("cockatoo")
    results = list(model.track_video(clip, HEAD))
    drawn, fps = [np.asarray(result.image()) for result in results], Fraction(open_video(clip).info.fps)
    write_video(output / "track.mp4", drawn, fps)
    lost = sum(result.targets[0].lost for result in results)
    return Section(
        "Tracking",
        f"The box of the first frame was drawn by hand; the tracker predicted the others. It is lost in {lost} of "
        f"{len(results)} frames. The number beside the box is the confidence.",
        (
            Figure(animate(drawn, fps, 640), "all frames", wide=True),
            *(_still(drawn[index], f"frame {index + 1}") for index in TRACK_SHOWN),
        ),
    )


def stabilized_section(model: Predictor, output: Path) -> Section:
    """Stabilize the hand-held clip; writes steady.mp4 to a folder."""
    clip = demo_clip("cockatoo")
    result, fps = model.stabilize(clip), Fraction(open_video(clip).info.fps)
    drawn = draw_before_after(result.frames())
    write_video(output / "steady.mp4", drawn, fps)
    before, after = result.acceleration
    return Section(
        "Stabilization",
        f"The camera's velocity changes by {before:.2f} px per frame before, and by {after:.2f} px after; "
        f"{result.cropping:.0%} of each side is shown.",
        (Figure(animate(drawn, fps, 640), "the middle of the frame, before and after", wide=True), *plot_path(result)),
    )


def draw_explanation(model: Predictor) -> list[Pixels]:
    """Draw two frames: the first, its prototypes in the last layer, and the moving parts of both, uint8 H x W x 3."""
    frames = [frame.image for frame in open_video(demo_clip("cockatoo")).frames()]
    first, second = (frames[index] for index in EXPLAINED)
    explanation = model.explain(first, second)
    return [first, draw_groups(explanation)[0], *draw_parts(explanation)]


def explained_section(model: Predictor) -> Section:
    """Show the prototypes and the moving parts of two frames."""
    captions = ("first image", "its prototypes", "parts that move together", "the same parts in the second image")
    return Section(
        "Prototypes",
        "The network groups the pixels around prototypes before it matches them. In the second picture, each pixel has "
        "the color of the prototype with the largest membership; those with a common motion are merged into parts. "
        "Where the camera moves fast, the parts are smaller.",
        tuple(_still(image, caption) for image, caption in zip(draw_explanation(model), captions, strict=True)),
    )
