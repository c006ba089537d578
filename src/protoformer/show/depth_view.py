"""A depth as a browser can show it: two pictures, and the metres under every pixel."""

from typing import Any

from protoformer.inference import DepthResult
from protoformer.show.addresses import base64_text, jpeg_address, png_address
from protoformer.show.depth_frames import painted_depth
from protoformer.show.prototypes import Pixels
from protoformer.show.view_cells import MOST_CELLS, cell_step, confidence_text

_LEVELS = 2**16 - 1


def depth_view(
    result: DepthResult, image: Pixels, colours: tuple[float, float], most_cells: int = MOST_CELLS
) -> dict[str, Any]:
    """What a page needs, of plain numbers and texts. image: uint8 H x W x 3. colours: metres of the first and the last.

    image, depth: pictures as data addresses. width, height: pixels. step: a depth stands for every so many pixels, each
    way; columns, rows: how many there are. depths: base64 of uint16, 0 is `low` and 65535 `high`, in the logarithm of
    metres. confidence: base64 of uint8, 255 is 1. near, far: of the colours.
    """
    _, height, width = result.depth.shape
    step = cell_step(height, width, most_cells)
    logs = result.depth[0, ::step, ::step].float().cpu().log().numpy()
    low, high = float(logs.min()), float(logs.max())
    levels = (logs - low) / max(high - low, 1e-9) * _LEVELS
    return {
        "image": jpeg_address(image),
        "depth": png_address(painted_depth(result.depth.cpu(), colours)),
        "width": width,
        "height": height,
        "step": step,
        "columns": logs.shape[1],
        "rows": logs.shape[0],
        "low": low,
        "high": high,
        "depths": base64_text(levels.round().astype("<u2").tobytes()),
        "confidence": confidence_text(result.confidence, step),
        "near": colours[0],
        "far": colours[1],
    }
