"""Summary of an ablation: means and spread over seeds, and agreement with the paper's ranking."""

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from protoformer.ablation.plan import AblationPlan, AblationTable, Variant
from protoformer.errors import InputError
from protoformer.io.config_reader import bounded, check_fields
from protoformer.io.files import read_small_file, write_atomically

RESULT = "result.json"
MAX_BYTES = 2**20
"""Maximum size of a result file; a result has some hundred bytes per dataset."""
MAX_INTEGER = 2**63 - 1
METRICS = {"flow": ("epe", "fl"), "depth": ("abs_rel", "rmse")}
"""Reported metrics of each task; for all of them, lower is better."""
SYNTHETIC = "synthetic"
MAIN_COLUMN = {"flow": "synthetic epe", "depth": "synthetic abs_rel"}
"""The score by which the rows are ranked."""
PUBLISHED = {"flow": ("Sintel clean EPE", "Sintel final EPE"), "depth": ("KITTI AbsRel", "KITTI RMSE")}
"""Published scores; the paper's ranking is by the second, which has no ties in any table."""
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Two-sided 5 % quantiles of Student's t distribution, by degrees of freedom from 1 on."""


@dataclass(frozen=True)
class RunResult:
    """Result of a finished run.

    Attributes:
        key: Key of its `PlannedRun`.
        seed: Seed of its `PlannedRun`.
        steps: Training steps.
        seconds: Training time.
        parameters: Number of parameters of the network.
        gflops: Operations of a forward pass at `size`, 10^9.
        milliseconds: Duration of a forward pass at `size` on `device`.
        size: (height, width), pixels.
        device: Name of the device.
        scores: Scores by validation set and metric; NaN if nothing could be scored.
    """

    key: str
    seed: int = bounded(min=0, max=MAX_INTEGER)
    steps: int = bounded(min=0, max=MAX_INTEGER)
    seconds: float = bounded(min=0)
    parameters: int = bounded(min=0, max=MAX_INTEGER)
    gflops: float = bounded(min=0)
    milliseconds: float = bounded(min=0)
    size: tuple[int, int] = bounded(min=0, max=MAX_INTEGER)
    device: str = bounded()
    scores: Mapping[str, Mapping[str, Any]] = bounded()

    def __post_init__(self) -> None:
        check_fields(self)  # also of a result read from a file, which may hold anything
        for score in (score for scores in self.scores.values() for score in scores.values()):
            if not isinstance(score, float | int) or isinstance(score, bool) or abs(score) > MAX_INTEGER:
                raise InputError(f"a score is {score!r}, but it must be a number.")


def write_result(folder: Path, result: RunResult) -> None:
    """Write a result into a run's folder atomically."""
    write_atomically(folder / RESULT, json.dumps(dataclasses.asdict(result), indent=1).encode())


def read_result(folder: Path, key: str) -> RunResult | None:
    """Read the result in a run's folder; None if the run is not finished or its result is not valid."""
    try:
        values = json.loads(read_small_file(folder / RESULT, MAX_BYTES))
        result = RunResult(**{**values, "size": tuple(values["size"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # an InputError is a ValueError
        return None
    return result if result.key == key else None


@dataclass(frozen=True)
class Spread:
    """A score over seeds.

    Attributes:
        mean: Mean over the seeds.
        deviation: Standard deviation over the seeds; None for one seed.
        values: Score of each seed.
    """

    mean: float
    deviation: float | None
    values: tuple[float, ...]


@dataclass(frozen=True)
class SummaryRow:
    """A variant of a table; its measurements are None, and its scores empty, if none of its runs is finished.

    Attributes:
        label: Label of the row.
        is_default: Whether it is the paper's full system.
        published: The paper's two scores; None if the row is not in the paper.
        seeds: Number of finished runs.
        parameters: Number of parameters of the network.
        gflops: Operations of a forward pass, 10^9.
        milliseconds: Median duration of a forward pass.
        steps: Mean number of training steps.
        seconds: Mean training time.
        scores: Scores by column.
    """

    label: str
    is_default: bool
    published: tuple[float, float] | None
    seeds: int
    parameters: int | None
    gflops: float | None
    milliseconds: float | None
    steps: float | None
    seconds: float | None
    scores: dict[str, Spread]


@dataclass(frozen=True)
class Disagreement:
    """Two variants that the paper ranks in the opposite order.

    Attributes:
        better: Label of the variant that is better in the paper.
        worse: Label of the other variant.
        difference: By how much `better` is worse here.
        significant: Whether the spread over seeds does not explain the difference; None without a spread.
    """

    better: str
    worse: str
    difference: float
    significant: bool | None


@dataclass(frozen=True)
class Agreement:
    """Comparison of the ranking by a column with the paper's ranking.

    Attributes:
        column: The column.
        pairs: Number of pairs of variants that the paper ranks.
        agreeing: Number of these pairs that have the same order here.
        correlation: Spearman's rank correlation.
        significant: Number of pairs whose difference the spread over seeds does not explain; None without a spread.
        significant_agreeing: Number of significant pairs that agree.
        disagreements: Pairs in the opposite order.
    """

    column: str
    pairs: int
    agreeing: int
    correlation: float
    significant: int | None
    significant_agreeing: int | None
    disagreements: tuple[Disagreement, ...]


@dataclass(frozen=True)
class Difference:
    """A variant that is not in the paper, compared with the full system by the main column.

    Attributes:
        label: Label of the variant.
        difference: Its mean score minus that of the full system; above 0 it is worse.
        significant: Whether the spread over seeds does not explain the difference; None without a spread.
    """

    label: str
    difference: float
    significant: bool | None


@dataclass(frozen=True)
class Summary:
    """A table of an ablation.

    Attributes:
        task: flow or depth.
        table: Name of the table.
        description: One-line description of the table.
        seeds: Seeds of each variant.
        columns: Score columns that any row has.
        rows: The variants.
        agreements: Comparison with the paper's ranking, for each column.
        device: Name of the device of the forward pass.
        size: (height, width) of the forward pass, pixels.
        setting: How the runs were trained, as text.
        differences: Variants that are not in the paper.
    """

    task: str
    table: str
    description: str
    seeds: tuple[int, ...]
    columns: tuple[str, ...]
    rows: tuple[SummaryRow, ...]
    agreements: tuple[Agreement, ...]
    device: str
    size: tuple[int, int]
    setting: str
    differences: tuple[Difference, ...] = ()


def summarize(plan: AblationPlan, table: AblationTable, results: Mapping[str, RunResult]) -> Summary:
    """Summarize a table from its finished runs; `results` are by key."""
    finished = {
        variant.label: [results[key] for key in plan.run_keys(table, variant) if key in results]
        for variant in table.variants
    }
    rows = tuple(_summarize_row(plan.task, variant, finished[variant.label]) for variant in table.variants)
    columns = tuple(dict.fromkeys(column for row in rows for column in row.scores))
    return Summary(
        *(plan.task, table.name, table.description, plan.seeds, columns, rows),
        agreements=tuple(_compare_ranking(rows, column) for column in columns),
        device=next((result.device for each in finished.values() for result in each), ""),
        size=plan.evaluation.size,
        setting=_describe_setting(plan),
        differences=_compare_with_default(rows, MAIN_COLUMN[plan.task]),
    )


def _summarize_row(task: str, variant: Variant, finished: list[RunResult]) -> SummaryRow:
    row = (variant.label, variant.is_default, variant.published.get(task), len(finished))
    if not finished:
        return SummaryRow(*row, None, None, None, None, None, {})
    scores = [_select_scores(task, each.scores) for each in finished]
    return SummaryRow(
        *row,
        parameters=finished[0].parameters,
        gflops=finished[0].gflops,
        milliseconds=statistics.median(each.milliseconds for each in finished),
        steps=statistics.fmean(each.steps for each in finished),
        seconds=statistics.fmean(each.seconds for each in finished),
        scores={column: _compute_spread(tuple(each[column] for each in scores)) for column in scores[0]},
    )


def _select_scores(task: str, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the reported scores by "dataset metric"; Fl only of synthetic scenes, as datasets have few samples."""
    selected = {}
    for dataset, values in scores.items():
        for name, value in values.items():
            metric = name.split()[-1]  # "epe", or of a part of a dataset, "clean epe"
            if metric in METRICS[task] and (dataset == SYNTHETIC or metric != "fl"):
                selected[f"{dataset} {name}"] = value
    return selected


def _compute_spread(values: tuple[float, ...]) -> Spread:
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, values)


def _compare_ranking(rows: tuple[SummaryRow, ...], column: str) -> Agreement:
    """Compare the ranking by a column with the paper's."""
    published = [(row, row.published[1]) for row in rows if row.published is not None and column in row.scores]
    scored, paper = [row for row, _ in published], [score for _, score in published]
    measured = [row.scores[column].mean for row in scored]
    threshold = _significance_threshold([row.scores[column] for row in scored])
    agreeing, significant, significant_agreeing, disagreements = 0, 0, 0, []
    pairs = ordered_pairs(paper, measured)
    for better, worse, difference in pairs:
        spreads = (scored[index].scores[column] for index in (better, worse))
        is_significant = _is_significant(difference, threshold, *spreads)
        agreeing += difference > 0
        significant += bool(is_significant)
        significant_agreeing += bool(is_significant) and difference > 0
        if difference <= 0:
            labels = scored[better].label, scored[worse].label
            disagreements.append(Disagreement(*labels, -difference, is_significant))
    return Agreement(
        *(column, len(pairs), agreeing, rank_correlation(paper, measured)),
        significant=None if threshold is None else significant,
        significant_agreeing=None if threshold is None else significant_agreeing,
        disagreements=tuple(disagreements),
    )


def _compare_with_default(rows: tuple[SummaryRow, ...], column: str) -> tuple[Difference, ...]:
    """Compare the rows that are not in the paper with the full system."""
    scored = {row.label: row.scores[column] for row in rows if column in row.scores}
    threshold = _significance_threshold(list(scored.values()))
    default = next((scored[row.label] for row in rows if row.is_default and row.label in scored), None)
    if default is None:
        return ()
    return tuple(
        Difference(
            row.label,
            scored[row.label].mean - default.mean,
            _is_significant(scored[row.label].mean - default.mean, threshold, default, scored[row.label]),
        )
        for row in rows
        if row.published is None and not row.is_default and row.label in scored
    )


def _is_significant(difference: float, threshold: float | None, *spreads: Spread) -> bool | None:
    """Return whether a difference of two means is significant; threshold: from `_significance_threshold`."""
    if threshold is None:
        return None
    return abs(difference) > threshold * math.sqrt(sum(1 / len(spread.values) for spread in spreads))


def ordered_pairs(reference: Sequence[float], measured: Sequence[float]) -> list[tuple[int, int, float]]:
    """Return every pair with different reference values; lower is better.

    Returns:
        (index that the reference ranks better, other index, measured value of the other minus that of the better) of
        each pair; the difference is positive where both rank the pair alike.
    """
    pairs = []
    for one, other in combinations(range(len(reference)), 2):
        if reference[one] != reference[other]:
            better, worse = (one, other) if reference[one] < reference[other] else (other, one)
            pairs.append((better, worse, measured[worse] - measured[better]))
    return pairs


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Compute Spearman's rank correlation; NaN where all values of a list are equal."""
    try:
        return statistics.correlation(_ranks(first), _ranks(second))
    except statistics.StatisticsError:
        return math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    """Rank values from 1 on; equal values get their mean rank."""
    return [
        1 + sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


def _significance_threshold(spreads: list[Spread]) -> float | None:
    """Compute the smallest significant difference (5 %) of two single runs; None where no variant has two seeds.

    The standard deviation over seeds is pooled over all variants.
    """
    squares = [(each.deviation**2, len(each.values) - 1) for each in spreads if each.deviation is not None]
    freedom = sum(count for _, count in squares)
    if not freedom:
        return None
    pooled = math.sqrt(math.fsum(square * count for square, count in squares) / freedom)
    return STUDENT[min(freedom, len(STUDENT)) - 1] * pooled


def _describe_setting(plan: AblationPlan) -> str:
    """Describe how the runs were trained."""
    recipe = next(iter(plan.runs.values())).recipe
    run, (height, width), seeds = recipe.run, recipe.data.crop_size, plan.seeds
    length = f"{run.steps} steps" if run.minutes is None else f"{60 * run.minutes:.0f} seconds"
    return (
        f"{recipe.model.preset} network, {length} each, batches of {recipe.data.batch_size} at {height}x{width}, "
        f"{f'seed {seeds[0]}' if len(seeds) == 1 else f'seeds {seeds[0]} to {seeds[-1]}'}, "
        f"{plan.base.run.validation_scenes} validation scenes"
    )
