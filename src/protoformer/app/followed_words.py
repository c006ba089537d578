"""How well the prototypes of a clip were followed, in words."""

from protoformer.inference.prototype_video import FollowedTally


def followed_words(tally: FollowedTally) -> str:
    """What to add to a sentence about a clip; nothing where there is one frame."""
    if tally.kept is None:
        return ""
    return f"; {tally.kept:.0%} of a frame's pixels belong to one that the frame before had"
