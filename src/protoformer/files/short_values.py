"""Values that a user gave, short enough to stand in a message."""

import reprlib

from protoformer.errors import shortened

LONGEST_SHOWN = 120
"""Characters of a value in a message; the middle of what is longer is left out."""


class _Short(reprlib.Repr):
    """Looks at a few items of each list and mapping, so that it is quick however large a value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 8
        self.maxstring = self.maxother = LONGEST_SHOWN

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write numbers of more than 4300 digits, and takes long for those of fewer.
        return repr(x) if x.bit_length() < 128 else f"a whole number of {x.bit_length()} bits"


_SHORT = _Short()


def shown(value: object) -> str:
    """Return `repr(value)`, or as much of it as a message can bear."""
    return shortened(_SHORT.repr(value), LONGEST_SHOWN)
