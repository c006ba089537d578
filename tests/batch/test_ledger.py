"""A record of a batch is data from a disk: it names nothing outside its own job, and damage to it costs one video."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protoformer.batch.jobs import Job
from protoformer.batch.ledger import Ledger, list_jobs
from protoformer.batch.workers import run_job
from protoformer.errors import InputError

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes need rights on Windows")


def copy(job: Job, targets: tuple[Path, ...]) -> int:
    for target in targets:
        target.write_bytes(job.video.read_bytes())
    return 7


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of a batch with one finished video, a.avi, beside a folder that is none of its business."""
    (tmp_path / "a.avi").write_bytes(b"pixels")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/letter.txt").write_text("dear")
    folder = tmp_path / "out"
    (job,) = list_jobs([tmp_path / "a.avi"], folder, (".mp4",), {"every": 1})
    assert run_job(copy, job).status == "done"
    return folder


def record_of(out: Path) -> dict[str, Any]:
    return json.loads((out / ".batch/ledger/a.mp4.json").read_text())


def write_record(out: Path, record: Any) -> None:
    data = record if isinstance(record, bytes) else json.dumps(record).encode()
    (out / ".batch/ledger/a.mp4.json").write_bytes(data)


def job_with_other_options(out: Path) -> Job:
    (job,) = list_jobs([out.parent / "a.avi"], out, (".mp4",), {"every": 2})
    return job


def run_again(out: Path) -> tuple[bool, str]:
    """Whether the video of the fixture counts as finished, and what there is to say about the records."""
    ledger = Ledger(out)
    with ledger.locked():
        (job,) = list_jobs([out.parent / "a.avi"], out, (".mp4",), {"every": 1}, ledger)
        return ledger.finished(job) is not None, ledger.note()


def described(out: Path, name: str) -> dict[str, Any]:
    """An output as a record describes it, whatever its name leads to."""
    place = out / name
    sizes = [each.stat().st_size for each in place.iterdir()] if place.is_dir() else [place.stat().st_size]
    return {"name": name, "files": len(sizes), "bytes": sum(sizes)}


@pytest.mark.parametrize("place", ["absolute", "../precious", "deep/../../precious", ".batch", "./.batch", ".BATCH"])
def test_a_record_cannot_name_what_is_not_an_output(out: Path, place: str) -> None:
    (out / "deep").mkdir()
    name = str(out.parent / "precious") if place == "absolute" else place
    record = record_of(out)
    record["outputs"].append({"name": name, "files": 1, "bytes": 4})
    write_record(out, record)
    assert run_job(copy, job_with_other_options(out)).status == "done"
    assert (out.parent / "precious/letter.txt").read_text() == "dear"
    assert [each["name"] for each in record_of(out)["outputs"]] == ["a.mp4"]


@pytest.mark.parametrize("name", ["other.mp4", "summary.csv", "deep/a.mp4", "a.txt", "a"])
def test_a_record_cannot_name_the_outputs_of_another_job(out: Path, name: str) -> None:
    (out / "deep").mkdir()
    (out / name).write_bytes(b"kept")
    record = record_of(out)
    record["outputs"].append(described(out, name))
    write_record(out, record)
    assert run_job(copy, job_with_other_options(out)).status == "done"
    assert (out / name).read_bytes() == b"kept"


@needs_links
@pytest.mark.parametrize("link", ["a.flo", "deep"])
def test_links_in_the_output_folder_are_not_followed(out: Path, link: str) -> None:
    (out / link).symlink_to(out.parent / "precious")
    job = job_with_other_options(out)
    if link == "deep":  # the folder of the outputs itself leads elsewhere
        job = Job(job.video, out, ("deep/a.mp4",), {})
        report = run_job(copy, job)
        assert report.status == "failed" and "leads out of" in report.reason and not (out / "deep/a.mp4").exists()
    else:
        record = record_of(out)
        record["outputs"].append(described(out, link))
        write_record(out, record)
        assert run_job(copy, job).status == "done" and not (out / link).is_symlink()
    assert (out.parent / "precious/letter.txt").read_text() == "dear"


@pytest.mark.parametrize("recorded", [4, 2])
def test_an_earlier_output_that_was_changed_since_is_kept(out: Path, recorded: int) -> None:
    (out / "a.flo").write_bytes(b"1234")
    record = record_of(out)
    record["outputs"].append({"name": "a.flo", "files": 1, "bytes": recorded})
    write_record(out, record)
    assert run_job(copy, job_with_other_options(out)).status == "done"
    assert (out / "a.flo").exists() == (recorded != 4)


def changed(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda record: {**record, **fields}


def without(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda record: {name: value for name, value in record.items() if name != key}


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (changed(outputs=[]), "its content is not that of a record"),
        (changed(outputs=None), "its content is not that of a record"),
        (changed(outputs=["a.mp4"]), "its content is not that of a record"),
        (changed(outputs=[{"name": ["a.mp4"], "files": 1, "bytes": 6}]), "its content is not that of a record"),
        (changed(outputs=[{"name": "a.mp4"}]), "its content is not that of a record"),
        (changed(outputs=[{"name": "b.mp4", "files": 1, "bytes": 6}]), "it names outputs of another video"),
        (changed(outputs=[{"name": "a.mp4\0", "files": 1, "bytes": 6}]), "it names outputs of another video"),
        (without("seconds"), "its content is not that of a record"),
        (without("video"), "its content is not that of a record"),
        (changed(seconds="1"), "its content is not that of a record"),
        (changed(seconds=10**400), "its content is not that of a record"),
        (changed(seconds=float("nan")), "its content is not that of a record"),
        (changed(frames=True), "its content is not that of a record"),
        (changed(frames=-1), "its content is not that of a record"),
        (changed(video=7), "its content is not that of a record"),
        (changed(video="x" * 5000), None),
        (changed(stamp="now"), "its content is not that of a record"),
        (changed(options=[]), "its content is not that of a record"),
        (lambda _: [], "its content is not that of a record"),
        (lambda _: b"{", "it is not JSON"),
        (lambda _: b"", "it is not JSON"),
        (lambda _: b"\xff\xfe\x00", "it is not JSON"),
        (lambda _: b"[" * 200_000, "it is not JSON"),
        (lambda _: b"1" * 10_000, "it is not JSON"),
        (lambda _: b" " * 2**21, "it is 2097152 bytes long"),
    ],
)
def test_a_damaged_record_is_ignored_with_a_note(out: Path, damage: Callable[[Any], Any], why: str | None) -> None:
    assert run_again(out) == (True, "")
    write_record(out, damage(record_of(out)))
    finished, note = run_again(out)
    assert not finished
    if why is None:  # a sound record, of another video that does not exist any more
        assert note == ""
    else:
        assert note.startswith(f"the record {out}/.batch/ledger/a.mp4.json is ignored, because {why}")
    assert run_job(copy, list_jobs([out.parent / "a.avi"], out, (".mp4",), {"every": 1})[0]).status == "done"
    assert run_again(out) == (True, "")


def test_many_damaged_records_are_one_note(out: Path) -> None:
    for name in ("x", "y"):
        (out / f".batch/ledger/{name}.mp4.json").write_text("{")
    finished, note = run_again(out)
    assert finished and note.startswith(
        f"2 records in {out}/.batch/ledger are ignored, such as x.mp4.json, because it is "
    )


@needs_links
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_record_that_is_no_file_is_ignored(out: Path, kind: str) -> None:
    record = out / ".batch/ledger/a.mp4.json"
    record.replace(out.parent / "elsewhere.json")
    if kind == "pipe":
        os.mkfifo(record)
    elif kind == "link":
        record.symlink_to(out.parent / "elsewhere.json")
    else:
        record.mkdir()
    finished, note = run_again(out)
    assert not finished and note.startswith(f"the record {record} is ignored, because ")
    report = run_job(copy, job_with_other_options(out))
    assert report.status == ("failed" if kind == "folder" else "done")
    assert record.is_dir() or (record.is_file() and not record.is_symlink())
    assert json.loads((out.parent / "elsewhere.json").read_text())["options"] == {"every": 1}


@needs_links
@pytest.mark.parametrize("name", [".batch", ".batch/ledger", ".batch/work", "summary.csv"])
def test_a_folder_whose_own_files_are_links_is_refused(out: Path, name: str) -> None:
    place = out / name
    if place.exists():
        place.rename(out.parent / "moved")
    target = out.parent / ("precious/letter.txt" if name == "summary.csv" else "precious")
    place.symlink_to(target)
    with pytest.raises(InputError, match=f"{name} is a link"):
        run_again(out)
    assert (out.parent / "precious/letter.txt").read_text() == "dear"
    assert [path.name for path in (out.parent / "precious").iterdir()] == ["letter.txt"]


@needs_links
def test_a_folder_of_records_that_is_a_link_is_not_written_through(out: Path) -> None:
    (out / ".batch/ledger/deep").symlink_to(out.parent / "precious")
    job = job_with_other_options(out)
    report = run_job(copy, Job(job.video, out, ("deep/a.mp4",), {}))
    assert report.status == "failed" and "leads out of" in report.reason
    assert Ledger(out).finished(job) is None
    assert [path.name for path in (out.parent / "precious").iterdir()] == ["letter.txt"]
