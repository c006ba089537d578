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
from protoformer.cli.options import DeviceOption, JsonOption, parse_size
from protoformer.cli.terminal import make_console, print_json
from protoformer.cli.train import TrainingBar, dataset_validator
from protoformer.errors import InputError
from protoformer.io.files import json_value, make_folder, write_atomically
from protoformer.io.image import write_image
from protoformer.models.profiling import measure_forward_ms
from protoformer.models.protoformer import ProtoFormer
from protoformer.training.run_folder import Observer, RunFolder
from protoformer.training.task import ValidationResult


@dataclass(frozen=True)
class TablePaths:
    """Files of a table."""

    markdown: Path
    csv: Path
    json: Path
    image: Path


def table_paths(folder: Path, task: str, table: str) -> TablePaths:
    """Return the paths of a table's files in an output folder."""
    return TablePaths(*(folder / f"{task}-{table}.{suffix}" for suffix in ("md", "csv", "json", "png")))


def write_table(folder: Path, summary: Summary, recipe: dict[str, Any]) -> TablePaths:
    """Write a table as markdown, csv, json (with the base recipe) and an image."""
    paths = table_paths(folder, summary.task, summary.table)
    write_atomically(paths.markdown, ablation_markdown(summary, paths.image.name).encode())
    write_atomically(paths.csv, ablation_csv(summary).encode())
    write_atomically(paths.json, json.dumps({**json_value(summary), "recipe": recipe}, indent=1).encode())
    write_image(paths.image, plot_ablation(summary))
    return paths


def write_page(page: Path, folder: Path) -> None:
    """Insert every table of an output folder into a markdown page, and copy the images next to it."""
    sections = []
    for paths in (table_paths(folder, task, table) for task in TASKS for table in TABLES):
        if paths.markdown.is_file():
            image = f"ablation-{paths.image.name}"
            write_atomically(page.parent / image, paths.image.read_bytes())
            sections.append(paths.markdown.read_text(encoding="utf-8").replace(f"({paths.image.name})", f"({image})"))
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
"""Name, subfolder of --data and evaluated split of each dataset, by task."""
SIZES = {"flow": "440x1024", "depth": "240x320"}
"""Image size at which a forward pass is timed, by task: those of Sintel and of depth inference."""


def ablate(
    table: Annotated[str, typer.Argument(help=f"Table to train: {', '.join(TABLES)}, or all.")],
    task: Annotated[str, typer.Option(help="flow or depth.")] = "flow",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for tables and runs; finished runs are kept.")
    ] = Path("ablation"),
    minutes: Annotated[
        float | None, typer.Option(help="Training time of all runs together, minutes; each has the same share.")
    ] = None,
    minutes_each: Annotated[float | None, typer.Option(help="Training time of each run, minutes.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps of each run, instead of minutes.")] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds per variant; two or more give a standard deviation.")] = 1,
    preset: Annotated[str, typer.Option(help="Preset of the base network.")] = "fast",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a value of the recipe: data.batch_size=8. Repeat for several."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of benchmarks (Sintel, NYUv2, ...); those that exist are evaluated.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH at which a forward pass is timed.")] = None,
    device: DeviceOption = None,
    keep_weights: Annotated[bool, typer.Option("--keep-weights", help="Keep the weights of all runs.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Markdown file: insert all tables of the output folder between its markers.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train the paper's ablation tables and further ones: every variant with the same budget, seeds and data.

    Example: `protoformer ablate components --task flow --minutes 60 --seeds 2 -o ablation`
    """
    on = device or ("cuda" if torch.cuda.is_available() else "cpu")
    base = base_recipe(task, preset, settings or [], graph=on == "cuda")
    benchmarks = _find_benchmarks(task, data)
    judging = EvaluationPlan(tuple(benchmarks), parse_size(size or SIZES[task]))
    plan = plan_ablation(select_tables(table, task), seeds, base, RunBudget(steps, minutes, minutes_each), judging)
    if page is not None:
        insert_tables(_read_page(page), [], str(page))  # check the page before training
    ablation = _make_runner(plan, make_folder(output), on, benchmarks, keep_weights)
    ended = ablation.run()
    if ended.failed and not ended.results:
        raise InputError(next(iter(ended.failed.values())))
    summaries = [summarize(plan, each, ended.results) for each in plan.tables] if ended.results else []
    paths = [write_table(output, summary, plan.base.as_dict()) for summary in summaries]
    if page is not None and not ended.stopped:
        write_page(page, output)
    notes = make_console()
    _note(ablation, ended, notes)
    _report(summaries, paths, as_json)
    if ended.stopped:
        notes.print(
            f"stopped with {len(ended.results)} of {len(plan.runs)} runs finished; repeat the command to continue"
        )


def _make_runner(
    plan: AblationPlan, folder: Path, device: str, datasets: dict[str, tuple[Path, str]], keep_weights: bool
) -> AblationRunner:
    """Create the runner of a plan; `datasets` maps names to folders and splits."""

    def speed(network: nn.Module) -> ValidationResult:
        return ValidationResult(
            SPEED, {"milliseconds": measure_forward_ms(cast(ProtoFormer, network), plan.evaluation.size)}
        )

    def write_weights(network: nn.Module, path: Path) -> None:
        cast(ProtoFormer, network).save_weights(path, trained=True)

    return AblationRunner(
        plan,
        folder,
        device,
        speed,
        validators=tuple(dataset_validator(plan.task, name, root, split) for name, (root, split) in datasets.items()),
        make_observer=lambda run, before: _make_bar(plan, run, before),
        write_weights=write_weights if keep_weights else None,
    )


def _find_benchmarks(task: str, data: Path | None) -> dict[str, tuple[Path, str]]:
    """Return the folder and the split of each dataset that exists, by name."""
    if data is None:
        return {}
    benchmarks = {name: (data / folder, split) for name, folder, split in BENCHMARKS[task] if (data / folder).is_dir()}
    if not benchmarks:
        folders = ", ".join(folder for _, folder, _ in BENCHMARKS[task])
        raise InputError(f"--data is {data}, but it has none of the folders {folders}; give a folder that has one.")
    return benchmarks


def _read_page(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise InputError(f"the page {page} cannot be read; give --page an existing markdown file.") from None


def _make_bar(plan: AblationPlan, run: PlannedRun, before: int) -> Observer:
    bar = TrainingBar(run.name)
    bar.console.print(f"run {before + 1} of {len(plan.runs)}: {run.name}")
    return bar


def _note(ablation: AblationRunner, ended: AblationResult, notes: Console) -> None:
    """Print which runs failed, and which have no weights to keep."""
    runs = ablation.plan.runs
    for key, reason in ended.failed.items():
        notes.print(f"note: {runs[key].name} failed: {reason}", style="yellow")
    if ablation.write_weights is None:
        return
    missing = [
        runs[key].name for key in ended.results if not RunFolder(ablation.run_folder(runs[key])).weights.is_file()
    ]
    if missing:
        notes.print(
            f"note: runs that were finished without --keep-weights have no weights: {', '.join(missing)}; remove a "
            f"run's folder in {ablation.folder / 'runs'} to train it again.",
            style="yellow",
        )


def _report(summaries: list[Summary], paths: list[TablePaths], as_json: bool) -> None:
    if as_json:
        print_json(summaries, indent=1)
        return
    console = Console(width=max(240, Console().width))
    for summary, path in zip(summaries, paths, strict=True):
        console.print(ablation_table(summary))
        print(*describe_agreement(summary), sep="\n")
        print(f"wrote {path.markdown}, {path.csv.name}, {path.json.name} and {path.image.name}\n")
