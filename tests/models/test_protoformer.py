"""ProtoFormer: one encoder and the heads of some or all tasks, loaded and saved as one file."""

import json
from pathlib import Path

import pytest
import torch

import protoformer as pf
from protoformer.errors import InputError
from protoformer.geometry.motion_fields import Trajectories
from protoformer.models.config import TASKS, preset
from protoformer.models.pretrained import WEIGHTS_NAME, merge_networks, packaged_weights
from protoformer.models.protoformer import ProtoFormer, build_network

CONFIG = preset(
    "tiny",
    tracking={"search_size": 64, "template_size": 64},
    stabilization={"field_window": 3, "grid_window": 3},
)


def images(count: int, height: int = 64, width: int = 64) -> torch.Tensor:
    return 2 * torch.rand(count, 1, 3, height, width, generator=torch.Generator().manual_seed(0)) - 1


def trajectories(frames: int = 7) -> Trajectories:
    return Trajectories(torch.zeros(1, frames, 2, 8, 8), torch.ones(1, frames, 1, 8, 8))


@pytest.fixture(scope="module")
def network() -> ProtoFormer:
    torch.manual_seed(0)
    return build_network(CONFIG, *TASKS).eval()


@torch.no_grad()
def test_all_heads_run_on_one_encoder(network: ProtoFormer) -> None:
    first, second = images(2)
    encodings = []
    hook = network.encoder.register_forward_hook(lambda *_: encodings.append(1))
    assert network.flow(first, second).flows[-1].shape == (1, 2, 64, 64)
    assert network.depth(first).log_depths[-1].shape == (1, 1, 64, 64)
    boxes = torch.tensor([[16.0, 16.0, 24.0, 24.0]])
    assert network.track(first, boxes, second).boxes[-1].shape == (1, 4)
    assert network.stabilize(first, trajectories()).warps[-1].shape == (1, 2, 8, 8)
    hook.remove()
    assert len(encodings) == 5  # one for both frames of flow, one for each crop of tracking


@torch.no_grad()
def test_a_head_alone_gives_what_the_network_gives(network: ProtoFormer) -> None:
    first, second = images(2)
    features1, features2 = (network.encoder(each).features[-1] for each in (first, second))
    flow = network.flow_head(first, features1, features2).flows[-1]
    torch.testing.assert_close(flow, network.flow(first, second).flows[-1], rtol=1e-4, atol=1e-4)
    log_depth = network.depth_head(first, network.encoder(first).features).log_depths[-1]
    assert torch.equal(log_depth, network.depth(first).log_depths[-1])


@torch.no_grad()
def test_a_network_of_one_task_is_called_like_its_method() -> None:
    alone = build_network(CONFIG, "depth").eval()
    image = images(1)[0]
    assert torch.equal(alone(image).log_depths[-1], alone.depth(image).log_depths[-1])
    assert alone.flow_head is None
    with pytest.raises(ValueError, match="this network has heads for depth, not for flow"):
        alone.flow(image, image)


def test_a_network_of_several_tasks_asks_for_one_of_its_methods(network: ProtoFormer) -> None:
    with pytest.raises(ValueError, match=r"this network has 4 tasks; .* network.flow\(...\), network.depth\(...\)"):
        network(images(1)[0])


def test_a_folder_of_save_pretrained_is_loaded_offline(network: ProtoFormer, tmp_path: Path) -> None:
    network.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["encoder"]["num_prototypes"] == 16
    loaded = ProtoFormer.from_pretrained(tmp_path)
    assert loaded.config == network.config and loaded.tasks == TASKS and not loaded.trained
    weights = network.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in loaded.state_dict().items())
    with pytest.raises(InputError, match=r"nothing|does not exist|no file|is not there"):
        (tmp_path / WEIGHTS_NAME).unlink()
        ProtoFormer.from_pretrained(tmp_path)


def test_separate_encoders_are_saved_and_used(tmp_path: Path) -> None:
    torch.manual_seed(0)
    single = {task: build_network(CONFIG, task).eval() for task in ("flow", "depth", "stabilize")}
    single["stabilize"].encoder.load_state_dict(single["flow"].encoder.state_dict())
    merged = merge_networks(single, ProtoFormer).eval()
    assert list(merged.task_encoders) == ["depth"]
    assert merged.encoder_of("flow") is merged.encoder_of("stabilize") is merged.encoder
    merged.save_pretrained(tmp_path)
    loaded = ProtoFormer.load_weights(tmp_path / WEIGHTS_NAME).eval()
    image = images(1)[0]
    with torch.no_grad():
        for each in (merged, loaded):
            assert torch.equal(each.depth(image).log_depths[-1], single["depth"](image).log_depths[-1])
            assert torch.equal(each.flow(image, image).flows[-1], single["flow"](image, image).flows[-1])


def test_encoders_of_different_configurations_cannot_be_merged() -> None:
    networks = {"flow": build_network(CONFIG, "flow"), "depth": build_network(preset("fast"), "depth")}
    with pytest.raises(InputError, match="different configurations cannot be merged"):
        merge_networks(networks, ProtoFormer)


def test_a_file_of_several_tasks_loads_as_one_predictor(network: ProtoFormer, tmp_path: Path) -> None:
    network.save_pretrained(tmp_path)
    path = tmp_path / WEIGHTS_NAME
    with pytest.warns(pf.UntrainedWarning, match="holds random weights"):
        model = pf.load(path, "cpu")
    frame = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(1))
    assert model.flow(frame, frame).flow.shape == (2, 64, 64) and model.depth(frame).depth.shape == (1, 64, 64)
    assert model.encoders["flow"] is model.encoders["depth"]
    with pytest.warns(pf.UntrainedWarning):
        assert isinstance(pf.load(path, "cpu", task="depth"), pf.DepthPredictor)


@pytest.mark.skipif(packaged_weights("flow") is None, reason="the package has no trained weights")
def test_packaged_weights_are_one_network_with_the_encoders_of_their_trainings() -> None:
    fast = ProtoFormer.from_pretrained("fast").eval()
    assert fast.trained and fast.tasks == TASKS and list(fast.task_encoders) == ["depth", "track"]
    first, second = images(2)
    with torch.no_grad():
        alone = pf.load("flow", "cpu").network
        assert torch.equal(fast.flow(first, second).flows[-1], alone(first, second).flows[-1])
