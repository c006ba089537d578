"""Kinds of text and of what programs write for programs: recipes, manifests, boxes, records, checkpoints, weights."""

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch

from protoformer.ablation.summary import RunResult, read_result, write_result
from protoformer.batch.jobs import Job
from protoformer.batch.ledger import Ledger, describe_output, file_stamp
from protoformer.batch.tasks import read_boxes_file
from protoformer.datasets.depth import Rgbd
from protoformer.datasets.manifest import ManifestDepth, ManifestFlow, ManifestStabilization, ManifestTracking
from protoformer.datasets.registry import peer_results
from protoformer.datasets.video import read_boxes
from protoformer.errors import InputError
from protoformer.io.formats import write_flo, write_mm_depth
from protoformer.io.image import write_image
from protoformer.models.config import preset
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.training import checkpoint as checkpoints
from protoformer.training.checkpoint import MANIFEST
from protoformer.training.recipe import packaged_recipes, read_recipe
from protoformer.training.run_folder import read_log
from tests.fuzz.images import pixels, written
from tests.fuzz.kind import Kind
from tests.fuzz.mutations import TEXT
from tests.fuzz.trees import json_values, safetensors_header, yaml_features, yaml_values

_BOXES = (b"1,2,3,4\n5,6,7,8\n", b"1\t2\t30.5\t4\nnan nan nan nan\n", b"0,0,4,0,4,4,0,4\n1,1,5,1,5,5,1,5\n")


_ROWS: dict[type, list[dict[str, str]]] = {
    ManifestFlow: [
        {"first": "a.png", "second": "frames/1.png", "flow": "a.flo", "valid": "a.png", "occlusion": ""},
        {"first": "a.png", "second": "a.png", "flow": "", "valid": "", "occlusion": ""},
    ],
    ManifestDepth: [{"image": "a.png", "depth": "16.png", "scale": "0.01", "fx": "9", "fy": "9", "cx": "4", "cy": "4"}],
    ManifestTracking: [{"frames": "frames", "boxes": "boxes.txt"}, {"frames": "frames/*.png", "boxes": "boxes.txt"}],
}
"""Rows of a manifest for each kind of dataset, whose files `_read_manifest` makes."""


def _read_manifest(path: Path) -> None:
    """Open a manifest as every kind of dataset, and read its samples; refused where none of them takes it."""
    folder = path.parent
    write_image(folder / "a.png", pixels())
    write_image(folder / "16.png", pixels()[..., 0].astype("uint16"))
    write_flo(folder / "a.flo", pixels()[..., :2].astype("float32"))
    (folder / "frames").mkdir()
    for number in range(2):
        write_image(folder / "frames" / f"{number}.png", pixels())
    (folder / "boxes.txt").write_bytes(b"1,2,3,4\n5,6,7,8\n")
    refusals = []
    for kind in (*_ROWS, ManifestStabilization):
        try:
            for _ in islice(kind(path), 4):
                pass
        except InputError as error:
            refusals.append(error)
    if len(refusals) > len(_ROWS):
        raise max(refusals, key=lambda error: len(str(error)))


def _csv_manifests() -> list[bytes]:
    found = []
    for rows in _ROWS.values():
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
        found.append(text.getvalue().encode())
    return found


def _json_manifests() -> list[bytes]:
    return [json.dumps(rows, indent=2).encode() for rows in _ROWS.values()]


def _recipes() -> list[bytes]:
    folder = Path(read_recipe.__code__.co_filename).parents[1] / "recipes"
    return [(folder / f"{name}.yaml").read_bytes() for name in packaged_recipes()]


_WRITTEN = 1_700_000_000_000_000_000
_JOB_OPTIONS = {"updates": 4, "zoom": None, "tile": "auto"}


def _ledger_job(folder: Path) -> Job:
    """A job whose video and output lie in a folder, and are the same every time."""
    (folder / "clip.mp4").write_bytes(b"video")
    os.utime(folder / "clip.mp4", ns=(_WRITTEN, _WRITTEN))
    (folder / "motion.mp4").write_bytes(b"motion")
    return Job(folder / "clip.mp4", folder, ("motion.mp4",), dict(_JOB_OPTIONS))


def _ledger_records() -> list[bytes]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        job = _ledger_job(folder)
        record = {
            "video": "clip.mp4",
            "stamp": file_stamp(job.video),
            "options": job.options,
            "outputs": [asdict(describe_output(folder, "motion.mp4"))],
            "frames": 4,
            "seconds": 1.5,
            "worker": "host:1",
        }
    return [json.dumps(record, indent=1).encode()]


def _read_ledger(path: Path) -> None:
    """Read a record as a batch does that goes on, also one that says it is of this very video and output."""
    folder = path.parent
    job = _ledger_job(folder)
    ledger = Ledger(folder)
    place = ledger.records / "motion.mp4.json"
    place.parent.mkdir(parents=True)
    text = path.read_bytes()
    place.write_bytes(text.replace(b'"clip.mp4"', json.dumps(str(job.video)).encode()))
    ledger.owners()
    ledger.finished(job)


def _peers() -> list[bytes]:
    table = {"flow": {"RAFT": {"Sintel/alley_1": {"epe": 0.5, "fl": 1.5}}}, "track": {"KCF": {"a": {"success": 0.1}}}}
    return [json.dumps(table).encode()]


def _read_peers(path: Path) -> None:
    path.rename(path.with_name("peers.json"))
    peer_results(path.parent)


def _logs() -> list[bytes]:
    return [b'{"event": "start", "step": 0, "steps": 9}\n{"event": "step", "step": 1, "loss": 0.5}\n{"event": "st']


def _results() -> list[bytes]:
    result = RunResult("key", 1, 10, 2.0, 1000, 0.5, 12.0, (64, 64), "cpu", {"world": {"epe": 1.0}})

    def write(path: Path) -> None:
        write_result(path.parent, result)
        (path.parent / "result.json").rename(path)

    return written(".json", write)


def _read_result(path: Path) -> None:
    path.rename(path.with_name("result.json"))
    read_result(path.parent, "key")


def _checkpoint(folder: Path) -> Path:
    tensors = {"model.weight": torch.arange(12.0).reshape(3, 4), "ema": torch.ones(3), "big": torch.ones(2000)}
    return checkpoints.save(folder, checkpoints.Checkpoint(7, tensors, {"rng": [1, 2]}))


def _checkpoint_manifests() -> list[bytes]:
    with TemporaryDirectory() as folder:
        return [(_checkpoint(Path(folder)) / MANIFEST).read_bytes()]


def _signed_values(data: bytes, rng: Random) -> bytes:
    """Change a value of a checkpoint's manifest, and give it the right checksum."""
    try:
        content = json.loads(json_values(data, rng))
        content.pop("sha256", None)
        content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return json.dumps(content).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        return data


def _read_checkpoint(path: Path) -> None:
    folder = _checkpoint(path.parent / "checkpoints")
    path.rename(folder / MANIFEST)
    checkpoints.load_newest(folder.parent, lambda _: None)
    checkpoints.load(folder)


def _weights() -> list[bytes]:
    def save(task: str) -> Callable[[Path], None]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = build_network(preset("tiny"), task)
        return lambda path: network.save_weights(path, trained=True, half=True)

    return written(".safetensors", save("flow"), save("stabilize"))


def _read_camera(path: Path) -> None:
    """Read the text of intrinsics beside an image and a depth."""
    scene = path.parent / "scene"
    for name in ("rgb", "depth"):
        (scene / name).mkdir(parents=True)
    write_image(scene / "rgb" / "0000.jpg", pixels())
    write_mm_depth(scene / "depth" / "0000.png", pixels()[..., 0] / 50.0)
    path.rename(scene / "intrinsics.txt")
    Rgbd(path.parent)[0]


TEXTS: tuple[Kind, ...] = (
    Kind(
        "recipe", ".yaml", _recipes, read_recipe, (*TEXT, yaml_values, yaml_values, yaml_values, yaml_features), share=2
    ),
    Kind("manifestcsv", ".csv", _csv_manifests, _read_manifest, TEXT, share=2),
    Kind(
        "manifestjson",
        ".json",
        _json_manifests,
        _read_manifest,
        (*TEXT, json_values, json_values, json_values),
        share=2,
    ),
    Kind("boxes", ".txt", lambda: _BOXES, lambda path: read_boxes(path, polygons=True), TEXT),
    Kind(
        "batchboxescsv", ".csv", lambda: [b"video,x,y,w,h\na.mp4,1,2,30.5,4\nb/c.mp4,5,6,7,8\n"], read_boxes_file, TEXT
    ),
    Kind(
        "batchboxesjson",
        ".json",
        lambda: [b'{"a.mp4": [[1, 2, 30.5, 4]], "b": [5, 6, 7, 8]}'],
        read_boxes_file,
        (*TEXT, json_values),
    ),
    Kind("intrinsics", ".txt", lambda: [b"500 500 14 9\n", b"fx fy cx cy: 5e2 500.0 14 9\n"], _read_camera, TEXT),
    Kind("ledger", ".json", _ledger_records, _read_ledger, (*TEXT, json_values, json_values, json_values)),
    Kind("peers", ".json", _peers, _read_peers, (*TEXT, json_values, json_values)),
    Kind("log", ".jsonl", _logs, read_log, (*TEXT, json_values)),
    Kind("result", ".json", _results, _read_result, (*TEXT, json_values, json_values)),
    Kind(
        "checkpoint",
        ".json",
        _checkpoint_manifests,
        _read_checkpoint,
        (*TEXT, json_values, _signed_values, _signed_values),
    ),
    Kind("weights", ".safetensors", _weights, ProtoFormer.load_weights, (safetensors_header,) * 5, share=2),
)
"""Text, JSON, YAML and safetensors."""
