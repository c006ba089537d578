"""`protoformer evaluate`."""

from typing import Any

import typer
from typer.core import TyperGroup

from protoformer.app.evaluate_depth import evaluate_depth_command
from protoformer.app.evaluate_flow import evaluate_flow_command
from protoformer.app.evaluate_stabilize import evaluate_stabilize_command
from protoformer.app.evaluate_track import evaluate_track_command
from protoformer.errors import InputError


class _Tasks(TyperGroup):
    """A task that is not there is one sentence."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a task."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            raise InputError(f"{cmd_name!r} cannot be evaluated; evaluate one of {', '.join(self.commands)}.")
        return found


evaluate = typer.Typer(help="A benchmark's table, beside what others score.", no_args_is_help=True, cls=_Tasks)


@evaluate.callback()
def _by_task() -> None:
    """A benchmark's table, beside what others score."""


evaluate.command("flow")(evaluate_flow_command)
evaluate.command("depth")(evaluate_depth_command)
evaluate.command("track")(evaluate_track_command)
evaluate.command("stabilize")(evaluate_stabilize_command)
