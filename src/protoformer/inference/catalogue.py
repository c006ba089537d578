"""What models there are, with the figures people choose by."""

from dataclasses import dataclass

from protoformer.inference.loading import TASKS
from protoformer.inference.weights import packaged_weights
from protoformer.model import PRESETS, build_flow
from protoformer.model.count import operations, parameters, parts
from protoformer.model.flow_decoder import Progress
from protoformer.model.initialization import shapes_alone
from protoformer.model.networks import build_network

LICENCE = "Apache-2.0"
"""Of the code, and of weights unless they have one of their own."""
WEIGHTS_LICENCES = {"depth": "research use, not commercial"}
"""Of weights that learned from data with conditions; their cards say which."""
SIZE = (440, 1024)
"""Height and width at which operations are counted: Sintel's, rounded up to multiples of 8."""


@dataclass(frozen=True)
class ModelEntry:
    """One preset.

    tasks: what it does. default_for: the tasks that load it by their name. networks: parameters of each task's network.
    parameters, parts: all, and of each part, of its flow network. gflops: billions of floating-point operations for the
    flow of a pair of 440x1024 images at `updates` updates. weights: the licence of each task's weights that are in the
    package. licence: of the code.
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
    licence: str


def catalogue(progress: Progress | None = None) -> list[ModelEntry]:
    """Every preset; nothing is computed but shapes."""
    entries = []
    for name in PRESETS:
        entries.append(_entry(name))
        if progress:
            progress(len(entries), len(PRESETS))
    return entries


def _entry(name: str) -> ModelEntry:
    config = PRESETS[name]
    with shapes_alone():
        counts = parts(build_flow(config))
        networks = {task: parameters(build_network(task, config)) for task in TASKS}
    serves = tuple(task for task, preset in TASKS.items() if preset == name)
    return ModelEntry(
        name=name,
        tasks=tuple(TASKS),
        default_for=serves,
        networks=networks,
        parameters=sum(counts.values()),
        parts=counts,
        gflops=round(operations("flow", config, *SIZE) / 1e9, 1),
        updates=config.updates,
        weights={task: WEIGHTS_LICENCES.get(task, LICENCE) for task in serves if packaged_weights(task) is not None},
        licence=LICENCE,
    )
