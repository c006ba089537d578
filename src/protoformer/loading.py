"""Loading predictors by the name of a task, of a preset or of a weights file, and the list of models."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self, cast, overload

import torch

from protoformer.depth.predictor import DepthPredictor
from protoformer.depth.video import DepthVideo
from protoformer.errors import InputError, UntrainedWarning
from protoformer.explain.result import Explanation
from protoformer.explain.video import PrototypeVideo
from protoformer.flow.predictor import FlowPredictor
from protoformer.flow.video import FlowVideo
from protoformer.io.files import short_repr
from protoformer.io.image_input import ImageLike
from protoformer.models.config import PRESETS, REGRESSORS, TASKS, preset
from protoformer.models.encoder import Encoder
from protoformer.models.pretrained import packaged_weights
from protoformer.models.profiling import count_operations, count_parameters, count_parts
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.models.runtime import Precision, ProgressCallback, checked_device, meta_init, use_half_precision
from protoformer.segmentation.predictor import SegmentationPredictor
from protoformer.stabilization.online import StabilizedVideo
from protoformer.stabilization.predictor import StabilizationPredictor
from protoformer.tracking.baselines import TRACKERS, BaselineTracker, check_tracker
from protoformer.tracking.predictor import TrackingPredictor
from protoformer.tracking.result import Boxes
from protoformer.tracking.video import TrackMethod, TrackVideo
from protoformer.video.clip import Source

DEFAULT_PRESET = "fast"
"""Preset of the packaged weights of every task."""
PREDICTORS: dict[str, type[Any]] = {
    "flow": FlowPredictor,
    "depth": DepthPredictor,
    "track": TrackingPredictor,
    "stabilize": StabilizationPredictor,
}
"""Predictor of each task, built from a network, whether it is trained, a device and a precision."""
NO_WEIGHTS = (
    "{name} has no trained weights in this version of the package: the weights are random and the results mean nothing"
)
NO_STABILIZATION_WEIGHTS = (
    "{name} has no trained weights in this version of the package: camera motion is smoothed without a learned warp"
)
RANDOM_WEIGHTS = "{name} holds random weights, saved before any training: the results mean nothing"


class Predictor:
    """All tasks behind one object: `flow`, `depth`, `track`, `stabilize`, `segment` and `explain`.

    `model(frame1, frame2)` is `model.flow(frame1, frame2)`, and `model(image)` is `model.depth(image)`.

    Each task is a predictor of its own, loaded when it is first used: `model.flow(frame1, frame2)` or
    `model.flow.flow_video("clip.mp4")`. Packaged weights come from separate trainings: stabilization uses
    the encoder of flow, depth and tracking have encoders of their own. `encoders` has those that are loaded.

    Args:
        device: "cpu", "cuda", ...; None takes a GPU if there is one.
        network: A network with heads for several tasks; None loads the packaged weights of each task.
        precision: As in `load`.
    """

    def __init__(
        self,
        device: str | torch.device | None = None,
        network: ProtoFormer | None = None,
        precision: Precision | None = None,
    ) -> None:
        self._device = None if device is None else checked_device(device)
        self._network, self._precision = network, precision

    def __call__(self, image: Any, second: Any = None, **options: Any) -> Any:
        """Predict the flow of two images, or the depth of one; lists and batches as for `flow` and `depth`."""
        return self.depth(image, **options) if second is None else self.flow(image, second, **options)

    def to(self, device: str | torch.device) -> Self:
        """Move the predictors of all tasks to another device, such as "cuda", in place; returns the predictor."""
        self._device = checked_device(device)
        for task in (*TASKS, "segment"):
            if task in self.__dict__:
                self.__dict__[task].to(self._device)
        return self

    @cached_property
    def flow(self) -> FlowPredictor:
        """Optical flow between two images, or of a video."""
        return cast(FlowPredictor, self._load("flow"))

    @cached_property
    def depth(self) -> DepthPredictor:
        """Metric depth of an image, or of a video."""
        return cast(DepthPredictor, self._load("depth"))

    @cached_property
    def track(self) -> TrackingPredictor:
        """Boxes of targets through a video."""
        return cast(TrackingPredictor, self._load("track"))

    @cached_property
    def stabilize(self) -> StabilizationPredictor:
        """A stabilized video."""
        return cast(StabilizationPredictor, self._load("stabilize"))

    @cached_property
    def segment(self) -> SegmentationPredictor:
        """Masks of what moves on its own in a video, by the flow network."""
        return SegmentationPredictor(self.flow.network, self.flow.trained, self.flow.device, self._precision)

    def explain(self, image: ImageLike, second: ImageLike | None = None) -> Explanation:
        """Explain the prototypes of the flow network.

        Args:
            image: A path, array, tensor or PIL image.
            second: Another image of the same size; then groups have a motion, and those of both images are matched.

        Returns:
            The prototypes of every layer, with their pixels.
        """
        return self.flow.explain(image, second)

    def flow_video(self, source: Source, **options: Any) -> FlowVideo:
        """Predict the flow along a video; see `FlowPredictor.flow_video`."""
        return self.flow.flow_video(source, **options)

    def depth_video(self, source: Source, **options: Any) -> DepthVideo:
        """Predict the depth of every frame of a video; see `DepthPredictor.depth_video`."""
        return self.depth.depth_video(source, **options)

    def track_video(self, source: Source, box: Boxes, **options: Any) -> TrackVideo:
        """Track targets frame by frame; see `TrackingPredictor.track_video`."""
        return self.track.track_video(source, box, **options)

    def stabilize_video(self, source: Source, **options: Any) -> StabilizedVideo:
        """Stabilize a video frame by frame; see `StabilizationPredictor.stabilize_video`."""
        return self.stabilize.stabilize_video(source, **options)

    def explain_video(self, source: Source, **options: Any) -> PrototypeVideo:
        """Compute the prototypes of every frame of a video; see `FlowPredictor.explain_video`."""
        return self.flow.explain_video(source, **options)

    @property
    def encoders(self) -> dict[str, Encoder]:
        """The encoder of each task that is loaded, by the name of the task."""
        return {task: predictor.network.encoder_of(task) for task, predictor in self._loaded().items()}

    def _loaded(self) -> dict[str, Any]:
        return {task: self.__dict__[task] for task in TASKS if task in self.__dict__}

    def _load(self, task: str) -> Any:
        if self._network is None:
            return load(task, self._device, precision=self._precision)
        if task not in self._network.tasks:
            raise InputError(f"these weights are for {', '.join(self._network.tasks)}, not for {task}.")
        return PREDICTORS[task](self._network, self._network.trained, self._device, precision=self._precision)

    def __repr__(self) -> str:
        loaded = list(self._loaded())
        tasks = TASKS if self._network is None else self._network.tasks
        tasks = (*tasks, "segment") if "flow" in tasks else tasks
        return f"Predictor({', '.join(tasks)}; loaded: {', '.join(loaded) or 'none yet'})"


@overload
def load(
    name: None = None,
    device: str | torch.device | None = None,
    *,
    precision: Precision | None = None,
) -> Predictor: ...


@overload
def load(
    name: Literal["flow"],
    device: str | torch.device | None = None,
    *,
    precision: Precision | None = None,
) -> FlowPredictor: ...


@overload
def load(
    name: str | os.PathLike[str],
    device: str | torch.device | None = None,
    *,
    task: Literal["flow"],
    precision: Precision | None = None,
    **sections: Any,
) -> FlowPredictor: ...


@overload
def load(
    name: Literal["segment"],
    device: str | torch.device | None = None,
    *,
    precision: Precision | None = None,
) -> SegmentationPredictor: ...


@overload
def load(
    name: str | os.PathLike[str],
    device: str | torch.device | None = None,
    *,
    task: Literal["segment"],
    precision: Precision | None = None,
    **sections: Any,
) -> SegmentationPredictor: ...


@overload
def load(
    name: Literal["depth"],
    device: str | torch.device | None = None,
    *,
    precision: Precision | None = None,
) -> DepthPredictor: ...


@overload
def load(
    name: str | os.PathLike[str],
    device: str | torch.device | None = None,
    *,
    task: Literal["depth"],
    precision: Precision | None = None,
    **sections: Any,
) -> DepthPredictor: ...


@overload
def load(
    name: Literal["track"],
    device: str | torch.device | None = None,
    *,
    precision: Precision | None = None,
) -> TrackingPredictor: ...


@overload
def load(
    name: str | os.PathLike[str],
    device: str | torch.device | None = None,
    *,
    task: Literal["track"],
    precision: Precision | None = None,
    **sections: Any,
) -> TrackingPredictor: ...


@overload
def load(
    name: Literal["stabilize"],
    device: str | torch.device | None = None,
    *,
    precision: Precision | None = None,
) -> StabilizationPredictor: ...


@overload
def load(
    name: str | os.PathLike[str],
    device: str | torch.device | None = None,
    *,
    task: Literal["stabilize"],
    precision: Precision | None = None,
    **sections: Any,
) -> StabilizationPredictor: ...


@overload
def load(
    name: str | os.PathLike[str],
    device: str | torch.device | None = None,
    *,
    task: str | None = None,
    precision: Precision | None = None,
    **sections: Any,
) -> Any: ...


def load(
    name: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    *,
    task: str | None = None,
    precision: Precision | None = None,
    **sections: Any,
) -> Any:
    """Load a predictor.

    Args:
        name: A task (flow, depth, track, stabilize, segment), which loads packaged weights; a preset (paper, fast,
            tiny), whose weights are random, always the same ones; or a .safetensors file. None: all tasks in one
            `Predictor`.
        device: "cpu", "cuda", ...; None takes a CUDA GPU if there is one. "mps" runs in float32.
        task: Task of the predictor; by default that of the name or file, and flow for a preset.
        precision: Precision of calls that give none: "full" is float32, "half" computes matrix products in bfloat16,
            "auto" uses "half" on devices that accelerate it. None: "full" for the flow of image pairs, else "auto".
        **sections: Changes to the configuration of a preset, such as `encoder={"num_prototypes": 50}`.

    Returns:
        The predictor of the task, or a `Predictor` of all tasks.

    Raises:
        InputError: If there is no such model or device, or the file cannot be used.
    """
    if name is None:
        if task is not None or sections:
            raise InputError("a task or changes to a configuration need the name of a model; give one.")
        return Predictor(device, precision=precision)
    device, name = None if device is None else checked_device(device), os.fspath(name)
    if "segment" in (name, task):
        if name == "segment" and task not in (None, "segment"):
            raise InputError(f"{name} is a model for {name}, not for {task}; give one for {task}.")
        flow = load("flow" if name == "segment" else name, device, task="flow", precision=precision, **sections)
        return SegmentationPredictor(flow.network, flow.trained, device, precision)
    if task is not None and task not in TASKS:
        raise InputError(f"there is no task {short_repr(task)}; choose one of {', '.join((*TASKS, 'segment'))}.")
    path = packaged_weights(name) if name in TASKS else Path(name) if name.endswith(".safetensors") else None
    if path is not None:
        if sections:
            raise InputError(f"{name} has a fixed configuration; change {', '.join(sections)} on a preset instead.")
        network = ProtoFormer.load_weights(path)
        if task is not None and task not in network.tasks:
            raise InputError(f"{name} is a model for {', '.join(network.tasks)}, not for {task}; give one for {task}.")
        if not network.trained:
            warnings.warn(RANDOM_WEIGHTS.format(name=name), UntrainedWarning, stacklevel=2)
        if task is None and len(network.tasks) > 1:
            return Predictor(device, network, precision)
        return PREDICTORS[task or network.tasks[0]](network, network.trained, device, precision=precision)
    if name not in TASKS and name not in PRESETS:
        known = ", ".join((*TASKS, "segment", *PRESETS))
        raise InputError(f"there is no model {short_repr(name)}; choose one of {known}, or give a .safetensors file.")
    if name in TASKS and task not in (None, name):
        raise InputError(f"{name} is a model for {name}, not for {task}; give one for {task}.")
    task = name if name in TASKS else task or "flow"
    config = preset(DEFAULT_PRESET if name in TASKS else name, **sections)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_network(config, task)
    message = NO_STABILIZATION_WEIGHTS if task == "stabilize" else NO_WEIGHTS
    warnings.warn(message.format(name=name), UntrainedWarning, stacklevel=2)
    return PREDICTORS[task](network, False, device, precision=precision)


LICENSE = "Apache-2.0"
"""License of the code, and of weights that have no license of their own."""
WEIGHTS_LICENSES = {"depth": "research use, not commercial"}
"""Licenses of weights that were trained on data with conditions; the model cards name these."""
SIZE = (440, 1024)
"""Height and width at which operations are counted: those of Sintel, rounded up to multiples of 8."""


@dataclass(frozen=True)
class ModelEntry:
    """Figures of one preset.

    Attributes:
        name: Name of the preset.
        tasks: Tasks that it can be built for.
        default_for: Tasks whose packaged weights use it.
        networks: Number of parameters of each task's network.
        parameters: Number of parameters of the flow network.
        parts: Number of parameters of each part of the flow network.
        gflops: Billions of floating-point operations for the flow of a pair of 440x1024 images with `num_updates`.
        num_updates: Number of recurrent updates in evaluation.
        weights: License of each task's packaged weights.
        license: License of the code.
    """

    name: str
    tasks: tuple[str, ...]
    default_for: tuple[str, ...]
    networks: dict[str, int]
    parameters: int
    parts: dict[str, int]
    gflops: float
    num_updates: int
    weights: dict[str, str]
    license: str


def list_models(progress: ProgressCallback | None = None) -> list[ModelEntry]:
    """List all presets; only shapes are computed."""
    entries = []
    for name in PRESETS:
        entries.append(_entry(name))
        if progress:
            progress(len(entries), len(PRESETS))
    return entries


def _entry(name: str) -> ModelEntry:
    config = PRESETS[name]
    with meta_init():
        counts = count_parts(build_network(config, "flow"))
        networks = {task: count_parameters(build_network(config, task)) for task in TASKS}
    default_for = TASKS if name == DEFAULT_PRESET else ()
    return ModelEntry(
        name=name,
        tasks=TASKS,
        default_for=default_for,
        networks=networks,
        parameters=sum(counts.values()),
        parts=counts,
        gflops=round(count_operations("flow", config, *SIZE) / 1e9, 1),
        num_updates=config.flow.num_updates,
        weights={
            task: WEIGHTS_LICENSES.get(task, LICENSE) for task in default_for if packaged_weights(task) is not None
        },
        license=LICENSE,
    )


TRACKING_METHODS = ("model", *TRACKERS)
TRACKING_MODEL = "track"
"""Default model of the command line."""


@dataclass(frozen=True)
class NamedMethod:
    """A tracker that can be started on a first frame.

    Attributes:
        begin: Initializes the tracker with a frame and boxes.
        label: Name in tables.
        trained: Whether its weights are trained; True for trackers without weights.
    """

    begin: TrackMethod
    label: str
    trained: bool


def load_method(
    method: str, model: str = TRACKING_MODEL, device: str | None = None, precision: str | None = None
) -> NamedMethod:
    """Load a method of `TRACKING_METHODS`; the other arguments are for the method "model" only."""
    if method == "model":
        loaded = load(model, device, task="track")
        use_half_precision(loaded.device, cast(Precision, precision or "auto"))  # check it before any video is read
        begin = partial(loaded.tracker, precision=cast(Precision, precision or "auto"))
        return NamedMethod(begin, model if loaded.trained else f"{model} (untrained)", loaded.trained)
    check_tracker(method)
    if model != TRACKING_MODEL or device is not None or precision is not None:
        raise InputError(f"{method} takes no --model, --device or --precision; leave them out.")
    return NamedMethod(partial(BaselineTracker, method), method, True)


def load_methods(
    methods: Sequence[str], model: str = TRACKING_MODEL, device: str | None = None, precision: str | None = None
) -> dict[str, NamedMethod]:
    """Load several methods, by label; model, device and precision are those of the method "model"."""
    options = (model, device, precision)
    loaded = [
        load_method(method, *(options if method == "model" or "model" not in methods else ()))
        for method in dict.fromkeys(methods)
    ]
    return {method.label: method for method in loaded}


STABILIZATION_MODEL = "stabilize"
"""Default model of the command line."""


def load_stabilizer(
    model: str = STABILIZATION_MODEL, regressor: str | None = None, device: str | None = None
) -> StabilizationPredictor:
    """Load a stabilizer by name or file.

    Args:
        model: As in `load`.
        regressor: Required regressor; None accepts that of the model. The package has a file for each.
        device: As in `load`.
    """
    if regressor is not None and regressor not in REGRESSORS:
        raise InputError(f"there is no regressor {regressor!r}; choose one of {', '.join(REGRESSORS)}.")
    if model == STABILIZATION_MODEL and regressor == "grid":
        path = packaged_weights(f"{STABILIZATION_MODEL}-grid")
        if path is None:
            return load("fast", device, task="stabilize", stabilization={"regressor": "grid"})
        return load(path, device, task="stabilize")
    loaded = load(model, device, task="stabilize")
    own = loaded.network.config.stabilization.regressor
    if regressor is not None and own != regressor:
        raise InputError(f"{model} has the regressor {own}, not {regressor}; choose {own}, or give another model.")
    return loaded


def live_regressor(model: str) -> str | None:
    """Return the regressor for online stabilization: "grid" of the packaged model; other models keep their own."""
    return "grid" if model == STABILIZATION_MODEL else None
