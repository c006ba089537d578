"""What the runs of an ablation say together: means and spread over seeds, and whether their order is the paper's."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from protoformer.metrics.ranking import ordered_pairs, rank_correlation
from protoformer.training.ablation_plan import AblationPlan
from protoformer.training.ablation_results import RunResult
from protoformer.training.ablation_tables import AblationTable, Variant

METRICS = {"flow": ("epe", "fl"), "depth": ("abs_rel", "rmse")}
"""What is shown of a task's scores; of all of them less is better."""
WORLD = "world"
FIRST = {"flow": "world epe", "depth": "world abs_rel"}
"""The column that an ablation is read by."""
PUBLISHED = {"flow": ("Sintel clean EPE", "Sintel final EPE"), "depth": ("KITTI AbsRel", "KITTI RMSE")}
"""What the paper measured; the second tells all rows of every table apart, so the paper's order is by it."""
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Standard errors beyond which a difference is hardly chance (5 %), by the degrees of freedom of the seeds' spread."""


@dataclass(frozen=True)
class Spread:
    """A figure over seeds. values: of each seed. deviation: their standard deviation; None of one seed."""

    mean: float
    deviation: float | None
    values: tuple[float, ...]


def spread_of(values: tuple[float, ...]) -> Spread:
    """Mean and deviation of a sample."""
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, values)


@dataclass(frozen=True)
class SummaryRow:
    """A variant. seeds: how many were trained; without any, figures are None and scores empty. scores: by column."""

    label: str
    is_default: bool
    published: tuple[float, float]
    seeds: int
    parameters: int | None
    gflops: float | None
    milliseconds: float | None
    steps: float | None
    seconds: float | None
    scores: dict[str, Spread]


@dataclass(frozen=True)
class Contrary:
    """Two variants of which the paper finds the first better, and we find it worse by `difference`.

    sure: whether that is more than the seeds' spread explains; None where one seed tells no spread.
    """

    better: str
    worse: str
    difference: float
    sure: bool | None


@dataclass(frozen=True)
class Agreement:
    """Our order by a column beside the paper's.

    pairs: of variants that the paper tells apart; agreeing: those that we order alike. correlation: Spearman's.
    sure: pairs whose difference is more than the seeds' spread explains, and sure_agreeing those of them that agree;
    None where one seed tells no spread.
    """

    column: str
    pairs: int
    agreeing: int
    correlation: float
    sure: int | None
    sure_agreeing: int | None
    contrary: tuple[Contrary, ...]


@dataclass(frozen=True)
class Summary:
    """A table of an ablation. columns: of scores, those that any row has. device, size: of the forward pass."""

    task: str
    table: str
    what: str
    seeds: tuple[int, ...]
    columns: tuple[str, ...]
    rows: tuple[SummaryRow, ...]
    agreements: tuple[Agreement, ...]
    device: str
    size: tuple[int, int]
    setting: str


def summarized(plan: AblationPlan, table: AblationTable, results: Mapping[str, RunResult]) -> Summary:
    """A table by what is finished of it."""
    rows = tuple(_row(plan, table, variant, results) for variant in table.variants)
    columns = tuple(dict.fromkeys(column for row in rows for column in row.scores))
    places = [plan.places[table.name, variant.label, seed] for variant in table.variants for seed in plan.seeds]
    device = next((results[key].device for key in places if key in results), "")
    return Summary(
        *(plan.task, table.name, table.what, plan.seeds, columns, rows),
        agreements=tuple(_agreement(rows, column) for column in columns),
        device=device,
        size=plan.judging.size,
        setting=_setting(plan),
    )


def _row(plan: AblationPlan, table: AblationTable, variant: Variant, results: Mapping[str, RunResult]) -> SummaryRow:
    keys = [plan.places[table.name, variant.label, seed] for seed in plan.seeds]
    found = [results[key] for key in keys if key in results]
    named = [_columns(plan.task, each.scores) for each in found]
    columns = {column: spread_of(tuple(each[column] for each in named)) for column in named[0]} if named else {}
    first = found[0] if found else None
    return SummaryRow(
        *(variant.label, variant.is_default, variant.published[plan.task], len(found)),
        parameters=None if first is None else first.parameters,
        gflops=None if first is None else first.gflops,
        milliseconds=statistics.median(each.milliseconds for each in found) if found else None,
        steps=statistics.fmean(each.steps for each in found) if found else None,
        seconds=statistics.fmean(each.seconds for each in found) if found else None,
        scores=columns,
    )


def _columns(task: str, scores: dict[str, dict[str, float]]) -> dict[str, float]:
    """The scores that are shown, by "where figure"; Fl, which few samples say little about, of the world alone."""
    found = {}
    for place, figures in scores.items():
        for name, value in figures.items():
            metric = name.split()[-1]  # "epe", or of a part of a dataset, "clean epe"
            if metric in METRICS[task] and (place == WORLD or metric != "fl"):
                found[f"{place} {name}"] = value
    return found


def _agreement(rows: tuple[SummaryRow, ...], column: str) -> Agreement:
    there = [row for row in rows if column in row.scores]
    paper, ours = [row.published[1] for row in there], [row.scores[column].mean for row in there]
    pairs = ordered_pairs(paper, ours)
    least = _least_sure([row.scores[column] for row in there])

    def is_sure(better: int, worse: int, difference: float) -> bool | None:
        if least is None:
            return None
        counts = (len(there[place].scores[column].values) for place in (better, worse))
        return abs(difference) > least * math.sqrt(sum(1 / count for count in counts))

    sure = [is_sure(pair.better, pair.worse, pair.difference) for pair in pairs]
    contrary = tuple(
        Contrary(there[pair.better].label, there[pair.worse].label, -pair.difference, known)
        for pair, known in zip(pairs, sure, strict=True)
        if not pair.agrees
    )
    return Agreement(
        *(column, len(pairs), sum(pair.agrees for pair in pairs), rank_correlation(paper, ours)),
        sure=None if least is None else sum(bool(each) for each in sure),
        sure_agreeing=None
        if least is None
        else sum(pair.agrees and bool(each) for pair, each in zip(pairs, sure, strict=True)),
        contrary=contrary,
    )


def _least_sure(spreads: list[Spread]) -> float | None:
    """The least difference of two single runs that is hardly chance; None where no variant has two seeds.

    The seeds' deviation is taken to be the same for all variants, which know it together better than each alone.
    """
    squares = [(each.deviation**2, len(each.values) - 1) for each in spreads if each.deviation is not None]
    freedom = sum(count for _, count in squares)
    if not freedom:
        return None
    pooled = math.sqrt(math.fsum(square * count for square, count in squares) / freedom)
    return STUDENT[min(freedom, len(STUDENT)) - 1] * pooled


def _setting(plan: AblationPlan) -> str:
    """How the runs were trained, in words."""
    recipe = next(iter(plan.runs.values())).recipe
    run, (height, width) = recipe.run, recipe.data.crop
    length = f"{run.steps} steps" if run.minutes is None else f"{60 * run.minutes:.0f} seconds"
    return (
        f"{recipe.model.preset} network, {length} each, batches of {recipe.data.batch} at {height}x{width}, "
        f"{_seeds(plan.seeds)}, {plan.base.run.validation_scenes} held-out scenes"
    )


def _seeds(seeds: tuple[int, ...]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
