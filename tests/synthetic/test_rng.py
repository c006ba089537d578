"""Counter-based random numbers."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from protoformer.synthetic.rng import SceneRandom, hashed_normal, hashed_uniform

MANY = 20_000
METHODS: dict[str, Callable[[SceneRandom], Tensor]] = {
    "uniform": lambda draws: draws.uniform("it", -1.0, 2.0, (4, 2)),
    "log_uniform": lambda draws: draws.log_uniform("it", 0.1, 10.0, (4, 2)),
    "normal": lambda draws: draws.normal("it", 1.0, 2.0, (3,)),
    "whether": lambda draws: draws.bernoulli("it", 0.5, (64,)),
    "integer": lambda draws: draws.integer("it", 0, 1000, (4,)),
    "choice": lambda draws: draws.choice("it", [1.0] * 100, (4,)),
    "unit_vector": lambda draws: draws.unit_vector("it", (4,)),
    "permutation": lambda draws: draws.permutation("it", 9),
}
methods = pytest.mark.parametrize("draw", METHODS.values(), ids=METHODS)


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.stack((one.flatten(), other.flatten())).corrcoef()[0, 1])


def unrelated(one: Tensor, other: Tensor) -> bool:
    """Whether two sets of numbers correlate no more than chance makes independent ones do."""
    return abs(correlation(one, other)) < 4.5 / math.sqrt(one.numel())


def spread_evenly(unit: Tensor, bins: int = 64) -> bool:
    """Whether chi-square finds numbers in [0, 1] as even as chance would have them: no less, and no more."""
    counts = torch.histc(unit.flatten().double(), bins, 0, 1)
    expected = unit.numel() / bins
    chi = float(((counts - expected) ** 2 / expected).sum())
    return abs(chi - (bins - 1)) < 5 * math.sqrt(2 * (bins - 1))


def is_normal(values: Tensor) -> bool:
    """Moments up to the fourth within five of their own deviations."""
    values, root = values.double().flatten(), math.sqrt(values.numel())
    moments = [(1, 0.0, 1.0), (2, 1.0, math.sqrt(2)), (3, 0.0, math.sqrt(15)), (4, 3.0, math.sqrt(96))]
    return all(abs(float((values**power).mean()) - mean) < 5 * std / root for power, mean, std in moments)


@methods
def test_a_scene_is_the_same_in_any_batch(draw: Callable[[SceneRandom], Tensor]) -> None:
    indices = [5, 17, 2**40, -1]
    batch = draw(SceneRandom(3, indices))
    for row, index in enumerate(indices):
        assert torch.equal(draw(SceneRandom(3, [index]))[0], batch[row])
    assert torch.equal(draw(SceneRandom(3, torch.tensor(indices))), batch)


@methods
def test_a_new_draw_changes_no_other(draw: Callable[[SceneRandom], Tensor]) -> None:
    draws = SceneRandom(3, range(4))
    draws.uniform("another", shape=(7,))
    assert torch.equal(draw(draws), draw(SceneRandom(3, range(4))))


@methods
def test_seed_and_index_change_every_draw(draw: Callable[[SceneRandom], Tensor]) -> None:
    here = draw(SceneRandom(3, [5]))
    assert not torch.equal(here, draw(SceneRandom(4, [5])))
    assert not torch.equal(here, draw(SceneRandom(3, [6])))


@methods
def test_a_name_is_drawn_once(draw: Callable[[SceneRandom], Tensor]) -> None:
    draws = SceneRandom(3, range(4))
    draw(draws)
    with pytest.raises(ValueError, match="it was already drawn"):
        draw(draws)


def test_draws_are_the_same_in_every_process_and_release() -> None:
    draws = SceneRandom(1, [0, 1])
    assert draws.uniform("speed", shape=(2,)).tolist() == [
        [0.11606922158130606, 0.9148878023525108],
        [0.6953740832603956, 0.42089228814035995],
    ]
    assert draws.permutation("order", 5).tolist() == [[1, 4, 3, 0, 2], [1, 0, 4, 3, 2]]


def test_draws_leave_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    SceneRandom(0, range(3)).normal("x")
    hashed_normal(torch.arange(3), (4,), "cpu")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_seed_may_be_any_whole_number() -> None:
    assert torch.equal(SceneRandom(-1, [0]).uniform("x"), SceneRandom(2**64 - 1, [0]).uniform("x"))


def test_shapes_and_types_are_as_promised() -> None:
    draws = SceneRandom(0, range(5))
    assert len(draws) == 5
    assert draws.uniform("a").shape == (5,) and draws.normal("b", shape=(3,)).shape == (5, 3)
    assert draws.unit_vector("c").shape == (5, 3) and draws.unit_vector("d", (2, 4)).shape == (5, 2, 4, 3)
    assert draws.permutation("e", 7).shape == (5, 7) and draws.permutation("f", 0).shape == (5, 0)
    assert draws.uniform("g").dtype == draws.log_uniform("h", 1, 2).dtype == draws.normal("i").dtype == torch.float64
    assert draws.bernoulli("j", 0.5).dtype == torch.bool
    assert (
        draws.integer("k", 0, 2).dtype
        == draws.choice("l", [1, 2]).dtype
        == draws.permutation("m", 2).dtype
        == torch.int64
    )
    assert SceneRandom(0, []).normal("a", shape=(3,)).shape == (0, 3)


@pytest.mark.parametrize("name", ["speed", "size", ""])
def test_uniform_numbers_are_even_over_scenes_and_over_elements(name: str) -> None:
    assert spread_evenly(SceneRandom(0, range(MANY)).uniform(name))
    assert spread_evenly(SceneRandom(0, [9]).uniform(name, shape=(MANY,)))


def test_neighboring_scenes_seeds_names_and_elements_are_unrelated() -> None:
    numbers = SceneRandom(0, range(MANY)).uniform("speed", shape=(2,))
    assert unrelated(numbers[1:], numbers[:-1])
    assert unrelated(numbers[:, 0], numbers[:, 1])
    assert unrelated(numbers, SceneRandom(1, range(MANY)).uniform("speed", shape=(2,)))
    assert unrelated(numbers, SceneRandom(0, range(MANY)).uniform("speee", shape=(2,)))


def test_seeds_are_not_shifts_of_each_other() -> None:
    one, other = (SceneRandom(seed, range(200)).uniform("x") for seed in (0, 1))
    assert not torch.isin(one, other).any()


def test_bounds_may_differ_from_scene_to_scene() -> None:
    low = torch.tensor([0.0, 10.0, 20.0]).view(3, 1)
    numbers = SceneRandom(0, range(3)).uniform("x", low, low + 1, shape=(100,))
    assert ((numbers >= low) & (numbers <= low + 1)).all()
    assert torch.equal(numbers, low + SceneRandom(0, range(3)).uniform("x", shape=(100,)))


def test_the_logarithm_of_a_log_uniform_number_is_even() -> None:
    numbers = SceneRandom(0, range(MANY)).log_uniform("x", 0.01, 100.0)
    assert spread_evenly((numbers.log10() + 2) / 4)
    high = torch.tensor([10.0, 1000.0])
    exponents = SceneRandom(0, range(2)).log_uniform("x", 1.0, high).log10() / torch.tensor([1.0, 3.0])
    torch.testing.assert_close(exponents, SceneRandom(0, range(2)).uniform("x"))


def test_normal_numbers_have_the_moments_of_a_gaussian() -> None:
    assert is_normal(SceneRandom(0, range(MANY)).normal("x"))
    assert is_normal(SceneRandom(0, [0]).normal("x", shape=(MANY + 1,)))
    assert is_normal((SceneRandom(0, range(MANY)).normal("x", 3.0, 0.1) - 3) / 0.1)


def test_an_event_happens_as_often_as_its_probability() -> None:
    assert not SceneRandom(0, range(MANY)).bernoulli("x", 0.0).any()
    assert SceneRandom(0, range(MANY)).bernoulli("x", 1.0).all()
    chances = torch.tensor([0.1, 0.8])
    often = SceneRandom(0, range(MANY)).bernoulli("x", chances, (2,)).double().mean(dim=0)
    assert ((often - chances).abs() < 5 * 0.5 / math.sqrt(MANY)).all()


def test_whole_numbers_are_equally_likely() -> None:
    numbers = SceneRandom(0, range(MANY)).integer("x", -3, 5)
    assert numbers.unique().tolist() == list(range(-3, 5))
    assert spread_evenly((numbers + 3.5) / 8, bins=8)
    with pytest.raises(ValueError, match="the range from 5 to below 5 holds no integer"):
        SceneRandom(0, [0]).integer("x", 5, 5)


def test_a_choice_follows_its_weights() -> None:
    counts = SceneRandom(0, range(MANY)).choice("x", [0.0, 3.0, 0.0, 1.0, 0.0]).bincount(minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    assert abs(float(counts[1]) / MANY - 0.75) < 5 * math.sqrt(0.75 * 0.25 / MANY)


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -0.5]])
def test_what_are_no_weights_is_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="must be non-negative"):
        SceneRandom(0, [0]).choice("x", weights)


def test_directions_cover_the_sphere_evenly() -> None:
    vectors = SceneRandom(0, range(MANY)).unit_vector("x")
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(MANY, dtype=torch.float64))
    for axis in range(3):  # each coordinate of an even direction is even
        assert spread_evenly((vectors[:, axis] + 1) / 2)
        assert unrelated(vectors[:, axis], vectors[:, axis - 1])


def test_every_order_is_as_likely() -> None:
    orders = SceneRandom(0, range(MANY)).permutation("x", 3)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(3).expand(MANY, 3))
    _, which = orders.unique(dim=0, return_inverse=True)
    assert spread_evenly((which + 0.5) / 6, bins=6)


def test_hashed_numbers_are_the_same_in_any_batch_release_and_device() -> None:
    keys = torch.tensor([7, -1, 2**40])
    numbers = hashed_uniform(keys, (3, 5), "cpu")
    assert numbers.shape == (3, 3, 5) and numbers.dtype == torch.float32
    assert torch.equal(hashed_uniform(keys[1:2], (3, 5), "cpu")[0], numbers[1])
    assert (numbers[:, 0, 0] * 2**24).tolist() == [6349189.0, 12401311.0, 1592271.0]


def test_hashed_numbers_never_reach_the_ends() -> None:
    numbers = hashed_uniform(torch.arange(4), (500_000,), "cpu")
    assert numbers.min() > 0 and numbers.max() < 1
    halves = numbers.double() * 2**24
    assert torch.equal(halves % 2, torch.ones_like(halves))


def test_hashed_numbers_are_even_over_keys_and_over_elements() -> None:
    for keys in (torch.arange(64), torch.arange(64) << 32, -torch.arange(64)):
        numbers = hashed_uniform(keys, (4096,), "cpu")
        assert spread_evenly(numbers, bins=1024)
        assert all(spread_evenly(numbers[row]) for row in range(8))
        assert spread_evenly(numbers[:, :8])
        # Not the leading bits alone.
        assert spread_evenly(numbers * 2**13 % 1)


def test_neighboring_keys_and_elements_are_unrelated() -> None:
    for keys in (torch.arange(64), torch.arange(64) << 32):
        numbers = hashed_uniform(keys, (4096,), "cpu")
        assert unrelated(numbers[1:], numbers[:-1])
        assert all(unrelated(numbers[:, lag:], numbers[:, :-lag]) for lag in (1, 2, 16, 496))


def test_all_bits_of_a_key_count() -> None:
    keys = torch.cat((torch.zeros(1, dtype=torch.long), 1 << torch.arange(64)))
    first = hashed_uniform(keys, (4,), "cpu")
    assert len(first.unique(dim=0)) == 65


def test_hashed_normal_numbers_have_the_moments_of_a_gaussian() -> None:
    numbers = hashed_normal(torch.arange(20), (99, 101), "cpu")  # an odd count
    assert numbers.shape == (20, 99, 101) and numbers.dtype == torch.float32
    assert is_normal(numbers)
    assert unrelated(numbers[1:], numbers[:-1])
    flat = numbers.flatten(1)
    assert unrelated(flat[:, :4999], flat[:, 5000:])
    torch.testing.assert_close(hashed_normal(torch.tensor([3]), (99, 101), "cpu")[0], numbers[3], rtol=0, atol=1e-5)
