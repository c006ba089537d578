"""The command `protoformer`."""

import sys
import warnings

import typer
from rich.console import Console

from protoformer.app.ablate_command import ablate
from protoformer.app.batch_command import batch
from protoformer.app.clip_command import ClipCommand
from protoformer.app.data_command import data
from protoformer.app.demo_command import demo
from protoformer.app.depth_command import depth
from protoformer.app.evaluate_command import evaluate
from protoformer.app.explain_command import explain
from protoformer.app.export_command import export
from protoformer.app.flow_command import flow
from protoformer.app.memory_errors import is_out_of_memory
from protoformer.app.models_command import models
from protoformer.app.serve_command import serve
from protoformer.app.stabilize_command import stabilize
from protoformer.app.track_command import track
from protoformer.app.train_command import train
from protoformer.app.world_command import world
from protoformer.errors import InputError
from protoformer.inference import UntrainedWarning

app = typer.Typer(
    name="protoformer",
    help="Motion from video on one prototype-based encoder.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command(cls=ClipCommand)(flow)
app.command()(depth)
app.command(cls=ClipCommand)(track)
app.command()(explain)
app.command(cls=ClipCommand)(stabilize)
app.command()(models)
app.command()(demo)
app.command()(world)
app.command()(train)
app.command()(ablate)
app.command()(export)
app.command()(serve)
app.add_typer(evaluate, name="evaluate")
app.add_typer(data, name="data")
app.add_typer(batch, name="batch")


@app.callback(invoke_without_command=True)
def about(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Motion from video on one prototype-based encoder."""
    if version:
        from protoformer import __version__

        print(f"protoformer {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; bad input ends it with one sentence and exit code 2."""
    notices = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False, markup=False)

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, UntrainedWarning):
            notices.print("note:", str(message), style="yellow")

    warnings.showwarning = show
    try:
        app()
    except InputError as error:
        notices.print("protoformer:", str(error), style="red")
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        notices.print(f"protoformer: the memory ran out; {_advice(sys.argv[1:])}.", style="red")
        sys.exit(2)


def _advice(arguments: list[str]) -> str:
    """What makes a command need less memory."""
    if arguments[:1] in (["train"], ["ablate"]):
        return "lower data.batch, or set model.checkpoint_gradients=true, which takes more time instead"
    if arguments[:1] in (["flow"], ["batch"]):
        return "give --memory, such as 2GB, within which large images go in windows, or close other programs"
    return "make the images smaller or close other programs"
