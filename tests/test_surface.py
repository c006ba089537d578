"""What Python users call: predictors as functions, batches, `save` of every result, arrays, devices and precision."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import protoformer as pf
from protoformer.errors import InputError
from protoformer.io.formats import read_flo
from protoformer.io.image import read_image
from protoformer.video.pipeline import PipelineInterrupt
from protoformer.video.reader import open_video

pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")

BOX = (10, 10, 24, 24)


@pytest.fixture(scope="module")
def model() -> pf.Predictor:
    """The smallest networks of all tasks, with random weights."""
    model = pf.Predictor("cpu")
    for task in ("flow", "depth", "track", "stabilize"):
        model.__dict__[task] = pf.load("tiny", "cpu", task=task)
    return model


@pytest.fixture
def clip(tmp_path: Path, make_video: Callable[..., Path], frames: list[np.ndarray]) -> Path:
    """A video of four frames of 72x64 pixels at times 0, 1, 2 and 4 of a tenth of a second, with sound."""
    return make_video(tmp_path / "clip.mp4", frames[:4], times=[0, 1, 2, 4], rate=10, sound="aac")


VIDEOS: dict[str, Callable[[pf.Predictor, Any], Any]] = {
    "flow": lambda model, source: model.flow_video(source, num_updates=1),
    "depth": lambda model, source: model.depth_video(source, num_updates=1),
    "track": lambda model, source: model.track(source, BOX),
    "track_video": lambda model, source: model.track_video(source, box=BOX),
    "stabilize": lambda model, source: model.stabilize(source),
    "stabilize_video": lambda model, source: model.stabilize_video(source),
    "explain": lambda model, source: model.explain_video(source, num_updates=1),
}


@pytest.mark.parametrize("task", VIDEOS)
def test_every_result_of_a_video_can_be_saved_as_a_video(
    model: pf.Predictor, clip: Path, tmp_path: Path, task: str
) -> None:
    VIDEOS[task](model, clip).save(tmp_path / "out.mp4")
    saved = open_video(tmp_path / "out.mp4")
    times = [Fraction(number, 10) for number in (0, 1, 2, 4)]
    assert [frame.time for frame in saved.frames()] == (times[:3] if task == "flow" else times)
    assert saved.info.size == (64, 72) and saved.info.has_audio


@pytest.mark.parametrize("task", VIDEOS)
def test_frames_in_memory_can_be_saved_as_well(
    model: pf.Predictor, frames: list[np.ndarray], tmp_path: Path, task: str
) -> None:
    VIDEOS[task](model, frames[:3]).save(tmp_path / "out", format="png")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["000000.png", "000001.png", "000002.png"][: 2 if task == "flow" else 3]
    assert read_image(tmp_path / "out" / names[0]).shape == (64, 72, 3)


def test_videos_can_be_drawn_side_by_side(model: pf.Predictor, clip: Path, tmp_path: Path) -> None:
    model.flow_video(clip, num_updates=1).save(tmp_path / "f.mkv", side_by_side=True, arrows=True, scale=2.0)
    model.depth_video(clip, num_updates=1).save(tmp_path / "d.mkv", side_by_side=True, colors=(1, 9))
    model.stabilize(clip).save(tmp_path / "s.mkv", side_by_side=True)
    assert [open_video(tmp_path / f"{name}.mkv").info.size for name in "fds"] == [(64, 144)] * 3


def test_a_folder_has_a_file_per_result(model: pf.Predictor, frames: list[np.ndarray], tmp_path: Path) -> None:
    flows = list(model.flow_video(frames[:3], num_updates=1, precision="full"))
    video = model.flow_video(frames[:3], num_updates=1, precision="full")
    calls: list[tuple[int, int]] = []
    assert video.save(tmp_path / "flo", progress=lambda *each: calls.append(each)).num_frames == 2
    assert calls == [(1, 1), (2, 2)]
    assert np.array_equal(read_flo(tmp_path / "flo" / "000001.flo"), np.asarray(flows[1]))
    video.save(tmp_path / "npz", format="npz")
    with np.load(tmp_path / "npz" / "000000.npz") as arrays:
        assert set(arrays) == {"flow", "confidence"} and np.array_equal(arrays["flow"], np.asarray(flows[0]))
    model.depth_video(frames[:2], num_updates=1).save(tmp_path / "npy")
    assert np.load(tmp_path / "npy" / "000001.npy").shape == (64, 72)


def test_tracks_are_tables_arrays_and_drawings(model: pf.Predictor, frames: list[np.ndarray], tmp_path: Path) -> None:
    tracks = model.track(frames, [BOX, (30, 20, 20, 20)])
    tracks.save(tmp_path / "both.csv")
    model.track_video(frames, [BOX, (30, 20, 20, 20)]).save(tmp_path / "t.mp4", csv=tmp_path / "same.csv")
    assert (tmp_path / "both.csv").read_text() == (tmp_path / "same.csv").read_text()
    assert len((tmp_path / "both.csv").read_text().splitlines()) == 1 + 2 * len(frames)
    tracks[0].save(tmp_path / "one.npz")
    with np.load(tmp_path / "one.npz") as arrays:
        assert np.array_equal(arrays["boxes"], np.asarray(tracks[0])) and arrays["numbers"].tolist() == [0, 1, 2, 3, 4]
    first = next(iter(model.track_video(frames, BOX)))
    assert np.array_equal(np.asarray(first), frames[0]) and not np.array_equal(np.asarray(first.image()), frames[0])


@pytest.mark.parametrize(
    ("path", "options", "sentence"),
    [
        ("out.txt", {}, "out.txt is no video or folder by its suffix; give one of .avi, .gif"),
        ("out", {"format": "exr"}, "there is no format 'exr' for a folder; choose one of flo, npy, npz, png"),
        ("out.mp4", {"format": "flo"}, "the format 'flo' is for the files of a folder; leave it out"),
        ("clip.mp4", {}, "clip.mp4 is also an input and would be lost"),
        ("out.mp4", {"scale": -1.0}, "colors cannot be saturated at -1 pixels"),
    ],
)
def test_what_cannot_be_saved_is_one_sentence(
    model: pf.Predictor, clip: Path, tmp_path: Path, path: str, options: dict[str, Any], sentence: str
) -> None:
    before = clip.read_bytes()
    with pytest.raises(InputError, match=sentence):
        model.flow_video(clip, num_updates=1).save(tmp_path / path, **options)
    assert clip.read_bytes() == before and sorted(each.name for each in tmp_path.iterdir()) == ["clip.mp4"]


def test_the_folder_of_the_input_is_no_output(model: pf.Predictor, frames: list[np.ndarray], tmp_path: Path) -> None:
    for number, frame in enumerate(frames[:2]):
        Image.fromarray(frame).save(tmp_path / f"{number:06d}.png")
    with pytest.raises(InputError, match="is also the folder of the input"):
        model.flow_video(tmp_path, num_updates=1).save(tmp_path, format="png")


def test_frames_of_a_generator_are_tracked_once(model: pf.Predictor, frames: list[np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can be read only once; save a table, or use track_video"):
        model.track(iter(frames), BOX).save(tmp_path / "t.mp4")
    model.track_video(iter(frames), BOX).save(tmp_path / "t.mp4")
    assert len(list(open_video(tmp_path / "t.mp4").frames())) == len(frames)


def test_ctrl_c_keeps_what_is_finished(model: pf.Predictor, clip: Path, tmp_path: Path) -> None:
    def stop(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(PipelineInterrupt) as stopped:
        model.depth_video(clip, num_updates=1).save(tmp_path / "out.mp4", progress=stop)
    assert stopped.value.outcome.kept == (tmp_path / "out.partial.mp4",)


def test_one_object_is_called_with_an_image_or_two(model: pf.Predictor, frames: list[np.ndarray]) -> None:
    assert isinstance(model(frames[0], frames[1], num_updates=1), pf.FlowResult)
    assert isinstance(model(frames[0], num_updates=1), pf.DepthResult)
    batch = torch.from_numpy(np.stack(frames[:3])).permute(0, 3, 1, 2)
    flows, depths = model(batch[:2], batch[1:], num_updates=1), model(batch[:2], num_updates=1)
    assert [len(flows), len(depths)] == [2, 2] and isinstance(flows[0], pf.FlowResult)
    single = model.flow(frames[1], frames[2], num_updates=1)
    torch.testing.assert_close(flows[1].flow, single.flow, atol=1e-4, rtol=1e-4)


def test_results_are_arrays(model: pf.Predictor, frames: list[np.ndarray]) -> None:
    flow, depth = model(frames[0], frames[1], num_updates=1), model(frames[0], num_updates=1)
    assert np.array_equal(np.asarray(flow), flow.numpy()) and np.array_equal(np.asarray(depth), depth.numpy())
    assert np.asarray(flow, dtype=np.float64).dtype == np.float64
    assert np.shares_memory(np.array(flow, copy=False), flow.flow.numpy())
    copied = np.array(depth)
    copied[:] = -1
    assert depth.depth.min() > 0
    with pytest.raises(ValueError, match="copy"):
        np.array(depth, dtype=np.float16, copy=False)
    frame = next(iter(model.flow_video(frames, num_updates=1)))
    assert np.asarray(frame).shape == (64, 72, 2)


def test_the_second_image_is_warped_back_to_the_first(frames: list[np.ndarray], tmp_path: Path) -> None:
    flow = torch.stack((torch.full((64, 72), -2.0), torch.zeros(64, 72)))  # the pattern moves two pixels to the left
    result = pf.FlowResult(flow, torch.ones(1, 64, 72))
    warped = np.asarray(result.warp(frames[1]))
    assert np.array_equal(warped[:, 2:], frames[0][:, 2:]) and not warped[:, :2].any()
    with pytest.raises(InputError, match="the image is 30x30 pixels and the flow 72x64"):
        result.warp(np.zeros((30, 30, 3), np.uint8))


def test_a_notebook_shows_the_image_and_a_machine_without_screen_says_so(
    model: pf.Predictor, frames: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import pyplot

    result = model(frames[0], frames[1], num_updates=1)
    assert result._repr_png_().startswith(b"\x89PNG")
    pyplot.switch_backend("agg")
    with pytest.warns(UserWarning, match="there is no screen to show an image on"):
        result.show()
    shown: list[Any] = []
    monkeypatch.setattr(pyplot, "get_backend", lambda: "qtagg")
    monkeypatch.setattr(pyplot, "show", lambda: shown.append(pyplot.gcf().axes[0].images[0].get_array()))
    result.show()
    assert np.array_equal(shown[0], np.asarray(result.image()))
    pyplot.close("all")


def test_predictors_move_between_devices_and_check_them(model: pf.Predictor, frames: list[np.ndarray]) -> None:
    assert model.to("cpu") is model and model.track.to("cpu") is model.track
    assert model.stabilize.to(torch.device("cpu")).flow is model.stabilize.flow
    model.segment.device = torch.device("meta")
    assert model.to("cpu").segment.device == torch.device("cpu")  # its network is that of flow, which was moved
    if not torch.backends.mps.is_available():
        for move in (lambda: model.flow.to("mps"), lambda: pf.load("tiny", "mps")):
            with pytest.raises(InputError, match="the device 'mps' is not there; choose cpu, or cuda or mps on"):
                move()
    assert model.flow.device == torch.device("cpu")


@pytest.mark.parametrize("task", ["flow", "depth", "track", "stabilize"])
def test_every_predictor_has_a_precision(task: str, frames: list[np.ndarray]) -> None:
    half, full = (pf.load("tiny", "cpu", task=task, precision=each) for each in ("half", "full"))
    calls: dict[str, Callable[[Any], Any]] = {
        "flow": lambda model, **options: np.asarray(model(frames[0], frames[1], num_updates=2, **options)),
        "depth": lambda model, **options: np.asarray(model(frames[0], num_updates=2, **options)),
        "track": lambda model, **options: model(frames, BOX, **options)[0].scores.numpy(),
        "stabilize": lambda model, **options: model(frames[:3], **options).path_before,
    }
    call = calls[task]
    assert np.array_equal(call(half, precision="full"), call(full))
    assert not np.array_equal(call(half), call(full))
    with pytest.raises(InputError, match="there is no precision 'double'; choose auto, full or half"):
        pf.load("tiny", "cpu", task=task, precision="double")  # type: ignore[call-overload]


def test_segmentation_has_the_precision_of_its_predictor(model: pf.Predictor) -> None:
    assert pf.Predictor("cpu", model.flow.network, "half").segment.precision == "half"
