"""Latent Synchronization sends each pixel its own prototype, and learns how much of it."""

import pytest
import torch
import torch.nn.functional as F

from protoformer.models.ablations import Broadcast, PlainLayer, SimilarityLayer
from protoformer.models.kernels.reference import gated, nearest_prototype
from protoformer.models.prototyping import Prototypes
from protoformer.models.synchronization import SYNCHRONIZATIONS, LatentSynchronization


def random_prototypes(pixels: int = 30, count: int = 5, channels: int = 16) -> tuple[torch.Tensor, Prototypes]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, pixels, channels, generator=generator)
    centers = torch.randn(2, count, channels, generator=generator)
    memberships = torch.randn(2, 2, count, pixels, generator=generator).softmax(dim=2)
    return features, Prototypes(centers, memberships, (5, pixels // 5))


def built(variant: str) -> torch.nn.Module:
    torch.manual_seed(1)
    return SYNCHRONIZATIONS[variant](16, 2)


def attend(layer: LatentSynchronization, features: torch.Tensor, centers: torch.Tensor, owner: torch.Tensor):
    """The attention of the layer, without its feed-forward network."""
    return gated(layer.query(features), layer.key(centers), layer.value(centers), layer.alpha, layer.beta, owner)


def test_the_nearest_prototype_is_that_of_greatest_cosine():
    features, prototypes = random_prototypes()
    by_hand = torch.stack(
        [
            torch.stack([F.cosine_similarity(pixel, prototypes.centers[b], dim=-1).argmax() for pixel in features[b]])
            for b in range(2)
        ]
    )
    assert torch.equal(nearest_prototype(features, prototypes.centers), by_hand)


def test_half_precision_does_not_change_the_assignment():
    features, prototypes = random_prototypes(pixels=2000, count=50)
    with torch.autocast("cpu", torch.bfloat16):
        lowered = nearest_prototype(features, prototypes.centers)
    assert torch.equal(lowered, nearest_prototype(features, prototypes.centers))


@pytest.mark.parametrize("variant", ["ls", "fc_similarity", "fc"])
def test_a_pixel_hears_of_its_own_prototype_and_no_other(variant):
    features, prototypes = random_prototypes()
    centers = prototypes.centers.clone().requires_grad_()
    owner = nearest_prototype(features, centers)
    output, _ = built(variant)(features, Prototypes(centers, prototypes.memberships, prototypes.size))
    for pixel in (0, 7, 29):
        (gradient,) = torch.autograd.grad(output[0, pixel].sum(), centers, retain_graph=True)
        heard = gradient.abs().sum(dim=-1) > 0
        expected = torch.zeros(2, 5, dtype=torch.bool)
        expected[0, owner[0, pixel]] = True
        assert torch.equal(heard, expected)


def test_it_is_cross_attention_that_may_attend_to_one_prototype_alone():
    """With the gate open, the same as attention under a boolean mask, in which True means 'may attend'."""
    features, prototypes = random_prototypes()
    layer = built("ls")
    with torch.no_grad():
        layer.alpha.zero_()
        layer.beta.fill_(100.0)
        owner = nearest_prototype(features, prototypes.centers)
        may_attend = F.one_hot(owner, 5).bool()[:, None]
        query, key, value = (
            part.view(2, -1, 2, 8).transpose(1, 2)
            for part in (layer.query(features), layer.key(prototypes.centers), layer.value(prototypes.centers))
        )
        masked = F.scaled_dot_product_attention(query, key, value, attn_mask=may_attend).transpose(1, 2).flatten(2)
        assert torch.allclose(attend(layer, features, prototypes.centers, owner), masked, atol=1e-6)


def test_the_gate_is_the_sigmoid_of_alpha_times_cosine_plus_beta():
    features, prototypes = random_prototypes()
    layer = built("ls")
    with torch.no_grad():
        layer.alpha.copy_(torch.tensor([2.0, -1.0]))
        layer.beta.copy_(torch.tensor([0.5, 0.1]))
        owner = nearest_prototype(features, prototypes.centers)
        attended = attend(layer, features, prototypes.centers, owner)[0, 3]
        query, center = layer.query(features[0, 3]), prototypes.centers[0, owner[0, 3]]
        key, value = layer.key(center), layer.value(center)
        for head, (alpha, beta) in enumerate(((2.0, 0.5), (-1.0, 0.1))):
            part = slice(8 * head, 8 * head + 8)
            gate = torch.sigmoid(alpha * F.cosine_similarity(query[part], key[part], dim=0) + beta)
            assert torch.allclose(attended[part], gate * value[part], atol=1e-6)


def test_gradients_reach_queries_keys_alpha_and_beta():
    features, prototypes = random_prototypes()
    layer = built("ls")
    layer(features, prototypes)[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.abs().max() > 1e-8, name


def test_gradients_reach_all_that_is_learned_in_the_other_variants():
    features, prototypes = random_prototypes()
    for variant in ("fc_similarity", "fc"):
        layer = built(variant)
        layer(features, prototypes)[0].square().sum().backward()
        for name, parameter in layer.named_parameters():
            assert parameter.grad.abs().max() > 0, (variant, name)


def test_a_fully_connected_layer_of_the_nearest_prototype_with_and_without_similarity():
    features, prototypes = random_prototypes()
    owner = nearest_prototype(features, prototypes.centers)
    nearest = torch.stack([prototypes.centers[b][owner[b]] for b in range(2)])
    plain, weighted = built("fc"), built("fc_similarity")
    assert isinstance(plain, PlainLayer)
    assert isinstance(weighted, SimilarityLayer)
    assert torch.allclose(plain(features, prototypes)[0], F.linear(nearest, plain.layer.weight, plain.layer.bias))
    gate = torch.sigmoid(weighted.alpha * F.cosine_similarity(features, nearest, dim=-1) + weighted.beta)[..., None]
    expected = F.linear(gate * nearest, weighted.layer.weight, weighted.layer.bias)
    assert torch.allclose(weighted(features, prototypes)[0], expected, atol=1e-6)


def test_without_synchronization_prototypes_come_back_by_their_memberships():
    features, prototypes = random_prototypes()
    layer = built("none")
    assert isinstance(layer, Broadcast)
    assert not list(layer.parameters())
    by_hand = torch.cat(
        [prototypes.memberships[0, h].T @ prototypes.centers[0][:, 8 * h : 8 * h + 8] for h in range(2)], dim=1
    )
    assert torch.allclose(layer(features, prototypes)[0][0], by_hand, atol=1e-6)


def test_all_variants_are_there():
    assert list(SYNCHRONIZATIONS) == ["ls", "ungated", "fc_similarity", "fc", "projection", "none"]
    assert SYNCHRONIZATIONS["ls"] is LatentSynchronization


def test_without_the_gate_pixels_of_a_prototype_get_the_same_update():
    features, prototypes = random_prototypes(pixels=15)
    layer = built("ungated")
    output, assignment = layer(features, prototypes)
    values = layer.feed_forward(layer.value(prototypes.centers))
    assert torch.equal(assignment, nearest_prototype(features, prototypes.centers))
    assert torch.equal(output[0, 3], values[0, assignment[0, 3]])


def test_a_projected_broadcast_is_the_broadcast_times_a_matrix():
    features, prototypes = random_prototypes(pixels=15)
    layer = built("projection")
    spread, _ = built("none")(features, prototypes)
    torch.testing.assert_close(layer(features, prototypes)[0], layer.layer(spread))
