"""Video stabilization with a stabilization network and a flow network."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import Self

import numpy as np
import torch

from protoformer.errors import InputError
from protoformer.models.config import preset
from protoformer.models.pretrained import packaged_weights
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.models.runtime import NetworkPredictor, Precision, ProgressCallback, use_half_precision
from protoformer.stabilization.analysis import ClipAnalysis, MotionAnalyzer, Shot, analyze_clip
from protoformer.stabilization.camera_motion import Motion
from protoformer.stabilization.online import OnlineOptions, StabilizedVideo
from protoformer.stabilization.planner import (
    Corrections,
    Frame,
    largest_crop,
    plan_online,
    plan_path,
    stabilized_motions,
)
from protoformer.stabilization.result import (
    CameraPath,
    StabilizationResult,
    StabilizedFrame,
    StoredFields,
    mean_acceleration,
)
from protoformer.video.clip import ClipFrames, Source, Span
from protoformer.video.pipeline import read_ahead
from protoformer.video.types import DEFAULT_FPS, VideoFrame
from protoformer.viz.report import SummaryRepr, predictor_summary

Crop = str | float
"""auto, none, or the fraction of the sides of a frame that is shown."""
DEFAULT_CROP = 0.96
"""Default crop, as a fraction of the sides, unless the clip shakes much."""
MIN_AUTO_CROP, CROP_STEP = 0.88, 0.005
"""Smallest automatic crop, for clips that shake much, and the step of the search for it."""
MAX_ACCELERATION = 2.9e-4
"""Mean acceleration, as a fraction of the width of a frame, up to which the automatic crop is not reduced further."""
MIN_CROP, MAX_CROP = 0.5, 0.999
"""Bounds of a user-defined crop; closer to 1 the room would be of the order of rounding errors."""
MAX_DELAY = 600
DEFAULT_DELAY = 5
"""Number of later frames that are read before a frame of a live source is corrected."""


@dataclass(frozen=True)
class StabilizeOptions:
    """Options of `StabilizationPredictor.stabilize`.

    Attributes:
        strength: Strength in [0, 1].
        crop: "auto", "none", or the fraction of the sides that is shown.
        tripod: Whether to approximate a static camera.
        delay: Number of later frames that are read before a frame is corrected; None if all are.
    """

    strength: float = 1.0
    crop: Crop = "auto"
    tripod: bool = False
    delay: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise InputError(f"a strength of {self.strength:g} is out of range; give one from 0 (no change) to 1.")
        is_fraction = isinstance(self.crop, (int, float)) and MIN_CROP <= self.crop <= MAX_CROP
        if not is_fraction and self.crop not in ("auto", "none"):
            raise InputError(
                f"a crop is auto, none, or the fraction of the sides that is shown, from {MIN_CROP:g} to "
                f"{MAX_CROP:g}, not {self.crop!r}; give one of these, or a strength of 0 to keep frames whole."
            )
        if self.delay is not None and not 0 <= self.delay <= MAX_DELAY:
            raise InputError(f"a delay of {self.delay} frames is out of range; give one from 0 to {MAX_DELAY}.")
        if self.delay is not None and self.tripod:
            raise InputError(
                "tripod mode needs the whole clip and cannot be combined with a delay; leave one of them out."
            )

    @property
    def crop_fraction(self) -> float:
        """Fraction of the sides within which corrections are planned; "auto" may choose a smaller one."""
        return float(self.crop) if not isinstance(self.crop, str) else DEFAULT_CROP


class StabilizationPredictor(NetworkPredictor, SummaryRepr):
    """Stabilizes videos.

    Attributes:
        flow: The flow network that estimates the motion, on the same device.
    """

    def __init__(
        self,
        network: ProtoFormer,
        trained: bool,
        device: torch.device | None = None,
        flow: ProtoFormer | None = None,
        precision: Precision | None = None,
    ) -> None:
        """Move the networks to a device.

        Args:
            network: Stabilization network.
            trained: Whether its weights are trained.
            device: Device to run on; by default a GPU if there is one.
            flow: Flow network; by default that of the package.
            precision: Precision of calls that give none.
        """
        super().__init__(network, trained, device, precision)
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
        fps: float | Fraction = DEFAULT_FPS,
        precision: Precision | None = None,
        progress: ProgressCallback | None = None,
    ) -> StabilizationResult:
        """Plan the stabilization of a clip; `frames` then renders it.

        Args:
            source: A video file, a folder of images, a file name pattern, or frames.
            strength: From 0, no change, to 1, as much as the crop allows.
            crop: "auto" shows as much of the frames as all of them contain: at least 96 % of the sides, or less, down
                to 88 %, if the clip would still shake visibly, but not with `tripod`; exactly 96 % with a delay. "none"
                leaves missing pixels black. A number is the fraction of the sides. A frame that needs more room
                temporarily shows up to 5 % less.
            tripod: Whether to approximate a static camera, as far as the crop allows.
            delay: Number of later frames that are read before a frame is corrected, for live use; None uses the whole
                clip. Local warps are left out if the window of the network extends further: a `grid` network uses no
                later frames, a `field` network as many as its window has.
            start: Start of the span, seconds.
            end: End of the span, seconds.
            fps: Frame rate of images, which have no timestamps, in frames per second.
            precision: "full" computes in float32, "half" computes products in bfloat16, "auto" uses bfloat16 on devices
                with hardware support. None: that of the predictor, else "auto".
            progress: Callback that receives the number of frames done and the estimated total.

        Returns:
            The corrections of each frame and the camera paths before and after.

        Raises:
            InputError: If an option is not valid, or the source cannot be read or has no frames in the span.
        """
        options = StabilizeOptions(strength, crop, tripod, delay)
        clip = ClipFrames(source, Span(start, end, 1, fps))
        if clip.live:
            raise InputError(f"{clip.name} can be read only once and has no end; use stabilize_video, with a delay.")
        timestamps: list[tuple[Fraction, int]] = []
        half = use_half_precision(self.device, self._choose_precision(precision))
        analysis = self._analyze(_iter_frames(clip, timestamps, progress), clip.name, half, delay)
        times, numbers = tuple(time for time, _ in timestamps), tuple(number for _, number in timestamps)
        return replace(self._result(analysis, options, times, numbers), clip=clip)

    __call__ = stabilize

    def frames(
        self, source: Source, result: StabilizationResult, fps: float | Fraction = DEFAULT_FPS
    ) -> Iterator[StabilizedFrame]:
        """Render the stabilized frames; `StabilizationResult.frames` does so from the source that it remembers.

        Args:
            source: The source that was stabilized.
            result: Result of `stabilize`.
            fps: Frame rate of images, as for `stabilize`.

        Yields:
            Each frame before and after.

        Raises:
            InputError: If the source has fewer frames than before.
        """
        return read_ahead(result.frames(ClipFrames(source, Span(result.times[0], None, 1, fps))))

    def stabilize_video(
        self,
        source: Source,
        *,
        strength: float = 1.0,
        crop: Crop = "auto",
        delay: int = DEFAULT_DELAY,
        start: float | Fraction | None = None,
        end: float | Fraction | None = None,
        fps: float | Fraction = DEFAULT_FPS,
        precision: Precision | None = None,
    ) -> StabilizedVideo:
        """Stabilize frame by frame, as suits cameras and streams: the source is read once.

        Args:
            source: As for `stabilize`, or a live source; see `open_video`.
            strength: As for `stabilize`.
            crop: As for `stabilize`; "auto" shows 96 % of the sides.
            delay: Number of later frames that are read before a frame is corrected; more are steadier.
            start: As for `stabilize`.
            end: As for `stabilize`.
            fps: As for `stabilize`.
            precision: As for `stabilize`.

        Returns:
            An iterable of `StabilizedFrame`; its `save` writes a video.
        """
        checked = StabilizeOptions(strength, crop, delay=delay)
        options = OnlineOptions(strength, checked.crop_fraction, crop == "none", delay)
        half = use_half_precision(self.device, self._choose_precision(precision))

        def make_analyzer(size: tuple[int, int]) -> MotionAnalyzer:
            return MotionAnalyzer(self.network, self.flow, self.device, size, half, delay)

        return StabilizedVideo(ClipFrames(source, Span(start, end, 1, fps)), options, make_analyzer)

    def to(self, device: str | torch.device) -> Self:
        """Move the predictor to another device, such as "cuda", in place; returns the predictor."""
        super().to(device)
        self.flow.to(self.device)
        return self

    def save(self, path: str | os.PathLike[str], half: bool = False, borrow: bool = False) -> None:
        """Write the weights atomically to a .safetensors file that `load` reads.

        `half` stores float16; `borrow` leaves out the encoder if it equals that of the packaged flow weights, which are
        then needed to read the file.
        """
        self.network.save_weights(path, trained=self.trained, half=half, borrow=borrow)

    def _repr_parts(self) -> tuple[str, ...]:
        return predictor_summary("stabilize", self.network, self.trained, self.device)

    def _analyze(self, frames: Iterator[VideoFrame], name: str, half: bool, delay: int | None) -> ClipAnalysis:
        first = next(frames, None)
        if first is None:
            raise InputError(f"{name} has no frame in this span; choose another.")
        analyzer = MotionAnalyzer(self.network, self.flow, self.device, first.size, half, delay)
        outputs = list(analyze_clip(analyzer, chain([first], frames)))
        shots = tuple(each for each in outputs if isinstance(each, Shot))
        return ClipAnalysis(
            first.size, shots, tuple(each for each in outputs if isinstance(each, int)), analyzer.fields
        )

    def _result(
        self, analysis: ClipAnalysis, options: StabilizeOptions, times: tuple[Fraction, ...], numbers: tuple[int, ...]
    ) -> StabilizationResult:
        frame, plans = _plan_shots(analysis, options)
        corrections = Corrections(
            np.concatenate([plan.turns for plan in plans]), np.concatenate([plan.shifts for plan in plans])
        )
        auto = options.crop == "auto" and options.delay is None
        before = [shot.motions for shot in analysis.shots]
        after = [stabilized_motions(motions, plan) for motions, plan in zip(before, plans, strict=True)]
        return StabilizationResult(
            size=analysis.size,
            corrections=corrections,
            local=StoredFields(analysis.local, options.strength) if options.strength else (),
            crop_fraction=largest_crop(corrections, frame) if auto else options.crop_fraction,
            border=options.crop == "none",
            path_before=_accumulate_paths(before),
            path_after=_accumulate_paths(after),
            cuts=tuple(shot.first for shot in analysis.shots[1:]),
            bridged=analysis.bridged,
            times=times,
            numbers=numbers,
            trained=self.trained,
        )


def _plan_shots(analysis: ClipAnalysis, options: StabilizeOptions) -> tuple[Frame, list[Corrections]]:
    """Plan the corrections of every shot within one crop.

    For "auto" on a whole clip it is the largest crop in which the clip is steady, or else the smallest one.
    """

    def plan_within(crop: float) -> tuple[Frame, list[Corrections]]:
        frame = Frame.of(analysis.size, 1 - options.strength * (1 - crop))
        return frame, [_plan_shot(shot, frame, options) for shot in analysis.shots]

    def is_steady(plans: list[Corrections]) -> bool:
        after = [stabilized_motions(shot.motions, plan) for shot, plan in zip(analysis.shots, plans, strict=True)]
        cuts = tuple(shot.first for shot in analysis.shots[1:])
        return mean_acceleration(_accumulate_paths(after), cuts) <= MAX_ACCELERATION * analysis.size[1]

    plan = plan_within(options.crop_fraction)
    fixed = options.crop != "auto" or options.tripod or options.delay is not None or not options.strength
    if fixed or is_steady(plan[1]):
        return plan
    too_large, small_enough = 0, round((DEFAULT_CROP - MIN_AUTO_CROP) / CROP_STEP)  # in steps from the default crop
    plan = plan_within(MIN_AUTO_CROP)
    if not is_steady(plan[1]):
        return plan
    while small_enough - too_large > 1:
        middle = (too_large + small_enough) // 2
        candidate = plan_within(DEFAULT_CROP - middle * CROP_STEP)
        if is_steady(candidate[1]):
            plan, small_enough = candidate, middle
        else:
            too_large = middle
    return plan


def _plan_shot(shot: Shot, frame: Frame, options: StabilizeOptions) -> Corrections:
    if not options.strength:
        return Corrections.none(shot.frames)
    if options.delay is not None:
        return plan_online(shot.motions, frame, options.delay)
    return plan_path(shot.motions, frame, options.tripod)


def _accumulate_paths(shots: list[tuple[Motion, ...]] | list[list[Motion]]) -> CameraPath:
    """Accumulate the motions of shots: T x 4, as in `StabilizationResult`."""
    parts = []
    for motions in shots:
        steps = [(m.shift.real, m.shift.imag, float(np.angle(m.turn)), float(np.log(np.abs(m.turn)))) for m in motions]
        parts.append(np.concatenate((np.zeros((1, 4)), np.cumsum(np.reshape(steps, (-1, 4)), axis=0))))
    return np.concatenate(parts)


def _iter_frames(
    clip: ClipFrames, timestamps: list[tuple[Fraction, int]], progress: ProgressCallback | None
) -> Iterator[VideoFrame]:
    """Yield the frames of a clip and append the time and number of each to `timestamps`."""
    for frame in clip:
        timestamps.append((frame.time, frame.number))
        yield frame
        if progress:
            progress(len(timestamps), max(clip.num_frames, len(timestamps)))


def _packaged_flow() -> ProtoFormer:
    """Load the packaged flow network; without packaged weights, build a small one with random weights."""
    path = packaged_weights("flow")
    return build_network(preset("tiny"), "flow") if path is None else ProtoFormer.load_weights(path)
