"""The two shapes of a feature map, and the heads of attention."""

from torch import Tensor


def tokens_of(maps: Tensor) -> Tensor:
    """B x C x H x W to B x HW x C, row by row."""
    return maps.flatten(2).transpose(1, 2)


def maps_of(tokens: Tensor, size: tuple[int, int]) -> Tensor:
    """B x HW x C to B x C x H x W, the inverse of `tokens_of`."""
    # Not reshaped, which gives a batch of one a stride by which convolutions do not see that channels come last.
    return tokens.view(tokens.shape[0], *size, tokens.shape[2]).permute(0, 3, 1, 2)


def size_of(maps: Tensor) -> tuple[int, int]:
    """The (H, W) of B x C x H x W."""
    return maps.shape[2], maps.shape[3]


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """B x n x C to B x heads x n x C / heads."""
    return tokens.view(*tokens.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(heads: Tensor) -> Tensor:
    """B x heads x n x d to B x n x (heads d), the inverse of `split_heads`."""
    return heads.transpose(1, 2).flatten(2)
