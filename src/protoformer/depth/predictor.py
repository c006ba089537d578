"""Depth prediction for images and videos."""

import os
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protoformer.depth.camera import CameraHint, resolve_camera
from protoformer.depth.engine import DepthEngine, depth_confidence, enlarge_depth
from protoformer.depth.result import DepthRange, DepthResult, check_depth_range, network_range
from protoformer.depth.video import DepthVideo, DepthVideoOptions
from protoformer.explain.result import Explainer, Explanation, ImageExplanation, check_result, explain_image
from protoformer.flow.engine import check_updates
from protoformer.flow.predictor import FlowPredictor
from protoformer.geometry.resizing import limited_size, shrink
from protoformer.io.image_input import ImageLike, as_image
from protoformer.models.heads.depth import DepthNetwork, depth_padding
from protoformer.models.pretrained import save_weights
from protoformer.models.runtime import Precision, ProgressCallback, use_half_precision
from protoformer.video.clip import Source
from protoformer.video.types import DEFAULT_RATE
from protoformer.viz.text import SummaryRepr, predictor_summary

Matrix = Tensor | npt.NDArray[np.generic]


class DepthPredictor(SummaryRepr):
    """Predicts metric depth for images of any size, given as paths, arrays or tensors.

    Args:
        network: depth network; moved to the device and set to eval mode.
        trained: whether the network has trained weights; repeated in every result.
        device: device to run on; None: CUDA if available, else the CPU.
    """

    def __init__(self, network: DepthNetwork, trained: bool, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = network.eval().to(self.device)
        self.trained = trained

    def depth(
        self,
        image: ImageLike,
        *,
        focal: float | None = None,
        intrinsics: Matrix | None = None,
        fov: float | None = None,
        range: DepthRange = None,
        updates: int | None = None,
        mirrored: bool = True,
        prototypes: bool = False,
        precision: Precision = "auto",
        progress: ProgressCallback | None = None,
    ) -> DepthResult:
        """Predict the depth of an image, in meters.

        A single image determines depth only up to a scale, which the camera fixes. Give at most one of `focal`,
        `intrinsics` and `fov`. Otherwise the focal length is read from EXIF, or a field of view of 60 degrees along the
        longer side is assumed; `DepthResult.camera` says which.

        Args:
            image: image of any size.
            focal: focal length, pixels of this image.
            intrinsics: camera matrix, 3 x 3, pixels of this image.
            fov: horizontal field of view, degrees.
            range: "indoor" (0.1 to 10 m), "driving" (1 to 80 m) or (nearest, farthest) in meters, to which depths are
                clamped; None: the range of the network.
            updates: number of refinement updates; None: the network's default.
            mirrored: average with a horizontally flipped prediction (test-time augmentation), which is more accurate
                and takes twice as long.
            prototypes: return the prototypes of the image.
            precision: "full" is float32, "half" computes matrix products in bfloat16, "auto" uses "half" on devices
                that accelerate it.
            progress: called after every update.

        Raises:
            InputError: if the image cannot be read, an option is invalid, or memory is not sufficient.
        """
        hint, bounds = CameraHint(focal, intrinsics, fov), check_depth_range(range)
        half = use_half_precision(self.device, precision)
        pixels = as_image(image, str(image) if isinstance(image, (str, os.PathLike)) else "the image")[0]
        size = (pixels.shape[1], pixels.shape[2])
        camera = resolve_camera(size, hint, image)
        engine = DepthEngine(self.network, self.device, size, camera, updates, half, batch=1, mirrored=mirrored)
        estimate = engine.predict_frame(pixels, prototypes, progress)
        bounds = bounds or network_range(self.network.config, engine.focal)
        return DepthResult(
            depth=enlarge_depth(engine.to_metric_log(estimate), size).exp().clamp(*bounds),
            confidence=enlarge_depth(depth_confidence(estimate.log_scale), size),
            range=bounds,
            intrinsics=camera.intrinsics,
            camera=camera.source,
            prototypes=estimate.prototypes,
            trained=self.trained,
            explainer=Explainer(self, (image,)),
        )

    __call__ = depth

    def explain(
        self,
        image: ImageLike,
        second: ImageLike | None = None,
        *,
        result: DepthResult | None = None,
        updates: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Explanation:
        """Explain the prototypes of an image: their pixels in every layer and the course of the EM iterations.

        Args:
            image: image to explain.
            second: another image, whose groups are matched with those of the first.
            result: depth of the first image, if it has already been computed, such as with a known camera.
            updates: as in `depth`.
            progress: as in `depth`.
        """
        check_updates(updates)
        explanation1 = self._explain_image(image, result, updates, progress)
        explanation2 = None if second is None else self._explain_image(second, None, updates, progress)
        return Explanation("depth", explanation1, explanation2, trained=self.trained)

    def depth_video(
        self,
        source: Source,
        *,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        every: int = 1,
        rate: float | Fraction = DEFAULT_RATE,
        focal: float | None = None,
        intrinsics: Matrix | None = None,
        fov: float | None = None,
        range: DepthRange = None,
        steady: bool = True,
        flow: FlowPredictor | None = None,
        updates: int | None = None,
        mirrored: bool = False,
        batch: int | None = None,
        precision: Precision = "auto",
    ) -> DepthVideo:
        """Predict the depth of each frame of a video, with exact timestamps and in constant memory.

        Args:
            source: video file, folder of images, glob pattern, or an iterable of images.
            start: start of the span, seconds.
            end: end of the span, seconds.
            every: use every n-th frame of the span.
            rate: frame rate of image sequences, frames per second.
            focal: as in `depth`.
            intrinsics: as in `depth`.
            fov: as in `depth`.
            range: as in `depth`.
            steady: filter the depth over time along the optical flow, to reduce flicker; False: frame by frame.
            flow: predictor of this optical flow; None: OpenCV's dense inverse search, which needs no weights.
            updates: as in `depth`.
            mirrored: as in `depth`.
            batch: number of frames in a batch; it affects speed, not the result. None: by device.
            precision: as in `depth`.

        Returns:
            An iterable of `DepthFrame`.
        """
        options = DepthVideoOptions(
            *(start, end, every, rate),
            camera=CameraHint(focal, intrinsics, fov),
            range=check_depth_range(range),
            steady=steady,
            flow=flow,
            updates=updates,
            mirrored=mirrored,
            batch=batch,
            precision=precision,
        )
        return DepthVideo(self.network, self.trained, self.device, source, options)

    @torch.no_grad()
    def _explain_image(
        self, image: ImageLike, result: DepthResult | None, updates: int | None, progress: ProgressCallback | None
    ) -> ImageExplanation:
        result = self.depth(image, updates=updates, progress=progress) if result is None else result
        pixels = as_image(image)[0]
        check_result(result.depth, pixels, "depth")
        working = limited_size((pixels.shape[1], pixels.shape[2]), self.network.config.depth_pixels)
        resized = shrink(pixels[None].to(self.device), working)
        return explain_image(self.network.features, pixels, resized, depth_padding(resized), result.depth)

    def save(self, path: str | os.PathLike[str], half: bool = False) -> None:
        """Write the weights to a .safetensors file for `load`, atomically.

        Args:
            path: output path.
            half: store float16.
        """
        save_weights(self.network, path, trained=self.trained, task="depth", half=half)

    def _facts(self) -> tuple[str, ...]:
        return predictor_summary("depth", self.network, self.trained, self.device)
