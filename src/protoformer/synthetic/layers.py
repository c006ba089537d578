"""Flat textured layers, each moved by an affine map: the simplest world with occlusion, and its exact flow."""

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.geometry.warps import pixel_grid, sample
from protoformer.synthetic.samples import FlowSample
from protoformer.synthetic.scene import Scenes
from protoformer.synthetic.textures import noise


@dataclass(frozen=True)
class Layer:
    """A textured shape and where it goes.

    texture: 3 x h x w in [0, 1], repeated by mirroring beyond its borders, so any pixel has a color.
    motion: 2 x 3, affine, position (x, y) in the first image to that in the second, pixels.
    center, radii, angle, power: the shape |x / rx|^power + |y / ry|^power <= 1 around the center, turned by the angle
        (radians): 2 is an ellipse, 8 nearly a box. radii None: the layer covers everything.
    """

    texture: Tensor
    motion: Tensor
    center: tuple[float, float] = (0.0, 0.0)
    radii: tuple[float, float] | None = None
    angle: float = 0.0
    power: float = 2.0

    def coverage(self, positions: Tensor) -> Tensor:
        """About the distance to the outline, pixels, positive inside: H x W. positions: 2 x H x W, first image."""
        if self.radii is None:
            return torch.full(positions.shape[1:], math.inf)
        x, y = positions[0] - self.center[0], positions[1] - self.center[1]
        cos, sin = math.cos(self.angle), math.sin(self.angle)
        across, along = (cos * x + sin * y).abs() / self.radii[0], (cos * y - sin * x).abs() / self.radii[1]
        reach = (across**self.power + along**self.power).clamp_min(1e-12) ** (1 / self.power)
        return (1 - reach) * min(self.radii)

    def color(self, positions: Tensor) -> Tensor:
        """The texture at positions (2 x H x W, pixels of the first image): 3 x H x W."""
        height, width = self.texture.shape[1:]
        mirrored = torch.stack((_mirror(positions[0], width), _mirror(positions[1], height)))
        return sample(self.texture[None], mirrored[None])[0]


def _mirror(position: Tensor, length: int) -> Tensor:
    """Fold any coordinate back into 0 .. length - 1 by reflection."""
    period = max(1, 2 * (length - 1))
    folded = position % period
    return torch.minimum(folded, period - folded)


@dataclass(frozen=True)
class LayeredScene:
    """Layers from back to front; the first covers everything."""

    layers: tuple[Layer, ...]
    size: tuple[int, int]

    def render(self) -> FlowSample:
        """Both images, and the flow and occlusion between them: a batch of one."""
        here = pixel_grid(*self.size)
        motions = torch.stack([layer.motion for layer in self.layers])
        first, front = self._image([here] * len(self.layers))
        second, _ = self._image([_apply(_inverse(motion), here) for motion in motions])
        moved = torch.stack([_apply(motion, here) for motion in motions])
        target = moved.gather(0, front.expand(1, 2, -1, -1))[0]
        hidden = front[0] != self._front_at(target)
        (height, width), (x, y) = self.size, target
        outside = (x < 0) | (y < 0) | (x > width - 1) | (y > height - 1)
        return FlowSample(
            first=first[None],
            second=second[None],
            flow=(target - here)[None],
            valid=torch.ones(1, 1, *self.size, dtype=torch.bool),
            occlusion=(hidden | outside)[None, None],
        )

    def _image(self, positions: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Colors 3 x H x W and the index of the front layer, 1 x H x W, given each layer's own coordinates."""
        image = self.layers[0].color(positions[0])
        front = torch.zeros(1, *self.size, dtype=torch.long)
        for index, (layer, where) in enumerate(zip(self.layers[1:], positions[1:], strict=True), start=1):
            depth_inside = layer.coverage(where)
            opacity = (depth_inside + 0.5).clamp(0, 1)  # one pixel of antialiasing
            image = torch.lerp(image, layer.color(where), opacity)
            front = torch.where(depth_inside > 0, index, front)
        return image, front

    def _front_at(self, target: Tensor) -> Tensor:
        """The front layer of the second image at positions there (2 x H x W): H x W."""
        front = torch.zeros(self.size, dtype=torch.long)
        for index, layer in enumerate(self.layers[1:], start=1):
            inside = layer.coverage(_apply(_inverse(layer.motion), target)) > 0
            front = torch.where(inside, index, front)
        return front


def _apply(motion: Tensor, positions: Tensor) -> Tensor:
    return torch.einsum("ij,jhw->ihw", motion[:, :2], positions) + motion[:, 2].view(2, 1, 1)


def _inverse(motion: Tensor) -> Tensor:
    linear = torch.linalg.inv(motion[:, :2])
    return torch.cat((linear, -(linear @ motion[:, 2:])), dim=1)


def affine_about(center: tuple[float, float], shift: tuple[float, float], turn: float, zoom: float) -> Tensor:
    """Turn (radians) and zoom about a center, then shift (pixels): 2 x 3."""
    cos, sin = zoom * math.cos(turn), zoom * math.sin(turn)
    linear = torch.tensor([[cos, -sin], [sin, cos]])
    middle = torch.tensor(center)
    offset = middle + torch.tensor(shift) - linear @ middle
    return torch.cat((linear, offset[:, None]), dim=1)


def random_scene(size: tuple[int, int], seed: int, shapes: int = 6, motion: float = 8.0) -> LayeredScene:
    """A background and some shapes, shifted by up to `motion` pixels either way, a little turned and zoomed."""
    generator = torch.Generator().manual_seed(seed)
    height, width = size

    def between(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    def moved(center: tuple[float, float], turn: float, zoom: float) -> Tensor:
        shift = (between(-motion, motion), between(-motion, motion))
        return affine_about(center, shift, between(-turn, turn), 1 + between(-zoom, zoom))

    def texture() -> Tensor:
        return noise(height, width, generator, coarsest=2 ** round(between(4, 5)), falloff=between(0.5, 0.7))

    layers = [Layer(texture(), moved((width / 2, height / 2), 0.01, 0.01))]
    for _ in range(shapes):
        center = (between(0, width), between(0, height))
        radii = (between(0.12, 0.35) * min(size), between(0.12, 0.35) * min(size))
        turned, power = between(0, math.pi), 2 ** between(1, 3)
        layers.append(Layer(texture(), moved(center, 0.05, 0.02), center, radii, turned, power))
    return LayeredScene(tuple(layers), size)


def crop_of_larger(scenes: Scenes, times: Tensor, place: Tensor) -> Scenes:
    """The same scenes in pictures so many times as large, of which each image shows a part of the usual size.

    What is near the edge of a wide picture moves farther, and more to one side, than anything in a small one.

    times: B, 1 or more. place: B x 2, where the part lies, across and down: from 0, the left or the top, to 1.
    """
    camera = scenes.camera
    size = torch.tensor([scenes.size[1], scenes.size[0]], dtype=torch.float64)
    times = times.double()[:, None]
    corner = place.double() * (times - 1) * size
    center = (camera.center + 0.5) * times - 0.5 - corner
    return dataclasses.replace(scenes, camera=dataclasses.replace(camera, focal=camera.focal * times, center=center))
