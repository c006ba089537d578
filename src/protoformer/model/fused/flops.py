"""Floating-point operations of the operators, made known to torch's counter when something is counted.

torch's module of the counter imports Triton, where it is installed, which takes a fraction of a second: it is imported
only by what counts.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

Formula = Callable[..., int]
_FORMULAS: dict[Any, Formula] = {}


def flop_formula(operator: Any) -> Callable[[Formula], Formula]:
    """Decorate a function of an operator's arguments, shapes for tensors, that returns its operations.

    Args:
        operator: An operator of `torch.ops`.
    """

    def keep(formula: Formula) -> Formula:
        _FORMULAS[operator] = formula
        return formula

    return keep


def flop_counter() -> "FlopCounterMode":
    """Return torch's counter, a context manager, which knows all operators that have a `flop_formula`."""
    from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

    for operator, formula in _FORMULAS.items():
        if operator not in flop_registry:
            register_flop_formula(operator)(formula)
    return FlopCounterMode(display=False)
