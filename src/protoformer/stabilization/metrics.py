"""Stability metrics from homographies: cropping, distortion and stability of a stabilized video.

The three scores are those of Liu et al. (Bundled Camera Paths, 2013) as computed by the field's common script, without
its errors: it reads the rotation from two scales, inverts all earlier croppings again at each frame, compares complex
eigenvalues by their real parts, and replaces a missing homography by the previous one.

A homography is 3 x 3, for points (x, y, 1) in pixels, and is first divided by its last entry. One that could not be
estimated is NaN; one whose affine part has no positive determinant is not valid. Both are skipped and counted.
"""

import math
from array import array
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from protoformer.stabilization.camera_motion import Features, homography
from protoformer.viz.report import Tally

Point = tuple[float, float]
"""(x, y), pixels."""

NUM_LOW = 5
"""Number of frequencies that count as intended motion."""

MIN_MOTIONS = 2 * (NUM_LOW + 1)
"""Smallest number of motions of a path with any higher frequency."""

MIN_RELIABLE = 20 * NUM_LOW
"""Smallest number of motions for a reliable stability: the frequencies that count as intended are then a tenth of all,
and slower than most shake. In shorter paths much shake counts as intended."""

MIN_DENOMINATOR = 0.5
"""Smallest homogeneous denominator at the center, which is 1 at the origin; below, the homography is not plausible."""

STATIC_TOLERANCE = 1e-9
"""Largest deviation from the mean, pixels or radians, of a signal that counts as constant."""


@dataclass(frozen=True)
class StabilityScores:
    """Scores averaged over videos; NaN if undefined for all. Except for the acceleration, 0 .. 1, higher is better."""

    cropping: float
    """Mean over frames of 1 / scale of the input -> output homography, at most 1: 0.8 if the output shows a part of
    the input enlarged 1.25 times. The scale is sqrt(det) of the affine part, which is invariant to rotation."""
    distortion: float
    """Minimum over frames of the ratio of the smaller to the larger eigenvalue, in modulus, of that affine part. With
    enough rotation the two are complex conjugates, and the ratio is 1."""
    distortion_singular: float
    """The same with singular values: 1 for similarities only, less with any shear or stretch."""
    stability: float
    """The smaller of the following two, for each video, as in Liu et al."""
    stability_translation: float
    """Fraction of the energy of the path's distance from its origin in the lowest five frequencies, without the mean
    (frequency 0). 1 if nothing moves. NaN for fewer than 12 motions, which have no sixth frequency."""
    stability_rotation: float
    """The same for the path's angle."""
    stability_usual: float
    """Stability as in the common script and published tables: the mean of the translation's and that of an angle from
    the path's first column, which shear and perspective affect."""
    acceleration: float
    """Mean change of velocity from one motion to the next, pixels per frame, lower is better; velocity is the
    displacement of the center of a frame. It measures shake even where slow motion is removed too, which lowers the
    stability. It includes cuts and errors of the feature matching."""
    videos: int = field(kw_only=True)
    """Number of videos with at least one of these scores."""
    frames: int = field(kw_only=True)
    """Number of frames of all videos."""
    skipped_frames: int = field(kw_only=True)
    """Number of frames without a valid input -> output homography, which cropping and distortion leave out."""
    skipped_motions: int = field(kw_only=True)
    """Number of motions between output frames without a valid homography, which the path leaves out."""

    @property
    def is_reliable(self) -> bool:
        """Whether a single video is long enough for a reliable stability."""
        return self.frames - 1 - self.skipped_motions >= MIN_RELIABLE


def stability_scores(input_to_output: Tensor, output_motions: Tensor, center: Point = (0.0, 0.0)) -> StabilityScores:
    """Score one video of T frames.

    `input_to_output`, T x 3 x 3, are the homographies from each input frame to its output frame, pixels, NaN if not
    estimated; `output_motions`, T - 1 x 3 x 3, those from each output frame to the next. `center` is the (x, y) of the
    center of an output frame, for the acceleration only; by default the origin, which rotations move.
    """
    row, counts = video_scores(input_to_output, output_motions, center)
    return mean_stability_scores(Tally.of_rows(row[None]).total(), counts)


def camera_path(motions: Tensor) -> Tensor:
    """Accumulate motions, n x 3 x 3, to a path: C_t = C_(t-1) F_t, as in Bundled Camera Paths."""
    poses, pose = [], torch.eye(3, dtype=motions.dtype, device=motions.device)
    for motion in motions:
        pose = pose @ motion
        pose = pose / pose[2, 2]
        poses.append(pose)
    return torch.stack(poses) if poses else motions


def path_signals(path: Tensor) -> tuple[Tensor, Tensor]:
    """Convert a path, n x 3 x 3, to two signals: distance from the origin, pixels, and angle, radians, n each.

    The angle is that of the rotation nearest to the affine part, unwrapped.
    """
    distance = path[:, :2, 2].norm(dim=1)
    angle = torch.atan2(path[:, 1, 0] - path[:, 0, 1], path[:, 0, 0] + path[:, 1, 1])
    return distance, _unwrap(angle)


def _unwrap(angle: Tensor) -> Tensor:
    """Unwrap angles (n), radians."""
    turn = 2 * math.pi
    step = angle.diff()
    return torch.cat((angle[:1], angle[:1] + (step - turn * (step / turn).round()).cumsum(dim=0)))


def low_frequency_fraction(signal: Tensor) -> float:
    """Return the fraction of the energy of a signal (n) in its five lowest frequencies, without frequency 0.

    Each frequency counts once, up to and including the Nyquist frequency.
    """
    if len(signal) < MIN_MOTIONS:
        return math.nan
    centered = signal - signal.mean()
    if centered.abs().max() <= STATIC_TOLERANCE:
        return 1.0
    energy = torch.fft.rfft(centered).abs().square()[1:]
    return float(energy[:NUM_LOW].sum() / energy.sum())


def video_scores(input_to_output: Tensor, output_motions: Tensor, center: Point) -> tuple[Tensor, Tensor]:
    """Return the eight scores of a video and its four counts, with the arguments of `stability_scores`."""
    frames, shapes = len(input_to_output), (list(input_to_output.shape), list(output_motions.shape))
    if frames < 1 or shapes != ([frames, 3, 3], [frames - 1, 3, 3]):
        raise ValueError(f"T frames need T x 3 x 3 and (T - 1) x 3 x 3 homographies, not {shapes[0]} and {shapes[1]}")
    views, motions = _select_valid(input_to_output), _select_valid(output_motions)
    path = camera_path(motions)
    translation, rotation = (low_frequency_fraction(signal) for signal in path_signals(path))
    usual = (translation + low_frequency_fraction(_unwrap(torch.atan2(path[:, 1, 0], path[:, 0, 0])))) / 2
    # For too short a path both are NaN, and so is their minimum.
    stability = (min(translation, rotation), translation, rotation, usual)
    scores = (*_view_scores(views[:, :2, :2]), *stability, _acceleration(output_motions, center))
    row = torch.tensor(scores, dtype=torch.float64)
    counts = (int(not row.isnan().all()), frames, frames - len(views), frames - 1 - len(motions))
    return row, torch.tensor(counts)


def _select_valid(homographies: Tensor) -> Tensor:
    """Return the valid homographies, divided by their last entry: n x 3 x 3, float64."""
    scaled, valid = _normalize(homographies)
    return scaled[valid]


def _normalize(homographies: Tensor) -> tuple[Tensor, Tensor]:
    """Return homographies divided by their last entry, n x 3 x 3, float64, and which of them are valid: n, bool."""
    scaled = homographies.double()
    scaled = scaled / scaled[:, 2:, 2:]
    finite = scaled.isfinite().flatten(1).all(dim=1)
    affine = torch.where(finite[:, None, None], scaled[:, :2, :2], 0.0)
    return scaled, finite & (torch.linalg.det(affine) > 0)


def _acceleration(motions: Tensor, center: Point) -> float:
    """Return the mean change of the center's velocity, pixels, between consecutive valid motions; NaN without any."""
    scaled, valid = _normalize(motions)
    moved = scaled @ scaled.new_tensor((*center, 1.0))
    velocity = moved[:, :2] / moved[:, 2:] - scaled.new_tensor(center)
    valid = valid & (moved[:, 2] > MIN_DENOMINATOR)
    both = valid[1:] & valid[:-1]
    return float(velocity.diff(dim=0)[both].norm(dim=1).mean()) if bool(both.any()) else math.nan


def _view_scores(affine: Tensor) -> tuple[float, float, float]:
    """Return cropping, distortion and distortion by singular values of affine parts, n x 2 x 2; NaN if n is 0."""
    if not len(affine):
        return math.nan, math.nan, math.nan
    cropping = (1 / torch.linalg.det(affine).sqrt()).mean().clamp_max(1)
    eigenvalues = torch.linalg.eigvals(affine).abs()
    singular = torch.linalg.svdvals(affine)
    ratios = (values.amin(dim=1) / values.amax(dim=1) for values in (eigenvalues, singular))
    distortion, distortion_singular = (float(ratio.min()) for ratio in ratios)
    return float(cropping), distortion, distortion_singular


def mean_stability_scores(total: Tally, counts: Tensor) -> StabilityScores:
    """Compute mean scores from the sum of the rows and of the counts of `video_scores`."""
    videos, frames, skipped_frames, skipped_motions = counts.tolist()
    return StabilityScores(
        *total.means(), videos=videos, frames=frames, skipped_frames=skipped_frames, skipped_motions=skipped_motions
    )


@dataclass
class StabilityMeter:
    """Accumulates the homographies of a clip, frame by frame.

    Attributes:
        views: Input -> output homographies, nine entries each. Many small arrays would fragment the heap between the
            temporaries of each frame.
        motions: Homographies between output frames, nine entries each.
        latest: Features of the latest output frame.
    """

    views: "array[float]" = field(default_factory=lambda: array("d"))
    motions: "array[float]" = field(default_factory=lambda: array("d"))
    latest: Features | None = None

    def add(self, before: Features, after: Features) -> None:
        """Add the features of a frame before and after; the same object if the frame is unchanged."""
        self.views.extend((np.eye(3) if before is after else homography(before, after)).ravel().tolist())
        if self.latest is not None:
            self.motions.extend(homography(self.latest, after).ravel().tolist())
        self.latest = after

    def scores(self) -> StabilityScores:
        """Return the scores of all frames; there must be at least one."""
        assert self.latest is not None
        return stability_scores(_to_matrices(self.views), _to_matrices(self.motions), self.latest.center)


def _to_matrices(entries: "array[float]") -> Tensor:
    return torch.tensor(entries, dtype=torch.float64).view(-1, 3, 3)
