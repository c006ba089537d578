"""Fixtures for synthetic scenes: a small texture bank and hand-written scenes."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.synthetic.assembly import Assembly, Material
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.scene import Atmosphere, Camera, MotionPath, Scenes, Sensor
from protoformer.synthetic.texture_bank import TextureBank, procedural_bank

Compose = Callable[..., Scenes]
VECTORS = ("base", "offset", "ripple")
PATHS = ("position", "spin", "stretch")
MATTE = Material(repeat=(2.0, 2.0), contrast=(0.6, 0.6), tint=0.0, gloss=0.0)


@pytest.fixture(scope="session")
def bank() -> TextureBank:
    """A bank of small textures; building the default one takes seconds."""
    return procedural_bank(side=64, each=3)


def path_of(*powers: tuple[float, ...], per_object: bool = False) -> MotionPath:
    """Build a polynomial path for one scene from its value at time 0, its velocity and so on."""
    values = [torch.tensor(power, dtype=torch.float64)[None] for power in powers]
    return MotionPath.of(*(value[:, None] for value in values) if per_object else values)


def _parse_object(options: dict[str, object]) -> dict[str, object]:
    """Convert lists of numbers to the arguments of `Assembly.add` for one object of one scene."""
    made = dict(options)
    for key in PATHS:
        if key in made:
            value = made[key]
            powers = value if isinstance(value, list) else [value]
            made[key] = path_of(*powers, per_object=True)  # type: ignore[misc]
    for key in (*VECTORS, "extent"):
        if key in made:
            made[key] = torch.as_tensor(made[key], dtype=torch.float64)[None, None]
    if "texture" in made:
        made["texture"] = torch.full((1, 1), made["texture"], dtype=torch.float64)  # type: ignore[arg-type]
    if "alive" in made:
        made["alive"] = torch.full((1, 1), made["alive"])  # type: ignore[arg-type]
    return {"material": MATTE, "extent": torch.ones(1, 1, 3, dtype=torch.float64), **made}


@pytest.fixture(scope="session")
def compose(bank: TextureBank) -> Compose:
    """Compose one scene from dictionaries of arguments of `Assembly.add`, with `kind`, in plain numbers.

    A path is a tuple, its value, or a list of tuples: the value at time 0, the velocity and so on. Frames are a second
    apart. All light is ambient unless a sun is given.
    """

    def compose_scene(
        *things: dict[str, object],
        eye: tuple[float, ...] | list[tuple[float, ...]] = (0.0, 0.0, 0.0),
        turn: tuple[float, ...] | list[tuple[float, ...]] = (0.0, 0.0, 0.0),
        shake: tuple[float, ...] | list[tuple[float, ...]] = (0.0, 0.0, 0.0),
        shake_turn: tuple[float, ...] | list[tuple[float, ...]] = (0.0, 0.0, 0.0),
        size: tuple[int, int] = (48, 64),
        focal: tuple[float, float] = (60.0, 60.0),
        center: tuple[float, float] | None = None,
        sun: tuple[float, float, float] = (0.0, -1.0, 0.0),
        ambient: float = 1.0,
    ) -> Scenes:
        assembly = Assembly(SceneRandom(0, [0]), bank.surfaces, bank.cutouts)
        for number, options in enumerate(things):
            assembly.add(name=f"thing {number}", **_parse_object(options))  # type: ignore[arg-type]
        height, width = size
        middle = (0.5 * (width - 1), 0.5 * (height - 1)) if center is None else center

        def path(value: tuple[float, ...] | list[tuple[float, ...]]) -> MotionPath:
            return path_of(*(value if isinstance(value, list) else [value]))

        def numbers(*values: float) -> Tensor:
            return torch.tensor([values], dtype=torch.float64)

        zero, one = numbers(0.0)[0], numbers(1.0)[0]
        return Scenes(
            primitives=assembly.primitives(),
            camera=Camera(
                focal=numbers(*focal),
                center=numbers(*middle),
                position=path(eye),
                turn=path(turn),
                base=torch.eye(3, dtype=torch.float64)[None],
                shake=path(shake),
                shake_turn=path(shake_turn),
            ),
            atmosphere=Atmosphere(
                sun=numbers(*sun) / numbers(*sun).norm(),
                ambient=ambient * one,
                sunlight=numbers(1.0, 1.0, 1.0),
                fog=zero,
                fog_color=numbers(0.5, 0.5, 0.5),
            ),
            sensor=Sensor(
                shutter=zero,
                aperture=zero,
                focus=5 * one,
                exposure=path((0.0, 0.0, 0.0)),
                gamma=one,
                lift=zero,
                vignette=zero,
                read=zero,
                shot=zero,
                quality=100 * one,
                key=torch.zeros(1, dtype=torch.int64),
            ),
            size=size,
            fps=1.0,
            names=("by hand",),
        )

    return compose_scene


@pytest.fixture(scope="session")
def dilated() -> Callable[[Tensor, int], Tensor]:
    """Dilate masks, B x 1 x H x W."""

    def dilate(mask: Tensor, by: int) -> Tensor:
        return F.max_pool2d(mask.float(), 2 * by + 1, stride=1, padding=by) > 0

    return dilate
