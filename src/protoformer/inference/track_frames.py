"""The frames that people hand to a tracker, whichever it is."""

from protoformer.errors import InputError


def check_size(size: tuple[int, int], first: tuple[int, int]) -> None:
    """Refuse a frame whose (height, width) is not that of the first."""
    if size != first:
        raise InputError(
            f"the frame is {size[1]}x{size[0]} where the first was {first[1]}x{first[0]}; give frames of one size, or "
            "reset the tracker."
        )
