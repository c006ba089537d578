"""Pure functions on tensors: pixel grids, padding, warps, upsampling, shrinking, enlarging."""

from protoformer.geometry.enlarging import enlarged_size, resized, resized_flow
from protoformer.geometry.grids import cell_of_pixel, cells, grid_shape, pixel_grid
from protoformer.geometry.padding import Padding
from protoformer.geometry.shrinking import shrunk, shrunk_position, shrunk_size
from protoformer.geometry.upsampling import convex_upsample, doubled
from protoformer.geometry.warps import carry_forward, occlusion_by_consistency, sample, warp_back

__all__ = [
    "Padding",
    "carry_forward",
    "cell_of_pixel",
    "cells",
    "convex_upsample",
    "doubled",
    "enlarged_size",
    "grid_shape",
    "occlusion_by_consistency",
    "pixel_grid",
    "resized",
    "resized_flow",
    "sample",
    "shrunk",
    "shrunk_position",
    "shrunk_size",
    "warp_back",
]
