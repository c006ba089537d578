"""Measure precision and recall of the tracker's `lost` and the calibration of its score on annotated sequences.

    python benchmarks/lost.py --dataset otb --root data/tracking --plot docs/lost.png

A frame counts as failed if the target is not visible or the IoU with its true box is below 0.1. Printed are the
precision and recall of `lost` against that, the fraction of all frames that failed but were not reported as lost, and
the calibration of the score: for frames with a score in a range, the fraction with an IoU of at least 0.5. Each
sequence runs once, from its first box; the first frame does not count. `--threads 1 2` runs everything with one and
with two threads, whose sums are rounded differently, and prints in how many frames `lost` is the same.
"""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from protoformer.datasets.registry import open_dataset
from protoformer.geometry.regions import box_iou
from protoformer.loading import load
from protoformer.synthetic.samples import TrackSequence
from protoformer.tracking.evaluation import track_from_first_box
from protoformer.tracking.video import TrackMethod, track_frames
from protoformer.video.image_sequence import ImageSequence
from protoformer.video.types import DEFAULT_FPS

FAILED_IOU, GOOD_IOU = 0.1, 0.5
"""IoU below which a frame failed, and from which on a box counts as right in the calibration of the score."""
SCORE_RANGES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99, 1.0)
"""Limits of the ranges of scores."""


@dataclass(frozen=True)
class Outcome:
    """Result of a run over T frames.

    Attributes:
        iou: T, IoU with the true box; 0 where the target is not visible.
        lost: T, bool, whether the tracker reported the target as lost.
        score: T, score in [0, 1].
    """

    iou: Tensor
    lost: Tensor
    score: Tensor

    @property
    def failed(self) -> Tensor:
        """Whether the target is not visible or its box is wrong, T."""
        return self.iou < FAILED_IOU

    def select(self, mask: Tensor) -> "Outcome":
        """Return the frames where a mask, T bools, is True."""
        return Outcome(self.iou[mask], self.lost[mask], self.score[mask])


def run_tracker(sequence: TrackSequence, method: TrackMethod) -> Outcome:
    """Track a sequence from its first box, without the first frame."""
    sequence = track_from_first_box(sequence)
    video = ImageSequence(sequence.frames, DEFAULT_FPS)
    targets = [step.targets[0] for step in track_frames(video, sequence.boxes[:1], method)][1:]
    iou = box_iou(torch.tensor([target.box for target in targets]), sequence.boxes[1:].nan_to_num())
    visible = sequence.present[1:] & sequence.boxes[1:].isfinite().all(dim=1)
    return Outcome(
        torch.where(visible, iou, 0.0),
        torch.tensor([target.lost for target in targets]),
        torch.tensor([target.score for target in targets]),
    )


def join(outcomes: list[Outcome]) -> Outcome:
    """Concatenate the frames of several runs."""
    return Outcome(*(torch.cat([getattr(each, name) for each in outcomes]) for name in ("iou", "lost", "score")))


def format_counts(outcome: Outcome) -> str:
    """Format how often the target was lost, and precision and recall of `lost`, in percent; - if undefined."""
    hits = float((outcome.failed & outcome.lost).sum())
    precision, recall = (
        f"{100 * hits / int(each.sum()):.1f}" if each.any() else "-" for each in (outcome.lost, outcome.failed)
    )
    silent = 100 * float((outcome.failed & ~outcome.lost).float().mean())
    shares = (100 * float(each.float().mean()) for each in (outcome.failed, outcome.lost))
    return "{:7.1f} {:7.1f} {:>10} {:>7} {:16.1f}".format(*shares, precision, recall, silent)


def calibration(outcome: Outcome) -> Iterator[tuple[float, float, int, float, float]]:
    """Yield for each range of scores: its limits, number of frames, mean score and fraction of good boxes."""
    for low, high in itertools.pairwise(SCORE_RANGES):
        part = outcome.select((outcome.score >= low) & ((outcome.score < high) | (high == 1.0)))
        if len(part.iou):
            good = float((part.iou >= GOOD_IOU).float().mean())
            yield low, high, len(part.iou), float(part.score.mean()), good


def save_plot(path: Path, outcome: Outcome) -> None:
    """Plot the fraction of good boxes against the mean score of each range."""
    from matplotlib.figure import Figure

    rows = list(calibration(outcome))
    figure = Figure(figsize=(4.5, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.plot((0, 1), (0, 1), linestyle="--", color="gray", label="calibrated")
    axes.plot([row[3] for row in rows], [row[4] for row in rows], marker="o", label="tracker")
    axes.set(xlabel="mean score", ylabel=f"fraction of frames with IoU ≥ {GOOD_IOU}", xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Parse the arguments, run the tracker and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder of the dataset")
    parser.add_argument("--dataset", default="own-track", help="name of the dataset")
    parser.add_argument("--model", default="track", help="a task, a preset or a .safetensors file")
    parser.add_argument("--plot", type=Path, default=None, help="file for the plot of the calibration, .png or .svg")
    parser.add_argument("--threads", type=int, nargs="+", default=None, help="numbers of CPU threads to run with")
    options = parser.parse_args()
    model = load(options.model, task="track")
    dataset = open_dataset(options.dataset, options.root)
    runs = []
    for threads in options.threads or [torch.get_num_threads()]:
        torch.set_num_threads(threads)
        runs.append([run_tracker(sequence, model.tracker) for sequence in dataset])
    outcomes = runs[-1]
    print(
        f"{'sequence':24} {'failed':>7} {'lost':>7} {'precision':>10} {'recall':>7} {'failed, not lost':>16}   percent"
    )
    for sequence, each in zip(dataset, outcomes, strict=True):
        print(f"{sequence.name:24} {format_counts(each)}")
    outcome = join(outcomes)
    print(f"{'all':24} {format_counts(outcome)}")
    print(f"\n{'score':>11} {'frames':>7} {'mean score':>11} {'IoU >= 0.5':>11}")
    for low, high, count, mean, good in calibration(outcome):
        print(f"{low:5.2f}-{high:5.2f} {count:7} {mean:11.2f} {good:11.2f}")
    if len(runs) > 1:
        first, last = join(runs[0]), join(runs[-1])
        same = 100 * float((first.lost == last.lost).float().mean())
        counts = f"{options.threads[0]} and {options.threads[-1]}"
        print(f"\nlost is the same in {same:.1f} % of the frames with {counts} threads")
    if options.plot is not None:
        save_plot(options.plot, outcome)
        print(f"wrote {options.plot}")


if __name__ == "__main__":
    main()
