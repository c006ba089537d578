"""What a person sees of a run in the terminal."""

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar

from protoformer.training import Observer, Progress


class TrainingBar(Observer):
    """A bar on standard error: step, loss, end-point error, samples a second and time left; and notes.

    Where standard error is no terminal there are the notes alone.
    """

    def __init__(self, what: str) -> None:
        self.console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False, markup=False)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
        self.bar = Bar(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.task = self.bar.add_task(what, total=None, figures="")
        self.steps: int | None = None

    def started(self, step: int, steps: int | None) -> None:
        """Show it."""
        self.steps = steps
        self.bar.update(self.task, total=steps, completed=step, figures=f"step {step}")
        self.bar.start()

    def logged(self, progress: Progress) -> None:
        """Show the figures."""
        self.bar.update(self.task, completed=progress.step, figures=self.figures(progress))

    def noted(self, sentence: str) -> None:
        """Print it over the bar."""
        self.console.print("note:", sentence, style="yellow")

    def ended(self, step: int) -> None:
        """Take the bar away."""
        self.bar.stop()

    def figures(self, progress: Progress) -> str:
        """The figures, as they stand beside the bar."""
        parts = [f"step {progress.step}" + (f" of {self.steps}" if self.steps else "")]
        if progress.loss is not None:
            parts.append(f"loss {progress.loss:.3f}")
            parts.append(_watched(*next(iter(progress.metrics.items()))))
        parts.append(f"{progress.samples_per_second:.1f} pairs/s")
        if progress.skipped or progress.broken:
            parts.append(f"{progress.skipped} steps and {progress.broken} samples skipped")
        if progress.left is not None:
            parts.append(f"{duration(progress.left)} left")
        return ", ".join(parts)


def _watched(metric: str, value: float) -> str:
    """The first of a task's metrics, with its unit."""
    return f"EPE {value:.2f} px" if metric == "epe" else f"{metric} {value:.3f}"


class LastPictures(Observer):
    """Keeps the pictures of the last time that any were drawn."""

    def __init__(self) -> None:
        self.step = -1
        self.pictures: list[npt.NDArray[np.uint8]] = []

    def pictured(self, step: int, name: str, pixels: npt.NDArray[np.uint8]) -> None:
        """Keep it."""
        if step != self.step:
            self.step, self.pictures = step, []
        self.pictures.append(pixels)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
