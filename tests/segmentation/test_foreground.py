"""Steps of the foreground estimate on fields that are known exactly."""

from dataclasses import replace

import numpy as np
import pytest

from protoformer.segmentation.foreground import (
    Appearance,
    CameraModel,
    MotionWindow,
    accumulate,
    chain,
    guided_filter,
    measure_independent_motion,
)

SIZE = (40, 60)


def constant_window(count: int, shift: tuple[float, float], residual: float = 0.0) -> MotionWindow:
    """Frames under a constant shift, with a block in the middle that moves `residual` pixels faster in x."""
    images, forward, backward = [], [], []
    for index in range(count):
        image = np.full((*SIZE, 3), 60, np.uint8)
        image[12:28, 20:40] = 200
        images.append(image)
        if index < count - 1:
            flow = np.empty((3, *SIZE), np.float32)
            flow[0], flow[1], flow[2] = *shift, 1.0
            flow[0, 12:28, 20:40] += residual
            forward.append(flow)
            backward.append(flow * np.array((-1, -1, 1), np.float32)[:, None, None])
    features = [np.random.default_rng(0).normal(size=(4, 5, 8)).astype(np.float32)] * count
    return MotionWindow(images, features, forward, backward)


def test_a_chain_of_constant_flow_is_its_multiple() -> None:
    window = constant_window(5, (1.0, -0.5))
    assert chain(window, 0, 4)[:2].mean(axis=(1, 2)) == pytest.approx([4, -2])
    assert chain(window, 4, -3)[:2].mean(axis=(1, 2)) == pytest.approx([-3, 1.5])
    assert chain(window, 2, 3) is None and chain(window, 1, -2) is None
    assert chain(window, 0, 1)[2].min() == 1


def test_the_camera_model_recovers_a_zoom_behind_an_object() -> None:
    camera = CameraModel(SIZE)
    coefficients = np.zeros((6, 2), np.float32)
    coefficients[:3] = ((1.0, -2.0), (3.0, 0.2), (-0.2, 3.0))
    truth = np.einsum("chw,ck->khw", camera.terms, coefficients)
    flow = truth.copy()
    flow[:, 8:34, 15:48] += 6  # over a third of the frame
    motion, scale = camera.fit(flow, np.ones(SIZE, np.float32))
    assert np.abs(motion - truth).max() < 0.05 and scale < 0.15


def textured_window(count: int) -> MotionWindow:
    """Textured frames in which the background moves by (2, 0) and a textured block in the middle by (5, 0)."""
    window, random = constant_window(count, (2.0, 0.0), residual=3.0), np.random.default_rng(1)
    behind, front = random.integers(0, 256, (2, 40, 120, 3), dtype=np.uint8)
    images = []
    for index in range(count):
        image = behind[:, 40 - 2 * index : 100 - 2 * index].copy()
        image[12:28, 20:40] = front[12:28, 40 - 5 * index : 60 - 5 * index]
        images.append(image)
    return replace(window, images=images)


def test_the_object_has_positive_evidence_and_its_residual_motion() -> None:
    motion = measure_independent_motion(textured_window(6), CameraModel(SIZE))
    for evidence, residual in zip(motion.evidence(), motion.residuals, strict=True):
        assert evidence[17:23, 27:33].min() > 1 and evidence[:6].max() < 0
        assert residual[:, 16:24, 26:34].mean(axis=(1, 2)) == pytest.approx([3, 0], abs=0.1)


def test_motion_without_texture_is_no_evidence() -> None:
    window = constant_window(6, (2.0, 0.0), residual=3.0)
    window = replace(window, images=[np.full((*SIZE, 3), 90, np.uint8)] * 6)
    assert max(evidence.max() for evidence in measure_independent_motion(window, CameraModel(SIZE)).evidence()) == 0


def test_evidence_follows_the_flow_to_frames_without_any() -> None:
    window = constant_window(3, (5.0, 0.0))
    evidence = [np.zeros(SIZE, np.float32) for _ in range(3)]
    evidence[0][10, 10] = 4
    total = accumulate(evidence, window)
    assert np.unravel_index(total[2].argmax(), SIZE) == (10, 20)
    assert total[0][10, 10] > total[1][10, 15] > total[2][10, 20] > 0


def test_appearance_fills_an_object_from_a_part_of_it() -> None:
    window = constant_window(3, (0.0, 0.0))
    log_odds = [np.full(SIZE, -3.0, np.float32) for _ in range(3)]
    for each in log_odds:
        each[10:30, 18:42] = 0
        each[14:26, 22:30] = 3
    scores = Appearance(window).classify(log_odds)
    assert min(score[14:26, 33:38].min() for score in scores) > 0.3
    assert max(score[:8].max() for score in scores) < -0.3


def test_no_evidence_of_one_kind_gives_no_appearance() -> None:
    window = constant_window(2, (0.0, 0.0))
    scores = Appearance(window).classify([np.full(SIZE, -3.0, np.float32)] * 2)
    assert not any(score.any() for score in scores)


def test_the_guided_filter_moves_a_border_to_the_edge_of_the_image() -> None:
    image = np.zeros((30, 40, 3), np.uint8)
    image[:, 20:] = 255
    rough = np.zeros((30, 40), np.float32)
    rough[:, 22:] = 1
    refined = guided_filter(image, rough, 4, 1e-3) > 0.5
    assert refined[:, 21:].all() and not refined[:, :20].any()
    flat = np.full((30, 40), 0.25, np.float32)
    assert guided_filter(image, flat, 4, 1e-3) == pytest.approx(flat, abs=1e-4)
