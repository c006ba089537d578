"""A run in one picture."""

import numpy as np

from protoformer.viz.plots import training_summary

PAPER = np.array((250, 250, 248))


def step(number: int, loss: float | None, epe: float) -> dict[str, object]:
    return {"event": "step", "step": number, "loss": loss, "metrics": {"epe": epe}, "lr": 1e-3}


RECORDS = [
    {"event": "start", "step": 0, "steps": 30},
    step(10, 5.0, 2.0),
    step(20, None, 1.5),
    step(30, 2.0, 1.0),
    {"event": "validation", "step": 20, "dataset": "sintel", "clean epe": 3.0, "final epe": 4.0, "clean fl": 9.0},
    {"event": "validation", "step": 30, "dataset": "synthetic", "epe": None},
]


def has(image: np.ndarray, color: tuple[int, int, int]) -> bool:
    return bool((image == np.array(color)).all(axis=-1).any())


def test_a_summary_has_curves_of_training_and_of_each_validation() -> None:
    image = training_summary(RECORDS, [], "a run", "pictures")
    assert image.dtype == np.uint8 and image.shape[1:] == (1600, 3)
    loss, error, rate = np.split(image, (540, 1060), axis=1)
    blue, red, green = (31, 111, 178), (200, 85, 61), (58, 125, 68)
    assert has(loss, blue) and has(rate, blue)
    assert has(error, blue) and has(error, red) and has(error, green)  # training, sintel clean, sintel final
    assert not has(loss, red)


def test_images_are_below_in_their_own_shape() -> None:
    red, blue = np.zeros((40, 60, 3), np.uint8), np.zeros((20, 60, 3), np.uint8)
    red[..., 0] = blue[..., 2] = 255
    without, along = training_summary(RECORDS, [], "a run", ""), training_summary(RECORDS, [red, blue], "a run", "seen")
    assert along.shape[0] > without.shape[0]
    reds, blues = ((along == color).all(axis=-1) for color in ((255, 0, 0), (0, 0, 255)))
    for mask, ratio in ((reds, 1.5), (blues, 3.0)):
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        assert abs(len(columns) / len(rows) - ratio) < 0.02


def test_a_run_without_a_figure_is_drawn_too() -> None:
    assert training_summary([], [], "nothing yet", "").shape[1] == 1600
    assert training_summary([step(1, None, 1.0)], [np.zeros((8, 8, 3), np.uint8)], "one", "").shape[0] > 900


def test_the_metric_that_is_shown_is_the_tasks_first() -> None:
    records = [{"event": "step", "step": 10, "loss": 2.0, "metrics": {"iou": 0.4, "right": 0.9}, "lr": 1e-3}]
    judged = {"event": "validation", "step": 10, "dataset": "synthetic", "iou": 0.5, "right": 0.8}
    error = np.split(training_summary([*records, judged], [], "a run", ""), (540, 1060), axis=1)[1]
    assert has(error, (31, 111, 178)) and has(error, (200, 85, 61))  # training and world


def test_a_run_of_depth_shows_its_relative_error() -> None:
    metrics = {"abs_rel": 0.4, "delta1": 0.5, "silog": 3.0}
    records = [{"event": "step", "step": 10, "loss": 2.0, "metrics": metrics, "lr": 1e-3}]
    judged = {"event": "validation", "step": 10, "dataset": "nyuv2", "abs_rel": 0.3, "rmse": 0.8, "delta1": 0.6}
    drawn = training_summary([*records, judged], [], "a run", "")
    error = np.split(drawn, (540, 1060), axis=1)[1]
    assert has(error, (31, 111, 178)) and has(error, (200, 85, 61))  # training and nyuv2
