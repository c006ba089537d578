"""A network that is the same and costs less: compiled where it pays, or with activations computed a second time."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from protoformer.model.cost_memory import CostMemory, CostTokens, MemoryLayer
from protoformer.model.depth_decoder import DepthDecoder, DepthUpdate, Finish
from protoformer.model.encoder import Block, Stage
from protoformer.model.flow_decoder import CorrelationCosts, FlowDecoder, MemoryCosts
from protoformer.model.update import UpdateBlock

PARTS = (Stage, UpdateBlock, CostMemory, DepthUpdate, Finish)
"""What is large, and of one shape in a whole run.

Look-ups and upsampling between them stay as they are: they gain little, and a graph of all takes minutes to make.
"""


def compile_parts(network: nn.Module) -> None:
    """Compile the parts of a network when they first run, each for the shapes it sees; in place."""
    for module in network.modules():
        if isinstance(module, PARTS):
            module.compile(dynamic=False)


def recompute_activations(network: nn.Module) -> None:
    """Keep only what goes into each block of the encoder and each part of the decoder's updates; in place.

    It takes less memory and about a third more time. Values and gradients stay as they are. Networks in eval mode are
    not touched by it, and neither are state dicts.
    """
    for module in network.modules():
        if isinstance(module, Block | UpdateBlock | CostTokens | MemoryLayer | DepthUpdate):
            module.forward = _recomputed(module, module.forward)  # type: ignore[method-assign]
        elif isinstance(module, FlowDecoder | DepthDecoder):
            module._upsample = _recomputed(module, module._upsample)  # type: ignore[method-assign]
        elif isinstance(module, CorrelationCosts | MemoryCosts):
            module.prepare = _with_recomputed_reader(module, module.prepare)  # type: ignore[method-assign]


def _recomputed(module: nn.Module, compute: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*inputs: Any) -> Any:
        if not module.training:
            return compute(*inputs)
        # Nothing here is random, and a CUDA graph that is being recorded cannot be asked for a random state.
        return checkpoint(compute, *inputs, use_reentrant=False, preserve_rng_state=False)

    return forward


def _with_recomputed_reader(module: nn.Module, prepare: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: _recomputed(module, prepare(*inputs))
