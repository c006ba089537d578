"""What every layer of an encoder did with its images, step by step, and what becomes of them without a prototype."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor

from protoformer.model.convergence import trajectory
from protoformer.model.encoder import STRIDES, Encoder, Mixer
from protoformer.model.fused.plain import nearest_prototype
from protoformer.model.prototyping import Prototypes, Prototyping


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One layer's work on a batch of images.

    stage, block: which layer, both from 1. stride: how much smaller than the image its map is. prototyping: its own.
    tokens: B x HW x C, what was prototyped. size: (H, W) of the map. centres: N + 1 of B x K x C, the pooled start and
    what each of the N steps of EM made of it. assignments: N + 1 of B x HW, int64, by the centres of each; the last are
    those that the network itself found and used.
    """

    stage: int
    block: int
    stride: int
    prototyping: Prototyping
    tokens: Tensor
    size: tuple[int, int]
    centres: tuple[Tensor, ...]
    assignments: tuple[Tensor, ...]


def mixer_of(encoder: Encoder, stage: int, block: int) -> Mixer:
    """The mixer of a layer; stage and block count from 1."""
    return cast(Mixer, cast(Any, encoder.stages[stage - 1]).blocks[block - 1].mixer)


@torch.no_grad()
def traced(encoder: Encoder, images: Tensor) -> tuple[LayerTrace, ...]:
    """Every layer's trace of images, B x 3 x H x W in [-1, 1], in their order."""
    places = [
        (stage, block) for stage, each in enumerate(encoder.stages, 1) for block in range(1, len(_blocks(each)) + 1)
    ]
    entered: list[tuple[Tensor, tuple[int, int]]] = []
    ours = get_ident()

    def note(_: object, given: tuple[Any, ...]) -> None:
        if get_ident() == ours:  # another thread may run the same encoder meanwhile
            entered.append(given[:2])

    handles = [mixer_of(encoder, *place).register_forward_pre_hook(note) for place in places]
    try:
        found = encoder(images, prototypes=True).prototypes
    finally:
        for handle in handles:
            handle.remove()
    return tuple(
        _trace(stage, block, mixer_of(encoder, stage, block), *given, found[stage - 1][block - 1])
        for (stage, block), given in zip(places, entered, strict=True)
    )


@contextmanager
def without(mixer: Mixer, prototype: int) -> Iterator[None]:
    """Within it, the first image of every batch has one prototype less in this layer: it is found, and then taken out.

    Its pixels go to the prototype that is next nearest to them.
    """
    kept = [number for number in range(mixer.prototyping.grid[0] * mixer.prototyping.grid[1]) if number != prototype]

    def mixed_anew(_: object, given: tuple[Any, ...], output: tuple[Tensor, Prototypes | None]) -> Any:
        mixed, prototypes = output
        alone = mixer.prototyping(given[0][:1], given[1])
        fewer = Prototypes(alone.centres[:, kept], alone.memberships[:, :, kept], alone.size)
        first, _ = mixer.synchronization(given[0][:1], fewer)
        return torch.cat((first.to(mixed.dtype), mixed[1:])), prototypes

    handle = mixer.register_forward_hook(mixed_anew)
    try:
        yield
    finally:
        handle.remove()


def _blocks(stage: Any) -> Any:
    return stage.blocks


def _trace(
    stage: int, block: int, mixer: Mixer, tokens: Tensor, size: tuple[int, int], found: Prototypes
) -> LayerTrace:
    prototyping = mixer.prototyping
    centres = [*trajectory(prototyping, tokens, size, prototyping.iterations)[:-1], found.centres]
    if found.assignment is None:
        assignments = [_most_a_member(prototyping, tokens, size, each) for each in centres[:-1]]
    else:
        assignments = [nearest_prototype(tokens, each) for each in centres[:-1]]
    return LayerTrace(
        stage, block, STRIDES[stage - 1], prototyping, tokens, size, tuple(centres), (*assignments, found.owners)
    )


def _most_a_member(prototyping: Prototyping, tokens: Tensor, size: tuple[int, int], centres: Tensor) -> Tensor:
    """Where nothing is assigned: the prototype of which each pixel is most a member, averaged over heads, B x HW."""
    keys, _ = prototyping.keys_and_values(tokens)
    return prototyping.memberships(centres, keys, size).mean(dim=1).argmax(dim=1)
