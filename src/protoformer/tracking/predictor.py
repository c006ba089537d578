"""Object tracking in images, videos and streams with a tracking network."""

from fractions import Fraction
from functools import partial
from threading import Lock
from typing import Any, Self

import torch

from protoformer.io.image_input import ImageLike
from protoformer.models.protoformer import ProtoFormer
from protoformer.models.runtime import NetworkPredictor, Precision, ProgressCallback, use_half_precision
from protoformer.tracking.engine import TrackingEngine
from protoformer.tracking.result import Boxes, TrackedBox, TrackResult
from protoformer.tracking.tracker import Tracker
from protoformer.tracking.video import Tracks, TrackVideo, track_targets
from protoformer.video.clip import ClipFrames, Source, Span
from protoformer.video.types import DEFAULT_FPS
from protoformer.viz.report import SummaryRepr, predictor_summary


class TrackingPredictor(NetworkPredictor, SummaryRepr):
    """Tracks targets, given by their boxes in a first frame, through the frames that follow."""

    def __init__(
        self,
        network: ProtoFormer,
        trained: bool,
        device: torch.device | None = None,
        precision: Precision | None = None,
    ) -> None:
        """Move a network to a device; see `NetworkPredictor`."""
        super().__init__(network, trained, device, precision)
        self._engines: dict[bool, TrackingEngine] = {}  # by half precision or not
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return the constructor arguments; engines and the lock are rebuilt in a copy."""
        return {name: getattr(self, name) for name in ("network", "trained", "device", "precision")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        TrackingPredictor.__init__(self, **state)

    def to(self, device: str | torch.device) -> Self:
        """Move the predictor to another device, such as "cuda", in place; returns the predictor."""
        super().to(device)
        with self._lock:
            self._engines.clear()
        return self

    def tracker(self, first: ImageLike, box: Boxes, *, precision: Precision | None = None) -> Tracker:
        """Start an online tracker, which takes one frame at a time.

        Args:
            first: First frame.
            box: One box (x, y, w, h) or several, in pixels, top-left corner; pixel i covers i to i + 1.
            precision: "full" computes in float32, "half" computes products in bfloat16, "auto" uses bfloat16 on devices
                with hardware support. None: that of the predictor, else "auto".

        Returns:
            A tracker initialized at the first frame.

        Raises:
            InputError: If a box is malformed or the frame does not contain it.
        """
        half = use_half_precision(self.device, self._choose_precision(precision))
        with self._lock:
            if half not in self._engines:
                self._engines[half] = TrackingEngine(self.network, self.device, half)
        return Tracker(self._engines[half], first, box)

    def track(
        self,
        source: Source,
        box: Boxes,
        *,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        frame_step: int = 1,
        fps: float | Fraction = DEFAULT_FPS,
        progress: ProgressCallback | None = None,
        precision: Precision | None = None,
    ) -> Tracks:
        """Track targets through a clip, from their boxes in the first selected frame on.

        The results equal those of `tracker` frame by frame. At most one frame is in memory.

        Args:
            source: A video file, a folder of images, a file name pattern, or frames as `tracker` takes them.
            box: One box (x, y, w, h) or several, in pixels, as for `tracker`.
            start: Start of the span, seconds.
            end: End of the span, seconds.
            frame_step: Frame step; the first frame of the span is always selected.
            fps: Frame rate of images, which have no timestamps, in frames per second.
            progress: Callback that receives the number of frames done and the estimated total.
            precision: As for `tracker`.

        Returns:
            One result per box. `save` of all of them writes a table, or a video with the boxes drawn.

        Raises:
            InputError: If the source cannot be read, has fewer than two frames in the span, or a box is not valid.
        """
        clip = ClipFrames(source, Span(start, end, frame_step, fps))
        outputs: list[tuple[TrackedBox, ...]] = []
        timestamps: list[tuple[Fraction, int]] = []
        method = partial(self.tracker, precision=precision)
        for frame, targets, _ in track_targets(clip, box, method, clip.name):
            outputs.append(targets)
            timestamps.append((frame.time, frame.number))
            if progress:
                progress(len(outputs), max(clip.num_frames, len(outputs)))
        tracks = Tracks(self._result(target, timestamps) for target in zip(*outputs, strict=True))
        tracks.clip = clip
        return tracks

    __call__ = track

    def track_video(
        self,
        source: Source,
        box: Boxes,
        *,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        frame_step: int = 1,
        fps: float | Fraction = DEFAULT_FPS,
        precision: Precision | None = None,
    ) -> TrackVideo:
        """Track targets frame by frame, as suits cameras and streams; arguments as for `track`.

        Args:
            source: As for `track`, or a live source; see `open_video`.
            box: As for `track`.
            start: As for `track`.
            end: As for `track`.
            frame_step: As for `track`.
            fps: As for `track`.
            precision: As for `tracker`.

        Returns:
            An iterable of `TrackFrame`; its `save` writes a video.
        """
        clip = ClipFrames(source, Span(start, end, frame_step, fps))
        return TrackVideo(clip, box, partial(self.tracker, precision=precision))

    def _repr_parts(self) -> tuple[str, ...]:
        return predictor_summary("track", self.network, self.trained, self.device)

    def _result(self, target: tuple[TrackedBox, ...], timestamps: list[tuple[Fraction, int]]) -> TrackResult:
        return TrackResult(
            boxes=torch.tensor([each.box for each in target], dtype=torch.float32),
            scores=torch.tensor([each.score for each in target], dtype=torch.float32),
            lost=torch.tensor([each.lost for each in target]),
            times=tuple(time for time, _ in timestamps),
            numbers=tuple(number for _, number in timestamps),
            trained=self.trained,
        )
