"""How steady a stabilized video is, from homographies: what it cost in view and shape, and how smooth its path is.

The three figures are those of Liu et al. (Bundled Camera Paths, 2013) as the field's usual script computes them, but
for its slips: there the rotation is read off two scales, all earlier croppings are inverted anew at each frame, complex
eigenvalues are compared by their real parts, and a missing homography is replaced by whichever came before.

A homography is 3 x 3, of points (x, y, 1) in pixels, and is divided by its last entry first. One that was not found is
NaN; one whose affine part mirrors or flattens the image cannot be true. Both are skipped, and counted.
"""

import math
from array import array
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from protoformer.stabilization.camera_motion import Features, homography
from protoformer.training.task import Tally

Place = tuple[float, float]
"""(x, y), pixels."""

LOWEST = 5
"""Frequencies that count as intended motion."""

SHORTEST = 2 * (LOWEST + 1)
"""Motions of which a path must be made to have any higher frequency."""

TELLING = 20 * LOWEST
"""Motions of which a path must be made for its stability to tell a steady hand from a shaky one: the frequencies that
count as intended are then a tenth of all, and slower than most shake. In fewer, much shake counts as intended."""

LEAST_DEPTH = 0.5
"""What a homography divides the center by, where it is 1 in its origin: with less, no camera moved so in one frame."""

STILL = 1e-9
"""A signal, pixels or radians, that never leaves its mean by more than this does not move: it is all rounding."""


@dataclass(frozen=True)
class StabilityScores:
    """Scores of videos, averaged over videos; NaN where none had one. But for the last, 0 .. 1, more being better."""

    cropping: float
    """Mean over frames of 1 / scale of the input -> output homography, at most 1: 0.8 where the output shows a part of
    the input enlarged 1.25 times. The scale is sqrt(det) of the affine part, which a rotation leaves alone."""
    distortion: float
    """Least, over frames, ratio of the smaller to the larger eigenvalue, in modulus, of that affine part. The two are
    complex, and their ratio 1, where there is rotation enough."""
    distortion_singular: float
    """The same with singular values: 1 for similarities alone, less for any shear or stretch."""
    stability: float
    """The smaller of the two that follow, for each video, as in Liu et al."""
    stability_translation: float
    """Share of the energy of the path's distance from its origin that lies in its lowest five frequencies, the mean
    (frequency 0) left out of both. 1 where nothing moves. NaN of fewer than 12 motions: they have no sixth."""
    stability_rotation: float
    """The same of the path's angle."""
    stability_usual: float
    """What the script prints, and tables of others show: the mean of translation's and that of an angle which is read
    off the path's first column, so that shear and perspective enter it."""
    acceleration: float
    """Mean length of the change of velocity from one motion to the next, pixels a frame, less being better; velocity is
    how far the center of a frame moves. It tells shake where slow motion was taken away too, and stability falls. As
    features show it: cuts and misses of theirs count."""
    videos: int = field(kw_only=True)
    """Videos with at least one of these scores."""
    frames: int = field(kw_only=True)
    """Frames of all videos."""
    skipped_frames: int = field(kw_only=True)
    """Frames without a usable input -> output homography: they count in neither cropping nor distortion."""
    skipped_motions: int = field(kw_only=True)
    """Motions between output frames without a usable homography: the path goes on without them."""

    @property
    def is_telling(self) -> bool:
        """Of one video: whether it is long enough for its stability to mean something by itself."""
        return self.frames - 1 - self.skipped_motions >= TELLING


def stability_scores(input_to_output: Tensor, output_motions: Tensor, center: Place = (0.0, 0.0)) -> StabilityScores:
    """Scores of one video of T frames.

    input_to_output: T x 3 x 3, from each input frame to the output frame made of it. output_motions: (T - 1) x 3 x 3,
    from each output frame to the next. Pixels; NaN where not found. center: (x, y) of an output frame's, pixels, for
    the acceleration alone; by default the origin, which turns move.
    """
    row, counts = video_scores(input_to_output, output_motions, center)
    return mean_stability_scores(Tally.of_rows(row[None]).total(), counts)


def camera_path(motions: Tensor) -> Tensor:
    """Where a chain of motions (n x 3 x 3) has led after each: C_t = C_(t-1) F_t, as in Bundled Camera Paths."""
    places, place = [], torch.eye(3, dtype=motions.dtype, device=motions.device)
    for motion in motions:
        place = place @ motion
        place = place / place[2, 2]
        places.append(place)
    return torch.stack(places) if places else motions


def path_signals(path: Tensor) -> tuple[Tensor, Tensor]:
    """A path (n x 3 x 3) as two signals over time: distance from the origin, pixels, and angle, radians: n and n.

    The angle is that of the rotation nearest to the affine part, made continuous over full turns.
    """
    distance = path[:, :2, 2].norm(dim=1)
    angle = torch.atan2(path[:, 1, 0] - path[:, 0, 1], path[:, 0, 0] + path[:, 1, 1])
    return distance, _continuous(angle)


def _continuous(angle: Tensor) -> Tensor:
    """Angles (n), radians, that go on past a full turn instead of jumping back."""
    turn = 2 * math.pi
    step = angle.diff()
    return torch.cat((angle[:1], angle[:1] + (step - turn * (step / turn).round()).cumsum(dim=0)))


def low_frequency_share(signal: Tensor) -> float:
    """Energy of the five lowest frequencies of a signal (n) over that of all, frequency 0 left out of both.

    Each frequency counts once, up to and including the fastest (a shake that alternates from frame to frame).
    """
    if len(signal) < SHORTEST:
        return math.nan
    away = signal - signal.mean()
    if away.abs().max() <= STILL:
        return 1.0
    energy = torch.fft.rfft(away).abs().square()[1:]
    return float(energy[:LOWEST].sum() / energy.sum())


def video_scores(input_to_output: Tensor, output_motions: Tensor, center: Place) -> tuple[Tensor, Tensor]:
    """The eight scores of a video, and its part in the four counts."""
    frames, shapes = len(input_to_output), (list(input_to_output.shape), list(output_motions.shape))
    if frames < 1 or shapes != ([frames, 3, 3], [frames - 1, 3, 3]):
        raise ValueError(f"T frames have T x 3 x 3 and (T - 1) x 3 x 3 homographies, not {shapes[0]} and {shapes[1]}")
    views, motions = _usable(input_to_output), _usable(output_motions)
    path = camera_path(motions)
    translation, rotation = (low_frequency_share(signal) for signal in path_signals(path))
    usual = (translation + low_frequency_share(_continuous(torch.atan2(path[:, 1, 0], path[:, 0, 0])))) / 2
    # Too short a path leaves both unknown, and then min, of two NaN, is NaN.
    stable = (min(translation, rotation), translation, rotation, usual)
    scores = (*_view_scores(views[:, :2, :2]), *stable, _acceleration(output_motions, center))
    row = torch.tensor(scores, dtype=torch.float64)
    counts = (int(not row.isnan().all()), frames, frames - len(views), frames - 1 - len(motions))
    return row, torch.tensor(counts)


def _usable(homographies: Tensor) -> Tensor:
    """Those homographies, with a last entry of 1, that a moving camera could have made: n x 3 x 3, float64."""
    scaled, usable = _judged(homographies)
    return scaled[usable]


def _judged(homographies: Tensor) -> tuple[Tensor, Tensor]:
    """Homographies with a last entry of 1, n x 3 x 3, float64, and which a moving camera could have made: n, bool."""
    scaled = homographies.double()
    scaled = scaled / scaled[:, 2:, 2:]
    finite = scaled.isfinite().flatten(1).all(dim=1)
    affine = torch.where(finite[:, None, None], scaled[:, :2, :2], 0.0)
    return scaled, finite & (torch.linalg.det(affine) > 0)


def _acceleration(motions: Tensor, center: Place) -> float:
    """Mean change of a center's velocity, pixels, between usable motions that follow each other; NaN of none."""
    scaled, usable = _judged(motions)
    moved = scaled @ scaled.new_tensor((*center, 1.0))
    velocity = moved[:, :2] / moved[:, 2:] - scaled.new_tensor(center)
    usable = usable & (moved[:, 2] > LEAST_DEPTH)
    both = usable[1:] & usable[:-1]
    return float(velocity.diff(dim=0)[both].norm(dim=1).mean()) if bool(both.any()) else math.nan


def _view_scores(affine: Tensor) -> tuple[float, float, float]:
    """Cropping, distortion and distortion by singular values of affine parts: n x 2 x 2; NaN of none."""
    if not len(affine):
        return math.nan, math.nan, math.nan
    cropping = (1 / torch.linalg.det(affine).sqrt()).mean().clamp_max(1)
    eigenvalues = torch.linalg.eigvals(affine).abs()
    singular = torch.linalg.svdvals(affine)
    ratios = (values.amin(dim=1) / values.amax(dim=1) for values in (eigenvalues, singular))
    distortion, distortion_singular = (float(ratio.min()) for ratio in ratios)
    return float(cropping), distortion, distortion_singular


def mean_stability_scores(total: Tally, seen: Tensor) -> StabilityScores:
    """The scores of all that was added up; seen: the four counts."""
    videos, frames, skipped_frames, skipped_motions = seen.tolist()
    return StabilityScores(
        *total.means(), videos=videos, frames=frames, skipped_frames=skipped_frames, skipped_motions=skipped_motions
    )


@dataclass
class StabilityMeter:
    """Shown the frames of a clip one after the other, before and after; keeps homographies alone.

    views, motions: their nine entries one after the other. Many small arrays would lie scattered among the temporaries
    of each frame, whose memory could then not be used again.
    """

    views: "array[float]" = field(default_factory=lambda: array("d"))
    motions: "array[float]" = field(default_factory=lambda: array("d"))
    latest: Features | None = None

    def add(self, before: Features, after: Features) -> None:
        """Features of a frame as it was and as it is shown; the very same of one that was left alone."""
        self.views.extend((np.eye(3) if before is after else homography(before, after)).ravel().tolist())
        if self.latest is not None:
            self.motions.extend(homography(self.latest, after).ravel().tolist())
        self.latest = after

    def scores(self) -> StabilityScores:
        """The scores of all frames that were shown, one at least."""
        assert self.latest is not None
        return stability_scores(_stacked(self.views), _stacked(self.motions), self.latest.center)


def _stacked(entries: "array[float]") -> Tensor:
    return torch.tensor(entries, dtype=torch.float64).view(-1, 3, 3)
