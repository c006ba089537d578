"""Rendering of scenes: images and exact ground truth."""

from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import Tensor

from protoformer.geometry.warps import inside_image, pixel_grid
from protoformer.synthetic.scene import KINDS, NEAREST, SHADED, TOLERANCE, Frame, Scenes, to_device
from protoformer.synthetic.sensor import compress, defocus, expose, sensor_noise, steps_of, vignette
from protoformer.synthetic.surface import (
    Hits,
    Shapes,
    build_materials,
    hits,
    in_shadow,
    nearest,
    normals,
    shade,
    surface,
    transport_points,
)
from protoformer.synthetic.texture_bank import TextureBank, procedural_bank

EDGE_OFFSETS = ((-3, 1), (1, 3), (3, -1), (-1, -3), (-1, 1), (1, 1), (1, -1), (-1, -1))
"""Sample positions within a pixel at an edge, (x, y) in eighths of a pixel from its center."""
SUBFRAMES = 7
"""Default number of moments averaged for motion blur."""
SENSOR_FIELDS = ("gamma", "lift", "vignette", "read", "shot")
"""Fields of `Sensor` that the sensor model takes per image."""
SUBPIXEL_STEP = (0.754878, 0.569840)
"""Step, (x, y) in pixels, between the sample positions of subframes; any number of them fills the pixel evenly."""


@dataclass(frozen=True)
class View:
    """Hits of the camera's rays at one moment, one ray through each pixel center.

    Attributes:
        frame: The moment.
        hits: One hit per pixel, row by row.
    """

    frame: Frame
    hits: Hits

    def map(self, values: Tensor) -> Tensor:
        """Reshape per-hit values, C x B x N, to maps, B x C x H x W."""
        return values.transpose(0, 1).reshape(values.shape[1], values.shape[0], *self.frame.size)

    @property
    def depth(self) -> Tensor:
        """Depth along the optical axis, meters: B x 1 x H x W."""
        return self.map(self.hits.depth[None])

    @property
    def primitive(self) -> Tensor:
        """Index of the visible primitive: B x 1 x H x W, int64."""
        return self.map(self.hits.index[None])

    @cached_property
    def normals(self) -> Tensor:
        """Unit surface normals in camera coordinates, towards the camera: B x 3 x H x W."""
        return self.map(normals(self.hits))


@dataclass(frozen=True)
class Motion:
    """Motion from one view to another, as in `FlowSample`.

    Attributes:
        flow: N x 2 x H x W, pixels.
        valid: N x 1 x H x W, bool, False for points that end up behind the camera.
        occlusion: N x 1 x H x W, bool.
    """

    flow: Tensor
    valid: Tensor
    occlusion: Tensor


def instance_boxes(instances: Tensor, count: int) -> Tensor:
    """Compute the boxes of instances 1 .. count in an instance map, B x 1 x H x W: B x count x 4; NaN if absent.

    A box (x, y, w, h) starts at its first pixel and spans the columns from the first to the last, inclusive.
    """
    batch, _, height, width = instances.shape
    flat = instances.flatten(1)
    x, y = pixel_grid(height, width, instances.device).flatten(1)
    ends = []
    for values, reduce, start in (
        (x, "amin", torch.inf),
        (y, "amin", torch.inf),
        (x, "amax", -torch.inf),
        (y, "amax", -torch.inf),
    ):
        empty = torch.full((batch, count + 1), start, device=instances.device)
        ends.append(empty.scatter_reduce(1, flat, values.expand(batch, -1), reduce)[:, 1:])
    left, top, right, bottom = ends
    boxes = torch.stack((left, top, right - left + 1, bottom - top + 1), dim=-1)
    return torch.where(torch.isfinite(boxes), boxes, torch.nan)


def _mask_span(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the start of the first and the end of the last True of each row (B x n, bool): B each; NaN if none."""
    cells = mask.long()
    first, last = cells.argmax(dim=1), mask.shape[1] - cells.flip(1).argmax(dim=1)
    empty = ~mask.any(dim=1)
    return first.float().masked_fill(empty, torch.nan), last.float().masked_fill(empty, torch.nan)


@cache
def _edge_offsets(device: torch.device) -> Tensor:
    """Return EDGE_OFFSETS in pixels: 8 x 2."""
    return torch.tensor(EDGE_OFFSETS, dtype=torch.float32).div(8).to(device)


@cache
def _subframe_offsets(subframes: int, device: torch.device) -> Tensor:
    """Return the offset of each subframe's rays from the pixel centers: subframes x 2.

    The offsets are a lattice that fills the pixel evenly but out of order; ordered offsets would lengthen or shorten
    the motion blur along them.
    """
    indices = range(subframes)
    return torch.tensor([[(step * subframe + 0.5) % 1 - 0.5 for step in SUBPIXEL_STEP] for subframe in indices]).to(
        device
    )


class Renderer:
    """Renders a batch of scenes on one device.

    Args:
        scenes: The scenes.
        bank: Textures; the procedural bank if None.
        device: Rendering device.
    """

    def __init__(self, scenes: Scenes, bank: TextureBank | None = None, device: torch.device | str = "cpu") -> None:
        self.scenes, self.device = scenes, torch.device(device)
        self.bank = (procedural_bank() if bank is None else bank).to(self.device)
        primitives, atmosphere = scenes.primitives, scenes.atmosphere
        self.materials = build_materials(
            primitives, atmosphere.sun, atmosphere.ambient, atmosphere.sunlight, self.device
        )
        outline = to_device(primitives.outline.permute(2, 0, 1).float(), self.device)
        self.shapes = Shapes(outline, self.materials.texture, self.bank)

    def view(self, time: float | Tensor, steady: bool = False) -> View:
        """Cast the rays of one moment.

        Args:
            time: Seconds, one value for all scenes or B.
            steady: Whether to leave out the camera's hand shake.
        """
        frame = self.scenes.frame(time, steady, self.device)
        return View(frame, self.cast(frame, self._centers()))

    def motion(self, view: View, other: View) -> Motion:
        """Compute the motion from one view to another."""
        return self.motion_to(view, other.frame)

    def motion_to(self, view: View, frame: Frame) -> Motion:
        """Compute the motion from a view to another moment, which need not have been rendered."""
        flow, valid, occlusion = self.moved(view.hits, self._centers(), frame)
        size = frame.size
        return Motion(flow.unflatten(-1, size), valid.unflatten(-1, size), occlusion.unflatten(-1, size))

    def cast(self, frame: Frame, positions: Tensor) -> Hits:
        """Cast rays through positions (B x 2 x N, or 1 x 2 x N for all scenes, pixels)."""
        positions = positions.expand(self.scenes.count, -1, -1)
        depth, index = nearest(frame, self.shapes, positions)
        return hits(frame, index, depth, positions)

    def moved(self, hit: Hits, positions: Tensor, frame: Frame) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the motion of hits of rays through positions (B x 2 x N, pixels) to another frame.

        Returns the flow, B x 2 x N, pixels, and the masks valid and occluded, B x 1 x N, bool. Points that end up
        behind the camera have no motion in the image and are not valid.
        """
        if self.device.type == "cuda":
            from protoformer.synthetic.kernels import surface_kernels as motion_kernels

            return motion_kernels.moved(hit, self.shapes, positions, frame)
        target, z, ahead = self.project_hits(hit, positions, frame)
        depth, _ = nearest(frame, self.shapes, target)
        occluded = depth < z * (1 - TOLERANCE)
        # Round to a thousandth of a pixel, so that rounding errors do not put static border points outside.
        inside = inside_image((target * 1024).round()[:, :, None] / 1024, *frame.size)[:, :, 0]
        not_visible = occluded[:, None] | ~inside | ~ahead[:, None]
        return target - positions, ahead[:, None], not_visible

    def project_hits(self, hit: Hits, positions: Tensor, frame: Frame) -> tuple[Tensor, Tensor, Tensor]:
        """Project hits of rays through positions (B x 2 x N, pixels) into another frame, whether occluded there or not.

        Returns image positions, B x 2 x N, pixels (unchanged for points behind the camera), depth in meters and whether
        the point is in front of the camera, B x N each.
        """
        x, y, z = transport_points(hit, frame)
        ahead = z > NEAREST
        target = frame.project(x, y, torch.where(ahead, z, 1.0))
        return torch.where(ahead[:, None], target, positions), z, ahead

    def instances(self, view: View) -> Tensor:
        """Return the instance map, 0 for the static background: B x 1 x H x W, int64."""
        return view.map(self.materials.instance.gather(1, view.hits.index)[None])

    def boxes(self, view: View) -> Tensor:
        """Return boxes of the visible parts of instances 1, 2, ...: B x I x 4, (x, y, w, h), pixels; NaN if none."""
        return instance_boxes(self.instances(view), int(self.scenes.primitives.instance.max()))

    def amodal_mask(self, frame: Frame, instance: int | Tensor) -> Tensor:
        """Render the mask of an instance (one, or B) as if nothing occluded it, on a canvas of twice the image size.

        B x 1 x 2H x 2W, bool; pixel (H // 2, W // 2) of the mask is the first pixel of the image.
        """
        selected = instance.to(self.device).view(-1, 1) if isinstance(instance, Tensor) else instance
        height, width = frame.size
        x, y = pixel_grid(2 * height, 2 * width, self.device)
        grid = torch.stack((x - width // 2, y - height // 2))
        positions = grid.flatten(1).expand(self.scenes.count, -1, -1)
        isolated = replace(frame, alive=frame.alive & (self.materials.instance == selected))
        depth, _ = nearest(isolated, self.shapes, positions)
        return torch.isfinite(depth).view(-1, 1, 2 * height, 2 * width)

    def amodal_box(self, frame: Frame, instance: int | Tensor) -> Tensor:
        """Return the amodal box of an instance, up to half an image beyond the borders: B x 4; NaN if none."""
        return self.mask_box(self.amodal_mask(frame, instance))

    def mask_box(self, mask: Tensor) -> Tensor:
        """Return the box of a mask made by `whole`: B x 4, in the image's pixels."""
        height, width = self.scenes.size
        (left, right), (top, bottom) = (_mask_span(mask.any(dim=dim).flatten(1)) for dim in (2, 3))
        return torch.stack((left - width // 2, top - height // 2, right - left, bottom - top), dim=-1)

    def clean(self, view: View) -> Tensor:
        """Render the clean pass, in which every surface point keeps its color: B x 3 x H x W in [0, 1]."""
        frame = view.frame
        if self.device.type == "cuda":
            return self._clean_by_kernels(view)
        image = self._constant_color(view.hits)
        pixels = self._edge_pixels(view)
        if pixels.shape[1]:
            offsets = _edge_offsets(self.device).T
            centers = self._centers()[0][:, pixels].transpose(0, 1)  # B x 2 x k
            positions = (centers[..., None] + offsets[:, None]).flatten(2)
            supersampled = (
                self._constant_color(self.cast(frame, positions)).unflatten(2, (-1, len(EDGE_OFFSETS))).mean(dim=3)
            )
            image.scatter_(2, pixels.expand(3, -1, -1), supersampled)
        return view.map(image)

    def final(self, view: View, subframes: int = SUBFRAMES) -> Tensor:
        """Render the final pass, which simulates a real camera: B x 3 x H x W in [0, 1].

        It adds time-dependent light, highlights and shadows, fog, motion blur, defocus, exposure, noise and
        compression.

        Args:
            view: The view to render.
            subframes: Number of moments that are averaged for motion blur.
        """
        if self.device.type == "cuda":
            return self._developed_by_kernels(self._exposed_by_kernels(view, subframes), view)
        return self._developed(self._exposed(view, subframes), view)

    def _exposed(self, view: View, subframes: int) -> Tensor:
        """Render the final pass before lens and sensor: B x 3 x H x W."""
        total = torch.zeros(3, *view.hits.index.shape, device=self.device)
        for time, offset in zip(
            self._shutter_times(view.frame, subframes), _subframe_offsets(subframes, self.device), strict=True
        ):
            frame = self.scenes.frame(time, view.frame.steady, self.device)
            total += self._final_color(self.cast(frame, self._centers() + offset.view(1, 2, 1)))
        return view.map(total / subframes).contiguous()

    def _shutter_times(self, frame: Frame, subframes: int) -> list[Tensor]:
        """Return the times, B each, at which the open shutter is sampled."""
        fractions = [(subframe + 0.5) / subframes - 0.5 for subframe in range(subframes)]
        return [frame.time + fraction * self.scenes.sensor.shutter / self.scenes.fps for fraction in fractions]

    def _developed(self, image: Tensor, view: View) -> Tensor:
        """Apply lens, sensor and codec to an image."""
        sensor = self.scenes.sensor
        gamma, lift, falloff, read, shot = (getattr(sensor, name).float().to(self.device) for name in SENSOR_FIELDS)
        selected = self._soft()
        if len(selected):
            focus, aperture = sensor.focus[selected].float(), sensor.aperture[selected].float()
            image[selected] = defocus(
                image[selected], view.depth[selected], focus.to(self.device), aperture.to(self.device)
            )
        gain = sensor.exposure.at(view.frame.time).exp().float().to(self.device)
        image = vignette(expose(image, gain, gamma, lift), falloff)
        image = sensor_noise(image, self._noise_keys(view.frame).to(self.device), read, shot)
        return compress(image, sensor.quality.float().to(self.device))

    def _soft(self) -> Tensor:
        """Return the scenes with a nonzero aperture: int64, on the CPU. The others are sharp everywhere."""
        return (self.scenes.sensor.aperture > 0).nonzero()[:, 0]

    def _noise_keys(self, frame: Frame) -> Tensor:
        """Return a noise key per frame, different for the shaky and the steady path."""
        tick = (frame.time * self.scenes.fps * 64).round().long()
        return self.scenes.sensor.key * 1_000_003 + 2 * tick + int(frame.steady)

    def _clean_by_kernels(self, view: View) -> Tensor:
        from protoformer.synthetic.kernels import shading_kernels

        return shading_kernels.clean(view.frame, self.shapes, self.materials, view.hits, _edge_offsets(self.device))

    def _exposed_by_kernels(self, view: View, subframes: int) -> Tensor:
        """Run `_exposed` in one kernel for all subframes."""
        from protoformer.synthetic.kernels import shading_kernels

        times = torch.stack(self._shutter_times(view.frame, subframes))
        tables, suns = self.scenes.moments(times, view.frame.steady, self.device)
        shifts = _subframe_offsets(subframes, self.device)
        return shading_kernels.exposed(view.frame, self.shapes, self.materials, tables, suns, self._atmosphere, shifts)

    def _developed_by_kernels(self, image: Tensor, view: View) -> Tensor:
        """Run `_developed` in kernels, in place up to the codec."""
        from protoformer.synthetic.kernels import sensor_kernels

        sensor, selected = self.scenes.sensor, self._soft()
        if len(selected):
            lens = torch.stack((sensor.aperture, sensor.focus), dim=1).float()
            sensor_kernels.defocus_(image, view.depth, to_device(lens, self.device), to_device(selected, self.device))
        gain = sensor.exposure.at(view.frame.time).exp()
        parameters = torch.cat((gain, torch.stack([getattr(sensor, name) for name in SENSOR_FIELDS], dim=1)), dim=1)
        words = sensor_kernels.key_words(self._noise_keys(view.frame))
        sensor_kernels.developed_(image, to_device(parameters.float(), self.device), to_device(words, self.device))
        return sensor_kernels.compressed(image, to_device(steps_of(sensor.quality.float()), self.device))

    @cached_property
    def _atmosphere(self) -> Tensor:
        """Ambient fraction, fog per meter, and the colors of sunlight and fog: B x 8."""
        atmosphere = self.scenes.atmosphere
        numbers = (atmosphere.ambient[:, None], atmosphere.fog[:, None], atmosphere.sunlight, atmosphere.fog_color)
        return to_device(torch.cat(numbers, dim=1).float(), self.device)

    def _constant_color(self, hit: Hits) -> Tensor:
        """Compute colors of the clean pass: 3 x B x N."""
        material = surface(hit, self.materials, self.bank)
        return (material.color * material.light * self.materials.sunlight.T[:, :, None]).clamp(0, 1)

    def _final_color(self, hit: Hits) -> Tensor:
        """Compute colors of the final pass before lens and sensor: 3 x B x N."""
        atmosphere, frame = self.scenes.atmosphere, hit.frame
        material = surface(hit, self.materials, self.bank)
        sun, ambient = frame.sun.T[:, :, None], self.materials.ambient[:, None]
        cosine = (material.normals * sun).sum(dim=0)
        sky = hit.index >= sum(frame.counts[: KINDS.index("sky")])
        shadow = in_shadow(frame, self.shapes, hit.points, hit.index) & ~sky
        lit = torch.where(shadow, ambient, shade(cosine, ambient))
        encloses = hit.index >= sum(frame.counts[: KINDS.index("room")])  # rooms and skies are emissive
        lit = torch.where(encloses, torch.where(shadow, SHADED, 1.0), lit)
        view = torch.cat((hit.ray, torch.ones_like(hit.ray[:1])))
        view = view / view.square().sum(dim=0).sqrt()
        reflected = view - 2 * (view * material.normals).sum(dim=0) * material.normals
        highlight = (reflected * sun).sum(dim=0).clamp_min(0) ** 24 * material.gloss * ~shadow
        color = material.color * lit * self.materials.sunlight.T[:, :, None] + highlight
        transmittance = torch.exp(-atmosphere.fog.float().to(self.device)[:, None] * hit.depth)
        fog = atmosphere.fog_color.float().to(self.device).T[:, :, None]
        return (color * transmittance + fog * (1 - transmittance)).clamp(0, 1)

    def _centers(self) -> Tensor:
        return pixel_grid(*self.scenes.size, device=self.device).flatten(1)[None]

    def _edge_pixels(self, view: View) -> Tensor:
        """Return the pixels at surface boundaries: B x k; scenes with fewer repeat their first one."""
        code = (6 * view.hits.index + view.hits.face).unflatten(-1, view.frame.size)
        edge = torch.zeros_like(code, dtype=torch.bool)
        horizontal, vertical = code[:, :, 1:] != code[:, :, :-1], code[:, 1:] != code[:, :-1]
        edge[:, :, 1:] |= horizontal
        edge[:, :, :-1] |= horizontal
        edge[:, 1:] |= vertical
        edge[:, :-1] |= vertical
        edge = edge.flatten(1)
        scene, pixel = edge.nonzero(as_tuple=True)
        slot = (edge.cumsum(dim=1) - 1)[scene, pixel]
        pixels = edge.long().argmax(dim=1, keepdim=True).repeat(1, int(edge.sum(dim=1).max()))
        pixels[scene, slot] = pixel
        return pixels
