"""Procedural scenes with exact flow, depth, occlusion, boxes and camera paths."""

from protoformer.synthetic.generator import (
    SceneStream,
    SyntheticScenes,
    depth_stream,
    flow_stream,
    stability_stream,
    track_stream,
)
from protoformer.synthetic.layers import Layer, LayeredScene, random_scene
from protoformer.synthetic.renderer import Motion, Renderer, View
from protoformer.synthetic.samples import (
    DepthSample,
    FlowPair,
    FlowSample,
    StabilityClip,
    StabilityPair,
    StabilityWindows,
    TrackClip,
    TrackPairs,
    TrackSequence,
    join,
)
from protoformer.synthetic.texture_bank import TextureBank, bank_from_folder, procedural_bank
from protoformer.synthetic.textures import FAMILIES, noise

__all__ = [
    "FAMILIES",
    "DepthSample",
    "FlowPair",
    "FlowSample",
    "Layer",
    "LayeredScene",
    "Motion",
    "Renderer",
    "SceneStream",
    "StabilityClip",
    "StabilityPair",
    "StabilityWindows",
    "SyntheticScenes",
    "TextureBank",
    "TrackClip",
    "TrackPairs",
    "TrackSequence",
    "View",
    "bank_from_folder",
    "depth_stream",
    "flow_stream",
    "join",
    "noise",
    "procedural_bank",
    "random_scene",
    "stability_stream",
    "track_stream",
]
