"""Depth prediction for images and videos."""

import itertools
import os
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protoformer.depth.camera import Camera, CameraHint, resolve_camera
from protoformer.depth.engine import DepthEngine, Estimate, choose_batch_size, depth_confidence, enlarge_depth
from protoformer.depth.result import DepthRange, DepthResult, check_depth_range, network_range
from protoformer.depth.video import DepthVideo, DepthVideoOptions
from protoformer.explain.result import (
    Explainer,
    Explanation,
    ImageExplanation,
    NetworkRun,
    check_result,
    explain_image,
)
from protoformer.flow.engine import check_num_updates
from protoformer.flow.predictor import FlowPredictor
from protoformer.geometry.warps import limited_size, shrink
from protoformer.io.image_input import ImageLike, as_image, split_batch
from protoformer.models.heads.depth import depth_padding
from protoformer.models.runtime import NetworkPredictor, Precision, ProgressCallback, use_half_precision
from protoformer.video.clip import Source
from protoformer.video.types import DEFAULT_FPS
from protoformer.viz.report import SummaryRepr, predictor_summary

Matrix = Tensor | npt.NDArray[np.generic]


class DepthPredictor(NetworkPredictor, SummaryRepr):
    """Predicts metric depth for images of any size, given as paths, Pillow images, arrays or tensors.

    `predictor(image)` is `depth` of one image; `predictor([a, b])`, or a B x 3 x H x W tensor, is `depth_batch`.
    """

    @overload
    def __call__(self, image: ImageLike, **options: Any) -> DepthResult: ...
    @overload
    def __call__(self, image: Sequence[ImageLike], **options: Any) -> list[DepthResult]: ...
    def __call__(self, image: Any, **options: Any) -> DepthResult | list[DepthResult]:
        """Predict the depth of one image or of a batch of images; options as in `depth` and `depth_batch`."""
        batch = split_batch(image)
        return self.depth(image, **options) if batch is None else self.depth_batch(batch, **options)

    def depth(
        self,
        image: ImageLike,
        *,
        focal: float | None = None,
        intrinsics: Matrix | None = None,
        fov: float | None = None,
        range: DepthRange = None,
        num_updates: int | None = None,
        mirrored: bool = True,
        return_prototypes: bool = False,
        precision: Precision | None = None,
        progress: ProgressCallback | None = None,
    ) -> DepthResult:
        """Predict the depth of an image, in meters.

        A single image determines depth only up to a scale, which the camera fixes. Give at most one of `focal`,
        `intrinsics` and `fov`. Otherwise the focal length is read from EXIF, or a field of view of 60 degrees along the
        longer side is assumed; `DepthResult.camera` states which.

        Args:
            image: image of any size.
            focal: focal length, pixels of this image.
            intrinsics: camera matrix, 3 x 3, pixels of this image.
            fov: horizontal field of view, degrees.
            range: "indoor" (0.1 to 10 m), "driving" (1 to 80 m) or (nearest, farthest) in meters, to which depths are
                clamped; None: the range of the network.
            num_updates: number of refinement updates; None: the network's default.
            mirrored: average with a horizontally flipped prediction (test-time augmentation), which is more accurate
                and takes twice as long.
            return_prototypes: return the prototypes of the image.
            precision: "full" is float32, "half" computes matrix products in bfloat16, "auto" uses "half" on devices
                that accelerate it. None: that of the predictor, else "auto".
            progress: called after every update.

        Raises:
            InputError: if the image cannot be read, an option is invalid, or memory is not sufficient.
        """
        hint, bounds = CameraHint(focal, intrinsics, fov), check_depth_range(range)
        half = use_half_precision(self.device, self._choose_precision(precision))
        pixels, camera = _read_image(image, hint)
        engine = DepthEngine(
            self.network, self.device, _size(pixels), camera, num_updates, half, batch_size=1, mirrored=mirrored
        )
        return self._result(engine, engine.predict_frame(pixels, return_prototypes, progress), camera, bounds, image)

    def depth_batch(
        self,
        images: Sequence[ImageLike],
        *,
        focal: float | None = None,
        intrinsics: Matrix | None = None,
        fov: float | None = None,
        range: DepthRange = None,
        num_updates: int | None = None,
        mirrored: bool = True,
        batch_size: int | None = None,
        precision: Precision | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[DepthResult]:
        """Predict the depth of several images; consecutive images of one size and camera run together.

        Args:
            images: images of any sizes.
            focal: as in `depth`, for all images.
            intrinsics: as in `depth`, for all images.
            fov: as in `depth`, for all images.
            range: as in `depth`.
            num_updates: as in `depth`.
            mirrored: as in `depth`.
            batch_size: number of images in a batch; it affects speed, not the result. None: by device.
            precision: as in `depth`.
            progress: called with the number of images that are done and the total.

        Returns:
            One result per image, in order.
        """
        hint, bounds = CameraHint(focal, intrinsics, fov), check_depth_range(range)
        half = use_half_precision(self.device, self._choose_precision(precision))
        results: list[DepthResult] = []
        inputs = (_read_image(image, hint) for image in images)
        size = choose_batch_size(batch_size, self.device)
        for _, group in itertools.groupby(inputs, lambda each: (_size(each[0]), each[1].intrinsics.tolist())):
            engine: DepthEngine | None = None
            while batch := list(itertools.islice(group, size)):
                pixels, camera = batch[0]
                engine = engine or DepthEngine(
                    self.network, self.device, _size(pixels), camera, num_updates, half, size, mirrored
                )
                estimates = engine.predict_frames([pixels for pixels, _ in batch])
                for estimate, (_, camera) in zip(estimates, batch, strict=True):
                    results.append(self._result(engine, estimate, camera, bounds, images[len(results)]))
                if progress:
                    progress(len(results), len(images))
        return results

    def explain(
        self,
        image: ImageLike,
        second: ImageLike | None = None,
        *,
        result: DepthResult | None = None,
        num_updates: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Explanation:
        """Explain the prototypes of an image: their pixels in every layer and the course of the EM iterations.

        Args:
            image: image to explain.
            second: another image, whose groups are matched with those of the first.
            result: depth of the first image, if it has already been computed, such as with a known camera.
            num_updates: as in `depth`.
            progress: as in `depth`.
        """
        check_num_updates(num_updates)
        result = self.depth(image, num_updates=num_updates, progress=progress) if result is None else result
        explanation1 = self._explain_image(image, result)
        explanation2 = None
        if second is not None:
            explanation2 = self._explain_image(second, self.depth(second, num_updates=num_updates, progress=progress))
        pixels, camera = explanation1.image, Camera(result.intrinsics, result.camera)
        engine = DepthEngine(self.network, self.device, _size(pixels), camera, num_updates)
        run = NetworkRun(self.network.encoder_of("depth"), partial(_estimate_depth, engine, pixels))
        return Explanation("depth", explanation1, explanation2, trained=self.trained, network=run)

    def depth_video(
        self,
        source: Source,
        *,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        frame_step: int = 1,
        fps: float | Fraction = DEFAULT_FPS,
        focal: float | None = None,
        intrinsics: Matrix | None = None,
        fov: float | None = None,
        range: DepthRange = None,
        steady: bool = True,
        flow: FlowPredictor | None = None,
        num_updates: int | None = None,
        mirrored: bool = False,
        batch_size: int | None = None,
        precision: Precision | None = None,
    ) -> DepthVideo:
        """Predict the depth of each frame of a video, with exact timestamps and in constant memory.

        Args:
            source: video file, folder of images, glob pattern, an iterable of images, or a live source; see
                `open_video`.
            start: start of the span, seconds.
            end: end of the span, seconds.
            frame_step: use every n-th frame of the span.
            fps: frame rate of image sequences, frames per second.
            focal: as in `depth`.
            intrinsics: as in `depth`.
            fov: as in `depth`.
            range: as in `depth`.
            steady: filter the depth over time along the optical flow, to reduce flicker; False: frame by frame.
            flow: predictor of this optical flow; None: OpenCV's dense inverse search, which needs no weights.
            num_updates: as in `depth`.
            mirrored: as in `depth`.
            batch_size: number of frames in a batch; it affects speed, not the result. None: by device.
            precision: as in `depth`.

        Returns:
            An iterable of `DepthFrame`; its `save` writes a video.
        """
        options = DepthVideoOptions(
            *(start, end, frame_step, fps),
            camera=CameraHint(focal, intrinsics, fov),
            range=check_depth_range(range),
            steady=steady,
            flow=flow,
            num_updates=num_updates,
            mirrored=mirrored,
            batch_size=batch_size,
            precision=self._choose_precision(precision),
        )
        return DepthVideo(self.network, self.trained, self.device, source, options)

    @torch.no_grad()
    def _explain_image(self, image: ImageLike, result: DepthResult) -> ImageExplanation:
        pixels = as_image(image)[0]
        check_result(result.depth, pixels, "depth")
        working = limited_size((pixels.shape[1], pixels.shape[2]), self.network.config.depth.max_pixels)
        resized = shrink(pixels[None].to(self.device), working)
        return explain_image(self.network.encoder_of("depth"), pixels, resized, depth_padding(resized), result.depth)

    def _result(
        self,
        engine: DepthEngine,
        estimate: Estimate,
        camera: Camera,
        bounds: tuple[float, float] | None,
        image: ImageLike,
    ) -> DepthResult:
        bounds = bounds or network_range(self.network.config, engine.focal)
        return DepthResult(
            depth=enlarge_depth(engine.to_metric_log(estimate), engine.size).exp().clamp(*bounds),
            confidence=enlarge_depth(depth_confidence(estimate.log_scale), engine.size),
            range=bounds,
            intrinsics=camera.intrinsics,
            camera=camera.source,
            prototypes=estimate.prototypes,
            trained=self.trained,
            explainer=Explainer(self, (image,)),
        )

    def _repr_parts(self) -> tuple[str, ...]:
        return predictor_summary("depth", self.network, self.trained, self.device)


def _estimate_depth(engine: DepthEngine, image: Tensor) -> Tensor:
    """Predict the depth of an image, 3 x H x W: 1 x H x W, meters."""
    return enlarge_depth(engine.to_metric_log(engine.predict_frame(image)), engine.size).exp()


def _read_image(image: ImageLike, hint: CameraHint) -> tuple[Tensor, Camera]:
    """Return the pixels, 3 x H x W in [0, 1], and the camera of an image."""
    pixels = as_image(image, str(image) if isinstance(image, (str, os.PathLike)) else "the image")[0]
    return pixels, resolve_camera(_size(pixels), hint, image)


def _size(pixels: Tensor) -> tuple[int, int]:
    return pixels.shape[1], pixels.shape[2]
