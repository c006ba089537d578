"""Result of optical flow prediction: flow, confidence, occlusion, file formats and images."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from protoformer.errors import InputError
from protoformer.explain.result import UNKNOWN_IMAGES, Explanation
from protoformer.geometry.warps import warp_back
from protoformer.io.files import PathLike, check_output, write_atomically
from protoformer.io.formats import encode_npy, encode_npz, write_flo, write_kitti_flow
from protoformer.io.image_input import ImageLike, as_image
from protoformer.io.png import encode_png
from protoformer.models.prototyping import Prototypes
from protoformer.viz.colormaps import Picture, flow_to_color, to_uint8
from protoformer.viz.report import SummaryRepr, format_size, format_training

FLOW_FORMATS = {"flo": ".flo", "kitti": ".png", "image": ".png", "npy": ".npy", "npz": ".npz"}
"""Output formats and their suffixes."""
_FORMAT_BY_SUFFIX = {".flo": "flo", ".png": "image", ".npy": "npy", ".npz": "npz"}


def flow_format(path: PathLike, named: str | None = None) -> str:
    """Return the output format for a path.

    Args:
        path: output path.
        named: requested format, one of `FLOW_FORMATS`; None chooses by suffix, .png being a color image.
    """
    if named is not None and named not in FLOW_FORMATS:
        raise InputError(f"there is no flow format {named!r}; choose one of {', '.join(FLOW_FORMATS)}.")
    suffix = Path(path).suffix.lower()
    named = _FORMAT_BY_SUFFIX.get(suffix) if named is None else named
    if named is None or suffix != FLOW_FORMATS[named]:
        suffixes = ".flo, .png, .npy or .npz" if named is None else FLOW_FORMATS[named]
        raise InputError(f"flow cannot be written to {path} by that suffix; give one ending in {suffixes}.")
    return named


@dataclass(frozen=True, repr=False)
class FlowResult(SummaryRepr, Picture):
    """Optical flow from a first to a second image of H x W pixels; `numpy.asarray` of it is H x W x 2.

    Attributes:
        flow: 2 x H x W, pixels, (u right, v down).
        confidence: 1 x H x W in [0, 1], predicted probability that the error of u, and likewise of v, is below a pixel.
        occlusion: 1 x H x W, bool, pixels that are not visible in the second image; None if not requested.
        prototypes: prototypes of the first image, per stage and block; empty if not requested.
        trained: whether the network has trained weights; without them the flow is meaningless.
        input_size: (height, width) at which the network ran and formed the prototypes; None if it is the image size.
        explainer: function that explains this result; it references the predictor and the input images without copying
            them. None if they are not available, as after unpickling.
    """

    flow: Tensor
    confidence: Tensor
    occlusion: Tensor | None = None
    prototypes: tuple[tuple[Prototypes, ...], ...] = ()
    trained: bool = True
    input_size: tuple[int, int] | None = None
    explainer: "Callable[[FlowResult], Explanation] | None" = field(default=None, compare=False)

    def explain(self) -> Explanation:
        """Return the prototypes of every layer for both images, and the course of their EM iterations."""
        if self.explainer is None:
            raise InputError(UNKNOWN_IMAGES)
        return self.explainer(self)

    def save(self, path: PathLike, format: str | None = None) -> None:
        """Write the flow to a file, atomically.

        Args:
            path: output path.
            format: "flo", "kitti" (16-bit png), "image" (color png), "npy" (float32 H x W x 2) or "npz" (arrays flow,
                confidence and, if requested, occlusion); None chooses by suffix, .png being a color image.
        """
        file_format, target = flow_format(path, format), check_output(path)
        if file_format == "flo":
            write_flo(target, self.numpy())
        elif file_format == "kitti":
            write_kitti_flow(target, self.numpy())
        elif file_format == "npy":
            write_atomically(target, encode_npy(self.numpy()))
        elif file_format == "npz":
            arrays = {"flow": self.numpy(), "confidence": self.confidence[0].detach().float().cpu().numpy()}
            if self.occlusion is not None:
                arrays["occlusion"] = self.occlusion[0].cpu().numpy()
            write_atomically(target, encode_npz(**arrays))
        else:
            write_atomically(target, encode_png(flow_to_color(self.numpy())))

    def image(self, max_motion: float | None = None) -> Image.Image:
        """Return the flow as a color image: hue is direction, saturation is speed.

        Args:
            max_motion: motion from which the saturation is full, pixels; None: exceeded by at most 0.1 % of the pixels.
        """
        return Image.fromarray(flow_to_color(self.numpy(), max_motion))

    def warp(self, image: ImageLike) -> Image.Image:
        """Warp the second image back to the first; with exact flow it looks like the first, except where occluded.

        Args:
            image: the second image, of the same size.

        Returns:
            The image whose pixel p is pixel p + flow(p) of the second; black where that lies outside.
        """
        pixels = as_image(image)
        if pixels.shape[2:] != self.flow.shape[1:]:
            raise InputError(
                f"the image is {pixels.shape[3]}x{pixels.shape[2]} pixels and the flow "
                f"{self.flow.shape[2]}x{self.flow.shape[1]}; give the second image that the flow is of."
            )
        return Image.fromarray(to_uint8(warp_back(pixels, self.flow[None].detach().float().cpu())[0]))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the flow as float32 H x W x 2, pixels."""
        return np.array(self.flow.detach().float().cpu().permute(1, 2, 0).numpy(), dtype=dtype, copy=copy)

    def numpy(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Return the flow as float32 H x W x 2, pixels."""
        return np.ascontiguousarray(self.flow.detach().float().cpu().numpy().transpose(1, 2, 0))

    def _repr_parts(self) -> tuple[str, ...]:
        if self.flow.dim() != 3 or not self.flow.numel():
            return f"flow of shape {tuple(self.flow.shape)}", format_training(self.trained)
        lengths = self.flow.detach().float().norm(dim=0)
        return (
            format_size(*self.flow.shape[1:]),
            f"mean motion {lengths.mean():.2f} px",
            f"largest {lengths.max():.2f} px",
            f"mean confidence {self.confidence.detach().float().mean():.2f}",
            format_training(self.trained),
        )
