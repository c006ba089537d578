"""`torch.compile` where it pays: the parts of a network that are large, and of one shape in a whole run."""

from torch import nn

from protoformer.model.cost_memory import CostMemory
from protoformer.model.encoder import Stage
from protoformer.model.update import UpdateBlock

PARTS = (Stage, UpdateBlock, CostMemory)
"""Look-ups and upsampling between them stay as they are: they gain little, and a graph of all takes minutes to make."""


def compile_parts(network: nn.Module) -> None:
    """Compile the parts of a network when they first run, each for the shapes it sees; in place."""
    for module in network.modules():
        if isinstance(module, PARTS):
            module.compile(dynamic=False)
