"""Weights that leave their encoder to flow's, which the package has anyway."""

from pathlib import Path

import pytest
import torch

from protoformer.errors import InputError
from protoformer.loading import load
from protoformer.models import pretrained as weights
from protoformer.models.config import preset
from protoformer.models.protoformer import build_network
from protoformer.stabilization.predictor import StabilizationPredictor


@pytest.fixture(scope="module")
def lender() -> torch.nn.Module:
    return load("flow", "cpu").network


@pytest.fixture
def borrower(lender: torch.nn.Module) -> StabilizationPredictor:
    """A network for stabilization whose encoder is flow's."""
    torch.manual_seed(0)
    network = build_network(preset("fast", encoder={"spatial_prior": False}), "stabilize")
    network.encoder.load_state_dict(lender.get_submodule("encoder").state_dict())
    return StabilizationPredictor(network, True, torch.device("cpu"))


@pytest.mark.parametrize("half", [False, True])
def test_what_is_borrowed_is_there_again(borrower: StabilizationPredictor, tmp_path: Path, half: bool) -> None:
    borrower.save(tmp_path / "whole.safetensors", half=half)
    borrower.save(tmp_path / "part.safetensors", half=half, borrow=True)
    whole, part = (load(tmp_path / f"{name}.safetensors", "cpu").network.state_dict() for name in ("whole", "part"))
    assert whole.keys() == part.keys()
    assert all(torch.equal(whole[name], part[name]) for name in whole)


def test_the_file_is_smaller_by_the_encoder(borrower: StabilizationPredictor, tmp_path: Path) -> None:
    borrower.save(tmp_path / "whole.safetensors", half=True)
    borrower.save(tmp_path / "part.safetensors", half=True, borrow=True)
    saved = (tmp_path / "whole.safetensors").stat().st_size - (tmp_path / "part.safetensors").stat().st_size
    assert saved > 2 * sum(weight.numel() for weight in borrower.network.encoder.parameters())


def test_another_encoder_is_not_left_out(borrower: StabilizationPredictor, tmp_path: Path) -> None:
    with torch.no_grad():
        next(borrower.network.encoder.parameters()).add_(1)
    with pytest.raises(InputError, match=r"cannot borrow the encoder of flow, since its own is another; save it whole"):
        borrower.save(tmp_path / "part.safetensors", borrow=True)
    assert not list(tmp_path.iterdir())


def test_other_weights_of_the_lender_are_noticed(
    borrower: StabilizationPredictor, lender: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    borrower.save(tmp_path / "part.safetensors", borrow=True)
    newer = {name: weight + 1 for name, weight in lender.state_dict().items()}
    weights.write_atomically(tmp_path / "newer.safetensors", weights.save(newer))
    monkeypatch.setattr(weights, "packaged_weights", lambda _: tmp_path / "newer.safetensors")
    with pytest.raises(InputError, match=r"was made for other weights of flow than this package has; use the"):
        load(tmp_path / "part.safetensors", "cpu")


def test_without_the_lender_the_reason_is_told(
    borrower: StabilizationPredictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    borrower.save(tmp_path / "part.safetensors", borrow=True)
    monkeypatch.setattr(weights, "packaged_weights", lambda _: None)
    with pytest.raises(
        InputError, match=r"borrows the encoder of flow, whose weights this package lacks; install them"
    ):
        load(tmp_path / "part.safetensors", "cpu")
