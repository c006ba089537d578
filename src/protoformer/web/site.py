"""State of one running web page: models, limits, example inputs and result folders."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from protoformer.depth.predictor import DepthPredictor
from protoformer.errors import UntrainedWarning
from protoformer.flow.predictor import FlowPredictor
from protoformer.io.image import write_image
from protoformer.loading import NamedMethod, load, load_method, load_stabilizer
from protoformer.segmentation.predictor import SegmentationPredictor
from protoformer.stabilization.predictor import StabilizationPredictor
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.video.reader import demo_clip, read_frames
from protoformer.video.writer import VideoWriter
from protoformer.viz.colormaps import Pixels, to_uint8
from protoformer.web.job import JobControl
from protoformer.web.limits import Limits
from protoformer.web.results import RECENT_SECONDS, Results, Sweeper

EXAMPLE_SIZE = (240, 320)
TEXTURE_SIZE, NUM_TEXTURES = 128, 2
"""Size of a texture, pixels, and textures of each kind: small numbers, so that the page starts quickly."""
CLIP_LABELS = {"cockatoo": "Cockatoo", "tears_of_steel": "Tears of Steel"}
"""Label of each packaged clip, by its name for `demo_clip`."""
IMAGE_FRAMES = {"cockatoo": (14, 16), "tears_of_steel": (20, 22)}
"""Frames of each packaged clip that are example images."""
TARGETS = {"cockatoo": (218, 8, 88, 136), "tears_of_steel": (224, 24, 84, 104)}
"""Box of a head, (x, y, w, h) in pixels, in the first frame of each packaged clip."""


@dataclass(frozen=True)
class Example:
    """Images or a clip, offered as example input.

    Attributes:
        name: Label of the button.
        paths: Files, one for each upload box.
        span: Start and end of the part of the clip that is selected at first, seconds; None: those of the clip.
        boxes: Boxes of targets in the first frame of the clip, (x, y, w, h) in pixels.
    """

    name: str
    paths: tuple[Path, ...]
    span: tuple[float | None, float | None] = (None, None)
    boxes: tuple[tuple[int, int, int, int], ...] = ()

    @property
    def style(self) -> str:
        """CSS class of the button, whose rule has its picture."""
        return "pf-example-" + self.paths[0].stem.replace("_", "-")


@dataclass(frozen=True)
class Site:
    """One running web page.

    Attributes:
        flow_model: Name of the flow model, as for `load`.
        folder: The only folder that the page writes to.
        limits: Limits on uploads and computations.
        depth_model: Name of the depth model.
        track_model: Name of the tracking model.
        stabilize_model: Name of the stabilization model.
    """

    flow_model: str
    folder: Path
    limits: Limits
    depth_model: str = "depth"
    track_model: str = "track"
    stabilize_model: str = "stabilize"

    @property
    def served(self) -> Path:
        """Folder of uploads and downloads, the only one whose files are sent to clients."""
        return self.folder / "served"

    @cached_property
    def flow(self) -> FlowPredictor:
        """Flow predictor, shared by all tabs."""
        with _no_untrained_warning():
            return load(self.flow_model, task="flow")

    @cached_property
    def depth(self) -> DepthPredictor:
        """Depth predictor, shared by all tabs."""
        with _no_untrained_warning():
            return load(self.depth_model, task="depth")

    @cached_property
    def tracker(self) -> NamedMethod:
        """Tracking method."""
        with _no_untrained_warning():
            return load_method("model", self.track_model)

    @cached_property
    def segmenter(self) -> SegmentationPredictor:
        """Segmentation predictor, on the flow model."""
        return SegmentationPredictor(self.flow.network, self.flow.trained, self.flow.device)

    @cached_property
    def stabilizer(self) -> StabilizationPredictor:
        """Stabilization predictor."""
        with _no_untrained_warning():
            return load_stabilizer(self.stabilize_model)

    @cached_property
    def results(self) -> Results:
        """Result folders."""
        return Results(self.folder / "results", self.limits.max_jobs)

    def sweeper(self) -> Sweeper:
        """Return the thread that deletes old results and uploads while the page runs."""
        # A job needs its upload until it ends.
        keep = max(self.limits.keep_seconds, (self.limits.max_seconds or 0) + RECENT_SECONDS)
        return Sweeper(self.results, self.served, keep, self.limits.total_bytes)

    @cached_property
    def jobs(self) -> dict[str, JobControl]:
        """Running computations, by a secret that only the session of their client has."""
        return {}

    def stop_job(self, secret: str | None) -> bool:
        """Stop a running computation at the request of its client, and return whether there is one."""
        control = self.jobs.get(secret or "")
        if control is not None:
            control.stop()
        return control is not None

    def demo_images(self, count: int = 2) -> list[Example]:
        """Return frames of the packaged clips as images."""
        examples = []
        for name, label in CLIP_LABELS.items():
            paths = tuple(self._examples / f"{name}-{number}.png" for number in range(1, count + 1))
            if not all(path.exists() for path in paths):
                for path, image in zip(paths, read_frames(demo_clip(name), IMAGE_FRAMES[name][:count]), strict=True):
                    write_image(path, image)
            examples.append(Example(label, paths))
        return examples

    def demo_clips(self, seconds: float | None = None) -> list[Example]:
        """Return the packaged clips; `seconds` is the duration that is selected at first, None for all of it."""
        return [
            Example(label, (demo_clip(name),), (None, seconds), (TARGETS[name],)) for name, label in CLIP_LABELS.items()
        ]

    def example_images(self, name: str, family: str, index: int, count: int = 2) -> Example:
        """Render the first frames of a synthetic scene as images, unless they exist."""
        paths = tuple(self._examples / f"{family}-{number}.png" for number in range(1, count + 1))
        if not all(path.exists() for path in paths):
            for path, image in zip(paths, _render_frames(family, index, count)[1], strict=True):
                write_image(path, image)
        return Example(name, paths)

    def example_clip(self, name: str, family: str, index: int, num_frames: int = 8) -> Example:
        """Render a synthetic scene as a clip, unless it exists."""
        path = self._examples / f"{family}-{num_frames}.mp4"
        if not path.exists():
            fps, images = _render_frames(family, index, num_frames)
            with VideoWriter(path, fps=fps) as writer:
                for image in images:
                    writer.write(image)
        return Example(name, (path,))

    @property
    def _examples(self) -> Path:
        folder = self.folder / "examples"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _render_frames(family: str, index: int, count: int) -> tuple[float, Iterator[Pixels]]:
    """Return the frame rate of a synthetic scene and an iterator over its first frames."""
    bank = procedural_bank(TEXTURE_SIZE, NUM_TEXTURES)
    renderer = SyntheticScenes(family, size=EXAMPLE_SIZE, bank=bank).renderer([index])
    fps = float(renderer.scenes.fps)
    return fps, (to_uint8(renderer.clean(renderer.view(frame / fps))[0]) for frame in range(count))


@contextmanager
def _no_untrained_warning() -> Iterator[None]:
    """Suppress the warning about random weights, which the page shows itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)
        yield
