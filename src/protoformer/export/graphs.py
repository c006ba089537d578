"""The graphs of each task: modules from plain tensors to plain tensors, and the inputs that check an exported file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import Dim

from protoformer.depth.engine import depth_confidence
from protoformer.depth.predictor import DepthPredictor
from protoformer.errors import InputError
from protoformer.flow.engine import flow_confidence
from protoformer.flow.predictor import FlowPredictor
from protoformer.geometry.motion_fields import CELL, chain_flows
from protoformer.io.memory import describe_memory, free_bytes
from protoformer.models.config import ModelConfig
from protoformer.models.heads.correlation import all_pairs_bytes
from protoformer.models.heads.depth import metric_depth
from protoformer.models.heads.flow import MIN_SIDE
from protoformer.models.heads.tracking import Template
from protoformer.models.heads.update import FLOW_STRIDE
from protoformer.models.protoformer import ProtoFormer
from protoformer.models.runtime import normalize_images
from protoformer.stabilization.analysis import working_size

CHECKED_SIZES = ((97, 130), (128, 192))
"""(height, width) of the images that check a graph of dynamic size: with and without padding."""
USUAL_FRAME = (1080, 1920)
"""(height, width) of the frames whose working size is the default of stabilization."""
Tensors = tuple[Tensor, ...]
Axes = tuple[dict[int, object], ...]
"""The dynamic axes of each input."""


@dataclass(frozen=True)
class Graph:
    """One graph of an export.

    Attributes:
        title: What it computes.
        module: The module to export.
        inputs: Descriptions of the inputs by name.
        outputs: Descriptions of the outputs by name.
        examples: Inputs to trace the graph with; a batch of 1, or equal sides, would be assumed to be static.
        axes: Dynamic axes of the inputs.
        checks: Inputs to compare file and network on, each after the (height, width) of its images.
        reference: Computes the expected outputs as the package does; None: the module itself.
        relative: Name of an output whose difference is relative to its value.
        ending: Added to the stem of the file's name.
    """

    title: str
    module: nn.Module
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    examples: Tensors
    axes: Axes
    checks: tuple[tuple[tuple[int, int], Tensors], ...]
    reference: Callable[..., Tensors] | None = None
    relative: str = ""
    ending: str = ""


class FlowGraph(nn.Module):
    """Images in [0, 1] to flow and confidence, including padding."""

    def __init__(self, network: ProtoFormer, num_updates: int) -> None:
        super().__init__()
        self.network = network
        self.updates = num_updates

    def forward(self, first: Tensor, second: Tensor) -> Tensors:
        """Return flow and confidence of images, B x 3 x H x W in [0, 1], H and W at least MIN_SIDE."""
        # Costs on demand are computed in a number of parts that depends on the size, so a dynamic graph stores them.
        predicted = self.network.flow(
            normalize_images(first), normalize_images(second), num_updates=self.updates, low_memory=False
        )
        return predicted.flows[-1], flow_confidence(predicted.log_scales[-1])


class DepthGraph(nn.Module):
    """Images in [0, 1] and focal lengths to depth in meters and confidence, including padding."""

    def __init__(self, network: ProtoFormer, num_updates: int) -> None:
        super().__init__()
        self.network = network
        self.updates = num_updates

    def forward(self, image: Tensor, focal: Tensor) -> Tensors:
        """Return depth and confidence of images, B x 3 x H x W, of focal lengths B, pixels."""
        predicted = self.network.depth(normalize_images(image), num_updates=self.updates)
        return metric_depth(predicted.log_depths[-1], focal), depth_confidence(predicted.log_scales[-1])


class TemplateGraph(nn.Module):
    """Reference crops and the boxes of their targets to the embedding of the targets."""

    def __init__(self, network: ProtoFormer) -> None:
        super().__init__()
        self.network = network

    def forward(self, reference: Tensor, box: Tensor) -> Tensors:
        """Return tokens, parts and summary of the targets in B x 4 boxes of crops, B x 3 x R x R in [0, 1]."""
        template = self.network.embed_target(normalize_images(reference), box)
        return template.tokens, template.parts, template.summary


class SearchGraph(nn.Module):
    """Search crops and embedded targets to boxes and scores."""

    def __init__(self, network: ProtoFormer) -> None:
        super().__init__()
        self.network = network

    def forward(self, search: Tensor, prior: Tensor, prior_strength: Tensor, *template: Tensor) -> Tensors:
        """Return boxes, B x 4, and scores, B, of targets in crops, B x 3 x S x S in [0, 1]."""
        predicted = self.network.locate_target(Template(*template), normalize_images(search), prior, prior_strength)
        return predicted.boxes[-1], predicted.score_logits.sigmoid()


class StabilizationGraph(nn.Module):
    """Frames in [0, 1] and the flow between the frames around them to warps."""

    def __init__(self, network: ProtoFormer) -> None:
        super().__init__()
        self.network = network
        self.past = network.config.stabilization.window[0]

    def forward(self, frame: Tensor, forward: Tensor, backward: Tensor) -> Tensors:
        """Return the warps, B x 2 x h x w, of frames, B x 3 x H x W, from flows, B x (T - 1) x 3 x h x w."""
        flows = (forward[:, :, :2], backward[:, :, :2], forward[:, :, 2:], backward[:, :, 2:])
        trajectories = chain_flows(*flows, self.past)
        return (self.network.stabilize(normalize_images(frame), trajectories).warps[-1],)


def make_graphs(
    task: str, network: ProtoFormer, size: tuple[int, int] | None, num_updates: int | None
) -> tuple[Graph, ...]:
    """Return the graphs of a task, the main one last.

    Args:
        task: "flow", "depth", "track" or "stabilize".
        network: Network of the task, on the CPU, in eval mode.
        size: (height, width) of the images; None: any size, or, for stabilization, that of 16:9 videos.
        num_updates: Number of updates of flow and depth; None: as configured.

    Raises:
        InputError: If the task has no such option.
    """
    if num_updates is not None and task not in ("flow", "depth"):
        raise InputError(f"a graph of {task} has no updates; leave their number out.")
    if task == "flow":
        return (_flow_graph(network, size, num_updates or network.config.flow.num_updates),)
    if task == "depth":
        return (_depth_graph(network, size, num_updates or network.config.depth.num_updates),)
    if task == "track":
        if size is not None:
            raise InputError("the crops of tracking have the size of the model; leave the size out.")
        return _tracking_graphs(network)
    return (_stabilization_graph(network, size or default_size(network.config)),)


def default_size(config: ModelConfig) -> tuple[int, int]:
    """Return the (height, width) of the frames of a stabilization graph for 16:9 videos."""
    return working_size(USUAL_FRAME, config.stabilization.max_pixels)


def _flow_graph(network: ProtoFormer, size: tuple[int, int] | None, num_updates: int) -> Graph:
    _check_memory(network.config, size)
    predictor = FlowPredictor(network, network.trained, torch.device("cpu"))

    def reference(first: Tensor, second: Tensor) -> Tensors:
        result = predictor.flow(first, second, num_updates=num_updates, zoom=1)
        return result.flow[None], result.confidence[None]

    # At 64 pixels a cost map is one patch of the cost memory, and torch assumes that sides of 1 are static.
    min_side = MIN_SIDE + (network.config.flow.decoder == "memory")
    axes = _image_axes(size, min_side)
    example = torch.zeros(2, 3, *(size or CHECKED_SIZES[0]), dtype=torch.float32)
    return Graph(
        title="Optical flow",
        module=FlowGraph(network, num_updates),
        inputs={
            "first": "the first image, batch x 3 x height x width, RGB in [0, 1]",
            "second": "the second image, of the same shape",
        },
        outputs={
            "flow": "motion from the first image to the second, batch x 2 x height x width, pixels, (right, down)",
            "confidence": "batch x 1 x height x width in [0, 1], probability that the error of a component is below "
            "one pixel",
        },
        examples=(example, example.clone()),
        axes=(axes, dict(axes)),
        checks=tuple((each, _rendered_pair(each)) for each in _checked_sizes(size)),
        reference=reference,
    )


def _depth_graph(network: ProtoFormer, size: tuple[int, int] | None, num_updates: int) -> Graph:
    example = torch.zeros(2, 3, *(size or CHECKED_SIZES[0]), dtype=torch.float32)
    focal = torch.tensor([150.0])
    predictor = DepthPredictor(network, network.trained, torch.device("cpu"))

    def reference(image: Tensor, focal: Tensor) -> Tensors:
        result = predictor.depth(image, focal=float(focal), num_updates=num_updates, mirrored=False, precision="full")
        return result.depth[None], result.confidence[None]

    checked = _checked_sizes(size)
    is_shrunk = max(height * width for height, width in checked) > network.config.depth.max_pixels
    return Graph(
        title="Metric depth",
        module=DepthGraph(network, num_updates),
        inputs={
            "image": "batch x 3 x height x width, RGB in [0, 1]; the optical center is the middle",
            "focal": "batch, focal length in pixels of the image",
        },
        outputs={
            "depth": "batch x 1 x height x width, meters along the optical axis",
            "confidence": "batch x 1 x height x width in [0, 1], probability that the error is below 10 %",
        },
        examples=(example, torch.full((2,), 150.0)),
        # At up to 64 pixels the coarsest map has sides of two, which torch takes for static.
        axes=(_image_axes(size, MIN_SIDE + 1), _batch_axis()),
        checks=tuple((each, (_rendered_pair(each)[0], focal)) for each in checked),
        reference=None if is_shrunk else reference,  # the predictor shrinks such images, and the graph does not
        relative="depth",
    )


def _tracking_graphs(network: ProtoFormer) -> tuple[Graph, Graph]:
    config = network.config.tracking
    sizes = config.template_size, config.search_size
    pairs = [torch.cat(_rendered_pair((side, side))) for side in sizes]
    boxes = [torch.tensor([[side / 4, side / 3, side / 2, side / 4]]).repeat(2, 1) for side in sizes]
    embedding = {
        "tokens": "batch x tokens x channels, the embedded target",
        "parts": "batch x parts x channels, unit vectors that are correlated with the search crop",
        "summary": "batch x channels, the mean of the target",
    }
    template = Graph(
        title="Embedding of tracked targets",
        module=TemplateGraph(network),
        inputs={
            "reference": f"crop around the target, batch x 3 x {sizes[0]} x {sizes[0]}, RGB in [0, 1]",
            "box": "batch x 4, box (x, y, w, h) of the target in pixels of the crop",
        },
        outputs=embedding,
        examples=(pairs[0], boxes[0]),
        axes=(_batch_axis(), _batch_axis()),
        checks=(((sizes[0], sizes[0]), (pairs[0], boxes[0])),),
        ending="-template",
    )
    with torch.no_grad():
        embedded = template.module(pairs[0], boxes[0])
    inputs = (pairs[1], boxes[1], torch.tensor([30.0, 0.0]), *embedded)
    search = Graph(
        title="Position of tracked targets",
        module=SearchGraph(network),
        inputs={
            "search": f"crop around the last position, batch x 3 x {sizes[1]} x {sizes[1]}, RGB in [0, 1]",
            "prior": "batch x 4, last box (x, y, w, h) in pixels of the crop",
            "prior_strength": "batch, penalty in nats of a corner one crop away from that of the prior; 0: no prior",
            **embedding,
        },
        outputs={
            "box": "batch x 4, box (x, y, w, h) of the target in pixels of the crop",
            "score": "batch, confidence in [0, 1] that the target is visible",
        },
        examples=inputs,
        axes=tuple(_batch_axis() for _ in inputs),
        checks=(((sizes[1], sizes[1]), inputs),),
    )
    return template, search


def _stabilization_graph(network: ProtoFormer, size: tuple[int, int]) -> Graph:
    if size[0] % CELL or size[1] % CELL:
        rounded = "x".join(str(max(MIN_SIDE, CELL * round(side / CELL))) for side in size)
        raise InputError(
            f"the sides of stabilized frames are multiples of {CELL} pixels; give a size such as {rounded}."
        )
    past, future = network.config.stabilization.window
    shape = (2, past + future, 1, size[0] // CELL, size[1] // CELL)
    random = torch.Generator().manual_seed(0)
    confidence = torch.rand(2, *shape, generator=random)
    # The camera shakes by some pixels; the parts of the image move by slightly more or less.
    shake = 4 * torch.randn(*shape[:2], 2, 1, 1, generator=random).expand(*shape[:2], 2, *shape[3:])
    flow = shake + torch.randn(*shape[:2], 2, *shape[3:], generator=random) / 4
    inputs = (
        torch.cat(_rendered_pair(size)),
        torch.cat((flow, confidence[0]), dim=2),
        torch.cat((-flow, confidence[1]), dim=2),
    )
    window = f"batch x {past + future} x 3 x {shape[3]} x {shape[4]}"
    return Graph(
        title="Stabilization of one frame",
        module=StabilizationGraph(network),
        inputs={
            "frame": f"batch x 3 x {size[0]} x {size[1]}, RGB in [0, 1]",
            "forward": f"{window}: flow from each of {past + future + 1} frames, {past} before the current one and "
            f"{future} after it, to the next: pixels (right, down) and confidence in [0, 1], means of 8 x 8 pixels; 0 "
            "where there is no frame",
            "backward": "of the same shape: flow from the later to the earlier frame of each pair",
        },
        outputs={
            "warp": f"batch x 2 x {shape[3]} x {shape[4]}, pixels (right, down): a position of the stable frame shows "
            "the position plus the warp of the frame"
        },
        examples=inputs,
        axes=tuple(_batch_axis() for _ in inputs),
        checks=((size, inputs),),
    )


def _batch_axis() -> dict[int, object]:
    return {0: Dim.DYNAMIC(min=1)}


def _image_axes(size: tuple[int, int] | None, min_side: int) -> dict[int, object]:
    sides = {} if size is not None else {axis: Dim.DYNAMIC(min=min_side) for axis in (2, 3)}
    return _batch_axis() | sides


def _checked_sizes(size: tuple[int, int] | None) -> tuple[tuple[int, int], ...]:
    return CHECKED_SIZES if size is None else (size,)


def _rendered_pair(size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Render a pair of images, 1 x 3 x H x W in [0, 1]."""
    from protoformer.synthetic.layers import random_scene

    pair = random_scene(size, seed=0).render()
    return pair.first, pair.second


def _check_memory(config: ModelConfig, size: tuple[int, int] | None) -> None:
    """Raise InputError if the costs that a flow graph stores do not fit in memory, where it is checked."""
    height, width = size or CHECKED_SIZES[-1]
    levels = config.flow.corr_levels if config.flow.decoder == "recurrent" else 1
    needed = all_pairs_bytes((-(-height // FLOW_STRIDE), -(-width // FLOW_STRIDE)), levels)
    free = free_bytes(torch.device("cpu"))
    if free is not None and needed > free:
        raise InputError(
            f"a graph for {height}x{width} stores {describe_memory(needed)} of costs and {describe_memory(free)} "
            "of memory are free; choose a smaller size."
        )
