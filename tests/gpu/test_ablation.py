"""Every variant of the paper's tables trains on a GPU as a CUDA graph in bfloat16."""

import pytest
import torch

from protoformer.ablation.plan import TASKS, EvaluationPlan, RunBudget, base_recipe, plan_ablation, select_tables
from protoformer.tasks import task_of
from protoformer.training.distributed import launch
from protoformer.training.engine import WARM_UP, build_engine
from protoformer.training.recipe import Recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def recipes(task: str) -> list[Recipe]:
    base = base_recipe(task, "tiny", ["data.batch_size=2", "data.crop_size=[64, 64]"], graph=True)
    plan = plan_ablation(select_tables("all", task), 1, base, RunBudget(steps=9), EvaluationPlan((), (64, 64)))
    return [run.recipe for run in plan.runs.values()]


@pytest.mark.parametrize("task", TASKS)
def test_the_step_of_every_variant_runs_as_a_cuda_graph(task: str) -> None:
    fabric, batches = launch("cuda"), None
    for recipe in recipes(task):
        work = task_of(recipe)
        engine = build_engine(fabric, recipe, work)
        batches = batches or work.source(0, 1, fabric.device, pytest.fail).batches(0)
        for _ in range(WARM_UP + 2):
            engine.step(work.tensors(next(batches)), 1e-4)
        counted = engine.guard.read_counts()
        assert (counted.good, counted.skipped) == (WARM_UP + 2, 0), recipe.model.overrides
