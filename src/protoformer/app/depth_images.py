"""`protoformer depth` of images."""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from protoformer.app.camera_words import told_camera
from protoformer.app.progress import progress_bar
from protoformer.errors import InputError
from protoformer.files import checked_input, checked_output, encode_png, image_size, write_atomically
from protoformer.files.depth_png import FARTHEST_MM
from protoformer.files.folders import made_folder
from protoformer.files.kitti import FARTHEST_KITTI
from protoformer.files.movie_images import is_still
from protoformer.inference import DepthModel, DepthResult, load
from protoformer.inference.cameras import CameraHint
from protoformer.inference.depth_results import depth_format
from protoformer.inference.flow_windows import Precision
from protoformer.show.depth_frames import painted_depth

_PNG_FORMATS = ("picture", "mm", "kitti")
_FARTHEST = {"mm": FARTHEST_MM, "kitti": FARTHEST_KITTI}
"""Metres that the largest number of a 16-bit png stands for."""


@dataclass(frozen=True)
class DepthImageOptions:
    """What was asked for on the command line; None where nothing was."""

    format: str | None
    ply: bool
    save_npy: Path | None
    colours: tuple[float, float] | None
    camera: CameraHint
    range: tuple[float, float] | None
    precision: str
    updates: int | None
    mirrored: bool


def depth_of_images(
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


def _depth(model: DepthModel, source: str, options: DepthImageOptions, progress: Any) -> DepthResult:
    return model.depth(
        source,
        focal=options.camera.focal,
        fov=options.camera.fov,
        range=options.range,
        mirrored=options.mirrored,
        updates=options.updates,
        precision=cast(Precision, options.precision),
        progress=progress,
    )


def _targets(sources: list[str], outputs: list[Path], options: DepthImageOptions) -> dict[str, list[Path]]:
    """The files of each image."""
    for source in sources:
        if not is_still(checked_input(source)):
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
            made_folder(path.parent)
        checked_output(path)


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
    if chosen == "picture" and options.colours is not None:
        write_atomically(path, encode_png(painted_depth(result.depth, options.colours)))
        return
    result.save(path, chosen, image=source if chosen == "ply" else None)
    farthest = _FARTHEST.get(chosen, math.inf)
    beyond = int((result.depth > farthest * (1 + 0.5 / 65535)).sum())  # half a step more is rounded to the largest
    if beyond:
        print(f"note: {beyond} pixels of {path} lie beyond {farthest:.3f} m and were written as none", file=sys.stderr)


def _summary(source: str, result: DepthResult, written: list[Path]) -> dict[str, Any]:
    metres = result.depth.flatten()
    return {
        "image": source,
        "width": result.depth.shape[2],
        "height": result.depth.shape[1],
        "nearest_m": round(float(metres.min()), 4),
        "median_m": round(float(metres.median()), 4),
        "farthest_m": round(float(metres.max()), 4),
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
        f"{told_camera(summary['camera'], summary['focal_px'])}; wrote {', '.join(summary['written'])}"
    )
