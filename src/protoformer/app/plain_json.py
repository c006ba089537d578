"""Records as json, which has no NaN."""

import dataclasses
import math
from typing import Any


def plain_json(record: Any) -> dict[str, Any]:
    """A dataclass, or a dict, as json holds it: what was not measured is null."""
    result: dict[str, Any] = _plain(record if isinstance(record, dict) else dataclasses.asdict(record))
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
