"""Pure functions on tensors: boxes, grids, warps, resizing, regions."""
