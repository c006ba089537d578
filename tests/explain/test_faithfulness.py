"""Removal of prototypes, and baseline regions."""

import sys

import pytest
import torch

import protoformer as pf
from protoformer.geometry.warps import cell_of_pixel
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import procedural_bank
from prototype_regions import grid_joined_fraction, joined_fraction
from region_baselines import k_means_regions, slic_regions
from region_metrics import adjusted_rand_index


def test_removing_a_prototype_changes_the_flow_most_at_its_pixels() -> None:
    renderer = SyntheticScenes("room", seed=9, size=(64, 96), bank=procedural_bank(64, 2)).renderer([0])
    first, second = (renderer.clean(renderer.view(frame / renderer.scenes.fps))[0] for frame in range(2))
    explained = pf.load("flow", "cpu").explain(first, second, num_updates=2)
    effects = explained.removals("2.1", 3)
    assert len(effects) == 3
    assert [each.share for each in effects] == sorted((each.share for each in effects), reverse=True)
    ratios = sorted(each.ratio for each in effects)
    assert ratios[1] > 1.2, ratios


def test_regions_of_a_checkerboard_are_its_fields() -> None:
    truth = cell_of_pixel((48, 64), (3, 4)).view(48, 64)
    image = torch.rand(12, 3, generator=torch.Generator().manual_seed(1))[truth].permute(2, 0, 1)
    assert adjusted_rand_index(k_means_regions(image, 12), truth) > 0.99
    pytest.importorskip("skimage", reason="scikit-image is not installed")
    assert adjusted_rand_index(slic_regions(image, 12), truth) > 0.99


def test_slic_without_scikit_image_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    with pytest.raises(pf.InputError, match=r"pip install 'protoformer\[bench\]'\.$"):
        slic_regions(torch.zeros(3, 16, 16), 4)


def test_cells_of_a_grid_are_joined_but_at_its_lines() -> None:
    assert joined_fraction(torch.tensor([[0, 0, 1], [0, 2, 1]])) == pytest.approx(3 / 7)
    horizontal, vertical = 24 * (31 - 9), 32 * (23 - 9)  # pairs of cells; nine lines in each direction
    assert grid_joined_fraction((192, 256), 100, 8) == pytest.approx((horizontal + vertical) / (24 * 31 + 32 * 23))
