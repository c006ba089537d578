"""The tree of Virtual KITTI 2, which flow and depth share."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from protoformer.data.tree import expect_folder, expect_some, folders_in, named

Names = str | Sequence[str] | None
"""Names to take, also as one string with commas; None takes all that are there."""


def variant_folders(root: str | os.PathLike[str], scenes: Names, variants: Names) -> list[Path]:
    """The folders `Scene01/<variant>`, scene by scene."""
    base = expect_folder(root, "the folder of Scene01, Scene02 and others")
    found = [folder for folder in folders_in(base) if re.fullmatch(r"Scene[0-9]+", folder.name)]
    expect_some(len(found), "folders Scene01, Scene02 and so on", base)
    return [variant for scene in named(found, scenes, base) for variant in named(folders_in(scene), variants, scene)]
