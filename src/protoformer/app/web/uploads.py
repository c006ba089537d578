"""Files that clients name in their requests: only uploads and downloads of the page itself are accepted.

gradio checks a path only where the client marked it as an upload, and follows symbolic links. Every value that a client
sends is checked here before gradio or a tab looks at it.
"""

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protoformer.app.web.gradio_package import require_gradio

_CACHED = re.compile("[0-9a-f]{64}")
"""The name of the folder in which gradio keeps one upload or download: a digest, salted, of what the file holds."""
REFUSED = "A file is not among the uploads of this page, or was deleted in the meantime; choose it again."


def served_file(path: object, root: Path) -> Path | None:
    """Check that a path from a client names a file that the page serves.

    Args:
        path: What the client sent.
        root: The folder of uploads and downloads, absolute and without symbolic links.

    Returns:
        The path, or None unless it is the absolute path of a regular file in a folder of gradio's below `root`, with no
        symbolic link and no `..` on the way. Files that are still being uploaded lie in `root` itself: not served.
    """
    if not isinstance(path, str) or "\0" in path:
        return None
    found = Path(path)
    try:
        if str(found) != path or str(found.resolve(strict=True)) != path:
            return None
        regular = stat.S_ISREG(found.lstat().st_mode)
    except (OSError, ValueError, RuntimeError):  # also names that no file can have, and links in a circle
        return None
    return found if regular and found.parent.parent == root and _CACHED.fullmatch(found.parent.name) else None


def check_files(value: object, root: Path) -> None:
    """Refuse a value from a client that names any other file, however deep in it.

    Raises:
        gradio.Error: The sentence that the client gets, the same whether or not such a file exists.
    """
    for path in _paths_in(value):
        if path is not None and served_file(path, root) is None:
            raise require_gradio().Error(REFUSED, print_exception=False)


def check_inputs(page: Any, root: Path) -> None:
    """Let a gradio page check the values of every request before it handles them.

    Args:
        page: The `gradio.Blocks`.
        root: The folder of uploads and downloads.
    """
    handle = page.preprocess_data

    async def preprocess_data(block_fn: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        check_files(inputs, root)
        return await handle(block_fn, inputs, *rest, **named)

    page.preprocess_data = preprocess_data


def _paths_in(value: object) -> Iterator[object]:
    """Every `path` of an object in decoded JSON. A stack, because a client may nest deeper than Python recurses."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            if "path" in current:
                yield current["path"]
            waiting.extend(current.values())
        elif isinstance(current, list | tuple):
            waiting.extend(current)
