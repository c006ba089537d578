"""Export of the flow network to files that run without this package: ONNX, or a torch.export program.

The graph takes two batches of images, B x 3 x H x W in [0, 1], and returns their flow, B x 2 x H x W in pixels, and its
confidence, B x 1 x H x W in [0, 1]. A file is only written after its output was compared with the network's.
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
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from protoformer.errors import InputError
from protoformer.flow.engine import check_num_updates, flow_confidence
from protoformer.flow.predictor import FlowPredictor
from protoformer.io.files import MAX_PIXELS, check_output, write_atomically
from protoformer.io.memory import describe_memory, free_bytes
from protoformer.loading import load
from protoformer.models.config import PRESETS
from protoformer.models.heads.correlation import all_pairs_bytes
from protoformer.models.heads.flow import LEAST_SIDE, normalize_images
from protoformer.models.heads.update import FACTOR
from protoformer.models.protoformer import ProtoFormer
from protoformer.models.runtime import ProgressCallback

FORMATS = {"onnx": ".onnx", "pt2": ".pt2"}
"""Formats and their suffixes."""
REQUIRED_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "pt2": ()}
"""Packages to write and to run a format."""
OPSET = 20
"""ONNX operator set: the first with GELU as one operator, supported by ONNX Runtime since 1.17."""
MAX_DIFFERENCE = 1e-2
"""Largest allowed difference between file and network, pixels and confidence."""
CHECKED_SIZES = ((97, 130), (128, 192))
"""(height, width) of the pairs that check a graph of dynamic size: with and without padding."""
AXES = ("batch", "channels", "height", "width")
INPUTS = {
    "first": "the first image, batch x 3 x height x width, RGB in [0, 1]",
    "second": "the second image, of the same shape",
}
OUTPUTS = {
    "flow": "motion from the first image to the second, batch x 2 x height x width, pixels, (right, down)",
    "confidence": "batch x 1 x height x width in [0, 1], probability that the error of a component is below one pixel",
}
DESCRIPTION = "protoformer.json"
"""Entry of a .pt2 file with the metadata that an .onnx file has as properties."""

Runner = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps two images, B x 3 x H x W in [0, 1], to flow and confidence."""


class ExportError(RuntimeError):
    """The exported graph differs from the network; nothing was written."""


@dataclass(frozen=True)
class ExportResult:
    """An exported file.

    Attributes:
        path: The file.
        format: A key of `FORMATS`.
        size: (height, width) of the graph's images, or None for any of at least 64x64.
        model: Name of the model.
        updates: Number of updates.
        checked: Sizes of the rendered pairs on which file and network were compared.
        difference: Largest difference of the flow, pixels.
        bytes: Size of the file.
    """

    path: Path
    format: str
    size: tuple[int, int] | None
    model: str
    updates: int
    checked: tuple[tuple[int, int], ...]
    difference: float
    bytes: int


class FlowGraph(nn.Module):
    """The exported module: images in [0, 1] to flow and confidence, including padding."""

    def __init__(self, network: ProtoFormer, updates: int) -> None:
        super().__init__()
        self.network = network
        self.updates = updates

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return flow and confidence of images, B x 3 x H x W in [0, 1], H and W at least LEAST_SIDE."""
        # Costs on demand are computed in a number of parts that depends on the size, so a dynamic graph stores them.
        predicted = self.network(
            normalize_images(first), normalize_images(second), num_updates=self.updates, low_memory=False
        )
        return predicted.flows[-1], flow_confidence(predicted.log_scales[-1])


def export_model(
    model: FlowPredictor | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    size: tuple[int, int] | None = None,
    updates: int | None = None,
    progress: ProgressCallback | None = None,
) -> ExportResult:
    """Export a flow model to a file, after comparing the file with the model on rendered pairs.

    Args:
        model: A predictor, or the argument of `load`.
        path: File to write.
        format: "onnx" or "pt2"; None decides by the suffix.
        size: (height, width) of the images, or None for any of at least 64x64; the batch size is always dynamic.
        updates: Number of updates, which are unrolled; None: as configured.
        progress: Called after every step.

    Raises:
        ExportError: If the outputs differ; nothing is written.
        InputError: If an argument is invalid or a package is missing.
    """
    format, target = export_format(path, format), check_output(path)
    check_packages(format)
    check_size(size)
    check_num_updates(updates)
    name = None if isinstance(model, FlowPredictor) else Path(os.fspath(model)).name
    model = model if isinstance(model, FlowPredictor) else load(model, "cpu", task="flow")
    network = copy.deepcopy(model.network).cpu().float().eval()
    reference = FlowPredictor(network, model.trained, torch.device("cpu"))
    _check_memory(network, size)
    updates = updates or network.config.flow.num_updates
    metadata = _metadata(network, name or _preset_of(network), model.trained, updates, size)
    sizes = CHECKED_SIZES if size is None else (size,)
    steps = _count_steps(progress, 2 + len(sizes))
    with _silence_exporters():
        program = _trace(FlowGraph(network, updates), size)
        next(steps)
        data = _onnx_bytes(program, metadata) if format == "onnx" else _pt2_bytes(program, metadata)
        next(steps)
        run = _onnx_runner(data) if format == "onnx" else _pt2_runner(data)
        difference = 0.0
        for checked_size in sizes:
            difference = max(difference, _max_difference(run, reference, updates, checked_size))
            next(steps)
    write_atomically(target, data)
    return ExportResult(target, format, size, metadata["model"], updates, sizes, difference, len(data))


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
            f"an export to {format} needs {' and '.join(missing)}, not installed here; "
            "run: pip install 'protoformer[export]'."
        )


def check_size(size: tuple[int, int] | None) -> None:
    """Raise InputError if (height, width) is not a valid size of a graph; None is the dynamic size."""
    if size is None:
        return
    text = "x".join(map(str, size))
    if len(size) != 2 or not all(isinstance(side, int) for side in size):
        raise InputError(f"the size {text} is not a height and a width in pixels; give two whole numbers.")
    if min(size) < LEAST_SIDE:
        raise InputError(f"the size {text} is too small; give a height and a width of {LEAST_SIDE} pixels or more.")
    if size[0] * size[1] > MAX_PIXELS:
        raise InputError(f"the size {text} is over the limit of {MAX_PIXELS} pixels; choose a smaller one.")


def _check_memory(network: ProtoFormer, size: tuple[int, int] | None) -> None:
    """Raise InputError if the costs that the graph stores do not fit in memory, where it is checked."""
    height, width = size or CHECKED_SIZES[-1]
    levels = network.config.flow.corr_levels if network.config.flow.decoder == "recurrent" else 1
    needed = all_pairs_bytes((-(-height // FACTOR), -(-width // FACTOR)), levels)
    free = free_bytes(torch.device("cpu"))
    if free is not None and needed > free:
        raise InputError(
            f"a graph for {height}x{width} stores {describe_memory(needed)} of costs and {describe_memory(free)} "
            "of memory are free; choose a smaller size."
        )


def _metadata(
    network: ProtoFormer, name: str, trained: bool, updates: int, size: tuple[int, int] | None
) -> dict[str, str]:
    from protoformer import __version__

    return {
        "protoformer": __version__,
        "task": "flow",
        "model": name,
        "trained": json.dumps(trained),
        "updates": str(updates),
        "size": "dynamic" if size is None else f"{size[0]}x{size[1]}",
        "config": json.dumps(network.config.as_dict()),
        "inputs": json.dumps(INPUTS),
        "outputs": json.dumps(OUTPUTS),
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
def _trace(graph: FlowGraph, size: tuple[int, int] | None) -> ExportedProgram:
    dynamic_axes = {0: Dim.DYNAMIC(min=1)}
    if size is None:
        # At 64 pixels a cost map is one patch of the cost memory, and torch assumes that sides of 1 are static.
        min_side = LEAST_SIDE + (graph.network.config.flow.decoder == "memory")
        dynamic_axes |= {2: Dim.DYNAMIC(min=min_side), 3: Dim.DYNAMIC(min=min_side)}
    # torch would assume that a batch of 1, or equal sides, are static.
    example = torch.zeros(2, 3, *(size or CHECKED_SIZES[0]), dtype=torch.float32)
    return torch.export.export(graph, (example, example.clone()), dynamic_shapes=(dynamic_axes, dict(dynamic_axes)))


def _onnx_bytes(program: ExportedProgram, metadata: dict[str, str]) -> bytes:
    names = {"input_names": list(INPUTS), "output_names": list(OUTPUTS)}
    written = torch.onnx.export(program, opset_version=OPSET, dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
    assert written is not None
    proto = written.model_proto
    proto.producer_name, proto.producer_version = "protoformer", metadata["protoformer"]
    proto.doc_string = "Optical flow. " + ". ".join(f"{name}: {text}" for name, text in (INPUTS | OUTPUTS).items())
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    # Inner shapes are formulas of torch's symbols; shape inference restores them with the names of the axes.
    del proto.graph.value_info[:]
    for part in (proto.graph, *proto.graph.node, *proto.graph.initializer, *proto.graph.input, *proto.graph.output):
        del part.metadata_props[:]  # source lines with local paths
    for value in (*proto.graph.input, *proto.graph.output):
        value.doc_string = (INPUTS | OUTPUTS)[value.name]
        for axis, dimension in zip(AXES, value.type.tensor_type.shape.dim, strict=True):
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

    def run(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        flow, confidence = session.run(list(OUTPUTS), {"first": first.numpy(), "second": second.numpy()})
        return torch.from_numpy(flow), torch.from_numpy(confidence)

    return run


def _pt2_runner(data: bytes) -> Runner:
    module = torch.export.load(io.BytesIO(data)).module()

    def run(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            flow, confidence = module(first, second)
        return flow, confidence

    return run


def _max_difference(run: Runner, model: FlowPredictor, updates: int, size: tuple[int, int]) -> float:
    """Return the largest difference of the flow on a rendered pair, pixels; ExportError if it is too large."""
    from protoformer.synthetic.layers import random_scene

    pair = random_scene(size, seed=0).render()
    flow, confidence = run(pair.first, pair.second)
    expected = model.flow(pair.first, pair.second, num_updates=updates, zoom=1)
    flow_error = float((flow[0] - expected.flow).abs().max())
    confidence_error = float((confidence[0] - expected.confidence).abs().max())
    # Written so that NaN is refused as well.
    if not (flow_error <= MAX_DIFFERENCE and confidence_error <= MAX_DIFFERENCE):
        raise ExportError(
            f"the graph differs from the model by {flow_error:.2g} px, and by {confidence_error:.2g} in confidence, "
            f"on a pair of {size[0]}x{size[1]}, more than {MAX_DIFFERENCE:g}, so nothing was written; report it with "
            "the model."
        )
    return flow_error
