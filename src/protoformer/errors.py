"""The one exception a person can cause, and the name that they may have meant."""

_LONGEST_NAME = 100
"""Letters of a name that are compared with known ones."""


class InputError(ValueError):
    """Bad input from outside: the message is one sentence that says what is wrong, where, and what to do.

    The command line prints the message and exits with code 2; the library raises it as it is.
    """


class UntrainedWarning(UserWarning):
    """A model was loaded whose weights are random."""


def shortened(text: object, most: int = 300) -> str:
    """Text from a file for use in a message: on one line, and with its middle left out where it is long.

    Args:
        text: Any text, or what is to be written as one, such as another error.
        most: Characters of the result.

    Returns:
        The text, with control characters and line breaks written as escapes.
    """
    text = str(text)
    part = text if len(text) <= most else text[:most] + text[-most:]
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in part)
    if len(text) <= most and len(shown) <= most:
        return shown
    gap = " ... "
    tail = (most - len(gap)) // 3
    return shown[: most - len(gap) - tail] + gap + shown[-tail:]


def nearest(name: str, known: "list[str] | tuple[str, ...]") -> str:
    """The known name that has most of its letters in common with another, in their order; `known` has at least one."""
    name = name[:_LONGEST_NAME]  # the search takes time in proportion to it
    return max(known, key=lambda each: 2 * _common(name, each) / max(1, len(name) + len(each)))


def _common(one: str, other: str) -> int:
    """How many letters of two names follow one another in both."""
    row = [0] * (len(other) + 1)
    for letter in one:
        above, row = row, [0]
        for place, each in enumerate(other):
            row.append(above[place] + 1 if each == letter else max(above[place + 1], row[place]))
    return row[-1]
