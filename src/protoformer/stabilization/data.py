"""What stabilization learns from: frames of shaky scenes, and trails as an estimate of motion would have them."""

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.motion_fields import CELL, Trajectories, trusted_tracks
from protoformer.models.config import ModelConfig
from protoformer.models.heads.stabilization import window_of
from protoformer.synthetic.ground_truth import outward, render_image, true_trajectories, true_warp
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.rng import SceneRandom, hashed_normal
from protoformer.synthetic.samples import StabilityWindows
from protoformer.synthetic.scene import Frame, MotionPath, Scenes, to_device

BEGIN = 4.0
"""Seconds within which the first of both frames lies."""
STEADY, SHAKE = 0.1, (0.4, 3.0)
"""Share of the scenes without any shake, and least and most of the others', in that of the family."""
ENDS = 0.08
"""Share of the windows that the beginning of a clip cuts, and as many that its end does."""
WHITE, BIAS = (0.02, 0.3), (0.005, 0.05)
"""Pixels by which the motion between two frames is off, least and most: each place by itself, and wide areas."""
UNEVEN = 0.7
"""Deviation of the logarithm of how much more a motion is off at some places than at others."""
STRANGERS, THERE, PACE = 3, 0.5, 1.5
"""Discs that go their own way: how many at most, how likely each is there, pixels a frame."""
WIDE_AREAS = (4, 5)
"""Rows and columns by which what is off in wide areas is drawn."""
SALT = 0x73746162
"""Sets these draws apart from those that made the scene."""


@dataclass(frozen=True)
class SyntheticWindows:
    """Makes windows of a batch of scenes, each decided by its scene alone."""

    config: ModelConfig

    def __call__(self, renderer: Renderer, look: str) -> StabilityWindows:
        """(renderer, look) to a batch, on the renderer's device."""
        scenes, (past, future) = renderer.scenes, window_of(self.config)
        draws = SceneRandom(SALT, scenes.film.key)
        renderer = Renderer(_shaken(scenes, draws), renderer.bank, renderer.device)
        begin, steps = draws.uniform("begin", 0.0, BEGIN), torch.arange(-past, future + 2, dtype=torch.float64)
        times = begin + steps[:, None] / scenes.rate
        frames = renderer.scenes.frames(times, device=renderer.device)
        off = EstimationErrors(draws, scenes, past, len(times), renderer.device)
        parts = [self._one(renderer, frames[number:], times[past + number], off, number, look) for number in (0, 1)]
        names = ("unstable", "places", "trust", "warp", "valid")
        both = {name: torch.stack(each, dim=1) for name, each in zip(names, zip(*parts, strict=True), strict=True)}
        stable = render_image(renderer, renderer.view(times[past], steady=True), look)
        return StabilityWindows(stable=stable, **both, names=scenes.names)

    def _one(
        self, renderer: Renderer, frames: list[Frame], time: Tensor, off: "EstimationErrors", number: int, look: str
    ) -> tuple[Tensor, ...]:
        """Picture, places, trust, warp and where it is valid, of window `number`, whose first frame is the first."""
        past, future = window_of(self.config)
        seen = off.added(true_trajectories(renderer, frames[: past + 1 + future], past), number, past)
        shaky = renderer.view(time)
        warp = true_warp(renderer, renderer.scenes.frame(time, True, renderer.device), shaky.frame)
        flow = torch.where(warp.valid, warp.flow, 0.0)
        return render_image(renderer, shaky, look), seen.places, seen.trust, flow, warp.valid


class EstimationErrors:
    """What an estimate of motion adds to true trails: it is off a little with every frame, and that adds up.

    past: frames before the first that is seen. frames: of both windows together.
    """

    def __init__(self, draws: SceneRandom, scenes: Scenes, past: int, frames: int, device: torch.device) -> None:
        height, width = (side // CELL for side in scenes.size)
        count, keys = scenes.count, to_device(draws.integer("key", 0, 2**62), device)

        def drawn(name: str, low: float, high: float) -> Tensor:
            return to_device(draws.log_uniform(name, low, high).float(), device).view(-1, 1, 1, 1, 1)

        def smooth(salt: int, *shape: int) -> Tensor:
            """Noise of wide areas, count x shape x h x w."""
            rough = hashed_normal(keys + salt, (*shape, *WIDE_AREAS), device).flatten(0, -3)[:, None]
            return F.interpolate(rough, (height, width), mode="bilinear").view(count, *shape, height, width)

        white = drawn("white", *WHITE) * (UNEVEN * smooth(1, 1, 1)).exp()
        steps = white * hashed_normal(keys, (frames, 2, height, width), device)
        steps = steps + drawn("bias", *BIAS) * smooth(2, frames, 2)
        inside, pace = _strangers(draws, (height, width), device)
        steps = steps + (inside * pace).sum(dim=1)[:, None]
        self.off = steps.cumsum(dim=1)
        # As flow's confidence: how likely each step is right to a pixel.
        self.sure = 1 - (-1 / white).exp()
        self.first, self.last = (to_device(each, device) for each in _ends(draws, past, frames))

    def added(self, trails: Trajectories, number: int, now: int) -> Trajectories:
        """Trails of window `number`, whose frame `now` they are seen from, as they are estimated."""
        count = trails.places.shape[1]
        off = self.off[:, number : number + count]
        numbers = torch.arange(number, number + count, device=off.device)
        within = (numbers >= self.first[:, None]) & (numbers <= self.last[:, None])
        sure = outward(self.sure.expand(-1, count, -1, -1, -1), now)
        trust = trails.trust * sure * within.view(*within.shape, 1, 1, 1)
        return trusted_tracks(trails.places + off - off[:, now : now + 1], trust)


def _shaken(scenes: Scenes, draws: SceneRandom) -> Scenes:
    """The same scenes, each shaken more or less, some not at all."""
    strength = draws.log_uniform("shake", *SHAKE) * ~draws.whether("steady", STEADY)

    def scaled(path: MotionPath) -> MotionPath:
        factor = strength.view(-1, *[1] * (path.powers.dim() - 1))
        return dataclasses.replace(path, powers=path.powers * factor, amplitude=path.amplitude * factor)

    camera = scenes.camera
    camera = dataclasses.replace(camera, shake=scaled(camera.shake), shake_turn=scaled(camera.shake_turn))
    return dataclasses.replace(scenes, camera=camera)


def _strangers(draws: SceneRandom, size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Discs, N x discs x 1 x h x w, 0 or 1, and how far they go with every frame, N x discs x 2 x 1 x 1, pixels."""
    height, width = size
    there = draws.whether("stranger.there", THERE, (STRANGERS,))
    x, y = (draws.uniform(f"stranger.{axis}", 0.0, side, (STRANGERS,)) for axis, side in (("x", width), ("y", height)))
    radius = draws.uniform("stranger.radius", 0.05, 0.15, (STRANGERS,)) * width * there
    apart_x = torch.arange(width) - x[..., None, None]
    apart_y = torch.arange(height)[:, None] - y[..., None, None]
    inside = (apart_x.square() + apart_y.square() < radius[..., None, None].square()).float()
    pace = draws.normal("stranger.pace", 0.0, PACE, (STRANGERS, 2)).float()
    return to_device(inside[:, :, None], device), to_device(pace[..., None, None], device)


def _ends(draws: SceneRandom, past: int, frames: int) -> tuple[Tensor, Tensor]:
    """The first and the last frame, N each, of the clips that windows are cut from; both frames seen are in them."""
    first, last = draws.integer("first", 0, past + 1), draws.integer("last", past + 1, frames)
    early, late = (draws.whether(f"cut.{end}", ENDS) for end in ("first", "last"))
    return torch.where(early, first, 0), torch.where(late, last, frames)
