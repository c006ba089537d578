"""gradio, which serves the page: imported when the page is made, because not every machine has it."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from protoformer.errors import InputError


def require_gradio() -> Any:
    """The package `gradio`, or an `InputError` that says how to get it."""
    try:
        return import_module("gradio")
    except ImportError:
        raise InputError(
            "the web page is served with gradio, which is not installed: pip install 'protoformer[web]'."
        ) from None


def prepare_gradio(served: Path) -> Any:
    """Import gradio with settings of this page alone.

    gradio reads its environment variables while it is imported and later. Some of them open further files, ports or
    debugging aids, so none is taken over from the user's environment.

    Args:
        served: The folder for uploads and downloads, which is made. gradio puts every other file of its own there, too.
    """
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    served.mkdir(parents=True, exist_ok=True)
    os.environ["GRADIO_TEMP_DIR"] = str(served)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    return require_gradio()
