"""Plan of an ablation: its tables and the runs that fill them; a network of several tables is trained once."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protoformer.errors import InputError, closest_name
from protoformer.io.files import short_repr
from protoformer.training.recipe import Recipe, read_recipe

TASKS = ("flow", "depth")
"""Tasks that the paper ablates."""
Value = str | int | float
DEFAULTS: Mapping[str, Value] = {
    "components": "both",
    "update": "cap",
    "num_iterations": 3,
    "num_prototypes": 100,
    "synchronization": "ls",
    "mixer": "prototypes",
    "spatial_prior": True,
    "model.overrides.flow.cross_image": False,
    "loss.prototype_motion": 0.3,
    "loss.prototype_plane": 0.0,
    "loss.prototype_instances": 0.0,
}
"""Settings that the tables change, with the values of the full system.

They are fields of an `EncoderConfig`, and keys of a recipe (with a dot).
"""
ALL = "all"


@dataclass(frozen=True)
class Variant:
    """A row of a table.

    Attributes:
        label: Label of the row.
        fields: Settings that the row changes, by a name of `DEFAULTS`.
        published: The paper's two scores by task: EPE on Sintel clean and final (pixels) for flow, AbsRel and RMSE
            (meters) on KITTI for depth; empty for a row that is not in the paper.
    """

    label: str
    fields: Mapping[str, Value]
    published: Mapping[str, tuple[float, float]]

    @property
    def is_default(self) -> bool:
        """Whether the row is the full system."""
        return all(DEFAULTS[name] == value for name, value in self.fields.items())


@dataclass(frozen=True)
class AblationTable:
    """A table of the paper, or one that it lacks.

    Attributes:
        name: Name on the command line.
        description: One-line description.
        variants: Its rows.
        tasks: Tasks that it exists for.
    """

    name: str
    description: str
    variants: tuple[Variant, ...]
    tasks: tuple[str, ...] = TASKS


Scores = tuple[float, float]
Row = tuple[str, Value, Scores, Scores] | tuple[str, Value]
"""Label, value of the table's field and, for rows of the paper, its scores of flow and of depth."""
SAME: Mapping[tuple[str, Value], Mapping[str, Value]] = {
    ("components", "cap"): {"synchronization": "none"},
    ("components", "projected cap"): {"synchronization": "projection"},
}
"""Variants that are named by another field: CAP only is synchronization "none", also with an output projection."""


def _table(name: str, description: str, field: str, *rows: Row, tasks: tuple[str, ...] = TASKS) -> AblationTable:
    variants = []
    for label, value, *published in rows:
        fields = SAME.get((field, value), {field: value})
        variants.append(Variant(label, fields, dict(zip(TASKS, published, strict=False))))
    return AblationTable(name, description, tuple(variants), tasks)


_TABLES = (
    _table(
        *("components", "components of the encoder", "components"),
        ("base", "base", (0.55, 0.81), (0.074, 2.835)),
        ("CAP only", "cap", (0.51, 0.74), (0.067, 2.742)),
        ("CAP only, projected", "projected cap"),
        ("LS only", "ls", (0.53, 0.77), (0.071, 2.819)),
        ("CAP and LS", "both", (0.48, 0.69), (0.062, 2.716)),
    ),
    _table(
        *("updates", "update of the prototypes", "update"),
        ("cosine", "cosine", (0.51, 0.75), (0.066, 2.775)),
        ("cross-attention", "cross_attention", (0.50, 0.73), (0.066, 2.767)),
        ("criss-cross", "criss_cross", (0.50, 0.72), (0.065, 2.750)),
        ("k-means", "k_means", (0.49, 0.71), (0.063, 2.743)),
        ("CAP", "cap", (0.48, 0.69), (0.062, 2.716)),
    ),
    _table(
        *("iterations", "number of EM iterations, N", "num_iterations"),
        ("N = 1", 1, (0.52, 0.75), (0.070, 2.801)),
        ("N = 2", 2, (0.49, 0.71), (0.065, 2.737)),
        ("N = 3", 3, (0.48, 0.69), (0.062, 2.716)),
        ("N = 4", 4, (0.48, 0.68), (0.061, 2.713)),
    ),
    _table(
        *("prototypes", "number of prototypes, K", "num_prototypes"),
        ("K = 10", 10, (0.53, 0.78), (0.070, 2.775)),
        ("K = 20", 20),
        ("K = 50", 50, (0.51, 0.73), (0.067, 2.734)),
        ("K = 100", 100, (0.48, 0.69), (0.062, 2.716)),
        ("K = 200", 200, (0.49, 0.71), (0.064, 2.720)),
    ),
    _table(
        *("synchronization", "synchronization of the features", "synchronization"),
        ("none", "none", (0.51, 0.74), (0.067, 2.732)),
        ("FC", "fc", (0.50, 0.73), (0.064, 2.724)),
        ("FC with similarity", "fc_similarity", (0.49, 0.71), (0.063, 2.718)),
        ("LS without the gate", "ungated"),
        ("LS", "ls", (0.48, 0.69), (0.062, 2.716)),
    ),
    _table(
        *("mixer", "layers that mix pixels", "mixer"),
        ("none", "none"),
        ("attention", "attention"),
        ("prototypes", "prototypes"),
    ),
    _table(
        *("prior", "spatial prior of the prototypes", "spatial_prior"),
        ("no prior", False),
        ("prior", True),
    ),
    _table(
        *("motion", "loss of the motion of prototypes, weight", "loss.prototype_motion"),
        *(("0", 0.0), ("0.3", 0.3), ("1", 1.0)),
        tasks=("flow",),
    ),
    _table(
        *("planes", "loss of the planes of prototypes, weight", "loss.prototype_plane"),
        *(("0", 0.0), ("0.3", 0.3), ("1", 1.0)),
        tasks=("depth",),
    ),
    _table(
        *("instances", "loss of the objects of prototypes, weight", "loss.prototype_instances"),
        *(("0", 0.0), ("0.3", 0.3)),
    ),
    _table(
        *("pair", "synchronization across the images of a pair", "model.overrides.flow.cross_image"),
        *(("each alone", False), ("with each other", True)),
        tasks=("flow",),
    ),
)

TABLES: Mapping[str, AblationTable] = {table.name: table for table in _TABLES}


def select_tables(name: str, task: str) -> tuple[AblationTable, ...]:
    """Return the table of this name, or all tables of a task for "all"."""
    tables = {table.name: table for table in TABLES.values() if task in table.tasks}
    if name == ALL:
        return tuple(tables.values())
    if name not in tables:
        raise InputError(
            f"there is no table {name!r} of {task}; the nearest one is {closest_name(name, [*tables, ALL])!r}, and all "
            f"of them are {', '.join(tables)}."
        )
    return (tables[name],)


SETTINGS = (
    # Small images, since many networks share the time of one.
    "data.crop_size=[192, 256]",
    "data.relighting.erase_size=[20, 50]",
    # A short run trains at the peak learning rate for most of its time and decays at the end.
    "schedule.kind=constant",
    "schedule.warm_up=100",
    "schedule.decay=0.3",
    "optimizer.ema_decay=0.99",
    # Validated once, at the end, on more scenes than usual.
    "run.validate_every=0",
    "run.draw_every=0",
    "run.validation_scenes=64",
    "run.checkpoint_minutes=2",
)
"""Changes to a task's recipe on synthetic scenes, applied before the user's settings."""
IRRELEVANT_KEYS = (
    *(("run", name) for name in ("execution", "log_every", "checkpoint_every", "checkpoint_minutes")),
    *(("data", name) for name in ("num_workers", "max_broken_samples")),
)
"""Recipe keys that do not affect the result, so that runs finished on another machine are recognized."""
MIN_RUN_SECONDS = 5
"""Minimum training time of a run."""


@dataclass(frozen=True)
class RunBudget:
    """Length of the runs; exactly one field is set.

    Attributes:
        steps: Steps of each run.
        minutes: Training minutes of all runs together.
        minutes_each: Training minutes of each run.
    """

    steps: int | None = None
    minutes: float | None = None
    minutes_each: float | None = None

    def __post_init__(self) -> None:
        options = {"--steps": self.steps, "--minutes": self.minutes, "--minutes-each": self.minutes_each}
        if sum(value is not None for value in options.values()) != 1:
            raise InputError(
                "runs need a budget; give --minutes for all together, or --minutes-each or --steps for each, and only "
                "one of them."
            )
        for name, value in options.items():
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} is {value:g}, but it must be above 0.")

    def limit_of_each(self, runs: int) -> str:
        """Return the recipe setting that limits each of `runs` runs; time is truncated to whole seconds."""
        if self.minutes is not None:
            name, minutes, sharing = "--minutes", self.minutes, runs
        elif self.minutes_each is not None:
            name, minutes, sharing = "--minutes-each", self.minutes_each, 1
        else:
            return f"run.steps={self.steps}"
        seconds = int(60 * minutes / sharing + 1e-6)
        if seconds < MIN_RUN_SECONDS:
            raise InputError(
                f"{name} {minutes:g} is {60 * minutes / sharing:.1f} seconds for each of {runs} runs; give at least "
                f"{math.ceil(MIN_RUN_SECONDS * sharing / 6) / 10:g}."
            )
        return f"run.minutes={seconds / 60!r}"


@dataclass(frozen=True)
class EvaluationPlan:
    """Evaluation of every run, in addition to the synthetic validation scenes.

    Attributes:
        datasets: Names of the datasets.
        size: (height, width) in pixels at which a forward pass is timed and its operations are counted.
    """

    datasets: tuple[str, ...]
    size: tuple[int, int]


@dataclass(frozen=True)
class PlannedRun:
    """A network to train.

    Attributes:
        key: Hash of everything that affects the result.
        name: Name of its folder.
        seed: Seed of its data and weights.
        recipe: Its recipe.
    """

    key: str
    name: str
    seed: int
    recipe: Recipe


@dataclass(frozen=True)
class AblationPlan:
    """Tables of one task and the runs that fill them.

    Attributes:
        task: flow or depth.
        tables: The tables.
        seeds: Seeds of each variant.
        base: Recipe that variants are changed from.
        evaluation: Evaluation of every run.
        runs: Runs by key.
        keys: Key of a run by (table, label, seed).
    """

    task: str
    tables: tuple[AblationTable, ...]
    seeds: tuple[int, ...]
    base: Recipe
    evaluation: EvaluationPlan
    runs: dict[str, PlannedRun]
    keys: dict[tuple[str, str, int], str]

    def run_keys(self, table: AblationTable, variant: Variant) -> list[str]:
        """Return the keys of a variant's runs, one for each seed."""
        return [self.keys[table.name, variant.label, seed] for seed in self.seeds]


def base_recipe(task: str, preset: str, settings: Sequence[str] = (), *, graph: bool = False) -> Recipe:
    """Build the recipe that variants are changed from.

    Args:
        task: flow or depth.
        preset: Preset of the network.
        settings: The user's settings, which override all others.
        graph: Whether to run steps as CUDA graphs.
    """
    if task not in TASKS:
        raise InputError(f"the paper has no ablation of {short_repr(task)}; choose one of {', '.join(TASKS)}.")
    usual = [f"model.preset={preset}", *_settings(DEFAULTS)]
    speed = ["run.execution=graph"] if graph else []
    recipe = read_recipe(f"{task}-synthetic").changed([*usual, *SETTINGS, *speed, *settings])
    if recipe.run.steps is not None or recipe.run.minutes is not None:
        raise InputError(
            "run.steps and run.minutes are set by --steps, --minutes or --minutes-each; leave them out of --set."
        )
    if recipe.model.init_weights is not None:
        raise InputError("variants are different networks and start from random weights; leave model.init_weights out.")
    if recipe.task != task:
        raise InputError(f"the task is {task}, which --set cannot change to {recipe.task}; give it to --task.")
    return recipe


def plan_ablation(
    tables: tuple[AblationTable, ...], seeds: int, base: Recipe, budget: RunBudget, evaluation: EvaluationPlan
) -> AblationPlan:
    """Plan every variant with consecutive seeds from the base's on; runs of the first seed come first.

    Args:
        tables: Tables to fill.
        seeds: Number of seeds.
        base: Recipe that variants are changed from.
        budget: Length of the runs.
        evaluation: Evaluation of every run.
    """
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}, but it must be 1 or more.")
    numbers = tuple(range(base.data.seed, base.data.seed + seeds))
    entries = {
        (table.name, variant.label, seed): (variant, _recipe(base, variant, seed))
        for seed in numbers
        for table in tables
        for variant in table.variants
    }
    scored_on = [base.run.validation_scenes, list(evaluation.datasets), list(evaluation.size)]
    limit = budget.limit_of_each(len({_key(recipe, scored_on) for _, recipe in entries.values()}))
    runs: dict[str, PlannedRun] = {}
    keys: dict[tuple[str, str, int], str] = {}
    for entry, (variant, recipe) in entries.items():
        recipe = recipe.changed([limit])
        key = _key(recipe, scored_on)
        name = f"{base.task}-{_folder_name(variant)}-seed-{entry[2]}-{key}"
        runs.setdefault(key, PlannedRun(key, name, entry[2], recipe))
        keys[entry] = key
    return AblationPlan(base.task, tables, numbers, base, evaluation, runs, keys)


def _recipe(base: Recipe, variant: Variant, seed: int) -> Recipe:
    """Build a variant's recipe; it has no validation scenes of its own, because runs share them."""
    return base.changed([*_settings(variant.fields), f"data.seed={seed}", "run.validation_scenes=0"])


def _settings(fields: Mapping[str, Value]) -> list[str]:
    """Return settings of a recipe for names and values as in `DEFAULTS`."""
    return [
        f"{name if '.' in name else f'model.overrides.encoder.{name}'}={json.dumps(value)}"
        for name, value in fields.items()
    ]


def _folder_name(variant: Variant) -> str:
    """Describe a variant for the name of its folder."""
    changes = (f"{name.rpartition('.')[2]}-{value}" for name, value in variant.fields.items())
    return "default" if variant.is_default else "-".join(changes)


def _key(recipe: Recipe, scored_on: list[Any]) -> str:
    """Hash everything that affects a run's result, including its evaluation."""
    values, config = recipe.as_dict(), recipe.model.config().as_dict()
    del config["flow"]["min_pixels"]  # affects neither training nor evaluation
    for section, name in IRRELEVANT_KEYS:
        del values[section][name]
    decisive = {
        **{section: values[section] for section in ("task", "data", "optimizer", "schedule", "loss", "run")},
        "model": config,
        "evaluation": scored_on,
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:10]
