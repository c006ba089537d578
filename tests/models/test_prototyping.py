"""Cross-Attention Prototyping does what the paper says of it."""

from collections import Counter
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from protoformer.explain.tracing import contraction_factor, measure_convergence, plain_em
from protoformer.geometry.warps import cells
from protoformer.models.ablations import maximization_step
from protoformer.models.kernels.reference import similarities
from protoformer.models.prototyping import E_STEPS, Layout, Prototyping

COMPETING_FOR_PIXELS = ("cap", "cosine", "k_means")
COMPETING_FOR_PROTOTYPES = ("cross_attention", "criss_cross")


def cluster_from(start, prototyping, features, size):
    """Cluster features from the prototypes `start` instead of pooled ones."""
    with mock.patch.object(prototyping, "pool", return_value=start):
        return prototyping(features, size)


def features_of(height: int, width: int, channels: int, batch: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, height * width, channels, generator=torch.Generator().manual_seed(seed))


def seeded(*args: object, **settings: object) -> Prototyping:
    torch.manual_seed(0)
    return Prototyping(*args, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("update", COMPETING_FOR_PIXELS)
@settings(max_examples=15, deadline=None)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    num_prototypes=st.sampled_from([1, 2, 7, 10, 50]),
    num_iterations=st.integers(0, 5),
)
def test_memberships_of_a_pixel_sum_to_one(update, height, width, num_prototypes, num_iterations):
    found = seeded(16, 2, num_prototypes, num_iterations, update)(features_of(height, width, 16), (height, width))
    assert found.centers.shape == (2, num_prototypes, 16)
    assert found.memberships.shape == (2, 2 if num_iterations else 1, num_prototypes, height * width)
    assert torch.allclose(found.memberships.sum(dim=2), torch.ones(()), atol=1e-5)
    assert (found.memberships >= 0).all()


@pytest.mark.parametrize("update", COMPETING_FOR_PROTOTYPES)
def test_where_pixels_compete_memberships_of_a_prototype_sum_to_one(update):
    found = seeded(16, 2, 10, 3, update)(features_of(6, 7, 16), (6, 7))
    assert torch.allclose(found.memberships.sum(dim=3), torch.ones(()), atol=1e-5)


@pytest.mark.parametrize("update", [rule for rule in E_STEPS if rule != "criss_cross"])
def test_permuting_pixels_permutes_memberships_and_leaves_prototypes_alone(update):
    prototyping, features = seeded(32, 2, 10, 3, update), features_of(8, 9, 32)
    start = prototyping.pool(features, (8, 9))
    order = torch.randperm(72, generator=torch.Generator().manual_seed(1))
    straight = cluster_from(start, prototyping, features, (8, 9))
    permuted = cluster_from(start, prototyping, features[:, order], (8, 9))
    assert torch.allclose(permuted.centers, straight.centers, atol=1e-5)
    assert torch.allclose(permuted.memberships, straight.memberships[..., order], atol=1e-5)


def clusters(count: int, spread: float = 0.05) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels of a 2*count x 8 map: each pair of rows scatters around its own mean. Returns features and true means."""
    generator = torch.Generator().manual_seed(3)
    means = torch.linalg.qr(torch.randn(32, 32, generator=generator)).Q[:count] * 20
    pixels = means.repeat_interleave(16, dim=0)
    noise = spread * torch.randn(pixels.shape, generator=generator)
    noise -= noise.view(count, 16, 32).mean(dim=1).repeat_interleave(16, dim=0)
    return (pixels + noise)[None], means


@pytest.mark.parametrize("update", ["cap", "k_means"])
def test_em_finds_the_means_of_well_separated_clusters(update):
    features, means = clusters(4)
    prototyping = plain_em(32, 4, update)
    # a start between the clusters: every prototype sees a neighbor's pixels as well
    start = means[None] + 0.4 * means.roll(1, dims=0)[None]
    found = cluster_from(start, prototyping, features, (8, 8))
    assert torch.allclose(found.centers[0], means, atol=1e-2)
    owner = found.memberships[0, 0].argmax(dim=0)
    assert torch.equal(owner, torch.arange(4).repeat_interleave(16))


def test_the_likelihood_never_falls_where_theory_says_so():
    """Unit features and cosine: EM of a mixture of von Mises-Fisher distributions."""
    for seed in range(5):
        features = F.normalize(features_of(12, 16, 24, batch=1, seed=seed), dim=-1).double()
        seen = measure_convergence(plain_em(24, 10).double(), features, (12, 16), num_iterations=30)
        rises = torch.tensor(seen.log_likelihood).diff()
        assert (rises > -1e-9).all()
        assert seen.log_likelihood[-1] > seen.log_likelihood[0] + 1e-3


def test_the_same_holds_for_the_steps_of_cap_on_the_unit_sphere():
    """With prototypes kept at unit length, cap's own expectation and maximization are that EM, whatever the scale."""
    keys = 6 * F.normalize(features_of(12, 16, 24, batch=1), dim=-1).double()[:, None]
    centers = keys[:, :, ::20]
    likelihoods = []
    for _ in range(20):
        queries = 6 * F.normalize(centers, dim=-1)
        likelihoods.append(similarities(queries, keys).logsumexp(dim=-2).mean())
        centers = maximization_step(E_STEPS["cap"](queries, keys, Layout((12, 16), (1, 10))), keys, normalize=True)
    assert (torch.stack(likelihoods).diff() > -1e-9).all()


def test_em_contracts_and_the_factor_is_measured():
    assert contraction_factor([2.0 * 0.5**n for n in range(11)]) == pytest.approx(0.5)
    features = F.normalize(features_of(12, 16, 24, batch=1), dim=-1).double()
    plain = measure_convergence(plain_em(24, 10).double(), features, (12, 16), num_iterations=200)
    assert plain.contraction < 1
    assert plain.drift < 1e-2
    # A residual adds a mean in every step, so there is no fixed point to contract to.
    with_residual = plain_em(24, 10).double()
    with_residual.residual = True
    assert measure_convergence(with_residual, features, (12, 16), num_iterations=200).drift > 0.5


def test_the_start_is_the_mean_of_each_cell():
    features = features_of(20, 20, 4, batch=1)
    pooled = Prototyping(4, 1, 100).pool(features, (20, 20))
    by_hand = features.view(1, 10, 2, 10, 2, 4).mean(dim=(2, 4)).flatten(1, 2)
    assert torch.allclose(pooled, by_hand, atol=1e-6)


def test_without_iterations_prototypes_stay_pooled_and_pixels_belong_to_their_cell():
    prototyping = Prototyping(4, 1, 4, num_iterations=0)
    features = features_of(4, 6, 4)
    found = prototyping(features, (4, 6))
    assert not list(prototyping.parameters())
    assert torch.equal(found.centers, prototyping.pool(features, (4, 6)))
    cell = torch.tensor([[0, 0, 0, 1, 1, 1]] * 2 + [[2, 2, 2, 3, 3, 3]] * 2).flatten()
    assert torch.equal(found.memberships[0, 0].argmax(dim=0), cell)


def test_the_residual_switch_adds_to_the_prototype_or_takes_its_place():
    features = features_of(5, 6, 32)
    added, placed = seeded(32, 2, 6, 1), seeded(32, 2, 6, 1, residual=False)
    start = added.pool(features, (5, 6))
    update = placed(features, (5, 6)).centers
    assert torch.allclose(added(features, (5, 6)).centers, start + update, atol=1e-6)


def test_the_normalization_switch_divides_by_each_prototypes_mass():
    features = features_of(5, 6, 32)
    mean, total = (seeded(32, 2, 6, 1, residual=False, normalize=on)(features, (5, 6)) for on in (True, False))
    mass = mean.memberships.sum(dim=-1).transpose(1, 2).repeat_interleave(16, dim=2)
    assert torch.allclose(total.centers, mean.centers * mass, atol=1e-5)
    assert torch.equal(mean.memberships, total.memberships)


def test_a_prototype_without_members_keeps_its_place():
    prototyping = plain_em(4, 2, "k_means")
    prototyping.residual = True
    features = torch.tensor([[1.0, 0, 0, 0]]).expand(1, 6, 4)
    start = torch.tensor([[[1.0, 0, 0, 0], [-5.0, 1, 0, 0]]])
    assert torch.equal(cluster_from(start, prototyping, features, (2, 3)).centers[0, 1], start[0, 1])


def reference_heads(prototyping, centers, features):
    """Queries (K x 16) and keys (HW x 16) of each head of the first image, split by hand."""
    queries, keys = prototyping.query(centers[0]), prototyping.key(features[0])
    return [(queries[:, h : h + 16], keys[:, h : h + 16]) for h in range(0, 32, 16)]


def reference_update(prototyping, centers, features, expectation):
    """One step of the first image, head by head and as plainly as can be, with a residual and means."""
    values, updates, memberships = prototyping.value(features[0]), [], []
    for head, (queries, keys) in enumerate(reference_heads(prototyping, centers, features)):
        shares = expectation(queries, keys)
        mass = shares.sum(dim=1, keepdim=True).clamp_min(1e-6)
        updates.append(shares @ values[:, 16 * head : 16 * head + 16] / mass)
        memberships.append(shares)
    return centers[0] + torch.cat(updates, dim=1), torch.stack(memberships)


def cosine_by_hand(queries, keys):
    logits = torch.stack([F.cosine_similarity(query, keys, dim=-1) for query in queries]) * 16**0.5
    return logits.softmax(dim=0)


def k_means_by_hand(queries, keys):
    nearest = [int(torch.stack([query @ key / query.norm() for query in queries]).argmax()) for key in keys]
    return torch.tensor([[float(owner == k) for owner in nearest] for k in range(len(queries))])


def criss_cross_by_hand(queries, keys):
    """On a map of 6 x 8 with 2 x 3 cells; a cell's rows and columns are those that pooling averages."""
    shares = torch.zeros(6, 48)
    for k in range(6):
        row, column = divmod(k, 3)
        rows = range(row * 6 // 2, -((-(row + 1) * 6) // 2))
        columns = range(column * 8 // 3, -(-(column + 1) * 8 // 3))
        reached = [y * 8 + x for y in range(6) for x in range(8) if y in rows or x in columns]
        shares[k, reached] = (keys[reached] @ queries[k] / 4).softmax(dim=0)
    return shares


def cap_by_hand(queries, keys):
    return (queries @ keys.T / 4).softmax(dim=0)


def cross_attention_by_hand(queries, keys):
    return (queries @ keys.T / 4).softmax(dim=1)


@pytest.mark.parametrize(
    ("update", "expectation"),
    [
        ("cap", cap_by_hand),
        ("cosine", cosine_by_hand),
        ("cross_attention", cross_attention_by_hand),
        ("criss_cross", criss_cross_by_hand),
        ("k_means", k_means_by_hand),
    ],
)
def test_every_rule_agrees_with_its_reference(update, expectation):
    prototyping, features = seeded(32, 2, 6, 3, update), features_of(6, 8, 32)
    with torch.no_grad():
        found = prototyping(features, (6, 8))
        centers = prototyping.pool(features, (6, 8))[:1]
        for _ in range(3):
            moved, memberships = reference_update(prototyping, centers, features, expectation)
            centers = moved[None]
    assert torch.allclose(found.centers[0], centers[0], atol=1e-5)
    assert torch.allclose(found.memberships[0], memberships, atol=1e-6)


def test_criss_cross_reaches_exactly_the_bands_that_pooling_averages():
    assert cells(7, 3).tolist() == [
        [True, True, True, False, False, False, False],
        [False, False, True, True, True, False, False],
        [False, False, False, False, True, True, True],
    ]


@pytest.mark.parametrize("update", E_STEPS)
def test_gradients_reach_every_projection(update):
    prototyping = seeded(16, 2, 6, 2, update)
    features = features_of(5, 5, 16).requires_grad_()
    prototyping(features, (5, 5)).centers.square().sum().backward()
    for name, parameter in prototyping.named_parameters():
        # A softmax does not change when all its logits do, so a bias of the keys (or queries) may have no say.
        if name.endswith("weight"):
            assert parameter.grad.abs().max() > 1e-8, name
    assert features.grad.abs().max() > 0


def test_prototypes_without_members_do_not_blow_up_the_gradient():
    """More prototypes than pixels: by k-means most have no members, and the gradient stays that of soft memberships."""
    lengths = {}
    for update in ("cap", "k_means"):
        prototyping = seeded(32, 1, 64, 3, update)
        prototyping(features_of(4, 4, 32), (4, 4)).centers.square().sum().backward()
        lengths[update] = max(float(parameter.grad.norm()) for parameter in prototyping.parameters())
    assert lengths["k_means"] < 100 * lengths["cap"]


def test_keys_and_values_are_computed_once_and_queries_in_every_step():
    prototyping, calls = seeded(16, 2, 6, 5), Counter()
    for name in ("query", "key", "value"):
        getattr(prototyping, name).register_forward_hook(lambda *_, name=name: calls.update([name]))
    prototyping(features_of(5, 5, 16), (5, 5))
    assert calls == {"query": 5, "key": 1, "value": 1}


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements of any tensor that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("update", E_STEPS)
def test_no_tensor_is_larger_than_heads_by_prototypes_by_pixels(update):
    prototyping, features = seeded(64, 2, 100, 3, update), features_of(16, 20, 64, batch=1)
    with LargestTensor() as largest:
        prototyping(features, (16, 20)).centers.sum().backward()
    assert largest.elements <= 2 * 100 * 16 * 20


def test_more_prototypes_do_not_mean_more_parameters():
    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    assert count(Prototyping(64, 2, 10)) == count(Prototyping(64, 2, 200)) == 3 * (64 * 64 + 64)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="30 channels cannot be split into 4 heads"):
        Prototyping(30, 4)
    with pytest.raises(ValueError, match="-1 iterations"):
        Prototyping(32, 4, num_iterations=-1)
