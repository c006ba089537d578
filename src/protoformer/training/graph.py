"""The whole step as one CUDA graph: the host launches it at once, and the GPU never waits for the host."""

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.training.step import Step

WARM_UP = 3
"""Steps that run as they are before one is recorded: libraries choose and allocate in the first ones."""


class GraphedStep:
    """A step that is recorded once and then replayed, with every batch copied to where the recorded one lay."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.held: dict[str, Tensor] = {}
        self.done = 0
        self.side = torch.cuda.Stream()  # one for all: memory that a step frees is then the next one's
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, tensors: dict[str, Tensor], rate: float) -> None:
        """As a `Step`."""
        self.step.set_rate(rate)
        self._take(tensors)
        if self.done < WARM_UP:
            self._beside()
        else:
            if self.graph is None:
                self.graph = self._recorded()
            self.graph.replay()
        self.done += 1

    def _take(self, tensors: dict[str, Tensor]) -> None:
        if not self.held:
            self.held = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            if tensor.shape != self.held[name].shape:
                raise InputError(
                    f"a batch has {name} of {tuple(tensor.shape)} after {tuple(self.held[name].shape)}, and a recorded "
                    "step takes one size only; set run.speed=eager."
                )
            self.held[name].copy_(tensor, non_blocking=True)

    def _beside(self) -> None:
        """Run the step on a stream of its own, as recording demands of the steps before it."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.step.run(self.held)
        torch.cuda.current_stream().wait_stream(self.side)

    def _recorded(self) -> torch.cuda.CUDAGraph:
        # Gradients must be born inside the recording: a replay then writes them anew instead of adding to the last.
        self.step.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # threads that read data may go on
            self.step.run(self.held)
        return graph
