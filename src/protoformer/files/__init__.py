"""Codecs: bytes on disk to arrays and back. Every bad file is an `InputError`, every write is whole or not at all."""

from protoformer.files.atomic import checked_output, write_atomically
from protoformer.files.depth_color import depth_legend, depth_to_color
from protoformer.files.depth_png import read_mm_depth, write_mm_depth
from protoformer.files.flo import read_flo, write_flo
from protoformer.files.flow_array import known_flow
from protoformer.files.flow_color import color_wheel_legend, flow_to_color
from protoformer.files.images import (
    DecodedImage,
    focal_in_35mm,
    image_size,
    load_image,
    read_cutout,
    read_image,
    write_image,
)
from protoformer.files.kitti import (
    read_kitti_depth,
    read_kitti_disparity,
    read_kitti_flow,
    write_kitti_depth,
    write_kitti_disparity,
    write_kitti_flow,
)
from protoformer.files.movie import Movie, MovieFrame, MovieInfo
from protoformer.files.movie_opening import open_movie
from protoformer.files.movie_writing import MovieWriter
from protoformer.files.pfm import read_pfm, read_pfm_flow, write_pfm, write_pfm_flow
from protoformer.files.ply import write_ply
from protoformer.files.png import encode_png
from protoformer.files.reading import MAX_PIXELS, PixelLimitError, checked_input
from protoformer.files.sintel import Camera, read_cam, read_dpt, write_cam, write_dpt
from protoformer.files.sparse import SparseFlow, SparseValues
from protoformer.files.video import read_frames, write_video
from protoformer.files.vkitti2 import read_vkitti2_depth, read_vkitti2_flow, write_vkitti2_depth, write_vkitti2_flow

__all__ = [
    "MAX_PIXELS",
    "Camera",
    "DecodedImage",
    "Movie",
    "MovieFrame",
    "MovieInfo",
    "MovieWriter",
    "PixelLimitError",
    "SparseFlow",
    "SparseValues",
    "checked_input",
    "checked_output",
    "color_wheel_legend",
    "depth_legend",
    "depth_to_color",
    "encode_png",
    "flow_to_color",
    "focal_in_35mm",
    "image_size",
    "known_flow",
    "load_image",
    "open_movie",
    "read_cam",
    "read_cutout",
    "read_dpt",
    "read_flo",
    "read_frames",
    "read_image",
    "read_kitti_depth",
    "read_kitti_disparity",
    "read_kitti_flow",
    "read_mm_depth",
    "read_pfm",
    "read_pfm_flow",
    "read_vkitti2_depth",
    "read_vkitti2_flow",
    "write_atomically",
    "write_cam",
    "write_dpt",
    "write_flo",
    "write_image",
    "write_kitti_depth",
    "write_kitti_disparity",
    "write_kitti_flow",
    "write_mm_depth",
    "write_pfm",
    "write_pfm_flow",
    "write_ply",
    "write_video",
    "write_vkitti2_depth",
    "write_vkitti2_flow",
]
