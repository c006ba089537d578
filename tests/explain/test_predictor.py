"""What a network grouped, asked of its results."""

import pickle

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.explain.groups import cells_to_pixels, extract_groups, mutual_matches
from protoformer.explain.result import Explanation
from protoformer.explain.tracing import layer_mixer, without_prototype
from protoformer.synthetic.samples import FlowSample


@pytest.fixture(scope="module")
def explanation(result: pf.FlowResult) -> Explanation:
    return result.explain()


def test_every_map_is_a_partition(explanation: Explanation) -> None:
    for image in explanation.images:
        assert [each.name for each in image.layers] == ["1.1", "2.1"]
        for layer in image.layers:
            assert layer.maps.shape == (
                layer.num_iterations + 1,
                -(-37 // layer.trace.stride),
                -(-61 // layer.trace.stride),
            )
            for step in range(layer.num_iterations + 1):
                groups = image.groups(layer.name, step)
                assert sum(group.pixels for group in groups) == 37 * 61
                assert sum(group.share for group in groups) == pytest.approx(1)
                assert {group.prototype for group in groups} <= set(range(layer.num_prototypes))


def test_maps_are_those_of_the_result(tiny: pf.FlowPredictor, scene: FlowSample, explanation: Explanation) -> None:
    found = tiny.flow(scene.first, scene.second, return_prototypes=True).prototypes
    for layer, (used,) in zip(explanation.first.layers, found, strict=True):
        rows, columns = layer.assignment.shape
        assert torch.equal(layer.assignment, used.owners[0].view(used.size)[:rows, :columns])
        torch.testing.assert_close(layer.centers(), used.centers[0])


def test_groups_have_the_motion_of_their_pixels(explanation: Explanation, result: pf.FlowResult) -> None:
    labels = explanation.first.layer("2.1").labels()
    for group in explanation.first.groups("2.1"):
        flow = result.flow[:, labels == group.prototype]
        assert group.mean == pytest.approx(flow.mean(dim=1).tolist(), abs=1e-4)
        assert group.spread == pytest.approx(
            float((flow - flow.mean(dim=1)[:, None]).norm(dim=0).square().mean().sqrt()), abs=1e-3
        )
        y, x = (labels == group.prototype).nonzero().float().mean(dim=0).tolist()
        assert group.center == pytest.approx((x, y), abs=1e-3)


def test_soft_memberships_of_all_prototypes_sum_to_one(explanation: Explanation) -> None:
    layer = explanation.first.layer("1.1")
    total = sum(layer.membership(number) for number in range(layer.num_prototypes))
    torch.testing.assert_close(total, torch.ones_like(layer.assignment, dtype=torch.float32))
    with pytest.raises(pf.InputError, match=r"layer 1.1 has no prototype 16; give a number from 0 to 15\."):
        layer.membership(16)


def test_nearest_returns_the_cells_with_the_most_similar_features(explanation: Explanation) -> None:
    layer = explanation.first.layer("2.1")
    tokens = layer.trace.tokens[0].view(*layer.trace.size, -1)[:5, :8]
    number = int(layer.used[0])
    cosines = torch.cosine_similarity(tokens, layer.centers()[number].view(1, 1, -1), dim=-1)
    own = torch.where(layer.assignment == number, cosines, -1.0)
    (x, y), *others = layer.nearest(number, 2)
    row, column = divmod(int(own.argmax()), 8)
    assert len(others) == min(1, int((layer.assignment == number).sum()) - 1)
    assert (x, y) == (8 * column + 3.5, 8 * row + 3.5)


def test_em_is_recorded_step_by_step(explanation: Explanation) -> None:
    layer = explanation.first.layer("1.1")
    assert (
        len(layer.log_likelihood) == layer.num_iterations + 1
        and len(layer.moved) == len(layer.changed) == layer.num_iterations
    )
    assert all(0 <= share <= 1 for share in layer.changed)
    many = layer.convergence(6)
    assert many is not None and len(many.distances) == 7
    assert many.log_likelihood[: layer.num_iterations + 1] == pytest.approx(layer.log_likelihood, abs=1e-4)
    shorter = layer.convergence(6, likelihood=False)
    assert shorter is not None and shorter.log_likelihood == ()
    assert (shorter.contraction, shorter.drift) == (many.contraction, many.drift)


def test_an_image_matches_itself_and_matches_are_mutual(tiny: pf.FlowPredictor, scene: FlowSample) -> None:
    explained = tiny.explain(scene.first, scene.first)
    for name in ("1.1", "2.1"):
        matches = explained.matches(name)
        assert [match.first for match in matches] == explained.first.layer(name).used.tolist()
        assert all(match.first == match.second and match.similarity == pytest.approx(1) for match in matches)
    one, two = torch.eye(3), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.1, 0.0], [0.9, 0.5, 0.0]])
    used = (torch.arange(3), torch.arange(3))
    assert [(each.first, each.second) for each in mutual_matches(one, two, used)] == [(0, 1), (1, 0)]


def test_similar_prototypes_become_families(explanation: Explanation) -> None:
    layer = explanation.first.layer("1.1")
    assert len(layer.families(4)[layer.used].unique()) == 4
    assert torch.equal(layer.families(99), torch.arange(16))
    coarse, fine = layer.families(3), layer.families(6)
    for family in fine.unique():
        assert len(coarse[fine == family].unique()) == 1
    with pytest.raises(pf.InputError, match="into 0 families"):
        layer.families(0)


def test_a_depth_result_explains_itself_in_meters(tiny_depth: pf.DepthPredictor) -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
    result = tiny_depth.depth(image, fov=70.0)
    explained = result.explain()
    (total,) = (explained.first.layer().labels() * 0 + 1).sum().view(1)
    assert int(total) == 40 * 56 and explained.task == "depth" and explained.second is None
    group = explained.first.groups()[0]
    mask = explained.first.layer().labels() == group.prototype
    assert group.mean == pytest.approx([float(result.depth[0][mask].double().mean())], rel=1e-4)


@pytest.mark.parametrize("task", ["flow", "depth"])
def test_removals_are_those_of_the_network_without_the_prototype(
    tiny: pf.FlowPredictor, tiny_depth: pf.DepthPredictor, scene: FlowSample, task: str
) -> None:
    explained = tiny.explain(scene.first, scene.second) if task == "flow" else tiny_depth.explain(scene.first)
    layer, run = explained.first.layer("1.1"), explained.network
    sizes = layer.labels().flatten().bincount().sort(descending=True).values
    effects = explained.removals("1.1", 2)
    assert [each.share for each in effects] == pytest.approx([float(size) / (37 * 61) for size in sizes[:2]])
    assert run is not None and run.values.shape == (2 if task == "flow" else 1, 37, 61)
    with without_prototype(layer_mixer(run.encoder, 1, 1), effects[0].prototype):
        change = (run.estimate() - run.values).norm(dim=0)
    mask = layer.labels() == effects[0].prototype
    assert effects[0].inside == pytest.approx(float(change[mask].mean()))
    assert effects[0].outside == pytest.approx(float(change[~mask].mean()))
    assert effects[0].ratio == pytest.approx(effects[0].inside / effects[0].outside)
    assert explained.removals("1.1", 1) == effects[:1] and explained.removals("1.1", 0) == ()
    assert torch.equal(run.estimate(), run.values)  # nothing is left removed


def test_one_image_has_groups_without_motion(tiny: pf.FlowPredictor, scene: FlowSample) -> None:
    explained = tiny.explain(scene.first)
    assert explained.matches() == () and explained.first.groups()[0].mean == ()


def test_results_without_images_and_unknown_layers_are_refused(
    tiny: pf.FlowPredictor, scene: FlowSample, explanation: Explanation
) -> None:
    (step,) = tiny.flow_video([scene.first, scene.second])
    for tiled in (step, tiny.flow(scene.first, scene.second, tile=(32, 40))):
        with pytest.raises(pf.InputError, match=r"call the predictor's explain with the images\.$"):
            tiled.explain()
    with pytest.raises(pf.InputError, match=r"there is no layer '3.1'; choose one of 1.1, 2.1\."):
        explanation.first.layer("3.1")


def test_pickled_results_have_no_predictor(
    tiny: pf.FlowPredictor, tiny_depth: pf.DepthPredictor, scene: FlowSample, result: pf.FlowResult
) -> None:
    weights = sum(each.numel() for each in tiny.network.parameters())
    depth = tiny_depth.depth(scene.first)
    for output in (result, depth):
        written = pickle.dumps(output)
        assert len(written) < weights  # bytes: neither the network nor the images are in it
        again = pickle.loads(written)
        assert torch.equal(again.confidence, output.confidence)
        with pytest.raises(pf.InputError, match=r"call the predictor's explain with the images\.$"):
            again.explain()
        assert output.explain().first.groups()
    assert torch.equal(pickle.loads(pickle.dumps(result)).flow, result.flow)
    assert tiny.explain(scene.first, scene.second, result=pickle.loads(pickle.dumps(result))).second is not None


def test_a_result_of_another_size_is_refused(
    tiny: pf.FlowPredictor, tiny_depth: pf.DepthPredictor, scene: FlowSample, result: pf.FlowResult
) -> None:
    smaller = scene.first[..., :30, :40]
    with pytest.raises(pf.InputError, match=r"^the flow is of 61x37 pixels and the image is 40x30; give the result"):
        tiny.explain(smaller, smaller, result=result)
    with pytest.raises(pf.InputError, match=r"^the depth is of 40x30 pixels and the image is 61x37; give the result"):
        tiny_depth.explain(scene.first, result=tiny_depth.depth(smaller))


def test_num_updates_applies_to_every_estimate(
    tiny: pf.FlowPredictor, tiny_depth: pf.DepthPredictor, scene: FlowSample
) -> None:
    for model, expected in ((tiny, [(1, 2), (2, 2)]), (tiny_depth, 2 * [(1, 2), (2, 2)])):
        calls: list[tuple[int, int]] = []
        model.explain(scene.first, scene.second, num_updates=2, progress=lambda *each, calls=calls: calls.append(each))
        assert calls == expected
        with pytest.raises(pf.InputError, match="0 updates cannot be run"):
            model.explain(scene.first, num_updates=0)


def test_large_images_are_shrunk_only_for_the_groups(tiny: pf.FlowPredictor) -> None:
    image = torch.rand(3, 600, 800, generator=torch.Generator().manual_seed(0))
    layer = tiny.explain(image).first.layer()
    assert (layer.size, layer.input_size, layer.assignment.shape) == ((600, 800), (480, 640), (60, 80))
    assert layer.labels().shape == (600, 800)


def test_cells_cover_the_pixels_they_were_computed_from() -> None:
    cells = torch.arange(6).view(2, 3)
    assert torch.equal(
        cells_to_pixels(cells, (8, 12), (8, 12), 4), cells.repeat_interleave(4, 0).repeat_interleave(4, 1)
    )
    assert torch.equal(
        cells_to_pixels(cells, (16, 24), (8, 12), 4), cells.repeat_interleave(8, 0).repeat_interleave(8, 1)
    )
    assert cells_to_pixels(cells, (5, 9), (5, 9), 4).tolist()[4] == [3, 3, 3, 3, 4, 4, 4, 4, 5]


def test_groups_without_pixels_are_left_out() -> None:
    (group,) = extract_groups(torch.full((2, 3), 7))
    assert (group.prototype, group.pixels, group.share, group.center) == (7, 6, 1.0, (1.0, 0.5))


@pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
@pytest.mark.parametrize("mixer", ["attention", "none"])
def test_a_network_without_prototypes_is_refused(scene: FlowSample, mixer: str) -> None:
    model = pf.load("tiny", "cpu", encoder={"mixer": mixer})
    for explain in (model.explain, lambda image: model.explain_video([image, image])):
        with pytest.raises(pf.InputError, match="the network has no prototypes"):
            explain(scene.first)
