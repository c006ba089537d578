"""Example images and clips, rendered from synthetic scenes at start-up."""

from dataclasses import dataclass
from pathlib import Path

from protoformer.io.image import write_image
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.video.writer import VideoWriter
from protoformer.viz.images import to_uint8

SIZE = (240, 320)
CLIP_FRAMES = 8
SIDE, TEXTURES = 128, 2
"""Pixels of a texture, and textures of each kind, fewer than there are: nobody should wait long for the page."""


@dataclass(frozen=True)
class PairExample:
    """Two images of a scene on disk."""

    name: str
    first: Path
    second: Path


@dataclass(frozen=True)
class ImageExample:
    """An image of a scene on disk."""

    name: str
    path: Path


@dataclass(frozen=True)
class ClipExample:
    """A clip of a scene on disk."""

    name: str
    path: Path


@dataclass(frozen=True)
class Examples:
    """What a person without files of their own can pick."""

    pairs: tuple[PairExample, ...]
    clips: tuple[ClipExample, ...]


PAIRS = (("Flying objects", "objects", 3), ("A street", "drive", 0))
CLIPS = (("A walk by hand", "handheld", 1),)
"""What each is called, and the family and number of its scene."""


def render_examples(folder: Path) -> Examples:
    """Render all of them into a folder."""
    return Examples(
        tuple(render_pair(folder, *each) for each in PAIRS), tuple(render_clip(folder, *each) for each in CLIPS)
    )


def render_pair(folder: Path, name: str, family: str, number: int) -> PairExample:
    """Render two images of a scene into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    renderer = SyntheticScenes(family, size=SIZE, bank=procedural_bank(SIDE, TEXTURES)).renderer([number])
    paths = (folder / f"{family}-1.png", folder / f"{family}-2.png")
    for frame, path in enumerate(paths):
        write_image(path, to_uint8(renderer.clean(renderer.view(frame / renderer.scenes.fps))[0]))
    return PairExample(name, *paths)


def render_image(folder: Path, name: str, family: str, number: int) -> ImageExample:
    """Render an image of a scene into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    renderer = SyntheticScenes(family, size=SIZE, bank=procedural_bank(SIDE, TEXTURES)).renderer([number])
    path = folder / f"{family}.png"
    write_image(path, to_uint8(renderer.clean(renderer.view(0.0))[0]))
    return ImageExample(name, path)


def render_clip(folder: Path, name: str, family: str, number: int, frames: int = CLIP_FRAMES) -> ClipExample:
    """Render a clip of a scene into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    renderer = SyntheticScenes(family, size=SIZE, bank=procedural_bank(SIDE, TEXTURES)).renderer([number])
    path = folder / f"{family}.mp4"
    with VideoWriter(path, fps=float(renderer.scenes.fps)) as writer:
        for frame in range(frames):
            writer.write(to_uint8(renderer.clean(renderer.view(frame / renderer.scenes.fps))[0]))
    return ClipExample(name, path)
