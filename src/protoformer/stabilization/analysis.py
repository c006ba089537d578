"""The first reading of a clip: how its camera moves, where it is cut, and what no single motion explains.

Frames are looked at small, one after the other; what is kept of each is its motion, and a few kilobytes in a file.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.flow.engine import EncodedFrame, TiledFlow
from protoformer.flow.tiling import FlowPlan
from protoformer.geometry.motion_fields import CELL, chain_flows
from protoformer.geometry.resizing import shrink
from protoformer.io.image_input import to_float
from protoformer.models.heads.flow import LEAST_SIDE, FlowNetwork, normalize_images
from protoformer.models.heads.stabilization import StabilizeNetwork
from protoformer.stabilization.camera_motion import Motion, centered_cells, fit_motion
from protoformer.stabilization.result import FieldFile, StoredField
from protoformer.video.clip import ClipFrame

UPDATES = 4
"""Refinements of a flow: the camera's motion is a mean of many vectors, and needs no finer ones."""
TEXTURE = 100.0
"""Least eigenvalue of the gradients' products, gray levels squared, at which a cell's flow is believed by half."""
BLANK = 3.0
"""Gray levels: the deviation of a frame that shows nothing."""
CUT_TRUST, CUT_DISTANCE = 0.5, 0.35
"""Two frames are of two shots if less than this share of what has texture moves as one, and more colors differ."""
BLUR_TEXTURE, BLUR_TRUST = 0.1, 0.1
"""A frame is blurred if it keeps less than this share of the texture of one before, and less of it moves as one."""
MOST_BLURRED = 3
"""Frames that are blurred for a moment; more of them are how the clip looks."""
AT_ONCE = 4
"""Windows that the network sees at a time."""
LOCAL = 0.02
"""Share of a frame's width that a place may be moved by itself."""


@dataclass(frozen=True, eq=False)
class FramePair:
    """From one frame to the next. flows: 2 x 3 x h x w, there and back: pixels of the working frame, and trust."""

    motion: Motion
    flows: Tensor


@dataclass(frozen=True, eq=False)
class Shot:
    """Frames between two cuts.

    first: the number of its first frame among those that were read. motions: from each frame to the next, pixels from
    the center of the full frame.
    """

    first: int
    motions: tuple[Motion, ...]

    @property
    def frames(self) -> int:
        """How many."""
        return len(self.motions) + 1


@dataclass(frozen=True, eq=False)
class ClipAnalysis:
    """All of a clip: (height, width) of its frames, its shots, and the frames that were bridged.

    local: one a frame, 2 x h x w, pixels of the full frame: what the network's warp adds, at the centers of cells, to
    the similarity that is nearest to it; none where it was not asked.
    """

    size: tuple[int, int]
    shots: tuple[Shot, ...]
    bridged: tuple[int, ...]
    local: FieldFile


@dataclass(frozen=True, eq=False)
class FrameView:
    """A frame, small: 3 x h x w in [0, 1], with its features, colors and texture (h/8 x w/8, 0 to 1)."""

    small: Tensor
    encoded: EncodedFrame
    colors: StoredField
    texture: StoredField


def working_size(size: tuple[int, int], pixels: int) -> tuple[int, int]:
    """The (height, width), in whole cells, at which frames of a size are looked at: at most about so many pixels."""
    scale = min(1.0, (pixels / (size[0] * size[1])) ** 0.5)
    height, width = (max(LEAST_SIDE, CELL * round(side * scale / CELL)) for side in size)
    return height, width


class MotionAnalyzer:
    """Two networks made ready for frames of one (height, width).

    delay: how many frames after one are known when it is decided, None if all are. What the network says of a frame is
    left out if it would have to see more.
    """

    def __init__(
        self,
        network: StabilizeNetwork,
        flow: FlowNetwork,
        device: torch.device,
        size: tuple[int, int],
        half: bool,
        delay: int | None = None,
    ) -> None:
        self.size = size
        self.fields = FieldFile()
        """What the network's warps add to similarities, of every frame so far."""
        self.live = delay is not None
        self.warps = delay is None or network.window[1] <= delay
        self.working = working_size(size, network.config.stab_pixels)
        self._network, self._device, self._half = network, device, half
        plan = FlowPlan(self.working, self.working, tile=None, batch=2, low_memory=False)
        self._flow = TiledFlow(flow, device, plan, UPDATES, half)
        self._centers = centered_cells(self.working[0] // CELL, self.working[1] // CELL, size)
        self._grow = np.array([size[1] / self.working[1], size[0] / self.working[0]])

    @property
    def window(self) -> tuple[int, int]:
        """Frames before and after one that the network sees with it."""
        return self._network.window

    def look(self, frame: ClipFrame) -> FrameView | None:
        """A frame as it is compared with others; None if it shows nothing."""
        small = _at(to_float(frame.pixels)[None], self.working)[0]
        picture = np.ascontiguousarray((255 * small).byte().permute(1, 2, 0).numpy())
        gray = np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), np.uint8)
        if gray.std() < BLANK:
            return None
        (encoded,) = self._flow.encode([small])
        return FrameView(small, encoded, _colors(picture), _texture(gray))

    def link(self, before: FrameView, after: FrameView) -> FramePair | None:
        """The motion from a frame to another; None where they are of two shots."""
        pairs = [(before.encoded, after.encoded), (after.encoded, before.encoded)]
        flows = torch.stack([F.avg_pool2d(found[None], CELL)[0] for found in self._flow.flows(pairs)])
        flows[:, 2] *= torch.from_numpy(np.stack((before.texture, after.texture)))
        there = flows[0].double().numpy()
        shifts = there[0] * self._grow[0] + 1j * there[1] * self._grow[1]
        motion = fit_motion(self._centers.ravel(), shifts.ravel(), there[2].ravel())
        # Where little has texture, little can be known to move at all, which is no sign of a cut.
        alone = motion.trust < CUT_TRUST * float(before.texture.mean())
        if alone and float(np.abs(before.colors - after.colors).sum()) / 2 > CUT_DISTANCE:
            return None
        return FramePair(motion, flows)

    def blurred(self, before: FrameView, after: FrameView) -> bool:
        """Whether a frame is so much less sharp than one before it that its motion cannot be told."""
        if after.texture.mean() >= BLUR_TEXTURE * before.texture.mean():
            return False
        link = self.link(before, after)
        return link is None or link.motion.trust < BLUR_TRUST

    def local(self, smalls: list[Tensor], flows: Mapping[int, Tensor], places: list[int]) -> list[StoredField]:
        """What the network's warps of some frames add to similarities.

        Args:
            smalls: The frames.
            flows: Those of the links around them, by their places in the shot.
            places: Those of the frames in the shot.
        """
        past, future = self.window
        windows = torch.stack([self._window(flows, place, past, future) for place in places]).to(self._device)
        there, back = windows[:, :, 0], windows[:, :, 1]
        trails = chain_flows(there[:, :, :2], back[:, :, :2], there[:, :, 2:], back[:, :, 2:], past)
        images = normalize_images(torch.stack(smalls)).to(self._device)
        with torch.no_grad(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            warps = self._network(images, trails).warps[-1].float().cpu().double().numpy()
        return [self._beyond_similarity(warp) for warp in warps]

    def _window(self, flows: Mapping[int, Tensor], place: int, past: int, future: int) -> Tensor:
        """Flows around a frame, T - 1 x 2 x 3 x h x w; zero beyond the shot."""
        nothing = torch.zeros(2, 3, *self._centers.shape, dtype=torch.float32)
        return torch.stack([flows.get(at, nothing) for at in range(place - past, place + future)])

    def _beyond_similarity(self, warp: npt.NDArray[np.float64]) -> StoredField:
        shifts = warp[0] * self._grow[0] + 1j * warp[1] * self._grow[1]
        away = self._centers - self._centers.mean()
        turn = (away.conj() * shifts).sum() / (np.abs(away) ** 2).sum()
        left = shifts - shifts.mean() - turn * away
        length = np.maximum(np.abs(left), 1e-9)
        left *= np.minimum(1, LOCAL * self.size[1] / length)
        return np.stack((left.real, left.imag)).astype(np.float32)


class ShotBuilder:
    """Takes the frames of one shot, and asks the network about each as soon as its window is full.

    Of each frame its motion is kept, as plain numbers; flows are dropped once no window needs them.
    """

    def __init__(self, surveyor: MotionAnalyzer, first: int) -> None:
        self._surveyor, self._first = surveyor, first
        self._motions: list[Motion] = []
        self._flows: dict[int, Tensor] = {}
        """By the place of the link in the shot."""
        self._waiting: deque[Tensor] = deque()
        self._asked = 0

    def add(self, small: Tensor, link: FramePair | None) -> None:
        """The next frame, and its link from the one before; None of the first."""
        if link is not None:
            if self._surveyor.warps:
                self._flows[len(self._motions)] = link.flows
            self._motions.append(link.motion)
        if not self._surveyor.warps:
            return
        self._waiting.append(small)
        if len(self._waiting) >= self._surveyor.window[1] + AT_ONCE:
            self._ask(AT_ONCE)

    def finished(self) -> Shot:
        """The whole shot."""
        while self._waiting:
            self._ask(min(AT_ONCE, len(self._waiting)))
        return Shot(self._first, tuple(self._motions))

    def _ask(self, count: int) -> None:
        smalls = [self._waiting.popleft() for _ in range(count)]
        places = list(range(self._asked, self._asked + count))
        self._surveyor.fields.extend(self._surveyor.local(smalls, self._flows, places))
        self._asked += count
        over = max(0, places[0] - self._surveyor.window[0])
        for at in range(max(0, over - AT_ONCE), over):  # no window reaches back so far any more
            self._flows.pop(at, None)


def analyze_clip(surveyor: MotionAnalyzer, frames: Iterable[ClipFrame]) -> Iterator[Shot | int]:
    """Every shot as soon as it is over; before it, the numbers of those of its frames that were bridged."""
    builder: ShotBuilder | None = None
    latest: FrameView | None = None
    blanks: list[Tensor] = []
    number = -1
    for number, (small, look) in enumerate(_looks(surveyor, frames)):
        if look is None:
            yield number
            blanks.append(small)
            continue
        link = None if latest is None else surveyor.link(latest, look)
        if builder is not None and link is None and latest is not None:
            _bridge(builder, blanks, None, surveyor)
            yield builder.finished()
            builder = None
        if builder is None:
            builder = ShotBuilder(surveyor, number - len(blanks) if latest is None else number)
            if latest is None:
                _lead_in(builder, blanks, surveyor)
            builder.add(look.small, _nothing(surveyor) if blanks and latest is None else None)
        else:
            part = _bridge(builder, blanks, link, surveyor)
            builder.add(look.small, part)
        latest, blanks = look, []
    if number < 0:
        return
    if builder is None:
        builder = ShotBuilder(surveyor, 0)
        _lead_in(builder, blanks, surveyor)
    else:
        _bridge(builder, blanks, None, surveyor)
    yield builder.finished()


def _looks(surveyor: MotionAnalyzer, frames: Iterable[ClipFrame]) -> Iterator[tuple[Tensor, FrameView | None]]:
    """Every frame, small, with a look at it; None if it is to be bridged: it shows nothing, or is blurred for a moment.

    Whether it is for a moment is known a few frames later, so frames are held back; a live camera takes it for granted.
    """
    blank = torch.zeros(1, dtype=torch.float32).expand(3, *surveyor.working)
    clear: FrameView | None = None
    held: list[FrameView | None] = []
    for frame in frames:
        look = surveyor.look(frame)
        hazy = look is not None and clear is not None and surveyor.blurred(clear, look)
        blurred = sum(each is not None for each in held)
        if look is None or (hazy and blurred < MOST_BLURRED):
            held.append(look)
            if surveyor.live:
                yield blank if look is None else look.small, None
            continue
        if not surveyor.live:
            passed = blurred and not hazy and clear is not None and surveyor.link(clear, look) is not None
            yield from ((blank if each is None else each.small, None if passed else each) for each in held)
        yield look.small, look
        clear, held = look, []
    if not surveyor.live:
        yield from ((blank if each is None else each.small, each) for each in held)


def _lead_in(builder: ShotBuilder, blanks: list[Tensor], surveyor: MotionAnalyzer) -> None:
    """Frames that show nothing at the head of a clip: they stand still."""
    for place, blank in enumerate(blanks):
        builder.add(blank, _nothing(surveyor) if place else None)


def _bridge(
    builder: ShotBuilder, blanks: list[Tensor], link: FramePair | None, surveyor: MotionAnalyzer
) -> FramePair | None:
    """Add frames that are bridged, each with its part of the motion over all of them; returns the last part.

    Of a live camera they stand still, and the last part is all of it: when they are decided, nobody knows the motion.
    """
    part = _nothing(surveyor) if link is None else link
    if surveyor.live:
        for blank in blanks:
            builder.add(blank, _nothing(surveyor))
        return part
    if link is not None and blanks:
        parts = len(blanks) + 1
        flows = link.flows.clone()
        flows[:, :2] /= parts
        part = replace(link, motion=link.motion.shared(parts), flows=flows)
    for blank in blanks:
        builder.add(blank, part)
    return part


def _nothing(surveyor: MotionAnalyzer) -> FramePair:
    rows, columns = surveyor.working[0] // CELL, surveyor.working[1] // CELL
    return FramePair(Motion(1 + 0j, 0j, 0.0), torch.zeros(2, 3, rows, columns, dtype=torch.float32))


def _at(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images at a size; tiny ones are enlarged, which networks need."""
    if images.shape[2] >= size[0] and images.shape[3] >= size[1]:
        return shrink(images, size)
    return F.interpolate(images, size, mode="bilinear").clamp(0, 1)


def _colors(picture: npt.NDArray[np.uint8]) -> StoredField:
    """How much of a picture has which color, of 8 x 8 x 8."""
    counts = cv2.calcHist([picture], [0, 1, 2], None, [8, 8, 8], [0, 256] * 3)
    return np.asarray(counts / counts.sum(), np.float32)


def _texture(gray: npt.NDArray[np.uint8]) -> StoredField:
    """How firmly each cell's motion shows in a picture, 0 to 1: where nothing stands out, flow is a guess."""
    strength = cv2.cornerMinEigenVal(gray.astype(np.float32), 5, ksize=3)
    rows, columns = gray.shape[0] // CELL, gray.shape[1] // CELL
    most = strength.reshape(rows, CELL, columns, CELL).max(axis=(1, 3))
    return np.asarray(most / (most + TEXTURE), np.float32)
