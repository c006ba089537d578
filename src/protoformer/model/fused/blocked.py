"""The same sums a block of pixels at a time: what belongs to a block fits the cache, and no larger matrix is made."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from protoformer.model.precision import accumulated

BLOCK_ELEMENTS = 2**18
"""Memberships (heads x K x pixels) made at once: 1 MiB in float32, which a core's second cache holds about once."""
LEAST_NORM = 1e-8
"""As in torch's cosine similarity: a shorter vector counts as this long."""


def blocks(pixels: int, per_pixel: int) -> Iterator[slice]:
    """Cut a row of pixels into ranges that make BLOCK_ELEMENTS values, if a pixel makes `per_pixel`."""
    step = max(1, BLOCK_ELEMENTS // per_pixel)
    return (slice(start, min(start + step, pixels)) for start in range(0, pixels, step))


class _Room:
    """Memory for the values of one block, taken once: what every block takes anew is not in the cache yet."""

    def __init__(self, like: Tensor, per_pixel: int) -> None:
        self.memory = like.new_empty(max(per_pixel, BLOCK_ELEMENTS))

    def view(self, *shape: int) -> Tensor:
        """Its first values as a tensor of this shape."""
        return self.memory[: math.prod(shape)].view(shape)


def _unnormalised(queries: Tensor, keys: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Memberships of one block up to a factor of each pixel, heads x K x n, and their sums over K, heads x 1 x n.

    queries, already scaled: heads x K x d; keys: heads x n x d.
    """
    shares = torch.bmm(queries, keys.transpose(1, 2), out=out)
    shares -= shares.amax(dim=1, keepdim=True)
    shares.exp_()
    return shares, shares.sum(dim=1, keepdim=True)


def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """As in `plain`, in float32 or better whatever comes in."""
    batch, heads, count, width = queries.shape
    dtype = accumulated(queries.dtype)
    found = queries.new_zeros(batch, heads, count, width + 1, dtype=dtype)
    scaled = queries.to(dtype) / math.sqrt(width)
    room = _Room(scaled, heads * count)
    for image in range(batch):
        for some in blocks(keys.shape[2], heads * count):
            key, value = keys[image, :, some].to(dtype), values[image, :, some]
            shares, totals = _unnormalised(scaled[image], key, room.view(heads, count, key.shape[1]))
            # A pixel's factor goes to its value, and to the 1 that is summed to the mass: fewer numbers than K shares.
            given = value.new_ones(*value.shape[:2], width + 1, dtype=dtype)
            given[..., :width] = value
            given /= totals.transpose(1, 2)
            found[image].baddbmm_(shares, given)
    copied = torch.contiguous_format
    return found[..., :width].clone(memory_format=copied), found[..., width].clone(memory_format=copied)


def prototype_sums_backward(
    d_sums: Tensor, d_mass: Tensor, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, from memberships that are computed a second time."""
    batch, heads, count, width = queries.shape
    dtype = accumulated(queries.dtype)
    scale = width**-0.5
    scaled = queries.to(dtype) * scale
    d_queries = torch.zeros_like(scaled, memory_format=torch.contiguous_format)
    d_keys, d_values = like_tokens(keys), like_tokens(values)
    rooms = [_Room(scaled, heads * count) for _ in range(3)]
    for image in range(batch):
        for some in blocks(keys.shape[2], heads * count):
            key, value = keys[image, :, some].to(dtype), values[image, :, some].to(dtype)
            shares, slopes, product = (room.view(heads, count, key.shape[1]) for room in rooms)
            shares /= _unnormalised(scaled[image], key, shares)[1]
            torch.bmm(d_sums[image], value.transpose(1, 2), out=slopes)
            slopes += d_mass[image, :, :, None]
            slopes -= torch.mul(shares, slopes, out=product).sum(dim=1, keepdim=True)
            slopes *= shares
            d_keys[image, :, some] = torch.bmm(slopes.transpose(1, 2), scaled[image])
            d_values[image, :, some] = torch.bmm(shares.transpose(1, 2), d_sums[image])
            d_queries[image].baddbmm_(slopes, key, alpha=scale)
    return d_queries.to(queries.dtype), d_keys, d_values


def like_tokens(split: Tensor) -> Tensor:
    """Room for B x heads x n x d laid out as B x n x (heads d), which is what the projections give and want back."""
    batch, heads, pixels, width = split.shape
    return split.new_empty(batch, pixels, heads, width).transpose(1, 2)


def synchronize(
    features: Tensor,
    directions: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
) -> tuple[Tensor, Tensor]:
    """As in `plain`, with the centres at unit length (`directions`)."""
    batch, pixels, channels = queries.shape
    attended = queries.new_empty(batch, pixels, channels)
    assignment = torch.empty(batch, pixels, dtype=torch.int64, device=queries.device)
    for image in range(batch):
        for some in blocks(pixels, directions.shape[1] + 4 * channels):
            similarity = features[image, some].float() @ directions[image].T
            own = torch.argmax(similarity, dim=1, out=assignment[image, some])
            gate = _Gate(queries[image, some], keys[image][own], alpha, beta)
            value = gate.split(values[image][own])
            attended[image, some] = (gate.gate[..., None] * value).flatten(1)
    return attended, assignment


class _Gate:
    """How far the prototype of each of n pixels is let through, n x heads, and how that came about."""

    def __init__(self, queries: Tensor, keys: Tensor, alpha: Tensor, beta: Tensor) -> None:
        """queries, keys: n x C, of the pixels and of the prototypes that they are assigned to."""
        self.heads = alpha.shape[0]
        self.dtype = accumulated(queries.dtype)
        self.alpha, self.beta = alpha.to(self.dtype), beta.to(self.dtype)
        self.query, self.query_norm, self.query_raised = self._direction(queries)
        self.key, self.key_norm, self.key_raised = self._direction(keys)
        self.cosine = (self.query * self.key).sum(dim=-1)
        self.gate = torch.sigmoid(self.alpha * self.cosine + self.beta)

    def split(self, tokens: Tensor) -> Tensor:
        """N x C to n x heads x d."""
        return tokens.view(tokens.shape[0], self.heads, -1).to(self.dtype)

    def _direction(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors at unit length, what they were divided by, and that over their own length (0 for zeros)."""
        vectors = self.split(tokens)
        length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        norm = length.clamp_min(LEAST_NORM)
        return vectors / norm, norm, torch.where(length > 0, norm / length, 0.0)

    def backward(self, d_gate: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of the queries and keys (n x heads x d), and of alpha and beta by pixel (n x heads)."""
        d_logit = d_gate * self.gate * (1 - self.gate)
        d_cosine = (d_logit * self.alpha)[..., None]
        # Like torch's own gradient, this does not know of the least length.
        along_query = self.cosine[..., None] * self.query * self.query_raised
        along_key = self.cosine[..., None] * self.key * self.key_raised
        d_query = d_cosine * (self.key - along_query) / self.query_norm
        d_key = d_cosine * (self.query - along_key) / self.key_norm
        return d_query, d_key, d_logit * self.cosine, d_logit


def synchronize_backward(
    d_attended: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    assignment: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values, alpha and beta; the assignment has none."""
    batch, pixels, channels = queries.shape
    dtype = accumulated(queries.dtype)
    d_queries = queries.new_empty(batch, pixels, channels)
    d_keys, d_values = (keys.new_zeros(keys.shape, dtype=dtype) for _ in range(2))
    d_alpha, d_beta = (alpha.new_zeros(alpha.shape, dtype=dtype) for _ in range(2))
    for image in range(batch):
        for some in blocks(pixels, 8 * channels):
            own = assignment[image, some]
            gate = _Gate(queries[image, some], keys[image][own], alpha, beta)
            arriving = gate.split(d_attended[image, some])
            value = gate.split(values[image][own])
            d_query, d_key, for_alpha, for_beta = gate.backward((arriving * value).sum(dim=-1))
            d_queries[image, some] = d_query.flatten(1)
            d_keys[image].index_add_(0, own, d_key.flatten(1))
            d_values[image].index_add_(0, own, (gate.gate[..., None] * arriving).flatten(1))
            d_alpha += for_alpha.sum(dim=0)
            d_beta += for_beta.sum(dim=0)
    d_alpha, d_beta = d_alpha.to(alpha.dtype), d_beta.to(beta.dtype)
    return d_queries, d_keys.to(keys.dtype), d_values.to(values.dtype), d_alpha, d_beta
