"""Numbers that others published, to stand beside measured ones."""

import json
from dataclasses import dataclass
from pathlib import Path

from protoformer.errors import InputError


@dataclass(frozen=True)
class PublishedRow:
    """A row of a paper's table: end-point error in pixels and Fl-all in percent (None: not given)."""

    label: str
    epe: float
    fl: float | None = None


PAPER = "ProtoFormer, published"
PUBLISHED: dict[tuple[str, str], tuple[PublishedRow, ...]] = {
    ("sintel", "clean"): (
        PublishedRow(f"{PAPER} (C+T)", 1.04),
        PublishedRow(f"{PAPER} (mix, trained on these)", 0.48),
        PublishedRow("FlowFormer, published (C+T)", 1.01),
        PublishedRow("RAFT, published (C+T)", 1.43),
    ),
    ("sintel", "final"): (
        PublishedRow(f"{PAPER} (C+T)", 2.43),
        PublishedRow(f"{PAPER} (mix, trained on these)", 0.69),
        PublishedRow("FlowFormer, published (C+T)", 2.40),
        PublishedRow("RAFT, published (C+T)", 2.71),
    ),
    ("kitti-2015", "all"): (
        PublishedRow(f"{PAPER} (C+T)", 4.08, 14.6),
        PublishedRow(f"{PAPER} (mix, trained on these)", 0.50, 1.09),
        PublishedRow("FlowFormer, published (C+T)", 4.09, 14.7),
        PublishedRow("RAFT, published (C+T)", 5.04, 17.4),
    ),
}
"""By dataset and group: the training set's figures of the whole dataset, per pixel."""


def peers_beside(root: Path) -> dict[str, dict[str, dict[str, float]]]:
    """What known systems score on each sample, from `peers.json` in the dataset's folder or beside it; {} if none.

    Systems by name, then samples by "<folder of the dataset>/<name of the sample>", then "epe" and "fl".
    """
    for path in (root / "peers.json", root.parent / "peers.json"):
        if path.is_file():
            try:
                flow: dict[str, dict[str, dict[str, float]]] = json.loads(path.read_text())["flow"]
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{path} is not a table of peers; mend it or take it away.") from None
            return flow
    return {}
