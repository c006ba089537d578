"""gradio, which serves the page: imported when the page is made, because not every machine has it."""

from importlib import import_module
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
