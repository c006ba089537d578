"""Jobs are done once each, whoever dies, and workers ask for what a cluster has."""

from concurrent.futures import Future
from pathlib import Path

import pytest

from protoformer.batch.cluster import divide_cores
from protoformer.batch.jobs import Job, JobReport, WorkerReady
from protoformer.batch.ledger import Ledger, list_jobs
from protoformer.batch.workers import ATTEMPTS, TimeLimit, run_job, run_jobs
from protoformer.errors import InputError


def a_job(folder: Path, name: str = "a", **options: int) -> Job:
    video = folder / f"{name}.avi"
    video.write_bytes(b"pixels")
    return Job(video, folder / "out", (f"{name}.mp4",), dict(options))


def copied(job: Job, targets: tuple[Path, ...]) -> int:
    for target in targets:
        target.write_bytes(job.video.read_bytes())
    return 7


class CrashingWorker:
    """A worker that crashes at a job as often as its pool says."""

    def __init__(self, pool: "CrashingPool") -> None:
        self.pool, self.killed = pool, False
        self.ready: Future[WorkerReady] = Future()
        self.ready.set_result(WorkerReady(notes=("random weights",)))

    def submit(self, job: Job) -> "Future[JobReport]":
        assert not self.killed
        self.pool.started.append(job.name)
        future: Future[JobReport] = Future()
        if self.pool.crashes.get(job.name, 0):
            self.pool.crashes[job.name] -= 1
            future.set_exception(RuntimeError("crash"))
        else:
            future.set_result(JobReport("done"))
        return future

    def kill(self) -> None:
        self.killed = True


class CrashingPool:
    num_workers, slow_start = 2, ""

    def __init__(self, crashes: dict[str, int]) -> None:
        self.crashes, self.started = crashes, list[str]()

    def start(self) -> CrashingWorker:
        return CrashingWorker(self)

    def check_crash(self, error: BaseException) -> None:
        assert str(error) == "crash"

    def crash_error(self, error: BaseException) -> InputError:
        return InputError("all workers crash.")

    def close(self) -> None:
        pass


def test_the_job_of_a_dead_worker_is_done_by_another_and_a_deadly_one_is_given_up(tmp_path: Path) -> None:
    jobs = [a_job(tmp_path, name) for name in "abcd"]
    pool, notes = CrashingPool({"a.mp4": 1, "c.mp4": 99}), list[str]()
    ended = {job.name: report for job, report in run_jobs(jobs, pool, TimeLimit(), notes.append)}
    assert {name: report.status for name, report in ended.items()} == {
        **{"a.mp4": "done", "b.mp4": "done", "c.mp4": "failed", "d.mp4": "done"},
    }
    assert [pool.started.count(f"{name}.mp4") for name in "abcd"] == [2, 1, ATTEMPTS, 1]
    assert ended["c.mp4"].reason.startswith(f"3 workers crashed at {tmp_path}/c.avi, ")
    assert notes == ["random weights"]


def test_workers_that_never_start_end_the_batch(tmp_path: Path) -> None:
    class Unstartable(CrashingPool):
        def start(self) -> CrashingWorker:
            worker = super().start()
            worker.ready = Future()
            worker.ready.set_exception(RuntimeError("crash"))
            return worker

    with pytest.raises(InputError, match="all workers crash"):
        list(run_jobs([a_job(tmp_path)], Unstartable({}), TimeLimit(), lambda _: None))


def test_a_job_that_was_finished_by_a_worker_that_could_not_tell_is_not_done_twice(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    first = run_job(copied, job)
    assert (first.status, first.frames) == ("done", 7)
    assert run_job(lambda *_: pytest.fail("done twice"), job) == first


def test_a_video_that_changes_while_it_is_read_is_done_again(tmp_path: Path) -> None:
    job = a_job(tmp_path)

    def changing(job: Job, targets: tuple[Path, ...]) -> int:
        frames = copied(job, targets)
        job.video.write_bytes(b"other pixels")
        return frames

    assert run_job(changing, job).status == "done"
    assert Ledger(job.folder).finished(job) is None


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InputError("it is torn."), "it is torn."),
        (MemoryError(), "out of memory at {video}; give fewer --workers, or smaller videos."),
        (
            RuntimeError("CUDA out of memory.\nTried"),
            "out of memory at {video}; give fewer --workers, or smaller videos.",
        ),
        (OSError(28, "No space left"), "the result of {video} could not be written (No space left); check the disk."),
        (KeyError("x"), "{video} cannot be processed (KeyError: 'x'); try it by itself."),
    ],
)
def test_whatever_goes_wrong_is_a_sentence_and_leaves_nothing(tmp_path: Path, error: Exception, sentence: str) -> None:
    job = a_job(tmp_path)

    def failing(job: Job, targets: tuple[Path, ...]) -> int:
        copied(job, targets)
        raise error

    report = run_job(failing, job)
    assert (report.status, report.reason) == ("failed", sentence.format(video=job.video))
    assert [path.name for path in job.folder.rglob("*") if path.is_file()] == []


def test_an_old_output_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    assert run_job(copied, a_job(tmp_path, every=1)).status == "done"

    def failing(job: Job, targets: tuple[Path, ...]) -> int:
        raise InputError("no.")

    assert run_job(failing, a_job(tmp_path, every=2)).status == "failed"
    assert (tmp_path / "out/a.mp4").read_bytes() == b"pixels"


def test_a_video_that_moved_leaves_its_name(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    (tmp_path / "one/a.avi").write_bytes(b"pixels")
    out = tmp_path / "out"
    (job,) = list_jobs([tmp_path / "one/a.avi"], out, (".mp4",), {})
    assert job.name == "a.mp4" and run_job(copied, job).status == "done"
    (tmp_path / "two/a.avi").write_bytes(b"pixels")
    (other,) = list_jobs([tmp_path / "two/a.avi"], out, (".mp4",), {})
    assert other.name.startswith("a-")
    (tmp_path / "one/a.avi").unlink()
    (moved,) = list_jobs([tmp_path / "two/a.avi"], out, (".mp4",), {})
    assert moved.name == "a.mp4"


@pytest.mark.parametrize(
    ("machines", "count", "cores", "cards", "sharing", "workers"),
    [
        ([{"CPU": 16.0}, {"CPU": 8.0}], None, 4, 0, 4, 6),
        ([{"CPU": 16.0}, {"CPU": 2.0}], None, 2, 0, 8, 9),
        ([{"CPU": 0.0}, {"CPU": 1.0}, {"CPU": 1.0}], None, 1, 0, 1, 2),
        ([{"CPU": 16.0}, {"CPU": 16.0}], 2, 4, 0, 4, 2),
        ([{"CPU": 4.0}, {"CPU": 4.0}], 8, 1, 0, 4, 8),
        ([{"CPU": 4.0}], 99, 1, 0, 4, 4),
        ([{"CPU": 64.0, "GPU": 8.0}, {"CPU": 64.0}], None, 1, 1, 8, 8),
        ([{"CPU": 64.0, "GPU": 8.0}], 3, 1, 1, 8, 3),
    ],
)
def test_a_cluster_is_divided_among_workers(
    machines: list[dict[str, float]], count: int | None, cores: int, cards: int, sharing: int, workers: int
) -> None:
    needs, shared, number = divide_cores(machines, count)
    assert (needs["num_cpus"], needs["num_gpus"], shared, number) == (cores, cards, sharing, workers)


def test_a_cluster_without_a_core_is_refused() -> None:
    with pytest.raises(InputError, match="neither a GPU nor a core"):
        divide_cores([{"CPU": 0.0}], None)
