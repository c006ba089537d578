"""`protoformer segment`."""

from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer

from protoformer.cli.clips import (
    check_output_not_input,
    estimate_frame_count,
    make_video_writer,
    open_clip,
    print_summary,
    report_interruption,
    run_with_bar,
)
from protoformer.cli.options import (
    CLIP_HELP,
    VIDEO_SUFFIXES,
    DeviceOption,
    DropOption,
    EndOption,
    FpsOption,
    FrameStepOption,
    JsonOption,
    ModelOption,
    PrecisionOption,
    SideBySideOption,
    StartOption,
    TimeoutOption,
)
from protoformer.errors import InputError
from protoformer.io.files import is_file
from protoformer.loading import load
from protoformer.models.runtime import Precision
from protoformer.segmentation.foreground import check_method
from protoformer.segmentation.result import MaskFile, SegmentationFrame
from protoformer.video.clip import check_folder_not_input
from protoformer.video.encoding import SUFFIXES
from protoformer.video.pipeline import ResultFolder
from protoformer.viz.colormaps import Pixels
from protoformer.viz.report import format_count

DEFAULT_OUTPUT = Path("segmented.mp4")


def segment(
    source: Annotated[str, typer.Argument(help=CLIP_HELP)],
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            help="A folder for indexed png masks, a .json file for COCO run-length encodings, or a video of the "
            f"overlay ({VIDEO_SUFFIXES}). Repeat for several. [default: {DEFAULT_OUTPUT}]",
        ),
    ] = None,
    side_by_side: SideBySideOption = False,
    method: Annotated[
        str, typer.Option(help="model, or threshold (a baseline: the motion of single frames).")
    ] = "model",
    model: ModelOption = "segment",
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    start: StartOption = None,
    end: EndOption = None,
    frame_step: FrameStepOption = None,
    fps: FpsOption = None,
    drop: DropOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Segment what moves on its own in a video: one mask per object, with the same number in every frame.

    Example: `protoformer segment clip.mp4 -o masks -o overlay.mp4`

    Example: `protoformer segment clip.mp4 -o masks.json --start 2 --end 5`
    """
    check_method(method)
    outputs = output or [DEFAULT_OUTPUT]
    if len(set(outputs)) < len(outputs):
        raise InputError("an output is given twice; give each once.")
    video = open_clip(source, fps, drop, timeout)
    step = 1 if frame_step is None else frame_step
    videos = [path for path in outputs if path.suffix.lower() in SUFFIXES]
    files, folders = [], []
    for path in outputs:
        if path.suffix.lower() == ".json":
            check_output_not_input(path, video)
            files.append(MaskFile(path, Path(source).name))
        elif path not in videos:
            if is_file(path) or (path.suffix and not path.is_dir()):
                raise InputError(f"{path} is neither a video, a .json file nor a folder for masks; give one of these.")
            check_folder_not_input(path, video)
            folders.append(ResultFolder(path, ".png"))
    writer = make_video_writer(videos, None, video, step) if videos else None
    predictor = load(model, device, task="segment")
    results = predictor.segment(
        video,
        start=start,
        end=end,
        frame_step=step,
        method=method,
        precision=cast(Precision | None, precision),
    )
    objects: dict[int, int] = {}
    covered: list[float] = []

    def on_result(result: SegmentationFrame, _: Pixels | None) -> None:
        for each in files:
            each.add(result)
        for folder in folders:
            folder.save(result)
        covered.append(float(result.foreground.mean()))
        for number in result.ids:
            objects[number] = objects.get(number, 0) + 1

    with report_interruption("frame", video):
        outcome = run_with_bar(
            "segmenting",
            estimate_frame_count(video, start, end, step),
            results,
            partial(SegmentationFrame.draw, side_by_side=side_by_side) if videos else None,
            writer,
            outputs=[*files, *folders],
            on_result=on_result,
        )
    share = sum(covered) / max(1, len(covered))
    summary = {
        "frames": outcome.num_frames,
        "objects": [{"id": number, "frames": count} for number, count in sorted(objects.items())],
        "foreground": round(share, 4),
        "trained": predictor.trained,
    }
    text = (
        f"{format_count(outcome.num_frames, 'frame')} of {video.info.size[1]}x{video.info.size[0]} pixels, "
        f"{format_count(len(objects), 'moving object')}, {share:.1%} of the pixels"
    )
    print_summary(video, outcome, outputs, as_json, summary, text)
