"""A video gives the flow of each pair with exact timestamps, for any batch size and number of threads."""

import weakref
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.errors import InputError
from protoformer.io.image import write_image
from protoformer.models.runtime import use_half_precision

Make = Callable[..., Path]
CLOSE = {"atol": 1e-4, "rtol": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, frames: list[np.ndarray]) -> Path:
    """The same as png files."""
    made = tmp_path_factory.mktemp("frames")
    for number, frame in enumerate(frames):
        write_image(made / f"{number}.png", frame)
    return made


def flows(video: pf.FlowVideo) -> torch.Tensor:
    return torch.stack([step.flow for step in video])


def test_every_step_is_the_flow_of_its_pair(tiny: pf.FlowPredictor, frames: list[np.ndarray]) -> None:
    steps = list(tiny.flow_video(frames, num_updates=2, precision="full"))
    assert [step.number for step in steps] == [0, 1, 2, 3]
    for number, step in enumerate(steps):
        pair = tiny.flow(frames[number], frames[number + 1], num_updates=2)
        torch.testing.assert_close(step.flow, pair.flow, **CLOSE)
        torch.testing.assert_close(step.confidence, pair.confidence, **CLOSE)
        assert isinstance(step, pf.FlowResult) and not step.trained


def test_a_folder_gives_what_its_frames_give(tiny: pf.FlowPredictor, frames: list[np.ndarray], folder: Path) -> None:
    video = tiny.flow_video(folder, num_updates=2, precision="full", fps=10)
    torch.testing.assert_close(flows(video), flows(tiny.flow_video(frames, num_updates=2, precision="full")), **CLOSE)
    assert [(step.time, step.until) for step in video] == [(Fraction(n, 10), Fraction(n + 1, 10)) for n in range(4)]
    first = next(iter(video))
    assert first.frame is not None and first.frame.dtype == np.uint8
    assert np.array_equal(first.frame, frames[0])


@pytest.mark.parametrize("tile", [None, (48, 64)])
def test_batch_and_threads_do_not_change_the_flow(
    tiny: pf.FlowPredictor, frames: list[np.ndarray], tile: tuple[int, int] | None
) -> None:
    alone = flows(tiny.flow_video(frames, tile=tile, batch_size=1, num_updates=2, precision="full"))
    for batch, threads in ((3, 1), (16, 2)):
        torch.set_num_threads(threads)
        try:
            together = flows(tiny.flow_video(frames, tile=tile, batch_size=batch, num_updates=2, precision="full"))
        finally:
            torch.set_num_threads(1)
        torch.testing.assert_close(together, alone, **CLOSE)


def test_a_frame_is_encoded_once(
    tiny: pf.FlowPredictor, frames: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    encode = tiny.network.encode_flow_frame
    monkeypatch.setattr(tiny.network, "encode_flow_frame", lambda images: (seen.append(len(images)), encode(images))[1])
    list(tiny.flow_video(frames, num_updates=1, batch_size=2))
    assert seen == [1, 2, 2]


@pytest.mark.parametrize("preset", ["tiny", "paper"])
def test_networks_with_one_encoder_and_with_two_agree_with_themselves(preset: str, frames: list[np.ndarray]) -> None:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load(
            preset, device="cpu", **({} if preset == "tiny" else {"encoder": {"depths": (1, 1), "num_prototypes": 4}})
        )
    first, second = frames[0][:24, :40], frames[1][:24, :40]
    (step,) = model.flow_video([first, second], num_updates=1, precision="full")
    torch.testing.assert_close(step.flow, model.flow(first, second, num_updates=1).flow, **CLOSE)


def test_half_precision_is_near_to_full(tiny: pf.FlowPredictor, frames: list[np.ndarray]) -> None:
    full = flows(tiny.flow_video(frames, precision="full"))
    half = flows(tiny.flow_video(frames, precision="half"))
    assert half.dtype == torch.float32
    assert float((half - full).norm(dim=1).mean()) < 0.05 * float(full.norm(dim=1).mean())


def test_half_precision_is_taken_where_the_device_is_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for able, half in (({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({"avx2": True}, False)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda able=able: able)
        assert use_half_precision(cpu, "auto") is half
    assert use_half_precision(cpu, "half") and not use_half_precision(cpu, "full")


def test_a_warm_start_is_that_of_the_pair_before(tiny: pf.FlowPredictor, frames: list[np.ndarray]) -> None:
    steps = list(tiny.flow_video(frames[:3], num_updates=2, warm_start=True, precision="full"))
    before = tiny.flow(frames[0], frames[1], num_updates=2)
    after = tiny.flow(frames[1], frames[2], num_updates=2, previous=before)
    torch.testing.assert_close(steps[0].flow, before.flow, **CLOSE)
    torch.testing.assert_close(steps[1].flow, after.flow, **CLOSE)


def test_a_warm_start_counts_on_the_time_between_frames(
    tiny: pf.FlowPredictor, tmp_path: Path, make_video: Make
) -> None:
    """The third frame comes four times as late, so motion goes on four times as far."""
    pixels = [np.random.default_rng(n).integers(0, 256, (64, 64, 3), dtype=np.uint8) for n in range(3)]
    path = make_video(tmp_path / "clip.mkv", pixels, "ffv1", "bgr0", times=[0, 1, 5])
    cold, warm = (
        list(tiny.flow_video(path, num_updates=1, warm_start=warm, precision="full")) for warm in (False, True)
    )
    even = tiny.flow(pixels[1], pixels[2], num_updates=1, previous=warm[0]).flow - cold[1].flow
    late = warm[1].flow - cold[1].flow
    assert float(late.mean() / even.mean()) == pytest.approx(4, rel=0.25)


def test_frames_are_forgotten(tiny: pf.FlowPredictor) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def endless() -> Iterator[torch.Tensor]:
        for number in range(30):
            yield torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(number))

    for step in tiny.flow_video(endless(), num_updates=1):
        assert step.frame is not None
        alive = [each for each in alive if each() is not None] + [weakref.ref(step.frame)]
        assert len(alive) <= 3


def test_times_of_a_variable_rate_are_exact(tiny: pf.FlowPredictor, tmp_path: Path, make_video: Make) -> None:
    ticks = [0, 1, 4, 5, 9]
    images = [np.full((32, 32, 3), 40 * number, np.uint8) for number in range(5)]
    path = make_video(tmp_path / "clip.mp4", images, times=ticks, tick=Fraction(1, 30000))
    steps = list(tiny.flow_video(path, num_updates=1))
    assert [step.time for step in steps] == [Fraction(tick, 30000) for tick in ticks[:-1]]
    assert [step.until for step in steps] == [Fraction(tick, 30000) for tick in ticks[1:]]


@pytest.mark.parametrize("handed_in", [True, False])
def test_a_part_is_taken_by_its_seconds(
    tiny: pf.FlowPredictor, frames: list[np.ndarray], folder: Path, handed_in: bool
) -> None:
    source = frames if handed_in else folder
    steps = list(tiny.flow_video(source, fps=1, start=1, end=4.5, frame_step=2, num_updates=1))
    assert [(step.number, step.time, step.until) for step in steps] == [(1, 1, 3)]


def test_the_typical_motion_is_the_same_for_the_whole_clip(tiny: pf.FlowPredictor, folder: Path) -> None:
    video = tiny.flow_video(folder, num_updates=1, precision="full")
    calls: list[tuple[int, int]] = []
    typical = video.typical_motion(lambda done, total: calls.append((done, total)))
    assert typical >= 1 and calls == [(1, 4), (2, 4), (3, 4), (4, 4)]  # each pair of so short a clip
    assert video.typical_motion() == typical


def test_the_typical_motion_is_exceeded_by_one_vector_in_a_thousand(
    tiny: pf.FlowPredictor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths from 0 to 100 pixels, as many of each."""
    moved = torch.linspace(0, 100, 64 * 72).view(64, 72)
    flow = torch.stack((moved, 0 * moved, 0 * moved))
    monkeypatch.setattr("protoformer.flow.engine.FlowEngine.flows", lambda *_: iter([flow]))
    assert tiny.flow_video(folder).typical_motion() == pytest.approx(99.9, abs=0.03)


def test_what_cannot_be_a_clip_is_one_sentence(tiny: pf.FlowPredictor, frames: list[np.ndarray], folder: Path) -> None:
    with pytest.raises(InputError, match=r"the clip has one frame in this span; flow needs two, so choose another\.$"):
        list(tiny.flow_video(frames[:1]))
    with pytest.raises(InputError, match=r"0\.png has no frame in this span"):
        list(tiny.flow_video(folder, start=9))
    with pytest.raises(
        InputError, match=r"frame 1 is 40x24 where those before it are 72x64; give frames of one size\.$"
    ):
        list(tiny.flow_video([frames[0], frames[0][:24, :40]], num_updates=1))
    with pytest.raises(InputError, match="a frame step of 0 is not possible"):
        tiny.flow_video(frames, frame_step=0)
    with pytest.raises(InputError, match="there is no precision 'double'"):
        tiny.flow_video(frames, precision="double")
    with pytest.raises(InputError, match="0 updates cannot be run"):
        list(tiny.flow_video(frames, num_updates=0))
    with pytest.raises(InputError, match="open it as a video, or give a scale"):
        tiny.flow_video(frames).typical_motion()
