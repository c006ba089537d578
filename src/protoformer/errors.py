"""The exception for bad input, and helpers that keep its messages short and useful."""

from collections.abc import Sequence
from difflib import SequenceMatcher

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
