"""Motion from video on one prototype-based encoder: `load` a model, hand it images, save what it returns.

What it offers stands in `protoformer.app.library`, which is imported when something of it is first asked for: that
takes seconds, and nobody who only starts the command or reads the version should have to wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from protoformer.app.library import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name == "__all__" or not name.startswith("__"):
            library = import_module("protoformer.app.library")
            if name == "__all__" or name in library.__all__:
                return getattr(library, name)
            if name in globals():  # a room, which came with the rest
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
