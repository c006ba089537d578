"""The demonstration's section on tracking."""

import pytest

import protoformer as pf
from protoformer.cli import demo as demo_tracking


def test_a_section_shows_what_was_followed() -> None:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", "cpu", task="track")
    section = demo_tracking.tracking_section(model, shown=(0, 2))
    assert [figure.caption for figure in section.figures] == ["frame 1", "frame 3"]
    assert all(figure.content.shape == (240, 320, 3) for figure in section.figures)  # type: ignore[union-attr]
    assert "Over 3 frames" in section.text and "(a perfect track has 95)" in section.text


def test_without_weights_there_is_no_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_tracking, "packaged_weights", lambda _: None)
    assert demo_tracking.tracking_sections() == ()
