"""Tests run side by side, so each keeps to one thread: more would only wait for one another."""

import os

import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, so that nobody waits for it alone at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
