"""Chance that depends on a key alone: the same numbers in any batch, in any order and on any device."""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: multiples of it spread evenly over the words
_HALF_WORD = 2**32 - 1

Shape = tuple[int, ...]
Bound = float | Tensor
Words = npt.NDArray[np.uint64]


class SceneRandom:
    """Numbers for a batch of scenes, each decided by (seed, index of the scene, name of the draw).

    Scene 17 is the same in any batch, and a new draw changes no other. Every method returns a CPU tensor B x *shape, B
    the number of indices, float64 unless it says otherwise; bounds and probabilities are numbers, or tensors that
    broadcast to the result. A name may be drawn once.
    """

    def __init__(self, seed: int, indices: Sequence[int] | Tensor) -> None:
        """seed: any whole number, taken modulo 2^64; indices: B whole numbers of 64 bits."""
        numbers = indices.cpu().numpy() if isinstance(indices, Tensor) else indices
        scenes = np.asarray(numbers, dtype=np.int64).reshape(-1).view(np.uint64)
        self._scenes = _mixed(_mixed(np.array([seed & _WORD], dtype=np.uint64)) + scenes)
        self._drawn: set[str] = set()

    def __len__(self) -> int:
        """How many scenes there are."""
        return len(self._scenes)

    def uniform(self, name: str, low: Bound = 0.0, high: Bound = 1.0, shape: Shape = ()) -> Tensor:
        """Evenly between low and high."""
        return low + (high - low) * self._unit(name, shape)

    def log_uniform(self, name: str, low: Bound, high: Bound, shape: Shape = ()) -> Tensor:
        """Between low and high, both positive, with the logarithm spread evenly."""
        ratio = torch.as_tensor(high, dtype=torch.float64) / low
        return low * ratio ** self._unit(name, shape)

    def normal(self, name: str, mean: Bound = 0.0, std: Bound = 1.0, shape: Shape = ()) -> Tensor:
        """Gaussian of this mean and standard deviation."""
        count = math.prod(shape)
        # One minus a number below 1 is never 0, so the logarithm is finite.
        return mean + std * _bell(1 - self._unit(name, (2, (count + 1) // 2)))[:, :count].reshape(-1, *shape)

    def whether(self, name: str, probability: Bound, shape: Shape = ()) -> Tensor:
        """True with this probability: bool."""
        return self._unit(name, shape) < probability

    def integer(self, name: str, low: int, high: int, shape: Shape = ()) -> Tensor:
        """One of low .. high - 1, each as likely: int64. At most 2^53 of them."""
        if not low < high:
            raise ValueError(f"{name}: no whole number from {low} to below {high}")
        return (self._unit(name, shape) * (high - low)).floor().long() + low

    def choice(self, name: str, weights: Sequence[float], shape: Shape = ()) -> Tensor:
        """An index into the weights, as likely as its weight is of their sum: int64."""
        totals = torch.tensor(weights, dtype=torch.float64).cumsum(dim=0)
        if not (len(weights) > 0 and min(weights) >= 0 and totals[-1] > 0):
            raise ValueError(f"{name}: {list(weights)} are not weights, which are at least 0 and not all 0")
        return torch.searchsorted(totals / totals[-1], self._unit(name, shape), right=True)

    def direction(self, name: str, shape: Shape = ()) -> Tensor:
        """Unit vectors evenly over the sphere: B x *shape x 3."""
        height, turn = self._unit(name, (2, *shape)).unbind(dim=1)
        # Bands of a sphere of one height have one area (Archimedes).
        z, angle = 2 * height - 1, 2 * math.pi * turn
        radius = (1 - z * z).sqrt()
        return torch.stack((radius * angle.cos(), radius * angle.sin(), z), dim=-1)

    def order(self, name: str, count: int) -> Tensor:
        """The numbers 0 .. count - 1 in random order, every order as likely: B x count, int64."""
        return torch.from_numpy(self._words(name, (count,)).argsort(axis=1, kind="stable"))

    def _unit(self, name: str, shape: Shape) -> Tensor:
        """Multiples of 2^-53 in [0, 1)."""
        return torch.from_numpy((self._words(name, shape) >> 11).astype(np.float64) * 2.0**-53)

    def _words(self, name: str, shape: Shape) -> Words:
        """64 random bits each: B x *shape."""
        if name in self._drawn:
            raise ValueError(f"{name} is drawn already: a second draw would give the same numbers")
        self._drawn.add(name)
        streams = _mixed(self._scenes ^ _name_word(name))
        words = _mixed(streams[:, None] + _steps(math.prod(shape)))
        return words.reshape(len(streams), *shape)


def _mixed(words: Words) -> Words:
    """A one-to-one map of 64-bit words in which every bit of the input moves every bit of the output."""
    words = words + np.uint64(_GOLDEN)  # or nought would stay nought
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


@lru_cache(maxsize=4096)
def _name_word(name: str) -> np.uint64:
    """64 bits of a name, the same in every process."""
    return np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))


@lru_cache(maxsize=256)
def _steps(count: int) -> Words:
    """What sets the elements of one draw apart."""
    return np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN)


def hashed_uniform(keys: Tensor, shape: Shape, device: torch.device | str) -> Tensor:
    """Numbers in (0, 1) that a key decides, to the bit on any device: float32, B x *shape.

    keys: B, int64. Made where they are needed, so noise as large as an image never travels to the device.
    """
    low, high = spread_keys(keys.to(device))
    words = torch.arange(math.prod(shape), device=device) + low[:, None]
    words &= _HALF_WORD
    # The second word enters between the rounds, so that two keys whose counters overlap still give different numbers.
    words = _mix_rounds(words, between=high[:, None])
    # 23 bits and a half are exact in float32, and keep away from both 0 and 1.
    words >>= 9
    return words.float().add_(0.5).mul_(2.0**-23).view(-1, *shape)


def hashed_normal(keys: Tensor, shape: Shape, device: torch.device | str) -> Tensor:
    """Gaussian numbers of mean 0 and deviation 1 that a key decides: float32, B x *shape, within 5.8 of 0.

    keys: B, int64. Devices differ in the last bits, as their logarithms do.
    """
    count = math.prod(shape)
    return _bell(hashed_uniform(keys, (2, (count + 1) // 2), device))[:, :count].reshape(-1, *shape)


def _bell(unit: Tensor) -> Tensor:
    """Numbers in (0, 1], B x 2 x M, to as many Gaussian ones, B x 2 M, by the method of Box and Muller."""
    radius, turn = (-2 * unit[:, 0].log()).sqrt(), 2 * math.pi * unit[:, 1]
    return torch.cat((radius * turn.cos(), radius * turn.sin()), dim=1)


def spread_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Two 32-bit words a key, both moved by all its bits: neighboring keys end up far apart."""
    low, high = keys & _HALF_WORD, (keys >> 32) & _HALF_WORD
    first = _mix_rounds(low ^ 0x5BD1E995, between=high)
    second = _mix_rounds(high ^ 0x2545F491, between=first)
    return first, second


def _mix_rounds(words: Tensor, between: Tensor) -> Tensor:
    """Two rounds of multiplying and folding 32-bit words held in int64, with another word entering half way.

    A multiplier is below 2^31 in size (so one is negative), so no product leaves 64 bits: what overflow does is then
    nobody's choice.
    """
    words = words ^ (words >> 16)
    words *= 0x7FEB352D
    words &= _HALF_WORD
    words ^= between
    words ^= words >> 15
    words *= 0x846CA68B - 2**32
    words &= _HALF_WORD
    words ^= words >> 16
    return words
