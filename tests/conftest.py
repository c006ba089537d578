"""Tests run side by side, so each keeps to one thread: more would only wait for one another."""

import os

import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
torch.set_num_threads(1)
