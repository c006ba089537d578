"""Loading predictors by the name of a task, of a preset or of a weights file, and the list of models."""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast, overload

import torch

from protoformer.depth.predictor import DepthPredictor
from protoformer.errors import InputError, UntrainedWarning
from protoformer.explain.result import Explanation
from protoformer.flow.predictor import FlowPredictor
from protoformer.io.files import short_repr
from protoformer.io.image_input import ImageLike
from protoformer.models.config import PRESETS, preset
from protoformer.models.encoder import Encoder
from protoformer.models.heads.flow import build_flow
from protoformer.models.heads.stabilization import REGRESSORS
from protoformer.models.layers import meta_init
from protoformer.models.networks import build_network
from protoformer.models.pretrained import load_weights, packaged_weights
from protoformer.models.profiling import count_operations, count_parameters, count_parts
from protoformer.models.runtime import Precision, ProgressCallback, use_half_precision
from protoformer.stabilization.predictor import StabilizationPredictor
from protoformer.tracking.baselines import TRACKERS, BaselineTracker, check_tracker
from protoformer.tracking.predictor import TrackingPredictor
from protoformer.tracking.video import TrackMethod

TASKS = {"flow": "fast", "depth": "fast", "track": "fast", "stabilize": "fast"}
"""Each task, and the preset that serves it."""
PREDICTORS: dict[str, Callable[[Any, bool, torch.device | None], Any]] = {
    "flow": FlowPredictor,
    "depth": DepthPredictor,
    "track": TrackingPredictor,
    "stabilize": StabilizationPredictor,
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


class Predictor:
    """All tasks behind one object: `flow`, `depth`, `track`, `stabilize` and `explain`.

    Each task is a predictor of its own, loaded when it is first used: `model.flow(frame1, frame2)` or
    `model.flow.flow_video("clip.mp4")`. Packaged weights come from separate trainings: stabilization uses
    the encoder of flow, depth and tracking have encoders of their own. `encoders` has those that are loaded.
    """

    def __init__(self, device: str | torch.device | None = None) -> None:
        """Load nothing yet.

        Args:
            device: "cpu", "cuda", ...; None takes a GPU if there is one.
        """
        self._device = None if device is None else checked_device(device)

    @cached_property
    def flow(self) -> FlowPredictor:
        """Optical flow between two images, or of a video."""
        return load("flow", self._device)

    @cached_property
    def depth(self) -> DepthPredictor:
        """Metric depth of an image, or of a video."""
        return load("depth", self._device)

    @cached_property
    def track(self) -> TrackingPredictor:
        """Boxes of targets through a video."""
        return load("track", self._device)

    @cached_property
    def stabilize(self) -> StabilizationPredictor:
        """A stabilized video."""
        return load("stabilize", self._device)

    def explain(self, image: ImageLike, second: ImageLike | None = None) -> Explanation:
        """Show what the prototypes of the flow network stand for.

        Args:
            image: A path, array, tensor or PIL image.
            second: Another image of the same size; then groups have a motion, and those of both images are matched.

        Returns:
            The prototypes of every layer, with their pixels.
        """
        return self.flow.explain(image, second)

    @property
    def encoders(self) -> dict[str, Encoder]:
        """The encoder of each task that is loaded, by the name of the task."""
        loaded = {task: self.__dict__[task] for task in TASKS if task in self.__dict__}
        encoders = {task: getattr(predictor.network, "features", None) for task, predictor in loaded.items()}
        return {task: encoder for task, encoder in encoders.items() if encoder is not None}

    def __repr__(self) -> str:
        loaded = [task for task in TASKS if task in self.__dict__]
        return f"Predictor({', '.join(TASKS)}; loaded: {', '.join(loaded) or 'none yet'})"


@overload
def load(name: None = None, device: str | torch.device | None = None) -> Predictor: ...


@overload
def load(name: Literal["flow"], device: str | torch.device | None = None) -> FlowPredictor: ...


@overload
def load(name: Literal["depth"], device: str | torch.device | None = None) -> DepthPredictor: ...


@overload
def load(
    name: str | os.PathLike[str], device: str | torch.device | None = None, *, task: Literal["flow"], **fields: Any
) -> FlowPredictor: ...


@overload
def load(name: Literal["track"], device: str | torch.device | None = None) -> TrackingPredictor: ...


@overload
def load(
    name: str | os.PathLike[str], device: str | torch.device | None = None, *, task: Literal["track"], **fields: Any
) -> TrackingPredictor: ...


@overload
def load(
    name: str | os.PathLike[str], device: str | torch.device | None = None, *, task: Literal["depth"], **fields: Any
) -> DepthPredictor: ...


@overload
def load(name: Literal["stabilize"], device: str | torch.device | None = None) -> StabilizationPredictor: ...


@overload
def load(
    name: str | os.PathLike[str], device: str | torch.device | None = None, *, task: Literal["stabilize"], **fields: Any
) -> StabilizationPredictor: ...


@overload
def load(
    name: str | os.PathLike[str],
    device: str | torch.device | None = None,
    *,
    task: str | None = None,
    **fields: Any,
) -> Any: ...


def load(
    name: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    *,
    task: str | None = None,
    **fields: Any,
) -> Any:
    """Load a predictor.

    Args:
        name: A task (flow, depth, track, stabilize), which brings the packaged weights; a preset (paper, fast, tiny),
            whose weights are random, always the same ones; or a .safetensors file. None: all tasks in one `Predictor`.
        device: "cpu", "cuda", ...; None takes a GPU if there is one.
        task: What the predictor must do; by default what its name or file says, and flow for a preset.
        **fields: Changes to the configuration of a preset, such as `prototypes=50`.

    Returns:
        The predictor of the task, or a `Predictor` of all tasks.

    Raises:
        InputError: If there is no such model or device, or the file cannot be used.
    """
    if name is None:
        if task is not None or fields:
            raise InputError("a task or changes to a configuration need the name of a model; give one.")
        return Predictor(device)
    on, name = None if device is None else checked_device(device), os.fspath(name)
    if task is not None and task not in TASKS:
        raise InputError(f"there is no task {short_repr(task)}; choose one of {', '.join(TASKS)}.")
    stored = packaged_weights(name) if name in TASKS else Path(name) if name.endswith(".safetensors") else None
    if stored is not None:
        if fields:
            raise InputError(f"{name} has a fixed configuration; change {', '.join(fields)} on a preset instead.")
        weights = load_weights(stored)
        _expect_task(name, weights.task, task)
        if not weights.trained:
            warnings.warn(RANDOM.format(name=name), UntrainedWarning, stacklevel=2)
        return PREDICTORS[weights.task](weights.network, weights.trained, on)
    if name not in TASKS and name not in PRESETS:
        known = ", ".join((*TASKS, *PRESETS))
        raise InputError(f"there is no model {short_repr(name)}; choose one of {known}, or give a .safetensors file.")
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


def _expect_task(name: str, actual: str, wanted: str | None) -> None:
    if wanted is not None and actual != wanted:
        raise InputError(f"{name} is a model for {actual}, not for {wanted}; give one for {wanted}.")


def checked_device(device: str | torch.device) -> torch.device:
    """The device of this name, once it has computed something; fails where there is none."""
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()  # a device may have a name and still not compute
    except (RuntimeError, AssertionError, ImportError, TypeError):
        raise InputError(
            f"the device {short_repr(device)} is not there; choose cpu, or cuda on a machine with a GPU."
        ) from None
    return chosen


LICENSE = "Apache-2.0"
"""Of the code, and of weights unless they have one of their own."""
WEIGHTS_LICENSES = {"depth": "research use, not commercial"}
"""Of weights that learned from data with conditions; their cards say which."""
SIZE = (440, 1024)
"""Height and width at which operations are counted: Sintel's, rounded up to multiples of 8."""


@dataclass(frozen=True)
class ModelEntry:
    """One preset.

    tasks: what it does. default_for: the tasks that load it by their name. networks: parameters of each task's network.
    parameters, parts: all, and of each part, of its flow network. gflops: billions of floating-point operations for the
    flow of a pair of 440x1024 images at `updates` updates. weights: the license of each task's weights that are in the
    package. license: of the code.
    """

    name: str
    tasks: tuple[str, ...]
    default_for: tuple[str, ...]
    networks: dict[str, int]
    parameters: int
    parts: dict[str, int]
    gflops: float
    updates: int
    weights: dict[str, str]
    license: str


def list_models(progress: ProgressCallback | None = None) -> list[ModelEntry]:
    """Every preset; nothing is computed but shapes."""
    entries = []
    for name in PRESETS:
        entries.append(_entry(name))
        if progress:
            progress(len(entries), len(PRESETS))
    return entries


def _entry(name: str) -> ModelEntry:
    config = PRESETS[name]
    with meta_init():
        counts = count_parts(build_flow(config))
        networks = {task: count_parameters(build_network(task, config)) for task in TASKS}
    serves = tuple(task for task, preset in TASKS.items() if preset == name)
    return ModelEntry(
        name=name,
        tasks=tuple(TASKS),
        default_for=serves,
        networks=networks,
        parameters=sum(counts.values()),
        parts=counts,
        gflops=round(count_operations("flow", config, *SIZE) / 1e9, 1),
        updates=config.updates,
        weights={task: WEIGHTS_LICENSES.get(task, LICENSE) for task in serves if packaged_weights(task) is not None},
        license=LICENSE,
    )


TRACKING_METHODS = ("model", *TRACKERS)
TRACKING_MODEL = "track"
"""The model that is loaded where nobody names one."""


@dataclass(frozen=True)
class NamedMethod:
    """begin: what follows boxes from a first frame on. label: what to call it. trained: whether its weights are, if it
    has any.
    """

    begin: TrackMethod
    label: str
    trained: bool


def load_method(
    method: str, model: str = TRACKING_MODEL, device: str | None = None, precision: str | None = None
) -> NamedMethod:
    """A method of METHODS; model, device, precision: as the options of that name, which a baseline does not take."""
    if method == "model":
        loaded = load(model, device, task="track")
        use_half_precision(
            loaded.device, cast(Precision, precision or "auto")
        )  # refuses another word before anything is read
        begin = partial(loaded.tracker, precision=cast(Precision, precision or "auto"))
        return NamedMethod(begin, model if loaded.trained else f"{model} (untrained)", loaded.trained)
    check_tracker(method)
    if model != TRACKING_MODEL or device is not None or precision is not None:
        raise InputError(f"{method} takes no --model, --device or --precision; leave them out.")
    return NamedMethod(partial(BaselineTracker, method), method, True)


def load_methods(
    methods: Sequence[str], model: str = TRACKING_MODEL, device: str | None = None, precision: str | None = None
) -> dict[str, NamedMethod]:
    """Several methods by what they are called; model, device and precision are of the model among them."""
    chosen, of_model = dict.fromkeys(methods), (model, device, precision)
    loaded = [load_method(each, *(of_model if each == "model" or "model" not in chosen else ())) for each in chosen]
    return {each.label: each for each in loaded}


STABILIZATION_MODEL = "stabilize"
"""The model that is loaded where nobody names one."""


def load_stabilizer(
    model: str = STABILIZATION_MODEL, regressor: str | None = None, device: str | None = None
) -> StabilizationPredictor:
    """A model by its name or file. regressor: the one it must have; None takes the model's own.

    The package's model of another regressor than its usual one lies in a file of its own, or else is not trained.
    """
    if regressor is not None and regressor not in REGRESSORS:
        raise InputError(f"there is no regressor {regressor!r}; choose one of {', '.join(REGRESSORS)}.")
    if model == STABILIZATION_MODEL and regressor == "grid":
        stored = packaged_weights(f"{STABILIZATION_MODEL}-grid")
        if stored is None:
            return load("fast", device, task="stabilize", regressor="grid")
        return load(stored, device, task="stabilize")
    loaded = load(model, device, task="stabilize")
    own = loaded.network.config.regressor
    if regressor is not None and own != regressor:
        raise InputError(f"{model} has the regressor {own}, not {regressor}; ask for {own}, or give another model.")
    return loaded


def live_regressor(model: str) -> str | None:
    """What to ask a model for where frames are decided live: the package's for its grid, others for what they have."""
    return "grid" if model == STABILIZATION_MODEL else None
