"""What a model returns: frozen records in plain units, which know how to become files and pictures."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from protoformer.errors import InputError
from protoformer.explain.result import UNKNOWN_IMAGES, Explanation
from protoformer.io.files import check_output, write_atomically
from protoformer.io.float_formats import write_flo
from protoformer.io.kitti import write_kitti_flow
from protoformer.io.png import encode_png
from protoformer.models.prototyping import Prototypes
from protoformer.viz.colormaps import flow_to_color
from protoformer.viz.text import SummaryRepr, format_size, format_training

FLOW_FORMATS = ("flo", "kitti", "picture")


def flow_format(path: str | os.PathLike[str], named: str | None = None) -> str:
    """What to write at a path: as named, or by its suffix, .flo or .png (a picture). Errors are about bad input."""
    if named is not None and named not in FLOW_FORMATS:
        raise InputError(f"there is no flow format {named!r}; choose one of {', '.join(FLOW_FORMATS)}.")
    suffix = Path(path).suffix.lower()
    expected = {"flo": ".flo", "kitti": ".png", "picture": ".png"}
    if named is None:
        named = {".flo": "flo", ".png": "picture"}.get(suffix)
    if named is None or suffix != expected[named]:
        wanted = "one ending in .flo or .png" if named is None else f"one ending in {expected[named]}"
        raise InputError(f"flow cannot be written to {path} by that suffix; give {wanted}.")
    return named


@dataclass(frozen=True, repr=False)
class FlowResult(SummaryRepr):
    """Motion from a first to a second image of H x W pixels.

    flow: 2 x H x W, pixels, (u right, v down). confidence: 1 x H x W in [0, 1], how likely the model holds it that u,
    and likewise v, is right to a pixel. occlusion: 1 x H x W, bool, pixels that the second image does not show, or None
    if not asked for. prototypes: those of the first image, per stage and block, or empty if not asked for. seen: the
    (height, width) at which the network saw the images, and formed the prototypes; None: their own.
    trained: whether the weights were; if not, the flow means nothing. explainer: the model's way to explain a result,
    which keeps the model and the images as they were handed in, not copies of them; None where it has none, as in a
    pickle.
    """

    flow: Tensor
    confidence: Tensor
    occlusion: Tensor | None = None
    prototypes: tuple[tuple[Prototypes, ...], ...] = ()
    trained: bool = True
    seen: tuple[int, int] | None = None
    explainer: "Callable[[FlowResult], Explanation] | None" = field(default=None, compare=False)

    def explain(self) -> Explanation:
        """What the network grouped in both images: the prototypes of every layer, and how they were found."""
        if self.explainer is None:
            raise InputError(UNKNOWN_IMAGES)
        return self.explainer(self)

    def save(self, path: str | os.PathLike[str], format: str | None = None) -> None:
        """Write the flow, whole or not at all: "flo", "kitti" (16-bit png) or "picture" (colors, png).

        Without a format the suffix decides: .flo, or .png for a picture.
        """
        chosen, target = flow_format(path, format), check_output(path)
        if chosen == "flo":
            write_flo(target, self.numpy())
        elif chosen == "kitti":
            write_kitti_flow(target, self.numpy())
        else:
            write_atomically(target, encode_png(flow_to_color(self.numpy())))

    def picture(self, max_motion: float | None = None) -> Image.Image:
        """The flow in colors: hue is direction, strength speed, full at `max_motion` px (None: 99th percentile)."""
        return Image.fromarray(flow_to_color(self.numpy(), max_motion))

    def numpy(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """The flow as float32 H x W x 2."""
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
