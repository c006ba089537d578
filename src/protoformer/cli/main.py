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
        takes_clip: Whether an unquoted pattern, which a shell replaces by many names, gets an error that says so.
    """

    module: str
    summary: str
    takes_clip: bool = False


COMMANDS = {
    "flow": LazyCommand(
        "flow", "Motion of every pixel from one image to the next, for two images or all of a clip.", takes_clip=True
    ),
    "depth": LazyCommand("depth", "How far away everything is, in meters, for images or all of a clip."),
    "track": LazyCommand(
        "track", "Follow things through a clip from the boxes around them in its first frame.", takes_clip=True
    ),
    "explain": LazyCommand(
        "explain", "What the network grouped: a page on which groups light up under the mouse, pictures, and numbers."
    ),
    "stabilize": LazyCommand(
        "stabilize", "Make a shaky clip steady; its sound, frame rate, times and size are kept.", takes_clip=True
    ),
    "models": LazyCommand("models", "The models there are: tasks, size, cost, weights and license."),
    "demo": LazyCommand("demo", "Everything that works, on built-in images: one html page with pictures."),
    "synth": LazyCommand("synth", "Clips of made-up scenes with their exact truth, in the layouts of public datasets."),
    "train": LazyCommand("train", "Train a network by a recipe; stop it with Ctrl-C, and go on with the same command."),
    "ablate": LazyCommand(
        "ablate", "The paper's ablation tables, trained anew: every variant with the same budget, seeds and data."
    ),
    "export": LazyCommand("export", "A model as a file that runs without this package, checked against it."),
    "serve": LazyCommand(
        "serve", "A web page for every task and for prototypes, on this machine alone unless --host says otherwise."
    ),
    "evaluate": LazyCommand("evaluate", "A benchmark's table, beside what others score."),
    "datasets": LazyCommand("datasets", "Public datasets on your disk."),
    "batch": LazyCommand("batch", "Many videos at once, each done once."),
}
"""Commands by name, in the order of the help."""


class LazyGroup(TyperGroup):
    """A group that knows the names and summaries of its commands, and imports the one that is called."""

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
    """Import a module; Ctrl-C meanwhile, which takes seconds where torch comes along, ends the program without a word.

    It raises no exception, which some packages take for their own failure.
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
    help="Motion from video on one prototype-based encoder.",
    no_args_is_help=True,
    cls=LazyGroup,
)
for _name, _entry in COMMANDS.items():
    _add_stub(app, _name, _entry.summary)


@app.callback(invoke_without_command=True)
def about(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Motion from video on one prototype-based encoder."""
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
        _print_notice(f"protoformer: the memory ran out; {_advice(sys.argv[1:])}.", "red")
        sys.exit(2)


def _print_notice(text: str, style: str) -> None:
    from rich.console import Console

    Console(stderr=True, soft_wrap=True, highlight=False, emoji=False, markup=False).print(text, style=style)


def _advice(arguments: list[str]) -> str:
    """What makes a command need less memory."""
    if arguments[:1] in (["train"], ["ablate"]):
        return "lower data.batch, or set model.checkpoint_gradients=true, which takes more time instead"
    if arguments[:1] in (["flow"], ["batch"]):
        return "give --memory, such as 2GB, within which large images go in windows, or close other programs"
    return "make the images smaller or close other programs"
