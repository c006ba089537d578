"""One loop turns the results of a video into a video, further files, or both."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.io.files import TableWriter
from protoformer.video.pipeline import PipelineInterrupt, ResultFolder, read_ahead, run_pipeline
from protoformer.video.reader import open_video
from protoformer.video.writer import VideoWriter

pytest.importorskip("av")


@dataclass(frozen=True)
class Result:
    number: int

    @property
    def time(self) -> Fraction:
        return Fraction(self.number, 10)

    def save(self, path: Path) -> None:
        path.write_text(str(self.number))


def draw(result: Result) -> np.ndarray:
    return np.full((16, 32, 3), 20 * result.number, np.uint8)


def results(count: int) -> Iterator[Result]:
    return map(Result, range(count))


def interrupted_results(count: int, action: Callable[[], object] = lambda: None) -> Iterator[Result]:
    yield from results(count)
    action()
    raise KeyboardInterrupt


def test_every_result_is_drawn_and_written_at_its_time(tmp_path: Path) -> None:
    outcome = run_pipeline(results(5), draw, VideoWriter(tmp_path / "out.mp4", fps=10))
    frames = list(open_video(tmp_path / "out.mp4").frames())
    assert (outcome.num_frames, outcome.kept) == (5, ()) and outcome.seconds > 0
    assert [frame.time for frame in frames] == [Fraction(number, 10) for number in range(5)]
    assert [round(frame.image.mean() / 20) for frame in frames] == list(range(5))


def test_results_are_consumed_one_at_a_time() -> None:
    events: list[str] = []

    def logged() -> Iterator[Result]:
        for result in results(2):
            events.append(f"predict {result.number}")
            yield result

    def on_result(result: Result, image: np.ndarray | None) -> None:
        assert image is not None and image.shape == (16, 32, 3)
        events.append(f"result {result.number}")

    run_pipeline(logged(), draw, on_result=on_result, progress=lambda done: events.append(f"done {done}"))
    assert events == ["predict 0", "result 0", "done 1", "predict 1", "result 1", "done 2"]


def test_nothing_is_drawn_without_a_draw_function(tmp_path: Path) -> None:
    images: list[np.ndarray | None] = []
    folder = ResultFolder(tmp_path / "files", ".txt")

    def on_result(result: Result, image: np.ndarray | None) -> None:
        images.append(image)
        folder.save(result)

    assert run_pipeline(results(3), outputs=[folder], on_result=on_result).num_frames == 3
    assert images == [None] * 3
    assert [path.name for path in sorted((tmp_path / "files").iterdir())] == ["000000.txt", "000001.txt", "000002.txt"]


def test_keep_going_ends_the_video_early(tmp_path: Path) -> None:
    seen: list[int] = []
    outcome = run_pipeline(
        results(9),
        draw,
        VideoWriter(tmp_path / "out.mp4", fps=10),
        on_result=lambda result, _: seen.append(result.number),
        keep_going=lambda: len(seen) < 4,
    )
    assert outcome.num_frames == 4
    assert len(list(open_video(tmp_path / "out.mp4").frames())) == 4


def test_an_interruption_keeps_partial_outputs_and_reports_them(tmp_path: Path) -> None:
    table, folder = TableWriter(tmp_path / "out.csv", ["number"]), ResultFolder(tmp_path / "files", ".txt")
    (tmp_path / "out.mp4").write_bytes(b"old")

    def on_result(result: Result, _: np.ndarray | None) -> None:
        table.write(result.number)
        folder.save(result)

    with pytest.raises(PipelineInterrupt) as interrupt:
        run_pipeline(
            interrupted_results(3),
            draw,
            VideoWriter(tmp_path / "out.mp4", fps=10),
            outputs=[table, folder],
            on_result=on_result,
        )
    outcome = interrupt.value.outcome
    assert isinstance(interrupt.value, KeyboardInterrupt)
    assert outcome.num_frames == 3
    assert outcome.kept == tuple(tmp_path / name for name in ("out.partial.mp4", "out.partial.csv", "files"))
    assert len(list(open_video(tmp_path / "out.partial.mp4").frames())) == 3
    assert (tmp_path / "out.partial.csv").read_text() == "number\n0\n1\n2\n"
    assert (tmp_path / "out.mp4").read_bytes() == b"old"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_frame_that_is_interrupted_while_it_is_written_counts(tmp_path: Path, number: signal.Signals) -> None:
    class InterruptedWriter(VideoWriter):
        def write(self, image: np.ndarray, time: float | Fraction | None = None) -> None:
            super().write(image, time)
            if self.frames == 2:
                signal.raise_signal(number)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(number, stop)
    try:
        with pytest.raises(PipelineInterrupt) as interrupt:
            run_pipeline(results(5), draw, InterruptedWriter(tmp_path / "out.mp4", fps=10))
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, previous)
    assert interrupt.value.outcome.num_frames == 2
    assert len(list(open_video(tmp_path / "out.partial.mp4").frames())) == 2


def test_an_interruption_before_the_first_result_keeps_nothing(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path / "files", ".txt")
    with pytest.raises(PipelineInterrupt) as interrupt:
        run_pipeline(interrupted_results(0), draw, VideoWriter(tmp_path / "out.mp4", fps=10), outputs=[folder])
    assert (interrupt.value.outcome.num_frames, interrupt.value.outcome.kept) == (0, ())
    assert [path.name for path in tmp_path.iterdir()] == ["files"]


@pytest.mark.parametrize("source", ["results", "progress", "draw"])
def test_an_error_leaves_no_output(tmp_path: Path, source: str) -> None:
    def fail(*_: object) -> None:
        raise InputError("the time is over.")

    def failing_results() -> Iterator[Result]:
        yield from results(2)
        if source == "results":
            fail()

    with pytest.raises(InputError, match="the time is over"):
        run_pipeline(
            failing_results(),
            fail if source == "draw" else draw,  # type: ignore[arg-type]
            VideoWriter(tmp_path / "out.mp4", fps=10),
            outputs=[TableWriter(tmp_path / "out.csv", ["number"])],
            progress=fail if source == "progress" else None,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="file"):
        ResultFolder(tmp_path / "file", ".flo")


def test_reading_ahead_keeps_the_order_and_raises_an_error_in_its_place() -> None:
    computed = []

    def items() -> Iterator[int]:
        for number in range(4):
            computed.append(number)
            yield number
        raise InputError("the clip ends early.")

    ahead = read_ahead(items(), count=1)
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    assert next(ahead) == 3
    with pytest.raises(InputError, match="the clip ends early"):
        next(ahead)
    assert list(read_ahead(iter(()))) == [] and computed == [0, 1, 2, 3]


def test_reading_ahead_stops_with_the_one_who_reads() -> None:
    computed = []
    ahead = read_ahead(map(computed.append, range(100)), count=3)
    next(ahead)
    ahead.close()  # type: ignore[attr-defined]
    assert 1 <= len(computed) <= 4
