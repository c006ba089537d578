"""Truth that is known at some pixels only."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError


@dataclass(frozen=True)
class SparseFlow:
    """A flow known at some pixels.

    `flow`: float32 HxWx2, (u right, v down) in pixels, 0 where not valid. `valid`: bool HxW.
    """

    flow: npt.NDArray[np.float32]
    valid: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SparseValues:
    """A depth (metres) or disparity (pixels) known at some pixels.

    `values`: float32 HxW, 0 where not valid. `valid`: bool HxW.
    """

    values: npt.NDArray[np.float32]
    valid: npt.NDArray[np.bool_]


def as_valid(valid: npt.NDArray[np.bool_] | None, size: tuple[int, ...], what: str) -> npt.NDArray[np.bool_]:
    """Return the bool mask of a HxW `size`, all True for None, or raise `InputError`; `what` is "flow" or alike."""
    mask = np.ones(size, dtype=np.bool_) if valid is None else np.asarray(valid)
    if mask.shape != size or mask.dtype != np.bool_:
        raise InputError(
            f"the valid mask of a {size[0]}x{size[1]} {what} is bool of that shape, "
            f"not {mask.dtype} of shape {mask.shape}; give a mask that fits the {what}."
        )
    return mask
