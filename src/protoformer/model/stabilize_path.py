"""The path of a camera made smooth: a line through the frames around now, and a filter of what strays from it."""

import torch
from torch import Tensor, nn

KERNEL = 14.0
"""Frames, the deviation of the Gaussian that the kernel begins as."""
STIFFNESS = 1e-4
"""Of the line's slope: with hardly any frames beside now there is none."""
QUIET = 0.5
"""Pixels: a path that strays less than this is not looked at any closer."""
REACH = 0.1
"""What 1 means in the filter, at now; far from it less, as paths stray the more from a line the longer it is."""
ENOUGH = 0.05
"""Share of the places of a frame that must be known for the frame to count by half."""


class PathFilter(nn.Module):
    """Weights over the frames of a window, by which a trail's stable place at now is a sum of its places.

    A line is fitted to the window by least squares, weighted by a kernel over time (a softmax of `kernel`) and by how
    much is known of each frame; its value at now is the stable place. So whatever moves evenly stays as it is, at the
    ends of a clip too. To that a filter of what strays from the line is added: `filter`, the same for all clips, and
    what a perceptron makes of the path itself, each direction by itself. Both begin at zero.

    past, future: frames beside now. width: channels of the summary of what is seen. hidden: of the perceptron.
    """

    moments: Tensor
    reach: Tensor

    def __init__(self, past: int, future: int, width: int, hidden: int) -> None:
        super().__init__()
        frames = past + 1 + future
        steps = torch.arange(-past, future + 1).float()
        self.register_buffer("moments", steps / max(past, future), persistent=False)
        self.register_buffer("reach", REACH / (1 + (steps / KERNEL).square()), persistent=False)
        self.kernel = nn.Parameter(-0.5 * (steps / KERNEL).square())
        self.slope = nn.Parameter(torch.ones(()))
        self.filter = nn.Parameter(torch.zeros(frames))
        self.perceptron = nn.Sequential(
            nn.Linear(2 * frames + 4 + width, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, frames + 1),
        )
        last = self.perceptron[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, path: Tensor, known: Tensor, summary: Tensor) -> Tensor:
        """The weights, B x 2 x T, for the x and y of places.

        path: B x T x 2, pixels, how the middle of the frame moved; known: B x T, 0 to 1, how much is known of each
        frame; summary: B x width.
        """
        known = (known / (known + ENOUGH) * (1 + ENOUGH))[:, None]
        shares = self.kernel.softmax(dim=0) * known  # B x 1 x T
        shares = shares / shares.sum(dim=2, keepdim=True).clamp_min(1e-6)
        middle = (shares * self.moments).sum(dim=2, keepdim=True)
        apart = self.moments - middle
        slopes = shares * apart / ((shares * apart.square()).sum(dim=2, keepdim=True) + STIFFNESS)
        path = path.transpose(1, 2)  # B x 2 x T
        change = self._change(path, known, (shares - middle * slopes, slopes), summary)
        line = shares - (self.slope + change[..., -1:]) * middle * slopes
        extra = (self.filter + change[..., :-1]) * self.reach * known
        taken = extra.sum(dim=2, keepdim=True) * line + (extra * self.moments).sum(dim=2, keepdim=True) * slopes
        return line + extra - taken

    def _change(self, path: Tensor, known: Tensor, line: tuple[Tensor, Tensor], summary: Tensor) -> Tensor:
        """What this path changes of the filter, and of how far the slope is believed: B x 2 x (T + 1)."""
        here, slope = ((path * weights).sum(dim=2, keepdim=True) for weights in line)
        strays = (path - here - slope * self.moments) * known
        size = (strays.square().mean(dim=2, keepdim=True) + QUIET * QUIET).sqrt()
        both = path.shape[0], 2, -1
        direction = torch.stack((torch.zeros_like(size[:, 0]), torch.ones_like(size[:, 0])), dim=1)
        said = (strays / size, known.expand(both), size.log(), here / size, slope / size / len(self.moments), direction)
        result: Tensor = self.perceptron(torch.cat((*said, summary[:, None].expand(both)), dim=2))
        return result
