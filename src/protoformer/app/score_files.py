"""What every evaluation leaves in its folder."""

import json
from pathlib import Path
from typing import Any

from protoformer.app.plain_json import plain_json
from protoformer.files import write_atomically


def write_scores(folder: Path, table: str, text: str, found: Any) -> None:
    """Write a csv by the name `table`, and everything that was found as scores.json."""
    write_atomically(folder / table, text.encode())
    write_atomically(folder / "scores.json", json.dumps(plain_json(found), indent=1).encode())
