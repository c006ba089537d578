"""Motion segmentation of videos: what moves on its own, as masks with numbers that stay the same through a clip."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import cast

import cv2
import numpy as np

from protoformer.errors import InputError
from protoformer.flow.engine import EncodedFrame, FlowEngine
from protoformer.flow.tiling import FlowPlan
from protoformer.geometry.warps import shrink
from protoformer.io.files import PathLike
from protoformer.io.image_input import to_float
from protoformer.models.heads.flow import MIN_SIDE
from protoformer.models.heads.update import FLOW_STRIDE
from protoformer.models.runtime import NetworkPredictor, Precision, ProgressCallback, use_half_precision
from protoformer.segmentation.foreground import METHODS, Array, Image, MotionWindow, check_method, guided_filter
from protoformer.segmentation.instances import InstanceTracker, nearest_label
from protoformer.segmentation.result import MAX_OBJECTS, Labels, MaskFile, SegmentationFrame, make_frame
from protoformer.video.clip import ClipFrames, Source, Span, check_folder_not_input
from protoformer.video.pipeline import ResultFolder, run_pipeline, save_results
from protoformer.video.types import DEFAULT_FPS, ImageArray, VideoFrame, to_uint8_array
from protoformer.viz.report import SummaryRepr, predictor_summary

NUM_UPDATES = 4
"""Flow refinement updates; more do not change the masks."""
WORKING_SIDE = 424
"""Longer side at which the flow is estimated, pixels: about half of 480p."""
MAP_STRIDE = 2
"""Pixels of the working size per pixel of a map."""
MAX_WINDOW, MIN_WINDOW, WINDOW_BYTES = 96, 24, 2**28
"""Frames of a window, at most and at least, and bytes of its images, by which the number is chosen."""
OVERLAP = 8
"""Frames that consecutive windows share; the later window decides those in its second half."""
REFINE_RADIUS, REFINE_REGULARIZATION = 1 / 70, 1e-3
"""Radius, as a fraction of the longer side, and regularization of the guided filter at full size."""


def working_size(size: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width), in whole cells, at which the flow of frames of a size is estimated."""
    scale = min(1.0, WORKING_SIDE / max(size))
    height, width = (max(MIN_SIDE, FLOW_STRIDE * round(side * scale / FLOW_STRIDE)) for side in size)
    return height, width


class SegmentationPredictor(NetworkPredictor, SummaryRepr):
    """Segments what moves on its own in videos. It has no weights besides those of the flow network."""

    def segment(
        self,
        source: Source,
        *,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        frame_step: int = 1,
        fps: float | Fraction = DEFAULT_FPS,
        method: str = "model",
        precision: Precision | None = None,
    ) -> "SegmentationVideo":
        """Segment the moving objects of a video.

        Frames are processed in windows of up to 96, so results come in groups; the memory does not grow with the video.

        Args:
            source: A video file, a folder of images, a file name pattern, frames, or a live source; see `open_video`.
            start: Start of the span, seconds.
            end: End of the span, seconds.
            frame_step: Use every n-th frame of the span.
            fps: Frame rate of images, which have no timestamps, in frames per second.
            method: "model", or "threshold", a baseline: the residual flow alone.
            precision: "full" computes in float32, "half" computes products in bfloat16, "auto" uses bfloat16 on devices
                with hardware support.

        Returns:
            An iterable of `SegmentationFrame`, one per frame.

        Raises:
            InputError: If an option is not valid or the source cannot be read.
        """
        check_method(method)
        half = use_half_precision(self.device, self._choose_precision(precision))
        return SegmentationVideo(self, ClipFrames(source, Span(start, end, frame_step, fps)), method, half)

    __call__ = segment

    def _repr_parts(self) -> tuple[str, ...]:
        return predictor_summary("segment", self.network, self.trained, self.device)


@dataclass(frozen=True, eq=False)
class _View:
    """A frame, its image at map size, and its features."""

    frame: VideoFrame
    small: Image
    encoded: EncodedFrame


@dataclass(frozen=True, eq=False)
class _Window:
    """Frames that are segmented together, and the flow between them."""

    views: list[_View]
    forward: list[Array]
    backward: list[Array]

    def tail(self, count: int) -> "_Window":
        """Return the last frames."""
        return _Window(self.views[-count:], self.forward[1 - count :], self.backward[1 - count :])


class SegmentationVideo(SummaryRepr):
    """An iterable of the `SegmentationFrame` of every frame; it can be iterated as often as the source can be read.

    Attributes:
        clip: The selected frames.
        video: The open video, or None if the source is frames in memory.
    """

    def __init__(self, predictor: SegmentationPredictor, clip: ClipFrames, method: str, half: bool) -> None:
        self.clip = clip
        self.video = clip.video
        self._predictor, self._estimate, self._half = predictor, METHODS[method], half

    def _repr_parts(self) -> tuple[str, ...]:
        return (self.clip.name, "computed when it is iterated or saved")

    def __iter__(self) -> Iterator[SegmentationFrame]:
        frames = iter(self.clip)
        first = next(frames, None)
        if first is None:
            raise InputError(f"{self.clip.name} has no frame in this span; choose another.")
        frames = itertools.chain([first], frames)
        working = working_size(first.size)
        plan = FlowPlan(working, working, tile=None, batch_size=2, low_memory=False)
        engine = FlowEngine(self._predictor.network, self._predictor.device, plan, NUM_UPDATES, self._half)
        length = max(MIN_WINDOW, min(MAX_WINDOW, WINDOW_BYTES // first.image.nbytes))
        tracker, window, done = InstanceTracker(), _Window([], [], []), 0
        while True:
            count = len(window.views)
            for frame in itertools.islice(frames, length - count):
                _append(window, frame, engine)
            following = next(frames, None)
            last = following is None
            if last and len(window.views) < 2:
                raise InputError(
                    f"{self.clip.name} has one frame in this span; segmentation needs two, so choose another."
                )
            stop = len(window.views) if last else len(window.views) - OVERLAP // 2
            yield from self._segment(window, done, stop, tracker)
            if last:
                return
            assert following is not None
            frames = itertools.chain([following], frames)
            window, done = window.tail(OVERLAP), OVERLAP // 2

    def _segment(self, window: _Window, start: int, stop: int, tracker: InstanceTracker) -> Iterator[SegmentationFrame]:
        """Segment a window and yield the results of the frames `start` .. `stop` - 1."""
        features = [view.encoded.features[0].float().cpu().numpy() for view in window.views]
        motion_window = MotionWindow([view.small for view in window.views], features, window.forward, window.backward)
        log_odds, motion = self._estimate(motion_window)
        labels = tracker.label([each > 0 for each in log_odds], motion_window, start, stop)
        for index, numbers in zip(range(start, stop), labels, strict=True):
            frame = window.views[index].frame
            scale = np.array(frame.size[::-1]) / np.array(numbers.shape[::-1])
            objects = np.where(numbers > 0, (numbers - 1) % MAX_OBJECTS + 1, 0).astype(np.uint8)
            motions = {
                number: motion.residuals[index][:, objects == number].mean(axis=1) * scale
                for number in np.unique(objects).tolist()
                if number
            }
            yield make_frame(
                refine_labels(to_uint8_array(frame.image), log_odds[index], objects),
                motions,
                number=frame.number,
                time=frame.time,
                trained=self._predictor.trained,
                frame=frame.image,
            )

    def save(self, path: PathLike, progress: ProgressCallback | None = None) -> None:
        """Segment the video and write it.

        Args:
            path: A video of the overlay such as "overlay.mp4", a .json file with COCO run-length encodings, or a folder
                for one indexed png per frame.
            progress: Called with the number of frames done and the estimated total.
        """
        target, suffix = Path(path), Path(path).suffix.lower()
        report = None if progress is None else (lambda done: progress(done, max(done, self.clip.num_frames)))
        if suffix == ".json":
            file = MaskFile(target, self.clip.name)
            run_pipeline(self, outputs=[file], on_result=lambda result, _: file.add(result), progress=report)
        elif suffix:
            save_results(target, self.clip, self, SegmentationFrame.draw, progress=progress)
        else:
            if self.video is not None:
                check_folder_not_input(target, self.video)
            folder = ResultFolder(target, ".png")
            run_pipeline(self, outputs=[folder], on_result=lambda result, _: folder.save(result), progress=report)


def _append(window: _Window, frame: VideoFrame, engine: FlowEngine) -> None:
    """Add a frame and the flow between it and the one before."""
    height, width = (side // MAP_STRIDE for side in engine.plan.working)
    small = shrink(to_float(frame.pixels)[None], engine.plan.working)[0]
    (encoded,) = engine.encode([small])
    image = (255 * small.permute(1, 2, 0)).round().byte().numpy()
    view = _View(frame, cast(Image, cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)), encoded)
    if window.views:
        before = window.views[-1].encoded
        flows = [each.numpy() for each in engine.flows([(before, encoded), (encoded, before)])]
        for flow, maps in zip(flows, (window.forward, window.backward), strict=True):
            scaled = cv2.resize(flow.transpose(1, 2, 0), (width, height), interpolation=cv2.INTER_AREA)
            scaled = scaled * np.array((1 / MAP_STRIDE, 1 / MAP_STRIDE, 1), np.float32)
            maps.append(np.ascontiguousarray(scaled.transpose(2, 0, 1)))
    window.views.append(view)


def refine_labels(image: ImageArray, log_odds: Array, labels: Labels) -> Labels:
    """Upsample labels, h x w, to an image, H x W x 3, along its edges: H x W."""
    height, width = image.shape[:2]
    # Removed pieces are background for certain, so that the filter does not bring them back.
    probability = np.where((labels > 0) | (log_odds <= 0), 1 / (1 + np.exp(-log_odds)), 0.0).astype(np.float32)
    enlarged = cast(Array, cv2.resize(probability, (width, height), interpolation=cv2.INTER_LINEAR))
    radius = max(1, round(REFINE_RADIUS * max(height, width)))
    foreground = guided_filter(image, enlarged, radius, REFINE_REGULARIZATION) > 0.5
    numbers = cv2.resize(nearest_label(labels), (width, height), interpolation=cv2.INTER_NEAREST)
    return np.where(foreground, numbers, 0).astype(np.uint8)
