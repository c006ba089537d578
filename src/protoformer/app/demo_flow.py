"""The demonstration's sections on optical flow, and on the prototypes behind it."""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.files import color_wheel_legend, flow_to_color
from protoformer.inference import FlowModel, FlowResult
from protoformer.model.convergence import measure_convergence, plain_em
from protoformer.model.encoder import STRIDES
from protoformer.model.flow import normalised
from protoformer.model.tokens import size_of, tokens_of
from protoformer.show import Curve, Figure, Pixels, Section, assignment_picture, grey_picture, line_plot, picture
from protoformer.show.explanation_pictures import parts_pictures
from protoformer.world import FlowSample, World
from protoformer.world.tasks import flow_sample

SCENES = {"objects": (10, (288, 384)), "drive": (1, (240, 480)), "handheld": (0, (288, 384))}
"""Of each family that is shown: which scene, and its size in pixels."""
SEED = 4
WHITE = 5.0
"""Pixels of error that are white."""


@dataclass(frozen=True)
class ShownFlow:
    """A scene that the network has not seen, and what it found. sample: a batch of one."""

    family: str
    sample: FlowSample
    result: FlowResult

    @property
    def first(self) -> Tensor:
        """The first image, 3 x H x W."""
        return self.sample.first[0]

    @property
    def strongest(self) -> float:
        """The speed, pixels, at which colours are strongest: nearly all of the scene is slower."""
        return max(1.0, float(self.sample.flow[0].norm(dim=0).flatten().quantile(0.98)))

    def colours(self, flow: Tensor) -> Pixels:
        """A flow, 2 x H x W, on the scene's one scale of colours."""
        return flow_to_color(flow.permute(1, 2, 0).numpy(), self.strongest)

    @cached_property
    def parts(self) -> list[Pixels]:
        """Both images in the colours of the parts that move as one."""
        return parts_pictures(self.result.explain())


def shown_flow(model: FlowModel, family: str) -> ShownFlow:
    """One scene of a family, in its final pass, and the model's flow."""
    scene, size = SCENES[family]
    sample = flow_sample(World(family, seed=SEED, size=size).renderer([scene]), "final")
    return ShownFlow(family, sample, model.flow(sample.first[0], sample.second[0], prototypes=True))


def flow_section(shown: ShownFlow) -> Section:
    """Images, truth, what was found, and how far it is off."""
    truth, valid = shown.sample.flow[0], shown.sample.valid[0, 0]
    error = (shown.result.flow - truth).norm(dim=0) * valid
    off, none = (float(each[valid].mean()) for each in (error, truth.norm(dim=0)))
    return Section(
        f"Optical flow: {shown.family}",
        "A scene that the network has not seen, whose true motion is known exactly, as a camera would take it. The "
        f"motion found is wrong by {off:.2f} px on average; to say that nothing moves would be wrong by {none:.2f} px.",
        (
            Figure(picture(shown.first), "first image"),
            Figure(picture(shown.sample.second[0]), "second image"),
            Figure(shown.colours(truth), "true motion: hue is direction, strength is speed"),
            Figure(shown.colours(shown.result.flow), "motion that the network found"),
            Figure(grey_picture(shown.result.confidence[0]), "its confidence: white is sure to a pixel"),
            Figure(grey_picture(error / WHITE), f"its error: white is {WHITE:g} px"),
            Figure(
                color_wheel_legend(256),
                f"the colours: the rim is {shown.strongest:.0f} px; brown or greyish areas with hard edges lie beyond "
                "this scale: what moves farther has its hue darkened by a quarter",
                small=True,
            ),
        ),
    )


def prototypes_section(shown: ShownFlow) -> Section:
    """What moves as one, and the groups of every layer that it is made of."""
    captions = ("what moves as one in the first image", "the same parts where the motion carries them")
    figures = [Figure(part, caption) for part, caption in zip(shown.parts, captions, strict=True)]
    figures += [
        Figure(
            assignment_picture(found, shown.first, stride, seen=shown.result.seen),
            f"{found.centres.shape[1]} prototypes at 1/{stride} of the image as the network sees it",
        )
        for stride, stage in zip(STRIDES, shown.result.prototypes, strict=True)
        for found in stage
    ]
    return Section(
        "Prototypes",
        "Every layer groups the pixels around prototypes before it matches them. Prototypes follow texture as well as "
        "things, so that their maps look grainy: here each pixel has the colour of the prototype it belongs to most. "
        "Joined where one motion suits them, their pieces are the parts that move as one, shown first.",
        tuple(figures),
    )


def convergence_section(model: FlowModel, shown: ShownFlow) -> Section:
    """How EM settles on features of the trained encoder, with nothing learned in its way."""
    with torch.inference_mode():
        features = model.network.features(normalised(shown.sample.first).to(model.device)).features[0].cpu()
    tokens, size = F.normalize(tokens_of(features.float()), dim=-1), size_of(features)
    seen = measure_convergence(plain_em(tokens.shape[2], prototypes=100), tokens, size)
    numbers = range(13)
    likelihood = Curve("log-likelihood", tuple((float(n), seen.log_likelihood[n]) for n in numbers))
    distance = Curve("distance", tuple((float(n), seen.distances[n] / seen.distances[0]) for n in numbers))
    return Section(
        "Convergence",
        "EM on the features of this image, in the setting that theory speaks of (unit features, cosine, no residual): "
        f"the likelihood never falls, and a step leaves {seen.contraction:.2f} of the distance to the fixed point, on "
        "average.",
        (
            Figure(line_plot([likelihood], "EM iteration", "nats a pixel"), "log-likelihood of the pixels"),
            Figure(line_plot([distance], "EM iteration", "share left", log_y=True), "distance to the fixed point"),
        ),
    )
