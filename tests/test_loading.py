"""From a name to a model: the same one every time, or one clear sentence."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save

import protoformer as pf
from protoformer.errors import InputError
from protoformer.loading import TASKS
from protoformer.models.pretrained import KEY, packaged_weights
from protoformer.models.protoformer import build_network
from protoformer.synthetic.samples import FlowSample


def fresh(**fields: object) -> pf.FlowPredictor:
    with pytest.warns(pf.UntrainedWarning):
        return pf.load("tiny", device="cpu", **fields)


def rewritten(path: Path, about: object) -> None:
    """The same tensors with another description."""
    path.write_bytes(save(load_tensors(path.read_bytes()), metadata={KEY: json.dumps(about)}))


@pytest.fixture
def weights(tmp_path: Path, tiny: pf.FlowPredictor) -> Path:
    tiny.network.save_weights(tmp_path / "tiny.safetensors", trained=True)
    return tmp_path / "tiny.safetensors"


def test_random_weights_are_announced() -> None:
    with pytest.warns(pf.UntrainedWarning, match="tiny has no trained weights .* the results mean nothing") as caught:
        model = pf.load("tiny", device="cpu")
    assert not model.trained
    assert caught[0].filename == __file__


def test_random_weights_are_always_the_same(tiny: pf.FlowPredictor) -> None:
    torch.manual_seed(17)
    again = fresh().network.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in tiny.network.state_dict().items())


def test_loading_uses_up_no_random_numbers(weights: Path) -> None:
    before = torch.random.get_rng_state()
    fresh()
    pf.load(str(weights), device="cpu")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_model_is_ready_for_use(tiny: pf.FlowPredictor) -> None:
    assert not tiny.network.training
    assert tiny.device == torch.device("cpu")


def test_fields_change_a_preset(tiny: pf.FlowPredictor) -> None:
    assert fresh(encoder={"num_prototypes": 9}).network.config == tiny.network.config.changed(
        encoder={"num_prototypes": 9}
    )


@pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
def test_a_field_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(InputError, match=r"encoder\.num_prototypes is '9', but it must be a whole number, 1 or more"):
        pf.load("tiny", encoder={"num_prototypes": "9"})


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(InputError, match="no section of a model 'encode'; the nearest one is 'encoder'"):
        pf.load("tiny", encode={"num_prototypes": 9})
    with pytest.raises(InputError, match="no field of encoder 'num_prototype'; the nearest one is 'num_prototypes'"):
        pf.load("tiny", encoder={"num_prototype": 9})


@pytest.mark.parametrize("name", ["huge", "", "Tiny", "tiny.pt", "flow/tiny"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    known = ", ".join((*TASKS, "segment", "paper", "fast", "tiny"))
    with pytest.raises(InputError, match=f"there is no model '{name}'; choose one of {known}"):
        pf.load(name)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "", "cpu:x", "meta", "hpu", "privateuseone"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(InputError, match=f"the device '{device}' is not there; choose cpu"):
        pf.load("tiny", device=device)


def test_half_the_bytes_hold_the_rounded_weights(tiny: pf.FlowPredictor, tmp_path: Path) -> None:
    whole, half = tmp_path / "whole.safetensors", tmp_path / "half.safetensors"
    tiny.save(whole)
    tiny.save(half, half=True)
    assert half.stat().st_size < 0.6 * whole.stat().st_size
    with pytest.warns(pf.UntrainedWarning):
        found = pf.load(half).network.state_dict()
    for name, tensor in tiny.network.state_dict().items():
        assert found[name].dtype == torch.float32 and torch.equal(found[name], tensor.half().float()), name


def test_a_device_may_be_an_object() -> None:
    with pytest.warns(pf.UntrainedWarning):
        assert pf.load("tiny", device=torch.device("cpu")).device.type == "cpu"


class TestWeights:
    def test_what_is_written_is_read_back(self, weights: Path, tiny: pf.FlowPredictor) -> None:
        stored = pf.ProtoFormer.load_weights(weights)
        assert stored.tasks == ("flow",)
        assert stored.config == tiny.network.config
        again = stored.state_dict()
        assert all(torch.equal(tensor, again[name]) for name, tensor in tiny.network.state_dict().items())
        assert [entry.name for entry in weights.parent.iterdir()] == ["tiny.safetensors"]

    def test_the_same_flow_comes_out(
        self, weights: Path, tiny: pf.FlowPredictor, scene: FlowSample, result: pf.FlowResult
    ) -> None:
        model = pf.load(str(weights), device="cpu")
        assert model.trained
        again = model.flow(scene.first, scene.second)
        assert torch.equal(again.flow, result.flow) and torch.equal(again.confidence, result.confidence)
        assert again.trained and not result.trained

    def test_a_changed_configuration_comes_back(self, tmp_path: Path) -> None:
        config = pf.preset(
            "tiny", encoder={"num_prototypes": 9, "depths": (2, 1), "update": "cosine"}, flow={"decoder": "memory"}
        )
        build_network(config, "flow").save_weights(tmp_path / "w.safetensors", trained=True)
        stored = pf.ProtoFormer.load_weights(tmp_path / "w.safetensors")
        assert stored.config == config

    def test_stored_weights_have_a_fixed_configuration(self, weights: Path) -> None:
        with pytest.raises(InputError, match="has a fixed configuration; change encoder on a preset instead"):
            pf.load(str(weights), encoder={"num_prototypes": 9})

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"none\.safetensors does not exist"):
            pf.load(str(tmp_path / "none.safetensors"))

    def test_a_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "w.safetensors").mkdir()
        with pytest.raises(InputError, match="is a folder"):
            pf.load(str(tmp_path / "w.safetensors"))

    @pytest.mark.parametrize("keep", [0, 4, 8, 200, 20_000, -1])
    def test_a_truncated_file_is_refused(self, weights: Path, keep: int) -> None:
        weights.write_bytes(weights.read_bytes()[:keep])
        with pytest.raises(InputError, match=r"tiny\.safetensors (is an empty file|does not hold weights)"):
            pf.load(str(weights))

    @pytest.mark.parametrize("place", [0, 7, 8, 30, 500])
    def test_a_damaged_header_is_refused(self, weights: Path, place: int) -> None:
        data = bytearray(weights.read_bytes())
        data[place] ^= 0xFF
        weights.write_bytes(bytes(data))
        with pytest.raises(InputError, match=r"tiny\.safetensors does not"):
            pf.load(str(weights))

    def test_a_pickle_is_refused_and_runs_nothing(self, tmp_path: Path) -> None:
        class Trap:
            def __reduce__(self) -> tuple[object, ...]:
                return Path.touch, (tmp_path / "sprung",)

        (tmp_path / "trap.safetensors").write_bytes(pickle.dumps(Trap()))
        torch.save({"a": torch.zeros(2)}, tmp_path / "torch.safetensors")
        for name in ("trap", "torch"):
            with pytest.raises(InputError, match=rf"{name}\.safetensors does not hold weights of this package"):
                pf.load(str(tmp_path / f"{name}.safetensors"))
        assert not (tmp_path / "sprung").exists()

    @pytest.mark.parametrize(
        "metadata", [None, {"format": "pt"}, {KEY: "no json"}, {KEY: "[]"}, {KEY: '{"tasks": ["flow"]}'}]
    )
    def test_weights_of_another_package_are_refused(self, tmp_path: Path, metadata: dict[str, str] | None) -> None:
        (tmp_path / "w.safetensors").write_bytes(save({"conv.weight": torch.zeros(3)}, metadata=metadata))
        with pytest.raises(InputError, match=r"w\.safetensors does not hold weights of this package .* that it wrote"):
            pf.load(str(tmp_path / "w.safetensors"))

    def test_weights_that_describe_another_network_are_refused(self, weights: Path, tiny: pf.FlowPredictor) -> None:
        rewritten(
            weights,
            {
                "tasks": ["flow"],
                "trained": True,
                "config": tiny.network.config.changed(encoder={"embed_dims": (32, 96)}).as_dict(),
            },
        )
        with pytest.raises(InputError, match="does not fit the network it describes"):
            pf.load(str(weights))

    @pytest.mark.parametrize(
        "change",
        [
            {"encoder": {"widht": 3}},
            {"widht": 3},
            {"encoder": {"update": "magic"}},
            {"encoder": {"num_prototypes": 0}},
            {"encoder": {"num_prototypes": 9.5}},
            {"encoder": {"num_prototypes": True}},
            {"encoder": {"head_dim": 7}},
            {"encoder": {"head_dim": 0}},
            {"encoder": {"embed_dims": [32]}},
            {"encoder": {"depths": 3}},
            {"encoder": {"depths": None}},
            {"encoder": {"residual": 1}},
            {"flow": {"feature_dim": -3}},
            {"flow": None},
        ],
    )
    def test_an_impossible_configuration_is_refused(
        self, weights: Path, tiny: pf.FlowPredictor, change: dict[str, object]
    ) -> None:
        rewritten(weights, {"tasks": ["flow"], "trained": True, "config": tiny.network.config.as_dict() | change})
        with pytest.raises(InputError, match="does not hold weights of this package"):
            pf.load(str(weights))

    def test_a_description_that_is_none_is_refused(self, weights: Path) -> None:
        rewritten(weights, {"tasks": ["flow"], "trained": True, "config": []})
        with pytest.raises(InputError, match="does not hold weights of this package"):
            pf.load(str(weights))

    @pytest.mark.parametrize(
        ("widths", "reason"),
        [
            (2**20, r"does not hold weights of this package \(encoder\.embed_dims is .* at most 8192\)"),
            (2**13, r"does not hold weights of this package \(the network of flow would have \d+ parameters"),
            (2**10, "does not fit the network it describes"),
        ],
    )
    def test_a_claim_to_be_huge_is_refused_and_takes_no_memory(
        self, weights: Path, tiny: pf.FlowPredictor, widths: int, reason: str
    ) -> None:
        rewritten(
            weights,
            {
                "tasks": ["flow"],
                "trained": True,
                "config": tiny.network.config.as_dict() | {"encoder": {"embed_dims": [widths, widths]}},
            },
        )
        with pytest.raises(InputError, match=reason):
            pf.load(str(weights))

    def test_weights_of_another_task_are_refused(self, tmp_path: Path, tiny: pf.FlowPredictor) -> None:
        tiny.network.save_weights(tmp_path / "w.safetensors", trained=True)
        config = tiny.network.config.as_dict()
        rewritten(tmp_path / "w.safetensors", {"tasks": ["juggling"], "trained": True, "config": config})
        with pytest.raises(InputError, match="holds weights for juggling"):
            pf.load(tmp_path / "w.safetensors")

    def test_a_model_for_another_task_than_is_needed_is_refused(self, weights: Path) -> None:
        assert pf.load(weights, task="flow").trained
        with pytest.raises(InputError, match="there is no task 'juggling'; choose one of flow"):
            pf.load(weights, task="juggling")

    def test_random_weights_stay_random_in_a_file(self, tmp_path: Path, tiny: pf.FlowPredictor) -> None:
        tiny.save(tmp_path / "w.safetensors")
        with pytest.warns(pf.UntrainedWarning, match="holds random weights"):
            assert not pf.load(tmp_path / "w.safetensors").trained

    def test_a_path_may_be_an_object(self, weights: Path) -> None:
        assert pf.load(weights).trained

    def test_an_unknown_task_has_no_weights_in_the_package(self) -> None:
        assert packaged_weights("juggling") is None


def test_all_tasks_are_behind_one_object_and_loaded_when_they_are_used() -> None:
    model = pf.load(device="cpu")
    assert isinstance(model, pf.Predictor)
    assert repr(model) == "Predictor(flow, depth, track, stabilize, segment; loaded: none yet)" and model.encoders == {}
    first = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    second = np.roll(first, 2, axis=1)
    alone = pf.load("flow", "cpu")
    torch.testing.assert_close(model.flow(first, second).flow, alone.flow(first, second).flow, rtol=0, atol=0)
    torch.testing.assert_close(model.depth(first).depth, pf.load("depth", "cpu").depth(first).depth, rtol=0, atol=0)
    assert model.flow is model.flow and list(model.encoders) == ["flow", "depth"]
    assert model.encoders["flow"] is not model.encoders["depth"]  # the weights come from separate trainings
    explanation = model.explain(first, second)
    assert explanation.task == "flow" and len(explanation.images) == 2
    (track,) = model.track([first, second], (10, 10, 20, 20))
    assert len(track.boxes) == 2
    with pytest.raises(pf.InputError, match="need the name of a model"):
        pf.load(task="flow")
