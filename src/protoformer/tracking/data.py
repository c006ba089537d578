"""Training pairs for tracking: reference and search crops from synthetic scenes and from clips on disk."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.datasets.augmentation.flow import Augmentation
from protoformer.datasets.augmentation.photometric import Jitter, Key, jitter
from protoformer.datasets.base import Dataset
from protoformer.errors import InputError
from protoformer.geometry.regions import Crops, box_centers, clip_boxes
from protoformer.io.image import read_image
from protoformer.models.config import ModelConfig
from protoformer.synthetic.ground_truth import sample_targets, track_frames
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import TrackClip, TrackPairs, TrackSequence
from protoformer.synthetic.scene import to_device

MAX_OFFSET, SCALE_STD = 4.5 / 6, 0.5
"""Range of the random offset of a search crop, in its sides, and standard deviation of its log scale.

As published: 4.5 target sizes where a search crop is 6 target sizes wide. These simulate the search for a lost target.
"""
FOLLOWED, NEAR_OFFSET_STD, NEAR_SCALE_STD = 0.7, 0.1, 0.2
"""Fraction of search crops that simulate a target visible in the previous frame, and the standard deviations of their
offset, in sides, and of their log scale."""
MAX_DEVIATIONS = 1.5
"""Standard deviations at which a log scale is clipped."""
ELSEWHERE, MIN_ROOM = 0.1, 0.65
"""Fraction of search crops that lie next to the target, where the frame extends by so many of their sides."""
NEGATIVES = 0.15
"""Fraction of search crops whose target comes from another scene."""
MIN_COVERAGE, MIN_VISIBLE, MAX_ABSENT = 0.5, 0.3, 0.05
"""Visible fractions of a target: required in the reference and inside the search crop; required in the search frame to
count as located; allowed to count as absent."""
MIN_SIZE = 6.0
"""Smallest square root of the area of a reference box, pixels."""
COLOR, HUE, GRAY, BLURRED = 0.25, 0.15, 0.05, 0.2
"""Strength of brightness, contrast and saturation jitter; hue jitter, radians; fraction of gray pairs; fraction of
blurred search crops."""


@dataclass(frozen=True)
class CropViews:
    """Frames with one target each.

    Attributes:
        images: N x 3 x H x W.
        boxes: N x 4, (x, y, w, h) in pixels, NaN if unknown.
        visible: N, visible fraction of the target.
    """

    images: Tensor
    boxes: Tensor
    visible: Tensor

    def on_image(self) -> Tensor:
        """Return the boxes clipped to the images, N x 4, finite."""
        return clip_boxes(self.boxes.nan_to_num(), self.images.shape[3], self.images.shape[2])

    def replace_where(self, other: "CropViews", mask: Tensor) -> "CropViews":
        """Return these views, replaced by the other ones where the mask, N bools, is True."""
        return CropViews(
            torch.where(mask.view(-1, 1, 1, 1), other.images, self.images),
            torch.where(mask[:, None], other.boxes, self.boxes),
            torch.where(mask, other.visible, self.visible),
        )

    def select(self, indices: Tensor) -> "CropViews":
        """Return the views at some indices."""
        return CropViews(self.images[indices], self.boxes[indices], self.visible[indices])


def cut_pairs(
    reference_views: CropViews,
    search_views: CropViews,
    negative: Tensor,
    draws: SceneRandom,
    config: ModelConfig,
    names: tuple[str, ...] = (),
) -> TrackPairs:
    """Cut and augment pairs of crops, on the device of the images.

    Args:
        reference_views: N frames from which the templates are cut.
        search_views: N frames in which the targets are searched.
        negative: N, bool, on the CPU: whether the target does not belong to the search frame.
        draws: Source of all random numbers.
        config: Sizes of the crops.
        names: Names of the pairs.

    Returns:
        N pairs.
    """
    device, boxes = reference_views.images.device, reference_views.on_image()
    full_area = reference_views.boxes[:, 2:].nan_to_num().prod(dim=1).clamp_min(1)
    area = boxes[:, 2:].prod(dim=1)
    usable = (reference_views.visible >= MIN_COVERAGE) & (area >= MIN_COVERAGE * full_area) & (area >= MIN_SIZE**2)
    factor = config.tracking.search_scale * config.tracking.template_size / config.tracking.search_size
    reference_crops = Crops.around(boxes, factor, config.tracking.template_size)
    truth = search_views.on_image()
    frame_size = (search_views.images.shape[2], search_views.images.shape[3])
    search_crops = _sample_search_crops(truth, boxes, frame_size, draws, config)
    search_boxes = search_crops.boxes_in(truth)
    clipped = clip_boxes(search_boxes, search_crops.size, search_crops.size)
    fraction = clipped[:, 2:].prod(dim=1) / search_boxes[:, 2:].prod(dim=1).clamp_min(1e-6)
    fraction = fraction.where(search_views.visible > MAX_ABSENT, 0.0)
    other = to_device(negative, device)
    located = usable & ~other & (fraction >= MIN_COVERAGE) & (search_views.visible >= MIN_VISIBLE)
    pairs = TrackPairs(
        reference=reference_crops.cut(reference_views.images, _mean_color(reference_views.images)).clamp(0, 1),
        reference_boxes=reference_crops.boxes_in(boxes),
        search=search_crops.cut(search_views.images, _mean_color(search_views.images)).clamp(0, 1),
        boxes=search_boxes,
        located=located,
        judged=located | (usable & (other | (fraction <= MAX_ABSENT))),
        names=names,
    )
    return _augment(pairs, draws)


def _sample_search_crops(
    truth: Tensor, previous: Tensor, frame_size: tuple[int, int], draws: SceneRandom, config: ModelConfig
) -> Crops:
    """Sample search crops with random offset and scale.

    `truth` are the boxes of the targets, N x 4, pixels; `previous`, those in the reference frame, are used where a
    target has no box.
    """
    device, followed = truth.device, draws.bernoulli("followed", FOLLOWED)
    deviations = draws.normal("scale").clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
    scale = (torch.where(followed, NEAR_SCALE_STD, SCALE_STD) * deviations).exp()
    near = draws.normal("near", std=NEAR_OFFSET_STD, shape=(2,)).clamp(-MAX_OFFSET / 2, MAX_OFFSET / 2)
    offset = torch.where(followed[:, None], near, MAX_OFFSET * draws.uniform("centre", -0.5, 0.5, (2,)))
    boxes = torch.where((truth[:, 2:].amin(dim=1) > 0)[:, None], truth, previous)
    side = (
        config.tracking.search_scale * to_device(scale.float(), device) * boxes[:, 2:].prod(dim=1).sqrt().clamp_min(1)
    )
    away, along = draws.uniform("aside", 0.8, 1.3), draws.uniform("along", -1.0, 1.0)
    displaced, room = _displaced_centers(
        box_centers(boxes), side, to_device(away.float(), device), to_device(along.float(), device), frame_size
    )
    elsewhere = to_device(draws.bernoulli("elsewhere", ELSEWHERE), device) & (room >= MIN_ROOM * side)
    centers = box_centers(boxes) + to_device(offset.float(), device) * side[:, None]
    centers = torch.where(elsewhere[:, None], displaced, centers)
    return Crops(centers - side[:, None] / 2, side, config.tracking.search_size)


def _displaced_centers(
    centers: Tensor, side: Tensor, away: Tensor, along: Tensor, frame_size: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Compute centers of search crops that lie next to their targets and still on the frame.

    Centers, N x 2, and sides, N, are in pixels; `away` is the distance from the target towards the farthest border and
    `along` that along the other axis, N each, in sides. Returns the centers and the extent of the frame in that
    direction from the target, N, pixels.
    """
    height, width = frame_size
    x, y = centers.unbind(dim=1)
    room_x, room_y = torch.maximum(x, width - x), torch.maximum(y, height - y)
    step_x, step_y = (torch.where(center < length / 2, away, -away) for center, length in ((x, width), (y, height)))
    vertical = room_y > room_x
    x, y = x + side * torch.where(vertical, along, step_x), y + side * torch.where(vertical, step_y, along)
    return torch.stack((x.clamp(0, width), y.clamp(0, height)), dim=1), torch.maximum(room_x, room_y)


def _augment(pairs: TrackPairs, draws: SceneRandom) -> TrackPairs:
    """Flip both crops of a pair horizontally, jitter the colors of each crop, and blur some search crops."""
    device = pairs.search.device
    flipped = to_device(draws.bernoulli("mirrored", 0.5), device)
    gray, blurred = draws.bernoulli("grey", GRAY), to_device(draws.bernoulli("blurred", BLURRED), device)
    reference = _jitter_colors(_flip_images(pairs.reference, flipped), "reference", gray, draws)
    search = _jitter_colors(_flip_images(pairs.search, flipped), "search", gray, draws)
    smoothed = F.avg_pool2d(search, 3, stride=1, padding=1, count_include_pad=False)
    return TrackPairs(
        reference=reference,
        reference_boxes=_flip_boxes(pairs.reference_boxes, flipped, pairs.reference.shape[3]),
        search=torch.where(blurred.view(-1, 1, 1, 1), smoothed, search),
        boxes=_flip_boxes(pairs.boxes, flipped, pairs.search.shape[3]),
        located=pairs.located,
        judged=pairs.judged,
        names=pairs.names,
    )


def _flip_images(images: Tensor, flipped: Tensor) -> Tensor:
    return torch.where(flipped.view(-1, 1, 1, 1), images.flip(3), images)


def _flip_boxes(boxes: Tensor, flipped: Tensor, width: int) -> Tensor:
    x = torch.where(flipped, width - boxes[:, 0] - boxes[:, 2], boxes[:, 0])
    return torch.cat((x[:, None], boxes[:, 1:]), dim=1)


def _jitter_colors(images: Tensor, name: str, gray: Tensor, draws: SceneRandom) -> Tensor:
    factors = draws.uniform(f"{name} colour", 1 - COLOR, 1 + COLOR, (3,))
    hue = draws.uniform(f"{name} hue", -HUE, HUE)
    return jitter(
        images,
        [
            Jitter(brightness, contrast, 0.0 if is_gray else saturation, angle)
            for (brightness, contrast, saturation), angle, is_gray in zip(
                factors.tolist(), hue.tolist(), gray.tolist(), strict=True
            )
        ],
    )


def _mean_color(images: Tensor) -> Tensor:
    return images.mean(dim=(2, 3))


MAX_START = 2.0
"""Latest time of the earlier frame of a scene, seconds."""
GAPS, SHORT_GAPS = (0.2, 6.0), (1 / 30, 1.0)
"""Minimum and maximum time between the two frames of a scene, seconds, log-uniform: for scenes whose camera follows a
target, and for others."""
MAX_FRAME_GAP = 100
"""Largest distance between the two frames of a clip on disk, frames."""
ABSENT_SEARCHES = 0.25
"""Fraction of search frames of a clip in which the target is not visible, if there are any."""
SALT = 0x7261636B
"""Separates these random numbers from those of the scene."""


@dataclass(frozen=True)
class SyntheticPairs:
    """Makes pairs from a batch of synthetic scenes, each determined by its scene alone.

    The target of a negative pair is that of the neighboring scene: of scenes 0 and 1, 2 and 3, ...; the last scene of
    an odd batch has no negative pair. So processes with an even number of scenes each make the pairs that one process
    would make.

    Attributes:
        config: Sizes of the crops.
    """

    config: ModelConfig

    def __call__(self, renderer: Renderer, render_pass: str) -> TrackPairs:
        """Render a batch of pairs on the renderer's device.

        Args:
            renderer: Renderer of the scenes.
            render_pass: Render pass, "clean" or "final".
        """
        scenes = renderer.scenes
        draws = SceneRandom(SALT, scenes.sensor.key)
        start = draws.uniform("begin", 0.0, MAX_START)
        gap = draws.log_uniform("gap", *(GAPS if scenes.target else SHORT_GAPS))
        backwards = draws.bernoulli("backwards", 0.5)
        times = torch.where(backwards, start + gap, start), torch.where(backwards, start, start + gap)
        clip = track_frames(renderer, render_pass, times, partial(sample_targets, draws=draws))
        own = torch.arange(scenes.count)
        neighbor = torch.where((own ^ 1) < scenes.count, own ^ 1, own)
        negative = draws.bernoulli("stranger", NEGATIVES) & (neighbor != own)
        first, second = _clip_views(clip, 0), _clip_views(clip, 1)
        # A target that is occluded in the first frame and visible in the second uses the second as its reference.
        swap = (first.visible < MIN_COVERAGE) & (second.visible >= MIN_COVERAGE)
        reference, search = first.replace_where(second, swap), second.replace_where(first, swap)
        reference = reference.select(to_device(torch.where(negative, neighbor, own), renderer.device))
        return cut_pairs(reference, search, negative, draws, self.config, clip.names)


def _clip_views(clip: TrackClip, frame: int) -> CropViews:
    return CropViews(clip.frames[:, frame], clip.boxes[:, frame], clip.visible[:, frame])


@dataclass(frozen=True)
class ClipPairs:
    """Makes a pair from two frames of a clip on disk, determined by a key alone.

    Attributes:
        config: Sizes of the crops.
    """

    config: ModelConfig

    def __call__(self, dataset: Dataset[Any], index: int, _: Augmentation, key: Key) -> TrackPairs:
        """Read a pair, N = 1, on the CPU.

        Args:
            dataset: Dataset of `TrackSequence`.
            index: Index of the clip.
            _: Unused.
            key: Seed, epoch and sample number.
        """
        seed, epoch, number = key
        draws = SceneRandom(seed ^ SALT, [(epoch << 32) + number])
        clip = _read_sequence(dataset, index)
        reference = _choose_frame(clip.present.nonzero()[:, 0], draws, "reference")
        negative = draws.bernoulli("stranger", NEGATIVES) & (len(dataset) > 1)
        search = _sequence_view(clip, _choose_search_frame(clip, reference, draws))
        if bool(negative):
            other = (index + 1 + int(draws.integer("other", 0, len(dataset) - 1))) % len(dataset)
            clip = _read_sequence(dataset, other)
            reference = _choose_frame(clip.present.nonzero()[:, 0], draws, "stranger's reference")
        names = (f"{dataset.name} {dataset.names[index]}",)
        return cut_pairs(_sequence_view(clip, reference), search, negative, draws, self.config, names)


def _read_sequence(dataset: Dataset[Any], index: int) -> TrackSequence:
    clip = dataset[index]
    if not isinstance(clip, TrackSequence) or not bool(clip.present.any()):
        raise InputError(f"no frame of {dataset.names[index]} has a box, so it cannot be used for training.")
    return clip


def _choose_search_frame(clip: TrackSequence, reference: int, draws: SceneRandom) -> int:
    """Choose a frame near the reference in which the target is visible, or, sometimes, one in which it is not."""
    near = torch.zeros_like(clip.present)
    near[max(0, reference - MAX_FRAME_GAP) : reference + MAX_FRAME_GAP + 1] = True
    absent = (near & ~clip.present).nonzero()[:, 0]
    use_absent = bool(draws.bernoulli("hidden", ABSENT_SEARCHES)) and len(absent) > 0
    return _choose_frame(absent if use_absent else (near & clip.present).nonzero()[:, 0], draws, "search")


def _choose_frame(frames: Tensor, draws: SceneRandom, name: str) -> int:
    return int(frames[int(draws.integer(name, 0, len(frames)))])


def _sequence_view(clip: TrackSequence, frame: int) -> CropViews:
    image = torch.from_numpy(read_image(clip.frames[frame])).permute(2, 0, 1)[None]
    return CropViews(image, clip.boxes[frame : frame + 1].float(), clip.present[frame : frame + 1].float())
