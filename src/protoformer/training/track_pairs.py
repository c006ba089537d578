"""What tracking learns from: a crop in which a target is known, and another one in which it is looked for."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.data.augmentation_photometric import Jitter, jitter
from protoformer.geometry.boxes import box_centres, clipped
from protoformer.geometry.crops import Crops
from protoformer.model import ModelConfig
from protoformer.world import TrackPairs
from protoformer.world.chance import Draws
from protoformer.world.scene import sent

CENTRE, SCALE = 4.5 / 6, 0.5
"""How far a search is moved: by up to half of the first, in its sides; and scaled: deviation of the logarithm.

As published: 4.5 target sizes where a search is 6 of them wide. So are searches for a target that was lost.
"""
FOLLOWED, NEAR, NEAR_SCALE = 0.7, 0.1, 0.2
"""Share of the searches that lie as those for a target that was seen a frame ago do: deviations of how far they are
moved, in their sides, and of the logarithm of their scale."""
MOST_SCALE = 1.5
"""Deviations beyond which a scale is cut."""
ELSEWHERE, ROOM = 0.1, 0.65
"""Share of the searches that lie beside the target, where the frame goes on for so many of their sides."""
STRANGERS = 0.15
"""Share of the searches for a target that is none of the scene's."""
KNOWN, SEEN, UNSEEN = 0.5, 0.3, 0.05
"""Shares of a target: one is known from a frame that shows so much of it, there if so much is seen, absent below."""
SMALLEST = 6.0
"""Pixels, the root of the area of a box, from which on a target is known."""
COLOUR, HUE, GREY, BLURRED = 0.25, 0.15, 0.05, 0.2
"""Strength of the change of brightness, contrast and saturation; radians; shares of pairs and of searches."""


@dataclass(frozen=True)
class Sights:
    """Frames that show a target: images, N x 3 x H x W; boxes, N x 4, pixels, NaN if unknown; visible, N, its share."""

    images: Tensor
    boxes: Tensor
    visible: Tensor

    def on_image(self) -> Tensor:
        """What of the boxes lies on the images, and is finite: N x 4."""
        return clipped(self.boxes.nan_to_num(), self.images.shape[3], self.images.shape[2])

    def other_where(self, other: "Sights", where: Tensor) -> "Sights":
        """These, and where N bools say so the other ones."""
        return Sights(
            torch.where(where.view(-1, 1, 1, 1), other.images, self.images),
            torch.where(where[:, None], other.boxes, self.boxes),
            torch.where(where, other.visible, self.visible),
        )

    def chosen(self, which: Tensor) -> "Sights":
        """Those of these numbers."""
        return Sights(self.images[which], self.boxes[which], self.visible[which])


def cut_pairs(
    known: Sights, sought: Sights, stranger: Tensor, draws: Draws, config: ModelConfig, names: tuple[str, ...] = ()
) -> TrackPairs:
    """Cut and vary pairs, on the device of the images.

    known: frames in which the targets are known; sought: those in which they are looked for. stranger: N, bool, on the
    CPU: that target is none of the second frame's. draws: decide everything random.
    """
    device, boxes = known.images.device, known.on_image()
    whole = known.boxes[:, 2:].nan_to_num().prod(dim=1).clamp_min(1)
    area = boxes[:, 2:].prod(dim=1)
    usable = (known.visible >= KNOWN) & (area >= KNOWN * whole) & (area >= SMALLEST**2)
    factor = config.surroundings * config.reference_side / config.search_side
    near = Crops.around(boxes, factor, config.reference_side)
    truth = sought.on_image()
    far = _searched(truth, boxes, (sought.images.shape[2], sought.images.shape[3]), draws, config)
    inside = far.boxes_in(truth)
    share = clipped(inside, far.size, far.size)[:, 2:].prod(dim=1) / inside[:, 2:].prod(dim=1).clamp_min(1e-6)
    share = share.where(sought.visible > UNSEEN, 0.0)
    other = sent(stranger, device)
    located = usable & ~other & (share >= KNOWN) & (sought.visible >= SEEN)
    pairs = TrackPairs(
        reference=near.cut(known.images, _mean(known.images)).clamp(0, 1),
        reference_boxes=near.boxes_in(boxes),
        search=far.cut(sought.images, _mean(sought.images)).clamp(0, 1),
        boxes=inside,
        located=located,
        judged=located | (usable & (other | (share <= UNSEEN))),
        names=names,
    )
    return _varied(pairs, draws)


def _searched(truth: Tensor, before: Tensor, frame: tuple[int, int], draws: Draws, config: ModelConfig) -> Crops:
    """Crops moved and scaled at random; where the target has no box, about the place where it was before.

    frame: (height, width), pixels.
    """
    device, followed = truth.device, draws.whether("followed", FOLLOWED)
    deviations = draws.normal("scale").clamp(-MOST_SCALE, MOST_SCALE)
    scale = (torch.where(followed, NEAR_SCALE, SCALE) * deviations).exp()
    near = draws.normal("near", std=NEAR, shape=(2,)).clamp(-CENTRE / 2, CENTRE / 2)
    offset = torch.where(followed[:, None], near, CENTRE * draws.uniform("centre", -0.5, 0.5, (2,)))
    about = torch.where((truth[:, 2:].amin(dim=1) > 0)[:, None], truth, before)
    side = config.surroundings * sent(scale.float(), device) * about[:, 2:].prod(dim=1).sqrt().clamp_min(1)
    away, along = draws.uniform("aside", 0.8, 1.3), draws.uniform("along", -1.0, 1.0)
    beside, room = _beside(box_centres(about), side, sent(away.float(), device), sent(along.float(), device), frame)
    elsewhere = sent(draws.whether("elsewhere", ELSEWHERE), device) & (room >= ROOM * side)
    middle = box_centres(about) + sent(offset.float(), device) * side[:, None]
    middle = torch.where(elsewhere[:, None], beside, middle)
    return Crops(middle - side[:, None] / 2, side, config.search_side)


def _beside(
    middles: Tensor, side: Tensor, away: Tensor, along: Tensor, frame: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Middles of searches that lie beside targets and still on the frame, of (height, width): N x 2, pixels; and how
    far the frame goes on to that side of the targets: N, pixels.

    middles: N x 2, of the targets. side: N, of the searches. away: N, how far, in sides, a search lies from its target
    towards the border that is farthest; along: N, the same along the other axis.
    """
    height, width = frame
    x, y = middles.unbind(dim=1)
    room_x, room_y = torch.maximum(x, width - x), torch.maximum(y, height - y)
    over_x, over_y = (torch.where(place < length / 2, away, -away) for place, length in ((x, width), (y, height)))
    down = room_y > room_x
    x, y = x + side * torch.where(down, along, over_x), y + side * torch.where(down, over_y, along)
    return torch.stack((x.clamp(0, width), y.clamp(0, height)), dim=1), torch.maximum(room_x, room_y)


def _varied(pairs: TrackPairs, draws: Draws) -> TrackPairs:
    """Mirrored left to right, both crops alike; in other colours, each its own; some searches blurred."""
    device = pairs.search.device
    mirrored = sent(draws.whether("mirrored", 0.5), device)
    grey, blurred = draws.whether("grey", GREY), sent(draws.whether("blurred", BLURRED), device)
    reference = _recoloured(_mirrored(pairs.reference, mirrored), "reference", grey, draws)
    search = _recoloured(_mirrored(pairs.search, mirrored), "search", grey, draws)
    soft = F.avg_pool2d(search, 3, stride=1, padding=1, count_include_pad=False)
    return TrackPairs(
        reference=reference,
        reference_boxes=_mirrored_boxes(pairs.reference_boxes, mirrored, pairs.reference.shape[3]),
        search=torch.where(blurred.view(-1, 1, 1, 1), soft, search),
        boxes=_mirrored_boxes(pairs.boxes, mirrored, pairs.search.shape[3]),
        located=pairs.located,
        judged=pairs.judged,
        names=pairs.names,
    )


def _mirrored(images: Tensor, mirrored: Tensor) -> Tensor:
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)


def _mirrored_boxes(boxes: Tensor, mirrored: Tensor, width: int) -> Tensor:
    x = torch.where(mirrored, width - boxes[:, 0] - boxes[:, 2], boxes[:, 0])
    return torch.cat((x[:, None], boxes[:, 1:]), dim=1)


def _recoloured(images: Tensor, name: str, grey: Tensor, draws: Draws) -> Tensor:
    factors = draws.uniform(f"{name} colour", 1 - COLOUR, 1 + COLOUR, (3,))
    hue = draws.uniform(f"{name} hue", -HUE, HUE)
    return jitter(
        images,
        [
            Jitter(brightness, contrast, 0.0 if plain else saturation, turn)
            for (brightness, contrast, saturation), turn, plain in zip(
                factors.tolist(), hue.tolist(), grey.tolist(), strict=True
            )
        ],
    )


def _mean(images: Tensor) -> Tensor:
    return images.mean(dim=(2, 3))
