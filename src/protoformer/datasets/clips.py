"""Write synthetic clips to disk in the layouts of public datasets, so that the dataset readers load them unchanged.

Every file is written atomically. Clips are rendered frame by frame, so memory use does not depend on their length.
"""

import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protoformer import __version__
from protoformer.datasets.base import choose, read_text
from protoformer.errors import InputError
from protoformer.geometry.warps import inside_image, pixel_grid
from protoformer.io.files import check_output, csv_text, make_folder, write_atomically
from protoformer.io.formats import Camera, write_cam, write_dpt, write_flo
from protoformer.io.image import write_image
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import MAX_DEPTH
from protoformer.synthetic.renderer import Motion, Renderer, View
from protoformer.synthetic.texture_bank import TextureBank
from protoformer.video.writer import write_video

ClipCallback = Callable[[], object]
"""Called after each rendered image."""

MIN_FRAMES = 2
"""Minimum number of frames of a clip."""
MIN_TARGET_AREA = 0.0005
"""Minimum visible area of the target in the first frame of a clip, as a fraction of the image."""
MIN_VISIBLE_FRACTION = 0.5
"""Minimum fraction of the target that is visible in that frame."""
UNKNOWN_FLOW = 1e10
"""Value of unknown flow in a `.flo` file (the Middlebury convention)."""
DEFAULT_SHAKE = 1.0
"""Camera shake of a stabilization clip if the scenes have none of their own."""
ABSENT_BOX = (0.0, 0.0, 0.0, 0.0)
"""Box of a frame in which the target is out of view."""


@dataclass(frozen=True)
class Layout:
    """File layout of a clip.

    Attributes:
        frames: Default number of frames of a clip.
        images_per_frame: Number of images that are rendered for each frame.
        files: Maps (root, clip name, number of frames) to all files of the clip.
        write: Writes a clip from (renderer, root, clip name, number of frames, callback); returns False if the scene
            has no target.
    """

    frames: int
    images_per_frame: int
    files: Callable[[Path, str, int], list[Path]]
    write: Callable[[Renderer, Path, str, int, ClipCallback], bool]


def default_layout(family: str) -> str:
    """Return the default layout of a scene family."""
    return {"chase": "otb", "handheld": "deepstab"}.get(family, "sintel")


def clip_name(scenes: SyntheticScenes, index: int, layout: str) -> str:
    """Return the name of a clip; in the "deepstab" layout this is its number, starting at 1."""
    return str(index + 1) if layout == "deepstab" else f"{scenes.family}_{scenes.seed}_{index:06d}"


def clip_files(scenes: SyntheticScenes, index: int, root: Path, layout: str, frames: int) -> list[Path]:
    """List all files of a clip."""
    return LAYOUTS[layout].files(root, clip_name(scenes, index, layout), frames)


def write_clip(
    scenes: SyntheticScenes,
    index: int,
    root: Path,
    layout: str,
    frames: int,
    device: torch.device | str = "cpu",
    on_frame: ClipCallback = lambda: None,
) -> bool:
    """Render one scene and write it as a clip.

    Layouts:
        "sintel": `training/clean|final|flow|occlusions|invalid|depth|camdata_left/<scene>/frame_0001.*` as in Sintel,
        plus `flow_backward` (from frame i + 1 to frame i, numbered i + 1) and `instances` (16-bit png, 0 for the static
        background). Masks are white where a pixel is occluded in the next frame and where its flow is invalid; as in
        Sintel, pixels that leave the image are not marked. Unknown flow is `UNKNOWN_FLOW`; the depth of the sky is
        infinite.

        "otb": `<clip>/img/0001.jpg` and `groundtruth_rect.txt` with 1-based x,y,w,h of the full extent of the target,
        clipped to the image, also while it is occluded. The box is 0,0,0,0 while the target is out of view, which
        readers of OTB and LaSOT treat as absent. `full_occlusion.txt` and `out_of_view.txt` follow LaSOT. The target is
        instance 1 in the family "chase", otherwise the instance with the largest visible area; the clip starts at the
        first frame that shows it.

        "deepstab": `unstable/<n>.avi`, `stable/<n>.avi`, and the poses of both cameras in `paths/<n>.csv` (camera to
        world, meters and rotation vectors).

    Args:
        scenes: The synthetic scenes.
        index: Index of the scene.
        root: Folder to write to.
        layout: A key of `LAYOUTS`.
        frames: Number of frames, at least `MIN_FRAMES`.
        device: Device to render on.
        on_frame: Called after each rendered image.

    Returns:
        Whether the clip was written; False if the scene has no target, in which case no file is written.
    """
    choose("the layout", layout, tuple(LAYOUTS))
    if frames < MIN_FRAMES:
        raise InputError(f"a clip of {frames} frames shows no motion; give at least {MIN_FRAMES}.")
    if layout == "deepstab" and not scenes.shake:
        scenes = SyntheticScenes(scenes.family, scenes.seed, scenes.size, shake=DEFAULT_SHAKE, bank=scenes.bank)
    with torch.no_grad():
        renderer = scenes.renderer([index], device)
        return LAYOUTS[layout].write(renderer, root, clip_name(scenes, index, layout), frames, on_frame)


_FRAME_KINDS = {"clean": "png", "final": "png", "depth": "dpt", "camdata_left": "cam", "instances": "png"}
_PAIR_KINDS = {"flow": "flo", "occlusions": "png", "invalid": "png"}


def _sintel_file(root: Path, kind: str, name: str, number: int) -> Path:
    suffix = (_FRAME_KINDS | _PAIR_KINDS | {"flow_backward": "flo"})[kind]
    return root / "training" / kind / name / f"frame_{number:04d}.{suffix}"


def _sintel_files(root: Path, name: str, frames: int) -> list[Path]:
    frame_numbers, pair_numbers, backward_numbers = range(1, frames + 1), range(1, frames), range(2, frames + 1)
    kinds = [
        *((kind, frame_numbers) for kind in _FRAME_KINDS),
        *((kind, pair_numbers) for kind in _PAIR_KINDS),
        ("flow_backward", backward_numbers),
    ]
    return [_sintel_file(root, kind, name, number) for kind, numbers in kinds for number in numbers]


def _write_sintel(renderer: Renderer, root: Path, name: str, frames: int, on_frame: ClipCallback) -> bool:
    def file_path(kind: str, number: int) -> Path:
        return _sintel_file(root, kind, name, number)

    for kind in (*_FRAME_KINDS, *_PAIR_KINDS, "flow_backward"):
        make_folder(file_path(kind, 1).parent)
    view = renderer.view(0.0)
    for number in range(1, frames + 1):
        _write_sintel_frame(renderer, view, partial(file_path, number=number))
        if number < frames:
            next_view = renderer.view(number / renderer.scenes.fps)
            motion = renderer.motion(view, next_view)
            write_flo(file_path("flow", number), _flow_to_numpy(motion))
            stays_inside = inside_image(
                pixel_grid(*view.frame.size, device=motion.flow.device) + motion.flow, *view.frame.size
            )
            write_image(file_path("occlusions", number), _mask_to_numpy(motion.occlusion & stays_inside))
            write_image(file_path("invalid", number), _mask_to_numpy(~motion.valid))
            write_flo(file_path("flow_backward", number + 1), _flow_to_numpy(renderer.motion(next_view, view)))
            view = next_view
        on_frame()
    return True


def _write_sintel_frame(renderer: Renderer, view: View, file_path: Callable[[str], Path]) -> None:
    """Write the files that depend on a single frame: images, depth, camera and instances."""
    write_image(file_path("clean"), image_to_uint8(renderer.clean(view)))
    write_image(file_path("final"), image_to_uint8(renderer.final(view)))
    depth = view.depth[0, 0]
    write_dpt(file_path("depth"), depth.where(depth < MAX_DEPTH, torch.inf).cpu().numpy())
    write_cam(file_path("camdata_left"), sintel_camera(renderer, view))
    write_image(file_path("instances"), renderer.instances(view)[0, 0].cpu().numpy().astype(np.uint16))


def sintel_camera(renderer: Renderer, view: View) -> Camera:
    """Return the camera of a view of a single scene, with extrinsics from world to camera as in Sintel."""
    camera, frame = renderer.scenes.camera, view.frame
    intrinsics = np.eye(3)
    intrinsics[(0, 1), (0, 1)] = camera.focal[0].numpy()
    intrinsics[:2, 2] = camera.center[0].numpy()
    rotation = frame.to_world[0].T.numpy()
    return Camera(intrinsics, np.concatenate((rotation, -rotation @ frame.eye[0].numpy()[:, None]), axis=1))


def _flow_to_numpy(motion: Motion) -> npt.NDArray[np.float32]:
    flow: npt.NDArray[np.float32] = motion.flow.where(motion.valid, UNKNOWN_FLOW)[0].permute(1, 2, 0).cpu().numpy()
    return flow


def _mask_to_numpy(mask: Tensor) -> npt.NDArray[np.uint8]:
    return (mask[0, 0].cpu().numpy() * 255).astype(np.uint8)


def image_to_uint8(image: Tensor) -> npt.NDArray[np.uint8]:
    """Convert the first image of a batch, B x 3 x H x W in [0, 1], to uint8 HxWx3."""
    pixels: npt.NDArray[np.uint8] = (image[0].clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    return pixels


def _otb_files(root: Path, name: str, frames: int) -> list[Path]:
    texts = ("groundtruth_rect.txt", "full_occlusion.txt", "out_of_view.txt")
    images = (root / name / "img" / f"{number:04d}.jpg" for number in range(1, frames + 1))
    return [*images, *(root / name / text for text in texts)]


def _write_otb(renderer: Renderer, root: Path, name: str, frames: int, on_frame: ClipCallback) -> bool:
    target = find_target(renderer, frames, renderer.scenes.target)
    if target is None:
        return False
    instance, start = target
    make_folder(root / name / "img")
    boxes, fully_occluded, out_of_view = [], [], []
    for number in range(frames):
        view = renderer.view((start + number) / renderer.scenes.fps)
        write_image(root / name / "img" / f"{number + 1:04d}.jpg", image_to_uint8(renderer.final(view)))
        box = target_box(renderer, view, instance)
        visible = bool((renderer.instances(view) == instance).any())
        boxes.append(ABSENT_BOX if box is None else (box[0] + 1, box[1] + 1, box[2], box[3]))
        fully_occluded.append(box is not None and not visible)
        out_of_view.append(box is None)
        on_frame()
    # The boxes are written last, so that readers ignore a clip that was interrupted.
    for text, flags in (("full_occlusion", fully_occluded), ("out_of_view", out_of_view)):
        write_atomically(root / name / f"{text}.txt", (",".join(str(int(flag)) for flag in flags) + "\n").encode())
    lines = [",".join(f"{value:g}" for value in box) for box in boxes]
    write_atomically(root / name / "groundtruth_rect.txt", ("\n".join(lines) + "\n").encode())
    return True


def find_target(renderer: Renderer, frames: int, instance: int = 0) -> tuple[int, int] | None:
    """Find the instance to track and the first of `frames` frames that shows enough of it; None if none does.

    `instance` 0 selects the instance with the largest visible area.
    """
    num_instances = int(renderer.materials.instance.max())
    for number in range(frames if num_instances else 0):
        view = renderer.view(number / renderer.scenes.fps)
        instance_map = renderer.instances(view)
        visible_pixels = torch.bincount(instance_map.flatten(), minlength=num_instances + 1)[1:]
        best = instance or int(visible_pixels.argmax()) + 1
        target_pixels = int(renderer.amodal_mask(view.frame, best).sum())
        if int(visible_pixels[best - 1]) >= max(
            MIN_TARGET_AREA * instance_map.numel(), MIN_VISIBLE_FRACTION * target_pixels
        ):
            return best, number
    return None


def target_box(renderer: Renderer, view: View, instance: int) -> tuple[float, float, float, float] | None:
    """Return the box (x, y, w, h), in pixels, of an instance clipped to the image; None if it is out of view."""
    x, y, width, height = renderer.amodal_box(view.frame, instance)[0].tolist()
    left, top = max(x, 0.0), max(y, 0.0)
    right, bottom = min(x + width, float(view.frame.size[1])), min(y + height, float(view.frame.size[0]))
    # The box of an instance behind the camera is NaN, and comparisons with NaN are false.
    return (left, top, right - left, bottom - top) if right > left and bottom > top else None


def _deepstab_files(root: Path, name: str, frames: int) -> list[Path]:
    return [root / "stable" / f"{name}.avi", root / "unstable" / f"{name}.avi", root / "paths" / f"{name}.csv"]


def _write_deepstab(renderer: Renderer, root: Path, name: str, frames: int, on_frame: ClipCallback) -> bool:
    rate = renderer.scenes.fps

    def render_frames(steady: bool) -> Iterator[npt.NDArray[np.uint8]]:
        for number in range(frames):
            yield image_to_uint8(renderer.final(renderer.view(number / rate, steady=steady)))
            on_frame()

    for folder in ("stable", "unstable", "paths"):
        make_folder(root / folder)
    write_atomically(root / "paths" / f"{name}.csv", _camera_paths_csv(renderer, frames).encode())
    for folder, steady in (("unstable", False), ("stable", True)):
        write_video(root / folder / f"{name}.avi", render_frames(steady), rate)
    return True


def _camera_paths_csv(renderer: Renderer, frames: int) -> str:
    """Format the poses of the shaky and the steady camera at every frame as csv."""
    columns = [f"{camera}_{axis}" for camera in ("shaky", "steady") for axis in ("x", "y", "z", "rx", "ry", "rz")]
    rows: list[list[object]] = [["frame", "time", *columns]]
    for number in range(frames):
        time = torch.tensor([number / renderer.scenes.fps], dtype=torch.float64)
        values = [float(time)]
        for steady in (False, True):
            rotation, position = renderer.scenes.camera.pose(time, steady)
            values += [*position[0].tolist(), *cv2.Rodrigues(rotation[0].numpy())[0][:, 0].tolist()]
        rows.append([number, *(f"{value:.9g}" for value in values)])
    return csv_text(rows)


LAYOUTS = {
    "sintel": Layout(5, 1, _sintel_files, _write_sintel),
    "otb": Layout(60, 1, _otb_files, _write_otb),
    "deepstab": Layout(60, 2, _deepstab_files, _write_deepstab),
}
"""Layouts by name."""


SETTINGS = "scenes.json"
_WITHOUT_TARGET = "without_target"


@dataclass(frozen=True)
class ClipFolder:
    """Result of `write_clips`: indices of scenes.

    Attributes:
        written: Those that this run wrote.
        existing: Those that an earlier run had written.
        without_target: Those that were left out because they have no target.
    """

    root: Path
    layout: str
    written: tuple[int, ...]
    existing: tuple[int, ...]
    without_target: tuple[int, ...]

    @property
    def clips(self) -> tuple[int, ...]:
        """Indices of all scenes whose clips are complete."""
        return tuple(sorted(self.written + self.existing))


def write_clips(
    scenes: SyntheticScenes,
    count: int,
    root: Path,
    layout: str,
    frames: int,
    *,
    textures: str = "procedural",
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> ClipFolder:
    """Write scenes 0 .. count - 1 as clips to a folder, skipping those whose files all exist.

    The settings are saved to `scenes.json` in the folder, and must be the same in later runs. `textures` is the name of
    the texture bank in them; `progress` is called with (done, total), counted in rendered images.
    """
    choose("the layout", layout, tuple(LAYOUTS))
    if count < 1:
        raise InputError(f"{count} clips cannot be written; give at least 1.")
    if frames < MIN_FRAMES:
        raise InputError(f"a clip of {frames} frames shows no motion; give at least {MIN_FRAMES}.")
    settings = clip_settings(scenes, layout, frames, textures)
    without_target = set(_check_settings(make_folder(root) / SETTINGS, settings))
    scenes = scenes.on(device)
    num_renders = frames * LAYOUTS[layout].images_per_frame
    total = count * num_renders
    written, existing, skipped = [], [], []
    for index in range(count):
        counter = itertools.count(index * num_renders + 1)
        if index in without_target:
            skipped.append(index)
        elif all(path.is_file() for path in clip_files(scenes, index, root, layout, frames)):
            existing.append(index)
        elif write_clip(scenes, index, root, layout, frames, device, partial(_report_frame, progress, counter, total)):
            written.append(index)
        else:
            skipped.append(index)
            without_target.add(index)
            _save_settings(root / SETTINGS, settings, without_target)
        progress((index + 1) * num_renders, total)
    return ClipFolder(root, layout, tuple(written), tuple(existing), tuple(skipped))


def _report_frame(progress: Callable[[int, int], object], counter: Iterator[int], total: int) -> None:
    progress(next(counter), total)


def clip_settings(scenes: SyntheticScenes, layout: str, frames: int, textures: str = "procedural") -> dict[str, Any]:
    """Return all settings that determine the content of the files."""
    return {
        "family": scenes.family,
        "seed": scenes.seed,
        "size": list(scenes.size),
        "shake": scenes.shake,
        "layout": layout,
        "frames": frames,
        "fps": scenes.scenes([0]).fps,
        "textures": f"{textures} {_fingerprint(scenes.bank)}",
        "version": __version__,
    }


def clip_names(scenes: SyntheticScenes, indices: tuple[int, ...], layout: str) -> tuple[str, ...]:
    """Return the names of the clips of several scenes."""
    return tuple(clip_name(scenes, index, layout) for index in indices)


def _fingerprint(bank: TextureBank) -> str:
    """Return a checksum of the texels, since the content of a texture folder may change under the same name."""
    return f"{zlib.crc32(bank.texels.cpu().numpy().data):08x}"


def _check_settings(path: Path, settings: dict[str, Any]) -> list[int]:
    """Save the settings, or compare them with those of an earlier run.

    Returns:
        Indices of the scenes that the earlier run left out because they have no target.
    """
    check_output(path)
    if not path.exists():
        _save_settings(path, settings, set())
        return []
    try:
        saved = json.loads(read_text(path))
        without_target = [int(index) for index in saved.pop(_WITHOUT_TARGET, [])]
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InputError(f"{path} was not written by this command; remove it or choose another folder.") from None
    for key in settings.keys() | saved.keys():
        if key not in settings or key not in saved:
            raise InputError(f"{path} was written by another version (setting {key!r}); choose another folder.")
    for key, value in settings.items():
        if saved[key] != value:
            raise InputError(
                f"{path.parent} holds clips whose {key} is {_format_value(saved[key])}, not {_format_value(value)}; "
                "choose another folder, or the same settings."
            )
    return without_target


def _save_settings(path: Path, settings: dict[str, Any], without_target: set[int]) -> None:
    write_atomically(path, (json.dumps(settings | {_WITHOUT_TARGET: sorted(without_target)}, indent=1) + "\n").encode())


def _format_value(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
