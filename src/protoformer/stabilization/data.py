"""Training windows for stabilization: synthetic unstable frames and trajectories with estimation errors."""

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.motion_fields import CELL, Trajectories, build_trajectories
from protoformer.models.config import ModelConfig
from protoformer.synthetic.ground_truth import propagate_confidence, render_image, true_trajectories, true_warp
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.rng import SceneRandom, hashed_normal
from protoformer.synthetic.samples import StabilityWindows
from protoformer.synthetic.scene import Frame, MotionPath, Scenes, to_device

MAX_START = 4.0
"""Latest time of the first frame, seconds."""
NO_SHAKE, SHAKE = 0.1, (0.4, 3.0)
"""Fraction of scenes without shake, and range of the shake of the others, relative to that of the family."""
ENDS = 0.08
"""Fraction of windows that are truncated by the start of a clip, and as many by its end."""
WHITE, BIAS = (0.02, 0.3), (0.005, 0.05)
"""Ranges of the error of the motion between two frames, pixels: independent at each point, and smooth."""
NOISE_LOG_STD = 0.7
"""Standard deviation of the log noise level across the frame."""
MAX_OBJECTS, OBJECT_PROBABILITY, OBJECT_SPEED = 3, 0.5, 1.5
"""Discs with independent motion: largest number, probability of each, and speed, pixels per frame."""
COARSE_GRID = (4, 5)
"""Rows and columns of the grid on which smooth errors are drawn."""
SALT = 0x73746162
"""Separates these random numbers from those of the scene."""


@dataclass(frozen=True)
class SyntheticWindows:
    """Makes windows from a batch of synthetic scenes, each determined by its scene alone.

    Attributes:
        config: Size of the window.
    """

    config: ModelConfig

    def __call__(self, renderer: Renderer, render_pass: str) -> StabilityWindows:
        """Render a batch of windows on the renderer's device.

        Args:
            renderer: Renderer of the scenes.
            render_pass: Render pass, "clean" or "final".
        """
        scenes, (past, future) = renderer.scenes, self.config.stabilization.window
        draws = SceneRandom(SALT, scenes.sensor.key)
        renderer = Renderer(_scale_shake(scenes, draws), renderer.bank, renderer.device)
        start, steps = draws.uniform("begin", 0.0, MAX_START), torch.arange(-past, future + 2, dtype=torch.float64)
        times = start + steps[:, None] / scenes.fps
        frames = renderer.scenes.frames(times, device=renderer.device)
        errors = EstimationErrors(draws, scenes, past, len(times), renderer.device)
        parts = [
            self._window(renderer, frames[index:], times[past + index], errors, index, render_pass) for index in (0, 1)
        ]
        names = ("unstable", "displacements", "confidence", "warp", "valid")
        both = {name: torch.stack(each, dim=1) for name, each in zip(names, zip(*parts, strict=True), strict=True)}
        stable = render_image(renderer, renderer.view(times[past], steady=True), render_pass)
        return StabilityWindows(stable=stable, **both, names=scenes.names)

    def _window(
        self,
        renderer: Renderer,
        frames: list[Frame],
        time: Tensor,
        errors: "EstimationErrors",
        index: int,
        render_pass: str,
    ) -> tuple[Tensor, ...]:
        """Return image, positions, confidence, warp and valid mask of window `index`, which starts with `frames`."""
        past, future = self.config.stabilization.window
        estimated = errors.apply(true_trajectories(renderer, frames[: past + 1 + future], past), index, past)
        unstable = renderer.view(time)
        warp = true_warp(renderer, renderer.scenes.frame(time, True, renderer.device), unstable.frame)
        flow = torch.where(warp.valid, warp.flow, 0.0)
        return (
            render_image(renderer, unstable, render_pass),
            estimated.displacements,
            estimated.confidence,
            flow,
            warp.valid,
        )


class EstimationErrors:
    """Errors of estimated trajectories, which accumulate from frame to frame.

    Attributes:
        offset: N x T x 2 x h x w, accumulated error, pixels.
        confidence: N x 1 x 1 x h x w, confidence of one step.
        first: N, first frame of each clip.
        last: N, last frame of each clip.
    """

    def __init__(self, draws: SceneRandom, scenes: Scenes, past: int, frames: int, device: torch.device) -> None:
        """Draw the errors of a batch.

        Args:
            draws: Source of all random numbers.
            scenes: N scenes.
            past: Number of frames before the first stabilized one.
            frames: Number of frames of both windows together, T.
            device: Device of the errors.
        """
        height, width = (side // CELL for side in scenes.size)
        count, keys = scenes.count, to_device(draws.integer("key", 0, 2**62), device)

        def sample_level(name: str, low: float, high: float) -> Tensor:
            return to_device(draws.log_uniform(name, low, high).float(), device).view(-1, 1, 1, 1, 1)

        def smooth_noise(salt: int, *shape: int) -> Tensor:
            """Return noise on the coarse grid, interpolated: count x shape x h x w."""
            coarse = hashed_normal(keys + salt, (*shape, *COARSE_GRID), device).flatten(0, -3)[:, None]
            return F.interpolate(coarse, (height, width), mode="bilinear").view(count, *shape, height, width)

        white = sample_level("white", *WHITE) * (NOISE_LOG_STD * smooth_noise(1, 1, 1)).exp()
        steps = white * hashed_normal(keys, (frames, 2, height, width), device)
        steps = steps + sample_level("bias", *BIAS) * smooth_noise(2, frames, 2)
        masks, velocity = _moving_objects(draws, (height, width), device)
        steps = steps + (masks * velocity).sum(dim=1)[:, None]
        self.offset = steps.cumsum(dim=1)
        # Like the confidence of flow: the probability that a step is correct within a pixel.
        self.confidence = 1 - (-1 / white).exp()
        self.first, self.last = (to_device(each, device) for each in _clip_ends(draws, past, frames))

    def apply(self, trajectories: Trajectories, index: int, now: int) -> Trajectories:
        """Add the errors to true trajectories of window `index`, relative to its frame `now`.

        `index` is the index of the first frame of the window.
        """
        count = trajectories.displacements.shape[1]
        offset = self.offset[:, index : index + count]
        numbers = torch.arange(index, index + count, device=offset.device)
        within = (numbers >= self.first[:, None]) & (numbers <= self.last[:, None])
        confidence = propagate_confidence(self.confidence.expand(-1, count, -1, -1, -1), now)
        confidence = trajectories.confidence * confidence * within.view(*within.shape, 1, 1, 1)
        return build_trajectories(trajectories.displacements + offset - offset[:, now : now + 1], confidence)


def _scale_shake(scenes: Scenes, draws: SceneRandom) -> Scenes:
    """Scale the camera shake of each scene by a random factor, which is 0 for some."""
    strength = draws.log_uniform("shake", *SHAKE) * ~draws.bernoulli("steady", NO_SHAKE)

    def scale_path(path: MotionPath) -> MotionPath:
        factor = strength.view(-1, *[1] * (path.powers.dim() - 1))
        return dataclasses.replace(path, powers=path.powers * factor, amplitude=path.amplitude * factor)

    camera = scenes.camera
    camera = dataclasses.replace(camera, shake=scale_path(camera.shake), shake_turn=scale_path(camera.shake_turn))
    return dataclasses.replace(scenes, camera=camera)


def _moving_objects(draws: SceneRandom, size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return masks of discs, N x discs x 1 x h x w, and their velocities, N x discs x 2 x 1 x 1, pixels per frame."""
    height, width = size
    exists = draws.bernoulli("stranger.there", OBJECT_PROBABILITY, (MAX_OBJECTS,))
    x, y = (
        draws.uniform(f"stranger.{axis}", 0.0, side, (MAX_OBJECTS,)) for axis, side in (("x", width), ("y", height))
    )
    radius = draws.uniform("stranger.radius", 0.05, 0.15, (MAX_OBJECTS,)) * width * exists
    dx = torch.arange(width) - x[..., None, None]
    dy = torch.arange(height)[:, None] - y[..., None, None]
    masks = (dx.square() + dy.square() < radius[..., None, None].square()).float()
    velocity = draws.normal("stranger.pace", 0.0, OBJECT_SPEED, (MAX_OBJECTS, 2)).float()
    return to_device(masks[:, :, None], device), to_device(velocity[..., None, None], device)


def _clip_ends(draws: SceneRandom, past: int, frames: int) -> tuple[Tensor, Tensor]:
    """Return the first and last frame, N each, of the clips; both stabilized frames lie inside."""
    first, last = draws.integer("first", 0, past + 1), draws.integer("last", past + 1, frames)
    early, late = (draws.bernoulli(f"cut.{end}", ENDS) for end in ("first", "last"))
    return torch.where(early, first, 0), torch.where(late, last, frames)
