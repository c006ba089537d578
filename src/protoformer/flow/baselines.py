"""Classical optical flow baselines from OpenCV."""

from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protoformer.errors import InputError

GrayPair = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]
Flow = npt.NDArray[np.float32]


def _compute_dis(pair: GrayPair) -> Flow:
    method = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    method.setFinestScale(0)
    method.setVariationalRefinementIterations(10)
    return _run_dis(method, pair)


def _compute_dis_fast(pair: GrayPair) -> Flow:
    return _run_dis(cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST), pair)


def _run_dis(method: cv2.DISOpticalFlow, pair: GrayPair) -> Flow:
    """Run DIS without an initial flow: OpenCV refines any flow passed in, even zeros, which changes the result."""
    return np.asarray(method.calc(*pair, None), dtype=np.float32)  # type: ignore[call-overload]


def _compute_farneback(pair: GrayPair) -> Flow:
    init_flow = np.zeros((*pair[0].shape, 2), np.float32)  # ignored: OPTFLOW_USE_INITIAL_FLOW is not set
    flow = cv2.calcOpticalFlowFarneback(
        *pair, init_flow, pyr_scale=0.5, levels=5, winsize=15, iterations=3, poly_n=5, poly_sigma=1.2, flags=0
    )
    return np.asarray(flow, dtype=np.float32)


BASELINES: dict[str, Callable[[GrayPair], Flow]] = {
    "dis": _compute_dis,
    "dis-fast": _compute_dis_fast,
    "farneback": _compute_farneback,
}
"""Baselines by name: DIS at full resolution with ten variational refinements, DIS with its fast preset, Farneback."""


def baseline_flow(method: str, first: Tensor, second: Tensor) -> Tensor:
    """Compute the flow between two images, 3 x H x W in [0, 1], with one of `BASELINES`: 2 x H x W, pixels."""
    try:
        flow = BASELINES[method]((_to_gray(first), _to_gray(second)))
    except cv2.error:
        size = f"{first.shape[2]}x{first.shape[1]}"
        raise InputError(f"{method} does not support images of {size} pixels; give larger ones.") from None
    return torch.from_numpy(flow).permute(2, 0, 1).contiguous()


def _to_gray(image: Tensor) -> npt.NDArray[np.uint8]:
    pixels = (image * 255).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY))
