"""A network as a file that runs without this package: ONNX, or a program of torch.export.

The graph takes two batches of images, B x 3 x H x W in [0, 1], and returns their flow, B x 2 x H x W in pixels, and its
confidence, B x 1 x H x W in [0, 1]. What is written was run beside the network itself and agreed with it.
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
"""What can be written, and how the names of such files end."""
NEEDED = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "pt2": ()}
"""Packages that a format needs: to write it, and to run what was written."""
OPSET = 20
"""Of ONNX: the first that knows GELU as one operator, which ONNX Runtime runs since 1.17."""
LARGEST_DIFFERENCE = 1e-2
"""Pixels, and confidence, by which a file may differ from the network that it was made of."""
CHECKED_SIZES = ((97, 130), (128, 192))
"""Height and width of the pairs on which a graph for any size is checked: one needs padding, one does not."""
AXES = ("batch", "channels", "height", "width")
INPUTS = {
    "first": "the first image, batch x 3 x height x width, RGB in [0, 1]",
    "second": "the second image, of the same shape",
}
OUTPUTS = {
    "flow": "motion from the first image to the second, batch x 2 x height x width, pixels, (right, down)",
    "confidence": "batch x 1 x height x width in [0, 1], how likely the flow is right to a pixel",
}
DESCRIPTION = "protoformer.json"
"""The entry of a .pt2 file that holds what an .onnx file has as its metadata."""

Runner = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Two images, B x 3 x H x W in [0, 1], to flow and confidence."""


class ExportError(RuntimeError):
    """A graph does not do what the network does, so it was not written."""


@dataclass(frozen=True)
class ExportResult:
    """What was written.

    size: (height, width) that the graph takes, or None for any from 64x64 on. difference: the largest between the file
    and the network on rendered pairs of the sizes `checked`, pixels. bytes: of the file.
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
    """What is exported: images as files have them in, flow and confidence out, padding inside."""

    def __init__(self, network: ProtoFormer, updates: int) -> None:
        super().__init__()
        self.network = network
        self.updates = updates

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """first, second: B x 3 x H x W in [0, 1], H and W from LEAST_SIDE on; returns flow and confidence."""
        # Costs on demand come in parts, and of how many a graph for any size cannot say.
        predicted = self.network.flow(
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
    """Write a model as a graph that others run, once it agrees with the model on rendered pairs.

    model: a model, or what `load` takes. format: "onnx" or "pt2"; None decides by the suffix. size: (height, width)
    that the graph is to take, or None for any of at least 64 pixels a side; any batch either way. updates: refinements,
    written down one by one. progress: called after every step. Raises ExportError, and writes nothing, if they
    disagree.
    """
    chosen, target = export_format(path, format), check_output(path)
    check_packages(chosen)
    check_size(size)
    check_num_updates(updates)
    name = None if isinstance(model, FlowPredictor) else Path(os.fspath(model)).name
    model = model if isinstance(model, FlowPredictor) else load(model, "cpu", task="flow")
    network = copy.deepcopy(model.network).cpu().float().eval()
    here = FlowPredictor(network, model.trained, torch.device("cpu"))
    _check_memory(network, size)
    updates = updates or network.config.flow.num_updates
    about = _about(network, name or _preset_of(network), model.trained, updates, size)
    sizes = CHECKED_SIZES if size is None else (size,)
    steps = _counted(progress, 2 + len(sizes))
    with _quiet():
        program = _program(FlowGraph(network, updates), size)
        next(steps)
        data = _onnx_bytes(program, about) if chosen == "onnx" else _pt2_bytes(program, about)
        next(steps)
        run = _onnx_runner(data) if chosen == "onnx" else _pt2_runner(data)
        difference = 0.0
        for each in sizes:
            difference = max(difference, _checked(run, here, updates, each))
            next(steps)
    write_atomically(target, data)
    return ExportResult(target, chosen, size, about["model"], updates, sizes, difference, len(data))


def export_format(path: str | os.PathLike[str], named: str | None = None) -> str:
    """What to write at a path: as named, or by its suffix."""
    if named is not None and named not in FORMATS:
        raise InputError(f"there is no export format {named!r}; choose one of {', '.join(FORMATS)}.")
    suffix = Path(path).suffix.lower()
    wanted = FORMATS if named is None else {named: FORMATS[named]}
    for format, ending in wanted.items():
        if suffix == ending:
            return format
    raise InputError(f"a model cannot be exported to {path} by that suffix; give {' or '.join(wanted.values())}.")


def check_packages(format: str) -> None:
    """Raise InputError unless everything is installed that a format needs."""
    missing = [name for name in NEEDED[format] if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"an export to {format} needs {' and '.join(missing)}, not installed here; "
            "run: pip install 'protoformer[export]'."
        )


def check_size(size: tuple[int, int] | None) -> None:
    """Raise InputError unless a graph can be made for (height, width), or for any size (None)."""
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
    """Refuse a fixed size whose costs, which a graph stores, would not fit the memory when it is checked."""
    height, width = size or CHECKED_SIZES[-1]
    levels = network.config.flow.corr_levels if network.config.flow.decoder == "recurrent" else 1
    needed = all_pairs_bytes((-(-height // FACTOR), -(-width // FACTOR)), levels)
    free = free_bytes(torch.device("cpu"))
    if free is not None and needed > free:
        raise InputError(
            f"a graph for {height}x{width} stores {describe_memory(needed)} of costs and {describe_memory(free)} "
            "of memory are free; choose a smaller size."
        )


def _about(
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


def _counted(progress: ProgressCallback | None, total: int) -> Iterator[None]:
    for done in range(1, total + 1):
        if progress:
            progress(done, total)
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporters say of their own making and of packages that nothing here needs."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


@torch.no_grad()
def _program(graph: FlowGraph, size: tuple[int, int] | None) -> ExportedProgram:
    open_axes = {0: Dim.DYNAMIC(min=1)}
    if size is None:
        # At 64 pixels a cost map is one patch of the cost memory, and torch takes sides of 1 for fixed ones.
        least = LEAST_SIDE + (graph.network.config.flow.decoder == "memory")
        open_axes |= {2: Dim.DYNAMIC(min=least), 3: Dim.DYNAMIC(min=least)}
    # Sizes of 1, and sides that are equal, would be taken for what every input has.
    example = torch.zeros(2, 3, *(size or CHECKED_SIZES[0]), dtype=torch.float32)
    return torch.export.export(graph, (example, example.clone()), dynamic_shapes=(open_axes, dict(open_axes)))


def _onnx_bytes(program: ExportedProgram, about: dict[str, str]) -> bytes:
    names = {"input_names": list(INPUTS), "output_names": list(OUTPUTS)}
    written = torch.onnx.export(program, opset_version=OPSET, dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
    assert written is not None
    proto = written.model_proto
    proto.producer_name, proto.producer_version = "protoformer", about["protoformer"]
    proto.doc_string = "Optical flow. " + ". ".join(f"{name}: {text}" for name, text in (INPUTS | OUTPUTS).items())
    for key, value in about.items():
        proto.metadata_props.add(key=key, value=value)
    # The axes inside are formulas of torch's symbols, which anybody can infer anew from names that say something.
    del proto.graph.value_info[:]
    for part in (proto.graph, *proto.graph.node, *proto.graph.initializer, *proto.graph.input, *proto.graph.output):
        del part.metadata_props[:]  # which lines of whose checkout it was made of
    for value in (*proto.graph.input, *proto.graph.output):
        value.doc_string = (INPUTS | OUTPUTS)[value.name]
        for axis, dimension in zip(AXES, value.type.tensor_type.shape.dim, strict=True):
            if dimension.dim_param:
                dimension.dim_param = axis
    data: bytes = proto.SerializeToString()
    return data


def _pt2_bytes(program: ExportedProgram, about: dict[str, str]) -> bytes:
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which lines of whose checkout it was made of
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={DESCRIPTION: json.dumps(about, indent=1)})
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


def _checked(run: Runner, model: FlowPredictor, updates: int, size: tuple[int, int]) -> float:
    """The largest difference of flow, pixels, on a rendered pair; ExportError if it or that of confidence is large."""
    from protoformer.synthetic.layers import random_scene

    pair = random_scene(size, seed=0).render()
    flow, confidence = run(pair.first, pair.second)
    expected = model.flow(pair.first, pair.second, num_updates=updates, zoom=1)
    off, unsure = float((flow[0] - expected.flow).abs().max()), float((confidence[0] - expected.confidence).abs().max())
    # Written so that NaN, which is neither more nor less, is refused as well.
    if not (off <= LARGEST_DIFFERENCE and unsure <= LARGEST_DIFFERENCE):
        raise ExportError(
            f"the graph differs from the model by {off:.2g} px, and by {unsure:.2g} in confidence, on a pair of "
            f"{size[0]}x{size[1]}, more than {LARGEST_DIFFERENCE:g}, so nothing was written; report it with the model."
        )
    return off
