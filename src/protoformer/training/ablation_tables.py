"""The paper's ablation tables: what each row changes, and what the paper measured of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from protoformer.errors import InputError, nearest

TASKS = ("flow", "depth")
"""What the paper ablates."""
DEFAULTS: Mapping[str, str | int] = {
    "components": "both",
    "update": "cap",
    "iterations": 3,
    "prototypes": 100,
    "synchronization": "ls",
}
"""The fields of a `ModelConfig` that the tables change, as the paper's full system has them."""
ALL = "all"


@dataclass(frozen=True)
class Variant:
    """A row of a table.

    fields: of a `ModelConfig`, what the row changes. published: by task, the two figures of the paper; of flow EPE on
    Sintel clean and final, pixels; of depth AbsRel and RMSE (metres) on KITTI.
    """

    label: str
    fields: Mapping[str, str | int]
    published: Mapping[str, tuple[float, float]]

    @property
    def is_default(self) -> bool:
        """Whether the row is the full system."""
        return all(DEFAULTS[name] == value for name, value in self.fields.items())


@dataclass(frozen=True)
class AblationTable:
    """A table: name, as it is asked for; what: a line for people."""

    name: str
    what: str
    variants: tuple[Variant, ...]


Row = tuple[str, str | int, tuple[float, float], tuple[float, float]]
"""Label, value of the table's field, and the paper's figures of flow and of depth."""
SAME: Mapping[tuple[str, str | int], Mapping[str, str | int]] = {("components", "cap"): {"synchronization": "none"}}
"""What another table calls the same network: prototypes that nothing is synchronized with."""


def _table(name: str, what: str, field: str, *rows: Row) -> AblationTable:
    variants = []
    for label, value, flow, depth in rows:
        fields = SAME.get((field, value), {field: value})
        variants.append(Variant(label, fields, {"flow": flow, "depth": depth}))
    return AblationTable(name, what, tuple(variants))


_TABLES = (
    _table(
        *("components", "which parts there are", "components"),
        ("base", "base", (0.55, 0.81), (0.074, 2.835)),
        ("CAP only", "cap", (0.51, 0.74), (0.067, 2.742)),
        ("LS only", "ls", (0.53, 0.77), (0.071, 2.819)),
        ("CAP and LS", "both", (0.48, 0.69), (0.062, 2.716)),
    ),
    _table(
        *("updates", "how prototypes are updated", "update"),
        ("cosine", "cosine", (0.51, 0.75), (0.066, 2.775)),
        ("cross-attention", "cross_attention", (0.50, 0.73), (0.066, 2.767)),
        ("criss-cross", "criss_cross", (0.50, 0.72), (0.065, 2.750)),
        ("k-means", "k_means", (0.49, 0.71), (0.063, 2.743)),
        ("CAP", "cap", (0.48, 0.69), (0.062, 2.716)),
    ),
    _table(
        *("iterations", "steps of EM, N", "iterations"),
        ("N = 1", 1, (0.52, 0.75), (0.070, 2.801)),
        ("N = 2", 2, (0.49, 0.71), (0.065, 2.737)),
        ("N = 3", 3, (0.48, 0.69), (0.062, 2.716)),
        ("N = 4", 4, (0.48, 0.68), (0.061, 2.713)),
    ),
    _table(
        *("prototypes", "number of prototypes, K", "prototypes"),
        ("K = 10", 10, (0.53, 0.78), (0.070, 2.775)),
        ("K = 50", 50, (0.51, 0.73), (0.067, 2.734)),
        ("K = 100", 100, (0.48, 0.69), (0.062, 2.716)),
        ("K = 200", 200, (0.49, 0.71), (0.064, 2.720)),
    ),
    _table(
        *("synchronization", "how pixels take their prototype up", "synchronization"),
        ("none", "none", (0.51, 0.74), (0.067, 2.732)),
        ("FC", "fc", (0.50, 0.73), (0.064, 2.724)),
        ("FC with similarity", "fc_similarity", (0.49, 0.71), (0.063, 2.718)),
        ("LS", "ls", (0.48, 0.69), (0.062, 2.716)),
    ),
)

TABLES: Mapping[str, AblationTable] = {table.name: table for table in _TABLES}


def tables_named(name: str) -> tuple[AblationTable, ...]:
    """The table of this name, or every one for "all"."""
    if name == ALL:
        return _TABLES
    if name not in TABLES:
        raise InputError(
            f"there is no table {name!r}; the nearest one is {nearest(name, [*TABLES, ALL])!r}, and all of them are "
            f"{', '.join(TABLES)}."
        )
    return (TABLES[name],)
