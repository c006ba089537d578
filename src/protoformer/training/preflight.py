"""Checks before a run: whether a step fits into the memory of a CPU, and whether the samples of own data are usable."""

from dataclasses import replace
from typing import Any

import torch

from protoformer.datasets.registry import open_dataset
from protoformer.errors import InputError
from protoformer.io.memory import describe_memory, free_bytes
from protoformer.models.heads.update import FLOW_STRIDE
from protoformer.synthetic.samples import DepthSample, FlowSample, TrackSequence
from protoformer.training.recipe import Recipe

FIXED_BYTES, LARGE_NETWORK_BYTES = 1150 * 2**20, 250 * 2**20
"""Memory of a run without its activations: program, weights, optimizer, checkpoint and one decoded sample; and
what the preset "paper" needs besides."""
PIXEL_BYTES = {
    "flow": {"tiny": 2000, "fast": 4500, "paper": 16000},
    "depth": {"tiny": 1000, "fast": 1800, "paper": 2500},
    "track": {"tiny": 800, "fast": 1500, "paper": 3000},
    "stabilize": {"tiny": 800, "fast": 1200, "paper": 3000},
}
"""Bytes of activations and gradients in bfloat16 per pixel of a batch, by task and preset. All of "fast", flow with
"tiny", and flow, depth and tracking with "paper" are above what `benchmarks/training_memory.py` measures; the others
were not measured."""
FULL_PRECISION = 1.7
"""Factor of the activations in float32."""
MIN_CROP = 64
"""Smallest side of a crop that is offered, pixels."""
CHECKED_SAMPLES = 20
"""Number of samples of own data, spread over the dataset, that are read before a run."""


def step_bytes(recipe: Recipe) -> int:
    """Estimate the memory of a training step on a CPU in bytes: FIXED_BYTES + PIXEL_BYTES x pixels of a batch."""
    height, width = recipe.data.crop_size
    pixels = height * width
    if recipe.task == "track":  # a sample has a template and a search crop
        config = recipe.model.config().tracking
        pixels = config.template_size**2 + config.search_size**2
    per_pixel = PIXEL_BYTES[recipe.task][recipe.model.preset]
    precision = 1.0 if recipe.run.precision == "bf16" else FULL_PRECISION
    fixed = FIXED_BYTES + (LARGE_NETWORK_BYTES if recipe.model.preset == "paper" else 0)
    return int(fixed + precision * per_pixel * recipe.data.batch_size * pixels)


def check_step_memory(recipe: Recipe, name: str) -> None:
    """Raise `InputError` if a step does not fit into the free memory of the machine, with settings that do.

    Args:
        recipe: Recipe of the run.
        name: Its name, for the message.
    """
    free = free_bytes(torch.device("cpu"))
    if free is None or step_bytes(recipe) <= free:
        return
    batch, (height, width) = recipe.data.batch_size, recipe.data.crop_size
    settings = fitting_settings(recipe, free)
    advice = f"add {' '.join(f'--set {_quote(each)}' for each in settings)}" if settings else "close other programs"
    raise InputError(
        f"a step of {name}, {batch} samples of {width}x{height} pixels, takes about "
        f"{describe_memory(step_bytes(recipe))} of memory and {describe_memory(free)} are free; {advice}."
    )


def fitting_settings(recipe: Recipe, free: int) -> tuple[str, ...]:
    """Return settings with which a step fits into an amount of memory in bytes; empty if there are none.

    The batch is halved first, which changes the result least; only then is the crop made smaller.
    """
    batch = recipe.data.batch_size
    while batch > 1:
        batch //= 2
        if step_bytes(_with(recipe, batch_size=batch)) <= free:
            return (f"data.batch_size={batch}",)
    height, width = recipe.data.crop_size
    while recipe.task != "track" and min(height, width) > MIN_CROP:
        height, width = (max(MIN_CROP, side * 3 // 4 // FLOW_STRIDE * FLOW_STRIDE) for side in (height, width))
        if step_bytes(_with(recipe, batch_size=1, crop_size=(height, width))) <= free:
            return "data.batch_size=1", f"data.crop_size=[{height}, {width}]"
    return ()


def _with(recipe: Recipe, **fields: Any) -> Recipe:
    return replace(recipe, data=replace(recipe.data, **fields))


def _quote(setting: str) -> str:
    return f'"{setting}"' if " " in setting else setting


def check_own_samples(recipe: Recipe) -> None:
    """Read some samples of the own datasets of a recipe; raise `InputError` for the first that cannot be used.

    Published datasets need a folder only.
    """
    if recipe.data.source == "synthetic":
        return
    for name, section in recipe.data.datasets.items():
        if section.root is None and section.weight:
            raise InputError(f"the recipe has no folder for {name}; set data.datasets.{name}.root to it.")
        if not name.startswith("own") or not section.weight or section.root is None:
            continue
        dataset = open_dataset(name, section.root, section.split, **section.options)
        count = min(len(dataset), CHECKED_SAMPLES)
        for index in (number * len(dataset) // count for number in range(count)):
            problem = _find_problem(dataset[index], recipe, name)
            if problem:
                raise InputError(f"{dataset.names[index]} in {section.root} cannot be trained on: {problem}.")


def _find_problem(sample: Any, recipe: Recipe, name: str) -> str:
    """Return why a sample cannot be used for training; empty if it can."""
    if isinstance(sample, TrackSequence):
        return "" if int(sample.present.sum()) else "no frame has a box; add boxes, or remove the clip"
    if isinstance(sample, FlowSample):
        return "" if bool(sample.valid.any()) else "its flow is valid nowhere; check its file"
    if not isinstance(sample, DepthSample):
        return "it has no flow; add a file of its name to the folder flow, or name one in the manifest"
    if sample.intrinsics is None:
        return f"its camera is not known; write fx fy cx cy to camera.txt, or set data.datasets.{name}.options.fov"
    near, far = recipe.loss.min_depth, recipe.loss.max_depth
    if not bool((sample.valid & (sample.depth >= near) & (sample.depth <= far)).any()):
        return f"no depth is between {near:g} and {far:g} m; check the unit of the files"
    return ""
