"""ProtoFormer: a prototype-based encoder and four heads. Start reading here.

The method is that of "Prototypical Transformer as Unified Motion Learners" (Han et al., ICML 2024, arXiv 2406.01559),
called the paper throughout this package. The encoder is a pyramid like Twins (Chu et al., NeurIPS 2021) that computes
features of an image at 1/4 and 1/8 of its size. The attention layers of the pyramid are replaced by two steps:

- Cross-Attention Prototyping (`prototyping.py`) clusters the features of an image into K prototypes by N EM iterations.
- Latent Synchronization (`synchronization.py`) updates each feature with the prototype it is assigned to.

The equations of both steps in plain torch, without what makes them fast, stand in `kernels/reference.py`.

A head per task decodes these features. The encoders of all tasks have the same architecture. Tasks that were trained
together share the weights of one (`encoder`); a task that was trained separately has its own (`task_encoders`).

| method | head | input | output |
| --- | --- | --- | --- |
| `flow` | `heads/flow.py` | two frames | motion from frame 1 to frame 2, pixels |
| `depth` | `heads/depth.py` | an image | log depth of a canonical camera, which `metric_depth` converts to meters |
| `track` | `heads/tracking.py` | a target in a reference crop, a search crop | box in the search crop |
| `stabilize` | `heads/stabilization.py` | a frame, trajectories of its cells | offsets, stable to shaky frame, pixels |
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from protoformer.geometry.motion_fields import Trajectories
from protoformer.models.config import HEADS, TASKS, ModelConfig
from protoformer.models.encoder import STRIDES, Encoder, EncoderOutput
from protoformer.models.heads.depth import DepthHead, DepthPrediction, depth_padding
from protoformer.models.heads.flow import FlowHead, FlowPrediction, flow_padding
from protoformer.models.heads.stabilization import StabilizationHead, StabilizationPrediction
from protoformer.models.heads.tracking import Template, TrackingHead, TrackingPrediction
from protoformer.models.pretrained import PretrainedNetwork


class ProtoFormer(
    PretrainedNetwork,
    library_name="protoformer",
    tags=["optical-flow", "depth-estimation", "video"],
):
    """One encoder, and the heads of some or all tasks.

    All images are B x 3 x H x W in [-1, 1].

    Args:
        config: Configuration of the encoder and of the heads.
        tasks: The tasks to build heads for.
        separate_encoders: Tasks that have an encoder of their own, in `task_encoders`, because they were trained
            separately; the others share `encoder`.
    """

    def __init__(
        self, config: ModelConfig | None = None, tasks: Iterable[str] = TASKS, separate_encoders: Iterable[str] = ()
    ) -> None:
        super().__init__()
        self.config = config = ModelConfig() if config is None else config
        self.tasks = tuple(tasks)
        self.trained = False  # set where weights are loaded or trained
        self.encoder = Encoder(config.encoder)
        self.task_encoders = nn.ModuleDict({task: Encoder(config.encoder) for task in separate_encoders})
        self.flow_head = FlowHead(config) if "flow" in self.tasks else None
        self.depth_head = DepthHead(config) if "depth" in self.tasks else None
        self.tracking_head = TrackingHead(config) if "track" in self.tasks else None
        self.stabilization_head = StabilizationHead(config) if "stabilize" in self.tasks else None

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the head of a network with a single task; arguments and output are those of the task's method.

        Raises:
            ValueError: If the network has several tasks.
        """
        if len(self.tasks) != 1:
            methods = ", ".join(f"network.{task}(...)" for task in self.tasks)
            raise ValueError(f"this network has {len(self.tasks)} tasks; call the method of one of them: {methods}")
        return getattr(self, self.tasks[0])(*inputs, **options)

    def encoder_of(self, task: str) -> Encoder:
        """Return the encoder of a task."""
        return cast(Encoder, self.task_encoders[task]) if task in self.task_encoders else self.encoder

    def flow(
        self,
        frame1: Tensor,
        frame2: Tensor,
        num_updates: int | None = None,
        return_prototypes: bool = False,
        **options: Any,
    ) -> FlowPrediction:
        """Estimate the optical flow from the first to the second frames.

        Args:
            frame1: B x 3 x H x W.
            frame2: B x 3 x H x W.
            num_updates: Number of recurrent updates; by default as configured.
            return_prototypes: Also return the prototypes of the first frames.
            **options: `init_flow`, `return_all`, `low_memory` and `progress` of `FlowHead`.

        Raises:
            ValueError: If the shapes of the frames or of the initial flow do not fit.
        """
        if frame1.shape != frame2.shape or frame1.dim() != 4 or frame1.shape[1] != 3:
            shapes = f"{tuple(frame1.shape)} and {tuple(frame2.shape)}"
            raise ValueError(f"flow needs two image batches of the same shape, B x 3 x H x W, not {shapes}")
        init_flow = options.get("init_flow")
        if init_flow is not None and init_flow.shape != (frame1.shape[0], 2, *frame1.shape[2:]):
            raise ValueError(f"the initial flow must be B x 2 x H x W like the images, not {tuple(init_flow.shape)}")
        padding, batch = flow_padding(frame1), frame1.shape[0]
        encoded = self.encoder_of("flow")(torch.cat((padding.pad(frame1), padding.pad(frame2))), return_prototypes)
        features = encoded.features[-1]
        prediction = self.decode_flow(frame1, features[:batch], features[batch:], num_updates, **options)
        return replace(
            prediction, prototypes=tuple(tuple(block.first(batch) for block in stage) for stage in encoded.prototypes)
        )

    def encode_flow_frame(self, frames: Tensor) -> Tensor:
        """Compute the features of frames for `decode_flow`; in a video, those of a frame serve two pairs.

        Args:
            frames: B x 3 x H x W.

        Returns:
            Features of the padded frames at 1/8, B x C x h x w.
        """
        features: Tensor = self.encoder_of("flow")(flow_padding(frames).pad(frames)).features[-1]
        return features

    def decode_flow(
        self, frame1: Tensor, features1: Tensor, features2: Tensor, num_updates: int | None = None, **options: Any
    ) -> FlowPrediction:
        """Estimate the flow from features of `encode_flow_frame`; the arguments are those of `FlowHead`."""
        prediction: FlowPrediction = self._head("flow")(frame1, features1, features2, num_updates, **options)
        return prediction

    def depth(
        self,
        images: Tensor,
        center: Tensor | None = None,
        num_updates: int | None = None,
        return_prototypes: bool = False,
        **options: Any,
    ) -> DepthPrediction:
        """Estimate the log depth of images in a canonical camera; `heads.depth.metric_depth` converts it to meters.

        Args:
            images: B x 3 x H x W, any size.
            center: B x 2, principal point (x, y), pixels; by default the middle of the images.
            num_updates: Number of recurrent updates; by default as configured.
            return_prototypes: Also return the prototypes of the encoder.
            **options: `return_all` and `progress` of `DepthHead`.

        Raises:
            ValueError: If `images` is not B x 3 x H x W.
        """
        if images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"depth needs a batch of images, B x 3 x H x W, not {tuple(images.shape)}")
        encoded = self.encoder_of("depth")(depth_padding(images).pad(images), return_prototypes)
        prediction: DepthPrediction = self._head("depth")(images, encoded.features, center, num_updates, **options)
        return replace(prediction, prototypes=encoded.prototypes)

    def track(self, reference: Tensor, boxes: Tensor, search: Tensor) -> TrackingPrediction:
        """Locate the targets that boxes in reference crops show.

        Args:
            reference: B x 3 x R x R, reference crops, sides multiples of 8.
            boxes: B x 4, (x, y, w, h), pixels of the reference crop.
            search: B x 3 x S x S, search crops, sides multiples of 8.
        """
        return self.locate_target(self.embed_target(reference, boxes), search)

    def embed_target(self, reference: Tensor, boxes: Tensor) -> Template:
        """Embed the targets of reference crops for `locate_target`; arguments as in `track`."""
        features = self._encode_multiples_of_8("track", reference).features[-1]
        template: Template = self._head("track").embed(features, boxes)
        return template

    def locate_target(
        self, template: Template, search: Tensor, prior: Tensor | None = None, prior_strength: Tensor | None = None
    ) -> TrackingPrediction:
        """Locate embedded targets in search crops; the prior is that of `TrackingHead`."""
        features = self._encode_multiples_of_8("track", search).features
        prediction: TrackingPrediction = self._head("track")(features, template, prior, prior_strength)
        return prediction

    def stabilize(self, frames: Tensor, trajectories: Trajectories) -> StabilizationPrediction:
        """Predict the warps that move frames onto a stable camera path.

        A warp is the offset from each position of the stable frame to the shaky frame. The encoder is frozen; in the
        packaged weights it is the encoder of flow.

        Args:
            frames: B x 3 x H x W, the current frames, sides multiples of 8.
            trajectories: For each 8x8 cell of a current frame, its displacement to every frame of a temporal window and
                the confidence of that displacement.
        """
        with torch.no_grad():
            features = self._encode_multiples_of_8("stabilize", frames).features[-1]
        return self.predict_warps(features, trajectories)

    def predict_warps(self, features: Tensor, trajectories: Trajectories) -> StabilizationPrediction:
        """Predict warps as `stabilize`, from features of the encoder at 1/8, B x C x h x w."""
        prediction: StabilizationPrediction = self._head("stabilize")(features, trajectories)
        return prediction

    def _head(self, task: str) -> Any:
        head = getattr(self, HEADS[task])
        if head is None:
            raise ValueError(f"this network has heads for {', '.join(self.tasks)}, not for {task}")
        return head

    def _encode_multiples_of_8(self, task: str, images: Tensor) -> EncoderOutput:
        """Encode images whose sides are multiples of 8, so that they need no padding."""
        if images.dim() != 4 or images.shape[1] != 3 or images.shape[2] % STRIDES[-1] or images.shape[3] % STRIDES[-1]:
            raise ValueError(f"{task} needs B x 3 x H x W with H and W multiples of 8, not {tuple(images.shape)}")
        output: EncoderOutput = self.encoder_of(task)(images)
        return output


def build_network(config: ModelConfig, *tasks: str, separate_encoders: Iterable[str] = ()) -> ProtoFormer:
    """Build a network with random weights; its parameters are counted before memory is allocated.

    Args:
        config: Configuration of the network.
        *tasks: Its tasks, names of `TASKS`.
        separate_encoders: As in `ProtoFormer`.

    Raises:
        InputError: If the network would have more parameters than `pretrained.MAX_PARAMETERS`.
    """
    return ProtoFormer.build(config, tasks, tuple(separate_encoders))
