"""Optical flow of images as people have them."""

import os
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.explain.groups import FAMILIES
from protoformer.explain.result import Explainer, Explanation, ImageExplanation, check_result, explain_image
from protoformer.explain.video import MOST_PIXELS, PrototypeVideo
from protoformer.flow.engine import TiledFlow, check_updates, predict_flow, propagate_flow
from protoformer.flow.result import FlowResult
from protoformer.flow.tiling import FlowPlan, TileSize, describe_working_size, plan_flow, working_size, zoom_between
from protoformer.flow.video import FlowVideo, FlowVideoOptions
from protoformer.geometry.resizing import Padding, limited_size, resize, resize_flow, shrink
from protoformer.geometry.warps import occlusion_by_consistency
from protoformer.io.image_input import ImageLike, as_image, image_pair
from protoformer.io.memory import BYTES_PER_PIXEL, describe_memory, free_bytes
from protoformer.models.heads.flow import LEAST_SIDE, FlowNetwork, flow_padding, normalize_images
from protoformer.models.heads.update import FACTOR
from protoformer.models.pretrained import save_weights
from protoformer.models.runtime import Precision, ProgressCallback
from protoformer.video.clip import Source, Span
from protoformer.video.types import DEFAULT_RATE
from protoformer.viz.text import SummaryRepr, predictor_summary


@dataclass(frozen=True, eq=False)
class _Asked:
    """What is asked of a pair; see `FlowModel.flow`."""

    updates: int | None
    occlusion: bool
    prototypes: bool
    previous: FlowResult | None
    low_memory: bool | None
    progress: ProgressCallback | None


class FlowPredictor(SummaryRepr):
    """A flow network on a device. Images go in as paths, arrays or tensors, of any size; a FlowResult comes out.

    network: the network; trained: whether its weights are, which every result repeats.
    """

    def __init__(self, network: FlowNetwork, trained: bool, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = network.eval().to(self.device)
        self.trained = trained

    @torch.no_grad()
    def flow(
        self,
        first: ImageLike,
        second: ImageLike,
        *,
        updates: int | None = None,
        occlusion: bool = False,
        prototypes: bool = False,
        previous: FlowResult | None = None,
        low_memory: bool | None = None,
        tile: TileSize = None,
        memory: int | None = None,
        zoom: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> FlowResult:
        """Motion of every pixel from the first image to the second.

        updates: refinements; more are slower and, up to a point, better. occlusion: find what the second image does not
        show, by estimating the flow back as well. prototypes: return those of the first image. previous: the result for
        the pair before, in a video; the estimate then starts from it. low_memory: do not store all pairs of costs
        (None: decide by size). tile: windows of (height, width) that are blended, or "auto": where the whole does not
        fit in `memory` bytes (None: most of what is free), windows that do. zoom: how many times as large a side is as
        the network sees it, from 0.25 to 4; windows are of that size, the result is of the images' own (None: small
        images are enlarged, to the network's `flow_pixels`, where the memory allows that as a whole). progress: told of
        every update, or window.
        """
        check_updates(updates)
        images = image_pair(first, second)
        size = (images[0].shape[2], images[0].shape[3])
        asked = _Asked(updates, occlusion, prototypes, previous, low_memory, progress)
        if tile is None and memory is None:
            seen = self._seen_size(size, zoom, pairs=2 if occlusion else 1)
        else:
            pairs = 2 if occlusion and prototypes else 1  # windows go forth, and then back
            plan = plan_flow(size, self.network.config, self.device, tile, memory, zoom=zoom, pairs=pairs)
            if plan.tile is not None and prototypes:
                raise InputError("an image in windows has no prototypes of its own; leave them or the windows out.")
            asked = replace(asked, low_memory=plan.low_memory if low_memory is None else low_memory)
            if plan.tile is not None or (occlusion and not prototypes):
                return self._in_windows(images, replace(plan, low_memory=bool(asked.low_memory)), asked)
            seen = plan.seen
        return replace(self._whole(images, seen, asked), explainer=Explainer(self, (first, second)))

    __call__ = flow

    @torch.no_grad()
    def explain(
        self,
        image: ImageLike,
        second: ImageLike | None = None,
        *,
        result: FlowResult | None = None,
        updates: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Explanation:
        """What the network groups in an image: the prototypes of every layer, their pixels, and how EM found them.

        second: another image of the same size; then the groups of the first have a motion, and those of both are
        matched. result: the flow between the two, if it is known already. updates, progress: as in `flow`.
        Images over 480x640 pixels are shrunk for the groups, as frames of a clip are, though not for the flow.
        """
        check_updates(updates)
        if second is None:
            return Explanation("flow", self._explained(as_image(image), None), trained=self.trained)
        images = image_pair(image, second)
        if result is not None:
            check_result(result.flow, images[0], "flow")
            check_result(result.confidence, images[0], "confidence")
        found = self.flow(*images, updates=updates, tile="auto", progress=progress) if result is None else result
        explained = (self._explained(images[0], found), self._explained(images[1], None))
        return Explanation("flow", *explained, trained=self.trained)

    def explain_video(
        self,
        source: Source,
        *,
        layer: str | None = None,
        families: int | None = FAMILIES,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        every: int = 1,
        rate: float | Fraction = DEFAULT_RATE,
        updates: int | None = None,
    ) -> PrototypeVideo:
        """The prototypes of each frame of a clip, followed from frame to frame; memory does not grow with the clip.

        layer: stage and block, such as "2.1"; None: the last. families: how many of similar
        prototypes there are to be; None: each is by itself. source, start, end, every, rate, updates: as in
        `flow_video`.
        """
        check_updates(updates)
        return PrototypeVideo(
            self.network, self.device, source, Span(start, end, every, rate), layer, families, updates
        )

    def flow_video(
        self,
        source: Source,
        *,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        every: int = 1,
        rate: float | Fraction = DEFAULT_RATE,
        updates: int | None = None,
        warm_start: bool = False,
        tile: TileSize = "auto",
        memory: int | None = None,
        batch: int | None = None,
        precision: Precision = "auto",
        zoom: float | None = None,
    ) -> FlowVideo:
        """Motion from each frame of a clip to the next, with their exact times; memory does not grow with the clip.

        source: a video file, a folder of images, a pattern of their names, or frames as `flow` takes images. start,
        end: seconds; of the frames between them the first is taken, and then one in `every`. rate: frames a second of
        images, which have no times. warm_start: begin each pair with the flow of the one before. tile, memory, zoom: as
        in `flow`. batch: pairs, or windows, at once (None: by memory); it changes the time taken, not the result.
        precision: "full" is float32, "half" computes products in bfloat16, "auto" does so where the device is made
        for it.
        """
        options = FlowVideoOptions(start, end, every, rate, updates, warm_start, tile, memory, batch, precision, zoom)
        return FlowVideo(self.network, self.trained, self.device, source, options)

    def save(self, path: str | os.PathLike[str], half: bool = False) -> None:
        """Write the weights to a .safetensors file that `load` reads, whole or not at all; half: in float16."""
        save_weights(self.network, path, trained=self.trained, half=half)

    def _facts(self) -> tuple[str, ...]:
        return predictor_summary("flow", self.network, self.trained, self.device)

    def _whole(self, images: tuple[Tensor, Tensor], seen: tuple[int, int], asked: _Asked) -> FlowResult:
        """As `flow`, of images that go in as a whole, at the (height, width) at which the network is to see them."""
        size = (images[0].shape[2], images[0].shape[3])
        images = (resize(images[0].to(self.device), seen), resize(images[1].to(self.device), seen))
        start = None if asked.previous is None else self._start(asked.previous, size, seen, back=asked.occlusion)
        if asked.occlusion:
            images = (torch.cat(images), torch.cat(images[::-1]))
        predicted = self.network(
            *(normalize_images(image) for image in images),
            updates=asked.updates,
            start=start,
            low_memory=asked.low_memory,
            prototypes=asked.prototypes,
            progress=asked.progress,
        )
        found = resize_flow(predict_flow(predicted, zoom_between(size, seen)), size)
        flow = found[:, :2]
        return FlowResult(
            flow=flow[0].cpu(),
            confidence=found[0, 2:].cpu(),
            occlusion=occlusion_by_consistency(flow[:1], flow[1:])[0].cpu() if asked.occlusion else None,
            prototypes=tuple(tuple(each.first(1).cpu() for each in stage) for stage in predicted.prototypes),
            trained=self.trained,
            seen=None if seen == size else seen,
        )

    def _in_windows(self, images: tuple[Tensor, Tensor], plan: FlowPlan, asked: _Asked) -> FlowResult:
        """As `flow`, by a plan."""
        windowed = TiledFlow(self.network, self.device, plan, asked.updates)
        first, second = windowed.encode([image[0] for image in images])
        starts: tuple[Tensor | None, ...] = (None, None)
        if asked.previous is not None:
            starts = self._start(asked.previous, plan.size, plan.seen, asked.occlusion).split(1)
        (found,) = windowed.flows([(first, second)], starts[0], asked.progress)
        hidden = None
        if asked.occlusion:
            (back,) = windowed.flows([(second, first)], starts[1])
            hidden = occlusion_by_consistency(found[None, :2], back[None, :2])[0]
        return FlowResult(found[:2], found[2:], occlusion=hidden, trained=self.trained, seen=plan.other_size)

    def _explained(self, image: Tensor, found: FlowResult | None) -> ImageExplanation:
        """An image, 1 x 3 x H x W in [0, 1], explained; found: its motion, if it is known."""
        seen = shrink(image.to(self.device), limited_size((image.shape[2], image.shape[3]), MOST_PIXELS))
        known = (None, None) if found is None else (found.flow, found.confidence)
        return explain_image(self.network.features, image[0], seen, flow_padding(seen), *known)

    def _seen_size(self, size: tuple[int, int], zoom: float | None, pairs: int) -> tuple[int, int]:
        """The (height, width) at which whole images are seen; they are refused if the memory cannot be enough then."""
        config = self.network.config
        seen = working_size(size, config, self.device, zoom, pairs=pairs)
        padding = Padding.to_multiple(*seen, FACTOR, LEAST_SIDE)
        pixels = (seen[0] + padding.bottom) * (seen[1] + padding.right)
        needed, free = BYTES_PER_PIXEL[config.decoder] * pixels * pairs, free_bytes(self.device)
        if free is not None and needed > free:
            smaller = "the images" if zoom is None else "the images or the zoom"
            raise InputError(
                f"flow at {describe_working_size(size, seen)} takes about {describe_memory(needed)} of memory "
                f"and {describe_memory(free)} are free; make {smaller} smaller."
            )
        return seen

    def _start(self, previous: FlowResult, size: tuple[int, int], seen: tuple[int, int], back: bool) -> Tensor:
        """The previous flow carried to a pair, as it is seen, 1 x 2 x h x w; with `back` the flow back as a second."""
        if previous.flow.shape[1:] != size:
            raise InputError(
                f"the previous flow is of {previous.flow.shape[2]}x{previous.flow.shape[1]} pixels and the images are "
                f"{size[1]}x{size[0]}; start from a flow of the same size."
            )
        return propagate_flow(previous.flow, seen, self.device, back)
