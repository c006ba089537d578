"""The demonstration's section on tracking."""

import pytest

import protoformer as pf
from protoformer.app import demo_tracking
from protoformer.inference.weights import packaged_weights


def test_a_section_shows_what_was_followed() -> None:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", "cpu", task="track")
    section = demo_tracking.tracking_section(model, shown=(0, 2))
    assert [figure.caption for figure in section.figures] == ["frame 1", "frame 3"]
    assert all(figure.content.shape == (240, 320, 3) for figure in section.figures)  # type: ignore[union-attr]
    assert "Over 3 frames" in section.text and "of 95 that a perfect track has" in section.text


def test_without_weights_there_is_no_section() -> None:
    if packaged_weights("track") is not None:
        pytest.skip("the package brings weights for tracking")
    assert demo_tracking.tracking_sections() == ()
