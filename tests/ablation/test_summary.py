"""What runs say together, by hand."""

import math

import pytest

from protoformer.ablation.plan import TABLES, AblationPlan, EvaluationPlan, RunBudget, base_recipe, plan_ablation
from protoformer.ablation.summary import Difference, Disagreement, RunResult, Summary, summarize

COMPONENTS = TABLES["components"]


def plan_of(seeds: int) -> AblationPlan:
    base = base_recipe("flow", "tiny")
    return plan_ablation((COMPONENTS,), seeds, base, RunBudget(steps=5), EvaluationPlan(("sintel",), (64, 72)))


def summary_of(errors: dict[str, tuple[float, ...]]) -> Summary:
    """Of runs with these end-point errors, by variant and seed."""
    plan = plan_of(max(len(each) for each in errors.values()))
    results = {}
    for label, values in errors.items():
        for seed, error in enumerate(values):
            key = plan.keys["components", label, seed]
            scores = {
                "synthetic": {"epe": error, "fl": 10.0, "px1": 1.0},
                "sintel": {"clean epe": 1.0, "clean fl": 2.0},
            }
            results[key] = RunResult(key, seed, 5, 2.0 + seed, 100, 1.5, 3.0 + seed, (64, 72), "CPU", scores)
    return summarize(plan, COMPONENTS, results)


def test_rows_are_means_over_seeds_beside_the_papers() -> None:
    summary = summary_of({"base": (5.0, 7.0), "CAP only": (4.0, 4.0), "LS only": (4.5, 4.5), "CAP and LS": (3.0, 3.0)})
    assert summary.columns == ("synthetic epe", "synthetic fl", "sintel clean epe")
    row = summary.rows[0]
    assert (row.label, row.published, row.seeds, row.is_default) == ("base", (0.55, 0.81), 2, False)
    assert row.scores["synthetic epe"].mean == 6 and row.scores["synthetic epe"].deviation == pytest.approx(
        math.sqrt(2)
    )
    assert (row.parameters, row.gflops, row.milliseconds, row.steps, row.seconds) == (100, 1.5, 3.5, 5, 2.5)
    assert [each.is_default for each in summary.rows] == [False, False, False, False, True]
    assert summary.setting == (
        "tiny network, 5 steps each, batches of 16 at 192x256, seeds 0 to 1, 64 validation scenes"
    )


def test_the_order_of_the_rows_is_compared_with_the_papers() -> None:
    """The paper's order, the best first: CAP and LS, CAP only, LS only, base."""
    summary = summary_of({"base": (6.0,), "CAP only": (3.0,), "LS only": (4.0,), "CAP and LS": (3.5,)})
    first = summary.agreements[0]
    assert (first.column, first.pairs, first.agreeing) == ("synthetic epe", 6, 5)
    assert first.correlation == pytest.approx(0.8)  # ranks 2, 1, 3, 4: 1 - 6 * 2 / 60
    assert (first.significant, first.significant_agreeing) == (None, None)
    assert first.disagreements == (Disagreement("CAP and LS", "CAP only", 0.5, None),)
    tied = summary.agreements[1]
    assert (tied.column, tied.agreeing) == ("synthetic fl", 0) and math.isnan(tied.correlation)


def test_significance_depends_on_the_spread_over_seeds() -> None:
    """Deviations of sqrt(2)/10 in all four rows: 2.78 standard errors (four degrees of freedom) are 0.39."""
    summary = summary_of(
        {"base": (5.9, 6.1), "CAP only": (2.9, 3.1), "LS only": (3.7, 3.9), "CAP and LS": (3.25, 3.45)}
    )
    first = summary.agreements[0]
    assert (first.agreeing, first.significant, first.significant_agreeing) == (5, 5, 5)
    assert first.disagreements == (Disagreement("CAP and LS", "CAP only", pytest.approx(0.35), False),)


def test_rows_that_are_not_finished_are_left_out_of_the_order() -> None:
    summary = summary_of({"base": (6.0,), "CAP and LS": (3.0,)})
    assert summary.rows[1].scores == {} and summary.rows[1].parameters is None and summary.rows[1].seeds == 0
    assert (summary.agreements[0].pairs, summary.agreements[0].agreeing) == (1, 1)


def test_rows_that_are_not_in_the_paper_are_compared_with_the_full_system() -> None:
    summary = summary_of({"CAP only, projected": (3.0, 3.2), "LS only": (4.5, 4.7), "CAP and LS": (2.0, 2.2)})
    assert summary.rows[2].published is None
    assert summary.agreements[0].pairs == 1
    assert summary.differences == (Difference("CAP only, projected", pytest.approx(1.0), True),)
