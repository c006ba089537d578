"""Which files a batch takes for videos, and the names of what comes of them."""

import os
import socket
import sys
import unicodedata
from pathlib import Path

import pytest

from protoformer.batch.jobs import Job
from protoformer.batch.ledger import Ledger, list_jobs
from protoformer.batch.workers import run_job
from protoformer.io.files import MAX_NAME_BYTES, name_key, short_name

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")


def copy(job: Job, targets: tuple[Path, ...]) -> int:
    for target in targets:
        target.write_bytes(job.video.read_bytes())
    return 1


def jobs_of(folder: Path, pattern: str = "videos/**/*", suffixes: tuple[str, ...] = (".mp4",)) -> list[Job]:
    return list_jobs([f"{folder}/{pattern}"], folder / "out", suffixes, {})


def add(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / "videos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode(errors="surrogateescape"))


@pytest.mark.parametrize("letter", ["x", "é", "語", "🎞"])
def test_a_name_as_long_as_a_file_system_takes_is_shortened(tmp_path: Path, letter: str) -> None:
    size = len(letter.encode())
    names = [letter * ((250 - size) // size) + end for end in ("1.mkv", "2.mkv")]
    add(tmp_path, *names, f"{'d' * 255}/clip.mkv", f"{'y' * MAX_NAME_BYTES}.mkv")
    jobs = jobs_of(tmp_path, suffixes=(".mp4", ".flo"))
    outputs = {output for job in jobs for output in job.outputs}
    assert len(outputs) == 8 and f"{'y' * MAX_NAME_BYTES}.mp4" in outputs
    assert all(len(os.fsencode(part)) < 230 for output in outputs for part in output.split("/"))
    for job in jobs:
        assert run_job(copy, job).status == "done"
        assert Ledger(job.folder).finished(job) is not None
    assert jobs_of(tmp_path, suffixes=(".mp4", ".flo")) == jobs  # the names are the same in the next run


def test_a_shortened_name_is_the_same_in_every_run() -> None:
    assert short_name("a" * 250) == "a" * 191 + "-3f3e35e0"
    assert short_name("é" * 125) == "é" * 95 + "-" + short_name("é" * 125)[-8:]
    assert short_name("a" * 200) == "a" * 200


@pytest.mark.parametrize(
    ("first", "second"),
    [("A.mp4", "a.mp4"), (unicodedata.normalize("NFC", "é.mp4"), unicodedata.normalize("NFD", "é.mp4"))],
)
def test_names_that_some_disk_takes_for_one_do_not_meet(tmp_path: Path, first: str, second: str) -> None:
    add(tmp_path, first)
    if (tmp_path / "videos" / second).exists():
        pytest.skip("this disk takes the names for one")
    add(tmp_path, second)
    jobs = jobs_of(tmp_path)
    names = [job.name for job in jobs]
    assert len({name_key(name) for name in names}) == 2 and sum("-" in name for name in names) == 1
    assert [run_job(copy, job).status for job in jobs] == ["done", "done"]
    assert jobs_of(tmp_path) == jobs
    # By itself, and with the other one first, a video has the name that it had.
    assert [job.name for job in jobs_of(tmp_path, f"videos/{second}*")] == [
        job.name for job in jobs if job.video.name == second
    ]


def test_a_batch_from_before_keeps_names_that_differ_in_case(tmp_path: Path) -> None:
    add(tmp_path, "A.mp4", "a.mp4")
    if len(list((tmp_path / "videos").iterdir())) == 1:
        pytest.skip("this disk takes the names for one")
    for name in "Aa":
        assert (
            run_job(copy, Job(tmp_path / f"videos/{name}.mp4", tmp_path / "out", (f"{name}.mp4",), {})).status == "done"
        )
    assert [job.name for job in jobs_of(tmp_path)] == ["A.mp4", "a.mp4"]


def test_outputs_do_not_stand_where_a_folder_of_others_must(tmp_path: Path) -> None:
    add(tmp_path, "clip.avi", "clip.mp4/deep.avi", "clip.flo/deep.avi", "clip.mp4.json/deep.avi")
    jobs = jobs_of(tmp_path, "videos/**/*.avi", (".mp4",))
    assert [run_job(copy, job).status for job in jobs] == ["done"] * 4
    assert jobs_of(tmp_path, "videos/**/*.avi", (".mp4",)) == jobs


@pytest.mark.parametrize("pattern", ["v*/../../{here}/videos/a.mp4", "v*/./a.mp4", ".b*/ledger/a.mp4", ".B*/*/a.mp4"])
def test_no_pattern_leads_out_of_the_folder_or_into_its_records(
    tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("videos", ".batch/ledger", ".Batch/work"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "a.mp4").write_bytes(b"pixels")
    (job,) = list_jobs([pattern.format(here=tmp_path.name)], tmp_path / "out", (".mp4",), {})
    assert ".." not in job.name and not name_key(job.name).startswith(".batch/")
    assert run_job(copy, job).status == "done" and (tmp_path / "out" / job.name).is_file()


def test_a_video_is_never_without_a_name(tmp_path: Path) -> None:
    """Even where the ledger has all the names that it would have at first."""
    add(tmp_path, "a.mp4", "b.mp4")
    for _ in range(4):
        (job,) = jobs_of(tmp_path, "videos/a*")
        assert run_job(copy, Job(tmp_path / "videos/b.mp4", job.folder, job.outputs, {})).status == "done"
    assert len(jobs_of(tmp_path, "videos/a*")) == 1


@posix
def test_what_is_no_regular_file_is_not_opened_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, "good.mp4")
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    os.mkfifo("videos/pipe.mp4")
    Path("videos/gone.mp4").symlink_to("nothing.mp4")
    Path("videos/loop.mp4").symlink_to("loop.mp4")
    Path("videos/null.mp4").symlink_to("/dev/null")
    Path("videos/folder.mp4").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("videos/socket.mp4")
        jobs = list_jobs(["videos/*.mp4"], tmp_path / "out", (".mp4",), {})
    assert {job.name: job.unread for job in jobs} == {
        "good.mp4": "",
        "gone.mp4": "videos/gone.mp4 was not read, because it is a link to a file that does not exist; "
        "restore the file.",
        "loop.mp4": "videos/loop.mp4 was not read, because the system refuses it (Too many levels of symbolic links); "
        "check the path.",
        **{
            f"{name}.mp4": f"videos/{name}.mp4 was not read, because it is {kind}; "
            "save its content to a file, or narrow the pattern."
            for name, kind in (("null", "a device"), ("pipe", "a named pipe"), ("socket", "a socket"))
        },
    }


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take names in UTF-8 only")
def test_a_name_that_is_not_utf8_is_a_name(tmp_path: Path) -> None:
    name = os.fsdecode(b"clip\xff.mp4")
    add(tmp_path, name)
    (job,) = jobs_of(tmp_path)
    assert job.name == name and run_job(copy, job).status == "done"
    assert Ledger(job.folder).finished(job) is not None and jobs_of(tmp_path) == [job]
