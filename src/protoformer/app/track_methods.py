"""The ways to follow a target that commands and the page offer, by name."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from protoformer.errors import InputError
from protoformer.inference import load
from protoformer.inference.flow_windows import Precision, takes_half
from protoformer.inference.track_baselines import TRACKERS, BaselineTracker, check_tracker
from protoformer.inference.track_steps import TrackMethod

METHODS = ("model", *TRACKERS)
MODEL = "track"
"""The model that is loaded where nobody names one."""


@dataclass(frozen=True)
class NamedMethod:
    """begin: what follows boxes from a first frame on. label: what to call it. trained: whether its weights are, if it
    has any.
    """

    begin: TrackMethod
    label: str
    trained: bool


def named_method(
    method: str, model: str = MODEL, device: str | None = None, precision: str | None = None
) -> NamedMethod:
    """A method of METHODS; model, device, precision: as the options of that name, which a baseline does not take."""
    if method == "model":
        loaded = load(model, device, task="track")
        takes_half(loaded.device, cast(Precision, precision or "auto"))  # refuses another word before anything is read
        begin = partial(loaded.tracker, precision=cast(Precision, precision or "auto"))
        return NamedMethod(begin, model if loaded.trained else f"{model} (untrained)", loaded.trained)
    check_tracker(method)
    if model != MODEL or device is not None or precision is not None:
        raise InputError(f"{method} takes no --model, --device or --precision; leave them out.")
    return NamedMethod(partial(BaselineTracker, method), method, True)


def named_methods(
    methods: Sequence[str], model: str = MODEL, device: str | None = None, precision: str | None = None
) -> dict[str, NamedMethod]:
    """Several methods by what they are called; model, device and precision are of the model among them."""
    chosen, of_model = dict.fromkeys(methods), (model, device, precision)
    found = [named_method(each, *(of_model if each == "model" or "model" not in chosen else ())) for each in chosen]
    return {each.label: each for each in found}
