"""Targets followed through frames as people have them."""

import os
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.files.movie import USUAL_RATE
from protoformer.geometry.crops import Crops
from protoformer.inference.clip_frames import ClipFrames, Source, Span
from protoformer.inference.flow_windows import Precision, takes_half
from protoformer.inference.graphs import Graphed
from protoformer.inference.images import ImageLike, as_image
from protoformer.inference.track_boxes import Box, Boxes, checked_boxes
from protoformer.inference.track_results import TrackedBox, TrackResult
from protoformer.inference.track_target import SMALLEST, Target, Window, on_frame
from protoformer.inference.weights import save_weights
from protoformer.model.flow import normalised
from protoformer.model.flow_decoder import Progress
from protoformer.model.track_decoder import Template
from protoformer.model.tracking import TrackNetwork

THINNED = 8
"""Of the rows and columns of a frame, one in so many tells its mean colour."""


class TrackModel:
    """A tracking network on a device. Targets are given by their boxes in a first frame, and found in the next ones.

    network: the network; trained: whether its weights are, which every result repeats.
    """

    def __init__(self, network: TrackNetwork, trained: bool, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = network.eval().to(self.device)
        self.trained = trained

    def tracker(self, first: ImageLike, boxes: Boxes, *, precision: Precision = "auto") -> "Tracker":
        """Follow targets from a first frame on, one frame at a time.

        boxes: one (x, y, w, h) or several, in pixels, top-left, the first pixel being (0, 0). precision: "full" is
        float32, "half" computes products in bfloat16, "auto" does so where the device is made for it.
        """
        return Tracker(self.network, self.device, first, boxes, takes_half(self.device, precision))

    def track(
        self,
        source: Source,
        boxes: Boxes,
        *,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        every: int = 1,
        rate: float | Fraction = USUAL_RATE,
        progress: Progress | None = None,
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
        tracker: Tracker | None = None
        found: list[tuple[TrackedBox, ...]] = []
        moments: list[tuple[Fraction, int]] = []
        for frame in clip:
            if tracker is None:
                tracker = self.tracker(frame.pixels, boxes, precision=precision)
                found.append(tracker.targets)
            else:
                found.append(tracker.update(frame.pixels))
            moments.append((frame.time, frame.number))
            if progress:
                progress(len(found), max(about // every, len(found)))
        if len(found) < 2:
            many = "one frame" if found else "no frame"
            raise InputError(f"{clip.name} has {many} in this span; tracking needs two, so choose another.")
        return tuple(self._result(target, moments) for target in zip(*found, strict=True))

    def save(self, path: str | os.PathLike[str], half: bool = False) -> None:
        """Write the weights to a .safetensors file that `load` reads, whole or not at all; half: in float16."""
        save_weights(self.network, path, trained=self.trained, task="track", half=half)

    def _result(self, target: tuple[TrackedBox, ...], moments: list[tuple[Fraction, int]]) -> TrackResult:
        return TrackResult(
            boxes=torch.tensor([each.box for each in target]),
            scores=torch.tensor([each.score for each in target]),
            lost=torch.tensor([each.lost for each in target]),
            times=tuple(time for time, _ in moments),
            numbers=tuple(number for _, number in moments),
            trained=self.trained,
        )


class Tracker:
    """Follows targets: `update` takes the next frame. All targets are looked for at once.

    targets: where they are in the latest frame.
    """

    def __init__(
        self, network: TrackNetwork, device: torch.device, first: ImageLike, boxes: Boxes, half: bool = False
    ) -> None:
        self._network, self._device, self._half = network, device, half
        self._locate: Callable[..., tuple[Tensor, ...]] = self._located
        if device.type == "cuda":
            self._locate = Graphed(self._located)
        self.reset(first, boxes)

    @torch.no_grad()
    def reset(self, frame: ImageLike, boxes: Boxes) -> None:
        """Forget the targets, and follow those that these boxes show in this frame."""
        pixels, config = _pixels(frame), self._network.config
        self._size = (pixels.shape[1], pixels.shape[2])
        chosen = checked_boxes(boxes, self._size)
        self._targets = [Target(_shown(box, self._size)) for box in chosen]
        self.targets = tuple(TrackedBox(box, 1.0, False) for box in chosen)
        given = torch.tensor([target.box for target in self._targets])
        factor = config.surroundings * config.reference_side / config.search_side
        crops = Crops.around(given, factor, config.reference_side)
        with self._precision():
            images = self._cut(pixels, crops)
            template = self._network.embed(images, crops.boxes_in(given).to(self._device))
        self._template = (template.tokens, template.parts, template.summary)

    @torch.no_grad()
    def update(self, frame: ImageLike) -> tuple[TrackedBox, ...]:
        """Where the targets are in the next frame: one for each box, in their order."""
        pixels, side = _pixels(frame), self._network.config.search_side
        size = (pixels.shape[1], pixels.shape[2])
        if size != self._size:
            raise InputError(
                f"this frame is {size[1]}x{size[0]} where the first one is {self._size[1]}x{self._size[0]}; give "
                "frames of one size, or reset the tracker."
            )
        windows = [target.window(self._network.config.surroundings, size) for target in self._targets]
        crops = _crops(windows, side)
        expected = crops.boxes_in(torch.tensor([target.box for target in self._targets]))
        firmness = torch.tensor([target.firmness for target in self._targets])
        boxes, scores = self._locate(
            self._cut(pixels, crops), expected.to(self._device), firmness.to(self._device), *self._template
        )
        found, sure = crops.boxes_out(boxes.cpu()).tolist(), scores.tolist()
        self._targets = [
            target.after(tuple(box), score, window.afar, size)
            for target, box, score, window in zip(self._targets, found, sure, windows, strict=True)
        ]
        self.targets = tuple(
            TrackedBox(target.box, score, target.lost) for target, score in zip(self._targets, sure, strict=True)
        )
        return self.targets

    def _cut(self, pixels: Tensor, crops: Crops) -> Tensor:
        """Crops of one frame as the network takes them, on the device."""
        span = 255.0 if pixels.dtype == torch.uint8 else 1.0
        fill = pixels[:, ::THINNED, ::THINNED].float().mean(dim=(1, 2), keepdim=False)[None]
        with torch.autocast(self._device.type, enabled=False):
            pieces = [
                _piece(pixels, Crops(corner[None], side[None], crops.size), fill, self._device)
                for corner, side in zip(crops.corners, crops.sides, strict=True)
            ]
            images = normalised(torch.cat(pieces) / span)
        # A CPU is faster with channels last.
        return images.contiguous(memory_format=torch.channels_last) if self._device.type == "cpu" else images

    @torch.no_grad()
    def _located(
        self, search: Tensor, expected: Tensor, firmness: Tensor, tokens: Tensor, parts: Tensor, summary: Tensor
    ) -> tuple[Tensor, ...]:
        """Boxes, search pixels, N x 4, and scores, N."""
        with self._precision():
            found = self._network.locate(Template(tokens, parts, summary), search, expected, firmness)
        return found.boxes[-1].float(), found.score_logits.float().sigmoid()

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._half)


def _pixels(frame: ImageLike) -> Tensor:
    """A frame, 3 x H x W: bytes as they are, which saves time where only a part is looked at, else in [0, 1]."""
    if isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3:
        frame = torch.from_numpy(frame).permute(2, 0, 1)
    if isinstance(frame, Tensor) and frame.dtype == torch.uint8 and frame.dim() == 3 and len(frame) == 3:
        if not frame.numel():
            raise InputError("the frame has no pixels; give an image with at least one.")
        return frame
    return as_image(frame, "the frame")[0]


def _shown(box: Box, size: tuple[int, int]) -> Box:
    """What of a box a frame of (height, width) pixels shows."""
    shown = on_frame(box, size)
    if shown is None:
        text = ",".join(f"{value:g}" for value in box)
        raise InputError(
            f"the frame of {size[1]}x{size[0]} pixels shows less than {SMALLEST:g} pixels of a side of the box {text}; "
            "give a larger one."
        )
    return shown


def _crops(windows: list[Window], size: int) -> Crops:
    sides = torch.tensor([window.side for window in windows])
    centres = torch.tensor([(window.x, window.y) for window in windows])
    return Crops(centres - sides[:, None] / 2, sides, size)


def _piece(pixels: Tensor, crop: Crops, fill: Tensor, device: torch.device) -> Tensor:
    """One crop, 1 x 3 x S x S, of which only the part of the frame is read that it shows."""
    (x, y), side = crop.corners[0].tolist(), float(crop.sides)
    left, top = max(0, int(x) - 2), max(0, int(y) - 2)
    right, bottom = max(left + 1, int(x + side) + 3), max(top + 1, int(y + side) + 3)
    part = pixels[:, top:bottom, left:right][None].to(device).float()
    moved = Crops((crop.corners - torch.tensor([left, top])).to(device), crop.sides.to(device), crop.size)
    return moved.cut(part, fill.to(device))
