"""What every family shares: the light and the air, the film, the hand that holds the camera, the sky."""

import math

import torch
from torch import Tensor

from protoformer.world.assembly import Assembly, Look, vectors
from protoformer.world.chance import Draws
from protoformer.world.paths import Path
from protoformer.world.scene import Air, Film

SKY_RADIUS = 2000.0
"""Metres."""


def air(draws: Draws, fog: tuple[float, float] = (0.0005, 0.02), foggy: float = 0.3) -> Air:
    """A sun above the horizon. fog: least and most, per metre, where there is any, which is in the share `foggy`."""
    height, heading = draws.uniform("sun.height", 0.3, 1.3), draws.uniform("sun.heading", 0.0, 2 * math.pi)
    sun = vectors(height.cos() * heading.cos(), -height.sin(), height.cos() * heading.sin())
    grey = draws.uniform("fog.grey", 0.45, 0.9, (1,))
    return Air(
        sun=sun,
        ambient=draws.uniform("sun.ambient", 0.35, 0.75),
        sunlight=1 + draws.uniform("sun.colour", -0.08, 0.08, (3,)),
        fog=draws.log_uniform("fog.density", *fog) * draws.whether("fog.is", foggy),
        fog_colour=(grey + draws.uniform("fog.colour", -0.08, 0.08, (3,))).clamp(0, 1),
    )


def film(draws: Draws, focus: tuple[float, float] = (2.0, 20.0)) -> Film:
    """A camera's habits: some scenes are sharp and clean, some are not. focus: least and most, metres."""
    still = torch.zeros(len(draws), 3, dtype=torch.float64)
    flicker = draws.normal("film.flicker", 0.0, 0.06, (1, 2)) * draws.whether("film.flickers", 0.5, (1, 1))
    return Film(
        shutter=draws.uniform("film.shutter", 0.2, 0.9) * draws.whether("film.blur", 0.7),
        aperture=draws.log_uniform("film.aperture", 1.0, 12.0) * draws.whether("film.soft", 0.3),
        focus=draws.log_uniform("film.focus", *focus),
        exposure=Path.of(still + draws.normal("film.gain", 0.0, 0.05, (3,))).with_waves(
            flicker, draws.uniform("film.rate", 0.2, 4.0, (1, 2)), draws.uniform("film.phase", 0.0, 6.28, (1, 2))
        ),
        gamma=draws.log_uniform("film.gamma", 0.85, 1.2),
        lift=draws.uniform("film.lift", -0.02, 0.04),
        vignette=draws.uniform("film.vignette", -0.2, 0.4).clamp_min(0),
        read=draws.log_uniform("film.read", 0.001, 0.02),
        shot=draws.log_uniform("film.shot", 0.002, 0.03),
        quality=draws.uniform("film.quality", 40.0, 97.0),
        key=draws.integer("film.key", 0, 2**31),
    )


def sky(assembly: Assembly) -> None:
    """Bright, with wide clouds; it closes every scene, so that every ray meets something."""
    radius = torch.full((assembly.batch, 1, 3), SKY_RADIUS, dtype=torch.float64)
    blue = (0.88, 1.0, 1.14)
    look = Look(repeat=(900.0, 2500.0), contrast=(0.1, 0.4), tone=(0.6, 0.8), tint=0.06, colour=blue, gloss=0.0)
    assembly.add("sky", "sky", torch.zeros(assembly.batch, 1, 3), radius, look=look)


def hand(draws: Draws, strength: float = 1.0) -> tuple[Path, Path]:
    """The shake of a hand: position along the camera's axes and turn about them, of B x 3; none at strength 0.

    Tremor and sway from 0.4 to 12 Hz whose amplitude falls as the frequency grows, and in some scenes the steps of
    someone who walks: up and down twice, and sideways once, in every two steps.
    """
    if not strength:
        return Path.of(torch.zeros(len(draws), 3)), Path.of(torch.zeros(len(draws), 3))
    size = strength * draws.log_uniform("hand.size", 0.4, 2.0, (1, 1))
    waves = 10
    still = torch.zeros(len(draws), 3, dtype=torch.float64)

    def tremor(name: str, amplitude: Tensor) -> Path:
        frequency = draws.log_uniform(f"{name}.frequency", 0.4, 12.0, (3, waves))
        falling = draws.normal(f"{name}.amplitude", 0.0, 1.0, (3, waves)) / (1 + frequency) / math.sqrt(waves / 2)
        phase = draws.uniform(f"{name}.phase", 0.0, 2 * math.pi, (3, waves))
        return Path.of(still).with_waves(size * amplitude * falling, frequency, phase)

    # About a degree and a few millimetres; least about the optical axis.
    turn = tremor("hand.turn", torch.tensor([0.045, 0.045, 0.025], dtype=torch.float64)[:, None])
    shift = tremor("hand.shift", torch.tensor([0.012, 0.012, 0.008], dtype=torch.float64)[:, None])
    walks = draws.whether("hand.walks", 0.5, (1, 1)) * size
    step, phase = draws.uniform("hand.step", 1.6, 2.2, (1, 1)), draws.uniform("hand.foot", 0.0, 6.28, (1, 1))
    halves = torch.tensor([0.5, 1.0, 1.0], dtype=torch.float64)[:, None]
    sway = torch.tensor([0.015, 0.025, 0.01], dtype=torch.float64)[:, None]
    nod = torch.tensor([0.008, 0.006, 0.008], dtype=torch.float64)[:, None]
    return (
        shift.with_waves(walks * sway, step * halves, phase),
        turn.with_waves(walks * nod, step * halves.flip(0), phase + 1.0),
    )
