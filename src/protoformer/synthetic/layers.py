"""Flat textured layers with affine motion: the simplest scenes with occlusion and exact flow."""

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
    """A textured shape and its motion.

    Attributes:
        texture: 3 x h x w in [0, 1], mirrored beyond its borders.
        motion: 2 x 3, affine map of positions (x, y) from the first image to the second, pixels.
        center: Center of the shape |x / rx|^power + |y / ry|^power <= 1.
        radii: (rx, ry), pixels; None for a layer that covers everything.
        angle: Rotation of the shape, radians.
        power: Exponent of the shape: 2 is an ellipse, 8 almost a box.
    """

    texture: Tensor
    motion: Tensor
    center: tuple[float, float] = (0.0, 0.0)
    radii: tuple[float, float] | None = None
    angle: float = 0.0
    power: float = 2.0

    def coverage(self, positions: Tensor) -> Tensor:
        """Return the approximate signed distance to the outline, pixels, positive inside; positions: 2 x H x W."""
        if self.radii is None:
            return torch.full(positions.shape[1:], math.inf)
        x, y = positions[0] - self.center[0], positions[1] - self.center[1]
        cos, sin = math.cos(self.angle), math.sin(self.angle)
        across, along = (cos * x + sin * y).abs() / self.radii[0], (cos * y - sin * x).abs() / self.radii[1]
        radius = (across**self.power + along**self.power).clamp_min(1e-12) ** (1 / self.power)
        return (1 - radius) * min(self.radii)

    def color(self, positions: Tensor) -> Tensor:
        """Sample the texture at positions (2 x H x W, pixels of the first image): 3 x H x W."""
        height, width = self.texture.shape[1:]
        mirrored = torch.stack((_mirror(positions[0], width), _mirror(positions[1], height)))
        return sample(self.texture[None], mirrored[None])[0]


def _mirror(position: Tensor, length: int) -> Tensor:
    """Fold coordinates into 0 .. length - 1 by reflection."""
    period = max(1, 2 * (length - 1))
    folded = position % period
    return torch.minimum(folded, period - folded)


@dataclass(frozen=True)
class LayeredScene:
    """Layers from back to front; the first covers everything.

    Attributes:
        layers: The layers.
        size: (height, width) of the images.
    """

    layers: tuple[Layer, ...]
    size: tuple[int, int]

    def render(self) -> FlowSample:
        """Render both images and the flow and occlusion between them: a batch of one."""
        grid = pixel_grid(*self.size)
        motions = torch.stack([layer.motion for layer in self.layers])
        first, front = self._image([grid] * len(self.layers))
        second, _ = self._image([_apply_affine(_invert_affine(motion), grid) for motion in motions])
        targets = torch.stack([_apply_affine(motion, grid) for motion in motions])
        target = targets.gather(0, front.expand(1, 2, -1, -1))[0]
        occluded = front[0] != self._front_at(target)
        (height, width), (x, y) = self.size, target
        outside = (x < 0) | (y < 0) | (x > width - 1) | (y > height - 1)
        return FlowSample(
            first=first[None],
            second=second[None],
            flow=(target - grid)[None],
            valid=torch.ones(1, 1, *self.size, dtype=torch.bool),
            occlusion=(occluded | outside)[None, None],
        )

    def _image(self, positions: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Render colors, 3 x H x W, and the index of the front layer, 1 x H x W, from per-layer coordinates."""
        image = self.layers[0].color(positions[0])
        front = torch.zeros(1, *self.size, dtype=torch.long)
        for index, (layer, coordinates) in enumerate(zip(self.layers[1:], positions[1:], strict=True), start=1):
            distance = layer.coverage(coordinates)
            opacity = (distance + 0.5).clamp(0, 1)  # one pixel of antialiasing
            image = torch.lerp(image, layer.color(coordinates), opacity)
            front = torch.where(distance > 0, index, front)
        return image, front

    def _front_at(self, target: Tensor) -> Tensor:
        """Return the front layer of the second image at positions there (2 x H x W): H x W."""
        front = torch.zeros(self.size, dtype=torch.long)
        for index, layer in enumerate(self.layers[1:], start=1):
            inside = layer.coverage(_apply_affine(_invert_affine(layer.motion), target)) > 0
            front = torch.where(inside, index, front)
        return front


def _apply_affine(motion: Tensor, positions: Tensor) -> Tensor:
    return torch.einsum("ij,jhw->ihw", motion[:, :2], positions) + motion[:, 2].view(2, 1, 1)


def _invert_affine(motion: Tensor) -> Tensor:
    linear = torch.linalg.inv(motion[:, :2])
    return torch.cat((linear, -(linear @ motion[:, 2:])), dim=1)


def affine_about(center: tuple[float, float], shift: tuple[float, float], turn: float, zoom: float) -> Tensor:
    """Return the affine map that rotates (radians) and scales about a center, then shifts (pixels): 2 x 3."""
    cos, sin = zoom * math.cos(turn), zoom * math.sin(turn)
    linear = torch.tensor([[cos, -sin], [sin, cos]])
    center_vector = torch.tensor(center)
    offset = center_vector + torch.tensor(shift) - linear @ center_vector
    return torch.cat((linear, offset[:, None]), dim=1)


def random_scene(size: tuple[int, int], seed: int, shapes: int = 6, motion: float = 8.0) -> LayeredScene:
    """Build a random layered scene with a number of shapes in front of the background.

    `motion` is the maximum shift along each axis, pixels; layers also rotate and scale slightly.
    """
    generator = torch.Generator().manual_seed(seed)
    height, width = size

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    def random_motion(center: tuple[float, float], turn: float, zoom: float) -> Tensor:
        shift = (uniform(-motion, motion), uniform(-motion, motion))
        return affine_about(center, shift, uniform(-turn, turn), 1 + uniform(-zoom, zoom))

    def texture() -> Tensor:
        return noise(height, width, generator, coarsest=2 ** round(uniform(4, 5)), falloff=uniform(0.5, 0.7))

    layers = [Layer(texture(), random_motion((width / 2, height / 2), 0.01, 0.01))]
    for _ in range(shapes):
        center = (uniform(0, width), uniform(0, height))
        radii = (uniform(0.12, 0.35) * min(size), uniform(0.12, 0.35) * min(size))
        angle, power = uniform(0, math.pi), 2 ** uniform(1, 3)
        layers.append(Layer(texture(), random_motion(center, 0.05, 0.02), center, radii, angle, power))
    return LayeredScene(tuple(layers), size)


def crop_of_larger(scenes: Scenes, scale: Tensor, position: Tensor) -> Scenes:
    """Simulate crops from larger images of the same scenes: other focal length and principal point, same size.

    Points near the border of a wide image move farther, and more to one side, than anything in a small image. `scale`,
    B, is the size of the full image relative to the crop, at least 1; `position`, B x 2, is that of the crop, (x, y): 0
    is left or top, 1 is right or bottom.
    """
    camera = scenes.camera
    size = torch.tensor([scenes.size[1], scenes.size[0]], dtype=torch.float64)
    scale = scale.double()[:, None]
    corner = position.double() * (scale - 1) * size
    center = (camera.center + 0.5) * scale - 0.5 - corner
    return dataclasses.replace(scenes, camera=dataclasses.replace(camera, focal=camera.focal * scale, center=center))
