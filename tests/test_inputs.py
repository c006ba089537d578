"""Every predictor accepts paths, Pillow images, arrays and tensors, one at a time and in batches."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import protoformer as pf
from protoformer.errors import InputError

Frames = list[np.ndarray[Any, np.dtype[np.uint8]]]
CLOSE = {"atol": 1e-4, "rtol": 0}


@pytest.fixture(scope="module")
def frames() -> Frames:
    """Four frames of 24 x 40 pixels."""
    return list(np.random.default_rng(3).integers(0, 256, (4, 24, 40, 3), dtype=np.uint8))


def tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(array).permute(2, 0, 1)


def saved(array: np.ndarray[Any, Any], folder: Path) -> Path:
    path = folder / f"{abs(hash(array.tobytes()))}.png"
    Image.fromarray(array).save(path)
    return path


KINDS: dict[str, Callable[[Any, Path], Any]] = {
    "path": saved,
    "string": lambda array, folder: str(saved(array, folder)),
    "pillow": lambda array, _: Image.fromarray(array),
    "uint8 array": lambda array, _: array,
    "float array": lambda array, _: array.astype(np.float32) / 255,
    "uint8 tensor": lambda array, _: tensor(array),
    "float tensor": lambda array, _: tensor(array).float() / 255,
    "1 x 3 x H x W": lambda array, _: tensor(array)[None],
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_of_any_kind_gives_the_same_result(
    tiny: pf.FlowPredictor, tiny_depth: pf.DepthPredictor, frames: Frames, tmp_path: Path, kind: str
) -> None:
    first, second = (KINDS[kind](frame, tmp_path) for frame in frames[:2])
    flow, depth = tiny(first, second, num_updates=1), tiny_depth(first, num_updates=1, fov=60.0)
    torch.testing.assert_close(flow.flow, tiny(frames[0], frames[1], num_updates=1).flow, **CLOSE)
    torch.testing.assert_close(depth.depth, tiny_depth(frames[0], num_updates=1, fov=60.0).depth, **CLOSE)


class TestBatches:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_list_of_pairs_gives_a_list_of_flows(
        self, tiny: pf.FlowPredictor, frames: Frames, tmp_path: Path, kind: str
    ) -> None:
        images = [KINDS[kind](frame, tmp_path) for frame in frames]
        pairs = [(images[0], images[1]), (images[2], images[3])]
        results = tiny(pairs, num_updates=1, occlusion=True)
        assert len(results) == 2 and all(isinstance(result, pf.FlowResult) for result in results)
        for result, (first, second) in zip(results, pairs, strict=True):
            alone = tiny(first, second, num_updates=1, occlusion=True)
            torch.testing.assert_close(result.flow, alone.flow, **CLOSE)
            torch.testing.assert_close(result.confidence, alone.confidence, **CLOSE)
            assert result.occlusion is not None and alone.occlusion is not None
            assert (result.occlusion == alone.occlusion).float().mean() > 0.99
            assert result.input_size == alone.input_size

    def test_two_batches_of_images_give_a_list_of_flows(self, tiny: pf.FlowPredictor, frames: Frames) -> None:
        arrays = np.stack(frames[:2]), np.stack(frames[2:])
        tensors = tuple(torch.from_numpy(each).permute(0, 3, 1, 2) for each in arrays)
        alone = [tiny(frames[index], frames[index + 2], num_updates=1).flow for index in (0, 1)]
        for first, second in (arrays, tensors, (frames[:2], frames[2:]), (arrays[0], tensors[1])):
            for result, flow in zip(tiny(first, second, num_updates=1), alone, strict=True):
                torch.testing.assert_close(result.flow, flow, **CLOSE)

    def test_pairs_of_one_size_run_in_one_pass(
        self, tiny: pf.FlowPredictor, frames: Frames, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes: list[int] = []
        flow = tiny.network.flow

        def count(first: Tensor, *rest: Any, **options: Any) -> Any:
            sizes.append(len(first))
            return flow(first, *rest, **options)

        monkeypatch.setattr(tiny.network, "flow", count)
        small = [frame[:20] for frame in frames]
        pairs = [*itertools.pairwise(frames), (small[0], small[1])]
        done: list[tuple[int, int]] = []
        results = tiny(pairs, num_updates=1, progress=lambda *each: done.append(each))
        assert [result.flow.shape[1] for result in results] == [24, 24, 24, 20]
        assert sizes == [3, 1] and done == [(3, 4), (4, 4)]

    def test_prototypes_of_a_batch_are_those_of_each_pair(self, tiny: pf.FlowPredictor, frames: Frames) -> None:
        pairs = [(frames[0], frames[1]), (frames[1], frames[2])]
        for result, pair in zip(tiny(pairs, num_updates=1, return_prototypes=True), pairs, strict=True):
            alone = tiny(*pair, num_updates=1, return_prototypes=True)
            assert torch.equal(result.prototypes[0][0].centers, alone.prototypes[0][0].centers)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_list_of_images_gives_a_list_of_depths(
        self, tiny_depth: pf.DepthPredictor, frames: Frames, tmp_path: Path, kind: str
    ) -> None:
        images = [KINDS[kind](frame, tmp_path) for frame in (frames[0], frames[1], frames[2][:20])]
        results = tiny_depth(images, num_updates=1)
        assert [result.depth.shape[1] for result in results] == [24, 24, 20]
        for result, image in zip(results, images, strict=True):
            alone = tiny_depth(image, num_updates=1)
            torch.testing.assert_close(result.depth, alone.depth, **CLOSE)
            torch.testing.assert_close(result.confidence, alone.confidence, **CLOSE)
            assert (result.range, result.camera) == (alone.range, alone.camera)

    def test_a_batch_of_images_gives_a_list_of_depths(self, tiny_depth: pf.DepthPredictor, frames: Frames) -> None:
        array = np.stack(frames[:3])
        alone = [tiny_depth(frame, num_updates=1).depth for frame in frames[:3]]
        done: list[tuple[int, int]] = []
        for batch, size in ((array, 1), (torch.from_numpy(array).permute(0, 3, 1, 2), 2)):
            results = tiny_depth(batch, num_updates=1, batch_size=size, progress=lambda *each: done.append(each))
            for result, depth in zip(results, alone, strict=True):
                torch.testing.assert_close(result.depth, depth, **CLOSE)
        assert done == [(1, 3), (2, 3), (3, 3), (2, 3), (3, 3)]

    def test_an_empty_batch_gives_an_empty_list(self, tiny: pf.FlowPredictor, tiny_depth: pf.DepthPredictor) -> None:
        assert tiny([]) == [] and tiny_depth([]) == []

    def test_a_result_of_a_batch_explains_its_own_images(self, tiny: pf.FlowPredictor, frames: Frames) -> None:
        _, result = tiny([(frames[0], frames[1]), (frames[2], frames[3])], num_updates=1)
        assert torch.equal((255 * result.explain().first.image).round().byte(), tensor(frames[2]))

    def test_batches_of_two_lengths_are_refused(self, tiny: pf.FlowPredictor, frames: Frames) -> None:
        with pytest.raises(InputError, match="the first batch has 2 images and the second 3 images; give as many"):
            tiny(frames[:2], frames[:3])
        with pytest.raises(InputError, match="the first batch has 2 images and the second one image; give as many"):
            tiny(frames[:2], frames[0])

    def test_one_image_has_no_flow(self, tiny: pf.FlowPredictor, frames: Frames) -> None:
        with pytest.raises(InputError, match=r"flow needs two images; give two, or a list of \(first, second\) pairs"):
            tiny([frames[0]])
        with pytest.raises(InputError, match="flow needs two images"):
            tiny(frames[0])
