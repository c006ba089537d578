"""Clips of a world on disk, in the layouts of public datasets, so that whatever reads those reads these.

Every file is written whole or not at all, and a clip is rendered frame by frame: its length does not matter to memory.
"""

import io
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
from protoformer.datasets.tree import choose, read_text
from protoformer.errors import InputError
from protoformer.geometry.warps import inside_image, pixel_grid
from protoformer.io.files import check_output, make_folder, write_atomically
from protoformer.io.float_formats import Camera, write_cam, write_dpt, write_flo
from protoformer.io.image import write_image
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import FARTHEST
from protoformer.synthetic.renderer import Motion, Renderer, View
from protoformer.synthetic.texture_bank import TextureBank
from protoformer.video.writer import write_video

ClipCallback = Callable[[], object]
"""Called after each picture that is finished."""

LEAST_FRAMES = 2
LEAST_SEEN = 0.0005
"""Share of an image's pixels that a target must fill when its clip begins."""
LEAST_SHARE = 0.5
"""Share of the target itself that must be seen then."""
UNKNOWN = 1e10
"""What a `.flo` file holds where nobody knows the motion: Middlebury's mark."""
SHAKE = 1.0
"""Strength of the hand where a world without one must show a shaky twin."""
ABSENT = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Layout:
    """How clips lie on disk.

    frames: length of a clip unless told otherwise. pictures: how many are rendered for each of its frames.
    files: (root, the clip's name, frames) to all its files. write: (renderer, root, name, frames, told) to whether it
    was written; False: there was no target.
    """

    frames: int
    pictures: int
    files: Callable[[Path, str, int], list[Path]]
    write: Callable[[Renderer, Path, str, int, ClipCallback], bool]


def default_layout(family: str) -> str:
    """The layout that suits a family best."""
    return {"chase": "otb", "handheld": "deepstab"}.get(family, "sintel")


def clip_name(world: SyntheticScenes, index: int, layout: str) -> str:
    """What a clip is called: its number from 1 on where the layout knows only numbers."""
    return str(index + 1) if layout == "deepstab" else f"{world.family}_{world.seed}_{index:06d}"


def clip_files(world: SyntheticScenes, index: int, root: Path, layout: str, frames: int) -> list[Path]:
    """Every file of a clip."""
    return LAYOUTS[layout].files(root, clip_name(world, index, layout), frames)


def write_clip(
    world: SyntheticScenes,
    index: int,
    root: Path,
    layout: str,
    frames: int,
    device: torch.device | str = "cpu",
    told: ClipCallback = lambda: None,
) -> bool:
    """Write the scene of a number as a clip of so many frames; False where it has no target, and nothing is written.

    "sintel": `training/clean|final|flow|occlusions|invalid|depth|camdata_left/<scene>/frame_0001.*` as the film's
    dataset has them, and what it lacks: `flow_backward` (from frame i + 1 to i, named by i + 1) and `instances` (16-bit
    png, 0 for what does not move by itself). Masks are white where a pixel is hidden in the next frame, and where its
    flow is not known; what leaves the image is not marked, as there. Unknown flow is `UNKNOWN`, the depth of the sky
    infinite.

    "otb": `<clip>/img/0001.jpg` and `groundtruth_rect.txt`, x,y,w,h from 1 on, of the whole target cut at the borders,
    also while it is hidden; 0,0,0,0 while it is out of view, which our reader and LaSOT's take as absent. Beside it
    LaSOT's `full_occlusion.txt` and `out_of_view.txt`. The target is instance 1 of a chase and elsewhere the one of
    which most is seen; the clip begins with the first frame that shows it.

    "deepstab": `unstable/<n>.avi` and its steady twin `stable/<n>.avi`, and the poses of both cameras in
    `paths/<n>.csv`, camera to world, meters and rotation vectors.
    """
    choose("the layout", layout, tuple(LAYOUTS))
    if frames < LEAST_FRAMES:
        raise InputError(f"a clip of {frames} frames shows no motion; ask for at least {LEAST_FRAMES}.")
    if layout == "deepstab" and not world.shake:
        world = SyntheticScenes(world.family, world.seed, world.size, shake=SHAKE, bank=world.bank)
    with torch.no_grad():
        renderer = world.renderer([index], device)
        return LAYOUTS[layout].write(renderer, root, clip_name(world, index, layout), frames, told)


_EACH_FRAME = {"clean": "png", "final": "png", "depth": "dpt", "camdata_left": "cam", "instances": "png"}
_EACH_PAIR = {"flow": "flo", "occlusions": "png", "invalid": "png"}


def _sintel_file(root: Path, kind: str, name: str, number: int) -> Path:
    suffix = (_EACH_FRAME | _EACH_PAIR | {"flow_backward": "flo"})[kind]
    return root / "training" / kind / name / f"frame_{number:04d}.{suffix}"


def _sintel_files(root: Path, name: str, frames: int) -> list[Path]:
    whole, pairs, back = range(1, frames + 1), range(1, frames), range(2, frames + 1)
    kinds = [*((kind, whole) for kind in _EACH_FRAME), *((kind, pairs) for kind in _EACH_PAIR), ("flow_backward", back)]
    return [_sintel_file(root, kind, name, number) for kind, numbers in kinds for number in numbers]


def _write_sintel(renderer: Renderer, root: Path, name: str, frames: int, told: ClipCallback) -> bool:
    def place(kind: str, number: int) -> Path:
        return _sintel_file(root, kind, name, number)

    for kind in (*_EACH_FRAME, *_EACH_PAIR, "flow_backward"):
        make_folder(place(kind, 1).parent)
    view = renderer.view(0.0)
    for number in range(1, frames + 1):
        _write_moment(renderer, view, partial(place, number=number))
        if number < frames:
            following = renderer.view(number / renderer.scenes.rate)
            motion = renderer.motion(view, following)
            write_flo(place("flow", number), _flow(motion))
            stays = inside_image(
                pixel_grid(*view.frame.size, device=motion.flow.device) + motion.flow, *view.frame.size
            )
            write_image(place("occlusions", number), _mask(motion.occlusion & stays))
            write_image(place("invalid", number), _mask(~motion.valid))
            write_flo(place("flow_backward", number + 1), _flow(renderer.motion(following, view)))
            view = following
        told()
    return True


def _write_moment(renderer: Renderer, view: View, place: Callable[[str], Path]) -> None:
    """What is known of one frame alone."""
    write_image(place("clean"), pixels_of(renderer.clean(view)))
    write_image(place("final"), pixels_of(renderer.final(view)))
    depth = view.depth[0, 0]
    write_dpt(place("depth"), depth.where(depth < FARTHEST, torch.inf).cpu().numpy())
    write_cam(place("camdata_left"), camera_of(renderer, view))
    write_image(place("instances"), renderer.instances(view)[0, 0].cpu().numpy().astype(np.uint16))


def camera_of(renderer: Renderer, view: View) -> Camera:
    """The camera of a view of one scene, as Sintel stores it: world to camera."""
    lens, frame = renderer.scenes.camera, view.frame
    intrinsics = np.eye(3)
    intrinsics[(0, 1), (0, 1)] = lens.focal[0].numpy()
    intrinsics[:2, 2] = lens.center[0].numpy()
    turn = frame.to_world[0].T.numpy()
    return Camera(intrinsics, np.concatenate((turn, -turn @ frame.eye[0].numpy()[:, None]), axis=1))


def _flow(motion: Motion) -> npt.NDArray[np.float32]:
    known: npt.NDArray[np.float32] = motion.flow.where(motion.valid, UNKNOWN)[0].permute(1, 2, 0).cpu().numpy()
    return known


def _mask(where: Tensor) -> npt.NDArray[np.uint8]:
    return (where[0, 0].cpu().numpy() * 255).astype(np.uint8)


def pixels_of(image: Tensor) -> npt.NDArray[np.uint8]:
    """The first of a batch of images, B x 3 x H x W in [0, 1], as uint8 HxWx3."""
    pixels: npt.NDArray[np.uint8] = (image[0].clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    return pixels


def _otb_files(root: Path, name: str, frames: int) -> list[Path]:
    texts = ("groundtruth_rect.txt", "full_occlusion.txt", "out_of_view.txt")
    images = (root / name / "img" / f"{number:04d}.jpg" for number in range(1, frames + 1))
    return [*images, *(root / name / text for text in texts)]


def _write_otb(renderer: Renderer, root: Path, name: str, frames: int, told: ClipCallback) -> bool:
    found = find_target(renderer, frames, renderer.scenes.target)
    if found is None:
        return False
    instance, start = found
    make_folder(root / name / "img")
    boxes, hidden, outside = [], [], []
    for number in range(frames):
        view = renderer.view((start + number) / renderer.scenes.rate)
        write_image(root / name / "img" / f"{number + 1:04d}.jpg", pixels_of(renderer.final(view)))
        box = target_box(renderer, view, instance)
        seen = bool((renderer.instances(view) == instance).any())
        boxes.append(ABSENT if box is None else (box[0] + 1, box[1] + 1, box[2], box[3]))
        hidden.append(box is not None and not seen)
        outside.append(box is None)
        told()
    # The boxes come last: a clip without them is none to a reader.
    for text, flags in (("full_occlusion", hidden), ("out_of_view", outside)):
        write_atomically(root / name / f"{text}.txt", (",".join(str(int(flag)) for flag in flags) + "\n").encode())
    lines = [",".join(f"{value:g}" for value in box) for box in boxes]
    write_atomically(root / name / "groundtruth_rect.txt", ("\n".join(lines) + "\n").encode())
    return True


def find_target(renderer: Renderer, frames: int, instance: int = 0) -> tuple[int, int] | None:
    """The instance to follow and the number of the first frame that shows enough of it; None where none does.

    instance: the one it must be; 0 for the one of which most is seen.
    """
    known = int(renderer.looks.instance.max())
    for number in range(frames if known else 0):
        view = renderer.view(number / renderer.scenes.rate)
        shown = renderer.instances(view)
        seen = torch.bincount(shown.flatten(), minlength=known + 1)[1:]
        best = instance or int(seen.argmax()) + 1
        whole = int(renderer.whole(view.frame, best).sum())
        if int(seen[best - 1]) >= max(LEAST_SEEN * shown.numel(), LEAST_SHARE * whole):
            return best, number
    return None


def target_box(renderer: Renderer, view: View, instance: int) -> tuple[float, float, float, float] | None:
    """The box of a whole instance cut at the borders of the image: (x, y, w, h) in pixels; None out of view."""
    x, y, width, height = renderer.whole_box(view.frame, instance)[0].tolist()
    left, top = max(x, 0.0), max(y, 0.0)
    right, bottom = min(x + width, float(view.frame.size[1])), min(y + height, float(view.frame.size[0]))
    # Comparisons with NaN are false.
    return (left, top, right - left, bottom - top) if right > left and bottom > top else None


def _deepstab_files(root: Path, name: str, frames: int) -> list[Path]:
    return [root / "stable" / f"{name}.avi", root / "unstable" / f"{name}.avi", root / "paths" / f"{name}.csv"]


def _write_deepstab(renderer: Renderer, root: Path, name: str, frames: int, told: ClipCallback) -> bool:
    rate = renderer.scenes.rate

    def pictures(steady: bool) -> Iterator[npt.NDArray[np.uint8]]:
        for number in range(frames):
            yield pixels_of(renderer.final(renderer.view(number / rate, steady=steady)))
            told()

    for folder in ("stable", "unstable", "paths"):
        make_folder(root / folder)
    write_atomically(root / "paths" / f"{name}.csv", _paths(renderer, frames).encode())
    for folder, steady in (("unstable", False), ("stable", True)):
        write_video(root / folder / f"{name}.avi", pictures(steady), rate)
    return True


def _paths(renderer: Renderer, frames: int) -> str:
    """Where both cameras are at every frame, as csv."""
    text = io.StringIO()
    columns = [f"{which}_{axis}" for which in ("shaky", "steady") for axis in ("x", "y", "z", "rx", "ry", "rz")]
    text.write(",".join(("frame", "time", *columns)) + "\n")
    for number in range(frames):
        time = torch.tensor([number / renderer.scenes.rate], dtype=torch.float64)
        values = [float(time)]
        for steady in (False, True):
            turn, position = renderer.scenes.camera.pose(time, steady)
            values += [*position[0].tolist(), *cv2.Rodrigues(turn[0].numpy())[0][:, 0].tolist()]
        text.write(f"{number}," + ",".join(f"{value:.9g}" for value in values) + "\n")
    return text.getvalue()


LAYOUTS = {
    "sintel": Layout(5, 1, _sintel_files, _write_sintel),
    "otb": Layout(60, 1, _otb_files, _write_otb),
    "deepstab": Layout(60, 2, _deepstab_files, _write_deepstab),
}
"""Layouts by their names."""


SETTINGS = "world.json"
_WITHOUT_TARGET = "without_target"


@dataclass(frozen=True)
class ClipFolder:
    """What a run found and left: numbers of scenes.

    written: clips that this run wrote. there: those that an earlier one had. left_out: those without a target.
    """

    root: Path
    layout: str
    written: tuple[int, ...]
    there: tuple[int, ...]
    left_out: tuple[int, ...]

    @property
    def clips(self) -> tuple[int, ...]:
        """All that are whole now."""
        return tuple(sorted(self.written + self.there))


def write_clips(
    world: SyntheticScenes,
    count: int,
    root: Path,
    layout: str,
    frames: int,
    *,
    textures: str = "procedural",
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> ClipFolder:
    """Write scenes 0 .. count - 1 as clips into a folder, but for those whose files are all there.

    `world.json` in it keeps the settings; a folder with others is refused. textures: what the world's are called there.
    progress: called with (done, total), in pictures.
    """
    choose("the layout", layout, tuple(LAYOUTS))
    if count < 1:
        raise InputError(f"{count} clips cannot be written; ask for at least 1.")
    if frames < LEAST_FRAMES:
        raise InputError(f"a clip of {frames} frames shows no motion; ask for at least {LEAST_FRAMES}.")
    settings = clip_settings(world, layout, frames, textures)
    without = set(_agreed(make_folder(root) / SETTINGS, settings))
    world = world.on(device)
    pictures = frames * LAYOUTS[layout].pictures
    written, there, left_out = [], [], []
    for index in range(count):
        finished = itertools.count(index * pictures + 1)
        if index in without:
            left_out.append(index)
        elif all(path.is_file() for path in clip_files(world, index, root, layout, frames)):
            there.append(index)
        elif write_clip(
            world, index, root, layout, frames, device, partial(_tell, progress, finished, count * pictures)
        ):
            written.append(index)
        else:
            left_out.append(index)
            without.add(index)
            _save(root / SETTINGS, settings, without)
        progress((index + 1) * pictures, count * pictures)
    return ClipFolder(root, layout, tuple(written), tuple(there), tuple(left_out))


def _tell(progress: Callable[[int, int], object], finished: Iterator[int], total: int) -> None:
    progress(next(finished), total)


def clip_settings(world: SyntheticScenes, layout: str, frames: int, textures: str = "procedural") -> dict[str, Any]:
    """Everything that decides what the files of a folder hold."""
    return {
        "family": world.family,
        "seed": world.seed,
        "size": list(world.size),
        "shake": world.shake,
        "layout": layout,
        "frames": frames,
        "rate": world.scenes([0]).rate,
        "textures": f"{textures} {_fingerprint(world.bank)}",
        "version": __version__,
    }


def clip_names(world: SyntheticScenes, indices: tuple[int, ...], layout: str) -> tuple[str, ...]:
    """What the clips of these numbers are called."""
    return tuple(clip_name(world, index, layout) for index in indices)


def _fingerprint(bank: TextureBank) -> str:
    """Textures that differ have another; a folder may change while its name stays."""
    return f"{zlib.crc32(bank.texels.cpu().numpy().data):08x}"


def _agreed(path: Path, settings: dict[str, Any]) -> list[int]:
    """Save the settings, or check them against those of an earlier run: the scenes that it found without a target."""
    check_output(path)
    if not path.exists():
        _save(path, settings, set())
        return []
    try:
        earlier = json.loads(read_text(path))
        without = [int(index) for index in earlier.pop(_WITHOUT_TARGET, [])]
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InputError(f"{path} is not what this command writes; remove it or choose another folder.") from None
    for key in settings.keys() | earlier.keys():
        if key not in settings or key not in earlier:
            raise InputError(f"{path} is not what this version writes ({key}); choose another folder.")
    for key, value in settings.items():
        if earlier[key] != value:
            raise InputError(
                f"{path.parent} holds clips whose {key} is {_said(earlier[key])}, not {_said(value)}; "
                "choose another folder, or the same settings."
            )
    return without


def _save(path: Path, settings: dict[str, Any], without: set[int]) -> None:
    write_atomically(path, (json.dumps(settings | {_WITHOUT_TARGET: sorted(without)}, indent=1) + "\n").encode())


def _said(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
