"""Pillow without its warnings, safe with threads."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_lock = threading.Lock()
_scope = ExitStack()
_depth = 0


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings (large image, odd metadata), which here end as an error or do not matter.

    The filters are global to the process, so threads that decode at once share one scope: the first sets it, the last
    restores it. Only warnings raised inside Pillow are touched.
    """
    global _depth  # noqa: PLW0603 - the filters themselves are global
    with _lock:
        if _depth == 0:
            _scope.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _scope.close()
