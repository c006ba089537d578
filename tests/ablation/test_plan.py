"""The paper's tables, those that it lacks, and the runs that fill them."""

import dataclasses
from collections.abc import Callable

import pytest
import torch

from protoformer.ablation.plan import (
    DEFAULTS,
    TABLES,
    TASKS,
    AblationPlan,
    AblationTable,
    EvaluationPlan,
    RunBudget,
    base_recipe,
    plan_ablation,
    select_tables,
)
from protoformer.errors import InputError
from protoformer.models.config import preset
from protoformer.models.profiling import count_parameters
from protoformer.models.protoformer import build_network

EVALUATION = EvaluationPlan((), (64, 64))
PAPER = ("components", "updates", "iterations", "prototypes", "synchronization")


def plan_of(
    name: str = "all",
    *settings: str,
    task: str = "flow",
    seeds: int = 1,
    budget: RunBudget | None = None,
    evaluation: EvaluationPlan = EVALUATION,
) -> AblationPlan:
    base = base_recipe(task, "tiny", settings)
    return plan_ablation(select_tables(name, task), seeds, base, budget or RunBudget(steps=2), evaluation)


def sizes(task: str) -> dict[str, dict[str, int]]:
    """Parameters of every variant's network, by table and label."""
    plan = plan_of(task=task)
    configs = {key: run.recipe.model.config() for key, run in plan.runs.items()}
    with torch.device("meta"):
        found = {key: count_parameters(build_network(config, task)) for key, config in configs.items()}
    return {
        table.name: {variant.label: found[plan.keys[table.name, variant.label, 0]] for variant in table.variants}
        for table in plan.tables
    }


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_a_table_has_the_full_system_once_as_the_paper_measured_it(table: AblationTable) -> None:
    (full,) = (variant for variant in table.variants if variant.is_default)
    in_paper = [variant for variant in table.variants if variant.published]
    if table.name not in PAPER:
        assert in_paper == []
        return
    assert full.published == {"flow": (0.48, 0.69), "depth": (0.062, 2.716)}
    for task in TASKS:  # so that the paper's order can be read from the second figure
        assert len({variant.published[task][1] for variant in in_paper}) == len(in_paper) >= 4


@pytest.mark.parametrize("task", TASKS)
def test_variants_have_the_parameters_of_the_parts_that_they_have(task: str) -> None:
    found = sizes(task)
    base, cap, ls, both = (found["components"][label] for label in ("base", "CAP only", "LS only", "CAP and LS"))
    assert base < cap < both and base < ls
    assert both - ls == cap - base  # those of prototyping
    synchronized = list(found["synchronization"].values())
    assert synchronized == sorted(set(synchronized)) and (synchronized[0], synchronized[-1]) == (cap, both)
    for name in ("updates", "iterations", "prototypes"):  # prototypes are pooled, and the steps share their weights
        assert set(found[name].values()) == {both}


def test_a_variant_differs_from_the_full_system_in_what_it_says() -> None:
    plan = plan_of("updates")
    for variant in TABLES["updates"].variants:
        config = plan.runs[plan.keys["updates", variant.label, 0]].recipe.model.config()
        defaults = {name: value for name, value in DEFAULTS.items() if "." not in name}
        assert config == preset("tiny", encoder={**defaults, **variant.fields})


def test_tables_that_the_paper_lacks_change_one_setting() -> None:
    plan = plan_of()
    recipes = {
        (table, label): plan.runs[plan.keys[table, label, 0]].recipe for table, label, seed in plan.keys if seed == 0
    }
    full = recipes["mixer", "prototypes"]
    assert (full.loss.prototype_motion, full.model.config().encoder.spatial_prior) == (0.3, True)
    assert recipes["mixer", "attention"].model.config().encoder.mixer == "attention"
    assert not recipes["prior", "no prior"].model.config().encoder.spatial_prior
    assert recipes["pair", "with each other"].model.config().flow.cross_image
    assert recipes["motion", "0"].loss == dataclasses.replace(full.loss, prototype_motion=0.0)
    assert recipes["instances", "0.3"].loss == dataclasses.replace(full.loss, prototype_instances=0.3)
    assert recipes["components", "CAP only, projected"].model.config().encoder.synchronization == "projection"


def test_tables_of_one_task_are_not_planned_for_the_other() -> None:
    names = {task: {table.name for table in select_tables("all", task)} for task in TASKS}
    assert names["flow"] - names["depth"] == {"motion", "pair"} and names["depth"] - names["flow"] == {"planes"}
    with pytest.raises(InputError, match="there is no table 'pair' of depth"):
        select_tables("pair", "depth")


def test_a_network_that_stands_in_several_tables_is_trained_once() -> None:
    plan = plan_of()
    assert (len(plan.keys), len(plan.runs)) == (36, 26)
    full = {
        plan.keys[table.name, variant.label, 0]
        for table in plan.tables
        for variant in table.variants
        if variant.is_default
    }
    assert len(full) == 1
    assert plan.keys["components", "CAP only", 0] == plan.keys["synchronization", "none", 0]
    both = preset("tiny", encoder={"components": "cap"}), preset("tiny", encoder={"synchronization": "none"})
    one, other = (str(build_network(config, "flow")) for config in both)
    assert one == other  # nothing is lost by calling it by the other name
    for table in plan.tables:  # whichever of them are asked for
        alone = plan_of(table.name).runs
        assert {run.name for run in alone.values()} < {run.name for run in plan.runs.values()}


def test_every_variant_sees_the_same_data_for_the_same_time() -> None:
    plan = plan_of(seeds=2, budget=RunBudget(minutes=13))
    assert (len(plan.runs), plan.seeds) == (52, (0, 1))
    for run in plan.runs.values():
        assert run.recipe.data == plan.runs[plan.keys["components", "base", run.seed]].recipe.data
        assert run.recipe.data.seed == run.seed and run.recipe.run.minutes == 15 / 60
        assert (run.recipe.run.validation_scenes, plan.base.run.validation_scenes) == (0, 64)
    assert [run.seed for run in plan.runs.values()] == [0] * 26 + [1] * 26  # tables are filled before they are repeated


def test_minutes_each_keep_the_keys_when_runs_are_added() -> None:
    """A second seed, or another table, takes over what is there; minutes for all together are shared among more."""
    each, together = RunBudget(minutes_each=0.51), RunBudget(minutes=2)
    few = plan_of("updates", budget=each).runs
    assert {run.recipe.run.minutes for run in few.values()} == {30 / 60}
    for more in (plan_of("updates", budget=each, seeds=2), plan_of("all", budget=each)):
        assert few.keys() < more.runs.keys()
    assert (
        not plan_of("updates", budget=together).runs.keys() & plan_of("updates", budget=together, seeds=2).runs.keys()
    )


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (lambda: plan_of("updates", "run.log_every=7", "run.execution=graph", "data.num_workers=5"), True),
        (lambda: plan_of("updates", "model.overrides.flow.min_pixels=9"), True),
        (lambda: plan_of("updates", "data.seed=1"), False),
        (lambda: plan_of("updates", "run.validation_scenes=3"), False),
        (lambda: plan_of("updates", "optimizer.lr=1e-3"), False),
        (lambda: plan_of("updates", budget=RunBudget(steps=3)), False),
        (lambda: plan_of("updates", evaluation=EvaluationPlan(("sintel",), (64, 64))), False),
        (lambda: plan_of("updates", evaluation=EvaluationPlan((), (64, 72))), False),
        (lambda: plan_of("updates", task="depth"), False),
    ],
)
def test_a_run_is_known_by_all_that_decides_its_results(other: Callable[[], AblationPlan], same: bool) -> None:
    ours, theirs = plan_of("updates").runs.keys(), other().runs.keys()
    assert ours == theirs if same else not ours & theirs


def test_user_settings_override_all_but_the_field_of_the_table() -> None:
    plan = plan_of("iterations", "model.overrides.encoder.num_prototypes=16", "data.batch_size=3", "data.seed=5")
    for label, iterations in (("N = 1", 1), ("N = 4", 4)):
        recipe = plan.runs[plan.keys["iterations", label, 5]].recipe
        assert (recipe.model.config().encoder.num_iterations, recipe.model.config().encoder.num_prototypes) == (
            iterations,
            16,
        )
        assert recipe.data.batch_size == 3


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: select_tables("prototype", "flow"),
            "there is no table 'prototype' of flow; the nearest one is 'prototypes'",
        ),
        (lambda: select_tables("al", "flow"), "the nearest one is 'all'"),
        (RunBudget, "give --minutes for all together, or --minutes-each or --steps for each, and only one of them."),
        (lambda: RunBudget(3, 4.0), "and only one of them"),
        (lambda: RunBudget(minutes=3, minutes_each=4.0), "and only one of them"),
        (lambda: RunBudget(minutes_each=0.0), "--minutes-each is 0, but it must be above 0"),
        (
            lambda: plan_of(budget=RunBudget(minutes_each=0.05)),
            "--minutes-each 0.05 is 3.0 seconds for each of 26 runs",
        ),
        (lambda: RunBudget(steps=0), "--steps is 0, but it must be above 0"),
        (lambda: RunBudget(minutes=float("inf")), "--minutes is inf"),
        (lambda: plan_of(budget=RunBudget(minutes=0.5)), "1.2 seconds for each of 26 runs; give at least 2.2."),
        (lambda: plan_of(seeds=0), "--seeds is 0, but it must be 1 or more"),
        (lambda: plan_of(task="track"), "no ablation of 'track'; choose one of flow, depth"),
        (lambda: plan_of("all", "run.steps=3"), "leave them out of --set"),
        (lambda: plan_of("all", "task=depth"), "give it to --task"),
        (lambda: plan_of("all", "model.init_weights=flow"), "leave model.init_weights out"),
        (lambda: plan_of("all", "data.bach=3"), "the nearest one is data.batch_size"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        make()
    assert sentence in str(refused.value)
