"""Stabilization head: the warp that moves one frame of a video onto a stable camera path.

The input is the current frame and trajectories: for each cell (8x8 pixels) of the current frame, its displacement to
all frames of a temporal window and the confidence of that displacement. The output is the warp, an offset from the
stable frame to the shaky frame: the stable frame shows at p what the shaky frame shows at p + warp(p).

The warp starts at zero. `num_stages` stages follow each other, and each updates it:

1. Trajectories and features are resampled at p + warp(p), as in a frame that the warp so far has moved; displacements
   count from p.
2. A smooth motion field is fitted to each frame t of the window: the quadratic
   c_1 + c_2 x + c_3 y + c_4 x^2 + c_5 xy + c_6 y^2 of two components, with x and y from -1 to 1 across the frame. The
   residual of a cell is its displacement less the field, times the weight of the cell in the fit.
3. `StabilizationStage` embeds the trajectories, adds the encoder's features and mixes the cells by prototype blocks
   (CAP and LS). It predicts a summary of the window, a weight of the residual of each cell, and two corrections of the
   warp: `affine`, the coefficients of 1, x and y, and `field`, one offset for each cell.
4. `PathFilter` predicts temporal weights f_t: the stable position is the weighted sum of the positions in the window.
   Applied to displacements, they give the motion from p to its stable position,
   m(p) = sum_t f_t (smooth field_t(p) + weight(p) residual_t(p)).
5. warp <- warp - m + affine + field. The motion m points to the stable position and the warp away from it, so that m is
   subtracted. The corrections have the sign of the warp. The code subtracts them from m, and then m from the warp,
   because the regressor "grid" represents all terms together.

Two regressors differ in window and warp: "grid" (after StabNet, Wang et al., TIP 2018) uses past frames only and a warp
that is bilinear between 8x8 vertices; "field" (after PWStableNet, Zhao and Ling, TIP 2020) uses past and future frames
and a warp with one value for each cell.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from protoformer.geometry.motion_fields import (
    CELL,
    Trajectories,
    cell_terms,
    evaluate_fields,
    fit_fields,
    resample_trajectories,
    terms_at,
)
from protoformer.geometry.warps import pixel_grid, sample
from protoformer.models.config import ModelConfig
from protoformer.models.encoder import build_block
from protoformer.models.layers import TokenNorm, sine_positions
from protoformer.models.runtime import full_precision, map_size, maps_to_tokens, tokens_to_maps

KERNEL_SIGMA = 14.0
"""Standard deviation, in frames, of the Gaussian that initializes the temporal kernel."""
SLOPE_REGULARIZATION = 1e-4
"""Regularization of the slope of the fitted line, which vanishes if only the current frame is valid."""
MIN_DEVIATION = 0.5
"""Lower bound, in pixels, of the deviation that paths are normalized by."""
FILTER_SCALE = 0.1
"""Scale of the learned filter at the current frame; it decreases away from that frame, where a path deviates more from
its line."""
HALF_WEIGHT_FRACTION = 0.05
"""Fraction of valid cells at which a frame has about half its weight."""


class PathFilter(nn.Module):
    """Temporal filter: weights over the T frames of a window whose weighted sum of positions is the stable position.

    A line is fitted to the path by least squares, weighted by a temporal kernel (softmax of `kernel`) and by the valid
    fraction of each frame, with its slope scaled by a learned factor, 1 at first; its value at the current frame is the
    stable position. Uniform motion is thus kept, also at the ends of a clip. A learned filter of the residual from the
    line is added: `filter`, shared by all clips, and one that an MLP predicts from the path, separately for x and y.
    Both are initialized to zero.

    Args:
        past: Frames before the current one.
        future: Frames after the current one.
        width: Channels of the summary.
        hidden: Hidden channels of the MLP.
    """

    times: Tensor
    filter_scale: Tensor

    def __init__(self, past: int, future: int, width: int, hidden: int) -> None:
        super().__init__()
        frames = past + 1 + future
        steps = torch.arange(-past, future + 1).float()
        self.register_buffer("times", steps / max(past, future), persistent=False)
        self.register_buffer("filter_scale", FILTER_SCALE / (1 + (steps / KERNEL_SIGMA).square()), persistent=False)
        self.kernel = nn.Parameter(-0.5 * (steps / KERNEL_SIGMA).square())
        self.slope = nn.Parameter(torch.ones(()))
        self.filter = nn.Parameter(torch.zeros(frames))
        self.mlp = nn.Sequential(
            nn.Linear(2 * frames + 4 + width, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, frames + 1),
        )
        last = self.mlp[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, path: Tensor, valid: Tensor, summary: Tensor) -> Tensor:
        """Compute the temporal weights.

        Args:
            path: B x T x 2, pixels, motion of the center of the frame.
            valid: B x T, valid fraction of each frame, 0 to 1.
            summary: B x width, features of the window.

        Returns:
            Weights of the x and y positions, B x 2 x T.
        """
        valid = (valid / (valid + HALF_WEIGHT_FRACTION) * (1 + HALF_WEIGHT_FRACTION))[:, None]
        weights = self.kernel.softmax(dim=0) * valid  # B x 1 x T
        weights = weights / weights.sum(dim=2, keepdim=True).clamp_min(1e-6)
        mean_time = (weights * self.times).sum(dim=2, keepdim=True)
        offset = self.times - mean_time
        slope_weights = weights * offset / ((weights * offset.square()).sum(dim=2, keepdim=True) + SLOPE_REGULARIZATION)
        path = path.transpose(1, 2)  # B x 2 x T
        change = self._predict_change(path, valid, (weights - mean_time * slope_weights, slope_weights), summary)
        line = weights - (self.slope + change[..., -1:]) * mean_time * slope_weights
        filter_weights = (self.filter + change[..., :-1]) * self.filter_scale * valid
        # Subtract the response of the filter to a line, so that it only acts on the residual.
        line_response = (
            filter_weights.sum(dim=2, keepdim=True) * line
            + (filter_weights * self.times).sum(dim=2, keepdim=True) * slope_weights
        )
        return line + filter_weights - line_response

    def _predict_change(self, path: Tensor, valid: Tensor, line: tuple[Tensor, Tensor], summary: Tensor) -> Tensor:
        """Predict the changes of the filter and of the factor of the slope for this path: B x 2 x (T + 1)."""
        intercept, slope = ((path * weights).sum(dim=2, keepdim=True) for weights in line)
        residual = (path - intercept - slope * self.times) * valid
        scale = (residual.square().mean(dim=2, keepdim=True) + MIN_DEVIATION * MIN_DEVIATION).sqrt()
        shape = path.shape[0], 2, -1
        axis = torch.stack((torch.zeros_like(scale[:, 0]), torch.ones_like(scale[:, 0])), dim=1)
        inputs = (
            residual / scale,
            valid.expand(shape),
            scale.log(),
            intercept / scale,
            slope / scale / len(self.times),
            axis,
        )
        result: Tensor = self.mlp(torch.cat((*inputs, summary[:, None].expand(shape)), dim=2))
        return result


VERTICES = 8
"""Vertices along a side of the coarse grid of the "grid" regressor."""
NUM_AFFINE_TERMS = 3
"""Number of affine terms of a smooth field: 1, x, y."""


@dataclass(frozen=True)
class StabilizationPrediction:
    """Output of the stabilization head.

    Attributes:
        warps: One for each stage, the final one last, B x 2 x h x w, pixels of the input frame: the offset from each
            position of the stable frame to the shaky frame. The stable frame shows at p what the shaky frame shows at
            p + warp(p).
    """

    warps: tuple[Tensor, ...]


@dataclass(frozen=True)
class StageOutput:
    """Output of one stage.

    Attributes:
        summary: B x C, mean token.
        residual_weight: B x 1 x h x w, 0 to 1, weight of the filtered residual motion of each cell.
        affine: B x 3 x 2, pixels, coefficients of 1, x and y of a smooth correction that is added to the warp.
        field: B x 2 x h x w, pixels, correction of each cell that is added to the warp.
    """

    summary: Tensor
    residual_weight: Tensor
    affine: Tensor
    field: Tensor


class StabilizationStage(nn.Module):
    """One stage: embeds trajectories and features of the frame, mixes the cells by CAP and LS, predicts corrections.

    Args:
        config: Configuration of the model.
        window: T, frames of a trajectory; each has 3 values, x, y and confidence.
    """

    def __init__(self, config: ModelConfig, window: int) -> None:
        super().__init__()
        width = config.stabilization.hidden_dim
        self.trajectory_proj = nn.Linear(3 * window, width)
        self.feature_proj = nn.Linear(config.encoder.embed_dims[-1], width)
        self.blocks = nn.ModuleList(build_block(config.encoder, width) for _ in range(config.stabilization.num_layers))
        self.norm = TokenNorm(width)
        self.cell_head = nn.Linear(width, 3)
        self.frame_head = nn.Linear(width, 2 * NUM_AFFINE_TERMS)
        for head in (self.cell_head, self.frame_head):  # zero corrections at first
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, maps: Tensor, trajectories: Trajectories) -> StageOutput:
        """Run the stage.

        Args:
            maps: B x C x h x w, features of the encoder.
            trajectories: Trajectories of the cells.
        """
        size, width = map_size(maps), maps.shape[3]
        # Divided by an eighth of the frame's width, so that a strong shake is about as large as the confidence.
        trajectory = torch.cat((trajectories.displacements / width, trajectories.confidence), dim=2).flatten(1, 2)
        encoding = sine_positions(pixel_grid(*size, device=maps.device).flatten(1).T, self.norm.normalized_shape[0])
        tokens = self.trajectory_proj(maps_to_tokens(trajectory)) + self.feature_proj(maps_to_tokens(maps)) + encoding
        for block in self.blocks:
            tokens, _ = block(tokens, size, False)
        with full_precision(tokens):
            tokens = self.norm(tokens.float())
            cells, summary = tokens_to_maps(self.cell_head(tokens), size), tokens.mean(dim=1)
            affine = self.frame_head(summary).unflatten(1, (NUM_AFFINE_TERMS, 2))
            return StageOutput(summary, cells[:, 2:].sigmoid(), CELL * affine, CELL * cells[:, :2])


class StabilizationHead(nn.Module):
    """Stabilization head: predicts the warp from a stable frame to the shaky one.

    Args:
        config: Configuration of the model; its `stabilization` section defines the head.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config.stabilization
        past, future = self.config.window
        width = self.config.hidden_dim
        self.path_filter = PathFilter(past, future, width, 2 * width)
        self.stages = nn.ModuleList(
            StabilizationStage(config, past + 1 + future) for _ in range(self.config.num_stages)
        )

    def forward(self, features: Tensor, trajectories: Trajectories) -> StabilizationPrediction:
        """Predict the warps of all stages.

        Args:
            features: B x C x h x w, features of the current frame at 1/8.
            trajectories: Trajectories of the cells of the current frame.

        Raises:
            ValueError: If the shapes do not fit.
        """
        self._check_shapes(features, trajectories)
        warp, warps = torch.zeros_like(trajectories.displacements[:, 0]), []
        for stage in self.stages:
            warp = self._update_warp(stage, features.float(), trajectories, warp.detach())
            warps.append(warp)
        return StabilizationPrediction(tuple(warps))

    def _update_warp(self, stage: nn.Module, features: Tensor, trajectories: Trajectories, warp: Tensor) -> Tensor:
        """Return the warp after a stage. features: B x C x h x w, of the current frame."""
        size = map_size(features)
        with full_precision(warp):
            warped = resample_trajectories(trajectories, warp)
            maps = sample(features, pixel_grid(*size, device=warp.device) + warp / CELL, "border")
            smooth = fit_fields(warped.displacements, warped.confidence)
        output: StageOutput = stage(maps, warped)
        with full_precision(warp):
            coefficients, terms = smooth.coefficients, cell_terms(*size, device=warp.device)
            filters = self.path_filter(coefficients[:, :, 0], smooth.weights.mean(dim=(2, 3, 4)), output.summary)
            residual = smooth.weights * (warped.displacements - evaluate_fields(coefficients, terms))
            frame_motion = torch.einsum("bct,btnc->bnc", filters, coefficients)
            cell_motion = torch.einsum("bct,btchw->bchw", filters, residual)
            affine_motion, quadratic_motion = frame_motion[:, :NUM_AFFINE_TERMS], frame_motion[:, NUM_AFFINE_TERMS:]
            # The corrections have the sign of the warp, which is opposite to that of the motion.
            frame_motion = torch.cat((affine_motion - output.affine, quadratic_motion), dim=1)
            return warp - self._combine_motion(frame_motion, output.residual_weight * cell_motion - output.field)

    def _combine_motion(self, frame_motion: Tensor, cell_motion: Tensor) -> Tensor:
        """Add a smooth field, B x 6 x 2, and a field of all cells, B x 2 x h x w, as the regressor represents warps."""
        size = map_size(cell_motion)
        if self.config.regressor == "field":
            return evaluate_fields(frame_motion, cell_terms(*size, device=cell_motion.device)) + cell_motion
        vertices = torch.linspace(-1, 1, VERTICES, device=cell_motion.device, dtype=torch.float32)
        rows, columns = (_interpolation_weights(side, vertices) for side in size)
        averages = (weights / weights.sum(dim=0).clamp_min(1e-6) for weights in (rows, columns))
        vertex_motion = next(averages).T @ cell_motion @ next(averages)
        return rows @ (evaluate_fields(frame_motion, terms_at(vertices, vertices)) + vertex_motion) @ columns.T

    def _check_shapes(self, features: Tensor, trajectories: Trajectories) -> None:
        past, future = self.config.window
        batch, _, height, width = features.shape
        shapes = tuple(trajectories.displacements.shape), tuple(trajectories.confidence.shape)
        frames = past + 1 + future
        expected = (batch, frames, 2, height, width), (batch, frames, 1, height, width)
        if shapes != expected:
            raise ValueError(
                f"features of {tuple(features.shape)} need trajectories of {expected[0]} and {expected[1]}, not "
                f"{shapes[0]} and {shapes[1]}"
            )


def _interpolation_weights(cells: int, vertices: Tensor) -> Tensor:
    """Return the linear interpolation weights of cell centers between vertices evenly spaced from -1 to 1.

    Returns:
        cells x vertices; each row sums to 1.
    """
    centers = (2 * torch.arange(cells, device=vertices.device).float() + 1) / cells - 1
    distance = (centers[:, None] - vertices).abs() * (len(vertices) - 1) / 2
    return (1 - distance).clamp_min(0)
