"""How kernels share out the rows of a sum."""

import math


def parts_of(rows: int, block: int, most: int) -> tuple[int, int]:
    """Into how many parts, at most `most`, rows go, and the rows of a part, whole blocks of them."""
    blocks = math.ceil(rows / block)
    each = math.ceil(blocks / max(1, most))
    return math.ceil(blocks / each), each * block
