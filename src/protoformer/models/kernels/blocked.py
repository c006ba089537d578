"""CAP and LS in torch over blocks of pixels that fit the cache; no larger intermediate matrix is stored."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.models.kernels.reference import PriorCoefficients
from protoformer.models.runtime import accumulation_dtype

BLOCK_ELEMENTS = 2**19
"""Values of one intermediate (in prototyping, heads x K x pixels) computed at a time: 2 MiB in float32.

On two cores with 1 MiB of L2 cache each and 32 MiB of L3 cache, CAP and LS of 108x240 pixels took 163, 134, 116, 111,
119, 139 and 155 ms with 2^16 to 2^22: small products have more overhead, and large ones do not fit the cache.
"""
MIN_NORM = 1e-8
"""Lower bound of a norm in cosine similarities, as in torch."""
Layer = tuple[Tensor, Tensor]
"""Weight (outputs x inputs) and bias of a linear layer."""


def blocks(pixels: int, values_per_pixel: int) -> Iterator[slice]:
    """Split pixels into ranges with at most BLOCK_ELEMENTS values."""
    step = max(1, BLOCK_ELEMENTS // values_per_pixel)
    return (slice(start, min(start + step, pixels)) for start in range(0, pixels, step))


class _Buffer:
    """Memory of one block that all blocks reuse, as newly allocated memory is not in the cache."""

    def __init__(self, like: Tensor, values_per_pixel: int) -> None:
        self.memory = like.new_empty(max(values_per_pixel, BLOCK_ELEMENTS))

    def view(self, *shape: int) -> Tensor:
        """Return the first values as a tensor of this shape."""
        return self.memory[: math.prod(shape)].view(shape)


def _memberships(queries: Tensor, keys: Tensor, logits: Tensor, out: Tensor, prior: Tensor | None) -> Tensor:
    """Compute memberships of a block of n pixels, heads x n x K, in `out`; `logits` is a buffer of the same shape.

    The K values of a pixel are contiguous, so that softmax is one pass; it is faster out of place than in place.

    Args:
        queries: Scaled, heads x K x d.
        keys: heads x n x d.
        logits: Buffer.
        out: Buffer.
        prior: Logits of the spatial prior, n x K, or None.
    """
    if prior is None:
        torch.bmm(keys, queries.transpose(1, 2), out=logits)
    else:
        torch.baddbmm(prior, keys, queries.transpose(1, 2), out=logits)
    return torch.softmax(logits, dim=2, out=out)


def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """As `reference.prototype_sums`, in float32 or better for any input."""
    return spatial_sums(queries, keys, values, None)[:2]


def spatial_sums(
    queries: Tensor, keys: Tensor, values: Tensor, prior: PriorCoefficients | None
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.spatial_sums`, in float32 or better for any input; the moments are zero without a prior."""
    batch, heads, num_prototypes, head_dim = queries.shape
    dtype = accumulation_dtype(queries.dtype)
    sums = queries.new_zeros(batch, heads, num_prototypes, head_dim, dtype=dtype)
    mass = queries.new_zeros(batch, heads, num_prototypes, dtype=dtype)
    moments = queries.new_zeros(batch, num_prototypes, 2, dtype=dtype)
    scaled = queries.to(dtype) / math.sqrt(head_dim)
    buffers = [_Buffer(scaled, heads * num_prototypes) for _ in range(2)]
    for image in range(batch):
        for block in blocks(keys.shape[2], heads * num_prototypes):
            key, value = keys[image, :, block].to(dtype), values[image, :, block].to(dtype)
            logits, members = (buffer.view(heads, key.shape[1], num_prototypes) for buffer in buffers)
            _memberships(scaled[image], key, logits, members, None if prior is None else prior.of(image, block))
            if prior is not None:
                moments[image].addmm_(members.sum(dim=0).T, prior.pixels[block])
            sums[image].baddbmm_(members.transpose(1, 2), value)
            mass[image] += members.sum(dim=1)
    return sums, mass, moments


MAX_LOGIT = 80.0
"""Largest absolute logit whose exponential is summed in `half_prototype_sums`; float32 overflows at 88."""


def half_prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """As `prototype_sums` for bfloat16, with products in bfloat16 and sums in float32.

    The softmax is divided by its sum after the product with the values, so that no pass over the memberships is needed
    for it; it takes a little more than half the time of float32 where the processor multiplies bfloat16.
    """
    batch, heads, num_prototypes, head_dim = queries.shape
    totals = queries.new_zeros(batch, heads, num_prototypes, head_dim + 1, dtype=torch.float32)
    scaled = queries / math.sqrt(head_dim)
    buffer = _Buffer(scaled, heads * num_prototypes)
    for image in range(batch):
        for block in blocks(keys.shape[2], heads * num_prototypes):
            key, value = keys[image, :, block], values[image, :, block]
            members = buffer.view(heads, key.shape[1], num_prototypes)
            torch.bmm(key, scaled[image].transpose(1, 2), out=members)
            low, high = members.aminmax()
            if low < -MAX_LOGIT or high > MAX_LOGIT:
                return prototype_sums(queries, keys, values)
            torch.exp(members, out=members)
            weight = 1 / members.sum(dim=2, keepdim=True, dtype=torch.float32)
            weighted = torch.cat((value * weight, weight), dim=2).to(members.dtype)
            totals[image] += torch.bmm(members.transpose(1, 2), weighted)
    return totals[..., :head_dim], totals[..., head_dim]


def prototype_sums_backward(
    d_sums: Tensor, d_mass: Tensor, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values; memberships are recomputed."""
    return spatial_sums_backward(d_sums, d_mass, d_mass, queries, keys, values, None)[:3]


def spatial_sums_backward(
    d_sums: Tensor,
    d_mass: Tensor,
    d_moments: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    prior: PriorCoefficients | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys, values and the coefficients of the prior, zero without one."""
    batch, heads, num_prototypes, head_dim = queries.shape
    dtype = accumulation_dtype(queries.dtype)
    scale = head_dim**-0.5
    scaled = queries.to(dtype) * scale
    d_queries = torch.zeros_like(scaled, memory_format=torch.contiguous_format)
    d_keys, d_values = like_tokens(keys), like_tokens(values)
    d_prior = scaled.new_zeros(batch, num_prototypes, 3)
    buffers = [_Buffer(scaled, heads * num_prototypes) for _ in range(3)]
    for image in range(batch):
        for block in blocks(keys.shape[2], heads * num_prototypes):
            key, value = keys[image, :, block].to(dtype), values[image, :, block].to(dtype)
            members, d_logits, product = (buffer.view(heads, key.shape[1], num_prototypes) for buffer in buffers)
            _memberships(scaled[image], key, product, members, None if prior is None else prior.of(image, block))
            torch.bmm(value, d_sums[image].transpose(1, 2), out=d_logits)
            d_logits += d_mass[image, :, None]
            if prior is not None:
                d_logits += prior.pixels[block] @ d_moments[image].T
            d_logits -= torch.mul(members, d_logits, out=product).sum(dim=2, keepdim=True)
            d_logits *= members
            d_keys[image, :, block] = torch.bmm(d_logits, scaled[image])
            d_values[image, :, block] = torch.bmm(members, d_sums[image])
            d_queries[image].baddbmm_(d_logits.transpose(1, 2), key, alpha=scale)
            if prior is not None:
                total = d_logits.sum(dim=0)
                d_prior[image, :, :2].addmm_(total.T, prior.pixels[block])
                d_prior[image, :, 2] += total.sum(dim=0)
    return d_queries.to(queries.dtype), d_keys, d_values, d_prior


def like_tokens(heads: Tensor) -> Tensor:
    """Allocate B x heads x n x d with the memory layout B x n x (heads d), that of the projections."""
    batch, num_heads, pixels, head_dim = heads.shape
    return heads.new_empty(batch, pixels, num_heads, head_dim).transpose(1, 2)


def synchronize(
    features: Tensor,
    directions: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    prior: PriorCoefficients | None = None,
) -> tuple[Tensor, Tensor]:
    """As `reference.synchronize`, with the prototypes normalized to `directions`."""
    batch, pixels, channels = queries.shape
    attended = queries.new_empty(batch, pixels, channels)
    assignment = torch.empty(batch, pixels, dtype=torch.int64, device=queries.device)
    for image in range(batch):
        gates = _Gates(keys[image], alpha, beta)
        split_values = gates.split(values[image])
        for block in blocks(pixels, directions.shape[1] + 2 * channels):
            nearest = assignment[image, block]
            _nearest(
                features[image, block], directions[image], nearest, None if prior is None else prior.of(image, block)
            )
            gate = gates.of(queries[image, block], nearest)
            attended[image, block] = (gate[..., None] * split_values.index_select(0, nearest)).flatten(1)
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
    prior: PriorCoefficients | None = None,
) -> tuple[Tensor, Tensor]:
    """Run `synchronize` with queries of the features, then linear, GELU, linear; without gradients.

    The first layer of the network is linear: its output for a pixel is the sum over heads of the gate times its output
    for the prototype's value. The latter is computed once for every prototype, not for every pixel.

    Returns:
        B x HW x C and the assignment.
    """
    batch, pixels, _ = features.shape
    heads, ((first, first_bias), (second, second_bias)) = alpha.shape[0], feed_forward
    output = features.new_empty(batch, pixels, second.shape[0])
    assignment = torch.empty(batch, pixels, dtype=torch.int64, device=features.device)
    head = torch.arange(heads, device=features.device)
    for image in range(batch):
        gates = _Gates(keys[image], alpha, beta)
        table = torch.einsum("khd,ohd->kho", gates.split(values[image]), gates.split(first)).flatten(0, 1)
        for block in blocks(pixels, directions.shape[1] + first.shape[0]):
            nearest = assignment[image, block]
            _nearest(
                features[image, block], directions[image], nearest, None if prior is None else prior.of(image, block)
            )
            gate = gates.of(F.linear(features[image, block], *query), nearest)
            hidden = F.embedding_bag(nearest[:, None] * heads + head, table, mode="sum", per_sample_weights=gate)
            hidden += first_bias
            torch.addmm(second_bias, F.gelu(hidden), second.T, out=output[image, block])
    return output, assignment


def _nearest(features: Tensor, directions: Tensor, out: Tensor, prior: Tensor | None) -> None:
    """Write the prototype of each of n features (n x C) to `out` (n, int64), as `reference.nearest_prototype`.

    prior: Logits of the prior in units of the cosine, n x K, or None.
    """
    if prior is None:
        similarity = features.float() @ directions.T
    else:
        similarity = torch.addmm(prior.float(), F.normalize(features.float(), dim=-1), directions.T)
    torch.argmax(similarity, dim=1, out=out)


class _Heads:
    """Attention heads, each with its alpha and beta, in float32 or better."""

    def __init__(self, dtype: torch.dtype, alpha: Tensor, beta: Tensor) -> None:
        self.heads = alpha.shape[0]
        self.dtype = accumulation_dtype(dtype)
        self.alpha, self.beta = alpha.to(self.dtype), beta.to(self.dtype)

    def split(self, tokens: Tensor) -> Tensor:
        """Reshape N x C to N x heads x d."""
        return tokens.view(tokens.shape[0], self.heads, -1).to(self.dtype)


class _Gates(_Heads):
    """Gates sigmoid(alpha cos(q, k) + beta) of the prototypes of an image, keys K x C."""

    def __init__(self, keys: Tensor, alpha: Tensor, beta: Tensor) -> None:
        super().__init__(keys.dtype, alpha, beta)
        self.directions = F.normalize(self.split(keys), dim=-1, eps=MIN_NORM)

    def of(self, queries: Tensor, nearest: Tensor) -> Tensor:
        """Return the gates of n pixels, queries n x C, for their nearest prototypes (n): n x heads."""
        query = self.split(queries)
        # For contiguous rows, index_select is several times as fast as indexing.
        product = (query * self.directions.index_select(0, nearest)).sum(dim=-1)
        cosine = product / torch.linalg.vector_norm(query, dim=-1).clamp_min(MIN_NORM)
        return torch.sigmoid(self.alpha * cosine + self.beta)


class _DifferentiableGate(_Heads):
    """Gates of n pixels for their nearest prototypes, n x heads, with what their gradient needs.

    Args:
        queries: n x C, of the pixels.
        keys: n x C, of their nearest prototypes.
        alpha: One value for each head.
        beta: One value for each head.
    """

    def __init__(self, queries: Tensor, keys: Tensor, alpha: Tensor, beta: Tensor) -> None:
        super().__init__(queries.dtype, alpha, beta)
        self.query, self.query_norm, self.query_ratio = self._normalize(queries)
        self.key, self.key_norm, self.key_ratio = self._normalize(keys)
        self.cosine = (self.query * self.key).sum(dim=-1)
        self.gate = torch.sigmoid(self.alpha * self.cosine + self.beta)

    def _normalize(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return v / n with n = max(|v|, MIN_NORM), n, and n / |v| (0 for zero vectors)."""
        vectors = self.split(tokens)
        length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        norm = length.clamp_min(MIN_NORM)
        return vectors / norm, norm, torch.where(length > 0, norm / length, 0.0)

    def backward(self, d_gate: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients of queries and keys (n x heads x d), and of alpha and beta by pixel (n x heads)."""
        d_logit = d_gate * self.gate * (1 - self.gate)
        d_cosine = (d_logit * self.alpha)[..., None]
        # Like torch's own gradient, this ignores the lower bound of the norm.
        along_query = self.cosine[..., None] * self.query * self.query_ratio
        along_key = self.cosine[..., None] * self.key * self.key_ratio
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
    """Return the gradients of queries, keys, values, alpha and beta; the assignment has none."""
    batch, pixels, channels = queries.shape
    dtype = accumulation_dtype(queries.dtype)
    d_queries = queries.new_empty(batch, pixels, channels)
    d_keys, d_values = (keys.new_zeros(keys.shape, dtype=dtype) for _ in range(2))
    d_alpha, d_beta = (alpha.new_zeros(alpha.shape, dtype=dtype) for _ in range(2))
    for image in range(batch):
        for block in blocks(pixels, 8 * channels):
            nearest = assignment[image, block]
            gate = _DifferentiableGate(queries[image, block], keys[image].index_select(0, nearest), alpha, beta)
            gradient = gate.split(d_attended[image, block])
            value = gate.split(values[image].index_select(0, nearest))
            d_query, d_key, d_pixel_alpha, d_pixel_beta = gate.backward((gradient * value).sum(dim=-1))
            d_queries[image, block] = d_query.flatten(1)
            d_keys[image].index_add_(0, nearest, d_key.flatten(1))
            d_values[image].index_add_(0, nearest, (gate.gate[..., None] * gradient).flatten(1))
            d_alpha += d_pixel_alpha.sum(dim=0)
            d_beta += d_pixel_beta.sum(dim=0)
    d_alpha, d_beta = d_alpha.to(alpha.dtype), d_beta.to(beta.dtype)
    return d_queries, d_keys.to(keys.dtype), d_values.to(values.dtype), d_alpha, d_beta
