"""Stabilization of live sources: each frame is read once, and corrected when a few later ones have been read."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from torch import Tensor

from protoformer.errors import InputError
from protoformer.io.files import PathLike
from protoformer.models.runtime import ProgressCallback
from protoformer.stabilization.analysis import FrameView, MotionAnalyzer, iter_views
from protoformer.stabilization.camera_motion import Motion
from protoformer.stabilization.planner import Frame, OnlinePlanner
from protoformer.stabilization.rendering import View, render_stabilized
from protoformer.stabilization.result import StabilizedFrame, draw_stabilized
from protoformer.video.clip import ClipFrames
from protoformer.video.pipeline import PipelineOutcome, save_results
from protoformer.video.types import VideoFrame, to_uint8_array

STILL = Motion(1 + 0j, 0j, 0.0)
"""Motion that is assumed for blank and blurred frames, since frames after them are not known yet."""


@dataclass(frozen=True)
class OnlineOptions:
    """How frames are corrected.

    Attributes:
        strength: Strength in [0, 1].
        crop: Fraction of the sides within which corrections are planned.
        border: Whether the crop is not enlarged, so that pixels outside the input are black.
        delay: Number of later frames that are read before a frame is corrected.
    """

    strength: float
    crop: float
    border: bool
    delay: int


class _OnlineShot:
    """Corrects the frames of one shot as they are read, in constant memory."""

    def __init__(self, analyzer: MotionAnalyzer, options: OnlineOptions) -> None:
        self._analyzer, self._options = analyzer, options
        self._frame = Frame.of(analyzer.size, 1 - options.strength * (1 - options.crop))
        self._planner = OnlinePlanner(self._frame, options.delay)
        self._pending: deque[tuple[VideoFrame, Tensor]] = deque()
        self._flows: dict[int, Tensor] = {}
        """Flows that a window needs, by the index of their first frame in the shot."""
        self._num_added = self._num_done = 0

    def add(
        self, frame: VideoFrame, features: Tensor, motion: Motion, flows: Tensor | None
    ) -> Iterator[StabilizedFrame]:
        """Add a frame, its features and the motion to it (ignored for the first); yield the frame corrected now."""
        self._pending.append((frame, features))
        self._num_added += 1
        if self._num_added == 1:
            return
        if flows is not None and self._analyzer.warps:
            self._flows[self._num_added - 2] = flows
        decided = self._planner.add(motion)
        if decided is not None:
            yield self._render(*decided)

    def finish(self) -> Iterator[StabilizedFrame]:
        """Yield the remaining frames at the end of the shot."""
        for turn, shift in self._planner.rest():
            yield self._render(turn, shift)

    def _render(self, turn: complex, shift: complex) -> StabilizedFrame:
        frame, features = self._pending.popleft()
        options, local = self._options, None
        if not options.strength:
            turn, shift = 1 + 0j, 0j
        elif self._analyzer.warps:
            (field,) = self._analyzer.local_warps([features], self._flows, [self._num_done])
            local = (options.strength * field).astype(np.float32)
        self._flows.pop(self._num_done - self._analyzer.window[0], None)  # no later window needs it
        self._num_done += 1
        image = to_uint8_array(frame.image)
        view = View(turn, shift, 1.0 if options.border else self._frame.crop, local)
        return StabilizedFrame(frame.time, image, render_stabilized(image, view, options.border))


def stabilize_online(
    make_analyzer: Callable[[tuple[int, int]], MotionAnalyzer], frames: Iterable[VideoFrame], options: OnlineOptions
) -> Iterator[StabilizedFrame]:
    """Stabilize frames as they come; the corrections are those of a clip that is planned with the same delay.

    Args:
        make_analyzer: Makes the analyzer for frames of a (height, width), with the delay of the options.
        frames: Frames in order, all of one size.
        options: How they are corrected.

    Yields:
        Every frame, `delay` frames after it was read, or at a cut or the end of the clip.
    """
    source = iter(frames)
    first = next(source, None)
    if first is None:
        return
    analyzer, read = make_analyzer(first.size), deque[VideoFrame]()
    latest: FrameView | None = None
    shot = _OnlineShot(analyzer, options)

    def remember(frame: VideoFrame) -> VideoFrame:
        read.append(frame)
        return frame

    for features, view in iter_views(analyzer, map(remember, chain([first], source))):
        frame, pair = read.popleft(), None
        if view is not None and latest is not None:
            pair = analyzer.match_frames(latest, view)
            if pair is None:
                yield from shot.finish()
                shot = _OnlineShot(analyzer, options)
        motion, flows = (STILL, None) if pair is None else (pair.motion, pair.flows)
        yield from shot.add(frame, features, motion, flows)
        latest = view or latest
    yield from shot.finish()


class StabilizedVideo:
    """An iterable of the `StabilizedFrame` of every frame of a clip that is read once.

    Attributes:
        clip: The selected frames.
        options: How they are corrected.
    """

    def __init__(
        self, clip: ClipFrames, options: OnlineOptions, make_analyzer: Callable[[tuple[int, int]], MotionAnalyzer]
    ) -> None:
        self.clip, self.options = clip, options
        self._make_analyzer = make_analyzer

    def __iter__(self) -> Iterator[StabilizedFrame]:
        has_frames = False
        for frame in stabilize_online(self._make_analyzer, self.clip, self.options):
            has_frames = True
            yield frame
        if not has_frames:
            raise InputError(f"{self.clip.name} has no frame in this span; choose another.")

    def save(
        self,
        path: PathLike,
        *,
        side_by_side: bool = False,
        format: str | None = None,
        progress: ProgressCallback | None = None,
    ) -> PipelineOutcome:
        """Write the stabilized frames as a video, or as a folder of png files.

        Args:
            path: A video, such as stable.mp4, with the times and the audio of the source; or a folder, a name without a
                suffix.
            side_by_side: Draw the input frame to the left of the stabilized one.
            format: Format of the files in a folder; "png" is the only one.
            progress: Called with the number of frames so far and the estimated total.

        Returns:
            The number of frames and the run time.
        """
        return save_results(path, self.clip, self, draw_stabilized(side_by_side), format, progress=progress)
