"""From a name to a model that is ready."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, overload

import torch

from protoformer.errors import InputError
from protoformer.files.short_values import shown
from protoformer.inference.depth import DepthModel
from protoformer.inference.flow import FlowModel
from protoformer.inference.stabilize import StabilizeModel
from protoformer.inference.track import TrackModel
from protoformer.inference.weights import load_weights, packaged_weights
from protoformer.model import PRESETS, preset
from protoformer.model.networks import build_network

TASKS = {"flow": "fast", "depth": "fast", "track": "fast", "stabilize": "fast"}
"""Each task, and the preset that serves it."""
PREDICTORS: dict[str, Callable[[Any, bool, torch.device | None], Any]] = {
    "flow": FlowModel,
    "depth": DepthModel,
    "track": TrackModel,
    "stabilize": StabilizeModel,
}
"""What makes each task's network usable: from the network, whether it is trained, and a device."""
UNTRAINED = (
    "{name} has no trained weights in this version of the package: "
    "it runs with random ones, and its results mean nothing"
)
UNTRAINED_STABILIZE = (
    "{name} has no trained weights in this version of the package: nothing in its warps is learned, they smooth the "
    "trails of a clip as they are"
)
RANDOM = "{name} holds random weights, as they were before any training: its results mean nothing"


class UntrainedWarning(UserWarning):
    """A model was loaded whose weights are random."""


@overload
def load(name: Literal["flow"] = "flow", device: str | torch.device | None = None) -> FlowModel: ...


@overload
def load(name: Literal["depth"], device: str | torch.device | None = None) -> DepthModel: ...


@overload
def load(
    name: str | os.PathLike[str], device: str | torch.device | None = None, *, task: Literal["flow"], **fields: Any
) -> FlowModel: ...


@overload
def load(name: Literal["track"], device: str | torch.device | None = None) -> TrackModel: ...


@overload
def load(
    name: str | os.PathLike[str], device: str | torch.device | None = None, *, task: Literal["track"], **fields: Any
) -> TrackModel: ...


@overload
def load(
    name: str | os.PathLike[str], device: str | torch.device | None = None, *, task: Literal["depth"], **fields: Any
) -> DepthModel: ...


@overload
def load(name: Literal["stabilize"], device: str | torch.device | None = None) -> StabilizeModel: ...


@overload
def load(
    name: str | os.PathLike[str], device: str | torch.device | None = None, *, task: Literal["stabilize"], **fields: Any
) -> StabilizeModel: ...


@overload
def load(
    name: str | os.PathLike[str],
    device: str | torch.device | None = None,
    *,
    task: str | None = None,
    **fields: Any,
) -> Any: ...


def load(
    name: str | os.PathLike[str] = "flow",
    device: str | torch.device | None = None,
    *,
    task: str | None = None,
    **fields: Any,
) -> Any:
    """A model by the name of a task (flow, depth, track, stabilize), of a preset (paper, fast, tiny), or by its file.

    A task brings the weights inside the package. A preset has random weights, always the same ones, and `fields` change
    its configuration: load("paper", prototypes=50). device: "cpu", "cuda", ...; None takes a GPU if there is one.
    task: what the model must do; by default what its name or file says, and flow where that is a preset.
    """
    on, name = None if device is None else checked_device(device), os.fspath(name)
    if task is not None and task not in TASKS:
        raise InputError(f"there is no task {shown(task)}; choose one of {', '.join(TASKS)}.")
    stored = packaged_weights(name) if name in TASKS else Path(name) if name.endswith(".safetensors") else None
    if stored is not None:
        if fields:
            raise InputError(f"{name} has a fixed configuration; change {', '.join(fields)} on a preset instead.")
        found = load_weights(stored)
        _expect_task(name, found.task, task)
        if not found.trained:
            warnings.warn(RANDOM.format(name=name), UntrainedWarning, stacklevel=2)
        return PREDICTORS[found.task](found.network, found.trained, on)
    if name not in TASKS and name not in PRESETS:
        known = ", ".join((*TASKS, *PRESETS))
        raise InputError(f"there is no model {shown(name)}; choose one of {known}, or give a .safetensors file.")
    if name in TASKS:
        _expect_task(name, name, task)
    does = name if name in TASKS else task or "flow"
    config = preset(TASKS.get(name, name), **fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_network(does, config)
    untrained = UNTRAINED_STABILIZE if does == "stabilize" else UNTRAINED
    warnings.warn(untrained.format(name=name), UntrainedWarning, stacklevel=2)
    return PREDICTORS[does](network, False, on)


def _expect_task(name: str, found: str, wanted: str | None) -> None:
    if wanted is not None and found != wanted:
        raise InputError(f"{name} is a model for {found}, not for {wanted}; give one for {wanted}.")


def checked_device(device: str | torch.device) -> torch.device:
    """The device of this name, once it has computed something; fails where there is none."""
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()  # a device may have a name and still not compute
    except (RuntimeError, AssertionError, ImportError, TypeError):
        raise InputError(
            f"the device {shown(device)} is not there; choose cpu, or cuda on a machine with a GPU."
        ) from None
    return chosen
