"""Starting weights that keep signals at their strength through many layers, so that learning begins at once."""

from torch import nn


def for_relu(module: nn.Module) -> None:
    """Give every convolution in a module the spread that a ReLU after it preserves (He et al., 2015)."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def for_gates(module: nn.Module) -> None:
    """Give every convolution in a module the spread that a sigmoid or tanh preserves (Glorot and Bengio, 2010)."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
