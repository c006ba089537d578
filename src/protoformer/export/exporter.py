"""Export of networks to files that run without this package: ONNX, or a torch.export program.

`graphs.py` defines inputs and outputs of each task. A file is only written after its output was compared with the
network's.
"""

import copy
import importlib.util
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from protoformer.errors import InputError, install_command
from protoformer.export.graphs import Graph, Tensors, default_size, make_graphs
from protoformer.flow.engine import check_num_updates
from protoformer.io.files import MAX_PIXELS, check_output, write_atomically
from protoformer.loading import PREDICTORS, Predictor, load
from protoformer.models.config import PRESETS, TASKS
from protoformer.models.heads.flow import MIN_SIDE
from protoformer.models.protoformer import ProtoFormer
from protoformer.models.runtime import ProgressCallback

FORMATS = {"onnx": ".onnx", "pt2": ".pt2"}
"""Formats and their suffixes."""
REQUIRED_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "pt2": ()}
"""Packages to write and to run a format."""
OPSET = 20
"""ONNX operator set: the first with GELU as one operator, supported by ONNX Runtime since 1.17."""
MAX_DIFFERENCE = 1e-2
"""Largest allowed difference of an output between file and network: of pixels, confidence, and meters per meter."""
AXES = ("batch", "channels", "height", "width")
DESCRIPTION = "protoformer.json"
"""Entry of a .pt2 file with the metadata that an .onnx file has as properties."""

Runner = Callable[..., Tensors]
"""Maps the inputs of a graph to its outputs."""


class ExportError(RuntimeError):
    """The exported graph differs from the network; nothing was written."""


@dataclass(frozen=True)
class ExportResult:
    """An exported file.

    Attributes:
        path: The file.
        format: A key of `FORMATS`.
        size: (height, width) of the graph's images, or None for any of at least 64x64 (or fixed crops, for tracking).
        model: Name of the model.
        num_updates: Number of updates; None for tasks without.
        checked: Sizes of the rendered images on which file and network were compared.
        difference: Largest difference of the first output, such as the flow in pixels.
        bytes: Size of the file.
        template: Tracking: the result for the graph that embeds the targets.
    """

    path: Path
    format: str
    size: tuple[int, int] | None
    model: str
    num_updates: int | None
    checked: tuple[tuple[int, int], ...]
    difference: float
    bytes: int
    template: "ExportResult | None" = None


def export_model(
    model: Any,
    path: str | os.PathLike[str],
    *,
    task: str | None = None,
    format: str | None = None,
    size: tuple[int, int] | None = None,
    num_updates: int | None = None,
    progress: ProgressCallback | None = None,
) -> ExportResult:
    """Export a model to a file, after comparing the file with the model on rendered images.

    Tracking has two graphs: `path` locates targets in search crops, and a second file, with "-template" added to the
    stem of its name, embeds the targets. The graph of stabilization is the network, which predicts the warp of a frame.

    Args:
        model: A predictor, or the argument of `load`.
        path: File to write.
        task: "flow", "depth", "track" or "stabilize"; None: that of the predictor, or of the name of the model.
        format: "onnx" or "pt2"; None decides by the suffix.
        size: (height, width) of the images, or None for any of at least 64x64, and, for stabilization, for the size at
            which 16:9 videos are analyzed; the batch size is always dynamic.
        num_updates: Number of updates of flow and depth, which are unrolled; None: as configured.
        progress: Called after every step.

    Raises:
        ExportError: If the outputs differ; nothing is written.
        InputError: If an argument is invalid or a package is missing.
    """
    format, target = export_format(path, format), check_output(path)
    check_packages(format)
    check_size(size)
    check_num_updates(num_updates)
    name, task, predictor = _resolve_model(model, task)
    network = copy.deepcopy(predictor.network).cpu().float().eval()
    graphs = make_graphs(task, network, size, num_updates)
    if num_updates is None and task in ("flow", "depth"):
        num_updates = network.config.flow.num_updates if task == "flow" else network.config.depth.num_updates
    if task == "stabilize":
        size = size or default_size(network.config)
    about = {
        "task": task,
        "model": name or _preset_of(network),
        "trained": json.dumps(predictor.trained),
        "updates": str(num_updates),
        "size": {"track": "crops"}.get(task, "dynamic") if size is None else f"{size[0]}x{size[1]}",
        "config": json.dumps(network.config.as_dict()),
    }
    steps = _count_steps(progress, sum(2 + len(graph.checks) for graph in graphs))
    files: list[tuple[Path, bytes]] = []
    result: ExportResult | None = None
    with _silence_exporters():
        for graph in graphs:
            file = target.with_stem(target.stem + graph.ending)
            data, difference = _export_graph(graph, format, about, steps)
            checked = tuple(checked_size for checked_size, _ in graph.checks)
            file = check_output(file)
            result = ExportResult(
                file, format, size, about["model"], num_updates, checked, difference, len(data), result
            )
            files.append((file, data))
    for file, data in files:
        write_atomically(file, data)
    assert result is not None
    return result


def _resolve_model(model: Any, task: str | None) -> tuple[str | None, str, Any]:
    """Return the name of a model, the task to export, and the predictor of the task."""
    if task is not None and task not in TASKS:
        raise InputError(f"{task!r} cannot be exported; choose one of {', '.join(TASKS)}.")
    name = None
    if isinstance(model, str | os.PathLike):
        name = Path(os.fspath(model)).name
        model = load(model, "cpu", task=task)
    if isinstance(model, Predictor):
        if task is None:
            raise InputError(f"this model is for several tasks; give the task to export, one of {', '.join(TASKS)}.")
        model = getattr(model, task)
    own = next((each for each, predictor in PREDICTORS.items() if isinstance(model, predictor)), None)
    if own is None or task not in (None, own):
        what = type(model).__name__ if own is None else f"a model of {own}"
        raise InputError(
            f"{what} cannot be exported as {task or 'a graph'}; give a model of one of {', '.join(TASKS)}."
        )
    return name, own, model


def _export_graph(graph: Graph, format: str, about: dict[str, str], steps: Iterator[None]) -> tuple[bytes, float]:
    """Return the content of the file of a graph, and the largest difference of its first output to the network's."""
    metadata = _metadata(graph, about)
    program = _trace(graph)
    next(steps)
    data = _onnx_bytes(program, graph, metadata) if format == "onnx" else _pt2_bytes(program, metadata)
    next(steps)
    run = _onnx_runner(data) if format == "onnx" else _pt2_runner(data)
    differences = []
    for size, inputs in graph.checks:
        differences.append(_first_difference(run, graph, size, inputs))
        next(steps)
    return data, max(differences)


def export_format(path: str | os.PathLike[str], format: str | None = None) -> str:
    """Return the format of a file, as given or by its suffix.

    Raises:
        InputError: If the format is unknown, or does not fit the suffix.
    """
    if format is not None and format not in FORMATS:
        raise InputError(f"there is no export format {format!r}; choose one of {', '.join(FORMATS)}.")
    suffix = Path(path).suffix.lower()
    candidates = FORMATS if format is None else {format: FORMATS[format]}
    for name, format_suffix in candidates.items():
        if suffix == format_suffix:
            return name
    raise InputError(f"a model cannot be exported to {path} by that suffix; give {' or '.join(candidates.values())}.")


def check_packages(format: str) -> None:
    """Raise InputError if a package that a format requires is not installed."""
    missing = [name for name in REQUIRED_PACKAGES[format] if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"an export to {format} needs {' and '.join(missing)}, not installed here: {install_command('export')}."
        )


def check_size(size: tuple[int, int] | None) -> None:
    """Raise InputError if (height, width) is not a valid size of a graph; None is the dynamic size."""
    if size is None:
        return
    text = "x".join(map(str, size))
    if len(size) != 2 or not all(isinstance(side, int) for side in size):
        raise InputError(f"the size {text} is not a height and a width in pixels; give two whole numbers.")
    if min(size) < MIN_SIDE:
        raise InputError(f"the size {text} is too small; give a height and a width of {MIN_SIDE} pixels or more.")
    if size[0] * size[1] > MAX_PIXELS:
        raise InputError(f"the size {text} is over the limit of {MAX_PIXELS} pixels; choose a smaller one.")


def _metadata(graph: Graph, about: dict[str, str]) -> dict[str, str]:
    from protoformer import __version__

    return {
        "protoformer": __version__,
        **about,
        "inputs": json.dumps(dict(graph.inputs)),
        "outputs": json.dumps(dict(graph.outputs)),
    }


def _preset_of(network: ProtoFormer) -> str:
    return next((name for name, config in PRESETS.items() if config == network.config), "custom")


def _count_steps(progress: ProgressCallback | None, total: int) -> Iterator[None]:
    for done in range(1, total + 1):
        if progress:
            progress(done, total)
        yield


@contextmanager
def _silence_exporters() -> Iterator[None]:
    """Hide log messages and warnings of torch's exporters, which do not concern the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@torch.no_grad()
def _trace(graph: Graph) -> ExportedProgram:
    return torch.export.export(graph.module, graph.examples, dynamic_shapes=_dynamic_shapes(graph))


def _dynamic_shapes(graph: Graph) -> tuple[Any, ...]:
    """Return the dynamic axes of the arguments of a module; those of *arguments are one tuple."""
    named = [each for each in signature(graph.module.forward).parameters.values() if each.kind != each.VAR_POSITIONAL]
    rest = graph.axes[len(named) :]
    return (*graph.axes[: len(named)], rest) if rest else graph.axes


def _onnx_bytes(program: ExportedProgram, graph: Graph, metadata: dict[str, str]) -> bytes:
    names = {"input_names": list(graph.inputs), "output_names": list(graph.outputs)}
    written = torch.onnx.export(program, opset_version=OPSET, dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
    assert written is not None
    descriptions = {**graph.inputs, **graph.outputs}
    proto = written.model_proto
    proto.producer_name, proto.producer_version = "protoformer", metadata["protoformer"]
    proto.doc_string = f"{graph.title}. " + ". ".join(f"{name}: {text}" for name, text in descriptions.items())
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    # Inner shapes are formulas of torch's symbols; shape inference restores them with the names of the axes.
    del proto.graph.value_info[:]
    for part in (proto.graph, *proto.graph.node, *proto.graph.initializer, *proto.graph.input, *proto.graph.output):
        del part.metadata_props[:]  # source lines with local paths
    for value in (*proto.graph.input, *proto.graph.output):
        value.doc_string = descriptions[value.name]
        for axis, dimension in zip(AXES, value.type.tensor_type.shape.dim, strict=False):
            if dimension.dim_param:
                dimension.dim_param = axis
    data: bytes = proto.SerializeToString()
    return data


def _pt2_bytes(program: ExportedProgram, metadata: dict[str, str]) -> bytes:
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # source lines with local paths
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={DESCRIPTION: json.dumps(metadata, indent=1)})
    return buffer.getvalue()


def _onnx_runner(data: bytes) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    names = [each.name for each in session.get_inputs()]

    def run(*inputs: Tensor) -> Tensors:
        arrays = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
        return tuple(torch.from_numpy(each) for each in session.run(None, arrays))

    return run


def _pt2_runner(data: bytes) -> Runner:
    module = torch.export.load(io.BytesIO(data)).module()

    def run(*inputs: Tensor) -> Tensors:
        with torch.no_grad():
            return tuple(module(*inputs))

    return run


@torch.no_grad()
def _first_difference(run: Runner, graph: Graph, size: tuple[int, int], inputs: Tensors) -> float:
    """Return the largest difference of the first output to the network's; ExportError if any output differs."""
    expected = (graph.reference or graph.module)(*inputs)
    differences = {}
    for name, output, value in zip(graph.outputs, run(*inputs), expected, strict=True):
        error = (output - value).abs()
        differences[name] = float((error / value if name == graph.relative else error).max())
    # Written so that NaN is refused as well.
    if not all(difference <= MAX_DIFFERENCE for difference in differences.values()):
        text = " and ".join(f"{difference:.2g} in {name}" for name, difference in differences.items())
        raise ExportError(
            f"the graph differs from the model by {text}, on images of {size[0]}x{size[1]}, more than "
            f"{MAX_DIFFERENCE:g}, so nothing was written; report it with the model."
        )
    return next(iter(differences.values()))
