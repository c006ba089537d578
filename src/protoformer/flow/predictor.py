"""Optical flow prediction for image pairs and videos."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.explain.result import (
    Explainer,
    Explanation,
    ImageExplanation,
    NetworkRun,
    check_result,
    explain_image,
)
from protoformer.explain.video import MAX_PIXELS, PrototypeVideo
from protoformer.flow.engine import FlowEngine, check_num_updates, predict_flow, propagate_flow
from protoformer.flow.result import FlowResult
from protoformer.flow.tiling import (
    MAX_BATCH_SIZE,
    MEMORY_FRACTION,
    FlowPlan,
    TileSize,
    describe_working_size,
    plan_flow,
    working_size,
    zoom_between,
)
from protoformer.flow.video import FlowVideo, FlowVideoOptions
from protoformer.geometry.warps import Padding, limited_size, occlusion_by_consistency, resize, resize_flow, shrink
from protoformer.io.image_input import ImageLike, as_image, image_pair, split_batch
from protoformer.io.memory import BYTES_PER_PIXEL, describe_memory, free_bytes
from protoformer.models.heads.flow import MIN_SIDE, flow_padding
from protoformer.models.heads.update import FLOW_STRIDE
from protoformer.models.runtime import (
    NetworkPredictor,
    Precision,
    ProgressCallback,
    normalize_images,
    use_half_precision,
)
from protoformer.video.clip import Source, Span
from protoformer.video.types import DEFAULT_FPS
from protoformer.viz.report import SummaryRepr, predictor_summary

FAST: dict[str, Any] = {"num_updates": 4, "zoom": 0.5, "precision": "auto"}
"""Options of `FlowPredictor.flow` and `flow_video` for several times the speed and less detail."""


@dataclass(frozen=True, eq=False)
class _FlowOptions:
    """Options of one prediction; see `FlowPredictor.flow`."""

    num_updates: int | None
    occlusion: bool
    return_prototypes: bool
    previous: FlowResult | None
    low_memory: bool | None
    progress: ProgressCallback | None
    half: bool


Pair = tuple[ImageLike, ImageLike]


class FlowPredictor(NetworkPredictor, SummaryRepr):
    """Predicts optical flow for images of any size, given as paths, Pillow images, arrays or tensors.

    `predictor(frame1, frame2)` is `flow` of two images. `predictor([(a1, b1), (a2, b2)])` is `flow_batch`, and so is
    `predictor(batch1, batch2)` with B x 3 x H x W tensors, B x H x W x 3 arrays or lists of images.
    """

    @overload
    def __call__(self, frame1: ImageLike, frame2: ImageLike, **options: Any) -> FlowResult: ...
    @overload
    def __call__(self, frame1: Sequence[Pair], **options: Any) -> list[FlowResult]: ...
    @overload
    def __call__(
        self, frame1: Sequence[ImageLike], frame2: Sequence[ImageLike], **options: Any
    ) -> list[FlowResult]: ...
    def __call__(self, frame1: Any, frame2: Any = None, **options: Any) -> FlowResult | list[FlowResult]:
        """Predict the flow of one pair or of a batch of pairs; options as in `flow` and `flow_batch`."""
        if frame2 is None:
            return self.flow_batch(frame1, **options)
        batch1, batch2 = split_batch(frame1), split_batch(frame2)
        if batch1 is None and batch2 is None:
            return self.flow(frame1, frame2, **options)
        if batch1 is None or batch2 is None or len(batch1) != len(batch2):
            counts = ["one image" if batch is None else f"{len(batch)} images" for batch in (batch1, batch2)]
            raise InputError(f"the first batch has {counts[0]} and the second {counts[1]}; give as many of each.")
        return self.flow_batch(list(zip(batch1, batch2, strict=True)), **options)

    @torch.no_grad()
    def flow(
        self,
        frame1: ImageLike,
        frame2: ImageLike,
        *,
        num_updates: int | None = None,
        occlusion: bool = False,
        return_prototypes: bool = False,
        previous: FlowResult | None = None,
        low_memory: bool | None = None,
        tile: TileSize = None,
        memory: int | None = None,
        zoom: float | None = None,
        precision: Precision | None = None,
        progress: ProgressCallback | None = None,
    ) -> FlowResult:
        """Predict the flow from the first image to the second.

        Args:
            frame1: first image.
            frame2: second image, of the same size.
            num_updates: number of refinement updates; more are slower and, up to a point, more accurate. None: the
                network's default.
            occlusion: also predict the backward flow and return pixels that are not visible in the second image.
            return_prototypes: return the prototypes of the first image.
            previous: result of the previous pair of a video, from which the estimate is initialized.
            low_memory: compute costs on demand instead of storing the all-pairs cost volume; None decides by size.
            tile: (height, width) of blended tiles; "auto" tiles only if the whole image does not fit into `memory`.
            memory: memory budget, bytes; None: most of the free memory.
            zoom: size at which the network runs, divided by the image size, from 0.25 to 4; tiles have that
                resolution, the result has the images' own. None: small images are enlarged to the network's
                `min_pixels` if memory allows it for the whole image.
            precision: "full" is float32, "half" computes matrix products in bfloat16, "auto" uses "half" on devices
                that accelerate it. None: that of the predictor, else "full".
            progress: called after every update, or every tile.

        Returns:
            Flow, confidence, and what else was requested.

        Raises:
            InputError: if an image cannot be read, an option is invalid, or memory is not sufficient.
        """
        check_num_updates(num_updates)
        images = image_pair(frame1, frame2)
        size = (images[0].shape[2], images[0].shape[3])
        half = self._use_half(precision)
        options = _FlowOptions(num_updates, occlusion, return_prototypes, previous, low_memory, progress, half)
        if tile is None and memory is None:
            working, _ = self._working_size(size, zoom, pairs=2 if occlusion else 1)
        else:
            # Forward and backward flow of tiles run one after the other.
            pairs = 2 if occlusion and return_prototypes else 1
            plan = plan_flow(size, self.network.config, self.device, tile, memory, half=half, zoom=zoom, pairs=pairs)
            if plan.tile is not None and return_prototypes:
                raise InputError("prototypes are not available for tiled images; leave out prototypes or tiles.")
            options = replace(options, low_memory=plan.low_memory if low_memory is None else low_memory)
            if plan.tile is not None or (occlusion and not return_prototypes):
                return self._predict_by_plan(images, replace(plan, low_memory=bool(options.low_memory)), options)
            working = plan.working
        (result,) = self._predict_whole([images], working, options)
        return replace(result, explainer=Explainer(self, (frame1, frame2)))

    @torch.no_grad()
    def flow_batch(
        self,
        pairs: Sequence[Pair],
        *,
        num_updates: int | None = None,
        occlusion: bool = False,
        return_prototypes: bool = False,
        zoom: float | None = None,
        precision: Precision | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[FlowResult]:
        """Predict the flow of several pairs; consecutive pairs of one size run together, as far as memory allows.

        Args:
            pairs: first and second images; the two of a pair have the same size.
            num_updates: as in `flow`.
            occlusion: as in `flow`.
            return_prototypes: as in `flow`; the pairs run one after the other.
            zoom: as in `flow`.
            precision: as in `flow`.
            progress: called with the number of pairs that are done and the total.

        Returns:
            One result per pair, in order.
        """
        check_num_updates(num_updates)
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise InputError("flow needs two images; give two, or a list of (first, second) pairs.")
        half = self._use_half(precision)
        options = _FlowOptions(num_updates, occlusion, return_prototypes, None, None, None, half)
        results: list[FlowResult] = []
        images = (image_pair(*pair) for pair in pairs)
        for shape, group in itertools.groupby(images, lambda pair: pair[0].shape):
            working, max_pairs = self._working_size((shape[2], shape[3]), zoom, pairs=2 if occlusion else 1)
            while batch := list(itertools.islice(group, 1 if return_prototypes else max_pairs)):
                for output in self._predict_whole(batch, working, options):
                    frame1, frame2 = pairs[len(results)]
                    results.append(replace(output, explainer=Explainer(self, (frame1, frame2))))
                if progress:
                    progress(len(results), len(pairs))
        return results

    @torch.no_grad()
    def explain(
        self,
        image: ImageLike,
        second: ImageLike | None = None,
        *,
        result: FlowResult | None = None,
        num_updates: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Explanation:
        """Explain the prototypes of an image: their pixels in every layer and the course of the EM iterations.

        Images over 480x640 pixels are downscaled for the prototypes, as video frames are, but not for the flow.

        Args:
            image: image to explain.
            second: another image of the same size, to compute the motion of the groups and to match them.
            result: flow between the two images, if it has already been computed.
            num_updates: as in `flow`.
            progress: as in `flow`.
        """
        check_num_updates(num_updates)
        if second is None:
            return Explanation("flow", self._explain_image(as_image(image), None), trained=self.trained)
        images = image_pair(image, second)
        if result is not None:
            check_result(result.flow, images[0], "flow")
            check_result(result.confidence, images[0], "confidence")
        else:
            result = self.flow(*images, num_updates=num_updates, tile="auto", progress=progress)
        explained = (self._explain_image(images[0], result), self._explain_image(images[1], None))
        run = NetworkRun(self.network.encoder_of("flow"), partial(self._estimate_small, images, num_updates))
        return Explanation("flow", *explained, trained=self.trained, network=run)

    def explain_video(
        self,
        source: Source,
        *,
        layer: str | None = None,
        families: int | None = None,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        frame_step: int = 1,
        fps: float | Fraction = DEFAULT_FPS,
        num_updates: int | None = None,
    ) -> PrototypeVideo:
        """Compute the prototypes of each video frame, tracked from frame to frame, in constant memory.

        Args:
            source: as in `flow_video`.
            layer: stage and block, such as "2.1"; None: the last.
            families: number of groups of similar prototypes; None: no grouping.
            start: as in `flow_video`.
            end: as in `flow_video`.
            frame_step: as in `flow_video`.
            fps: as in `flow_video`.
            num_updates: as in `flow_video`.
        """
        check_num_updates(num_updates)
        return PrototypeVideo(
            self.network, self.device, source, Span(start, end, frame_step, fps), layer, families, num_updates
        )

    def flow_video(
        self,
        source: Source,
        *,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        frame_step: int = 1,
        fps: float | Fraction = DEFAULT_FPS,
        num_updates: int | None = None,
        warm_start: bool = False,
        tile: TileSize = "auto",
        memory: int | None = None,
        batch_size: int | None = None,
        precision: Precision | None = None,
        zoom: float | None = None,
    ) -> FlowVideo:
        """Predict the flow from each frame of a video to the next, with exact timestamps and in constant memory.

        Args:
            source: video file, folder of images, glob pattern, an iterable of images, or a live source; see
                `open_video`.
            start: start of the span, seconds.
            end: end of the span, seconds.
            frame_step: use every n-th frame of the span.
            fps: frame rate of image sequences, frames per second.
            num_updates: as in `flow`.
            warm_start: initialize each pair from the flow of the previous one.
            tile: as in `flow`.
            memory: as in `flow`.
            batch_size: number of pairs, or tiles, in a batch; it affects speed, not the result. None: by memory.
            precision: as in `flow`; None: that of the predictor, else "auto".
            zoom: as in `flow`.

        Returns:
            An iterable of `FlowFrame`; its `save` writes a video.
        """
        chosen = self._choose_precision(precision)
        options = FlowVideoOptions(
            start, end, frame_step, fps, num_updates, warm_start, tile, memory, batch_size, chosen, zoom
        )
        return FlowVideo(self.network, self.trained, self.device, source, options)

    def _use_half(self, precision: Precision | None) -> bool:
        """Return whether matrix products of image pairs are in bfloat16; by default they are not."""
        return use_half_precision(self.device, self._choose_precision(precision, "full"))

    def _repr_parts(self) -> tuple[str, ...]:
        return predictor_summary("flow", self.network, self.trained, self.device)

    def _predict_whole(
        self, pairs: Sequence[tuple[Tensor, Tensor]], working: tuple[int, int], options: _FlowOptions
    ) -> list[FlowResult]:
        """Predict the flow of N pairs of whole images, 1 x 3 x H x W each, at the working size (height, width)."""
        size, count = (pairs[0][0].shape[2], pairs[0][0].shape[3]), len(pairs)
        first, second = (resize(torch.cat(images).to(self.device), working) for images in zip(*pairs, strict=True))
        init_flow = None
        if options.previous is not None:
            init_flow = self._init_flow(options.previous, size, working, back=options.occlusion)
        if options.occlusion:
            first, second = torch.cat((first, second)), torch.cat((second, first))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=options.half):
            prediction = self.network.flow(
                normalize_images(first),
                normalize_images(second),
                num_updates=options.num_updates,
                init_flow=init_flow,
                low_memory=options.low_memory,
                return_prototypes=options.return_prototypes,
                progress=options.progress,
            )
        output = resize_flow(predict_flow(prediction, zoom_between(size, working)), size)
        flow, backward = output[:, :2].split(count) if options.occlusion else (output[:, :2], None)
        occlusion = None if backward is None else occlusion_by_consistency(flow, backward).cpu()
        prototypes = tuple(tuple(each.first(1).cpu() for each in stage) for stage in prediction.prototypes)
        return [
            FlowResult(
                flow=flow[index].cpu(),
                confidence=output[index, 2:].clamp(0, 1).cpu(),  # resizing may round beyond the range
                occlusion=None if occlusion is None else occlusion[index],
                prototypes=prototypes,
                trained=self.trained,
                input_size=None if working == size else working,
            )
            for index in range(count)
        ]

    def _predict_by_plan(self, images: tuple[Tensor, Tensor], plan: FlowPlan, options: _FlowOptions) -> FlowResult:
        """Predict the flow of images, 1 x 3 x H x W each, in tiles or with forward and backward flow in sequence."""
        engine = FlowEngine(self.network, self.device, plan, options.num_updates, options.half)
        first, second = engine.encode([image[0] for image in images])
        init_flows: tuple[Tensor | None, ...] = (None, None)
        if options.previous is not None:
            init_flows = self._init_flow(options.previous, plan.size, plan.working, options.occlusion).split(1)
        (output,) = engine.flows([(first, second)], init_flows[0], options.progress)
        occlusion = None
        if options.occlusion:
            (backward,) = engine.flows([(second, first)], init_flows[1])
            occlusion = occlusion_by_consistency(output[None, :2], backward[None, :2])[0]
        return FlowResult(
            output[:2], output[2:].clamp(0, 1), occlusion=occlusion, trained=self.trained, input_size=plan.input_size
        )

    def _explain_image(self, image: Tensor, result: FlowResult | None) -> ImageExplanation:
        """Explain an image, 1 x 3 x H x W in [0, 1], with its flow if available."""
        resized = shrink(image.to(self.device), limited_size((image.shape[2], image.shape[3]), MAX_PIXELS))
        motion = (None, None) if result is None else (result.flow, result.confidence)
        return explain_image(self.network.encoder_of("flow"), image[0], resized, flow_padding(resized), *motion)

    @torch.no_grad()
    def _estimate_small(self, images: tuple[Tensor, Tensor], num_updates: int | None) -> Tensor:
        """Predict the flow of two images, 1 x 3 x H x W, at the size at which they are explained: 2 x H x W."""
        size = (images[0].shape[2], images[0].shape[3])
        first, second = (shrink(each.to(self.device), limited_size(size, MAX_PIXELS)) for each in images)
        prediction = self.network.flow(normalize_images(first), normalize_images(second), num_updates=num_updates)
        return resize_flow(prediction.flows[-1].float(), size)[0]

    def _working_size(self, size: tuple[int, int], zoom: float | None, pairs: int) -> tuple[tuple[int, int], int]:
        """Choose the (height, width) at which whole images run and how many times `pairs` may run together."""
        config = self.network.config
        working = working_size(size, config, self.device, zoom, pairs=pairs)
        padding = Padding.to_multiple(*working, FLOW_STRIDE, MIN_SIDE)
        pixels = (working[0] + padding.bottom) * (working[1] + padding.right)
        needed, free = BYTES_PER_PIXEL[config.flow.decoder] * pixels * pairs, free_bytes(self.device)
        if free is None:
            return working, MAX_BATCH_SIZE
        if needed > free:
            inputs = "the images" if zoom is None else "the images or the zoom"
            raise InputError(
                f"flow at {describe_working_size(size, working)} takes about {describe_memory(needed)} of memory "
                f"and {describe_memory(free)} are free; make {inputs} smaller."
            )
        return working, max(1, int(MEMORY_FRACTION * free) // needed)

    def _init_flow(self, previous: FlowResult, size: tuple[int, int], working: tuple[int, int], back: bool) -> Tensor:
        """Warp the previous flow to the next pair at the working size; see `propagate_flow`."""
        if previous.flow.shape[1:] != size:
            raise InputError(
                f"the previous flow is of {previous.flow.shape[2]}x{previous.flow.shape[1]} pixels and the images are "
                f"{size[1]}x{size[0]}; start from a flow of the same size."
            )
        return propagate_flow(previous.flow, working, self.device, back)
