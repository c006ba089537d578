"""What each task learns from, wherever it comes from: scenes of the world, or samples of datasets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from protoformer.data.augmentation_light import relit_depth, relit_flow
from protoformer.training.dataset_mix import Vary, varied_depth, varied_flow
from protoformer.training.world_mix import Relight
from protoformer.world import DepthSample, FlowSample, Renderer
from protoformer.world.sample import Sample
from protoformer.world.tasks import depth_sample, flow_sample


@dataclass(frozen=True)
class SampleKind(Generic[Sample]):
    """One kind of sample. render: (renderer, look) to a batch of the world. vary: one sample of a dataset, varied; None
    where only the world knows what is to be learned. relight: a rendered batch in another light, by the draws of its
    scenes; None where scenes are taken as they are.
    """

    render: Callable[[Renderer, str], Sample]
    vary: Vary[Sample] | None
    relight: Relight[Sample] | None = None


FLOW: SampleKind[FlowSample] = SampleKind(flow_sample, varied_flow, relit_flow)
DEPTH: SampleKind[DepthSample] = SampleKind(depth_sample, varied_depth, relit_depth)
