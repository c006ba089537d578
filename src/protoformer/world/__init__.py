"""Scenes whose motion is known exactly."""

from protoformer.world.layers import Layer, LayeredScene, random_scene
from protoformer.world.sample import DepthSample, FlowPair, FlowSample, StabilityPair, TrackSequence, join
from protoformer.world.textures import noise

__all__ = [
    "DepthSample",
    "FlowPair",
    "FlowSample",
    "Layer",
    "LayeredScene",
    "StabilityPair",
    "TrackSequence",
    "join",
    "noise",
    "random_scene",
]
