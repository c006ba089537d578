"""Shaky clips made steady."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from protoformer.errors import InputError
from protoformer.models.config import preset
from protoformer.models.heads.flow import FlowNetwork
from protoformer.models.heads.stabilization import StabilizeNetwork
from protoformer.models.networks import build_network
from protoformer.models.pretrained import load_weights, packaged_weights, save_weights
from protoformer.models.runtime import Precision, ProgressCallback, use_half_precision
from protoformer.stabilization.analysis import ClipAnalysis, MotionAnalyzer, Shot, analyze_clip
from protoformer.stabilization.camera_motion import Motion
from protoformer.stabilization.planner import (
    Corrections,
    Frame,
    largest_crop,
    plan_online,
    plan_path,
    stabilized_motions,
)
from protoformer.stabilization.rendering import render_stabilized
from protoformer.stabilization.result import CameraPath, StabilizationResult, StoredFields, mean_acceleration
from protoformer.video.clip import ClipFrame, ClipFrames, Source, Span
from protoformer.video.types import DEFAULT_RATE, ImageArray
from protoformer.viz.text import SummaryRepr, predictor_summary

Crop = str | float
"""auto, none, or the share of a frame's sides that is shown."""
USUAL_SHARE = 0.96
"""What of a frame's sides is shown at least, unless somebody says otherwise or the clip shakes much."""
SHAKIEST_SHARE, SHARE_STEP = 0.88, 0.005
"""What is shown at least of a clip that shakes much, and the steps on the way there."""
STEADY = 2.9e-4
"""Mean change of velocity from frame to frame, of a frame's width, below which nobody asks for a smaller crop."""
LEAST_SHARE, MOST_SHARE = 0.5, 0.999
"""Bounds of what somebody may say: with a share nearer to 1, rounding would be all the room there is."""
LONGEST_DELAY = 600


@dataclass(frozen=True)
class StabilizeOptions:
    """How a clip is made steady; see `StabilizeModel.stabilize`."""

    strength: float = 1.0
    crop: Crop = "auto"
    tripod: bool = False
    delay: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise InputError(f"a strength of {self.strength:g} cannot be; give one from 0, nothing, to 1.")
        shown = isinstance(self.crop, (int, float)) and LEAST_SHARE <= self.crop <= MOST_SHARE
        if not shown and self.crop not in ("auto", "none"):
            raise InputError(
                f"a crop is auto, none, or the share of the sides that is shown, from {LEAST_SHARE:g} to "
                f"{MOST_SHARE:g}, not {self.crop!r}; give one of these, or a strength of 0 to keep frames whole."
            )
        if self.delay is not None and not 0 <= self.delay <= LONGEST_DELAY:
            raise InputError(f"a delay of {self.delay} frames cannot be; give one from 0 to {LONGEST_DELAY}.")
        if self.delay is not None and self.tripod:
            raise InputError("a camera on a tripod is found from the whole clip; leave out the delay or the tripod.")

    @property
    def share(self) -> float:
        """Of a frame's sides, within which corrections are planned; "auto" may come to a smaller one."""
        return float(self.crop) if not isinstance(self.crop, str) else USUAL_SHARE


class StabilizationPredictor(SummaryRepr):
    """A stabilizing network on a device, with the flow network that tells it how a clip moves.

    network: the network; trained: whether its weights are, which every result repeats. flow: the flow network; by
    default that of the package.
    """

    def __init__(
        self,
        network: StabilizeNetwork,
        trained: bool,
        device: torch.device | None = None,
        flow: FlowNetwork | None = None,
    ) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = network.eval().to(self.device)
        self.trained = trained
        self.flow = (_packaged_flow() if flow is None else flow).eval().to(self.device)

    def stabilize(
        self,
        source: Source,
        *,
        strength: float = 1.0,
        crop: Crop = "auto",
        tripod: bool = False,
        delay: int | None = None,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        rate: float | Fraction = DEFAULT_RATE,
        precision: Precision = "auto",
        progress: ProgressCallback | None = None,
    ) -> StabilizationResult:
        """How each frame of a clip is to be shown so that the camera moves smoothly; `frames` then makes the pictures.

        source: a video file, a folder of images, a pattern of their names, or frames. strength: 0 changes nothing, 1 as
        much as the crop allows. crop: "auto" is as much of the frames as all of them have: at least 96 % of their
        sides, or less, down to 88 %, where a clip would still shake visibly, though not with a tripod; 96 % with a
        delay; "none" leaves black what is not there; a share is taken as it is. A frame that needs more room for a
        while shows up to 5 % less. tripod: as if the camera stood still, as far as the crop allows. delay: decide
        each frame when so many after it are known, as a live camera must; None looks at the whole clip. What the
        network adds to a frame is left out if it would see more after it: a `grid` sees none, a `field` as many as its
        window has. start, end: seconds; rate: frames a second of images. progress: told of frames, and of about how
        many.
        """
        options = StabilizeOptions(strength, crop, tripod, delay)
        clip = ClipFrames(source, Span(start, end, 1, rate))
        moments: list[tuple[Fraction, int]] = []
        survey = self._surveyed(
            _told(clip, moments, progress), clip.name, use_half_precision(self.device, precision), delay
        )
        times, numbers = tuple(time for time, _ in moments), tuple(number for _, number in moments)
        return self._result(survey, options, times, numbers)

    __call__ = stabilize

    def frames(
        self, source: Source, result: StabilizationResult, rate: float | Fraction = DEFAULT_RATE
    ) -> Iterator[tuple[Fraction, ImageArray, ImageArray]]:
        """The time, the shaky and the steady picture, uint8 HxWx3, of every frame of a result, from the same source."""
        first, count = result.times[0], len(result.times)
        frames = iter(ClipFrames(source, Span(first, None, 1, rate)))
        for place in range(count):
            frame = next(frames, None)
            if frame is None:
                raise InputError(
                    f"the clip has {place} frames where it had {count} before; do not change it meanwhile."
                )
            picture = _picture(frame)
            yield frame.time, picture, render_stabilized(picture, result.view(place), result.border)

    def save(self, path: str | os.PathLike[str], half: bool = False, borrow: bool = False) -> None:
        """Write the weights to a .safetensors file that `load` reads, whole or not at all; half: in float16.

        borrow: without the encoder, where that is the one of flow's weights in the package, which must be there to read
        the file.
        """
        save_weights(self.network, path, trained=self.trained, task="stabilize", half=half, borrow=borrow)

    def _facts(self) -> tuple[str, ...]:
        return predictor_summary("stabilize", self.network, self.trained, self.device)

    def _surveyed(self, frames: Iterator[ClipFrame], name: str, half: bool, delay: int | None) -> ClipAnalysis:
        first = next(frames, None)
        if first is None:
            raise InputError(f"{name} has no frame in this span; choose another.")
        surveyor = MotionAnalyzer(self.network, self.flow, self.device, first.size, half, delay)
        found = list(analyze_clip(surveyor, _again(first, frames)))
        shots = tuple(each for each in found if isinstance(each, Shot))
        return ClipAnalysis(first.size, shots, tuple(each for each in found if isinstance(each, int)), surveyor.fields)

    def _result(
        self, survey: ClipAnalysis, options: StabilizeOptions, times: tuple[Fraction, ...], numbers: tuple[int, ...]
    ) -> StabilizationResult:
        frame, plans = _planned_shots(survey, options)
        corrections = Corrections(
            np.concatenate([plan.turns for plan in plans]), np.concatenate([plan.shifts for plan in plans])
        )
        auto = options.crop == "auto" and options.delay is None
        before = [shot.motions for shot in survey.shots]
        after = [stabilized_motions(motions, plan) for motions, plan in zip(before, plans, strict=True)]
        return StabilizationResult(
            size=survey.size,
            corrections=corrections,
            local=StoredFields(survey.local, options.strength) if options.strength else (),
            share=largest_crop(corrections, frame) if auto else options.share,
            border=options.crop == "none",
            path_before=_paths(before),
            path_after=_paths(after),
            cuts=tuple(shot.first for shot in survey.shots[1:]),
            bridged=survey.bridged,
            times=times,
            numbers=numbers,
            trained=self.trained,
        )


def _planned_shots(survey: ClipAnalysis, options: StabilizeOptions) -> tuple[Frame, list[Corrections]]:
    """The corrections of every shot, within one crop.

    For "auto", with the whole clip at hand, it is the largest in which the clip is steady, or else the smallest.
    """

    def within(share: float) -> tuple[Frame, list[Corrections]]:
        frame = Frame.of(survey.size, 1 - options.strength * (1 - share))
        return frame, [_planned(shot, frame, options) for shot in survey.shots]

    def steady(plans: list[Corrections]) -> bool:
        after = [stabilized_motions(shot.motions, plan) for shot, plan in zip(survey.shots, plans, strict=True)]
        cuts = tuple(shot.first for shot in survey.shots[1:])
        return mean_acceleration(_paths(after), cuts) <= STEADY * survey.size[1]

    found = within(options.share)
    fixed = options.crop != "auto" or options.tripod or options.delay is not None or not options.strength
    if fixed or steady(found[1]):
        return found
    too_large, small_enough = 0, round((USUAL_SHARE - SHAKIEST_SHARE) / SHARE_STEP)  # steps from the usual share
    found = within(SHAKIEST_SHARE)
    if not steady(found[1]):
        return found
    while small_enough - too_large > 1:
        middle = (too_large + small_enough) // 2
        tried = within(USUAL_SHARE - middle * SHARE_STEP)
        if steady(tried[1]):
            found, small_enough = tried, middle
        else:
            too_large = middle
    return found


def _planned(shot: Shot, frame: Frame, options: StabilizeOptions) -> Corrections:
    if not options.strength:
        return Corrections.none(shot.frames)
    if options.delay is not None:
        return plan_online(shot.motions, frame, options.delay)
    return plan_path(shot.motions, frame, options.tripod)


def _paths(shots: list[tuple[Motion, ...]] | list[list[Motion]]) -> CameraPath:
    """Motions of shots added up: T x 4."""
    parts = []
    for motions in shots:
        steps = [(m.shift.real, m.shift.imag, float(np.angle(m.turn)), float(np.log(np.abs(m.turn)))) for m in motions]
        parts.append(np.concatenate((np.zeros((1, 4)), np.cumsum(np.reshape(steps, (-1, 4)), axis=0))))
    return np.concatenate(parts)


def _told(
    clip: ClipFrames, moments: list[tuple[Fraction, int]], progress: ProgressCallback | None
) -> Iterator[ClipFrame]:
    """The frames of a clip; the time and number of each go into `moments`."""
    about = (clip.movie and clip.movie.info.frames) or 0
    for frame in clip:
        moments.append((frame.time, frame.number))
        yield frame
        if progress:
            progress(len(moments), max(about, len(moments)))


def _again(first: ClipFrame, rest: Iterator[ClipFrame]) -> Iterator[ClipFrame]:
    yield first
    yield from rest


def _picture(frame: ClipFrame) -> ImageArray:
    pixels = frame.pixels if frame.pixels.dtype == torch.uint8 else (255 * frame.pixels).round().byte()
    return np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())


def _packaged_flow() -> FlowNetwork:
    """The flow network of the package; a small one, with random weights, where it brings none."""
    path = packaged_weights("flow")
    network = build_network("flow", preset("tiny")) if path is None else load_weights(path).network
    assert isinstance(network, FlowNetwork)
    return network
