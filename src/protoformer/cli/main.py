"""The command `protoformer`: a group whose commands are imported when they are called."""

import os
import signal
import sys
import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from protoformer.errors import InputError, UntrainedWarning


@dataclass(frozen=True)
class LazyCommand:
    """A command that is imported when it is called.

    Attributes:
        module: In `protoformer.cli`; it defines a function, or a `typer.Typer`, of the command's name.
        summary: The first line of its help.
        takes_clip: Whether the error for surplus arguments explains that patterns must be quoted.
    """

    module: str
    summary: str
    takes_clip: bool = False


COMMANDS = {
    "flow": LazyCommand("flow", "Estimate optical flow between two images or along a video.", takes_clip=True),
    "depth": LazyCommand("depth", "Estimate metric depth of images or of a video."),
    "track": LazyCommand("track", "Track objects through a video from boxes in its first frame.", takes_clip=True),
    "explain": LazyCommand(
        "explain", "Show the prototypes of images or a video, on an interactive page or as a video."
    ),
    "stabilize": LazyCommand("stabilize", "Stabilize a shaky video; sound, times and size are kept.", takes_clip=True),
    "segment": LazyCommand(
        "segment",
        "Segment what moves on its own in a video: one mask per object, with the same number in every frame.",
        takes_clip=True,
    ),
    "models": LazyCommand("models", "List the models: tasks, size, cost, weights and license."),
    "demo": LazyCommand("demo", "Run all tasks on packaged clips and synthetic scenes, and write one HTML page."),
    "synth": LazyCommand("synth", "Render synthetic scenes with exact ground truth."),
    "train": LazyCommand("train", "Train a network by a recipe; the same command resumes a stopped run."),
    "ablate": LazyCommand(
        "ablate",
        "Train the paper's ablation tables and further ones: every variant with the same budget, seeds and data.",
    ),
    "export": LazyCommand("export", "Export a network to ONNX or torch.export, and check the file against it."),
    "serve": LazyCommand("serve", "Serve a web page for all tasks, on this machine only unless --host is given."),
    "evaluate": LazyCommand("evaluate", "Evaluate by the rules of a benchmark."),
    "datasets": LazyCommand("datasets", "List and check public datasets on disk."),
    "batch": LazyCommand("batch", "Process many videos; finished ones are skipped."),
}
"""Commands by name, in the order of the help."""


class LazyGroup(TyperGroup):
    """A group that lists its commands by name and summary, and imports only the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command and the rest of the arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, rest


def load_command(name: str) -> Any:
    """Import a command and build it."""
    entry = COMMANDS[name]
    target = getattr(_import_quietly(f"protoformer.cli.{entry.module}"), name)
    if not isinstance(target, typer.Typer):
        from protoformer.cli.clips import ClipCommand

        single = _make_app()
        single.command(name, cls=ClipCommand if entry.takes_clip else None)(target)
        target = single
    command = typer.main.get_command(target)
    command.name = name
    return command


def _import_quietly(name: str) -> Any:
    """Import a module; Ctrl-C during the import, which takes seconds with torch, exits silently.

    No exception is raised, because some packages would report it as a failed import.
    """
    if signal.getsignal(signal.SIGINT) != signal.default_int_handler:
        return import_module(name)
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    try:
        return import_module(name)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _make_app(**options: Any) -> typer.Typer:
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown", **options)


def _add_stub(app: typer.Typer, name: str, summary: str) -> None:
    """List a command in the help without importing it."""

    def stub() -> None:
        """Replaced by `LazyGroup`."""

    app.command(name, help=summary)(stub)


app = _make_app(
    name="protoformer",
    help="Optical flow, depth, tracking, stabilization and segmentation with a prototype-based encoder.",
    no_args_is_help=True,
    cls=LazyGroup,
)
for _name, _entry in COMMANDS.items():
    _add_stub(app, _name, _entry.summary)


THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")
"""Environment variables by which torch, numpy and OpenCV choose their number of threads when they are imported."""


def _limit_threads(count: int | None) -> int | None:
    """Limit the threads of this process and of its worker processes."""
    if count is not None:
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(count)))
    return count


@app.callback(invoke_without_command=True)
def about(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    threads: int | None = typer.Option(
        None,
        min=1,
        is_eager=True,  # before the command is imported, and torch with it
        callback=_limit_threads,
        help="Threads of each process, before the command: protoformer --threads 1 flow ... [default: one per core]",
    ),
) -> None:
    """Optical flow, depth, tracking, stabilization and segmentation with a prototype-based encoder."""
    if version:
        from protoformer import __version__

        print(f"protoformer {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; bad input ends it with one sentence and exit code 2."""

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, UntrainedWarning):
            _print_notice(f"note: {message}", "yellow")

    warnings.showwarning = show
    try:
        app()
    except InputError as error:
        _print_notice(f"protoformer: {error}", "red")
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        from protoformer.io.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _print_notice(f"protoformer: out of memory; {_advice(sys.argv[1:])}.", "red")
        sys.exit(2)


def _print_notice(text: str, style: str) -> None:
    from rich.console import Console

    Console(stderr=True, soft_wrap=True, highlight=False, emoji=False, markup=False).print(text, style=style)


def _advice(arguments: list[str]) -> str:
    """Return advice on how a command needs less memory."""
    if arguments[:1] in (["train"], ["ablate"]):
        return "lower data.batch_size, or set model.activation_checkpointing=true, which takes more time instead"
    if arguments[:1] in (["flow"], ["batch"]):
        return "give --memory, such as 2GB, so that large images are processed in tiles, or close other programs"
    return "make the images smaller or close other programs"
