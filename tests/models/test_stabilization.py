"""The stabilizing network: what it does before it has learned anything, any size, every parameter."""

import math

import pytest
import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.motion_fields import Trajectories, cell_terms, evaluate_fields
from protoformer.models.config import REGRESSORS, preset
from protoformer.models.heads.stabilization import KERNEL_SIGMA, VERTICES
from protoformer.models.profiling import count_parameters
from protoformer.models.protoformer import ProtoFormer, build_network

SIZE = (64, 96)
CELLS = (8, 12)


def network(regressor: str, window: int = 30, **fields: int) -> ProtoFormer:
    torch.manual_seed(0)
    return build_network(
        preset("tiny", stabilization={"regressor": regressor, "field_window": window, "grid_window": window}, **fields),
        "stabilize",
    ).eval()


def steps_of(network: ProtoFormer) -> Tensor:
    past, future = network.config.stabilization.window
    return torch.arange(-past, future + 1).float()


def moved(path: Tensor, cells: tuple[int, int] = CELLS) -> Trajectories:
    """Trails of a frame that moves as a whole. path: T x 2, pixels."""
    places = path.view(1, -1, 2, 1, 1).expand(1, -1, 2, *cells)
    return Trajectories(places.contiguous(), torch.ones(1, len(path), 1, *cells))


def last_warp(network: ProtoFormer, trails: Trajectories) -> Tensor:
    height, width = (8 * side for side in trails.displacements.shape[-2:])
    image = torch.rand(len(trails.displacements), 3, height, width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        warp: Tensor = network(2 * image - 1, trails).warps[-1]
    return warp


def shake(network: ProtoFormer, size: float = 6.0, hertz: float = 4.0) -> tuple[Tensor, Tensor]:
    """A path of T x 2, as trails have it, and how far off the stable one it is at now: 2."""
    steps = steps_of(network)
    phase = 2 * math.pi * hertz / 30 * steps[:, None] + torch.tensor([1.0, 2.0])
    path, now = size * phase.sin(), network.config.stabilization.window[0]
    return path - path[now], path[now]


@pytest.mark.parametrize("regressor", REGRESSORS)
def test_untrained_it_takes_a_shake_away(regressor: str) -> None:
    chosen = network(regressor)
    path, off = shake(chosen)
    warp = last_warp(chosen, moved(path))
    assert (warp - off.view(1, 2, 1, 1)).abs().max() < 0.25 * off.norm()


def test_untrained_it_is_the_mean_of_trails_by_a_bell_over_time() -> None:
    chosen = network("field")
    path, _ = shake(chosen, hertz=1.3)
    bell = (-0.5 * (steps_of(chosen) / KERNEL_SIGMA).square()).softmax(dim=0)
    mean = (bell[:, None] * path).sum(dim=0)
    assert torch.allclose(last_warp(chosen, moved(path)), -mean.view(1, 2, 1, 1).expand(1, 2, *CELLS), atol=0.01)


@pytest.mark.parametrize("regressor", REGRESSORS)
def test_what_is_steady_stays_as_it_is(regressor: str) -> None:
    chosen = network(regressor)
    steps = steps_of(chosen)
    assert last_warp(chosen, moved(torch.zeros(len(steps), 2))).abs().max() < 1e-4
    pan = steps[:, None] * torch.tensor([3.0, -1.0])
    assert last_warp(chosen, moved(pan)).abs().max() < 0.2
    # Also where the clip has just begun, or is about to end.
    for missing in (steps < -4, steps > 4):
        trails = moved(pan)
        trust = torch.where(missing.view(1, -1, 1, 1, 1), 0.0, trails.confidence)
        assert last_warp(chosen, Trajectories(trails.displacements * trust, trust)).abs().max() < 0.3


def test_whatever_has_been_learned_a_steady_pan_stays_as_it_is() -> None:
    chosen = network("field")
    with torch.no_grad():
        chosen.stabilization_head.path_filter.filter.normal_(std=3.0)
        chosen.stabilization_head.path_filter.kernel.normal_()
    pan = steps_of(chosen)[:, None] * torch.tensor([3.0, -1.0])
    assert last_warp(chosen, moved(pan)).abs().max() < 0.5


@pytest.mark.parametrize("regressor", REGRESSORS)
def test_turns_of_the_camera_are_followed_to_the_corners(regressor: str) -> None:
    """The warp is that of the turn at the place it is found at, not at the place it is for: two stages settle it."""
    chosen = network(regressor)
    path, off = shake(chosen, size=1.0)
    way = torch.tensor([[4.0, 2.0], [3.0, -4.0], [4.0, 3.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    field = evaluate_fields(way, cell_terms(*CELLS))
    places = path[:, :1].view(1, -1, 1, 1, 1) * field
    found = last_warp(chosen, Trajectories(places, torch.ones(1, len(path), 1, *CELLS)))
    expected = off[0] * field
    assert (found - expected).norm(dim=1).mean() < 0.2 * expected.norm(dim=0).mean()


def test_what_walks_by_does_not_take_the_frame_with_it() -> None:
    chosen = network("field")
    path, off = shake(chosen)
    trails = moved(path)
    walker = (steps_of(chosen) * 1.5 + 4 * (steps_of(chosen) / 5).sin()).view(1, -1, 1, 1, 1)
    trails.displacements[..., 3:6, 4:7] += walker
    warp = last_warp(chosen, trails)
    assert (warp - off.view(1, 2, 1, 1)).norm(dim=1).max() < 0.35 * off.norm()


def test_a_grid_bends_only_at_its_vertices() -> None:
    chosen = network("grid")
    with torch.no_grad():
        for stage in chosen.stabilization_head.stages:
            stage.cell_head.weight.normal_()
    cells = (7 * 4, 7 * 5)  # four and five cells between two vertices
    bend = last_warp(chosen, moved(shake(chosen)[0], cells)).diff(n=2, dim=3).abs().amax(dim=(0, 1, 2))
    bent = (bend > 1e-3).nonzero().flatten()
    assert VERTICES == 8 and set((bent % 5).tolist()) <= {3, 4} and len(bent) >= 6


@pytest.mark.parametrize("regressor", REGRESSORS)
@pytest.mark.parametrize("cells", [(2, 2), (5, 9), (24, 40)])
def test_any_working_size_of_whole_cells(regressor: str, cells: tuple[int, int]) -> None:
    chosen = network(regressor, window=6)
    path, _ = shake(chosen)
    found = chosen(torch.zeros(1, 3, 8 * cells[0], 8 * cells[1]), moved(path, cells))
    assert [tuple(warp.shape) for warp in found.warps] == [(1, 2, *cells)] * 2
    assert all(warp.isfinite().all() for warp in found.warps)


@pytest.mark.parametrize("regressor", REGRESSORS)
def test_gradients_reach_all_but_the_encoder(regressor: str) -> None:
    chosen = network(regressor, window=6).train()
    with torch.no_grad():  # or what stands before a head that says nothing would get none
        for head in (*chosen.stabilization_head.stages, chosen.stabilization_head.path_filter.mlp):
            for part in head.modules():
                if isinstance(part, torch.nn.Linear):
                    part.weight.normal_(std=0.05)
    generator = torch.Generator().manual_seed(0)
    places, trust = 5 * torch.randn(2, len(steps_of(chosen)), 2, *CELLS, generator=generator), 0.9
    trails = Trajectories(places, torch.full_like(places[:, :, :1], trust))
    found = chosen(torch.rand(2, 3, *SIZE, generator=generator), trails)
    torch.stack([warp.abs().sum() for warp in found.warps]).sum().backward()
    still = [
        name
        for name, parameter in chosen.named_parameters()
        if not name.startswith("encoder.") and not (parameter.grad is not None and parameter.grad.abs().max() > 0)
    ]
    # A hard assignment gives its temperature no gradient but zero.
    assert [name for name in still if not name.endswith((".key.bias", ".log_temperature"))] == []
    assert all(each.grad is not None for each in chosen.stabilization_head.parameters())
    assert all(parameter.grad is None for parameter in chosen.encoder.parameters())


def test_frames_do_not_see_one_another() -> None:
    chosen = network("field", window=6)
    generator = torch.Generator().manual_seed(0)
    places, trust = (
        torch.randn(3, 13, 2, *CELLS, generator=generator),
        torch.rand(3, 13, 1, *CELLS, generator=generator),
    )
    images = torch.rand(3, 3, *SIZE, generator=generator)
    with torch.no_grad():
        whole = chosen(images, Trajectories(places, trust)).warps[-1]
        alone = chosen(images[1:2], Trajectories(places[1:2], trust[1:2])).warps[-1]
    assert torch.allclose(whole[1:2], alone, atol=1e-4)


def test_windows_go_one_way_or_both() -> None:
    assert network("grid").config.stabilization.window == (30, 0)
    assert network("field").config.stabilization.window == (30, 30)
    assert preset("fast").stabilization.window == (60, 60)
    assert preset("paper").stabilization.window == (15, 15)


def test_it_is_small_beside_the_encoder_that_flow_has_too() -> None:
    fast, flow = build_network(preset("fast"), "stabilize"), build_network(preset("fast"), "flow")
    assert isinstance(fast, ProtoFormer)
    assert count_parameters(fast) - count_parameters(fast.encoder) < 1.5e6
    assert count_parameters(fast.encoder) == count_parameters(flow.encoder)


@pytest.mark.parametrize(
    ("size", "frames"), [((60, 96), 13), ((64, 96), 12), ((64, 104), 13)], ids=["side", "window", "cells"]
)
def test_trails_that_do_not_fit_are_named(size: tuple[int, int], frames: int) -> None:
    trails = Trajectories(torch.zeros(1, frames, 2, *CELLS), torch.ones(1, frames, 1, *CELLS))
    with pytest.raises(ValueError, match=r"multiples of 8, not|need trajectories of"):
        network("field", window=6)(torch.zeros(1, 3, *size), trails)


def test_an_unknown_regressor_is_refused() -> None:
    with pytest.raises(InputError, match="regressor is 'mesh', but it must be one of field, grid"):
        preset("tiny", stabilization={"regressor": "mesh"})
