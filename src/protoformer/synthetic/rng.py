"""Counter-based random numbers: the same values in any batch, in any order and on any device."""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_MASK64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: its multiples are spread evenly over 64-bit words
_MASK32 = 2**32 - 1

Shape = tuple[int, ...]
Bound = float | Tensor
Words = npt.NDArray[np.uint64]


class SceneRandom:
    """Random numbers for a batch of scenes, a function of (seed, scene index, name of the draw).

    Scene 17 gets the same numbers in any batch, and adding a draw changes no other draw. Every method returns a CPU
    tensor of shape B x *shape, where B is the number of scenes, float64 unless stated otherwise. Bounds and
    probabilities are numbers or tensors that broadcast to the result. Each name may be drawn once.
    """

    # Names are hashed into the numbers, so renaming a draw ("film.shutter") would change every scene of every seed.

    def __init__(self, seed: int, indices: Sequence[int] | Tensor) -> None:
        """Create the generator from any integer (modulo 2^64) and B scene indices, 64-bit integers."""
        values = indices.cpu().numpy() if isinstance(indices, Tensor) else indices
        scenes = np.asarray(values, dtype=np.int64).reshape(-1).view(np.uint64)
        self._scenes = _mix64(_mix64(np.array([seed & _MASK64], dtype=np.uint64)) + scenes)
        self._used_names: set[str] = set()

    def __len__(self) -> int:
        """Return the number of scenes."""
        return len(self._scenes)

    def uniform(self, name: str, low: Bound = 0.0, high: Bound = 1.0, shape: Shape = ()) -> Tensor:
        """Draw from the uniform distribution on [low, high)."""
        return low + (high - low) * self._unit(name, shape)

    def log_uniform(self, name: str, low: Bound, high: Bound, shape: Shape = ()) -> Tensor:
        """Draw from [low, high), both positive, with a uniformly distributed logarithm."""
        ratio = torch.as_tensor(high, dtype=torch.float64) / low
        return low * ratio ** self._unit(name, shape)

    def normal(self, name: str, mean: Bound = 0.0, std: Bound = 1.0, shape: Shape = ()) -> Tensor:
        """Draw from a Gaussian with this mean and standard deviation."""
        count = math.prod(shape)
        # 1 - u is never 0 for u in [0, 1), so the logarithm is finite.
        return mean + std * _box_muller(1 - self._unit(name, (2, (count + 1) // 2)))[:, :count].reshape(-1, *shape)

    def bernoulli(self, name: str, probability: Bound, shape: Shape = ()) -> Tensor:
        """Draw bools that are True with this probability."""
        return self._unit(name, shape) < probability

    def integer(self, name: str, low: int, high: int, shape: Shape = ()) -> Tensor:
        """Draw int64 integers uniformly from low .. high - 1, a range of at most 2^53."""
        if not low < high:
            raise ValueError(f"{name}: the range from {low} to below {high} holds no integer")
        return (self._unit(name, shape) * (high - low)).floor().long() + low

    def choice(self, name: str, weights: Sequence[float], shape: Shape = ()) -> Tensor:
        """Draw int64 indices into `weights` with probabilities proportional to the weights."""
        cumulative = torch.tensor(weights, dtype=torch.float64).cumsum(dim=0)
        if not (len(weights) > 0 and min(weights) >= 0 and cumulative[-1] > 0):
            raise ValueError(f"{name}: the weights {list(weights)} must be non-negative with a positive sum")
        return torch.searchsorted(cumulative / cumulative[-1], self._unit(name, shape), right=True)

    def unit_vector(self, name: str, shape: Shape = ()) -> Tensor:
        """Draw unit vectors uniformly from the sphere: B x *shape x 3."""
        height, azimuth = self._unit(name, (2, *shape)).unbind(dim=1)
        # Bands of equal height on a sphere have equal area (Archimedes), so that z is uniform.
        z, angle = 2 * height - 1, 2 * math.pi * azimuth
        radius = (1 - z * z).sqrt()
        return torch.stack((radius * angle.cos(), radius * angle.sin(), z), dim=-1)

    def permutation(self, name: str, count: int) -> Tensor:
        """Draw uniformly random permutations of 0 .. count - 1: B x count, int64."""
        return torch.from_numpy(self._words(name, (count,)).argsort(axis=1, kind="stable"))

    def _unit(self, name: str, shape: Shape) -> Tensor:
        """Draw multiples of 2^-53 in [0, 1)."""
        return torch.from_numpy((self._words(name, shape) >> 11).astype(np.float64) * 2.0**-53)

    def _words(self, name: str, shape: Shape) -> Words:
        """Draw 64 random bits per element: B x *shape."""
        if name in self._used_names:
            raise ValueError(f"{name} was already drawn; a second draw would return the same numbers")
        self._used_names.add(name)
        streams = _mix64(self._scenes ^ _hash_name(name))
        words = _mix64(streams[:, None] + _counters(math.prod(shape)))
        return words.reshape(len(streams), *shape)


def _mix64(words: Words) -> Words:
    """Apply a bijection of 64-bit words in which every input bit affects every output bit (SplitMix64)."""
    words = words + np.uint64(_GOLDEN)  # otherwise 0 would map to 0
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


@lru_cache(maxsize=4096)
def _hash_name(name: str) -> np.uint64:
    """Hash a name to 64 bits, identically in every process."""
    return np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))


@lru_cache(maxsize=256)
def _counters(count: int) -> Words:
    """Return the offsets that distinguish the elements of one draw."""
    return np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN)


def hashed_uniform(keys: Tensor, shape: Shape, device: torch.device | str) -> Tensor:
    """Hash B keys, int64, to uniform numbers in (0, 1), bit-exact on every device: B x *shape, float32.

    They are computed on the device, so that image-sized noise is never copied to it.
    """
    low, high = spread_keys(keys.to(device))
    words = torch.arange(math.prod(shape), device=device) + low[:, None]
    words &= _MASK32
    # The second word is mixed in between the rounds, so that keys with overlapping counters still differ.
    words = _mix32(words, between=high[:, None])
    # 23 bits plus one half are exact in float32 and never reach 0 or 1.
    words >>= 9
    return words.float().add_(0.5).mul_(2.0**-23).view(-1, *shape)


def hashed_normal(keys: Tensor, shape: Shape, device: torch.device | str) -> Tensor:
    """Hash keys to standard Gaussian numbers with a magnitude below 5.8; arguments and shapes as in `hashed_uniform`.

    Devices differ in the last bits, because their logarithms do.
    """
    count = math.prod(shape)
    return _box_muller(hashed_uniform(keys, (2, (count + 1) // 2), device))[:, :count].reshape(-1, *shape)


def _box_muller(unit: Tensor) -> Tensor:
    """Transform uniform numbers in (0, 1], B x 2 x M, to standard Gaussian ones, B x 2 M (Box-Muller)."""
    radius, angle = (-2 * unit[:, 0].log()).sqrt(), 2 * math.pi * unit[:, 1]
    return torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)


def spread_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Hash each 64-bit key to two 32-bit words that both depend on all its bits, so that nearby keys diverge."""
    low, high = keys & _MASK32, (keys >> 32) & _MASK32
    first = _mix32(low ^ 0x5BD1E995, between=high)
    second = _mix32(high ^ 0x2545F491, between=first)
    return first, second


def _mix32(words: Tensor, between: Tensor) -> Tensor:
    """Apply two multiply-xorshift rounds to 32-bit words held in int64, mixing in another word between the rounds.

    Multipliers are below 2^31 in magnitude (one is therefore negative), so that no product overflows 64 bits, where the
    result would be undefined.
    """
    words = words ^ (words >> 16)
    words *= 0x7FEB352D
    words &= _MASK32
    words ^= between
    words ^= words >> 15
    words *= 0x846CA68B - 2**32
    words &= _MASK32
    words ^= words >> 16
    return words
