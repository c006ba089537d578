"""Scene depth of images as people have them."""

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
    """A depth network on a device. Images go in as paths, arrays or tensors, of any size; a DepthResult comes out.

    network: the network; trained: whether its weights are, which every result repeats.
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
        """How far away everything in an image is, in meters.

        One image tells depth only up to a scale, which the camera decides. Say which it is by one of: focal, its focal
        length in pixels of this image; intrinsics, 3 x 3; fov, degrees across the width. Else what the image's file
        notes (EXIF) is taken, and else a usual field of view, 60 degrees along the longer side; the result says which.

        range: "indoor" (0.1 to 10 m), "driving" (1 to 80 m) or (nearest, farthest) in meters; None: all that the
        network can say. updates: refinements. mirrored: look at the image in a mirror as well and take the mean, which
        is better and takes twice as long. prototypes: return those of the image. precision: "full" is float32, "half"
        computes products in bfloat16, "auto" does so where the device is made for it. progress: told of updates.
        """
        hint, bounds = CameraHint(focal, intrinsics, fov), check_depth_range(range)
        half = use_half_precision(self.device, precision)
        pixels = as_image(image, str(image) if isinstance(image, (str, os.PathLike)) else "the image")[0]
        size = (pixels.shape[1], pixels.shape[2])
        camera = resolve_camera(size, hint, image)
        engine = DepthEngine(self.network, self.device, size, camera, updates, half, batch=1, mirrored=mirrored)
        found = engine.estimate(pixels, prototypes, progress)
        bounds = bounds or network_range(self.network.config, engine.focal)
        return DepthResult(
            depth=enlarge_depth(engine.metric_log(found), size).exp().clamp(*bounds),
            confidence=enlarge_depth(depth_confidence(found.log_scale), size),
            range=bounds,
            intrinsics=camera.intrinsics,
            camera=camera.source,
            prototypes=found.prototypes,
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
        """What the network groups in an image: the prototypes of every layer, their pixels, and how EM found them.

        second: another image, whose groups are matched with those of the first. result: the depth of the first, if it
        is known already, such as by `depth` with its camera. updates, progress: as in `depth`.
        """
        check_updates(updates)
        first = self._explained(image, result, updates, progress)
        other = None if second is None else self._explained(second, None, updates, progress)
        return Explanation("depth", first, other, trained=self.trained)

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
        """The depth of each frame of a clip, with its exact time; memory does not grow with the clip.

        source: a video file, a folder of images, a pattern of their names, or frames as `depth` takes images. start,
        end: seconds; of the frames between them the first is taken, and then one in `every`. rate: frames a second of
        images, which have no times. focal, intrinsics, fov, range, updates, mirrored, precision: as in `depth`.

        steady: carry the depth along the motion from frame to frame, so that it does not flicker; False: each frame by
        itself. flow: the model that finds this motion; None: OpenCV's dense inverse search, which needs no weights.
        batch: frames at once (None: by the device); it changes the time taken, not the result.
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
    def _explained(
        self, image: ImageLike, result: DepthResult | None, updates: int | None, progress: ProgressCallback | None
    ) -> ImageExplanation:
        found = self.depth(image, updates=updates, progress=progress) if result is None else result
        pixels = as_image(image)[0]
        check_result(found.depth, pixels, "depth")
        working = limited_size((pixels.shape[1], pixels.shape[2]), self.network.config.depth_pixels)
        seen = shrink(pixels[None].to(self.device), working)
        return explain_image(self.network.features, pixels, seen, depth_padding(seen), found.depth)

    def save(self, path: str | os.PathLike[str], half: bool = False) -> None:
        """Write the weights to a .safetensors file that `load` reads, whole or not at all; half: in float16."""
        save_weights(self.network, path, trained=self.trained, task="depth", half=half)

    def _facts(self) -> tuple[str, ...]:
        return predictor_summary("depth", self.network, self.trained, self.device)
