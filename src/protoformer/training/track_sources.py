"""Pairs of crops from scenes of the world, and from clips on disk."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from protoformer.data.augmentation import Augmentation, Key
from protoformer.data.tree import Dataset
from protoformer.errors import InputError
from protoformer.files import read_image
from protoformer.model import ModelConfig
from protoformer.training.track_pairs import KNOWN, STRANGERS, Sights, cut_pairs
from protoformer.world import Renderer, TrackClip, TrackPairs, TrackSequence
from protoformer.world.chance import Draws
from protoformer.world.scene import sent
from protoformer.world.tasks import any_targets, track_frames

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
class WorldPairs:
    """Makes pairs of a batch of scenes, each decided by its scene alone.

    A stranger's target is that of the scene's neighbour: of scenes 0 and 1, 2 and 3, ...; a last one without any has
    none. So processes that make an even number of scenes each make what one would.
    """

    config: ModelConfig

    def __call__(self, renderer: Renderer, look: str) -> TrackPairs:
        """(renderer, look) to a batch, on the renderer's device."""
        scenes = renderer.scenes
        draws = Draws(SALT, scenes.film.key)
        begin = draws.uniform("begin", 0.0, BEGIN)
        gap = draws.log_uniform("gap", *(GAPS if scenes.target else SHORT_GAPS))
        backwards = draws.whether("backwards", 0.5)
        times = torch.where(backwards, begin + gap, begin), torch.where(backwards, begin, begin + gap)
        clip = track_frames(renderer, look, times, partial(any_targets, draws=draws))
        own = torch.arange(scenes.count)
        neighbour = torch.where((own ^ 1) < scenes.count, own ^ 1, own)
        stranger = draws.whether("stranger", STRANGERS) & (neighbour != own)
        first, second = _sights(clip, 0), _sights(clip, 1)
        # A target that the first frame hides and the second shows is known from the second, and missed in the first.
        better = (first.visible < KNOWN) & (second.visible >= KNOWN)
        known, sought = first.other_where(second, better), second.other_where(first, better)
        known = known.chosen(sent(torch.where(stranger, neighbour, own), renderer.device))
        return cut_pairs(known, sought, stranger, draws, self.config, clip.names)


def _sights(clip: TrackClip, frame: int) -> Sights:
    return Sights(clip.frames[:, frame], clip.boxes[:, frame], clip.visible[:, frame])


@dataclass(frozen=True)
class ClipPairs:
    """Makes a pair of two frames of a clip on disk, decided by a key alone."""

    config: ModelConfig

    def __call__(self, dataset: Dataset[Any], index: int, _: Augmentation, key: Key) -> TrackPairs:
        """(dataset, number of the clip, unused, key) to a pair, N = 1, on the CPU."""
        seed, epoch, number = key
        draws = Draws(seed ^ SALT, [(epoch << 32) + number])
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


def _search_frame(clip: TrackSequence, reference: int, draws: Draws) -> int:
    """A frame near the reference that shows the target, or, now and then, one that does not."""
    near = torch.zeros_like(clip.present)
    near[max(0, reference - FRAMES_APART) : reference + FRAMES_APART + 1] = True
    hidden = (near & ~clip.present).nonzero()[:, 0]
    wanted = bool(draws.whether("hidden", SEARCHES_UNSEEN)) and len(hidden) > 0
    return _one_of(hidden if wanted else (near & clip.present).nonzero()[:, 0], draws, "search")


def _one_of(frames: Tensor, draws: Draws, name: str) -> int:
    return int(frames[int(draws.integer(name, 0, len(frames)))])


def _seen(clip: TrackSequence, frame: int) -> Sights:
    image = torch.from_numpy(read_image(clip.frames[frame])).permute(2, 0, 1)[None]
    return Sights(image, clip.boxes[frame : frame + 1].float(), clip.present[frame : frame + 1].float())
