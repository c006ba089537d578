"""Summary of an ablation: means and spread over seeds, and agreement with the paper's ranking."""

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from protoformer.ablation.plan import AblationPlan, AblationTable, Variant
from protoformer.io.files import read_small_file, write_atomically

RESULT = "result.json"
MAX_BYTES = 2**20
"""Maximum size of a result file; a result has some hundred bytes per dataset."""


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
        scores: Scores by validation set and metric.
    """

    key: str
    seed: int
    steps: int
    seconds: float
    parameters: int
    gflops: float
    milliseconds: float
    size: tuple[int, int]
    device: str
    scores: dict[str, dict[str, float]]


def write_result(folder: Path, result: RunResult) -> None:
    """Write a result into a run's folder atomically."""
    write_atomically(folder / RESULT, json.dumps(dataclasses.asdict(result), indent=1).encode())


def read_result(folder: Path, key: str) -> RunResult | None:
    """Read the result in a run's folder; None if the run is not finished or its result is not valid."""
    try:
        values = json.loads(read_small_file(folder / RESULT, MAX_BYTES))
        result = RunResult(**{**values, "size": tuple(values["size"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return result if result.key == key and _is_valid(result) else None


def _is_valid(result: RunResult) -> bool:
    """Return whether every field has its type and a usable value, because a file may hold anything."""
    scores = result.scores.values() if isinstance(result.scores, dict) else [None]
    if not all(isinstance(each, dict) for each in scores):
        return False
    figures = (result.seconds, result.gflops, result.milliseconds)
    return (
        len(result.size) == 2
        and isinstance(result.device, str)
        and all(_is_integer(each) for each in (result.seed, result.steps, result.parameters, *result.size))
        and all(_is_number(each) and math.isfinite(each) for each in figures)
        and all(_is_number(score) for each in scores for score in each.values())  # NaN if nothing could be scored
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: object) -> bool:
    return _is_integer(value) or isinstance(value, float)


@dataclass(frozen=True)
class Pair:
    """Two variants of which the reference ranks the first better; less is better.

    Attributes:
        better: Index of the better variant.
        worse: Index of the worse variant.
        difference: Measured value of `worse` minus that of `better`; negative where the order is reversed.
    """

    better: int
    worse: int
    difference: float

    @property
    def agrees(self) -> bool:
        """Whether both lists have the same order."""
        return self.difference > 0


def ordered_pairs(reference: Sequence[float], measured: Sequence[float]) -> tuple[Pair, ...]:
    """Return every pair with different reference values."""
    pairs = []
    for one, other in combinations(range(len(reference)), 2):
        if reference[one] != reference[other]:
            better, worse = (one, other) if reference[one] < reference[other] else (other, one)
            pairs.append(Pair(better, worse, measured[worse] - measured[better]))
    return tuple(pairs)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Compute Spearman's rank correlation; NaN where all values of a list are equal."""
    first, second = _ranks(one), _ranks(other)
    middle = (len(first) + 1) / 2
    products = math.fsum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    squares = [math.fsum((each - middle) ** 2 for each in ranks) for ranks in (first, second)]
    return products / math.sqrt(squares[0] * squares[1]) if all(squares) else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    """Rank values from 1 on; equal values get their mean rank."""
    return [
        1 + sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


METRICS = {"flow": ("epe", "fl"), "depth": ("abs_rel", "rmse")}
"""What is shown of a task's scores; of all of them less is better."""
SYNTHETIC = "synthetic"
FIRST = {"flow": "synthetic epe", "depth": "synthetic abs_rel"}
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


def compute_spread(values: tuple[float, ...]) -> Spread:
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
class Disagreement:
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
    contrary: tuple[Disagreement, ...]


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


def summarize(plan: AblationPlan, table: AblationTable, results: Mapping[str, RunResult]) -> Summary:
    """Summarize a table from its finished runs; `results` are by key."""
    rows = tuple(_summarize_row(plan, table, variant, results) for variant in table.variants)
    columns = tuple(dict.fromkeys(column for row in rows for column in row.scores))
    keys = [plan.places[table.name, variant.label, seed] for variant in table.variants for seed in plan.seeds]
    device = next((results[key].device for key in keys if key in results), "")
    return Summary(
        *(plan.task, table.name, table.what, plan.seeds, columns, rows),
        agreements=tuple(_compute_agreement(rows, column) for column in columns),
        device=device,
        size=plan.judging.size,
        setting=_setting(plan),
    )


def _summarize_row(
    plan: AblationPlan, table: AblationTable, variant: Variant, results: Mapping[str, RunResult]
) -> SummaryRow:
    keys = [plan.places[table.name, variant.label, seed] for seed in plan.seeds]
    finished = [results[key] for key in keys if key in results]
    scores = [_select_scores(plan.task, each.scores) for each in finished]
    columns = {column: compute_spread(tuple(each[column] for each in scores)) for column in scores[0]} if scores else {}
    first = finished[0] if finished else None
    return SummaryRow(
        *(variant.label, variant.is_default, variant.published[plan.task], len(finished)),
        parameters=None if first is None else first.parameters,
        gflops=None if first is None else first.gflops,
        milliseconds=statistics.median(each.milliseconds for each in finished) if finished else None,
        steps=statistics.fmean(each.steps for each in finished) if finished else None,
        seconds=statistics.fmean(each.seconds for each in finished) if finished else None,
        scores=columns,
    )


def _select_scores(task: str, scores: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the reported scores by "dataset metric"; Fl only of synthetic scenes, as datasets have few samples."""
    selected = {}
    for dataset, values in scores.items():
        for name, value in values.items():
            metric = name.split()[-1]  # "epe", or of a part of a dataset, "clean epe"
            if metric in METRICS[task] and (dataset == SYNTHETIC or metric != "fl"):
                selected[f"{dataset} {name}"] = value
    return selected


def _compute_agreement(rows: tuple[SummaryRow, ...], column: str) -> Agreement:
    """Compare the ranking by a column with the paper's."""
    scored = [row for row in rows if column in row.scores]
    paper, measured = [row.published[1] for row in scored], [row.scores[column].mean for row in scored]
    pairs = ordered_pairs(paper, measured)
    threshold = _significance_threshold([row.scores[column] for row in scored])

    def is_sure(better: int, worse: int, difference: float) -> bool | None:
        if threshold is None:
            return None
        counts = (len(scored[index].scores[column].values) for index in (better, worse))
        return abs(difference) > threshold * math.sqrt(sum(1 / count for count in counts))

    sure = [is_sure(pair.better, pair.worse, pair.difference) for pair in pairs]
    contrary = tuple(
        Disagreement(scored[pair.better].label, scored[pair.worse].label, -pair.difference, significant)
        for pair, significant in zip(pairs, sure, strict=True)
        if not pair.agrees
    )
    return Agreement(
        *(column, len(pairs), sum(pair.agrees for pair in pairs), rank_correlation(paper, measured)),
        sure=None if threshold is None else sum(bool(each) for each in sure),
        sure_agreeing=None
        if threshold is None
        else sum(pair.agrees and bool(each) for pair, each in zip(pairs, sure, strict=True)),
        contrary=contrary,
    )


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


def _setting(plan: AblationPlan) -> str:
    """How the runs were trained, in words."""
    recipe = next(iter(plan.runs.values())).recipe
    run, (height, width) = recipe.run, recipe.data.crop_size
    length = f"{run.steps} steps" if run.minutes is None else f"{60 * run.minutes:.0f} seconds"
    return (
        f"{recipe.model.preset} network, {length} each, batches of {recipe.data.batch_size} at {height}x{width}, "
        f"{_seeds(plan.seeds)}, {plan.base.run.validation_scenes} held-out scenes"
    )


def _seeds(seeds: tuple[int, ...]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
