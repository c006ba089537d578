"""The figures people choose a model by."""

import pytest

from protoformer.loading import TASKS, ModelEntry, list_models
from protoformer.models.config import PRESETS
from protoformer.models.profiling import count_parameters
from protoformer.models.protoformer import build_network


@pytest.fixture(scope="module")
def entries() -> dict[str, ModelEntry]:
    return {entry.name: entry for entry in list_models()}


def test_every_preset_is_listed(entries: dict[str, ModelEntry]) -> None:
    assert list(entries) == list(PRESETS) == ["paper", "fast", "tiny"]


def test_paper_has_the_published_number_of_parameters(entries: dict[str, ModelEntry]) -> None:
    assert entries["paper"].parameters == pytest.approx(11.9e6, abs=0.3e6)
    assert entries["paper"].num_updates == 32


def test_parts_add_up(entries: dict[str, ModelEntry]) -> None:
    for entry in entries.values():
        assert sum(entry.parts.values()) == entry.parameters
        assert all(count >= 0 for count in entry.parts.values())


@pytest.mark.parametrize("name", ["fast", "tiny"])
def test_no_parameter_of_the_network_is_left_out(entries: dict[str, ModelEntry], name: str) -> None:
    assert entries[name].parameters == count_parameters(build_network(PRESETS[name], "flow"))
    assert entries[name].networks == {task: count_parameters(build_network(PRESETS[name], task)) for task in TASKS}


def test_smaller_models_cost_less(entries: dict[str, ModelEntry]) -> None:
    paper, fast, tiny = (entries[name] for name in ("paper", "fast", "tiny"))
    assert paper.parameters > fast.parameters > tiny.parameters > 0
    assert paper.gflops > fast.gflops > tiny.gflops > 0


def test_every_task_is_served_by_one_preset(entries: dict[str, ModelEntry]) -> None:
    served = [task for entry in entries.values() for task in entry.default_for]
    assert sorted(served) == sorted(TASKS) and {"flow", "depth", "track"} <= set(entries["fast"].default_for)
    assert all(entry.tasks == tuple(TASKS) and entry.license == "Apache-2.0" for entry in entries.values())


def test_one_encoder_serves_both_images_and_context_in_the_small_models(entries: dict[str, ModelEntry]) -> None:
    assert entries["paper"].parts["context encoder"] == entries["paper"].parts["feature encoder"]
    assert "context encoder" not in entries["fast"].parts and "context encoder" not in entries["tiny"].parts


def test_fast_and_tiny_are_what_they_are_said_to_be() -> None:
    for name, updates in (("fast", 8), ("tiny", 4)):
        config = PRESETS[name]
        assert (config.flow.decoder, config.flow.aggregation, config.flow.shared_encoder) == (
            "recurrent",
            "prototypes",
            True,
        )
        assert config.flow.num_updates == updates
    assert PRESETS["fast"].encoder.num_prototypes == 100 and PRESETS["tiny"].encoder.num_prototypes == 16
