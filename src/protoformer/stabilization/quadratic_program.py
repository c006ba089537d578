"""Quadratic programs over a chain: four numbers a link, neighbors that know of each other, bounds on each link."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Terms = tuple[Array, Array]
"""A kind of terms of a sum of squares: C and c of |C x - c|^2, see `ChainProgram`."""

WIDTH = 4
"""Numbers of a link."""
GROUP = 8
"""Links that are eliminated at once; no fewer than the links that an energy reaches over."""
MOST_STEPS = 60
ROUNDING = 1e-13
"""Share of a bound that is left beside it at least."""
CLOSE = 1e-7
"""What is left of the gap between the energy and its bound from below, relative to the energy, when it is solved."""


@dataclass(frozen=True)
class QuadraticProgram:
    """Find the chain x, n x 4, of least sum |C x - c|^2 such that A x <= b holds in every link.

    terms: kinds of terms of the sum, each with C, m x k x r x 4, and c, m x r: term i is over the links i .. i + k - 1.
    sides, limits: A, n x e x 4, and b, n x e.
    """

    terms: tuple[Terms, ...]
    sides: Array
    limits: Array


class BandedMatrix:
    """A positive definite matrix of a chain, factored: n links of four, each tied to GROUP - 1 next ones at most."""

    def __init__(self, bands: Array) -> None:
        """bands: n x k x 4 x 4, the block of link i and link i + j at [i, j]."""
        count, reach = bands.shape[:2]
        groups = -(-count // GROUP)
        size = GROUP * WIDTH
        self._count, self._groups = count, groups
        own = np.zeros((groups, size, size))
        beyond = np.zeros((groups, size, size))
        for place in range(count, groups * GROUP):
            corner = (place % GROUP) * WIDTH
            own[-1, corner : corner + WIDTH, corner : corner + WIDTH] = np.eye(WIDTH)
        for far in range(reach):
            for inner in range(GROUP):
                here = bands[inner::GROUP, far]
                there = inner + far
                target = own if there < GROUP else beyond
                row, column = inner * WIDTH, (there % GROUP) * WIDTH
                target[: len(here), row : row + WIDTH, column : column + WIDTH] = here
                if far and there < GROUP:
                    own[: len(here), column : column + WIDTH, row : row + WIDTH] = here.transpose(0, 2, 1)
        self._factors, self._ties = self._eliminated(own, beyond)

    @staticmethod
    def _eliminated(own: Array, beyond: Array) -> tuple[Array, Array]:
        """Inverses of the groups' own blocks once those before are gone, and what ties each to the next.

        They replace what is handed in.
        """
        carried = np.zeros_like(own[0])
        for place in range(len(own)):  # in place: of a long chain these are the largest arrays
            own[place] = np.linalg.inv(own[place] - carried)
            ties = own[place] @ beyond[place]
            carried = beyond[place].T @ ties
            beyond[place] = ties
        return own, beyond

    def solve(self, right: Array) -> Array:
        """The chain, n x 4, that the matrix turns into `right`, n x 4."""
        whole = np.zeros((self._groups * GROUP, WIDTH))
        whole[: self._count] = right
        parts = whole.reshape(self._groups, -1)
        for place in range(1, self._groups):
            parts[place] -= self._ties[place - 1].T @ parts[place - 1]
        found = np.einsum("gij,gj->gi", self._factors, parts)
        for place in range(self._groups - 2, -1, -1):
            found[place] -= self._ties[place] @ found[place + 1]
        chain: Array = found.reshape(-1, WIDTH)[: self._count]
        return chain


def objective_bands(terms: tuple[Terms, ...], count: int) -> tuple[Array, Array]:
    """The normal equations of a sum of squares: bands, n x k x 4 x 4, and right side, n x 4."""
    reach = max(blocks.shape[1] for blocks, _ in terms)
    bands, right = np.zeros((count, reach, WIDTH, WIDTH)), np.zeros((count, WIDTH))
    for blocks, wanted in terms:
        terms_here, links = blocks.shape[:2]
        for one in range(links):
            right[one : one + terms_here] += np.einsum("mra,mr->ma", blocks[:, one], wanted)
            for other in range(one, links):
                product = np.einsum("mra,mrb->mab", blocks[:, one], blocks[:, other])
                bands[one : one + terms_here, other - one] += product
    return bands, right


def solve(program: QuadraticProgram, start: Array) -> Array:
    """The best chain, n x 4, by a primal-dual interior-point method; start: n x 4, strictly within every bound."""
    sides, limits = program.sides, program.limits
    bands, right = objective_bands(program.terms, len(start))
    x = start.copy()
    slack = limits - np.einsum("nea,na->ne", sides, x)
    if not (slack > 0).all():
        raise ValueError("a chain begins strictly within every bound, and this one does not")
    price = np.ones_like(slack) / slack
    scale = max(1.0, float(np.abs(right).max()))
    price *= scale
    for _ in range(MOST_STEPS):
        pull = _times(bands, x) - right + np.einsum("nea,ne->na", sides, price)
        gap = float((slack * price).mean())
        if gap * slack.size < CLOSE * _energy(program.terms, x) + 1e-12 and np.abs(pull).max() < 1e-6 * scale:
            break
        stiff = bands.copy()
        stiff[:, 0] += np.einsum("nea,ne,neb->nab", sides, price / slack, sides)
        matrix = BandedMatrix(stiff)
        aimed = np.zeros_like(slack)
        step, slack_step, price_step = _direction(matrix, sides, slack, price, pull, aimed)
        free = min(_room(slack, slack_step), _room(price, price_step))
        after = float(((slack + free * slack_step) * (price + free * price_step)).mean())
        aimed = gap * (after / gap) ** 3 - slack_step * price_step
        step, slack_step, price_step = _direction(matrix, sides, slack, price, pull, aimed)
        del matrix  # the largest arrays of a long chain, which the next step needs anew
        length = 0.99 * min(_room(slack, slack_step), _room(price, price_step))
        x, price = x + length * step, price + length * price_step
        # What is left beside a bound may be less than rounding, which would make it nothing.
        slack = np.maximum(limits - np.einsum("nea,na->ne", sides, x), ROUNDING * np.abs(limits))
    return x


def _direction(
    matrix: BandedMatrix, sides: Array, slack: Array, price: Array, pull: Array, aimed: Array
) -> tuple[Array, Array, Array]:
    """Newton's step of the chain, its slacks and their prices towards slack * price = aimed."""
    force = (aimed - slack * price) / slack
    step = matrix.solve(-pull - np.einsum("nea,ne->na", sides, force))
    slack_step = -np.einsum("nea,na->ne", sides, step)
    return step, slack_step, force - price / slack * slack_step


def _room(value: Array, step: Array) -> float:
    """How much of a step a positive value can take, at most all of it."""
    short = value < -step  # no others, some of which fall so little that the quotient is beyond all numbers
    return float((value[short] / -step[short]).min()) if short.any() else 1.0


def _times(bands: Array, x: Array) -> Array:
    count, reach = bands.shape[:2]
    result: Array = np.einsum("nab,nb->na", bands[:, 0], x)
    for far in range(1, min(reach, count)):
        result[:-far] += np.einsum("nab,nb->na", bands[:-far, far], x[far:])
        result[far:] += np.einsum("nab,na->nb", bands[:-far, far], x[:-far])
    return result


def _energy(terms: tuple[Terms, ...], x: Array) -> float:
    total = 0.0
    for blocks, wanted in terms:
        count, links = blocks.shape[:2]
        value = sum(np.einsum("mra,ma->mr", blocks[:, link], x[link : link + count]) for link in range(links)) - wanted
        total += float(np.square(value).sum())
    return total
