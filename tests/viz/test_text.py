"""A result or a model that is printed says what it is in a line, and floods no terminal."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.explain.video import PrototypeFrame
from protoformer.stabilization.planner import Corrections
from protoformer.tracking.video import TrackFrame

FLOW = torch.tensor([3.0, 4.0]).view(2, 1, 1).repeat(1, 20, 30)
SURE = torch.full((1, 20, 30), 0.5)
MOTION = "30x20 pixels, mean motion 5.00 px, largest 5.00 px, mean confidence 0.50"


def test_flow_tells_its_size_and_its_motion() -> None:
    assert repr(pf.FlowResult(FLOW, SURE)) == f"FlowResult({MOTION}, trained)"
    assert str(pf.FlowResult(FLOW.half(), SURE, trained=False)) == f"FlowResult({MOTION}, not trained)"
    step = pf.FlowFrame(FLOW, SURE, number=3, time=Fraction(1, 8))
    assert repr(step) == f"FlowFrame(frame 3 at 0.125 s, {MOTION}, trained)"


def test_depth_tells_its_meters_and_whose_camera_they_are_of() -> None:
    depth = torch.linspace(1, 3, 601)[:-1].view(1, 20, 30)
    told = "30x20 pixels, 1.00 to 3.00 m, median 2.00 m, metric, camera"
    result = pf.DepthResult(depth, SURE, (0.1, 10.0), torch.eye(3), trained=False)
    assert repr(result) == f"DepthResult({told} assumed, not trained)"
    step = pf.DepthFrame(depth, SURE, (0.1, 10.0), torch.eye(3), camera="exif", number=2, time=Fraction(1, 2))
    assert repr(step) == f"DepthFrame(frame 2 at 0.500 s, {told} by exif, trained)"


def test_tracking_tells_how_long_and_how_well_it_followed() -> None:
    times = (Fraction(0), Fraction(1, 25))
    result = pf.TrackResult(torch.ones(2, 4), torch.tensor([1.0, 0.5]), torch.tensor([False, True]), times, (0, 1))
    assert repr(result) == "TrackResult(2 frames, 0.000 to 0.040 s, lost in 1, mean score 0.75, trained)"
    empty = pf.TrackResult(torch.ones(0, 4), torch.ones(0), torch.ones(0, dtype=torch.bool), (), (), trained=False)
    assert repr(empty) == "TrackResult(0 frames, not trained)"
    target = pf.TrackedBox((1.0, 2.0, 3.0, 4.0), 0.5, True)
    step = TrackFrame(np.zeros((20, 30, 3), np.uint8), 1, times[1], (target,), 0.1)
    assert repr(step) == "TrackFrame(frame 1 at 0.040 s, 30x20 pixels, 1 target, 1 lost)"


def test_stabilizing_tells_what_is_shown_and_how_much_steadier() -> None:
    path = np.zeros((3, 4))
    path[1, 0] = 2.0  # there and back again
    still = Corrections(np.full(3, 1 + 0j), np.zeros(3, complex))
    times = tuple(Fraction(each, 25) for each in range(3))
    result = pf.StabilizationResult(
        (20, 30), still, (), 0.9, False, path, np.zeros((3, 4)), (), (), times, (0, 1, 2), trained=False
    )
    told = "3 frames of 30x20 pixels, 90.0% of each side is shown, velocity changes by 0.00 px a frame, 4.00 before"
    assert repr(result) == f"StabilizationResult({told}, not trained)"


def test_prototypes_tell_how_many_they_are() -> None:
    owners = torch.arange(600).view(20, 30) % 7
    step = PrototypeFrame(4, Fraction(4, 25), np.zeros((20, 30, 3), np.uint8), owners, owners, 0.5)
    told = "frame 4 at 0.160 s, 30x20 pixels, 7 prototypes, 50.0% of the pixels kept theirs"
    assert repr(step) == f"PrototypeFrame({told})"


def test_an_explanation_tells_whose_it_is_and_how_much_there_is_of_it(tiny: pf.FlowPredictor) -> None:
    image = torch.rand(3, 32, 48)
    explained = tiny.explain(image, image)
    layers = len(explained.first.layers)
    assert repr(explained) == f"Explanation(flow, 2 images of 48x32 pixels, {layers} layers, not trained)"
    assert repr(explained.first) == f"ImageExplanation(48x32 pixels, {layers} layers)"
    last = explained.first.layer()
    used = f"{len(last.used)} of {last.count} prototypes have pixels"
    assert repr(last) == f"LayerExplanation({last.name}, 48x32 pixels, {used}, {last.steps} steps)"


@pytest.mark.parametrize("task", ["flow", "depth", "track", "stabilize"])
@pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
def test_a_model_tells_what_it_does_how_large_it_is_and_where_it_runs(task: str) -> None:
    model = pf.load("tiny", "cpu", task=task)
    millions = sum(each.numel() for each in model.network.parameters()) / 1e6
    told = f"{task}, not trained, {millions:.2f} M parameters, on cpu"
    assert repr(model) == f"{type(model).__name__}({told})"
