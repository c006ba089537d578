"""Results are frozen dataclasses that can be saved as files and images."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.errors import InputError
from protoformer.io.formats import read_flo, read_kitti_flow
from protoformer.io.image import read_image
from protoformer.viz.colormaps import flow_to_color


@pytest.fixture
def made() -> pf.FlowResult:
    flow = 20 * torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0))
    return pf.FlowResult(flow, torch.full((1, 6, 9), 0.5))


def test_a_result_cannot_be_changed(made: pf.FlowResult) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.flow = torch.zeros(2, 6, 9)


def test_as_an_array_the_vector_comes_last(made: pf.FlowResult) -> None:
    array = made.numpy()
    assert array.dtype == np.float32 and array.shape == (6, 9, 2) and array.flags.c_contiguous
    assert array[4, 7].tolist() == made.flow[:, 4, 7].tolist()


@pytest.mark.parametrize(("name", "format"), [("m.flo", None), ("m.flo", "flo"), ("M.FLO", None)])
def test_flo_keeps_every_bit(tmp_path: Path, made: pf.FlowResult, name: str, format: str | None) -> None:
    made.save(tmp_path / name, format)
    assert np.array_equal(read_flo(tmp_path / name), made.numpy())


def test_kitti_keeps_a_64th_of_a_pixel(tmp_path: Path, made: pf.FlowResult) -> None:
    made.save(tmp_path / "m.png", "kitti")
    read = read_kitti_flow(tmp_path / "m.png")
    assert read.valid.all()
    assert np.abs(read.flow - made.numpy()).max() <= 1 / 128


@pytest.mark.parametrize("format", [None, "image"])
def test_a_png_is_the_picture(tmp_path: Path, made: pf.FlowResult, format: str | None) -> None:
    made.save(str(tmp_path / "m.png"), format)
    expected = flow_to_color(made.numpy())
    assert np.array_equal(np.rint(255 * read_image(tmp_path / "m.png")), expected)
    assert np.array_equal(np.asarray(made.image()), expected)


def test_a_picture_may_have_a_fixed_scale(made: pf.FlowResult) -> None:
    assert np.array_equal(np.asarray(made.image(max_motion=100.0)), flow_to_color(made.numpy(), 100.0))


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("m.jpg", None, "give one ending in .flo, .png, .npy or .npz"),
        ("m", None, "give one ending in .flo, .png, .npy or .npz"),
        (".flo", None, "give one ending in .flo, .png, .npy or .npz"),
        ("m.png", "flo", r"give one ending in \.flo\.$"),
        ("m.flo", "kitti", r"give one ending in \.png\.$"),
        ("m.flo", "image", r"give one ending in \.png\.$"),
        ("m.flo", "flow", "no flow format 'flow'; choose one of flo, kitti, image"),
        ("m.flo", "", "no flow format ''"),
        ("nowhere/m.flo", None, "nowhere does not exist"),
    ],
)
def test_a_name_that_does_not_fit_is_refused_and_nothing_written(
    tmp_path: Path, made: pf.FlowResult, name: str, format: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        made.save(tmp_path / name, format)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, made: pf.FlowResult, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.flo").write_bytes(b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match="No space left on device"):
        made.save(tmp_path / "m.flo")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("m.flo", b"old")]


def test_a_flow_that_needs_a_gradient_can_be_saved(tmp_path: Path) -> None:
    flow = torch.ones(2, 3, 3, requires_grad=True)
    pf.FlowResult(flow, torch.ones(1, 3, 3)).save(tmp_path / "m.flo")
    assert (read_flo(tmp_path / "m.flo") == 1).all()


@pytest.mark.parametrize("shape", [(2, 0, 0), (2, 0, 5), (0,), (), (2, 3), (1, 2, 3, 4), (3, 4, 5)])
def test_whatever_its_shape_a_result_can_be_printed(shape: tuple[int, ...]) -> None:
    printed = repr(pf.FlowResult(torch.zeros(shape), torch.zeros(shape)))
    assert printed.startswith("FlowResult(") and printed.endswith("trained)")
