"""Pictures of scenes, and the truth about them."""

from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import Tensor

from protoformer.geometry.warps import inside_image, pixel_grid
from protoformer.synthetic.casting import NEAREST, Shapes, in_shadow, nearest
from protoformer.synthetic.scene import KINDS, Frame, Scenes, to_device
from protoformer.synthetic.sensor import compress, defocus, expose, sensor_noise, steps_of, vignette
from protoformer.synthetic.surface import Hits, carried, hits, looks_of, normals, shade, surface
from protoformer.synthetic.texture_bank import TextureBank, procedural_bank

AROUND = ((-3, 1), (1, 3), (3, -1), (-1, -3), (-1, 1), (1, 1), (1, -1), (-1, -1))
"""Where rays pass through a pixel at an edge, eighths of a pixel from its center: (x, y)."""
TOLERANCE = 2e-4
"""A point is hidden if something is nearer to the camera by more than this share of its depth."""
SUBFRAMES = 7
SENSOR = ("gamma", "lift", "vignette", "read", "shot")
"""Numbers of the film that the sensor goes by."""
LATTICE = (0.754878, 0.569840)
"""Steps of a pixel, (x, y), from one subframe's rays to the next's; they fill it evenly however many there are."""
SHADED = 0.6
"""What is left of the light of a wall of a room in shadow."""


@dataclass(frozen=True)
class View:
    """What the camera sees at one moment, at the centers of pixels.

    frame: the moment. hits: one for each pixel, row by row.
    """

    frame: Frame
    hits: Hits

    def map(self, values: Tensor) -> Tensor:
        """Values of the hits, C x B x N, as maps: B x C x H x W."""
        return values.transpose(0, 1).reshape(values.shape[1], values.shape[0], *self.frame.size)

    @property
    def depth(self) -> Tensor:
        """Meters along the optical axis: B x 1 x H x W."""
        return self.map(self.hits.depth[None])

    @property
    def primitive(self) -> Tensor:
        """The primitive that is seen: B x 1 x H x W, int64."""
        return self.map(self.hits.index[None])

    @cached_property
    def normals(self) -> Tensor:
        """Of the surfaces, unit, in the camera's axes, towards the camera: B x 3 x H x W."""
        return self.map(normals(self.hits))


@dataclass(frozen=True)
class Motion:
    """Where what is seen in one view is in another: as in `FlowSample`; N x 2 x H x W, pixels."""

    flow: Tensor
    valid: Tensor
    occlusion: Tensor


def extents(instances: Tensor, count: int) -> Tensor:
    """Boxes of instances 1 .. count in a map of them (B x 1 x H x W, int64): B x count x 4, (x, y, w, h); NaN if none.

    A box begins at its first pixel and is as many pixels wide as there are columns from its first to its last.
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


def _ends(there: Tensor) -> tuple[Tensor, Tensor]:
    """Where the first of the cells of each row that are there begins, and where the last ends; NaN if none is: B each.

    there: B x n, bool.
    """
    cells = there.long()
    first, last = cells.argmax(dim=1), there.shape[1] - cells.flip(1).argmax(dim=1)
    none = ~there.any(dim=1)
    return first.float().masked_fill(none, torch.nan), last.float().masked_fill(none, torch.nan)


@cache
def _around(device: torch.device) -> Tensor:
    """AROUND in pixels: 8 x 2."""
    return torch.tensor(AROUND, dtype=torch.float32).div(8).to(device)


@cache
def _offsets(subframes: int, device: torch.device) -> Tensor:
    """Where the rays of each subframe pass, from the centers of pixels: subframes x 2.

    Each looks through another place of the pixel: a lattice that fills it evenly, but not in order, or the blur of what
    moves along that order would be longer or shorter.
    """
    numbers = range(subframes)
    return torch.tensor([[(step * number + 0.5) % 1 - 0.5 for step in LATTICE] for number in numbers]).to(device)


class Renderer:
    """Renders a batch of scenes on one device."""

    def __init__(self, scenes: Scenes, bank: TextureBank | None = None, device: torch.device | str = "cpu") -> None:
        self.scenes, self.device = scenes, torch.device(device)
        self.bank = (procedural_bank() if bank is None else bank).to(self.device)
        primitives, air = scenes.primitives, scenes.air
        self.looks = looks_of(primitives, air.sun, air.ambient, air.sunlight, self.device)
        outline = to_device(primitives.outline.permute(2, 0, 1).float(), self.device)
        self.shapes = Shapes(outline, self.looks.texture, self.bank)

    def view(self, time: float | Tensor, steady: bool = False) -> View:
        """What is seen at a time, in seconds; `steady`: from the camera's path without its shake."""
        frame = self.scenes.frame(time, steady, self.device)
        return View(frame, self.meet(frame, self._centers()))

    def motion(self, view: View, other: View) -> Motion:
        """From one view to another."""
        return self.motion_to(view, other.frame)

    def motion_to(self, view: View, frame: Frame) -> Motion:
        """From a view to another moment, which need not have been rendered."""
        flow, valid, occlusion = self.moved(view.hits, self._centers(), frame)
        size = frame.size
        return Motion(flow.unflatten(-1, size), valid.unflatten(-1, size), occlusion.unflatten(-1, size))

    def meet(self, frame: Frame, positions: Tensor) -> Hits:
        """What rays meet that pass through positions (B x 2 x N, or 1 x 2 x N for all scenes, pixels)."""
        positions = positions.expand(self.scenes.count, -1, -1)
        depth, index = nearest(frame, self.shapes, positions)
        return hits(frame, index, depth, positions)

    def moved(self, hit: Hits, positions: Tensor, frame: Frame) -> tuple[Tensor, Tensor, Tensor]:
        """Motion of what was met at positions (B x 2 x N) to a frame: flow B x 2 x N, valid and occluded B x 1 x N.

        What comes to lie behind the camera has no motion in the image, and is not valid.
        """
        if self.device.type == "cuda":
            from protoformer.synthetic.kernels import motion_kernels

            return motion_kernels.moved(hit, self.shapes, positions, frame)
        target, z, ahead = self.reached(hit, positions, frame)
        depth, _ = nearest(frame, self.shapes, target)
        hidden = depth < z * (1 - TOLERANCE)
        # To a thousandth of a pixel, or what rests at the border would be in or out by the rounding of its last digit.
        within = inside_image((target * 1024).round()[:, :, None] / 1024, *frame.size)[:, :, 0]
        unseen = hidden[:, None] | ~within | ~ahead[:, None]
        return target - positions, ahead[:, None], unseen

    def reached(self, hit: Hits, positions: Tensor, frame: Frame) -> tuple[Tensor, Tensor, Tensor]:
        """Where what was met at positions (B x 2 x N) lies in a frame, hidden or not: B x 2 x N, pixels.

        Beside it its depth, meters, and whether it lies ahead of the camera, B x N each; if not, it stays where it was.
        """
        x, y, z = carried(hit, frame)
        ahead = z > NEAREST
        target = frame.project(x, y, torch.where(ahead, z, 1.0))
        return torch.where(ahead[:, None], target, positions), z, ahead

    def instances(self, view: View) -> Tensor:
        """Which moving thing is seen, 0 for none: B x 1 x H x W, int64."""
        return view.map(self.looks.instance.gather(1, view.hits.index)[None])

    def boxes(self, view: View) -> Tensor:
        """What is seen of each instance 1, 2, ...: B x I x 4, (x, y, w, h) in pixels; NaN for those out of sight."""
        return extents(self.instances(view), int(self.scenes.primitives.instance.max()))

    def whole(self, frame: Frame, instance: int | Tensor) -> Tensor:
        """The mask of an instance as if nothing stood before it, on an image twice as large: B x 1 x 2H x 2W, bool.

        instance: one for all scenes, or B. The mask's pixel (H / 2, W / 2), rounded down, is the image's first.
        """
        chosen = instance.to(self.device).view(-1, 1) if isinstance(instance, Tensor) else instance
        height, width = frame.size
        x, y = pixel_grid(2 * height, 2 * width, self.device)
        around = torch.stack((x - width // 2, y - height // 2))
        positions = around.flatten(1).expand(self.scenes.count, -1, -1)
        alone = replace(frame, alive=frame.alive & (self.looks.instance == chosen))
        depth, _ = nearest(alone, self.shapes, positions)
        return torch.isfinite(depth).view(-1, 1, 2 * height, 2 * width)

    def whole_box(self, frame: Frame, instance: int | Tensor) -> Tensor:
        """The box of an instance, hidden parts too, to half an image beyond the borders: B x 4; NaN if none."""
        return self.box_of_whole(self.whole(frame, instance))

    def box_of_whole(self, mask: Tensor) -> Tensor:
        """The box of a mask that `whole` gave: B x 4, in the image's pixels."""
        height, width = self.scenes.size
        (left, right), (top, bottom) = (_ends(mask.any(dim=dim).flatten(1)) for dim in (2, 3))
        return torch.stack((left - width // 2, top - height // 2, right - left, bottom - top), dim=-1)

    def clean(self, view: View) -> Tensor:
        """The picture in which every point of a surface keeps its color: B x 3 x H x W in [0, 1]."""
        frame = view.frame
        if self.device.type == "cuda":
            return self._clean_by_kernels(view)
        image = self._constant_color(view.hits)
        pixels = self._edges(view)
        if pixels.shape[1]:
            around = _around(self.device).T
            chosen = self._centers()[0][:, pixels].transpose(0, 1)  # B x 2 x k
            positions = (chosen[..., None] + around[:, None]).flatten(2)
            fine = self._constant_color(self.meet(frame, positions)).unflatten(2, (-1, len(AROUND))).mean(dim=3)
            image.scatter_(2, pixels.expand(3, -1, -1), fine)
        return view.map(image)

    def final(self, view: View, subframes: int = SUBFRAMES) -> Tensor:
        """The picture that a camera would take: B x 3 x H x W in [0, 1].

        Light, highlights and shadows as things turn, fog, motion blur over `subframes`, defocus, exposure, noise and
        compression.
        """
        if self.device.type == "cuda":
            return self._developed_by_kernels(self._exposed_by_kernels(view, subframes), view)
        return self._developed(self._exposed(view, subframes), view)

    def _exposed(self, view: View, subframes: int) -> Tensor:
        """The final pass before lens and sensor: B x 3 x H x W."""
        total = torch.zeros(3, *view.hits.index.shape, device=self.device)
        for time, offset in zip(self._moments(view.frame, subframes), _offsets(subframes, self.device), strict=True):
            moment = self.scenes.frame(time, view.frame.steady, self.device)
            total += self._seen_color(self.meet(moment, self._centers() + offset.view(1, 2, 1)))
        return view.map(total / subframes).contiguous()

    def _moments(self, frame: Frame, subframes: int) -> list[Tensor]:
        """Times, B each, while the shutter is open."""
        parts = [(number + 0.5) / subframes - 0.5 for number in range(subframes)]
        return [frame.time + part * self.scenes.film.shutter / self.scenes.rate for part in parts]

    def _developed(self, image: Tensor, view: View) -> Tensor:
        """What lens, sensor and codec make of an image."""
        film = self.scenes.film
        gamma, lift, dim, read, shot = (getattr(film, name).float().to(self.device) for name in SENSOR)
        which = self._soft()
        if len(which):
            focus, aperture = film.focus[which].float(), film.aperture[which].float()
            image[which] = defocus(image[which], view.depth[which], focus.to(self.device), aperture.to(self.device))
        gain = film.exposure.at(view.frame.time).exp().float().to(self.device)
        image = vignette(expose(image, gain, gamma, lift), dim)
        image = sensor_noise(image, self._noise_keys(view.frame).to(self.device), read, shot)
        return compress(image, film.quality.float().to(self.device))

    def _soft(self) -> Tensor:
        """The scenes whose lens has an aperture: int64, on the CPU. The others are sharp throughout."""
        return (self.scenes.film.aperture > 0).nonzero()[:, 0]

    def _noise_keys(self, frame: Frame) -> Tensor:
        """A key for each frame of a scene and of its steady twin: noise is never the same twice."""
        moment = (frame.time * self.scenes.rate * 64).round().long()
        return self.scenes.film.key * 1_000_003 + 2 * moment + int(frame.steady)

    def _clean_by_kernels(self, view: View) -> Tensor:
        from protoformer.synthetic.kernels import shading_kernels

        return shading_kernels.clean(view.frame, self.shapes, self.looks, view.hits, _around(self.device))

    def _exposed_by_kernels(self, view: View, subframes: int) -> Tensor:
        """As `_exposed`, all moments at once."""
        from protoformer.synthetic.kernels import shading_kernels

        times = torch.stack(self._moments(view.frame, subframes))
        tables, suns = self.scenes.moments(times, view.frame.steady, self.device)
        shifts = _offsets(subframes, self.device)
        return shading_kernels.exposed(view.frame, self.shapes, self.looks, tables, suns, self._air, shifts)

    def _developed_by_kernels(self, image: Tensor, view: View) -> Tensor:
        """As `_developed`, in place up to the codec."""
        from protoformer.synthetic.kernels import sensor_kernels as photography

        film, which = self.scenes.film, self._soft()
        if len(which):
            lens = torch.stack((film.aperture, film.focus), dim=1).float()
            photography.defocus_(image, view.depth, to_device(lens, self.device), to_device(which, self.device))
        gain = film.exposure.at(view.frame.time).exp()
        numbers = torch.cat((gain, torch.stack([getattr(film, name) for name in SENSOR], dim=1)), dim=1)
        words = photography.key_words(self._noise_keys(view.frame))
        photography.developed_(image, to_device(numbers.float(), self.device), to_device(words, self.device))
        return photography.compressed(image, to_device(steps_of(film.quality.float()), self.device))

    @cached_property
    def _air(self) -> Tensor:
        """Of each scene: the ambient share, fog a meter, the colors of sunlight and of fog: B x 8."""
        air = self.scenes.air
        numbers = (air.ambient[:, None], air.fog[:, None], air.sunlight, air.fog_color)
        return to_device(torch.cat(numbers, dim=1).float(), self.device)

    def _constant_color(self, hit: Hits) -> Tensor:
        """Colors of the clean pass: 3 x B x N."""
        seen = surface(hit, self.looks, self.bank)
        return (seen.color * seen.light * self.looks.sunlight.T[:, :, None]).clamp(0, 1)

    def _seen_color(self, hit: Hits) -> Tensor:
        """Colors of the final pass before lens and sensor: 3 x B x N."""
        air, frame = self.scenes.air, hit.frame
        seen = surface(hit, self.looks, self.bank)
        sun, ambient = frame.sun.T[:, :, None], self.looks.ambient[:, None]
        towards = (seen.normals * sun).sum(dim=0)
        sky = hit.index >= sum(frame.counts[: KINDS.index("sky")])
        shadow = in_shadow(frame, self.shapes, hit.points, hit.index) & ~sky
        lit = torch.where(shadow, ambient, shade(towards, ambient))
        around = hit.index >= sum(frame.counts[: KINDS.index("room")])  # rooms and skies give the light themselves
        lit = torch.where(around, torch.where(shadow, SHADED, 1.0), lit)
        view = torch.cat((hit.ray, torch.ones_like(hit.ray[:1])))
        view = view / view.square().sum(dim=0).sqrt()
        mirrored = view - 2 * (view * seen.normals).sum(dim=0) * seen.normals
        highlight = (mirrored * sun).sum(dim=0).clamp_min(0) ** 24 * seen.gloss * ~shadow
        color = seen.color * lit * self.looks.sunlight.T[:, :, None] + highlight
        clear = torch.exp(-air.fog.float().to(self.device)[:, None] * hit.depth)
        fog = air.fog_color.float().to(self.device).T[:, :, None]
        return (color * clear + fog * (1 - clear)).clamp(0, 1)

    def _centers(self) -> Tensor:
        return pixel_grid(*self.scenes.size, device=self.device).flatten(1)[None]

    def _edges(self, view: View) -> Tensor:
        """Pixels at which surfaces meet: B x k; where a scene has fewer than another, its first one again and again."""
        code = (6 * view.hits.index + view.hits.face).unflatten(-1, view.frame.size)
        edge = torch.zeros_like(code, dtype=torch.bool)
        across, down = code[:, :, 1:] != code[:, :, :-1], code[:, 1:] != code[:, :-1]
        edge[:, :, 1:] |= across
        edge[:, :, :-1] |= across
        edge[:, 1:] |= down
        edge[:, :-1] |= down
        edge = edge.flatten(1)
        scene, pixel = edge.nonzero(as_tuple=True)
        slot = (edge.cumsum(dim=1) - 1)[scene, pixel]
        pixels = edge.long().argmax(dim=1, keepdim=True).repeat(1, int(edge.sum(dim=1).max()))
        pixels[scene, slot] = pixel
        return pixels
