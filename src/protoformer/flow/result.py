"""Result of optical flow prediction: flow, confidence, occlusion, file formats and images."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from protoformer.errors import InputError
from protoformer.explain.result import UNKNOWN_IMAGES, Explanation
from protoformer.io.files import PathLike, check_output, write_atomically
from protoformer.io.formats import write_flo, write_kitti_flow
from protoformer.io.png import encode_png
from protoformer.models.prototyping import Prototypes
from protoformer.viz.colormaps import flow_to_color
from protoformer.viz.report import SummaryRepr, format_size, format_training

FLOW_FORMATS = ("flo", "kitti", "image")


def flow_format(path: PathLike, named: str | None = None) -> str:
    """Return the output format for a path.

    Args:
        path: output path.
        named: requested format, one of `FLOW_FORMATS`; None chooses by suffix, .flo or .png (color image).
    """
    if named is not None and named not in FLOW_FORMATS:
        raise InputError(f"there is no flow format {named!r}; choose one of {', '.join(FLOW_FORMATS)}.")
    suffix = Path(path).suffix.lower()
    expected = {"flo": ".flo", "kitti": ".png", "image": ".png"}
    if named is None:
        named = {".flo": "flo", ".png": "image"}.get(suffix)
    if named is None or suffix != expected[named]:
        suffixes = ".flo or .png" if named is None else expected[named]
        raise InputError(f"flow cannot be written to {path} by that suffix; give one ending in {suffixes}.")
    return named


@dataclass(frozen=True, repr=False)
class FlowResult(SummaryRepr):
    """Optical flow from a first to a second image of H x W pixels.

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
            format: "flo", "kitti" (16-bit png) or "image" (color png); None chooses by suffix: .flo, or .png for a
                color image.
        """
        file_format, target = flow_format(path, format), check_output(path)
        if file_format == "flo":
            write_flo(target, self.numpy())
        elif file_format == "kitti":
            write_kitti_flow(target, self.numpy())
        else:
            write_atomically(target, encode_png(flow_to_color(self.numpy())))

    def image(self, max_motion: float | None = None) -> Image.Image:
        """Return the flow as a color image: hue is direction, saturation is speed.

        Args:
            max_motion: motion of full saturation, pixels; None: the 99th percentile.
        """
        return Image.fromarray(flow_to_color(self.numpy(), max_motion))

    def numpy(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Return the flow as float32 H x W x 2, pixels."""
        return np.ascontiguousarray(self.flow.detach().float().cpu().numpy().transpose(1, 2, 0))

    def _facts(self) -> tuple[str, ...]:
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
