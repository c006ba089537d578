"""What the runs of an ablation say together: means and spread over seeds, and whether their order is the paper's."""

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
"""A result has some hundred bytes for every dataset; a longer file was not written here."""


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    key, seed: of its `PlannedRun`. steps, seconds: of training. parameters: of the network. gflops, milliseconds: of a
    forward pass at `size`, on `device`. scores: of everything it was judged by, by name.
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
    """Write it into a run's folder, whole or not at all."""
    write_atomically(folder / RESULT, json.dumps(dataclasses.asdict(result), indent=1).encode())


def read_result(folder: Path, key: str) -> RunResult | None:
    """The result in a run's folder; None where the run is not finished, or its result cannot be read."""
    try:
        values = json.loads(read_small_file(folder / RESULT, MAX_BYTES))
        found = RunResult(**{**values, "size": tuple(values["size"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return found if found.key == key and _is_sound(found) else None


def _is_sound(result: RunResult) -> bool:
    """Whether every field that was read has its type and can be computed with; a file on a disk may hold anything."""
    scores = result.scores.values() if isinstance(result.scores, dict) else [None]
    if not all(isinstance(each, dict) for each in scores):
        return False
    figures = (result.seconds, result.gflops, result.milliseconds)
    return (
        len(result.size) == 2
        and isinstance(result.device, str)
        and all(_is_whole(each) for each in (result.seed, result.steps, result.parameters, *result.size))
        and all(_is_number(each) and math.isfinite(each) for each in figures)
        and all(_is_number(score) for each in scores for score in each.values())  # NaN if nothing could be scored
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: object) -> bool:
    return _is_whole(value) or isinstance(value, float)


@dataclass(frozen=True)
class Pair:
    """Two things, by their places in the lists, of which the first one is better by the reference.

    difference: how much more the other one has by our figures: negative where we find the order the other way round.
    """

    better: int
    worse: int
    difference: float

    @property
    def agrees(self) -> bool:
        """Whether both lists have the same order."""
        return self.difference > 0


def ordered_pairs(reference: Sequence[float], ours: Sequence[float]) -> tuple[Pair, ...]:
    """Every pair of things that the reference tells apart."""
    found = []
    for one, other in combinations(range(len(reference)), 2):
        if reference[one] != reference[other]:
            better, worse = (one, other) if reference[one] < reference[other] else (other, one)
            found.append(Pair(better, worse, ours[worse] - ours[better]))
    return tuple(found)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's: 1 for the same order, -1 for the opposite one; NaN where a list tells nothing apart."""
    first, second = _ranks(one), _ranks(other)
    middle = (len(first) + 1) / 2
    products = math.fsum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    squares = [math.fsum((each - middle) ** 2 for each in ranks) for ranks in (first, second)]
    return products / math.sqrt(squares[0] * squares[1]) if all(squares) else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    """From 1 on; equal values share the mean of theirs."""
    return [
        1 + sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


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
    columns = {column: compute_spread(tuple(each[column] for each in named)) for column in named[0]} if named else {}
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
        Disagreement(there[pair.better].label, there[pair.worse].label, -pair.difference, known)
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
