"""The same sums a block of pixels at a time: what belongs to a block fits the cache, and no larger matrix is made."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.models.runtime import accumulation_dtype

BLOCK_ELEMENTS = 2**19
"""Values of one kind (in prototyping, heads x K x pixels) made at once: 2 MiB in float32.

On two cores with 1 MiB of second cache each and 32 MiB of third, CAP and LS of 108x240 pixels took 163, 134, 116, 111,
119, 139 and 155 ms with 2^16 to 2^22: many small products start too often, and large ones leave the cache.
"""
MIN_NORM = 1e-8
"""As in torch's cosine similarity: a shorter vector counts as this long."""
Layer = tuple[Tensor, Tensor]
"""Weight (outputs x inputs) and bias of a linear layer."""


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


def _memberships(queries: Tensor, keys: Tensor, logits: Tensor, out: Tensor) -> Tensor:
    """Memberships of the n pixels of one block, heads x n x K, written to `out`; `logits` is room for as many.

    queries, already scaled: heads x K x d; keys: heads x n x d. A pixel's K numbers lie side by side: torch's softmax
    then goes once over them, and faster into other memory than in place.
    """
    torch.bmm(keys, queries.transpose(1, 2), out=logits)
    return torch.softmax(logits, dim=2, out=out)


def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """As in `plain`, in float32 or better whatever comes in."""
    batch, heads, count, width = queries.shape
    dtype = accumulation_dtype(queries.dtype)
    sums = queries.new_zeros(batch, heads, count, width, dtype=dtype)
    mass = queries.new_zeros(batch, heads, count, dtype=dtype)
    scaled = queries.to(dtype) / math.sqrt(width)
    rooms = [_Room(scaled, heads * count) for _ in range(2)]
    for image in range(batch):
        for some in blocks(keys.shape[2], heads * count):
            key, value = keys[image, :, some].to(dtype), values[image, :, some].to(dtype)
            logits, shares = (room.view(heads, key.shape[1], count) for room in rooms)
            _memberships(scaled[image], key, logits, shares)
            sums[image].baddbmm_(shares.transpose(1, 2), value)
            mass[image] += shares.sum(dim=1)
    return sums, mass


def prototype_sums_backward(
    d_sums: Tensor, d_mass: Tensor, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, from memberships that are computed a second time."""
    batch, heads, count, width = queries.shape
    dtype = accumulation_dtype(queries.dtype)
    scale = width**-0.5
    scaled = queries.to(dtype) * scale
    d_queries = torch.zeros_like(scaled, memory_format=torch.contiguous_format)
    d_keys, d_values = like_tokens(keys), like_tokens(values)
    rooms = [_Room(scaled, heads * count) for _ in range(3)]
    for image in range(batch):
        for some in blocks(keys.shape[2], heads * count):
            key, value = keys[image, :, some].to(dtype), values[image, :, some].to(dtype)
            shares, slopes, product = (room.view(heads, key.shape[1], count) for room in rooms)
            _memberships(scaled[image], key, product, shares)
            torch.bmm(value, d_sums[image].transpose(1, 2), out=slopes)
            slopes += d_mass[image, :, None]
            slopes -= torch.mul(shares, slopes, out=product).sum(dim=2, keepdim=True)
            slopes *= shares
            d_keys[image, :, some] = torch.bmm(slopes, scaled[image])
            d_values[image, :, some] = torch.bmm(shares, d_sums[image])
            d_queries[image].baddbmm_(slopes.transpose(1, 2), key, alpha=scale)
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
    """As in `plain`, with the centers at unit length (`directions`)."""
    batch, pixels, channels = queries.shape
    attended = queries.new_empty(batch, pixels, channels)
    assignment = torch.empty(batch, pixels, dtype=torch.int64, device=queries.device)
    for image in range(batch):
        gates = _Gates(keys[image], alpha, beta)
        given = gates.split(values[image])
        for some in blocks(pixels, directions.shape[1] + 2 * channels):
            own = _nearest(features[image, some], directions[image], assignment[image, some])
            gate = gates.of(queries[image, some], own)
            attended[image, some] = (gate[..., None] * given.index_select(0, own)).flatten(1)
    return attended, assignment


def synchronize_and_feed(
    features: Tensor,
    directions: Tensor,
    query: Layer,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    feed_forward: tuple[Layer, Layer],
) -> tuple[Tensor, Tensor]:
    """Queries of the features, `synchronize`, and linear, GELU, linear of what it returns; without gradients.

    Returns B x HW x C and the assignment. The first layer of the network is linear, so what it makes of a pixel is the
    sum over heads of what it makes of the prototype's value in that head, times the gate: that is computed once for
    every prototype, and no product over pixels is left of it.
    """
    batch, pixels, _ = features.shape
    heads, ((first, first_bias), (second, second_bias)) = alpha.shape[0], feed_forward
    output = features.new_empty(batch, pixels, second.shape[0])
    assignment = torch.empty(batch, pixels, dtype=torch.int64, device=features.device)
    head = torch.arange(heads, device=features.device)
    for image in range(batch):
        gates = _Gates(keys[image], alpha, beta)
        made = torch.einsum("khd,ohd->kho", gates.split(values[image]), gates.split(first)).flatten(0, 1)
        for some in blocks(pixels, directions.shape[1] + first.shape[0]):
            own = _nearest(features[image, some], directions[image], assignment[image, some])
            gate = gates.of(F.linear(features[image, some], *query), own)
            hidden = F.embedding_bag(own[:, None] * heads + head, made, mode="sum", per_sample_weights=gate)
            hidden += first_bias
            torch.addmm(second_bias, F.gelu(hidden), second.T, out=output[image, some])
    return output, assignment


def _nearest(features: Tensor, directions: Tensor, out: Tensor) -> Tensor:
    """The prototype of greatest cosine similarity to each of n features (n x C), written to `out`: n, int64."""
    return torch.argmax(features.float() @ directions.T, dim=1, out=out)


class _Heads:
    """Heads of attention, each with its alpha and beta, in at least float32."""

    def __init__(self, dtype: torch.dtype, alpha: Tensor, beta: Tensor) -> None:
        self.heads = alpha.shape[0]
        self.dtype = accumulation_dtype(dtype)
        self.alpha, self.beta = alpha.to(self.dtype), beta.to(self.dtype)

    def split(self, tokens: Tensor) -> Tensor:
        """N x C to n x heads x d."""
        return tokens.view(tokens.shape[0], self.heads, -1).to(self.dtype)


class _Gates(_Heads):
    """How far each prototype of an image, keys K x C, is let through to a pixel."""

    def __init__(self, keys: Tensor, alpha: Tensor, beta: Tensor) -> None:
        super().__init__(keys.dtype, alpha, beta)
        self.directions = F.normalize(self.split(keys), dim=-1, eps=MIN_NORM)

    def of(self, queries: Tensor, own: Tensor) -> Tensor:
        """Gates of n pixels, queries n x C, for the prototypes that they are assigned to (n): n x heads."""
        query = self.split(queries)
        # Rows of what lies in memory row by row are taken several times as fast by index_select as by an index.
        along = (query * self.directions.index_select(0, own)).sum(dim=-1)
        cosine = along / torch.linalg.vector_norm(query, dim=-1).clamp_min(MIN_NORM)
        return torch.sigmoid(self.alpha * cosine + self.beta)


class _TracedGate(_Heads):
    """How far the prototype of each of n pixels is let through, n x heads, and how that came about."""

    def __init__(self, queries: Tensor, keys: Tensor, alpha: Tensor, beta: Tensor) -> None:
        """queries, keys: n x C, of the pixels and of the prototypes that they are assigned to."""
        super().__init__(queries.dtype, alpha, beta)
        self.query, self.query_norm, self.query_raised = self._direction(queries)
        self.key, self.key_norm, self.key_raised = self._direction(keys)
        self.cosine = (self.query * self.key).sum(dim=-1)
        self.gate = torch.sigmoid(self.alpha * self.cosine + self.beta)

    def _direction(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors at unit length, what they were divided by, and that over their own length (0 for zeros)."""
        vectors = self.split(tokens)
        length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        norm = length.clamp_min(MIN_NORM)
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
    dtype = accumulation_dtype(queries.dtype)
    d_queries = queries.new_empty(batch, pixels, channels)
    d_keys, d_values = (keys.new_zeros(keys.shape, dtype=dtype) for _ in range(2))
    d_alpha, d_beta = (alpha.new_zeros(alpha.shape, dtype=dtype) for _ in range(2))
    for image in range(batch):
        for some in blocks(pixels, 8 * channels):
            own = assignment[image, some]
            gate = _TracedGate(queries[image, some], keys[image].index_select(0, own), alpha, beta)
            arriving = gate.split(d_attended[image, some])
            value = gate.split(values[image].index_select(0, own))
            d_query, d_key, for_alpha, for_beta = gate.backward((arriving * value).sum(dim=-1))
            d_queries[image, some] = d_query.flatten(1)
            d_keys[image].index_add_(0, own, d_key.flatten(1))
            d_values[image].index_add_(0, own, (gate.gate[..., None] * arriving).flatten(1))
            d_alpha += for_alpha.sum(dim=0)
            d_beta += for_beta.sum(dim=0)
    d_alpha, d_beta = d_alpha.to(alpha.dtype), d_beta.to(beta.dtype)
    return d_queries, d_keys.to(keys.dtype), d_values.to(values.dtype), d_alpha, d_beta
