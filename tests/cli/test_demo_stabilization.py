"""The demonstration's section on stabilization."""

import pytest

import protoformer as pf
from protoformer.cli import demo as demo_stabilization
from protoformer.cli.demo import stabilization_section


def test_a_section_shows_the_path_and_a_frame() -> None:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", "cpu", task="stabilize", stab_window=2)
    section = stabilization_section(model, count=3)
    assert len(section.figures) == 6 and "px after stabilization" in section.text
    assert section.figures[-1].content.shape == (120, 160, 3)  # type: ignore[union-attr]


def test_without_weights_there_is_no_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_stabilization, "packaged_weights", lambda _: None)
    assert demo_stabilization.stabilization_sections() == ()
