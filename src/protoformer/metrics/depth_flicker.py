"""How much the depth of a clip flickers: what it says of a point in one frame and in the next, along the motion."""

import torch
from torch import Tensor

from protoformer.geometry import warp_back


def depth_flicker(depths: Tensor, flows: Tensor, visible: Tensor) -> float:
    """Mean |ln d_t+1(p + flow_t(p)) - ln d_t(p)| over the visible pixels of a clip; 0.01 is 1 % from frame to frame.

    depths: T x 1 x H x W, metres, over 0. flows: (T - 1) x 2 x H x W, pixels, from each frame to the next. visible:
    (T - 1) x 1 x H x W, bool, pixels whose flow is known and that the next frame shows. NaN where none is visible. A
    depth that is true flickers as well where things come nearer or go away: compare with the flicker of the truth.
    """
    frames, _, height, width = depths.shape
    wanted = {"flows": (frames - 1, 2, height, width), "visible": (frames - 1, 1, height, width)}
    for name, given in (("flows", flows), ("visible", visible)):
        if given.shape != wanted[name]:
            raise ValueError(f"{name} of {frames} depths are {list(wanted[name])}, not {list(given.shape)}")
    logs = depths.clamp_min(torch.finfo(torch.float32).tiny).log()
    change = (warp_back(logs[1:], flows) - logs[:-1]).abs()
    return float(change[visible].double().mean())
