"""`protoformer ablate`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from rich.console import Console
from torch import nn

from protoformer.ablation.plan import (
    TABLES,
    TASKS,
    AblationPlan,
    EvaluationPlan,
    PlannedRun,
    RunBudget,
    base_recipe,
    plan_ablation,
    select_tables,
)
from protoformer.ablation.report import (
    ablation_csv,
    ablation_markdown,
    ablation_table,
    describe_agreement,
    insert_tables,
    plot_ablation,
)
from protoformer.ablation.runner import SPEED, AblationResult, AblationRunner
from protoformer.ablation.summary import Summary, summarize
from protoformer.cli.options import DeviceOption, parse_size
from protoformer.cli.terminal import to_json
from protoformer.cli.train import TrainingBar, dataset_validator
from protoformer.errors import InputError
from protoformer.io.files import make_folder, write_atomically
from protoformer.io.image import write_image
from protoformer.models.pretrained import save_weights
from protoformer.models.profiling import measure_forward_ms
from protoformer.models.protoformer import ProtoFormer
from protoformer.training.loggers import Observer
from protoformer.training.run_folder import RunFolder
from protoformer.training.task import ValidationResult


@dataclass(frozen=True)
class TablePaths:
    """The files of a table."""

    markdown: Path
    csv: Path
    json: Path
    picture: Path


def table_paths(folder: Path, task: str, table: str) -> TablePaths:
    """Where the files of a table lie in a folder of ablations."""
    return TablePaths(*(folder / f"{task}-{table}.{suffix}" for suffix in ("md", "csv", "json", "png")))


def write_table(folder: Path, summary: Summary, recipe: dict[str, Any]) -> TablePaths:
    """Write a table as markdown, csv, json (with the recipe that variants are changed from) and a picture."""
    paths = table_paths(folder, summary.task, summary.table)
    write_atomically(paths.markdown, ablation_markdown(summary, paths.picture.name).encode())
    write_atomically(paths.csv, ablation_csv(summary).encode())
    write_atomically(paths.json, json.dumps({**to_json(summary), "recipe": recipe}, indent=1).encode())
    write_image(paths.picture, plot_ablation(summary))
    return paths


def write_page(page: Path, folder: Path) -> None:
    """Put every table that lies in a folder of ablations into a page, and their pictures beside it."""
    sections = []
    for paths in (table_paths(folder, task, table) for task in TASKS for table in TABLES):
        if paths.markdown.is_file():
            picture = f"ablation-{paths.picture.name}"
            write_atomically(page.parent / picture, paths.picture.read_bytes())
            sections.append(
                paths.markdown.read_text(encoding="utf-8").replace(f"({paths.picture.name})", f"({picture})")
            )
    text = insert_tables(page.read_text(encoding="utf-8"), sections, str(page))
    write_atomically(page, text.encode())


BENCHMARKS = {
    "flow": (
        ("sintel", "Sintel", "train"),
        ("middlebury", "Middlebury", "all"),
        ("kitti-2012", "KITTI-2012", "train"),
        ("flyingchairs", "FlyingChairs", "all"),
    ),
    "depth": (("nyuv2", "NYUv2", "val"),),
}
"""By task: a dataset, its folder in what --data names, and the split that is scored."""
SIZES = {"flow": "440x1024", "depth": "240x320"}
"""At which a forward pass is timed: Sintel's, and the size at which depth is found."""


def ablate(
    table: Annotated[str, typer.Argument(help=f"{', '.join(TABLES)}, or all.")],
    task: Annotated[str, typer.Option(help="flow or depth.")] = "flow",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A folder for tables and runs. What is finished there is kept.")
    ] = Path("ablation"),
    minutes: Annotated[
        float | None, typer.Option(help="Of training, for all runs together; each has the same share.")
    ] = None,
    minutes_each: Annotated[
        float | None, typer.Option(help="Of training, for each run, however many runs there are.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Of each run, instead of minutes.")] = None,
    seeds: Annotated[int, typer.Option(help="How often each variant is trained; two or more tell the spread.")] = 1,
    preset: Annotated[str, typer.Option(help="The network that variants are changed from.")] = "fast",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the recipe of all runs: data.batch_size=8. Repeat for several."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A folder of benchmarks to score on, those of Sintel, NYUv2, ... that it has.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH at which a forward pass is timed.")] = None,
    device: DeviceOption = None,
    keep_weights: Annotated[bool, typer.Option("--keep-weights", help="Keep the weights of every run.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="A markdown file: put all tables of the output folder between its markers.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tables for programs.")] = False,
) -> None:
    """Train the paper's ablation tables: every variant with the same budget, seeds and data.

    Example: `protoformer ablate components --task flow --minutes 60 --seeds 2 -o ablation`
    """
    on = device or ("cuda" if torch.cuda.is_available() else "cpu")
    base = base_recipe(task, preset, settings or [], graph=on == "cuda")
    found = _benchmarks(task, data)
    judging = EvaluationPlan(tuple(found), parse_size(size or SIZES[task]))
    plan = plan_ablation(select_tables(table), seeds, base, RunBudget(steps, minutes, minutes_each), judging)
    if page is not None:
        insert_tables(_text_of(page), [], str(page))  # else it would be refused after everything is trained
    ablation = _ablation(plan, make_folder(output), on, found, keep_weights)
    ended = ablation.run()
    if ended.failed and not ended.results:
        raise InputError(next(iter(ended.failed.values())))
    summaries = [summarize(plan, each, ended.results) for each in plan.tables] if ended.results else []
    paths = [write_table(output, summary, plan.base.as_dict()) for summary in summaries]
    if page is not None and not ended.stopped:
        write_page(page, output)
    notes = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False, markup=False)
    _note(ablation, ended, notes)
    _report(summaries, paths, as_json)
    if ended.stopped:
        notes.print(f"stopped with {len(ended.results)} of {len(plan.runs)} runs finished; run it again to go on")


def _ablation(
    plan: AblationPlan, folder: Path, device: str, datasets: dict[str, tuple[Path, str]], keep_weights: bool
) -> AblationRunner:
    """A plan with what it takes to carry it out. datasets: folder and split of each, by name."""

    def speed(network: nn.Module) -> ValidationResult:
        return ValidationResult(
            SPEED, {"milliseconds": measure_forward_ms(cast(ProtoFormer, network), plan.evaluation.size)}
        )

    def write_weights(network: nn.Module, path: Path) -> None:
        save_weights(cast(ProtoFormer, network), path, trained=True)

    return AblationRunner(
        plan,
        folder,
        device,
        speed,
        validators=tuple(dataset_validator(plan.task, name, root, split) for name, (root, split) in datasets.items()),
        make_observer=lambda run, before: _watching(plan, run, before),
        write_weights=write_weights if keep_weights else None,
    )


def _benchmarks(task: str, data: Path | None) -> dict[str, tuple[Path, str]]:
    """The datasets that there are: folder and split of each, by name."""
    if data is None:
        return {}
    found = {name: (data / folder, split) for name, folder, split in BENCHMARKS[task] if (data / folder).is_dir()}
    if not found:
        folders = ", ".join(folder for _, folder, _ in BENCHMARKS[task])
        raise InputError(f"--data is {data}, but it has none of the folders {folders}; give the folder that does.")
    return found


def _text_of(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise InputError(f"the page {page} cannot be read; give --page a markdown file that is there.") from None


def _watching(plan: AblationPlan, run: PlannedRun, before: int) -> Observer:
    bar = TrainingBar(run.name)
    bar.console.print(f"run {before + 1} of {len(plan.runs)}: {run.name}")
    return bar


def _note(ablation: AblationRunner, ended: AblationResult, notes: Console) -> None:
    """Say which runs there is no result of, and of which no weights, though they were to be kept."""
    runs = ablation.plan.runs
    for key, reason in ended.failed.items():
        notes.print(f"note: {runs[key].name} was passed over: {reason}", style="yellow")
    if ablation.write_weights is None:
        return
    gone = [runs[key].name for key in ended.results if not RunFolder(ablation.run_folder(runs[key])).weights.is_file()]
    if gone:
        notes.print(
            f"note: --keep-weights has nothing to keep of what was finished without it: {', '.join(gone)}; remove a "
            f"run's folder in {ablation.folder / 'runs'} to train it again.",
            style="yellow",
        )


def _report(summaries: list[Summary], paths: list[TablePaths], as_json: bool) -> None:
    if as_json:
        print(json.dumps([to_json(summary) for summary in summaries], indent=1))
        return
    console = Console(width=max(240, Console().width))
    for summary, path in zip(summaries, paths, strict=True):
        console.print(ablation_table(summary))
        print(*describe_agreement(summary), sep="\n")
        print(f"wrote {path.markdown}, {path.csv.name}, {path.json.name} and {path.picture.name}\n")
