"""Weights to begin with."""

from typing import Any, cast

from torch import nn

from protoformer.errors import InputError
from protoformer.model import DepthNetwork, ModelConfig

ENCODER = (
    "embedding",
    "widths",
    "depths",
    "head_width",
    "prototypes",
    "iterations",
    "update",
    "normalize",
    "residual",
    "synchronization",
    "components",
)
"""The fields of a configuration that an encoder is made of."""
DEPTH = ("nearest", "farthest", "depth_pixels")
"""Those by which a depth network's numbers mean something else, though its weights have the same shapes."""


def begin_with(network: nn.Module, start: nn.Module, name: str | None) -> None:
    """Give a network the weights of another one, whose name is for messages.

    Networks of one task share all of them; of another task's the encoder, `features`, is taken, and the decoder stays
    as it is. `InputError` where they do not fit.
    """
    ours, theirs = cast(Any, network), cast(Any, start)
    whole = type(network) is type(start)
    target, source = (ours, theirs) if whole else (ours.features, theirs.features)
    fields = ENCODER + DEPTH if isinstance(network, DepthNetwork) and whole else ENCODER
    if not _alike(ours.config, theirs.config, fields) or _shapes(target) != _shapes(source):
        what = "another network" if whole else "another encoder"
        raise InputError(
            f"the weights {name} are of {what} than the recipe's; set model.preset and model.fields to theirs."
        )
    target.load_state_dict(source.state_dict())


def _alike(one: ModelConfig, other: ModelConfig, fields: tuple[str, ...]) -> bool:
    return all(getattr(one, field) == getattr(other, field) for field in fields)


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
