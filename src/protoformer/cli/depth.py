"""`protoformer depth`."""

import json
import math
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from protoformer.cli.clips import (
    check_folder,
    expected_frame_count,
    is_clip,
    kept_output,
    open_clip,
    report_damage,
    report_interruption,
    single_video_output,
)
from protoformer.cli.options import (
    DeviceOption,
    MirrorOption,
    ModelOption,
    UpdatesOption,
    parse_depth_range,
    parse_near_far,
)
from protoformer.cli.terminal import frames_bar, progress_bar, stoppable
from protoformer.depth.camera import Camera, CameraHint, describe_camera
from protoformer.depth.drawing import colorize_depth, draw_depth_frame
from protoformer.depth.predictor import DepthPredictor
from protoformer.depth.result import DepthResult, check_depth_range, depth_format
from protoformer.depth.video import DepthVideo
from protoformer.errors import InputError
from protoformer.io.files import check_input, check_output, make_folder, write_atomically
from protoformer.io.image import image_size
from protoformer.io.kitti import FARTHEST_KITTI, FARTHEST_MM
from protoformer.io.png import encode_png
from protoformer.loading import load
from protoformer.models.runtime import Precision
from protoformer.video.image_sequence import is_image_file
from protoformer.video.types import Video
from protoformer.video.writer import VideoWriter
from protoformer.viz.text import format_count


@dataclass(frozen=True)
class DepthClipOptions:
    """What was asked for on the command line; None where nothing was."""

    side_by_side: bool
    frame_by_frame: bool
    save_npy: Path | None
    start: float | None
    end: float | None
    frame_step: int | None
    fps: float | None
    colors: tuple[float, float] | None
    camera: CameraHint
    range: tuple[float, float] | None
    precision: str
    updates: int | None
    mirrored: bool


@dataclass
class _Tally:
    """What was done so far."""

    depths: int = 0
    meters: float = 0.0

    def __str__(self) -> str:
        return format_count(self.depths, "depth")


def depth_clip(
    source: str, outputs: list[Path], named: tuple[str, str | None], options: DepthClipOptions, as_json: bool
) -> None:
    """Write the depth of a clip as a video, as .npy files, or both. named: the model and the device, as given."""
    movie = open_clip(source, options.fps)
    target = single_video_output(outputs, "depth.mp4", movie, options.save_npy)
    check_folder(options.save_npy, "000000.npy")
    writer = None
    if target is not None:
        writer = VideoWriter(target, movie, movie.info.fps / max(1, options.frame_step or 1))
    video = load(*named, task="depth").depth_video(
        movie,
        start=options.start,
        end=options.end,
        frame_step=1 if options.frame_step is None else options.frame_step,
        focal=options.camera.focal,
        fov=options.camera.fov,
        range=options.range,
        steady=not options.frame_by_frame,
        num_updates=options.updates,
        mirrored=options.mirrored,
        precision=cast(Precision, options.precision),
    )
    tally, began = _Tally(), time.perf_counter()

    def tell() -> None:
        report_interruption(str(tally), kept_output(writer, options.save_npy if tally.depths else None))

    with stoppable(tell):
        colors = _colors(video, options) if writer else None
        _run(video, writer, options, colors, tally)
    _tell(video, target, options, colors, tally, time.perf_counter() - began, as_json)


def _colors(video: DepthVideo, options: DepthClipOptions) -> tuple[float, float]:
    """Meters of the first and the last color, in the whole clip."""
    if options.colors is not None:
        return options.colors
    with progress_bar("a first look", total=1) as told:
        return video.typical_range(told)


def _run(
    video: DepthVideo,
    writer: VideoWriter | None,
    options: DepthClipOptions,
    colors: tuple[float, float] | None,
    tally: _Tally,
) -> None:
    span = video.options
    expected = expected_frame_count(cast(Video, video.video), span.start, span.end, span.frame_step)
    with ExitStack() as open_things:
        told = open_things.enter_context(frames_bar("depth", expected))
        if writer is not None:
            open_things.enter_context(writer)
        for step in video:
            if writer is not None and colors is not None:
                writer.write(draw_depth_frame(step, colors, options.side_by_side), step.time)
            if options.save_npy is not None:
                step.save(options.save_npy / f"{step.number:06d}.npy")
            tally.depths += 1
            tally.meters += float(step.depth.median())
            told(tally.depths)


def _tell(
    video: DepthVideo,
    target: Path | None,
    options: DepthClipOptions,
    colors: tuple[float, float] | None,
    tally: _Tally,
    seconds: float,
    as_json: bool,
) -> None:
    movie, camera = cast(Video, video.video), cast(Camera, video.camera)
    height, width = movie.info.size
    written = [str(path) for path in (target, options.save_npy) if path is not None]
    report_damage(movie)
    if as_json:
        summary: dict[str, Any] = {
            "depths": tally.depths,
            "width": width,
            "height": height,
            "mean_median_m": round(tally.meters / tally.depths, 4),
            "colors_m": None if colors is None else [round(each, 4) for each in colors],
            "focal_px": round(camera.focal, 3),
            "camera": camera.source,
            "trained": video.trained,
            "steady": not options.frame_by_frame,
            "precision": "half" if video.half else "full",
            "seconds": round(seconds, 3),
            "skipped": movie.skipped,
            "truncated": movie.truncated,
            "written": written,
        }
        print(json.dumps(summary))
        return
    how = "as you said" if options.colors is not None else "96 of 100 depths of a first look"
    shown = "" if colors is None else f" colors from {colors[0]:.2f} to {colors[1]:.2f} m ({how});"
    print(
        f"{tally} of {width}x{height} pixels, mean of the medians {tally.meters / tally.depths:.2f} m; "
        f"{describe_camera(camera.source, camera.focal)}; "
        f"{'frame by frame' if options.frame_by_frame else 'steadied'}, "
        f"{'bfloat16' if video.half else 'float32'};{shown} {tally.depths / seconds:.2f} frames a second; "
        f"wrote {', '.join(written)}"
    )


_PNG_FORMATS = ("image", "mm", "kitti")
_FARTHEST = {"mm": FARTHEST_MM, "kitti": FARTHEST_KITTI}
"""Meters that the largest number of a 16-bit png stands for."""


@dataclass(frozen=True)
class DepthImageOptions:
    """What was asked for on the command line; None where nothing was."""

    format: str | None
    ply: bool
    save_npy: Path | None
    colors: tuple[float, float] | None
    camera: CameraHint
    range: tuple[float, float] | None
    precision: str
    updates: int | None
    mirrored: bool


def depth_images(
    sources: list[str],
    outputs: list[Path],
    named: tuple[str, str | None],
    options: DepthImageOptions,
    as_json: bool,
) -> None:
    """Write the depth of every image. named: the model and the device, as given."""
    if options.format is not None and options.format not in _PNG_FORMATS:
        raise InputError(f"there is no format {options.format!r} of a png; choose one of {', '.join(_PNG_FORMATS)}.")
    targets = _targets(sources, outputs, options)
    model = load(*named, task="depth")
    _prepare(targets, options)
    summaries = []
    updates = options.updates or model.network.config.depth_updates
    with progress_bar("depth", total=updates * len(sources)) as told:
        for place, source in enumerate(sources):

            def progress(done: int, total: int, place: int = place) -> None:
                told(place * total + done, total * len(sources))

            result = _depth(model, source, options, progress)
            for path in targets[source]:
                _write(result, path, source, options)
            summaries.append(_summary(source, result, targets[source]))
    for summary in summaries:
        if not as_json:
            print(_line(summary, len(sources) > 1))
    if as_json:
        print(json.dumps({"images": summaries}))


def _depth(model: DepthPredictor, source: str, options: DepthImageOptions, progress: Any) -> DepthResult:
    return model.depth(
        source,
        focal=options.camera.focal,
        fov=options.camera.fov,
        range=options.range,
        mirrored=options.mirrored,
        num_updates=options.updates,
        precision=cast(Precision, options.precision),
        progress=progress,
    )


def _targets(sources: list[str], outputs: list[Path], options: DepthImageOptions) -> dict[str, list[Path]]:
    """The files of each image."""
    for source in sources:
        if not is_image_file(check_input(source)):
            raise InputError(f"{source} is a clip; give one clip alone, or images alone.")
        image_size(source)  # so that one that is no image is found before any depth is written
    if len(sources) == 1:
        targets = {sources[0]: list(outputs) or [Path("depth.png")]}
    else:
        if len(outputs) > 1:
            raise InputError("the depths of several images go to one folder; give one output.")
        folder = outputs[0] if outputs else Path("depth")
        if folder.is_file() or (folder.suffix and not folder.is_dir()):
            raise InputError(f"{folder} is not a folder, which several images need; give the name of one.")
        targets = {source: [folder / f"{Path(source).stem}.png"] for source in sources}
    for source, paths in targets.items():
        if options.ply and not any(path.suffix.lower() == ".ply" for path in paths):
            paths.append(paths[0].with_suffix(".ply"))
        if options.save_npy is not None:
            paths.append(options.save_npy / f"{Path(source).stem}.npy")
    _check(sources, targets, options)
    return targets


def _prepare(targets: dict[str, list[Path]], options: DepthImageOptions) -> None:
    """Make the folders that are ours to make, and see that every file can be written; depth takes longer than this."""
    for path in (path for paths in targets.values() for path in paths):
        if len(targets) > 1 or path.parent == options.save_npy:
            make_folder(path.parent)
        check_output(path)


def _check(sources: list[str], targets: dict[str, list[Path]], options: DepthImageOptions) -> None:
    """Refuse outputs of no known kind, that would be written twice, or that are inputs."""
    written = [path for paths in targets.values() for path in paths]
    if len(targets) < len(sources):
        raise InputError("an image is given twice; give each once.")
    for path in written:
        depth_format(path, _format(path, options))
        if written.count(path) > 1:
            raise InputError(f"{path} would be written twice; give images of different names, or other outputs.")
        if path.exists() and any(path.samefile(source) for source in sources):
            raise InputError(f"the output {path} is also an input and would be lost; choose another name.")


def _format(path: Path, options: DepthImageOptions) -> str | None:
    return options.format if path.suffix.lower() == ".png" else None


def _write(result: DepthResult, path: Path, source: str, options: DepthImageOptions) -> None:
    chosen = depth_format(path, _format(path, options))
    if chosen == "image" and options.colors is not None:
        write_atomically(path, encode_png(colorize_depth(result.depth, options.colors)))
        return
    result.save(path, chosen, image=source if chosen == "ply" else None)
    farthest = _FARTHEST.get(chosen, math.inf)
    beyond = int((result.depth > farthest * (1 + 0.5 / 65535)).sum())  # half a step more is rounded to the largest
    if beyond:
        print(f"note: {beyond} pixels of {path} lie beyond {farthest:.3f} m and were written as none", file=sys.stderr)


def _summary(source: str, result: DepthResult, written: list[Path]) -> dict[str, Any]:
    meters = result.depth.flatten()
    return {
        "image": source,
        "width": result.depth.shape[2],
        "height": result.depth.shape[1],
        "nearest_m": round(float(meters.min()), 4),
        "median_m": round(float(meters.median()), 4),
        "farthest_m": round(float(meters.max()), 4),
        "range_m": [round(bound, 4) for bound in result.range],
        "mean_confidence": round(float(result.confidence.mean()), 4),
        "focal_px": round(float(result.intrinsics[0, 0]), 3),
        "camera": result.camera,
        "trained": result.trained,
        "written": [str(path) for path in written],
    }


def _line(summary: dict[str, Any], named: bool) -> str:
    begin = f"{summary['image']}: " if named else ""
    return (
        f"{begin}{summary['width']}x{summary['height']} pixels, {summary['nearest_m']:.2f} to "
        f"{summary['farthest_m']:.2f} m, median {summary['median_m']:.2f} m; "
        f"{describe_camera(summary['camera'], summary['focal_px'])}; wrote {', '.join(summary['written'])}"
    )


def depth(
    sources: Annotated[
        list[str],
        typer.Argument(help="Images; or one clip: a video, a folder of frames or a quoted pattern of their names."),
    ],
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write: of an image .png, .npy (meters) or .ply (points), repeated for several; of several "
            "images a folder; of a clip .mp4, .mov, .mkv, .webm, .avi or .gif. [default: depth.png, depth, depth.mp4]",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="Images: what a .png holds, image (colors), mm (16-bit) or kitti (16-bit, 1/256 m)."),
    ] = None,
    focal: Annotated[float | None, typer.Option(help="The camera's focal length, pixels of these images.")] = None,
    fov: Annotated[float | None, typer.Option(help="Its field of view across the width, degrees.")] = None,
    range: Annotated[
        str | None, typer.Option(help="indoor (0.1 to 10 m), driving (1 to 80 m) or NEAR,FAR. [default: the network's]")
    ] = None,
    colors: Annotated[
        str | None, typer.Option(help="NEAR,FAR: meters of the first and the last color. [default: by what is seen]")
    ] = None,
    ply: Annotated[bool, typer.Option("--ply", help="Images: the points as well, a .ply beside each output.")] = False,
    save_npy: Annotated[Path | None, typer.Option(help="A folder for a .npy of every frame or image.")] = None,
    model: ModelOption = "depth",
    updates: UpdatesOption = None,
    mirror: MirrorOption = None,
    device: DeviceOption = None,
    precision: Annotated[
        str, typer.Option(help="full (float32), half (bfloat16) or auto (half where it is fast).")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for programs.")] = False,
    side_by_side: Annotated[bool, typer.Option("--side-by-side", help="Clip: the frame beside its depth.")] = False,
    frame_by_frame: Annotated[
        bool, typer.Option("--frame-by-frame", help="Clip: each frame by itself; it flickers, and nothing lags.")
    ] = False,
    start: Annotated[float | None, typer.Option(help="Clip: seconds at which to begin.")] = None,
    end: Annotated[float | None, typer.Option(help="Clip: seconds before which to end.")] = None,
    frame_step: Annotated[int | None, typer.Option(help="Clip: take one frame in so many.")] = None,
    fps: Annotated[float | None, typer.Option(help="Clip of images: frames a second. [default: 25]")] = None,
) -> None:
    """Estimate metric depth of images or of a video.

    Example: `protoformer depth room.jpg -o depth.png -o depth.npy -o room.ply --range indoor`

    Example: `protoformer depth clip.mp4 -o depth.mp4 --side-by-side --fov 70`
    """
    camera, bounds = CameraHint(focal=focal, fov=fov), check_depth_range(parse_depth_range(range))
    scale = check_depth_range(parse_near_far(colors, "--colors"))
    if len(sources) == 1 and is_clip(sources[0]):
        if format is not None or ply:
            raise InputError(f"{'--ply' if ply else '--format'} is for images; leave it out for a clip.")
        depth_clip(
            sources[0],
            output or [],
            (model, device),
            DepthClipOptions(
                *(side_by_side, frame_by_frame, save_npy, start, end, frame_step, fps),
                *(scale, camera, bounds, precision, updates, bool(mirror)),
            ),
            as_json,
        )
        return
    given = {
        **{"--side-by-side": side_by_side, "--frame-by-frame": frame_by_frame, "--start": start, "--end": end},
        **{"--frame-step": frame_step, "--fps": fps},
    }
    for option, value in given.items():
        if value is not None and value is not False:
            raise InputError(f"{option} is for a clip; leave it out for images.")
    options = DepthImageOptions(
        *(format, ply, save_npy, scale, camera, bounds, precision, updates), mirrored=mirror is not False
    )
    depth_images(sources, output or [], (model, device), options, as_json)
