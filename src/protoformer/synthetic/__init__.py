"""Procedural scenes with exact flow, depth, occlusion, boxes and camera paths."""

from protoformer.synthetic.generator import (
    SyntheticScenes,
    depth_stream,
    flow_stream,
    stability_stream,
    track_stream,
)
from protoformer.synthetic.layers import random_scene

__all__ = ["SyntheticScenes", "depth_stream", "flow_stream", "random_scene", "stability_stream", "track_stream"]
