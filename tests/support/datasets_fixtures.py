"""Small trees in the official layouts, written by hand."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Paint = Callable[..., Path]


@pytest.fixture(scope="session")
def benchmarks() -> Path:
    """The folder of public benchmark samples beside the checkout."""
    folder = Path(__file__).parents[2].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the benchmark samples are not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def paint() -> Paint:
    """Write an image of one gray, 0 .. 255, or of given uint8 pixels; its folders are made as well."""

    def painted(path: Path, gray: int | np.ndarray = 0, size: tuple[int, int] = (4, 6)) -> Path:
        pixels = gray if isinstance(gray, np.ndarray) else np.full(size, gray, dtype=np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).convert("RGB").save(path)
        return path

    return painted


@pytest.fixture(scope="session")
def motion() -> Callable[[int], np.ndarray]:
    """A flow of 4 x 6 pixels, HxWx2, that differs at every pixel and with `number`."""

    def made(number: int) -> np.ndarray:
        grid = np.arange(48, dtype=np.float32).reshape(4, 6, 2)
        return grid / 4 - 3 + number

    return made
