"""Classical methods to compare with, from OpenCV."""

from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protoformer.errors import InputError

GrayPair = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]
Flow = npt.NDArray[np.float32]


def _dis(pair: GrayPair) -> Flow:
    method = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    method.setFinestScale(0)
    method.setVariationalRefinementIterations(10)
    return _from_nothing(method, pair)


def _dis_fast(pair: GrayPair) -> Flow:
    return _from_nothing(cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST), pair)


def _from_nothing(method: cv2.DISOpticalFlow, pair: GrayPair) -> Flow:
    """Without a start: a flow that is handed in, even of zeros, would be refined, and the result another."""
    return np.asarray(method.calc(*pair, None), dtype=np.float32)  # type: ignore[call-overload]


def _farneback(pair: GrayPair) -> Flow:
    start = np.zeros((*pair[0].shape, 2), np.float32)  # not used: the flags do not ask for it
    flow = cv2.calcOpticalFlowFarneback(
        *pair, start, pyr_scale=0.5, levels=5, winsize=15, iterations=3, poly_n=5, poly_sigma=1.2, flags=0
    )
    return np.asarray(flow, dtype=np.float32)


BASELINES: dict[str, Callable[[GrayPair], Flow]] = {
    "dis": _dis,
    "dis-fast": _dis_fast,
    "farneback": _farneback,
}
"""Dense inverse search at full resolution with ten variational refinements, the same as its fast preset, Farneback."""


def baseline_flow(method: str, first: Tensor, second: Tensor) -> Tensor:
    """Flow by a classical method: images 3 x H x W in [0, 1] to 2 x H x W, pixels."""
    try:
        flow = BASELINES[method]((_gray(first), _gray(second)))
    except cv2.error:
        size = f"{first.shape[2]}x{first.shape[1]}"
        raise InputError(f"{method} cannot work on images of {size} pixels; give larger ones.") from None
    return torch.from_numpy(flow).permute(2, 0, 1).contiguous()


def _gray(image: Tensor) -> npt.NDArray[np.uint8]:
    pixels = (image * 255).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY))
