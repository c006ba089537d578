"""Pairs of crops from scenes of the world, and from clips on disk."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.datasets.augmentation.flow import Augmentation
from protoformer.datasets.augmentation.photometric import Jitter, Key, jitter
from protoformer.datasets.tree import Dataset
from protoformer.errors import InputError
from protoformer.geometry.boxes import Crops, box_centers, clip_boxes
from protoformer.io.image import read_image
from protoformer.models.config import ModelConfig
from protoformer.synthetic.ground_truth import any_targets, track_frames
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import TrackClip, TrackPairs, TrackSequence
from protoformer.synthetic.scene import to_device

CENTER, SCALE = 4.5 / 6, 0.5
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
COLOR, HUE, GRAY, BLURRED = 0.25, 0.15, 0.05, 0.2
"""Strength of the change of brightness, contrast and saturation; radians; shares of pairs and of searches."""


@dataclass(frozen=True)
class CropViews:
    """Frames that show a target: images, N x 3 x H x W; boxes, N x 4, pixels, NaN if unknown; visible, N, its share."""

    images: Tensor
    boxes: Tensor
    visible: Tensor

    def on_image(self) -> Tensor:
        """What of the boxes lies on the images, and is finite: N x 4."""
        return clip_boxes(self.boxes.nan_to_num(), self.images.shape[3], self.images.shape[2])

    def other_where(self, other: "CropViews", where: Tensor) -> "CropViews":
        """These, and where N bools say so the other ones."""
        return CropViews(
            torch.where(where.view(-1, 1, 1, 1), other.images, self.images),
            torch.where(where[:, None], other.boxes, self.boxes),
            torch.where(where, other.visible, self.visible),
        )

    def chosen(self, which: Tensor) -> "CropViews":
        """Those of these numbers."""
        return CropViews(self.images[which], self.boxes[which], self.visible[which])


def cut_pairs(
    known: CropViews,
    sought: CropViews,
    stranger: Tensor,
    draws: SceneRandom,
    config: ModelConfig,
    names: tuple[str, ...] = (),
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
    share = clip_boxes(inside, far.size, far.size)[:, 2:].prod(dim=1) / inside[:, 2:].prod(dim=1).clamp_min(1e-6)
    share = share.where(sought.visible > UNSEEN, 0.0)
    other = to_device(stranger, device)
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


def _searched(truth: Tensor, before: Tensor, frame: tuple[int, int], draws: SceneRandom, config: ModelConfig) -> Crops:
    """Crops moved and scaled at random; where the target has no box, about the place where it was before.

    frame: (height, width), pixels.
    """
    device, followed = truth.device, draws.whether("followed", FOLLOWED)
    deviations = draws.normal("scale").clamp(-MOST_SCALE, MOST_SCALE)
    scale = (torch.where(followed, NEAR_SCALE, SCALE) * deviations).exp()
    near = draws.normal("near", std=NEAR, shape=(2,)).clamp(-CENTER / 2, CENTER / 2)
    offset = torch.where(followed[:, None], near, CENTER * draws.uniform("centre", -0.5, 0.5, (2,)))
    about = torch.where((truth[:, 2:].amin(dim=1) > 0)[:, None], truth, before)
    side = config.surroundings * to_device(scale.float(), device) * about[:, 2:].prod(dim=1).sqrt().clamp_min(1)
    away, along = draws.uniform("aside", 0.8, 1.3), draws.uniform("along", -1.0, 1.0)
    beside, room = _beside(
        box_centers(about), side, to_device(away.float(), device), to_device(along.float(), device), frame
    )
    elsewhere = to_device(draws.whether("elsewhere", ELSEWHERE), device) & (room >= ROOM * side)
    middle = box_centers(about) + to_device(offset.float(), device) * side[:, None]
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


def _varied(pairs: TrackPairs, draws: SceneRandom) -> TrackPairs:
    """Mirrored left to right, both crops alike; in other colors, each its own; some searches blurred."""
    device = pairs.search.device
    mirrored = to_device(draws.whether("mirrored", 0.5), device)
    gray, blurred = draws.whether("grey", GRAY), to_device(draws.whether("blurred", BLURRED), device)
    reference = _recolored(_mirrored(pairs.reference, mirrored), "reference", gray, draws)
    search = _recolored(_mirrored(pairs.search, mirrored), "search", gray, draws)
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


def _recolored(images: Tensor, name: str, gray: Tensor, draws: SceneRandom) -> Tensor:
    factors = draws.uniform(f"{name} colour", 1 - COLOR, 1 + COLOR, (3,))
    hue = draws.uniform(f"{name} hue", -HUE, HUE)
    return jitter(
        images,
        [
            Jitter(brightness, contrast, 0.0 if plain else saturation, turn)
            for (brightness, contrast, saturation), turn, plain in zip(
                factors.tolist(), hue.tolist(), gray.tolist(), strict=True
            )
        ],
    )


def _mean(images: Tensor) -> Tensor:
    return images.mean(dim=(2, 3))


BEGIN = 2.0
"""Seconds within which the earlier frame of a scene lies."""
GAPS, SHORT_GAPS = (0.2, 6.0), (1 / 30, 1.0)
"""Seconds between the two frames of a scene, least and most, short ones more often: where the camera follows a target,
and where things pass by."""
FRAMES_APART = 100
"""Most frames between the two of a clip on disk."""
SEARCHES_UNSEEN = 0.1
"""Share of the searches in a clip that are in a frame in which the target is not seen, where there is one."""
SALT = 0x7261636B
"""Sets these draws apart from those that made the scene."""


@dataclass(frozen=True)
class SyntheticPairs:
    """Makes pairs of a batch of scenes, each decided by its scene alone.

    A stranger's target is that of the scene's neighbor: of scenes 0 and 1, 2 and 3, ...; a last one without any has
    none. So processes that make an even number of scenes each make what one would.
    """

    config: ModelConfig

    def __call__(self, renderer: Renderer, look: str) -> TrackPairs:
        """(renderer, look) to a batch, on the renderer's device."""
        scenes = renderer.scenes
        draws = SceneRandom(SALT, scenes.film.key)
        begin = draws.uniform("begin", 0.0, BEGIN)
        gap = draws.log_uniform("gap", *(GAPS if scenes.target else SHORT_GAPS))
        backwards = draws.whether("backwards", 0.5)
        times = torch.where(backwards, begin + gap, begin), torch.where(backwards, begin, begin + gap)
        clip = track_frames(renderer, look, times, partial(any_targets, draws=draws))
        own = torch.arange(scenes.count)
        neighbor = torch.where((own ^ 1) < scenes.count, own ^ 1, own)
        stranger = draws.whether("stranger", STRANGERS) & (neighbor != own)
        first, second = _sights(clip, 0), _sights(clip, 1)
        # A target that the first frame hides and the second shows is known from the second, and missed in the first.
        better = (first.visible < KNOWN) & (second.visible >= KNOWN)
        known, sought = first.other_where(second, better), second.other_where(first, better)
        known = known.chosen(to_device(torch.where(stranger, neighbor, own), renderer.device))
        return cut_pairs(known, sought, stranger, draws, self.config, clip.names)


def _sights(clip: TrackClip, frame: int) -> CropViews:
    return CropViews(clip.frames[:, frame], clip.boxes[:, frame], clip.visible[:, frame])


@dataclass(frozen=True)
class ClipPairs:
    """Makes a pair of two frames of a clip on disk, decided by a key alone."""

    config: ModelConfig

    def __call__(self, dataset: Dataset[Any], index: int, _: Augmentation, key: Key) -> TrackPairs:
        """(dataset, number of the clip, unused, key) to a pair, N = 1, on the CPU."""
        seed, epoch, number = key
        draws = SceneRandom(seed ^ SALT, [(epoch << 32) + number])
        clip = _sequence(dataset, index)
        reference = _one_of(clip.present.nonzero()[:, 0], draws, "reference")
        stranger = draws.whether("stranger", STRANGERS) & (len(dataset) > 1)
        sought = _seen(clip, _search_frame(clip, reference, draws))
        if bool(stranger):
            other = (index + 1 + int(draws.integer("other", 0, len(dataset) - 1))) % len(dataset)
            clip = _sequence(dataset, other)
            reference = _one_of(clip.present.nonzero()[:, 0], draws, "stranger's reference")
        names = (f"{dataset.name} {dataset.names[index]}",)
        return cut_pairs(_seen(clip, reference), sought, stranger, draws, self.config, names)


def _sequence(dataset: Dataset[Any], index: int) -> TrackSequence:
    clip = dataset[index]
    if not isinstance(clip, TrackSequence) or not bool(clip.present.any()):
        raise InputError(f"no frame of {dataset.names[index]} has a box, so nothing can be learned from it.")
    return clip


def _search_frame(clip: TrackSequence, reference: int, draws: SceneRandom) -> int:
    """A frame near the reference that shows the target, or, now and then, one that does not."""
    near = torch.zeros_like(clip.present)
    near[max(0, reference - FRAMES_APART) : reference + FRAMES_APART + 1] = True
    hidden = (near & ~clip.present).nonzero()[:, 0]
    wanted = bool(draws.whether("hidden", SEARCHES_UNSEEN)) and len(hidden) > 0
    return _one_of(hidden if wanted else (near & clip.present).nonzero()[:, 0], draws, "search")


def _one_of(frames: Tensor, draws: SceneRandom, name: str) -> int:
    return int(frames[int(draws.integer(name, 0, len(frames)))])


def _seen(clip: TrackSequence, frame: int) -> CropViews:
    image = torch.from_numpy(read_image(clip.frames[frame])).permute(2, 0, 1)[None]
    return CropViews(image, clip.boxes[frame : frame + 1].float(), clip.present[frame : frame + 1].float())
