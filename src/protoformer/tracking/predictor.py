"""Targets followed through frames as people have them."""

import os
from fractions import Fraction
from functools import partial
from threading import Lock
from typing import Any

import torch

from protoformer.errors import InputError
from protoformer.geometry.boxes import Crops
from protoformer.io.image_input import ImageLike, as_frame
from protoformer.models.heads.tracking import TrackNetwork
from protoformer.models.pretrained import save_weights
from protoformer.models.runtime import Precision, ProgressCallback, use_half_precision
from protoformer.tracking.engine import TrackingEngine
from protoformer.tracking.result import Box, Boxes, TrackedBox, TrackResult, check_boxes, check_size
from protoformer.tracking.target import SMALLEST, Target, TemplateMemory, Window, clip_to_frame
from protoformer.tracking.video import track_targets
from protoformer.video.clip import ClipFrames, Source, Span
from protoformer.video.types import DEFAULT_RATE
from protoformer.viz.text import SummaryRepr, predictor_summary


class TrackingPredictor(SummaryRepr):
    """A tracking network on a device. Targets are given by their boxes in a first frame, and found in the next ones.

    network: the network; trained: whether its weights are, which every result repeats.
    """

    def __init__(self, network: TrackNetwork, trained: bool, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = network.eval().to(self.device)
        self.trained = trained
        self._engines: dict[bool, TrackingEngine] = {}  # by whether they compute in half precision
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """The network, its device and whether it is trained; engines and the lock are made anew in a copy."""
        return {"network": self.network, "trained": self.trained, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        TrackingPredictor.__init__(self, **state)

    def tracker(self, first: ImageLike, boxes: Boxes, *, precision: Precision = "auto") -> "Tracker":
        """Follow targets from a first frame on, one frame at a time.

        boxes: one (x, y, w, h) or several, in pixels, top-left; a pixel i reaches from i to i + 1. precision: "full" is
        float32, "half" computes products in bfloat16, "auto" does so where the device is made for it.
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
        every: int = 1,
        rate: float | Fraction = DEFAULT_RATE,
        progress: ProgressCallback | None = None,
        precision: Precision = "auto",
    ) -> tuple[TrackResult, ...]:
        """Follow targets through a clip, from their boxes in its first frame that is taken: a result for each box.

        source: a video file, a folder of images, a pattern of their names, or frames as `tracker` takes them. start,
        end: seconds; of the frames between them the first is taken, and then one in `every`. rate: frames a second of
        images, which have no times. progress: told of frames, and of about how many. It is what `tracker` would find
        frame by frame, and no more than one frame is in memory.
        """
        clip = ClipFrames(source, Span(start, end, every, rate))
        about = (clip.movie and clip.movie.info.frames) or 0
        found: list[tuple[TrackedBox, ...]] = []
        moments: list[tuple[Fraction, int]] = []
        method = partial(self.tracker, precision=precision)
        for frame, targets, _ in track_targets(clip, lambda frame: frame.pixels, boxes, method, clip.name):
            found.append(targets)
            moments.append((frame.time, frame.number))
            if progress:
                progress(len(found), max(about // every, len(found)))
        return tuple(self._result(target, moments) for target in zip(*found, strict=True))

    __call__ = track

    def save(self, path: str | os.PathLike[str], half: bool = False) -> None:
        """Write the weights to a .safetensors file that `load` reads, whole or not at all; half: in float16."""
        save_weights(self.network, path, trained=self.trained, task="track", half=half)

    def _facts(self) -> tuple[str, ...]:
        return predictor_summary("track", self.network, self.trained, self.device)

    def _result(self, target: tuple[TrackedBox, ...], moments: list[tuple[Fraction, int]]) -> TrackResult:
        return TrackResult(
            boxes=torch.tensor([each.box for each in target], dtype=torch.float32),
            scores=torch.tensor([each.score for each in target], dtype=torch.float32),
            lost=torch.tensor([each.lost for each in target]),
            times=tuple(time for time, _ in moments),
            numbers=tuple(number for _, number in moments),
            trained=self.trained,
        )


class Tracker:
    """Follows targets: `update` takes the next frame. All targets are looked for at once.

    targets: where they are in the latest frame.
    """

    def __init__(self, engine: TrackingEngine, first: ImageLike, boxes: Boxes) -> None:
        self._engine = engine
        self.reset(first, boxes)

    def reset(self, frame: ImageLike, boxes: Boxes) -> None:
        """Forget the targets, and follow those that these boxes show in this frame."""
        pixels = as_frame(frame, "the frame")
        self._size = (pixels.shape[1], pixels.shape[2])
        chosen = check_boxes(boxes, self._size)
        self._targets = [Target(_shown(box, self._size)) for box in chosen]
        self.targets = tuple(TrackedBox(box, 1.0, False) for box in chosen)
        self._memory = TemplateMemory(self._engine, pixels, self._targets)

    def update(self, frame: ImageLike) -> tuple[TrackedBox, ...]:
        """Where the targets are in the next frame: one for each box, in their order."""
        pixels, config = as_frame(frame, "the frame"), self._engine.config
        size = (pixels.shape[1], pixels.shape[2])
        check_size(size, self._size)
        windows = [target.window(config.surroundings, size) for target in self._targets]
        expected = torch.tensor([target.box for target in self._targets], dtype=torch.float32)
        firmness = torch.tensor([target.firmness for target in self._targets], dtype=torch.float32)
        crops = _crops(windows, config.search_side)
        boxes, scores = self._engine.locate(pixels, crops, expected, firmness, self._memory.template)
        found, sure = boxes.tolist(), scores.tolist()
        self._targets = [
            target.after(tuple(box), score, window.afar, size)
            for target, box, score, window in zip(self._targets, found, sure, windows, strict=True)
        ]
        self._memory.saw(pixels, self._targets, sure)
        self.targets = tuple(
            TrackedBox(target.box, score, target.lost) for target, score in zip(self._targets, sure, strict=True)
        )
        return self.targets


def _shown(box: Box, size: tuple[int, int]) -> Box:
    """What of a box a frame of (height, width) pixels shows."""
    shown = clip_to_frame(box, size)
    if shown is None:
        text = ",".join(f"{value:g}" for value in box)
        raise InputError(
            f"the frame of {size[1]}x{size[0]} pixels shows less than {SMALLEST:g} pixels of a side of the box {text}; "
            "give a larger one."
        )
    return shown


def _crops(windows: list[Window], size: int) -> Crops:
    sides = torch.tensor([window.side for window in windows], dtype=torch.float32)
    centers = torch.tensor([(window.x, window.y) for window in windows], dtype=torch.float32)
    return Crops(centers - sides[:, None] / 2, sides, size)
