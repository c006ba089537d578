"""Pictures and numbers as texts that a page can hold."""

import base64

import cv2
import numpy as np

from protoformer.files import encode_png
from protoformer.show.prototypes import Pixels

_JPEG_QUALITY = 92


def png_address(pixels: Pixels) -> str:
    """A picture, uint8 H x W x 3, as an address that holds it whole and exactly."""
    return f"data:image/png;base64,{base64_text(encode_png(pixels))}"


def jpeg_address(pixels: Pixels) -> str:
    """As `png_address`, in fewer bytes and not exactly."""
    ordered = np.ascontiguousarray(pixels[..., ::-1])
    _, data = cv2.imencode(".jpg", ordered, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    return f"data:image/jpeg;base64,{base64_text(data.tobytes())}"


def base64_text(data: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(data).decode()
