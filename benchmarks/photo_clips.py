"""Write tracking clips of cut-outs that move over photographs, with exact boxes.

    python benchmarks/photo_clips.py --photos textures/photos --cutouts textures/cutouts -o clips --count 200

A clip shows a photograph under a moving camera, a target, up to four distractors (copies of the target in other
colors, or cut-outs of its class), occluders, exposure changes, motion blur, noise and compression; some targets leave
the frame. The class of a cut-out is its file name up to the last underscore. The clips are in the layout of custom
tracking data (`protoformer train track-own --data clips`): clip/img/0001.jpg ... and clip/groundtruth_rect.txt with
x,y,w,h per frame in pixels counted from 0, nan where less than a fifth of the target is visible.

`--part train` uses four fifths of the photographs and cut-outs, `--part val` the others.
"""

import argparse
import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

SIZES = ((270, 480), (240, 320), (288, 352), (360, 640))
"""(height, width) of the clips."""
FPS, MIN_FRAMES = 30.0, 10
MIN_VISIBLE, MIN_FIRST_VISIBLE = 0.2, 0.8
"""Visible fraction of a target from which on it has a box, and the one that is required in the first frame."""
MIN_AREA, MIN_SIDE = 100, 6
"""Smallest area and side of the first box, pixels."""
TARGET_SIZES, AERIAL_SIZES, AERIAL = (14.0, 110.0), (14.0, 28.0), 0.3
"""Square root of the area of a target, pixels, and that of the small targets of a fraction of the clips."""
MIN_OPAQUE, MAX_TRIES = 50, 100
"""Smallest number of opaque pixels of a cut-out, and number of cut-outs of a class that are tried to find one."""
HOLDOUT = 5
"""Every so many photographs and cut-outs are for validation."""


@dataclass
class Actor:
    """A cut-out and its motion over T frames.

    Attributes:
        image: H x W x 4, RGBA in [0, 1].
        category: Class of the cut-out.
        position: T x 2, center in pixels of the first frame, (x, y).
        scale: T, pixels per pixel of the cut-out.
        aspect: T, factor of the width and inverse factor of the height.
        angle: T, radians.
        shear: T, horizontal shear.
        mirrored: T, bool.
        last_center: Center (x, y) on the previous canvas, pixels; None before the first one is drawn.
    """

    image: Array
    category: str
    position: Array
    scale: Array
    aspect: Array
    angle: Array
    shear: Array
    mirrored: npt.NDArray[np.bool_]
    last_center: Array | None = field(default=None, compare=False)

    def transform(self, frame: int) -> Array:
        """Return the 2 x 2 matrix from pixels of the cut-out to pixels of the first frame's scale."""
        cos, sin = math.cos(self.angle[frame]), math.sin(self.angle[frame])
        stretch = np.diag([self.scale[frame] * self.aspect[frame], self.scale[frame] / self.aspect[frame]])
        matrix = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, self.shear[frame]], [0, 1]]) @ stretch
        return matrix @ np.diag([-1, 1]) if self.mirrored[frame] else matrix


@dataclass(frozen=True)
class Clip:
    """A rendered clip.

    Attributes:
        frames: uint8 T x H x W x 3.
        boxes: T x 4, (x, y, w, h) of the target in pixels, NaN outside the frame.
        visible: T, visible fraction of the target.
    """

    frames: npt.NDArray[np.uint8]
    boxes: Array
    visible: Array

    def is_usable(self) -> bool:
        """Return whether the target can be seen well in the first frame."""
        box = self.boxes[0]
        return bool(
            self.visible[0] > MIN_FIRST_VISIBLE
            and np.isfinite(box).all()
            and box[2] * box[3] >= MIN_AREA
            and box[2:].min() >= MIN_SIDE
        )


class ImagePool:
    """Photographs and cut-outs of one part, "train" or "val"."""

    def __init__(self, photos: Path, cutouts: Path, part: str, exclude: tuple[str, ...] = ()) -> None:
        """List the images; cut-outs whose names start with one of `exclude` are left out."""

        def is_selected(index: int) -> bool:
            return (index % HOLDOUT == 0) == (part == "val")

        self.photos = [path for index, path in enumerate(sorted(photos.rglob("*.jpg"))) if is_selected(index)]
        self.categories: dict[str, list[Path]] = defaultdict(list)
        paths = sorted(path for suffix in ("*.webp", "*.png") for path in cutouts.rglob(suffix))
        for index, path in enumerate(paths):
            if is_selected(index) and not path.name.startswith(exclude):
                self.categories[path.stem.rpartition("_")[0]].append(path)
        if not self.photos or not self.categories:
            raise SystemExit(
                "photo_clips: there are no .jpg photographs, or no .webp or .png cut-outs; check the folders"
            )
        counts = np.array([len(each) for each in self.categories.values()])
        self._weights = np.sqrt(counts) / np.sqrt(counts).sum()

    def photo(self, rng: np.random.Generator) -> Array:
        """Read a random photograph: H x W x 3 in [0, 1]."""
        image = cv2.imread(str(self.photos[rng.integers(len(self.photos))]))
        return image[..., ::-1].astype(np.float32) / 255

    def cutout(self, rng: np.random.Generator, category: str | None = None) -> tuple[Array, str]:
        """Read a random cut-out, of a class if one is given: its visible part, H x W x 4 in [0, 1], and its class."""
        name = category or list(self.categories)[rng.choice(len(self.categories), p=self._weights)]
        paths = self.categories[name]
        for _ in range(MAX_TRIES):
            image = cv2.imread(str(paths[rng.integers(len(paths))]), cv2.IMREAD_UNCHANGED).astype(np.float32) / 255
            rows, columns = np.nonzero(image[..., 3] > 0.5)
            if len(rows) >= MIN_OPAQUE:
                return image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1, [2, 1, 0, 3]], name
        raise SystemExit(f"photo_clips: cut-outs of the class {name} have fewer than {MIN_OPAQUE} opaque pixels")


def smooth_path(
    rng: np.random.Generator, frames: int, axes: int, amplitude: float, low: float = 0.05, high: float = 0.6
) -> Array:
    """Return a sum of three sines per axis, T x axes, of `low` to `high` Hz; slow ones are larger."""
    time = np.arange(frames)[:, None, None] / FPS
    frequency = np.exp(rng.uniform(math.log(low), math.log(high), (1, axes, 3)))
    phase = rng.uniform(0, 2 * math.pi, (1, axes, 3))
    weight = rng.uniform(0.3, 1, (1, axes, 3)) / np.sqrt(frequency / low)
    return (weight * np.sin(2 * math.pi * frequency * time + phase)).sum(axis=2) * amplitude / 3**0.5


def jitter_color(rng: np.random.Generator, image: Array, strength: float) -> Array:
    """Scale and shift the colors of an image, H x W x 3 or 4."""
    gain, offset = 1 + strength * rng.uniform(-1, 1, 3), 0.3 * strength * rng.uniform(-1, 1)
    result = image.copy()
    result[..., :3] = np.clip(image[..., :3] * gain + offset, 0, 1)
    return result


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a number whose logarithm is uniform."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def sample_actor(
    rng: np.random.Generator, image: Array, category: str, size: float, position: Array, rigid: bool
) -> Actor:
    """Give a cut-out a random motion; `size` is the square root of its area in the first frame, pixels."""
    frames = len(position)
    scale = np.exp(smooth_path(rng, frames, 1, rng.uniform(0, 0.35), high=0.4)[:, 0])
    strength = 0.02 if rigid else 0.25
    mirrored = np.zeros(frames, bool)
    if rng.random() < 0.25:
        mirrored[rng.integers(frames // 4, frames) :] = True
    return Actor(
        image,
        category,
        position,
        scale=size * scale / scale[0] / math.sqrt(image.shape[0] * image.shape[1]),
        aspect=np.exp(smooth_path(rng, frames, 1, rng.uniform(0, 0.12), 0.2, 2.0)[:, 0]),
        angle=smooth_path(rng, frames, 1, rng.uniform(0, strength), 0.1, 1.2)[:, 0],
        shear=smooth_path(rng, frames, 1, rng.uniform(0, strength), 0.3, 2.5)[:, 0],
        mirrored=mirrored,
    )


def sample_actors(
    rng: np.random.Generator, pool: ImagePool, photo: Array, path: Array, start: Array, size: float, frame_size: Array
) -> tuple[Actor, list[Actor]]:
    """Sample the target, which follows `start` + `path` (T x 2, pixels), and all actors from back to front."""
    frames = len(path)
    target = sample_actor(rng, *pool.cutout(rng), size, start + path, rigid=rng.random() < 0.4)
    behind, before = [], []
    for _ in range(rng.integers(0, 5)):
        kind, drift = rng.random(), smooth_path(rng, frames, 2, 1.0, high=0.5) * frame_size * 0.2
        offset = rng.normal(0, 1, 2) * frame_size * 0.3
        if rng.random() < 0.5:  # the distractor crosses the target
            moment = rng.integers(5, frames)
            offset = path[moment] + rng.normal(0, 0.3, 2) * size - drift[moment]
        if kind < 0.35:
            cutout = jitter_color(rng, target.image, 0.15 if rng.random() < 0.5 else 0.5), target.category
        else:
            cutout = pool.cutout(rng, target.category if kind < 0.85 else None)
        distractor_size = size * math.exp(rng.normal(0, 0.3))
        actor = sample_actor(rng, *cutout, distractor_size, start + offset + drift, rigid=rng.random() < 0.5)
        (behind if rng.random() < 0.5 else before).append(actor)
    occluders = []
    for _ in range(rng.integers(1, 3) if rng.random() < 0.45 else 0):
        moment, velocity = rng.integers(8, frames), rng.normal(0, 1, 2) * size * rng.uniform(0.02, 0.25)
        position = start + path[moment] + (np.arange(frames)[:, None] - moment) * velocity
        position = position + rng.normal(0, 0.15, 2) * size
        cutout = pool.cutout(rng)
        if rng.random() < 0.5:
            height, width = photo.shape[:2]
            patch = photo[rng.integers(0, height // 2) :, rng.integers(0, width // 2) :]
            patch = jitter_color(rng, patch[: height // 3, : rng.integers(width // 12 + 1, width // 3)], 0.3)
            cutout = np.concatenate((patch, np.ones((*patch.shape[:2], 1), np.float32)), axis=2), "patch"
        occluders.append(sample_actor(rng, *cutout, size * rng.uniform(1.2, 3.0), position, rigid=True))
    if rng.random() < 0.25 and frames >= 40:
        target.position = target.position + _excursion(rng, frames) * frame_size.max()
    return target, [*behind, target, *before, *occluders]


def _excursion(rng: np.random.Generator, frames: int) -> Array:
    """Return a displacement, T x 2, that is 1 for some frames, as of a target that leaves the frame and returns."""
    moment, length, angle = rng.integers(frames // 4, 3 * frames // 4), rng.integers(8, 30), rng.uniform(0, 2 * math.pi)
    push = np.zeros(frames)
    push[moment : moment + length] = 1
    push = np.convolve(push, np.ones(5) / 5, "same")
    return push[:, None] * np.array([math.cos(angle), math.sin(angle)])


def _motion_blur(rgb: Array, alpha: Array, shift: Array) -> tuple[Array, Array]:
    """Blur a layer along a shift in pixels: H x W x 3 colors and H x W x 1 alpha."""
    length = min(int(np.hypot(*shift)), 31)
    if length < 3:
        return rgb, alpha
    kernel, center = np.zeros((length, length), np.float32), (length - 1) / 2
    reach = shift / np.hypot(*shift) * center
    ends = [tuple(np.round(center + sign * reach).astype(int).tolist()) for sign in (-1, 1)]
    cv2.line(kernel, *ends, 1)
    blurred = cv2.filter2D(np.concatenate((rgb * alpha, alpha), axis=2), -1, kernel / kernel.sum())
    return blurred[..., :3] / np.maximum(blurred[..., 3:], 1e-3), blurred[..., 3:]


def _shrink(image: Array, scale: float) -> Array:
    """Low-pass a cut-out that will be drawn at a scale below 1/2."""
    width = int(1 / scale)
    if width < 2:
        return image
    premultiplied = image.copy()
    premultiplied[..., :3] *= premultiplied[..., 3:]
    premultiplied = cv2.blur(premultiplied, (width, width))
    alpha = premultiplied[..., 3:]
    return np.concatenate((premultiplied[..., :3] / np.maximum(alpha, 1e-3), alpha), axis=2)


def draw_actor(canvas: Array, actor: Actor, frame: int, camera: Array, center: Array, shutter: float) -> Array:
    """Draw an actor onto a canvas, H x W x 3, in place, and return its mask, H x W, 0 or 1.

    `camera` is the 2 x 2 matrix of the camera, `center` the actor's center on the canvas, and `shutter` the fraction of
    the time between two frames during which the shutter is open.
    """
    height, width = canvas.shape[:2]
    mask = np.zeros((height, width), np.float32)
    matrix = camera @ actor.transform(frame)
    half = np.array([actor.image.shape[1] / 2, actor.image.shape[0] / 2])
    extent = np.abs(matrix) @ half + 2
    left, top = np.maximum(np.floor(center - extent).astype(int), 0)
    right, bottom = np.minimum(np.ceil(center + extent).astype(int), (width, height))
    if right > left and bottom > top:
        affine = np.column_stack((matrix, center - matrix @ half - (left, top)))
        image = _shrink(actor.image, math.sqrt(abs(np.linalg.det(matrix))))
        layer = cv2.warpAffine(image, affine, (int(right - left), int(bottom - top)), flags=cv2.INTER_LINEAR)
        rgb, alpha = layer[..., :3], layer[..., 3:]
        if actor.last_center is not None and shutter > 0.3:
            rgb, alpha = _motion_blur(rgb, alpha, (center - actor.last_center) * shutter)
        region = canvas[top:bottom, left:right]
        region[:] = region * (1 - alpha) + np.clip(rgb, 0, 1) * alpha
        mask[top:bottom, left:right] = alpha[..., 0] > 0.5
    actor.last_center = center
    return mask


def make_clip(rng: np.random.Generator, pool: ImagePool, frames: int) -> Clip:
    """Render a random clip."""
    height, width = SIZES[rng.integers(len(SIZES))]
    frame_size, photo = np.array([width, height]), pool.photo(rng)
    zoom = max(height / photo.shape[0], width / photo.shape[1]) * rng.uniform(1.1, 1.7)
    size = log_uniform(rng, *(AERIAL_SIZES if rng.random() < AERIAL else TARGET_SIZES))
    path = smooth_path(rng, frames, 2, 1.0, high=0.5) * frame_size * 0.22 * log_uniform(rng, 0.3, 3.0) ** 0.7
    path, start = path - path[0], frame_size * rng.uniform(0.25, 0.75, 2)
    # The camera follows the target more or less, drifts and shakes.
    camera = rng.uniform(0, 1) * path + smooth_path(rng, frames, 2, 0.06) * width
    if rng.random() < 0.5:
        camera = camera + smooth_path(rng, frames, 2, log_uniform(rng, 0.3, 6), 1.5, 8)
    camera = camera - camera[0]
    camera_scale = np.exp(smooth_path(rng, frames, 1, rng.uniform(0, 0.15), high=0.4)[:, 0])
    camera_angle = smooth_path(rng, frames, 1, rng.uniform(0, 0.06), high=0.8)[:, 0]
    target, layers = sample_actors(rng, pool, photo, path, start, size, frame_size)
    exposure = np.exp(smooth_path(rng, frames, 1, rng.uniform(0, 0.3), 0.1, 1)[:, 0])
    noise, shutter = rng.uniform(0, 0.04) * (rng.random() < 0.5), rng.uniform(0, 1)
    quality = int(rng.uniform(25, 90)) if rng.random() < 0.6 else None
    blur, is_gray = rng.uniform(0, 0.9) if rng.random() < 0.4 else 0.0, rng.random() < 0.08
    middle, images = frame_size / 2, []
    boxes, visible = np.full((frames, 4), np.nan, np.float32), np.zeros(frames, np.float32)
    for frame in range(frames):
        angle = camera_angle[frame] - camera_angle[0]
        rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        view = camera_scale[frame] / camera_scale[0] * rotation
        corner = view @ (-zoom / 2 * np.array([photo.shape[1], photo.shape[0]]) - camera[frame]) + middle
        canvas = cv2.warpAffine(
            photo,
            np.column_stack((zoom * view, corner)),
            (width, height),
            flags=cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_REFLECT_101,
        )
        shown = np.zeros((height, width), np.float32)
        for actor in layers:
            center = view @ (actor.position[frame] - middle - camera[frame]) + middle
            mask = draw_actor(canvas, actor, frame, view, center, shutter)
            if actor is target:
                shown = mask
                rows, columns = np.nonzero(mask)
                if len(rows):
                    left, top = columns.min(), rows.min()
                    boxes[frame] = left, top, columns.max() + 1 - left, rows.max() + 1 - top
            else:
                shown = shown * (1 - mask)
        area = abs(np.linalg.det(view @ target.transform(frame))) * float((target.image[..., 3] > 0.5).sum())
        visible[frame] = min(1.0, float(shown.sum()) / max(area, 1.0))
        images.append(_expose(rng, canvas * exposure[frame], blur, noise, is_gray, quality))
    return Clip(np.stack(images), boxes, visible)


def _expose(
    rng: np.random.Generator, image: Array, blur: float, noise: float, is_gray: bool, quality: int | None
) -> npt.NDArray[np.uint8]:
    """Blur, add noise, remove the color and compress, as a camera does: uint8 H x W x 3."""
    if blur:
        image = cv2.GaussianBlur(image, (0, 0), blur)
    if noise:
        image = image + rng.normal(0, noise, image.shape)
    if is_gray:
        image = np.repeat(image.mean(axis=2, keepdims=True), 3, axis=2)
    pixels = (np.clip(image, 0, 1) * 255).astype(np.uint8)
    if quality is not None:
        _, encoded = cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
        pixels = cv2.imdecode(encoded, cv2.IMREAD_COLOR)[..., ::-1]
    return np.ascontiguousarray(pixels)


def write_clip(folder: Path, clip: Clip) -> None:
    """Write the frames and the boxes of a clip."""
    images = folder / "img"
    images.mkdir(parents=True, exist_ok=True)
    for index, image in enumerate(clip.frames):
        cv2.imwrite(str(images / f"{index + 1:04d}.jpg"), image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])
    boxes = np.where((clip.visible >= MIN_VISIBLE)[:, None], clip.boxes, np.nan)
    lines = (",".join(f"{value:.2f}" for value in box) + "\n" for box in boxes)
    (folder / "groundtruth_rect.txt").write_text("".join(lines))


def main() -> None:
    """Parse the arguments and write the clips."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder of .jpg photographs")
    parser.add_argument("--cutouts", type=Path, required=True, help="folder of .webp or .png cut-outs with alpha")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write to")
    parser.add_argument("--count", type=int, default=200, help="number of clips")
    parser.add_argument("--frames", type=int, default=72, help="frames per clip")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--part", default="train", choices=("train", "val"), help="which images to use")
    parser.add_argument(
        "--exclude", action="append", default=[], help="leave out cut-outs with this prefix; repeatable"
    )
    options = parser.parse_args()
    if options.frames < MIN_FRAMES:
        parser.error(f"--frames is {options.frames}, but a clip has {MIN_FRAMES} frames or more")
    cv2.setNumThreads(1)
    pool = ImagePool(options.photos, options.cutouts, options.part, tuple(options.exclude))
    rng = np.random.default_rng(options.seed)
    written = 0
    while written < options.count:
        clip = make_clip(rng, pool, options.frames)
        if clip.is_usable():
            write_clip(options.output / f"clip-{options.seed}-{written:04d}", clip)
            written += 1
    print(f"wrote {written} clips of {options.frames} frames to {options.output}")


if __name__ == "__main__":
    main()
