"""A function of tensors as one CUDA graph for every shape: the host launches it at once."""

from collections.abc import Callable

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
WARM_UP = 2
"""Calls of a shape that run as they are before one is recorded: a shape that comes seldom is not worth it."""


class Graphed:
    """The function, recorded when a shape has come often enough, and then replayed. For one GPU and one thread.

    It must do the same work for the same shapes, and take and return tensors on the GPU alone.
    """

    def __init__(self, function: Callable[..., Tensors]) -> None:
        self.function = function
        self._side: torch.cuda.Stream | None = None  # one for all: memory that a call frees is then the next one's
        self._calls: dict[tuple[torch.Size, ...], int] = {}
        self._recorded: dict[tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, Tensors, Tensors]] = {}

    def __call__(self, *inputs: Tensor) -> Tensors:
        """What the function returns, in memory that the next call leaves alone."""
        with torch.cuda.device_of(inputs[0]):
            return self._called(inputs)

    def _called(self, inputs: Tensors) -> Tensors:
        key = tuple(each.shape for each in inputs)
        if key not in self._recorded:
            self._calls[key] = self._calls.get(key, 0) + 1
            if self._calls[key] <= WARM_UP:
                return self._beside(inputs)
            self._recorded[key] = self._record(inputs)
        graph, held, outputs = self._recorded[key]
        for mine, given in zip(held, inputs, strict=True):
            mine.copy_(given)
        graph.replay()
        return tuple(each.clone() for each in outputs)

    def _beside(self, inputs: Tensors) -> Tensors:
        """Run on a stream of its own, as recording demands of the calls before it."""
        self._side = torch.cuda.Stream() if self._side is None else self._side
        here = torch.cuda.current_stream()
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            outputs = self.function(*inputs)
        here.wait_stream(self._side)
        for each in outputs:
            each.record_stream(here)
        return outputs

    def _record(self, inputs: Tensors) -> tuple[torch.cuda.CUDAGraph, Tensors, Tensors]:
        held = tuple(each.clone() for each in inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self.function(*held)
        return graph, held, outputs
