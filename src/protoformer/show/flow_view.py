"""A flow as a browser can show it: two pictures, and the vector under every pixel."""

from typing import Any

import numpy as np

from protoformer.inference import FlowResult
from protoformer.show.addresses import base64_text, jpeg_address, png_address
from protoformer.show.flow_frames import painted
from protoformer.show.prototypes import Pixels
from protoformer.show.view_cells import MOST_CELLS, cell_step, confidence_text

_LEVELS = 2**15 - 1


def flow_view(result: FlowResult, image: Pixels, scale: float, most_cells: int = MOST_CELLS) -> dict[str, Any]:
    """What a page needs, of plain numbers and texts. image: the first one, uint8 H x W x 3. scale: of full colours, px.

    image, flow: pictures as data addresses. width, height: pixels. step: a vector stands for every so many pixels,
    each way; columns, rows: how many there are. unit: pixels that 1 in `vectors` means, which is base64 of int16, all
    rows of u and then those of v; confidence: base64 of uint8, 255 is 1. scale: as given.
    """
    height, width = result.flow.shape[1:]
    step = cell_step(height, width, most_cells)
    vectors = result.flow[:, ::step, ::step].float().cpu().numpy()
    unit = float(np.abs(vectors).max()) / _LEVELS or 1.0
    return {
        "image": jpeg_address(image),
        "flow": png_address(painted(result.flow.cpu(), scale)),
        "width": width,
        "height": height,
        "step": step,
        "columns": vectors.shape[2],
        "rows": vectors.shape[1],
        "unit": unit,
        "vectors": base64_text((vectors / unit).round().astype("<i2").tobytes()),
        "confidence": confidence_text(result.confidence, step),
        "scale": scale,
    }
