"""The exception for bad input, and helpers that keep its messages short and useful."""

import json
import os
from collections.abc import Sequence
from difflib import SequenceMatcher
from importlib import metadata
from pathlib import Path

_MAX_COMPARED = 100
"""Characters of a name that are compared with the valid names."""


class InputError(ValueError):
    """Invalid input from the user or from a file.

    The message is one sentence that says what is wrong, where, and what to do. The command line prints it and exits
    with code 2.
    """


class UntrainedWarning(UserWarning):
    """A model was loaded whose weights are random."""


def shorten(text: object, max_length: int = 300) -> str:
    """Format text from a file for an error message: on one line, with the middle cut out of a long text.

    Args:
        text: The text, or an object whose `str` is used, such as another exception.
        max_length: Maximum number of characters of the result.

    Returns:
        The text, with control characters and line breaks written as escapes.
    """
    text = str(text)
    ends = text if len(text) <= max_length else text[:max_length] + text[-max_length:]
    escaped = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in ends)
    if len(text) <= max_length and len(escaped) <= max_length:
        return escaped
    gap = " ... "
    tail = (max_length - len(gap)) // 3
    return escaped[: max_length - len(gap) - tail] + gap + escaped[-tail:]


def closest_name(name: str, choices: Sequence[str]) -> str:
    """Find the valid name that is most similar to a misspelled one.

    Args:
        name: The misspelled name. Only its first 100 characters are compared, which bounds the time.
        choices: The valid names, at least one.

    Returns:
        The valid name with the highest `difflib.SequenceMatcher.ratio`; the first of equals.
    """
    # Not get_close_matches: it takes the last of equals, and the matcher caches its second sequence.
    matcher = SequenceMatcher(autojunk=False, b=name[:_MAX_COMPARED])

    def similarity(candidate: str) -> float:
        matcher.set_seq1(candidate)
        return matcher.ratio()

    return max(choices, key=similarity)


def install_command(extra: str) -> str:
    """Return the command that installs an optional group of dependencies, for the way this package was installed.

    Args:
        extra: Name of the group, such as "web".
    """
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file() and checkout.joinpath("src").is_dir():
        return f"pip install -e '{_short_path(checkout)}[{extra}]'"
    try:
        origin = json.loads(metadata.distribution("protoformer").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    url = origin.get("url", "")
    if "vcs_info" in origin:
        url = f"{origin['vcs_info'].get('vcs', 'git')}+{url}@{origin['vcs_info'].get('commit_id', 'HEAD')}"
    return f"pip install 'protoformer[{extra}]{f' @ {url}' if url else ''}'"


def _short_path(folder: Path) -> str:
    """Return the path of a folder, relative to the current one if it is that or below it."""
    with_parents = os.path.relpath(folder)
    return str(folder) if with_parents.startswith("..") else with_parents
