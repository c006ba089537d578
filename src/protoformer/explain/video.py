"""The prototypes of a clip: frames are read, encoded and forgotten one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.explain.groups import FAMILIES, Identities, at_pixels, group_cells
from protoformer.explain.result import layer_place
from protoformer.geometry.resizing import limited_size, shrink
from protoformer.io.image_input import to_float
from protoformer.models.config import ModelConfig
from protoformer.models.encoder import STRIDES
from protoformer.models.heads.flow import FlowNetwork, flow_padding, normalize_images
from protoformer.models.prototyping import Prototypes
from protoformer.video.clip import ClipFrames, Source, Span
from protoformer.video.types import ImageArray, VideoFrame
from protoformer.viz.text import SummaryRepr, format_count, format_size, format_time

MOST_PIXELS = 480 * 640
"""Of a frame as the network sees it; larger ones are shrunk. The map is coarser than that in any case."""


@dataclass(frozen=True, eq=False, repr=False)
class PrototypeFrame(SummaryRepr):
    """The prototypes of one frame of a clip.

    number: of the frame, from 0 in the whole clip. time: seconds, exact.
    frame: the frame, H x W x 3, uint8, or float in [0, 1].
    identities: H x W, int64, who each pixel's prototype is: the same number from frame to frame while it is followed.
    families: H x W, int64, likewise the family of similar prototypes that it belongs to, or it alone if none were asked
    for. kept: the share of pixels whose prototype the frame before had; 1 in the first.
    """

    number: int
    time: Fraction
    frame: ImageArray
    identities: Tensor
    families: Tensor
    kept: float

    def _facts(self) -> tuple[str, ...]:
        return (
            format_time(self.number, self.time),
            format_size(*self.identities.shape),
            format_count(len(self.identities.unique()), "prototype"),
            f"{self.kept:.1%} of the pixels kept theirs",
        )


class TrackingRate:
    """Counts what was followed through a clip: hand it every step in turn; memory does not grow with the clip.

    frames: so far. prototypes: how many different ones had pixels in them.
    """

    def __init__(self) -> None:
        self.frames, self.prototypes = 0, 0
        self._kept = 0.0
        self._latest = torch.empty(0, dtype=torch.int64)

    def add(self, step: PrototypeFrame) -> None:
        """Count a step."""
        shown = step.identities.unique()
        # Who is not in a frame is never seen again, so the frame before is enough to know a new one by.
        self.prototypes += int((~torch.isin(shown, self._latest)).sum())
        self._kept += step.kept if self.frames else 0.0
        self.frames, self._latest = self.frames + 1, shown

    @property
    def kept(self) -> float | None:
        """The share of a frame's pixels whose prototype the frame before had, on average; None before two frames."""
        return self._kept / (self.frames - 1) if self.frames > 1 else None


class PrototypeVideo:
    """Iterate over it for the `PrototypeStep` of every frame, as often as the source can be read.

    clip: its frames. layer: its stage and block, from 1. families: how many there are of similar prototypes, as the
    first frame has them; one that appears later joins the family of the most similar there is. None: each is its own.
    """

    def __init__(
        self,
        network: FlowNetwork,
        device: torch.device,
        source: Source,
        span: Span,
        layer: str | None = None,
        families: int | None = FAMILIES,
        updates: int | None = None,
    ) -> None:
        if families is not None and families < 1:
            raise InputError(f"prototypes cannot be sorted into {families} families; give 1 or more.")
        self.clip = ClipFrames(source, span)
        self.layer = check_layer(network.config, layer)
        self._network, self._device, self._updates = network, device, updates
        self._families = families

    def __iter__(self) -> Iterator[PrototypeFrame]:
        followed, before, known = Identities(self._families), None, torch.empty(0, dtype=torch.int64)
        for frame in self.clip:
            image = self._seen(frame)
            encoded, found = self._encoded(image)
            flow = None if before is None else self._flow(*before, encoded)
            seen, stride = (image.shape[2], image.shape[3]), STRIDES[self.layer[0] - 1]
            labels = group_cells(found, seen, stride)
            identities = followed.follow(found.centers[0].float().cpu(), labels, flow)
            shown = identities[labels]
            kept = 1.0 if before is None else float(torch.isin(shown, known).float().mean())
            known = shown.unique()
            of_all, of_families = (
                at_pixels(each, frame.size, seen, stride) for each in (shown, followed.families[labels])
            )
            yield PrototypeFrame(frame.number, frame.time, frame.image, of_all, of_families, kept)
            before = (image, encoded)
        if before is None:
            raise InputError(f"{self.clip.name} has no frame in this span; choose another.")

    def _seen(self, frame: VideoFrame) -> Tensor:
        """As the network takes it: 1 x 3 x h x w in [-1, 1]."""
        pixels = to_float(frame.pixels.to(self._device))[None]
        return normalize_images(shrink(pixels, limited_size(frame.size, MOST_PIXELS)))

    @torch.no_grad()
    def _encoded(self, image: Tensor) -> tuple[Tensor, Prototypes]:
        found = self._network.features(flow_padding(image).pad(image), True)
        return found.features[-1], found.prototypes[self.layer[0] - 1][self.layer[1] - 1]

    @torch.no_grad()
    def _flow(self, first: Tensor, ours: Tensor, theirs: Tensor) -> Tensor:
        """From one frame to the next, in cells of the layer's map: 2 x h x w."""
        flow = self._network.decode(first, ours, theirs, self._updates).flows[-1]
        stride = STRIDES[self.layer[0] - 1]
        return (F.avg_pool2d(flow.float(), stride, ceil_mode=True)[0] / stride).cpu()


def check_layer(config: ModelConfig, name: str | None) -> tuple[int, int]:
    """The stage and block of a layer's name, such as "2.1"; None: the last."""
    known = [(stage, block) for stage, depth in enumerate(config.depths, 1) for block in range(1, depth + 1)]
    return known[layer_place(name, [f"{stage}.{block}" for stage, block in known])]


def describe_tracking_rate(tally: TrackingRate) -> str:
    """What to add to a sentence about a clip; nothing where there is one frame."""
    if tally.kept is None:
        return ""
    return f"; {tally.kept:.0%} of a frame's pixels belong to one that the frame before had"
