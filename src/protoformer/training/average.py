"""The running mean of a network's weights, which is what a trained network is judged by and kept as."""

import copy

import torch
from torch import Tensor, nn


class Average:
    """An exponential moving average of every floating parameter and buffer, in float32; others are copied.

    It is a network of its own, `network`, in eval mode and without gradients. After n updates the decay is
    min(decay, (1 + n) / (10 + n)), so that the first weights, which are random, are soon forgotten. A decay of 0 is no
    average: it has the weights as they are. Nothing here waits for the device.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = copy.deepcopy(network).float().eval().requires_grad_(False)
        self.decay = decay
        device = next(network.parameters()).device
        self.updates = torch.zeros((), device=device)
        ours, theirs = self.network.state_dict(), network.state_dict()
        moving = [name for name, tensor in ours.items() if decay and tensor.is_floating_point()]
        self._means, self._sources = [ours[name] for name in moving], [theirs[name] for name in moving]
        self._copied = [(ours[name], theirs[name]) for name in ours if name not in set(moving)]

    @torch.no_grad()
    def update(self, counts: Tensor) -> None:
        """Take the network's weights in. counts: scalar, 1, or 0 to leave the average as it is."""
        decay = torch.clamp((1 + self.updates) / (10 + self.updates), max=self.decay)
        if self._means:
            change = torch._foreach_sub([source.float() for source in self._sources], self._means)
            torch._foreach_mul_(change, (1 - decay) * counts)
            torch._foreach_add_(self._means, change)
        for ours, theirs in self._copied:
            ours.copy_(theirs)
        self.updates += counts
