"""Commands that take a clip, which may be a pattern of names."""

from typing import Any

from typer.core import TyperCommand

from protoformer.errors import InputError
from protoformer.inference.brief import count_fact

QUOTE = "quote a pattern, as in 'img/*.jpg', or give the folder of the images"
"""What to do where the shell has put all names in the place of a pattern."""


class ClipCommand(TyperCommand):
    """Says what to do about names that are too many, since most often a pattern was not quoted."""

    allow_extra_args = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; refuse what is left over."""
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            what = count_fact(len(rest), "name")
            raise InputError(f"{ctx.command.name} got {what} too many, from {rest[0]} on; {QUOTE}.")
        return rest
