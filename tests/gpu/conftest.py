"""What the first product on a GPU says once, said before the tests, in which a warning is an error."""

import warnings

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _products_have_run() -> None:
    """Autograd's own thread has no CUDA context until its first product, of which cuBLAS warns."""
    if not torch.cuda.is_available():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        square = torch.ones(16, 16, device="cuda", requires_grad=True)
        (square @ square).sum().backward()
        torch.cuda.synchronize()
