"""A batch on a Ray cluster of two machines, one of which is lost midway."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protoformer.batch import cluster
from protoformer.errors import InputError
from protoformer.video.reader import open_video

pytest.importorskip("av")
pytest.importorskip("ray", reason="ray is not installed")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Ray has clusters of several machines on Linux alone")

# Machines are processes here. Each line on standard input kills one, as if its plug were pulled.
CLUSTER = """
import sys

from ray.cluster_utils import Cluster

head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": int(sys.argv[1])}
cluster = Cluster(initialize_head=True, head_node_args=head)
machines = [cluster.add_node(num_cpus=1) for _ in range(2)]
print(cluster.address, flush=True)
for _ in sys.stdin:
    machines.pop().kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
    print("lost", flush=True)
cluster.shutdown()
"""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "120",  # a door opens late where other tests keep the cores busy
}
FRAMES = {"0": 3, "1": 10, "2": 10, "3": 100, "4": 100, "5": 3}


class Machines:
    """A running cluster."""

    def __init__(self, process: "subprocess.Popen[str]", client: int) -> None:
        self._process = process
        self.address = self._answer()
        self.client = f"ray://127.0.0.1:{client}"

    def lose_one(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()
        assert self._answer() == "lost"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def is_open(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """Two machines with a core each, and a head without."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    command = [sys.executable, "-c", CLUSTER, str(port)]
    with subprocess.Popen(command, env={**os.environ, **QUIET}, start_new_session=True, **pipes) as process:
        try:
            cluster = Machines(process, port)
            until(lambda: is_open(port), process)  # the head opens it when it has time
            yield cluster
            process.stdin.close()
            process.wait(30)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_video: Callable[..., Path]) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("videos").mkdir()
    for name, count in FRAMES.items():
        frames = np.random.default_rng(int(name)).integers(0, 256, (count, 64, 96, 3), dtype=np.uint8)
        make_video(tmp_path / f"videos/{name}.mp4", list(frames))
    return tmp_path


def started(cluster: str, videos: str, *options: str) -> "subprocess.Popen[str]":
    arguments = [videos, "-o", "out", "--model", "tiny", "--num-updates", "1", "--scale", "2", *options]
    return subprocess.Popen(
        [sys.executable, "-m", "protoformer", "batch", "flow", *arguments, "--cluster", cluster],
        env={**os.environ, **QUIET},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(happens: Callable[[], Any], running: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 180
    while not happens():
        assert running.poll() is None and time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def finished() -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in Path("out/.batch/ledger").glob("*.json")}


def goes() -> list[str]:
    """The videos that are being worked on, once for every go at them."""
    names = []
    for path in Path("out/.batch/work").glob("*/video"):
        with suppress(FileNotFoundError):  # it was finished since it was listed
            names.append(Path(path.read_text()).name)
    return sorted(names)


def written() -> dict[str, int]:
    return {name: Path("out", name.removesuffix(".json")).stat().st_mtime_ns for name in finished()}


@pytest.mark.long
def test_a_lost_machine_costs_no_video(place: Path, machines: Machines) -> None:
    # Two videos go in by the cluster's other door, and are finished for whoever comes later.
    first = started(machines.client, "videos/[05].mp4")
    out, err = first.communicate(timeout=300)
    assert first.returncode == 0 and out.startswith("2 videos: 2 done, 0 finished before, 0 failed; 4 frames in "), err
    # A video at its time limit costs itself alone, and so does the next, though each takes its worker along.
    short = started(machines.address, "videos/[12].mp4", "--max-minutes-per-video", "0.0001", "--workers", "1")
    out, err = short.communicate(timeout=300)
    assert short.returncode == 1 and out.startswith("2 videos: 0 done, 0 finished before, 2 failed; "), err
    assert err.count("minutes and was stopped") == 2 and "Traceback" not in err, err
    running = started(machines.address, "videos/*.mp4")
    try:
        until(lambda: goes() == ["3.mp4", "4.mp4"], running)
        machines.lose_one()
        before = written()
        until(lambda: len(goes()) > len(set(goes())), running)  # one is begun again, beside what its first go left
        out, err = running.communicate(timeout=300)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 0 and "Traceback" not in err, err
    assert out.startswith("6 videos: 4 done, 2 finished before, 0 failed; 216 frames in ")
    with Path("out/summary.csv").open(newline="") as file:
        assert [(row["output"], row["status"], row["frames"]) for row in csv.DictReader(file)] == [
            (f"{name}.mp4", "skipped" if count == 3 else "done", str(count - 1)) for name, count in FRAMES.items()
        ]
    # Once each: what was finished is as it was, and what the lost machine was at has been done by the other.
    after = written()
    assert sorted(before) == [f"{name}.mp4.json" for name in "0125"]
    assert len(after) == 6 and before.items() <= after.items()
    assert not Path("out/.batch/work").exists()
    for name, count in FRAMES.items():
        assert len(list(open_video(f"out/{name}.mp4").frames())) == count - 1


@pytest.mark.parametrize("failures", [2, 3])
def test_a_busy_cluster_is_asked_again(failures: int) -> None:
    asked: list[str] = []

    def init(address: str, **_: Any) -> None:
        asked.append(address)
        if len(asked) <= failures:
            raise ConnectionAbortedError("Initialization failure from server:\nTraceback\nRuntimeError: too slow.\n")

    busy = SimpleNamespace(is_initialized=lambda: False, init=init)
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = f"ray://127.0.0.1:{door.getsockname()[1]}"
        if failures == 2:
            assert cluster._connect(busy, address)
        else:
            with pytest.raises(InputError, match=r"no Ray cluster at .* \(RuntimeError: too slow\); start one"):
                cluster._connect(busy, address)
    assert asked == [address] * 3


def test_a_cluster_that_is_not_there_is_one_sentence(place: Path, protoformer: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for door in ("", "ray://"):
        outcome = protoformer(
            *("batch", "flow", "videos/*.mp4", "-o", "out", "--model", "tiny"), "--cluster", f"{door}127.0.0.1:{port}"
        )
        assert outcome.code == 2 and len(outcome.errors) == 1
        assert f"there is no Ray cluster at {door}127.0.0.1:{port} (" in outcome.errors[0]
