"""Analysis pass over a clip: camera motion, cuts, and local warps beyond the camera motion.

Frames are processed one after the other at a reduced size. Only the motion of each frame stays in memory; local warps
go to a temporary file of a few kilobytes per frame.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.flow.engine import predict_flow
from protoformer.geometry.motion_fields import CELL, chain_flows, invert_flow
from protoformer.geometry.warps import shrink
from protoformer.io.image_input import to_float
from protoformer.models.heads.flow import MIN_SIDE
from protoformer.models.layers import match_layout
from protoformer.models.protoformer import ProtoFormer
from protoformer.models.runtime import CudaGraph, normalize_images
from protoformer.stabilization.camera_motion import Motion, centered_cells, fit_motion
from protoformer.stabilization.result import FieldFile, StoredField
from protoformer.video.types import VideoFrame

NUM_UPDATES = 4
"""Flow refinement iterations; the camera motion averages many vectors and needs no more."""
TEXTURE = 100.0
"""Smaller eigenvalue of the structure tensor, gray levels squared, at which the flow of a cell has a weight of 0.5."""
BLANK_STD = 3.0
"""Standard deviation below which a frame counts as blank, gray levels."""
CUT_INLIERS, CUT_COLOR_DISTANCE = 0.5, 0.35
"""There is a cut if a smaller fraction of the textured area fits one motion, and the color histograms differ more."""
BLUR_TEXTURE, BLUR_INLIERS = 0.1, 0.1
"""A frame is blurred if it has a smaller fraction of the texture of an earlier one, and a smaller fraction fits one
motion."""
MAX_BLURRED = 3
"""Longest run of frames that counts as a short blur; a longer one is analyzed as it is."""
BATCH_SIZE = 4
"""Windows in a batch of the network."""
MAX_LOCAL = 0.02
"""Largest local displacement, as a fraction of the width of a frame."""


@dataclass(frozen=True, eq=False)
class FramePair:
    """Motion from one frame to the next.

    Attributes:
        motion: Camera motion, in pixels of the full frame.
        flows: 2 x 3 x h x w, forward and backward: flow in pixels of the working frame, and confidence.
    """

    motion: Motion
    flows: Tensor


@dataclass(frozen=True, eq=False)
class Shot:
    """Frames between two cuts.

    Attributes:
        first: Index of its first frame in the clip.
        motions: Motion from each frame to the next, in pixels from the center of the full frame.
    """

    first: int
    motions: tuple[Motion, ...]

    @property
    def frames(self) -> int:
        """Number of frames."""
        return len(self.motions) + 1


@dataclass(frozen=True, eq=False)
class ClipAnalysis:
    """Analysis of a clip.

    Attributes:
        size: (height, width) of the frames, pixels.
        shots: Shots.
        bridged: Indices of frames whose motion was interpolated.
        local: One field per frame, 2 x h x w, pixels of the full frame: the predicted warp at the centers of cells
            minus the nearest similarity; empty if the network was not run.
    """

    size: tuple[int, int]
    shots: tuple[Shot, ...]
    bridged: tuple[int, ...]
    local: FieldFile


@dataclass(frozen=True, eq=False)
class FrameView:
    """A frame prepared for comparison.

    Attributes:
        number: Index of the frame in the clip.
        image: 3 x h x w in [-1, 1], the frame at working size, on the device of the networks.
        encoded: C x h / 8 x w / 8, features of the flow network.
        features: C x h / 8 x w / 8, features of the stabilization network; empty if it does not run.
        colors: Color histogram.
        texture: h / 8 x w / 8, 0 to 1.
    """

    number: int
    image: Tensor
    encoded: Tensor
    features: Tensor
    colors: StoredField
    texture: StoredField


@dataclass(frozen=True, eq=False)
class _Prepared:
    """Flows between two frames that were predicted together with those of other pairs.

    Attributes:
        numbers: Indices of both frames in the clip.
        flows: As in `FramePair`.
    """

    numbers: tuple[int, int]
    flows: Tensor


def working_size(size: tuple[int, int], pixels: int) -> tuple[int, int]:
    """Return the (height, width), in whole cells, at which frames are analyzed, with about `pixels` pixels at most."""
    scale = min(1.0, (pixels / (size[0] * size[1])) ** 0.5)
    height, width = (max(MIN_SIDE, CELL * round(side * scale / CELL)) for side in size)
    return height, width


class MotionAnalyzer:
    """Flow and stabilization networks prepared for frames of one size.

    Attributes:
        size: (height, width) of the frames, pixels.
        fields: Local warps of all frames so far.
        live: Whether frames are corrected with a delay.
        warps: Whether the stabilization network runs; its window must not exceed the delay.
        working: (height, width) at which frames are analyzed, pixels.
    """

    def __init__(
        self,
        network: ProtoFormer,
        flow: ProtoFormer,
        device: torch.device,
        size: tuple[int, int],
        half: bool,
        delay: int | None = None,
    ) -> None:
        """Prepare the networks.

        Args:
            network: Stabilization network.
            flow: Flow network.
            device: Device of both networks.
            size: (height, width) of the frames, pixels.
            half: Whether to compute products in bfloat16.
            delay: Number of later frames that are read before a frame is corrected; None if all are.
        """
        self.size = size
        self.fields = FieldFile()
        self.live = delay is not None
        self.warps = delay is None or network.config.stabilization.window[1] <= delay
        self.working = working_size(size, network.config.stabilization.max_pixels)
        self._network, self._flow, self._device, self._half = network, flow, device, half
        # The packaged networks share one encoder, so each frame is encoded once for both.
        self._shares_encoder = _have_same_weights(network.encoder_of("stabilize"), flow.encoder_of("flow"))
        self._encode: Callable[..., tuple[Tensor, ...]] = self._run_encoders
        self._decode: Callable[..., tuple[Tensor, ...]] = self._run_decoder
        if device.type == "cuda":
            self._encode, self._decode = CudaGraph(self._run_encoders), CudaGraph(self._run_decoder)
        self._centers = centered_cells(self.working[0] // CELL, self.working[1] // CELL, size)
        self._upscale = np.array([size[1] / self.working[1], size[0] / self.working[0]])
        self._num_frames = 0
        self._latest: FrameView | None = None
        self._prepared: list[_Prepared] = []

    @property
    def window(self) -> tuple[int, int]:
        """Numbers of frames before and after a frame in the window of the network."""
        return self._network.config.stabilization.window

    @cached_property
    def blank_features(self) -> Tensor:
        """Features of a black frame for the stabilization network, C x h / 8 x w / 8."""
        return self._encode(torch.full((1, 3, *self.working), -1.0, device=self._device))[1][0]

    def encode_frames(self, frames: Sequence[VideoFrame]) -> list[FrameView | None]:
        """Prepare the next frames of the clip for comparison, and predict the flows between neighbors.

        Args:
            frames: The frames; several at a time take less time.

        Returns:
            One view per frame; None if the frame is blank.
        """
        smalls = torch.cat([_resize(frame.pixels[None], self.working) for frame in frames])
        arrays = (255 * smalls).byte().permute(0, 2, 3, 1).numpy()
        grays = [np.asarray(cv2.cvtColor(array, cv2.COLOR_RGB2GRAY), np.uint8) for array in arrays]
        kept = [index for index, gray in enumerate(grays) if gray.std() >= BLANK_STD]
        views: list[FrameView | None] = [None] * len(frames)
        if kept:
            images = normalize_images(smalls[kept]).to(self._device)
            for index, image, encoded, features in zip(kept, images, *self._encode(images), strict=True):
                colors, texture = _color_histogram(arrays[index]), _texture(grays[index])
                views[index] = FrameView(self._num_frames + index, image, encoded, features, colors, texture)
        self._num_frames += len(frames)
        textured = [view for view in (self._latest, *views) if view is not None]
        self._prepared = self._predict_flows(list(pairwise(textured)))
        self._latest = textured[-1] if textured else None
        return views

    def match_frames(self, before: FrameView, after: FrameView) -> FramePair | None:
        """Estimate the motion from a frame to another; None if there is a cut between them."""
        numbers = (before.number, after.number)
        prepared = next((each for each in self._prepared if each.numbers == numbers), None)
        flows = (prepared or self._predict_flows([(before, after)])[0]).flows
        forward = flows[0].double().numpy()
        shifts = forward[0] * self._upscale[0] + 1j * forward[1] * self._upscale[1]
        motion = fit_motion(self._centers.ravel(), shifts.ravel(), forward[2].ravel())
        # Without much texture only a small area can fit any motion, which is no sign of a cut.
        unmatched = motion.inlier_fraction < CUT_INLIERS * float(before.texture.mean())
        if unmatched and float(np.abs(before.colors - after.colors).sum()) / 2 > CUT_COLOR_DISTANCE:
            return None
        return FramePair(motion, flows)

    def is_blurred(self, before: FrameView, after: FrameView) -> bool:
        """Return whether a frame is too blurred, compared to an earlier one, for its motion to be estimated."""
        if after.texture.mean() >= BLUR_TEXTURE * before.texture.mean():
            return False
        pair = self.match_frames(before, after)
        return pair is None or pair.motion.inlier_fraction < BLUR_INLIERS

    def local_warps(
        self, features: Sequence[Tensor], flows: Mapping[int, Tensor], indices: list[int]
    ) -> list[StoredField]:
        """Predict warps and subtract the nearest similarities.

        Args:
            features: Features of the frames for the stabilization network, C x h x w each.
            flows: Flows around them, as in `FramePair`, by index of their first frame in the shot.
            indices: Indices of the frames in the shot, consecutive.

        Returns:
            One field per frame, 2 x h x w, pixels of the full frame.
        """
        past, future = self.window
        zeros = torch.zeros(2, 3, *self._centers.shape, dtype=torch.float32)  # outside the shot
        numbers = range(indices[0] - past, indices[-1] + future)
        track = torch.stack([flows.get(number, zeros) for number in numbers]).to(self._device)
        # Windows of consecutive frames overlap, so they are views of one track: B x T - 1 x 2 x 3 x h x w.
        windows = track.unfold(0, past + future, 1).movedim(-1, 1)
        forward, backward = windows[:, :, 0], windows[:, :, 1]
        trajectories = chain_flows(forward[:, :, :2], backward[:, :, :2], forward[:, :, 2:], backward[:, :, 2:], past)
        with torch.no_grad(), self._autocast():
            warps = self._network.predict_warps(torch.stack(tuple(features)), trajectories).warps[-1]
        return [self._subtract_similarity(warp) for warp in warps.float().cpu().double().numpy()]

    def _predict_flows(self, pairs: list[tuple[FrameView, FrameView]]) -> list[_Prepared]:
        """Predict the flows of pairs of frames, weighted by their texture."""
        if not pairs:
            return []
        images = torch.stack([before.image for before, _ in pairs])
        encoded = (torch.stack([pair[index].encoded for pair in pairs]) for index in (0, 1))
        (forward,) = self._decode(images, *encoded)
        forward = forward.cpu()
        # The inverse costs a fraction of a second pass of the network.
        backward = torch.cat(invert_flow(forward[:, :2], forward[:, 2:]), dim=1)
        for flows, index in ((forward, 0), (backward, 1)):
            flows[:, 2] *= torch.from_numpy(np.stack([pair[index].texture for pair in pairs]))
        both = torch.stack((forward, backward), dim=1)
        numbers = [(before.number, after.number) for before, after in pairs]
        # Copied, so that flows which are kept do not keep those of other pairs.
        return [_Prepared(pair, flows.clone()) for pair, flows in zip(numbers, both, strict=True)]

    @torch.no_grad()
    def _run_encoders(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the features of images for the flow network and for the stabilization network."""
        images = match_layout(images)
        with self._autocast():
            encoded = self._flow.encode_flow_frame(images)
            if not self.warps:
                return encoded, encoded[:, :0]
            own = encoded if self._shares_encoder else self._network.encoder_of("stabilize")(images).features[-1]
            return encoded, own

    @torch.no_grad()
    def _run_decoder(self, images: Tensor, features1: Tensor, features2: Tensor) -> tuple[Tensor, ...]:
        """Return flow in pixels and confidence in each cell, B x 3 x h / 8 x w / 8."""
        with self._autocast():
            prediction = self._flow.decode_flow(images, features1, features2, NUM_UPDATES, upsampled=False)
        return (predict_flow(prediction),)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._half)

    def _subtract_similarity(self, warp: npt.NDArray[np.float64]) -> StoredField:
        """Subtract the nearest similarity from a warp and limit what is left."""
        shifts = warp[0] * self._upscale[0] + 1j * warp[1] * self._upscale[1]
        centered = self._centers - self._centers.mean()
        turn = (centered.conj() * shifts).sum() / (np.abs(centered) ** 2).sum()
        residual = shifts - shifts.mean() - turn * centered
        length = np.maximum(np.abs(residual), 1e-9)
        residual *= np.minimum(1, MAX_LOCAL * self.size[1] / length)
        return np.stack((residual.real, residual.imag)).astype(np.float32)


class ShotBuilder:
    """Collects the frames of one shot and runs the network on each as soon as its window is complete.

    The motion of each frame is kept as plain numbers; flows are dropped once no window needs them.
    """

    def __init__(self, analyzer: MotionAnalyzer, first: int) -> None:
        """Start a shot at the index of its first frame in the clip."""
        self._analyzer, self._first = analyzer, first
        self._motions: list[Motion] = []
        self._flows: dict[int, Tensor] = {}
        """By index of their first frame in the shot."""
        self._pending: deque[Tensor] = deque()
        """Features of the frames that have not been processed."""
        self._num_done = 0

    def add(self, features: Tensor, pair: FramePair | None) -> None:
        """Add the next frame.

        Args:
            features: Features of the frame for the stabilization network, C x h x w.
            pair: Motion from the previous frame; None for the first.
        """
        if pair is not None:
            if self._analyzer.warps:
                self._flows[len(self._motions)] = pair.flows
            self._motions.append(pair.motion)
        if not self._analyzer.warps:
            return
        self._pending.append(features)
        if len(self._pending) >= self._analyzer.window[1] + BATCH_SIZE:
            self._process(BATCH_SIZE)

    def finish(self) -> Shot:
        """Process the remaining frames and return the shot."""
        while self._pending:
            self._process(min(BATCH_SIZE, len(self._pending)))
        return Shot(self._first, tuple(self._motions))

    def _process(self, count: int) -> None:
        features = [self._pending.popleft() for _ in range(count)]
        indices = list(range(self._num_done, self._num_done + count))
        self._analyzer.fields.extend(self._analyzer.local_warps(features, self._flows, indices))
        self._num_done += count
        oldest = max(0, indices[0] - self._analyzer.window[0])
        for index in range(max(0, oldest - BATCH_SIZE), oldest):  # no later window needs these
            self._flows.pop(index, None)


def analyze_clip(analyzer: MotionAnalyzer, frames: Iterable[VideoFrame]) -> Iterator[Shot | int]:
    """Split a clip into shots and estimate the motion of each.

    Args:
        analyzer: Networks to run; receives the local warps.
        frames: Frames of the clip.

    Yields:
        Every shot when it ends, and before it the indices of its bridged frames.
    """
    builder: ShotBuilder | None = None
    latest: FrameView | None = None
    blanks: list[Tensor] = []
    number = -1
    for number, (features, view) in enumerate(iter_views(analyzer, frames)):
        if view is None:
            yield number
            blanks.append(features)
            continue
        pair = None if latest is None else analyzer.match_frames(latest, view)
        if builder is not None and pair is None and latest is not None:
            _add_bridged(builder, blanks, None, analyzer)
            yield builder.finish()
            builder = None
        if builder is None:
            builder = ShotBuilder(analyzer, number - len(blanks) if latest is None else number)
            if latest is None:
                _add_leading_blanks(builder, blanks, analyzer)
            builder.add(features, _no_motion(analyzer) if blanks and latest is None else None)
        else:
            part = _add_bridged(builder, blanks, pair, analyzer)
            builder.add(features, part)
        latest, blanks = view, []
    if number < 0:
        return
    if builder is None:
        builder = ShotBuilder(analyzer, 0)
        _add_leading_blanks(builder, blanks, analyzer)
    else:
        _add_bridged(builder, blanks, None, analyzer)
    yield builder.finish()


def iter_views(analyzer: MotionAnalyzer, frames: Iterable[VideoFrame]) -> Iterator[tuple[Tensor, FrameView | None]]:
    """Yield the features of every frame with its view; None if the frame is bridged.

    A frame is bridged if it is blank or part of a short blur. Whether a blur is short shows a few frames later, so
    frames are held back; in live mode it is assumed to be short.
    """

    def features_of(view: FrameView | None) -> Tensor:
        return analyzer.blank_features if view is None else view.features

    sharp: FrameView | None = None
    held: list[FrameView | None] = []
    for view in _encode_in_batches(analyzer, frames):
        is_blurred = view is not None and sharp is not None and analyzer.is_blurred(sharp, view)
        num_blurred = sum(each is not None for each in held)
        if view is None or (is_blurred and num_blurred < MAX_BLURRED):
            held.append(view)
            if analyzer.live:
                yield features_of(view), None
            continue
        if not analyzer.live:
            recovered = (
                num_blurred and not is_blurred and sharp is not None and analyzer.match_frames(sharp, view) is not None
            )
            yield from ((features_of(each), None if recovered else each) for each in held)
        yield view.features, view
        sharp, held = view, []
    if not analyzer.live:
        yield from ((features_of(each), each) for each in held)


def _encode_in_batches(analyzer: MotionAnalyzer, frames: Iterable[VideoFrame]) -> Iterator[FrameView | None]:
    """Yield the view of every frame; in live mode frames are not held back to make batches."""
    iterator, size = iter(frames), 1 if analyzer.live else BATCH_SIZE
    while batch := list(islice(iterator, size)):
        yield from analyzer.encode_frames(batch)


def _add_leading_blanks(builder: ShotBuilder, blanks: list[Tensor], analyzer: MotionAnalyzer) -> None:
    """Add blank frames at the beginning of a clip, without motion."""
    for index, blank in enumerate(blanks):
        builder.add(blank, _no_motion(analyzer) if index else None)


def _add_bridged(
    builder: ShotBuilder, blanks: list[Tensor], pair: FramePair | None, analyzer: MotionAnalyzer
) -> FramePair | None:
    """Add bridged frames, each with an equal part of the motion across all of them, and return the last part.

    In live mode they have no motion and the last part is all of it: the motion is unknown when they are corrected.
    """
    part = _no_motion(analyzer) if pair is None else pair
    if analyzer.live:
        for blank in blanks:
            builder.add(blank, _no_motion(analyzer))
        return part
    if pair is not None and blanks:
        num_parts = len(blanks) + 1
        flows = pair.flows.clone()
        flows[:, :2] /= num_parts
        part = replace(pair, motion=pair.motion.split(num_parts), flows=flows)
    for blank in blanks:
        builder.add(blank, part)
    return part


def _no_motion(analyzer: MotionAnalyzer) -> FramePair:
    rows, columns = analyzer.working[0] // CELL, analyzer.working[1] // CELL
    return FramePair(Motion(1 + 0j, 0j, 0.0), torch.zeros(2, 3, rows, columns, dtype=torch.float32))


def _have_same_weights(one: nn.Module, two: nn.Module) -> bool:
    weights1, weights2 = one.state_dict(), two.state_dict()
    return weights1.keys() == weights2.keys() and all(
        weight.shape == weights2[name].shape and torch.equal(weight, weights2[name])
        for name, weight in weights1.items()
    )


def _resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize an image, 1 x 3 x H x W, uint8 or float in [0, 1], to float in [0, 1].

    Small images are enlarged to the minimum size of the networks.
    """
    if image.shape[2] < size[0] or image.shape[3] < size[1]:
        return F.interpolate(to_float(image), size, mode="bilinear").clamp(0, 1)
    if image.dtype != torch.uint8 or image.shape[2:] == size:
        return shrink(to_float(image), size)
    # Reduced as bytes, which is several times as fast for large frames; it rounds to gray levels.
    return to_float(F.interpolate(image, size, mode="bilinear", antialias=True))


def _color_histogram(image: npt.NDArray[np.uint8]) -> StoredField:
    """Compute a normalized RGB histogram of 8 x 8 x 8 bins."""
    counts = cv2.calcHist([image], [0, 1, 2], None, [8, 8, 8], [0, 256] * 3)
    return np.asarray(counts / counts.sum(), np.float32)


def _texture(gray: npt.NDArray[np.uint8]) -> StoredField:
    """Return how well the motion of each cell is determined by its texture, 0 to 1."""
    strength = cv2.cornerMinEigenVal(gray.astype(np.float32), 5, ksize=3)
    rows, columns = gray.shape[0] // CELL, gray.shape[1] // CELL
    max_strength = strength.reshape(rows, CELL, columns, CELL).max(axis=(1, 3))
    return np.asarray(max_strength / (max_strength + TEXTURE), np.float32)
