"""`protoformer depth`."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from protoformer.cli.clips import (
    estimate_frame_count,
    is_clip,
    make_video_writer,
    open_clip,
    print_summary,
    report_interruption,
    run_with_bar,
)
from protoformer.cli.options import (
    LIVE_HELP,
    MIRROR_HELP,
    VIDEO_SUFFIXES,
    DeviceOption,
    DropOption,
    EndOption,
    FocalOption,
    FovOption,
    FpsOption,
    FrameStepOption,
    JsonOption,
    ModelOption,
    PrecisionOption,
    RangeOption,
    SideBySideOption,
    StartOption,
    TimeoutOption,
    UpdatesOption,
    parse_depth_range,
    parse_near_far,
    reject_options,
)
from protoformer.cli.terminal import print_json, progress_bar
from protoformer.depth.camera import Camera, CameraHint, describe_camera
from protoformer.depth.drawing import DepthPainter, colorize_depth
from protoformer.depth.result import MIN_CONFIDENCE, DepthResult, check_depth_range, depth_format
from protoformer.depth.video import DepthFrame, DepthVideo
from protoformer.errors import InputError
from protoformer.io.files import check_input, check_output, make_folder, write_atomically
from protoformer.io.formats import MAX_KITTI_DEPTH, MAX_MM_DEPTH
from protoformer.io.image import image_size
from protoformer.io.png import encode_png
from protoformer.loading import load
from protoformer.models.runtime import Precision
from protoformer.video.image_sequence import is_image_file
from protoformer.video.pipeline import ResultFolder
from protoformer.video.types import Video
from protoformer.viz.colormaps import Pixels
from protoformer.viz.report import format_count

ColorRange = tuple[float, float]
"""Depths of the first and the last color, meters."""


def depth_video(
    video: Video,
    outputs: list[Path],
    save_npy: Path | None,
    colors: ColorRange | None,
    side_by_side: bool,
    model: tuple[str, str | None],
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Write the depth of a video as a video, as .npy files, or both.

    Args:
        video: The input.
        outputs: The videos that were given.
        save_npy: Folder for .npy files.
        colors: Range of colors; None: estimated from the video.
        side_by_side: Whether frames are drawn next to the colors.
        model: Name of the model and device.
        options: Arguments of `DepthPredictor.depth_video`.
        as_json: Whether the summary is JSON.
    """
    writer = make_video_writer(outputs, Path("depth.mp4") if save_npy is None else None, video, options["frame_step"])
    folder = None if save_npy is None else ResultFolder(save_npy, ".npy")
    depths = load(*model, task="depth").depth_video(video, **options)
    total_depth = total_confidence = 0.0

    def on_result(result: DepthFrame, _: Pixels | None) -> None:
        nonlocal total_depth, total_confidence
        total_depth += float(result.depth.median())
        total_confidence += float(result.confidence.mean())
        if folder is not None:
            folder.save(result)

    with report_interruption("depth map", video):
        painter = None
        if writer is not None:
            given = colors if colors is not None or video.live else _typical_range(depths)
            painter = DepthPainter(given, side_by_side)
        outcome = run_with_bar(
            "depth",
            estimate_frame_count(video, options["start"], options["end"], options["frame_step"]),
            depths,
            painter,
            writer,
            outputs=[] if folder is None else [folder],
            on_result=on_result,
        )
    shown = None if painter is None else painter.colors
    camera, mean_median = cast(Camera, depths.camera), total_depth / outcome.num_frames
    mean_confidence = total_confidence / outcome.num_frames
    summary = {
        "depths": outcome.num_frames,
        "mean_median_m": round(mean_median, 4),
        "mean_confidence": round(mean_confidence, 4),
        "outside_training": mean_confidence < MIN_CONFIDENCE,
        "colors_m": None if shown is None else [round(each, 4) for each in shown],
        "focal_px": round(camera.focal, 3),
        "camera": camera.source,
        "trained": depths.trained,
        "steady": options["steady"],
        "precision": "half" if depths.half else "full",
    }
    text = (
        f"{format_count(outcome.num_frames, 'depth map')} of {video.info.size[1]}x{video.info.size[0]} pixels, mean of "
        f"the medians {mean_median:.2f} m; {describe_camera(camera.source, camera.focal)}; "
        f"{'temporally filtered' if options['steady'] else 'frame by frame'}, "
        f"{'bfloat16' if depths.half else 'float32'}"
    )
    if shown is not None:
        sampled = "2nd to 98th percentile of " + ("the frames" if video.live else "sampled frames")
        origin = sampled if colors is None else "given"
        text += f"; colors from {shown[0]:.2f} to {shown[1]:.2f} m ({origin})"
    written = [each.path for each in (writer, folder) if each is not None]
    print_summary(video, outcome, written, as_json, summary, text)
    _note_outside_training(video.info.name, mean_confidence, depths.trained)


def _note_outside_training(name: str, mean_confidence: float, trained: bool) -> None:
    """Print a note on standard error if the mean confidence is lower than on images like those of the training."""
    if trained and mean_confidence < MIN_CONFIDENCE:
        print(
            f"note: {name} is probably unlike what the network was trained on (mean confidence {mean_confidence:.2f}, "
            f"below {MIN_CONFIDENCE:g}): do not rely on its depths; the packaged weights are trained on rooms",
            file=sys.stderr,
        )


def _typical_range(depths: DepthVideo) -> ColorRange:
    with progress_bar("sampling frames", total=1) as progress:
        return depths.typical_range(progress)


_PNG_FORMATS = ("image", "mm", "kitti")
_FARTHEST = {"mm": MAX_MM_DEPTH, "kitti": MAX_KITTI_DEPTH}
"""Depth of the largest value of a 16-bit png, meters."""


@dataclass(frozen=True)
class DepthFiles:
    """Output files of `protoformer depth` for images.

    Attributes:
        outputs: The paths that were given.
        format: Content of .png files; None: colors.
        ply: Whether a .ply file is added.
        save_npy: Folder for .npy files.
        colors: Range of colors; None: that of each image.
    """

    outputs: list[Path]
    format: str | None
    ply: bool
    save_npy: Path | None
    colors: ColorRange | None

    def targets(self, sources: list[str]) -> dict[str, list[Path]]:
        """Return the files to write for each image, or raise `InputError` if they are not possible."""
        if self.format is not None and self.format not in _PNG_FORMATS:
            raise InputError(f"there is no png format {self.format!r}; choose one of {', '.join(_PNG_FORMATS)}.")
        for source in sources:
            if not is_image_file(check_input(source)):
                raise InputError(f"{source} is a video; give one video alone, or only images.")
            image_size(source)  # so that an invalid image is an error before any depth is written
        if len(sources) == 1:
            targets = {sources[0]: list(self.outputs) or [Path("depth.png")]}
        else:
            if len(self.outputs) > 1:
                raise InputError("the depths of several images go to one folder; give one output.")
            folder = self.outputs[0] if self.outputs else Path("depth")
            if folder.is_file() or (folder.suffix and not folder.is_dir()):
                raise InputError(f"{folder} is not a folder, which several images need; give the name of one.")
            targets = {source: [folder / f"{Path(source).stem}.png"] for source in sources}
        for source, paths in targets.items():
            if self.ply and not any(path.suffix.lower() == ".ply" for path in paths):
                paths.append(paths[0].with_suffix(".ply"))
            if self.save_npy is not None:
                paths.append(self.save_npy / f"{Path(source).stem}.npy")
        self._check(sources, targets)
        return targets

    def prepare(self, targets: dict[str, list[Path]]) -> None:
        """Create the folders, and check that every file can be written."""
        for path in (path for paths in targets.values() for path in paths):
            if len(targets) > 1 or path.parent == self.save_npy:
                make_folder(path.parent)
            check_output(path)

    def write(self, result: DepthResult, path: Path, source: str) -> None:
        """Write a file, with a note on standard error if its format cannot store all depths."""
        file_format = self._format(path)
        if file_format == "image" and self.colors is not None:
            write_atomically(path, encode_png(colorize_depth(result.depth, self.colors)))
            return
        result.save(path, file_format, image=source if file_format == "ply" else None)
        farthest = _FARTHEST.get(file_format, math.inf)
        beyond = int((result.depth > farthest * (1 + 0.5 / 65535)).sum())  # up to half a step is rounded down
        if beyond:
            print(f"note: {beyond} pixels of {path} lie beyond {farthest:.3f} m and have no depth", file=sys.stderr)

    def _format(self, path: Path) -> str:
        return depth_format(path, self.format if path.suffix.lower() == ".png" else None)

    def _check(self, sources: list[str], targets: dict[str, list[Path]]) -> None:
        """Raise `InputError` for outputs of unknown formats, that would be written twice, or that are inputs."""
        written = [path for paths in targets.values() for path in paths]
        if len(targets) < len(sources):
            raise InputError("an image is given twice; give each once.")
        for path in written:
            self._format(path)
            if written.count(path) > 1:
                raise InputError(f"{path} would be written twice; give images of different names, or other outputs.")
            if path.exists() and any(path.samefile(source) for source in sources):
                raise InputError(f"the output {path} is also an input and would be lost; choose another name.")


def depth_images(
    sources: list[str], files: DepthFiles, model: tuple[str, str | None], options: dict[str, Any], as_json: bool
) -> None:
    """Write the depth of images.

    Args:
        sources: The images.
        files: What to write.
        model: Name of the model and device.
        options: Arguments of `DepthPredictor.depth`.
        as_json: Whether the summary is JSON.
    """
    targets = files.targets(sources)
    predictor = load(*model, task="depth")
    files.prepare(targets)
    summaries = []
    num_updates = options["num_updates"] or predictor.network.config.depth.num_updates
    with progress_bar("depth", total=num_updates * len(sources)) as progress:
        for index, source in enumerate(sources):

            def update(done: int, total: int, index: int = index) -> None:
                progress(index * total + done, total * len(sources))

            result = predictor.depth(source, **options, progress=update)
            for path in targets[source]:
                files.write(result, path, source)
            summaries.append(_summarize(source, result, targets[source]))
            _note_outside_training(source, float(result.confidence.mean()), result.trained)
    if as_json:
        print_json({"images": summaries})
        return
    for summary in summaries:
        print(_format_summary(summary, len(sources) > 1))


def _summarize(source: str, result: DepthResult, written: list[Path]) -> dict[str, Any]:
    depths = result.depth.flatten()
    return {
        "image": source,
        "width": result.depth.shape[2],
        "height": result.depth.shape[1],
        "nearest_m": round(float(depths.min()), 4),
        "median_m": round(float(depths.median()), 4),
        "farthest_m": round(float(depths.max()), 4),
        "range_m": [round(bound, 4) for bound in result.range],
        "mean_confidence": round(float(result.confidence.mean()), 4),
        "outside_training": result.outside_training,
        "focal_px": round(float(result.intrinsics[0, 0]), 3),
        "camera": result.camera,
        "trained": result.trained,
        "written": [str(path) for path in written],
    }


def _format_summary(summary: dict[str, Any], with_name: bool) -> str:
    return (
        (f"{summary['image']}: " if with_name else "")
        + f"{summary['width']}x{summary['height']} pixels, {summary['nearest_m']:.2f} to "
        f"{summary['farthest_m']:.2f} m, median {summary['median_m']:.2f} m; "
        f"{describe_camera(summary['camera'], summary['focal_px'])}; wrote {', '.join(summary['written'])}"
    )


def depth(
    sources: Annotated[
        list[str],
        typer.Argument(help=f"Images; or one video, a folder of frames, a quoted pattern of their names; {LIVE_HELP}."),
    ],
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            help="For an image: .png, .npy (meters), .npz or .ply (point cloud), repeated for several files. For "
            f"several images: a folder. For a video: {VIDEO_SUFFIXES}. [default: depth.png, depth, depth.mp4]",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="Images: content of a .png, image (colors), mm (16-bit) or kitti (16-bit, 1/256 m)."),
    ] = None,
    focal: FocalOption = None,
    fov: FovOption = None,
    range: RangeOption = None,
    colors: Annotated[
        str | None, typer.Option(help="NEAR,FAR: depths of the first and the last color, meters. [default: by content]")
    ] = None,
    ply: Annotated[bool, typer.Option("--ply", help="Images: also write a point cloud next to each output.")] = False,
    save_npy: Annotated[Path | None, typer.Option(help="Folder for one .npy file per frame or image.")] = None,
    model: ModelOption = "depth",
    num_updates: UpdatesOption = None,
    mirrored: Annotated[
        bool | None,
        typer.Option("--mirrored/--no-mirrored", help=f"{MIRROR_HELP} [default: on for images, off for videos]"),
    ] = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
    side_by_side: SideBySideOption = False,
    steady: Annotated[
        bool | None, typer.Option(help="Video: reduce flicker by filtering along the flow. [default: steady]")
    ] = None,
    start: StartOption = None,
    end: EndOption = None,
    frame_step: FrameStepOption = None,
    fps: FpsOption = None,
    drop: DropOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Estimate metric depth of images or of a video.

    Example: `protoformer depth room.jpg -o depth.png -o depth.npy -o room.ply --range indoor`

    Example: `protoformer depth clip.mp4 -o depth.mp4 --side-by-side --fov 70`
    """
    camera = CameraHint(focal=focal, fov=fov)
    options: dict[str, Any] = {
        **{"focal": camera.focal, "fov": camera.fov, "range": check_depth_range(parse_depth_range(range))},
        **{"num_updates": num_updates, "precision": cast(Precision, precision or "auto")},
    }
    color_range = check_depth_range(parse_near_far(colors, "--colors"))
    if len(sources) == 1 and is_clip(sources[0]):
        reject_options("images", "a video", format=format, ply=ply)
        options |= {"mirrored": bool(mirrored), "steady": steady is not False, "start": start, "end": end}
        options["frame_step"] = 1 if frame_step is None else frame_step
        video = open_clip(sources[0], fps, drop, timeout)
        depth_video(video, output or [], save_npy, color_range, side_by_side, (model, device), options, as_json)
        return
    span = {"start": start, "end": end, "frame_step": frame_step, "fps": fps}
    span |= {"drop": drop is not None, "timeout": timeout}
    reject_options("videos", "images", side_by_side=side_by_side, steady=steady is not None, **span)
    options["mirrored"] = mirrored is not False
    files = DepthFiles(output or [], format, ply, save_npy, color_range)
    depth_images(sources, files, (model, device), options, as_json)
