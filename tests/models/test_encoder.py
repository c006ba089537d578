"""The encoder: any image in, features at 1/4 and 1/8 out, each image by itself."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoformer.errors import InputError
from protoformer.models.config import PRESETS, ModelConfig, preset
from protoformer.models.encoder import Encoder, ResidualBlock
from protoformer.models.protoformer import build_network
from protoformer.models.prototyping import E_STEPS
from protoformer.models.synchronization import SYNCHRONIZATIONS

TINY = preset("tiny")
TINY_PATCHES = preset("tiny", encoder={"embedding": "patches"})


def image(height: int, width: int, seed: int = 0, batch: int = 1) -> torch.Tensor:
    return 2 * torch.rand(batch, 3, height, width, generator=torch.Generator().manual_seed(seed)) - 1


def encoder(config: ModelConfig) -> Encoder:
    torch.manual_seed(0)
    return Encoder(config.encoder).eval()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.sampled_from([TINY, TINY_PATCHES]))
def test_features_are_a_quarter_and_an_eighth_of_any_image_rounded_up(height, width, config):
    with torch.no_grad():
        output = encoder(config)(image(height, width))
    assert output.features[0].shape == (1, 32, -(-height // 4), -(-width // 4))
    assert output.features[1].shape == (1, 64, -(-height // 8), -(-width // 8))
    assert all(feature.isfinite().all() for feature in output.features)
    assert output.prototypes == ()


@pytest.mark.parametrize("name", ["paper", "fast", "tiny"])
def test_an_images_features_do_not_depend_on_what_else_is_in_the_batch(name):
    network = encoder(preset(name))
    ours, theirs = image(48, 64, seed=1), image(48, 64, seed=2)
    with torch.no_grad():
        alone = network(ours).features
        among = network(torch.cat((theirs, ours, 0 * theirs))).features
    for one, several in zip(alone, among, strict=True):
        assert torch.allclose(one[0], several[1], atol=1e-4)


def test_prototypes_of_every_block_come_on_request():
    config = preset("tiny", encoder={"depths": (2, 1)})
    with torch.no_grad():
        found = encoder(config)(image(30, 50, batch=2), return_prototypes=True).prototypes
    assert [len(stage) for stage in found] == [2, 1]
    assert found[0][0].centers.shape == (2, 16, 32)
    assert found[0][1].size == (8, 14)  # of the padded image, 32 x 56
    assert found[1][0].memberships.shape == (2, 2, 16, 4 * 7)


def test_the_papers_encoder_is_the_papers():
    built = encoder(preset("paper"))
    first, second = built.stages
    assert (first.embedding[0].kernel_size, first.embedding[0].stride) == ((4, 4), (4, 4))
    assert (second.embedding[0].kernel_size, second.embedding[0].stride) == ((2, 2), (2, 2))
    assert [len(stage.blocks) for stage in built.stages] == [2, 2]
    for stage, channels, heads in ((first, 128, 4), (second, 256, 8)):
        mixer = stage.blocks[0].mixer
        assert (mixer.prototyping.heads, mixer.prototyping.grid, mixer.prototyping.num_iterations) == (
            heads,
            (10, 10),
            3,
        )
        assert (mixer.prototyping.normalize, mixer.prototyping.residual) == (True, True)
        assert stage.blocks[0].mlp[1].out_features == 4 * channels
        assert (stage.position.kernel_size, stage.position.groups) == ((3, 3), channels)


def test_fast_starts_with_convolutions():
    stem = encoder(preset("fast")).stages[0].embedding
    assert stem[0].kernel_size == (7, 7)
    assert any(isinstance(part, ResidualBlock) for part in stem)


@pytest.mark.parametrize(
    "change",
    [
        *({"components": value} for value in ("both", "cap", "ls", "base")),
        *({"update": value} for value in E_STEPS),
        *({"synchronization": value} for value in SYNCHRONIZATIONS),
        *({"num_iterations": value} for value in (1, 2, 3, 4)),
        *({"num_prototypes": value} for value in (10, 50, 100, 200)),
    ],
    ids=str,
)
def test_every_row_of_the_ablations_is_one_field_away_from_a_preset_and_learns(change):
    network = build_network(preset("tiny", encoder=change), "flow")
    torch.nn.init.constant_(
        network.flow_head.decoder.update.aggregation.strength, 1.0
    )  # at its start, 0, it silences a part
    prediction = network(image(64, 72, seed=1), image(64, 72, seed=2), return_all=True)
    sum(each.square().mean() for each in (*prediction.flows, *prediction.log_scales)).backward()
    silent = [name for name, each in network.named_parameters() if each.grad is None or not each.grad.abs().max() > 0]
    # A softmax does not change when all its logits do: a bias of queries, where prototypes compete, has no say. A hard
    # assignment has no gradient, so its temperature, and without EM its width, learn from losses on prototypes alone.
    without = ("query.bias", "key.bias", "log_temperature")
    without = (*without, "log_width") if change.get("components") in ("ls", "base") else without
    assert [name for name in silent if not name.endswith(without)] == []
    assert all(each.grad is not None for each in network.parameters())


def test_components_switch_em_and_assignment_off():
    mixers = {
        name: encoder(preset("tiny", encoder={"components": name})).stages[0].blocks[0].mixer
        for name in ("both", "cap", "ls", "base")
    }
    kinds = {
        name: (mixer.prototyping.num_iterations, type(mixer.synchronization).__name__) for name, mixer in mixers.items()
    }
    assert kinds == {
        "both": (2, "LatentSynchronization"),
        "cap": (2, "Broadcast"),
        "ls": (0, "LatentSynchronization"),
        "base": (0, "Broadcast"),
    }


def test_configurations_are_frozen_and_survive_json():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["paper"].encoder.num_prototypes = 50
    for config in PRESETS.values():
        sections = json.loads(json.dumps(config.as_dict()))
        assert sections["encoder"]["embed_dims"] == list(config.encoder.embed_dims)
        assert ModelConfig.from_dict(sections) == config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"encoder": {"num_prototype": 50}},
            "no field of encoder 'num_prototype'; the nearest one is 'num_prototypes'",
        ),
        ({"encode": {}}, "no section of a model 'encode'; the nearest one is 'encoder'"),
        ({"encoder": {"update": "kmeans"}}, "encoder.update is 'kmeans', but it must be one of cap, cosine"),
        ({"encoder": {"components": "all"}}, "must be one of both, cap, ls, base"),
        ({"encoder": {"num_iterations": -1}}, "must be a whole number, 0 or more"),
        ({"encoder": {"num_prototypes": 0}}, "must be a whole number, 1 or more"),
        ({"encoder": {"embed_dims": (30, 64)}}, "encoder.embed_dims has 30, not a multiple of encoder.head_dim"),
        (
            {"encoder": {"head_dim": 1}, "flow": {"hidden_dim": 33}},
            "flow.hidden_dim is 33, but it must be .*a multiple of 2",
        ),
        (
            {"encoder": {"head_dim": 4}, "flow": {"memory_dim": 36}},
            "flow.memory_dim is 36, but it must be .*a multiple of 8",
        ),
    ],
)
def test_a_wrong_field_is_an_error_that_says_what_is_right(change, words):
    with pytest.raises(InputError, match=words):
        preset("tiny", **change)


def test_an_unknown_preset_is_an_error_that_lists_the_known_ones():
    with pytest.raises(InputError, match="choose one of paper, fast, tiny"):
        preset("huge")
