"""What each task learns from, wherever it comes from: scenes of the world, or samples of datasets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from protoformer.training.dataset_mix import Vary, varied_depth, varied_flow
from protoformer.world import DepthSample, FlowSample, Renderer
from protoformer.world.sample import Sample
from protoformer.world.tasks import depth_sample, flow_sample


@dataclass(frozen=True)
class SampleKind(Generic[Sample]):
    """One kind of sample. render: (renderer, look) to a batch of the world. vary: one sample of a dataset, varied; None
    where only the world knows what is to be learned.
    """

    render: Callable[[Renderer, str], Sample]
    vary: Vary[Sample] | None


FLOW: SampleKind[FlowSample] = SampleKind(flow_sample, varied_flow)
DEPTH: SampleKind[DepthSample] = SampleKind(depth_sample, varied_depth)
