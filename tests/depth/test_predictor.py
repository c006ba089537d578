"""Metric depth depends on the camera, not on the resolution."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import protoformer as pf
from protoformer.depth import engine as depth_engine
from protoformer.depth.camera import CameraHint, resolve_camera
from protoformer.depth.engine import DepthEngine, depth_confidence, enlarge_depth
from protoformer.depth.result import network_range
from protoformer.errors import InputError
from protoformer.models.config import preset
from protoformer.models.protoformer import build_network


def smooth(height: int, width: int, seed: int = 0) -> torch.Tensor:
    """An image without fine detail, which any resolution shows alike: 3 x height x width."""
    coarse = torch.rand(1, 3, 6, 8, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(coarse, (height, width), mode="bicubic", antialias=True)[0].clamp(0, 1)


def used_at(pixels: int) -> pf.DepthPredictor:
    """The smallest model, which works on no more than so many pixels."""
    torch.manual_seed(0)
    return pf.DepthPredictor(
        build_network(preset("tiny", depth={"max_pixels": pixels}), "depth"), trained=False, device=torch.device("cpu")
    )


def test_meters_grow_with_the_focal_length(tiny_depth: pf.DepthPredictor) -> None:
    image = smooth(64, 80)
    near, far = (tiny_depth.depth(image, focal=focal, precision="full") for focal in (50.0, 150.0))
    torch.testing.assert_close(3 * near.depth, far.depth, rtol=1e-4, atol=0)
    torch.testing.assert_close(near.confidence, far.confidence)
    assert near.camera == "given" and not near.trained and near.unit == "m"
    assert near.depth.shape == near.confidence.shape == (1, 64, 80)
    assert near.depth.std() > 0 and 0 <= near.confidence.min() <= near.confidence.max() <= 1


@pytest.mark.parametrize("scale", [1.5, 2.25])
def test_a_photograph_has_the_same_meters_at_every_resolution_above_that_of_use(scale: float) -> None:
    """To 4 % at every pixel and 0.5 % on average: the network works on one size, and only the shrinking differs."""
    height, width = 96, 144
    model = used_at(64 * 96)
    one = model.depth(smooth(height, width), focal=120.0, precision="full")
    other = model.depth(smooth(round(scale * height), round(scale * width)), focal=scale * 120.0, precision="full")
    same = F.interpolate(other.depth[None], (height, width), mode="bilinear", antialias=True)[0]
    off = (same / one.depth).log().abs()
    assert float(off.max()) < 0.04 and float(off.mean()) < 0.005
    assert one.range == pytest.approx(other.range, rel=0.02)


def test_a_network_sees_as_many_pixels_as_it_was_trained_on(tiny_depth: pf.DepthPredictor) -> None:
    camera = resolve_camera(
        (480, 640), CameraHint(intrinsics=torch.tensor([[519.0, 0, 325.6], [0, 519, 253.7], [0, 0, 1]]))
    )
    engine = DepthEngine(tiny_depth.network, tiny_depth.device, (480, 640), camera)
    assert engine.working == (240, 320) and engine.focal == pytest.approx(259.5)
    assert engine._center[0].tolist() == pytest.approx([162.55, 126.6], abs=1e-4)
    large = DepthEngine(used_at(480 * 640).network, tiny_depth.device, (480, 640), camera)
    assert large.working == (480, 640) and large.focal == pytest.approx(519)


def test_the_network_gets_the_principal_point(tiny_depth: pf.DepthPredictor) -> None:
    """A principal point in the middle is that of a focal length alone; another one moves what the rays say."""
    image, camera = smooth(64, 80), torch.tensor([[60.0, 0, 39.5], [0, 60, 31.5], [0, 0, 1]])
    plain, middle = tiny_depth.depth(image, focal=60.0), tiny_depth.depth(image, intrinsics=camera)
    assert torch.equal(plain.depth, middle.depth)
    camera[0, 2] = 10.0
    assert not torch.allclose(plain.depth, tiny_depth.depth(image, intrinsics=camera).depth, rtol=1e-4)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70))
def test_any_size_goes(tiny_depth: pf.DepthPredictor, height: int, width: int) -> None:
    result = tiny_depth.depth(torch.rand(3, height, width))
    assert result.depth.shape == (1, height, width) and bool(result.depth.isfinite().all())


def test_images_in_a_batch_do_not_change_one_another(tiny_depth: pf.DepthPredictor) -> None:
    frames, camera = [smooth(48, 64, seed) for seed in range(3)], resolve_camera((48, 64), CameraHint())
    alone, together = (
        list(
            DepthEngine(tiny_depth.network, tiny_depth.device, (48, 64), camera, batch_size=batch).predict_frames(
                frames
            )
        )
        for batch in (1, 3)
    )
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one.log, other.log, atol=1e-4, rtol=0)
        torch.testing.assert_close(one.log_scale, other.log_scale, atol=1e-4, rtol=0)


def test_a_mirror_shows_the_same_depths(tiny_depth: pf.DepthPredictor) -> None:
    """Of an image and its mirror image alike, with the camera's center mirrored, too; without it, they differ."""
    image, camera = smooth(48, 64), torch.tensor([[60.0, 0, 20], [0, 60, 23.5], [0, 0, 1]])
    other = camera.clone()
    other[0, 2] = 63 - camera[0, 2]
    one, reflected, alone, alone_reflected = (
        tiny_depth.depth(seen, intrinsics=taken, mirrored=mirrored, precision="full")
        for mirrored in (True, False)
        for seen, taken in ((image, camera), (image.flip(2), other))
    )
    torch.testing.assert_close(one.depth, reflected.depth.flip(2), rtol=1e-4, atol=0)
    torch.testing.assert_close(one.confidence, reflected.confidence.flip(2), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(alone.depth, alone_reflected.depth.flip(2), rtol=1e-3)
    mean = (alone.depth.log() + alone_reflected.depth.flip(2).log()) / 2
    torch.testing.assert_close(one.depth.log(), mean, rtol=0, atol=1e-4)


def test_half_precision_is_near_to_full(tiny_depth: pf.DepthPredictor) -> None:
    full, half = (tiny_depth.depth(smooth(64, 80), focal=80.0, precision=each) for each in ("full", "half"))
    assert half.depth.dtype == torch.float32
    assert float((full.depth / half.depth).log().abs().mean()) < 0.02


def test_a_range_bounds_the_depth(tiny_depth: pf.DepthPredictor) -> None:
    image = smooth(48, 64)
    own = tiny_depth.depth(image, focal=60.0)
    assert own.range == pytest.approx(network_range(tiny_depth.network.config, 60.0))
    middle = float(own.depth.median())
    bounded = tiny_depth.depth(image, focal=60.0, range=(0.9 * middle, middle))
    assert bounded.range == (0.9 * middle, middle)
    assert 0.9 * middle - 1e-4 <= float(bounded.depth.min()) and float(bounded.depth.max()) <= middle + 1e-4
    assert tiny_depth.depth(image, range="indoor").range == (0.1, 10.0)
    assert tiny_depth.depth(image, range="driving").range == (1.0, 80.0)


def test_prototypes_are_returned_on_request(tiny_depth: pf.DepthPredictor) -> None:
    calls: list[tuple[int, int]] = []
    result = tiny_depth.depth(smooth(48, 64), return_prototypes=True, progress=lambda *done: calls.append(done))
    assert [len(stage) for stage in result.prototypes] == list(tiny_depth.network.config.encoder.depths)
    assert calls[-1][0] == calls[-1][1] > 0
    assert tiny_depth.depth(smooth(48, 64)).prototypes == ()


def test_a_confidence_is_a_share_of_a_laplace_distribution() -> None:
    scale = 0.1
    errors = torch.distributions.Laplace(0.0, scale).sample((200_000,))
    right = float(((errors > -np.log(1.1)) & (errors < np.log(1.1))).float().mean())
    assert float(depth_confidence(torch.tensor(np.log(scale)))) == pytest.approx(right, abs=0.01)


def test_a_map_is_enlarged_between_the_centers_of_its_pixels() -> None:
    ramp = torch.arange(4.0).view(1, 1, 4)
    torch.testing.assert_close(
        enlarge_depth(ramp, (1, 8))[0, 0], torch.tensor([0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3])
    )


def test_gray_and_transparent_images_are_images(tiny_depth: pf.DepthPredictor, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((20, 30), np.uint8)).save(tmp_path / "gray.png")
    Image.fromarray(np.zeros((20, 30, 4), np.uint8)).save(tmp_path / "clear.png")
    for source in (tmp_path / "gray.png", tmp_path / "clear.png", np.zeros((20, 30, 1)), np.zeros((20, 30, 4))):
        assert tiny_depth.depth(source).depth.shape == (1, 20, 30)


def test_weights_are_kept_and_found_again(tiny_depth: pf.DepthPredictor, tmp_path: Path) -> None:
    tiny_depth.save(tmp_path / "mine.safetensors")
    with pytest.warns(pf.UntrainedWarning):
        again = pf.load(tmp_path / "mine.safetensors", device="cpu")
    assert isinstance(again, pf.DepthPredictor)
    image = smooth(40, 48)
    assert torch.equal(tiny_depth.depth(image).depth, again.depth(image).depth)
    with pytest.raises(InputError, match="is a model for depth, not for flow"):
        pf.load(tmp_path / "mine.safetensors", device="cpu", task="flow")


def test_images_too_large_for_the_memory_are_refused(
    tiny_depth: pf.DepthPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depth_engine, "free_bytes", lambda _: 1000)
    with pytest.raises(InputError, match=r"depth at 30x20 pixels takes about .* MiB are free; make the images smaller"):
        tiny_depth.depth(np.zeros((20, 30, 3)))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"range": "indoors"}, "there is no range 'indoors'; the nearest one is 'indoor', or give two numbers"),
        ({"range": (5, 1)}, "a range cannot go from 5 to 1 m"),
        ({"range": (0, 1)}, "a range cannot go from 0 to 1 m"),
        ({"range": (1, 2, 3)}, "a range is a name or two numbers of meters"),
        ({"focal": "500"}, "a focal length is a number of pixels over 0, not '500'; give one, or none"),
        ({"fov": [60]}, r"a field of view is between 0 and 180 degrees, not \[60\]; give one, or none"),
        ({"focal": -1.0}, "a focal length is a number of pixels over 0, not -1"),
        ({"intrinsics": torch.full((3, 3), torch.nan)}, "the intrinsics contain NaN"),
        ({"num_updates": 0}, "0 updates cannot be run"),
        ({"precision": "double"}, "there is no precision 'double'"),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(
    tiny_depth: pf.DepthPredictor, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        tiny_depth.depth(np.zeros((20, 30, 3)), **options)
