"""Prototypes of a clip: frames are encoded one after the other, and prototypes are tracked between them."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.explain.drawing import draw_prototype_frame
from protoformer.explain.groups import PrototypeTracker, assignment_map, cells_to_pixels
from protoformer.explain.result import layer_index
from protoformer.explain.tracing import NO_PROTOTYPES
from protoformer.geometry.warps import limited_size, shrink
from protoformer.io.files import PathLike
from protoformer.io.image_input import to_float
from protoformer.models.config import ModelConfig
from protoformer.models.encoder import STRIDES
from protoformer.models.heads.flow import flow_padding
from protoformer.models.protoformer import ProtoFormer
from protoformer.models.prototyping import Prototypes
from protoformer.models.runtime import ProgressCallback, normalize_images
from protoformer.video.clip import ClipFrames, Source, Span
from protoformer.video.pipeline import PipelineOutcome, save_results
from protoformer.video.types import ImageArray, VideoFrame
from protoformer.viz.report import SummaryRepr, format_count, format_size, format_time

MAX_PIXELS = 480 * 640
"""Largest network input; larger frames are shrunk, as the maps are coarser than that in any case."""


@dataclass(frozen=True, eq=False, repr=False)
class PrototypeFrame(SummaryRepr):
    """The prototypes of one frame of a clip.

    Attributes:
        number: Index of the frame in the whole clip.
        time: Seconds, exact.
        frame: H x W x 3, uint8, or float in [0, 1].
        identities: H x W, int64, identity of each pixel's prototype, constant while it is tracked.
        families: H x W, int64, family of similar prototypes of each pixel, or the identity without families.
        kept: Fraction of pixels whose prototype has pixels in the previous frame; 1 in the first.
    """

    number: int
    time: Fraction
    frame: ImageArray
    identities: Tensor
    families: Tensor
    kept: float

    def _repr_parts(self) -> tuple[str, ...]:
        return (
            format_time(self.number, self.time),
            format_size(*self.identities.shape),
            format_count(len(self.identities.unique()), "prototype"),
            f"{self.kept:.1%} of the pixels keep their prototype",
        )


class TrackingRate:
    """Statistics of the prototypes tracked through a clip, accumulated in constant memory.

    Attributes:
        num_frames: Number of frames.
        num_prototypes: Number of different prototypes with pixels.
    """

    def __init__(self) -> None:
        self.num_frames, self.num_prototypes = 0, 0
        self._kept = 0.0
        self._previous = torch.empty(0, dtype=torch.int64)

    def add(self, frame: PrototypeFrame) -> None:
        """Add the next frame."""
        present = frame.identities.unique()
        # An identity that is absent from one frame never returns, so new ones are those not in the previous frame.
        self.num_prototypes += int((~torch.isin(present, self._previous)).sum())
        self._kept += frame.kept if self.num_frames else 0.0
        self.num_frames, self._previous = self.num_frames + 1, present

    @property
    def kept(self) -> float | None:
        """Mean fraction of pixels whose prototype has pixels in the previous frame; None before the second frame."""
        return self._kept / (self.num_frames - 1) if self.num_frames > 1 else None


class PrototypeVideo:
    """Iterable over the `PrototypeFrame` of every frame, as often as the source can be read.

    Args:
        network: Flow network.
        device: Its device.
        source: The clip.
        span: Frames of it.
        layer: Stage and block, such as "2.1"; None: the last.
        families: Number of families of similar prototypes; None: every prototype is its own.
        num_updates: Number of updates of the flow; None: as configured.
    """

    def __init__(
        self,
        network: ProtoFormer,
        device: torch.device,
        source: Source,
        span: Span,
        layer: str | None = None,
        families: int | None = None,
        num_updates: int | None = None,
    ) -> None:
        if families is not None and families < 1:
            raise InputError(f"prototypes cannot be sorted into {families} families; give 1 or more.")
        self.clip = ClipFrames(source, span)
        self.layer = check_layer(network.config, layer)
        self._network, self._device, self._num_updates = network, device, num_updates
        self._families = families

    def __iter__(self) -> Iterator[PrototypeFrame]:
        tracker, previous, present = PrototypeTracker(self._families), None, torch.empty(0, dtype=torch.int64)
        for frame in self.clip:
            image = self._input(frame)
            features, prototypes = self._encode(image)
            flow = None if previous is None else self._flow(*previous, features)
            input_size, stride = (image.shape[2], image.shape[3]), STRIDES[self.layer[0] - 1]
            labels = assignment_map(prototypes, input_size, stride)
            cells = tracker.update(prototypes.centers[0].float().cpu(), labels, flow)[labels]
            kept = 1.0 if previous is None else float(torch.isin(cells, present).float().mean())
            present = cells.unique()
            identities, families = (
                cells_to_pixels(each, frame.size, input_size, stride) for each in (cells, tracker.families[labels])
            )
            yield PrototypeFrame(frame.number, frame.time, frame.image, identities, families, kept)
            previous = (image, features)
        if previous is None:
            raise InputError(f"{self.clip.name} has no frame in this span; choose another.")

    def save(
        self, path: PathLike, *, format: str | None = None, progress: ProgressCallback | None = None
    ) -> PipelineOutcome:
        """Write the frames, tinted by families of prototypes, as a video or as a folder of png files.

        Args:
            path: A video, such as explained.mp4, with the times and the audio of the source; or a folder, a name
                without a suffix.
            format: Format of the files in a folder; "png" is the only one.
            progress: Called with the number of frames so far and the estimated total.

        Returns:
            The number of frames and the run time.
        """
        return save_results(path, self.clip, self, draw_prototype_frame, format, progress=progress)

    def _input(self, frame: VideoFrame) -> Tensor:
        """Return the network's input, 1 x 3 x h x w in [-1, 1]."""
        pixels = to_float(frame.pixels.to(self._device))[None]
        return normalize_images(shrink(pixels, limited_size(frame.size, MAX_PIXELS)))

    @torch.no_grad()
    def _encode(self, image: Tensor) -> tuple[Tensor, Prototypes]:
        output = self._network.encoder_of("flow")(flow_padding(image).pad(image), True)
        return output.features[-1], output.prototypes[self.layer[0] - 1][self.layer[1] - 1]

    @torch.no_grad()
    def _flow(self, first: Tensor, fmap1: Tensor, fmap2: Tensor) -> Tensor:
        """Estimate the flow to the next frame, in cells of the layer's map: 2 x h x w."""
        flow = self._network.decode_flow(first, fmap1, fmap2, self._num_updates).flows[-1]
        stride = STRIDES[self.layer[0] - 1]
        return (F.avg_pool2d(flow.float(), stride, ceil_mode=True)[0] / stride).cpu()


def check_layer(config: ModelConfig, name: str | None) -> tuple[int, int]:
    """Return stage and block of a layer's name, such as "2.1"; None: the last.

    Raises:
        InputError: If there is no such layer, or the network has no prototypes.
    """
    if config.encoder.mixer != "prototypes":
        raise InputError(NO_PROTOTYPES)
    layers = [(stage, block) for stage, depth in enumerate(config.encoder.depths, 1) for block in range(1, depth + 1)]
    return layers[layer_index(name, [f"{stage}.{block}" for stage, block in layers])]


def describe_tracking_rate(rate: TrackingRate) -> str:
    """Return the end of a sentence about a clip; empty for a single frame."""
    return "" if rate.kept is None else f"; {rate.kept:.0%} of a frame's pixels belong to one of the previous frame"
