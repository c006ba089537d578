"""Scenes whose motion is known exactly."""

from protoformer.world.bank import TextureBank, bank_from_folder, procedural_bank
from protoformer.world.families import FAMILIES
from protoformer.world.layers import Layer, LayeredScene, random_scene
from protoformer.world.render import Motion, Renderer, View
from protoformer.world.sample import (
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
from protoformer.world.stream import WorldStream, depth_stream, flow_stream, stability_stream, track_stream
from protoformer.world.textures import noise
from protoformer.world.world import World

__all__ = [
    "FAMILIES",
    "DepthSample",
    "FlowPair",
    "FlowSample",
    "Layer",
    "LayeredScene",
    "Motion",
    "Renderer",
    "StabilityClip",
    "StabilityPair",
    "StabilityWindows",
    "TextureBank",
    "TrackClip",
    "TrackPairs",
    "TrackSequence",
    "View",
    "World",
    "WorldStream",
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
