"""Object tracking in images, videos and streams with a tracking network."""

import os
from fractions import Fraction
from functools import partial
from threading import Lock
from typing import Any

import torch

from protoformer.io.image_input import ImageLike
from protoformer.models.pretrained import save_weights
from protoformer.models.protoformer import ProtoFormer
from protoformer.models.runtime import Precision, ProgressCallback, use_half_precision
from protoformer.tracking.engine import TrackingEngine
from protoformer.tracking.result import Boxes, TrackedBox, TrackResult
from protoformer.tracking.tracker import Tracker
from protoformer.tracking.video import track_targets
from protoformer.video.clip import ClipFrames, Source, Span
from protoformer.video.types import DEFAULT_FPS
from protoformer.viz.report import SummaryRepr, predictor_summary


class TrackingPredictor(SummaryRepr):
    """Tracks targets, given by their boxes in a first frame, through the frames that follow.

    Attributes:
        network: The tracking network, in eval mode.
        trained: Whether the network has trained weights; every result repeats it.
        device: Device the network runs on.
    """

    def __init__(self, network: ProtoFormer, trained: bool, device: torch.device | None = None) -> None:
        """Move a network to a device; by default a GPU if there is one."""
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = network.eval().to(self.device)
        self.trained = trained
        self._engines: dict[bool, TrackingEngine] = {}  # by half precision or not
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return the constructor arguments; engines and the lock are rebuilt in a copy."""
        return {"network": self.network, "trained": self.trained, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        TrackingPredictor.__init__(self, **state)

    def tracker(self, first: ImageLike, boxes: Boxes, *, precision: Precision = "auto") -> Tracker:
        """Start an online tracker, which takes one frame at a time.

        Args:
            first: First frame.
            boxes: One box (x, y, w, h) or several, in pixels, top-left corner; pixel i covers i to i + 1.
            precision: "full" computes in float32, "half" computes products in bfloat16, "auto" uses bfloat16 on devices
                with hardware support.

        Returns:
            A tracker initialized at the first frame.

        Raises:
            InputError: If a box is malformed or the frame does not contain it.
        """
        half = use_half_precision(self.device, precision)
        with self._lock:
            if half not in self._engines:
                self._engines[half] = TrackingEngine(self.network, self.device, half)
        return Tracker(self._engines[half], first, boxes)

    def track(
        self,
        source: Source,
        boxes: Boxes,
        *,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        frame_step: int = 1,
        fps: float | Fraction = DEFAULT_FPS,
        progress: ProgressCallback | None = None,
        precision: Precision = "auto",
    ) -> tuple[TrackResult, ...]:
        """Track targets through a clip, from their boxes in the first selected frame on.

        The results equal those of `tracker` frame by frame. At most one frame is in memory.

        Args:
            source: A video file, a folder of images, a file name pattern, or frames as `tracker` takes them.
            boxes: One box (x, y, w, h) or several, in pixels, as for `tracker`.
            start: Start of the span, seconds.
            end: End of the span, seconds.
            frame_step: Frame step; the first frame of the span is always selected.
            fps: Frame rate of images, which have no timestamps, in frames per second.
            progress: Callback that receives the number of frames done and the estimated total.
            precision: As for `tracker`.

        Returns:
            One result per box.

        Raises:
            InputError: If the source cannot be read, has fewer than two frames in the span, or a box is not valid.
        """
        clip = ClipFrames(source, Span(start, end, frame_step, fps))
        num_frames = (clip.video and clip.video.info.num_frames) or 0
        outputs: list[tuple[TrackedBox, ...]] = []
        timestamps: list[tuple[Fraction, int]] = []
        method = partial(self.tracker, precision=precision)
        for frame, targets, _ in track_targets(clip, boxes, method, clip.name):
            outputs.append(targets)
            timestamps.append((frame.time, frame.number))
            if progress:
                progress(len(outputs), max(num_frames // frame_step, len(outputs)))
        return tuple(self._result(target, timestamps) for target in zip(*outputs, strict=True))

    __call__ = track

    def save(self, path: str | os.PathLike[str], half: bool = False) -> None:
        """Write the weights to a .safetensors file for `load`, atomically; `half` stores float16."""
        save_weights(self.network, path, trained=self.trained, half=half)

    def _facts(self) -> tuple[str, ...]:
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
