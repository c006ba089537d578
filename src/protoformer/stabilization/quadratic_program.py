"""Interior-point solver for quadratic programs over a sequence of frames.

Each frame has four variables. The objective is a sum of squares that couples neighboring frames, so its matrix is block
banded; the constraints are linear inequalities on single frames.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Terms = tuple[Array, Array]
"""A family of least-squares terms: C and c of |C x - c|^2, see `QuadraticProgram`."""

WIDTH = 4
"""Variables of a frame."""
GROUP = 8
"""Frames that are eliminated together; at least as many as a term of the objective couples."""
MAX_STEPS = 60
MIN_SLACK = 1e-13
"""Smallest slack, relative to the bound."""
TOLERANCE = 1e-7
"""Duality gap at convergence, relative to the objective."""


@dataclass(frozen=True)
class QuadraticProgram:
    """Minimize sum |C x - c|^2 over x, n x 4, subject to A x <= b in every frame.

    Attributes:
        terms: Families of terms, each with C, m x k x r x 4, and c, m x r: term i covers the frames i .. i + k - 1.
        sides: A, n x e x 4.
        limits: b, n x e.
    """

    terms: tuple[Terms, ...]
    sides: Array
    limits: Array


class BandedMatrix:
    """Factorization of a positive definite block banded matrix.

    The matrix has n x n blocks of 4 x 4 and couples each frame with at most the next GROUP - 1.
    """

    def __init__(self, bands: Array) -> None:
        """Factorize a matrix whose block of frames i and i + j is at [i, j] of bands, n x k x 4 x 4."""
        count, bandwidth = bands.shape[:2]
        groups = -(-count // GROUP)
        size = GROUP * WIDTH
        self._count, self._groups = count, groups
        diagonal = np.zeros((groups, size, size))
        off_diagonal = np.zeros((groups, size, size))
        for index in range(count, groups * GROUP):
            corner = (index % GROUP) * WIDTH
            diagonal[-1, corner : corner + WIDTH, corner : corner + WIDTH] = np.eye(WIDTH)
        for offset in range(bandwidth):
            for inner in range(GROUP):
                blocks = bands[inner::GROUP, offset]
                other = inner + offset
                target = diagonal if other < GROUP else off_diagonal
                row, column = inner * WIDTH, (other % GROUP) * WIDTH
                target[: len(blocks), row : row + WIDTH, column : column + WIDTH] = blocks
                if offset and other < GROUP:
                    diagonal[: len(blocks), column : column + WIDTH, row : row + WIDTH] = blocks.transpose(0, 2, 1)
        self._inverses, self._couplings = self._eliminate(diagonal, off_diagonal)

    @staticmethod
    def _eliminate(diagonal: Array, off_diagonal: Array) -> tuple[Array, Array]:
        """Eliminate group by group, in place.

        Args:
            diagonal: Diagonal blocks of the groups; replaced by the inverses of their Schur complements.
            off_diagonal: Blocks between each group and the next; replaced by their products with these inverses.

        Returns:
            Both arguments.
        """
        schur_update = np.zeros_like(diagonal[0])
        for index in range(len(diagonal)):  # in place, since these are the largest arrays of a long clip
            diagonal[index] = np.linalg.inv(diagonal[index] - schur_update)
            coupling = diagonal[index] @ off_diagonal[index]
            schur_update = off_diagonal[index].T @ coupling
            off_diagonal[index] = coupling
        return diagonal, off_diagonal

    def solve(self, right: Array) -> Array:
        """Solve the linear system for a right-hand side, n x 4; returns n x 4."""
        padded = np.zeros((self._groups * GROUP, WIDTH))
        padded[: self._count] = right
        parts = padded.reshape(self._groups, -1)
        for index in range(1, self._groups):
            parts[index] -= self._couplings[index - 1].T @ parts[index - 1]
        output = np.einsum("gij,gj->gi", self._inverses, parts)
        for index in range(self._groups - 2, -1, -1):
            output[index] -= self._couplings[index] @ output[index + 1]
        solution: Array = output.reshape(-1, WIDTH)[: self._count]
        return solution


def objective_bands(terms: tuple[Terms, ...], count: int) -> tuple[Array, Array]:
    """Compute the normal equations of a sum of squares over `count` frames: bands and right-hand side, n x 4.

    The bands are n x k x 4 x 4, as for `BandedMatrix`.
    """
    bandwidth = max(blocks.shape[1] for blocks, _ in terms)
    bands, right = np.zeros((count, bandwidth, WIDTH, WIDTH)), np.zeros((count, WIDTH))
    for blocks, goal in terms:
        num_terms, length = blocks.shape[:2]
        for first in range(length):
            right[first : first + num_terms] += np.einsum("mra,mr->ma", blocks[:, first], goal)
            for second in range(first, length):
                product = np.einsum("mra,mrb->mab", blocks[:, first], blocks[:, second])
                bands[first : first + num_terms, second - first] += product
    return bands, right


def solve(program: QuadraticProgram, start: Array) -> Array:
    """Solve a quadratic program with Mehrotra's predictor-corrector method: the minimizer, n x 4.

    `start`, n x 4, must be strictly feasible.
    """
    sides, limits = program.sides, program.limits
    bands, right = objective_bands(program.terms, len(start))
    x = start.copy()
    slack = limits - np.einsum("nea,na->ne", sides, x)
    if not (slack > 0).all():
        raise ValueError("the starting point must lie strictly within every bound, and this one does not")
    dual = np.ones_like(slack) / slack
    scale = max(1.0, float(np.abs(right).max()))
    dual *= scale
    for _ in range(MAX_STEPS):
        residual = _multiply(bands, x) - right + np.einsum("nea,ne->na", sides, dual)
        gap = float((slack * dual).mean())
        if (
            gap * slack.size < TOLERANCE * _objective(program.terms, x) + 1e-12
            and np.abs(residual).max() < 1e-6 * scale
        ):
            break
        hessian = bands.copy()
        hessian[:, 0] += np.einsum("nea,ne,neb->nab", sides, dual / slack, sides)
        matrix = BandedMatrix(hessian)
        complementarity = np.zeros_like(slack)
        step, slack_step, dual_step = _newton_step(matrix, sides, slack, dual, residual, complementarity)
        affine_length = min(_step_length(slack, slack_step), _step_length(dual, dual_step))
        affine_gap = float(((slack + affine_length * slack_step) * (dual + affine_length * dual_step)).mean())
        complementarity = gap * (affine_gap / gap) ** 3 - slack_step * dual_step
        step, slack_step, dual_step = _newton_step(matrix, sides, slack, dual, residual, complementarity)
        del matrix  # the largest arrays of a long clip; the next iteration allocates them again
        length = 0.99 * min(_step_length(slack, slack_step), _step_length(dual, dual_step))
        x, dual = x + length * step, dual + length * dual_step
        # Rounding could make a tiny slack zero or negative.
        slack = np.maximum(limits - np.einsum("nea,na->ne", sides, x), MIN_SLACK * np.abs(limits))
    return x


def _newton_step(
    matrix: BandedMatrix, sides: Array, slack: Array, dual: Array, residual: Array, complementarity: Array
) -> tuple[Array, Array, Array]:
    """Compute the Newton step of variables, slacks and duals towards slack * dual = complementarity."""
    correction = (complementarity - slack * dual) / slack
    step = matrix.solve(-residual - np.einsum("nea,ne->na", sides, correction))
    slack_step = -np.einsum("nea,na->ne", sides, step)
    return step, slack_step, correction - dual / slack * slack_step


def _step_length(value: Array, step: Array) -> float:
    """Return the largest fraction of a step, at most 1, that keeps a positive value nonnegative."""
    short = value < -step  # only these limit the step; for others the quotient may overflow
    return float((value[short] / -step[short]).min()) if short.any() else 1.0


def _multiply(bands: Array, x: Array) -> Array:
    count, bandwidth = bands.shape[:2]
    result: Array = np.einsum("nab,nb->na", bands[:, 0], x)
    for offset in range(1, min(bandwidth, count)):
        result[:-offset] += np.einsum("nab,nb->na", bands[:-offset, offset], x[offset:])
        result[offset:] += np.einsum("nab,na->nb", bands[:-offset, offset], x[:-offset])
    return result


def _objective(terms: tuple[Terms, ...], x: Array) -> float:
    total = 0.0
    for blocks, goal in terms:
        count, length = blocks.shape[:2]
        value = (
            sum(np.einsum("mra,ma->mr", blocks[:, index], x[index : index + count]) for index in range(length)) - goal
        )
        total += float(np.square(value).sum())
    return total
