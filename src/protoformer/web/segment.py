"""Tab for segmentation: the masks of what moves on its own in a clip."""

import zipfile
from functools import partial
from pathlib import Path

from protoformer.segmentation.predictor import SegmentationPredictor
from protoformer.segmentation.result import MaskFile, SegmentationFrame, encode_labels
from protoformer.video.types import ImageArray
from protoformer.viz.report import format_count
from protoformer.web.components import (
    ResultPanel,
    clip_input,
    columns,
    input_column,
    require_gradio,
    result_column,
)
from protoformer.web.job import Job, JobOutput, message_html
from protoformer.web.site import Example, Site


class MaskArchive:
    """A context manager that writes the masks of all frames to a zip file, as indexed png files: 000012.png.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED)  # png files are compressed

    def __enter__(self) -> "MaskArchive":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is not None:
            self.path.unlink()

    def add(self, result: SegmentationFrame) -> None:
        """Add the masks of a frame."""
        self._file.writestr(f"{result.number:06d}.png", encode_labels(result.labels))


def segment_clip(predictor: SegmentationPredictor, job: Job, path: Path) -> JobOutput:
    """Segment a clip; write segmented.mp4, masks.zip and masks.json (COCO run-length encoding)."""
    downloads = {".mp4": job.folder / "segmented.mp4", ".zip": job.folder / "masks.zip"}
    downloads[".json"] = job.folder / "masks.json"
    archive, masks = MaskArchive(downloads[".zip"]), MaskFile(downloads[".json"], path.name)
    objects: set[int] = set()

    def add(result: SegmentationFrame, _: ImageArray | None) -> None:
        archive.add(result)
        masks.add(result)
        objects.update(result.ids)

    progress, num_read = job.progress("frame", keeps=True), 0

    def stop_reading() -> bool:
        """Report a frame, and return whether it is the last one: dozens of frames are segmented together."""
        nonlocal num_read
        num_read += 1
        progress(num_read, len(clip))
        return job.control.stopped

    with job.decode_clip(path) as clip:
        clip.is_stopped = stop_reading
        count = job.write_clip(
            downloads[".mp4"],
            clip,
            predictor.segment(clip, **clip.span),
            SegmentationFrame.draw,
            lambda *_: job.deadline.check(),
            outputs=[archive, masks],
            on_result=add,
            stops=False,
        )
        height, width = clip.info.size
    return JobOutput(
        summary=f"{count} frames of {width}x{height} pixels, {format_count(len(objects), 'moving object')}.",
        downloads=downloads,
        view="",
        video=downloads[".mp4"],
    )


UNTRAINED = "The flow model was not trained: its weights are random, so the masks are meaningless."
DOWNLOADS = {".mp4": "Download .mp4", ".zip": "Masks .zip (png)", ".json": "Masks .json (COCO)"}


def build_segment_tab(site: Site) -> list[Example]:
    """Create the components of the tab, and return its examples."""
    gr = require_gradio()
    clips = site.demo_clips(seconds=1)
    with columns():
        with input_column():
            if not site.segmenter.trained:
                gr.HTML(message_html(UNTRAINED, "warning"), elem_id="segment-untrained")
            clip = clip_input(site, "segment-clip", clips)
            buttons = gr.Column(elem_classes="pf-buttons")
        with result_column():
            empty = "The masks of moving objects appear here."
            panel = ResultPanel(site, "segment", DOWNLOADS, empty, video_label="Masks")
    with buttons:
        panel.connect_clip(clip)
        compute = partial(segment_clip, site.segmenter)
        panel.connect("Segment", "clip", compute, [clip.box], "Choose a clip first.", trim=clip.trim)
    return clips
