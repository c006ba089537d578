"""Optical flow prediction for image pairs and videos."""

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
class _FlowOptions:
    """Options of one prediction; see `FlowPredictor.flow`."""

    updates: int | None
    occlusion: bool
    prototypes: bool
    previous: FlowResult | None
    low_memory: bool | None
    progress: ProgressCallback | None


class FlowPredictor(SummaryRepr):
    """Predicts optical flow for images of any size, given as paths, arrays or tensors.

    Args:
        network: flow network; moved to the device and set to eval mode.
        trained: whether the network has trained weights; repeated in every result.
        device: device to run on; None: CUDA if available, else the CPU.
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
        """Predict the flow from the first image to the second.

        Args:
            first: first image.
            second: second image, of the same size.
            updates: number of refinement updates; more are slower and, up to a point, more accurate. None: the
                network's default.
            occlusion: also predict the backward flow and return pixels that are not visible in the second image.
            prototypes: return the prototypes of the first image.
            previous: result of the previous pair of a video, from which the estimate is initialized.
            low_memory: compute costs on demand instead of storing the all-pairs cost volume; None decides by size.
            tile: (height, width) of blended tiles; "auto" tiles only if the whole image does not fit into `memory`.
            memory: memory budget, bytes; None: most of the free memory.
            zoom: size at which the network runs, divided by the image size, from 0.25 to 4; tiles have that
                resolution, the result has the images' own. None: small images are enlarged to the network's
                `flow_pixels` if memory allows it for the whole image.
            progress: called after every update, or every tile.

        Returns:
            Flow, confidence, and what else was requested.

        Raises:
            InputError: if an image cannot be read, an option is invalid, or memory is not sufficient.
        """
        check_updates(updates)
        images = image_pair(first, second)
        size = (images[0].shape[2], images[0].shape[3])
        options = _FlowOptions(updates, occlusion, prototypes, previous, low_memory, progress)
        if tile is None and memory is None:
            working = self._working_size(size, zoom, pairs=2 if occlusion else 1)
        else:
            pairs = 2 if occlusion and prototypes else 1  # forward and backward flow run one after the other in tiles
            plan = plan_flow(size, self.network.config, self.device, tile, memory, zoom=zoom, pairs=pairs)
            if plan.tile is not None and prototypes:
                raise InputError("prototypes are not available for tiled images; leave out prototypes or tiles.")
            options = replace(options, low_memory=plan.low_memory if low_memory is None else low_memory)
            if plan.tile is not None or (occlusion and not prototypes):
                return self._predict_by_plan(images, replace(plan, low_memory=bool(options.low_memory)), options)
            working = plan.seen
        return replace(self._predict_whole(images, working, options), explainer=Explainer(self, (first, second)))

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
        """Explain the prototypes of an image: their pixels in every layer and the course of the EM iterations.

        Images over 480x640 pixels are downscaled for the prototypes, as video frames are, but not for the flow.

        Args:
            image: image to explain.
            second: another image of the same size, to compute the motion of the groups and to match them.
            result: flow between the two images, if it has already been computed.
            updates: as in `flow`.
            progress: as in `flow`.
        """
        check_updates(updates)
        if second is None:
            return Explanation("flow", self._explain_image(as_image(image), None), trained=self.trained)
        images = image_pair(image, second)
        if result is not None:
            check_result(result.flow, images[0], "flow")
            check_result(result.confidence, images[0], "confidence")
        else:
            result = self.flow(*images, updates=updates, tile="auto", progress=progress)
        explained = (self._explain_image(images[0], result), self._explain_image(images[1], None))
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
        """Compute the prototypes of each video frame, tracked from frame to frame, in constant memory.

        Args:
            source: as in `flow_video`.
            layer: stage and block, such as "2.1"; None: the last.
            families: number of groups of similar prototypes; None: no grouping.
            start: as in `flow_video`.
            end: as in `flow_video`.
            every: as in `flow_video`.
            rate: as in `flow_video`.
            updates: as in `flow_video`.
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
        """Predict the flow from each frame of a video to the next, with exact timestamps and in constant memory.

        Args:
            source: video file, folder of images, glob pattern, or an iterable of images.
            start: start of the span, seconds.
            end: end of the span, seconds.
            every: use every n-th frame of the span.
            rate: frame rate of image sequences, frames per second.
            updates: as in `flow`.
            warm_start: initialize each pair from the flow of the previous one.
            tile: as in `flow`.
            memory: as in `flow`.
            batch: number of pairs, or tiles, in a batch; it affects speed, not the result. None: by memory.
            precision: "full" is float32, "half" computes matrix products in bfloat16, "auto" uses "half" on devices
                that accelerate it.
            zoom: as in `flow`.

        Returns:
            An iterable of `FlowFrame`.
        """
        options = FlowVideoOptions(start, end, every, rate, updates, warm_start, tile, memory, batch, precision, zoom)
        return FlowVideo(self.network, self.trained, self.device, source, options)

    def save(self, path: str | os.PathLike[str], half: bool = False) -> None:
        """Write the weights to a .safetensors file for `load`, atomically.

        Args:
            path: output path.
            half: store float16.
        """
        save_weights(self.network, path, trained=self.trained, half=half)

    def _facts(self) -> tuple[str, ...]:
        return predictor_summary("flow", self.network, self.trained, self.device)

    def _predict_whole(
        self, images: tuple[Tensor, Tensor], working: tuple[int, int], options: _FlowOptions
    ) -> FlowResult:
        """Predict the flow of whole images, 1 x 3 x H x W each, at the working size (height, width)."""
        size = (images[0].shape[2], images[0].shape[3])
        images = (resize(images[0].to(self.device), working), resize(images[1].to(self.device), working))
        init_flow = None
        if options.previous is not None:
            init_flow = self._init_flow(options.previous, size, working, back=options.occlusion)
        if options.occlusion:
            images = (torch.cat(images), torch.cat(images[::-1]))
        prediction = self.network(
            *(normalize_images(image) for image in images),
            updates=options.updates,
            start=init_flow,
            low_memory=options.low_memory,
            prototypes=options.prototypes,
            progress=options.progress,
        )
        output = resize_flow(predict_flow(prediction, zoom_between(size, working)), size)
        flow = output[:, :2]
        return FlowResult(
            flow=flow[0].cpu(),
            confidence=output[0, 2:].clamp(0, 1).cpu(),  # resizing may round beyond the range
            occlusion=occlusion_by_consistency(flow[:1], flow[1:])[0].cpu() if options.occlusion else None,
            prototypes=tuple(tuple(each.first(1).cpu() for each in stage) for stage in prediction.prototypes),
            trained=self.trained,
            seen=None if working == size else working,
        )

    def _predict_by_plan(self, images: tuple[Tensor, Tensor], plan: FlowPlan, options: _FlowOptions) -> FlowResult:
        """Predict the flow of images, 1 x 3 x H x W each, in tiles or with forward and backward flow in sequence."""
        engine = TiledFlow(self.network, self.device, plan, options.updates)
        first, second = engine.encode([image[0] for image in images])
        init_flows: tuple[Tensor | None, ...] = (None, None)
        if options.previous is not None:
            init_flows = self._init_flow(options.previous, plan.size, plan.seen, options.occlusion).split(1)
        (output,) = engine.flows([(first, second)], init_flows[0], options.progress)
        occlusion = None
        if options.occlusion:
            (backward,) = engine.flows([(second, first)], init_flows[1])
            occlusion = occlusion_by_consistency(output[None, :2], backward[None, :2])[0]
        return FlowResult(
            output[:2], output[2:].clamp(0, 1), occlusion=occlusion, trained=self.trained, seen=plan.other_size
        )

    def _explain_image(self, image: Tensor, result: FlowResult | None) -> ImageExplanation:
        """Explain an image, 1 x 3 x H x W in [0, 1], with its flow if available."""
        resized = shrink(image.to(self.device), limited_size((image.shape[2], image.shape[3]), MOST_PIXELS))
        motion = (None, None) if result is None else (result.flow, result.confidence)
        return explain_image(self.network.features, image[0], resized, flow_padding(resized), *motion)

    def _working_size(self, size: tuple[int, int], zoom: float | None, pairs: int) -> tuple[int, int]:
        """Return the (height, width) at which whole images are processed, or raise if memory is not sufficient."""
        config = self.network.config
        working = working_size(size, config, self.device, zoom, pairs=pairs)
        padding = Padding.to_multiple(*working, FACTOR, LEAST_SIDE)
        pixels = (working[0] + padding.bottom) * (working[1] + padding.right)
        needed, free = BYTES_PER_PIXEL[config.decoder] * pixels * pairs, free_bytes(self.device)
        if free is not None and needed > free:
            inputs = "the images" if zoom is None else "the images or the zoom"
            raise InputError(
                f"flow at {describe_working_size(size, working)} takes about {describe_memory(needed)} of memory "
                f"and {describe_memory(free)} are free; make {inputs} smaller."
            )
        return working

    def _init_flow(self, previous: FlowResult, size: tuple[int, int], working: tuple[int, int], back: bool) -> Tensor:
        """Warp the previous flow to the next pair at the working size; see `propagate_flow`."""
        if previous.flow.shape[1:] != size:
            raise InputError(
                f"the previous flow is of {previous.flow.shape[2]}x{previous.flow.shape[1]} pixels and the images are "
                f"{size[1]}x{size[0]}; start from a flow of the same size."
            )
        return propagate_flow(previous.flow, working, self.device, back)
