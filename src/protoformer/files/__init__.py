"""Codecs: bytes on disk to arrays and back. Every bad file is an `InputError`, every write is whole or not at all."""

from protoformer.files.atomic import checked_output, write_atomically
from protoformer.files.flo import read_flo, write_flo
from protoformer.files.flow_array import known_flow
from protoformer.files.flow_color import color_wheel_legend, flow_to_color
from protoformer.files.images import read_image, write_image
from protoformer.files.kitti import SparseFlow, read_kitti_flow, write_kitti_flow
from protoformer.files.png import encode_png
from protoformer.files.reading import MAX_PIXELS, checked_input

__all__ = [
    "MAX_PIXELS",
    "SparseFlow",
    "checked_input",
    "checked_output",
    "color_wheel_legend",
    "encode_png",
    "flow_to_color",
    "known_flow",
    "read_flo",
    "read_image",
    "read_kitti_flow",
    "write_atomically",
    "write_flo",
    "write_image",
    "write_kitti_flow",
]
