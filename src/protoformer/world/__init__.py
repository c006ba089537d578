"""Scenes whose motion is known exactly."""

from protoformer.world.layers import Layer, LayeredScene, random_scene
from protoformer.world.sample import FlowSample
from protoformer.world.textures import noise

__all__ = ["FlowSample", "Layer", "LayeredScene", "noise", "random_scene"]
