"""Scores and pictures of the average of the weights, for those who watch a run."""

from torch import nn

from protoformer.training.clock import Budget
from protoformer.training.distributed import by_itself
from protoformer.training.observer import Observer
from protoformer.training.signals import StopRequest
from protoformer.training.task import Drawing, HeldOut, Validator

SLOW = 10.0
"""Seconds of a validation that a run does not begin without having saved."""


class Judge:
    """Validates and draws, in the first of several processes alone.

    held_out: what to judge by, or None for nothing of the task's own. validators, draw: more of it, handed in. told:
    hears the results. budget: knows how long it takes. stop: may come between one validator and the next.
    """

    def __init__(
        self,
        held_out: HeldOut | None,
        validators: tuple[Validator, ...],
        draw: Drawing | None,
        told: Observer,
        budget: Budget,
        stop: StopRequest,
    ) -> None:
        self.held_out, self.draw, self.told, self.budget, self.stop = held_out, draw, told, budget, stop
        self.validators = validators if held_out is None else (held_out.validate, *validators)
        self.validated = self.pictured = -1  # the steps of the last ones

    @property
    def is_slow(self) -> bool:
        """Whether the last validation took so long that one should save before the next."""
        return self.budget.last.get("validation", 0.0) > SLOW

    def validate(self, step: int, network: nn.Module) -> None:
        """Score a network, which is in eval mode, unless that was done at this step."""
        if self.validated == step:
            return
        self.validated, start = step, self.budget.elapsed()
        with by_itself():
            for validator in self.validators:
                if self.stop.asked:
                    return
                self.told.validated(step, validator(network))
        self.budget.last["validation"] = self.budget.elapsed() - start

    def picture(self, step: int, network: nn.Module) -> None:
        """Draw what a network, which is in eval mode, makes of a few samples, unless that was done at this step."""
        if self.pictured == step or self.draw is None or self.held_out is None or self.stop.asked:
            return
        self.pictured = step
        with self.budget.measured("pictures"):
            for example in self.held_out.examples(network):
                self.told.pictured(step, example.name, self.draw(example))
