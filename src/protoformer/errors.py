"""The one exception a person can cause, and the name that they may have meant."""


class InputError(ValueError):
    """Bad input from outside: the message is one sentence that says what is wrong, where, and what to do.

    The command line prints the message and exits with code 2; the library raises it as it is.
    """


def nearest(name: str, known: "list[str] | tuple[str, ...]") -> str:
    """The known name that has most of its letters in common with another, in their order; `known` has at least one."""
    name = name[:64]  # longer ones take long to compare, and no known one is as long
    return max(known, key=lambda each: 2 * _common(name, each) / max(1, len(name) + len(each)))


def _common(one: str, other: str) -> int:
    """How many letters of two names follow one another in both."""
    row = [0] * (len(other) + 1)
    for letter in one:
        above, row = row, [0]
        for place, each in enumerate(other):
            row.append(above[place] + 1 if each == letter else max(above[place + 1], row[place]))
    return row[-1]
