"""PyAV, which brings ffmpeg: imported when a movie is first read or written, because not every machine has it."""

from importlib import import_module
from types import ModuleType

from protoformer.errors import InputError


def require_av() -> ModuleType:
    """The package `av`, or an `InputError` that says how to get it."""
    try:
        return import_module("av")
    except ImportError:
        raise InputError("videos are read and written with PyAV, which is not installed: pip install av.") from None
