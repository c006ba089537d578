"""Groups of kernels can be disabled; plain torch then computes the same."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from protoformer.models.encoder import Mixer
from protoformer.models.kernels import dispatch
from protoformer.models.kernels.dispatch import KERNEL_GROUPS, disabled, is_enabled, stores_half_costs, use_kernels
from protoformer.models.prototyping import Prototyping
from protoformer.models.synchronization import LatentSynchronization

ON_GPU = SimpleNamespace(device=torch.device("cuda"))
"""All that `use_kernels` reads of a tensor."""


@pytest.fixture
def _with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "TRITON_AVAILABLE", True)


@pytest.mark.usefixtures("_with_triton")
@pytest.mark.parametrize("group", KERNEL_GROUPS)
def test_a_disabled_group_does_not_run_and_the_others_do(group: str) -> None:
    with disabled(group):
        assert [name for name in KERNEL_GROUPS if not use_kernels(ON_GPU, name)] == [group]  # type: ignore[arg-type]
        assert stores_half_costs(ON_GPU.device, half=True) == (group != "lookup")
    assert all(use_kernels(ON_GPU, name) for name in KERNEL_GROUPS)  # type: ignore[arg-type]


def test_groups_add_up_and_are_restored_after_an_error() -> None:
    with pytest.raises(RuntimeError), disabled("gru"):
        with disabled("norm", "loss"):
            assert not any(map(is_enabled, ("gru", "norm", "loss")))
        assert is_enabled("norm") and not is_enabled("gru")
        raise RuntimeError
    assert is_enabled("gru")


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(ValueError, match="no kernel group 'norms'; choose from norm, activation"), disabled("norms"):
        pass


@pytest.mark.parametrize(("value", "expected"), [("gru, norm", "['gru', 'norm']"), ("", "[]")])
def test_the_environment_disables_groups(value: str, expected: str) -> None:
    program = "from protoformer.models.kernels import dispatch; print(sorted(dispatch._disabled))"
    environment = os.environ | {dispatch.ENVIRONMENT_VARIABLE: value}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == expected


@pytest.mark.parametrize("gradients", [False, True])
def test_without_the_mixing_group_cap_and_ls_compute_the_same(gradients: bool) -> None:
    torch.manual_seed(0)
    mixer = Mixer(Prototyping(32, 2, 12), LatentSynchronization(32, 2))
    tokens = torch.randn(2, 70, 32)
    with torch.set_grad_enabled(gradients):
        fused, prototypes = mixer(tokens, (7, 10))
        with disabled("mixing"):
            plain, plain_prototypes = mixer(tokens, (7, 10))
    torch.testing.assert_close(fused, plain, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(prototypes.centers, plain_prototypes.centers, atol=1e-5, rtol=1e-4)
    assert torch.equal(prototypes.assignment, plain_prototypes.assignment)
