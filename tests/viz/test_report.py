"""Short representations of values, and HTML pages."""

import base64
import re
from fractions import Fraction
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import protoformer as pf
from protoformer.explain.video import PrototypeFrame
from protoformer.stabilization.planner import Corrections
from protoformer.tracking.video import TrackFrame
from protoformer.viz.plots import Curve, line_plot
from protoformer.viz.report import Figure, Page, Section

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
    calls = "30x20 pixels, 1.00 to 3.00 m, median 2.00 m, metric, camera"
    result = pf.DepthResult(depth, SURE, (0.1, 10.0), torch.eye(3), trained=False)
    assert repr(result) == f"DepthResult({calls} assumed, not trained)"
    step = pf.DepthFrame(depth, SURE, (0.1, 10.0), torch.eye(3), camera="exif", number=2, time=Fraction(1, 2))
    assert repr(step) == f"DepthFrame(frame 2 at 0.500 s, {calls} by exif, trained)"


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
    calls = "3 frames of 30x20 pixels, 90.0% of each side is shown, velocity changes by 0.00 px a frame, 4.00 before"
    assert repr(result) == f"StabilizationResult({calls}, not trained)"


def test_prototypes_tell_how_many_they_are() -> None:
    owners = torch.arange(600).view(20, 30) % 7
    step = PrototypeFrame(4, Fraction(4, 25), np.zeros((20, 30, 3), np.uint8), owners, owners, 0.5)
    calls = "frame 4 at 0.160 s, 30x20 pixels, 7 prototypes, 50.0% of the pixels keep their prototype"
    assert repr(step) == f"PrototypeFrame({calls})"


def test_an_explanation_tells_whose_it_is_and_how_much_there_is_of_it(tiny: pf.FlowPredictor) -> None:
    image = torch.rand(3, 32, 48)
    explained = tiny.explain(image, image)
    layers = len(explained.first.layers)
    assert repr(explained) == f"Explanation(flow, 2 images of 48x32 pixels, {layers} layers, not trained)"
    assert repr(explained.first) == f"ImageExplanation(48x32 pixels, {layers} layers)"
    last = explained.first.layer()
    used = f"{len(last.used)} of {last.num_prototypes} prototypes have pixels"
    assert repr(last) == f"LayerExplanation({last.name}, 48x32 pixels, {used}, {last.num_iterations} iterations)"


@pytest.mark.parametrize("task", ["flow", "depth", "track", "stabilize"])
@pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
def test_a_model_tells_what_it_does_how_large_it_is_and_where_it_runs(task: str) -> None:
    model = pf.load("tiny", "cpu", task=task)
    millions = sum(each.numel() for each in model.network.parameters()) / 1e6
    calls = f"{task}, not trained, {millions:.2f} M parameters, on cpu"
    assert repr(model) == f"{type(model).__name__}({calls})"


PIXELS = np.random.default_rng(0).integers(0, 256, (5, 8, 3), dtype=np.uint8)
HOSTILE = "<script>alert('x')</script> & \"quotes\""


class Outline(HTMLParser):
    """What a browser would make of a page: its elements, their attributes and all text, and that they are nested."""

    EMPTY = frozenset({"meta", "img"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def page() -> Page:
    plot = line_plot([Curve("error", ((0.0, 1.0), (1.0, 0.5)))], "step", "pixels")
    return Page(
        title="Motion",
        lead="what moved",
        notice="mind this",
        sections=(
            Section("Pictures", "two of them", (Figure(PIXELS, "color"), Figure(PIXELS[..., 0], "gray", small=True))),
            Section("Curves", "one", (Figure(plot, "error over steps"),)),
            Section("Numbers", "a table", table=(("name", "size"), ("tiny", "0.4 M"), ("fast", "4.2 M")), below="MB"),
        ),
    )


def test_a_page_is_one_well_nested_document(page: Page) -> None:
    html = page.html()
    assert html.startswith("<!doctype html>") and html.endswith("</html>\n")
    outline = Outline(html)
    assert outline.open == []
    for tag in ("html", "head", "body", "title", "h1"):
        assert outline.tags.count(tag) == 1
    assert outline.tags.count("section") == outline.tags.count("h2") == 3


def test_a_key_is_small_and_a_table_is_explained_below_it(page: Page) -> None:
    html = page.html()
    assert html.count('<figure class="small"><img') == 1 and html.count("<figure") == 3
    assert "</table></div><p>MB</p></section>" in html


def test_a_page_refers_to_nothing_outside_itself(page: Page) -> None:
    html = page.html()
    words = re.sub(r"base64,[^\"]*", "", html)
    assert not re.search(r"https?:|//|url\(|@import|<link|<script|<iframe", words, re.IGNORECASE)
    sources = [value for _, name, value in Outline(html).attributes if name in ("src", "href", "srcset", "data")]
    assert len(sources) == 2
    assert all(source.startswith("data:image/png;base64,") for source in sources)


def test_embedded_images_are_the_given_ones(page: Page) -> None:
    sources = [value for _, name, value in Outline(page.html()).attributes if name == "src"]
    shown = [np.asarray(Image.open(BytesIO(base64.b64decode(source.split(",")[1])))) for source in sources]
    assert np.array_equal(shown[0], PIXELS)
    assert np.array_equal(shown[1], PIXELS[..., 0])


def test_images_have_their_size_and_a_description(page: Page) -> None:
    images = {(name, value) for tag, name, value in Outline(page.html()).attributes if tag == "img" and name != "src"}
    assert images == {("width", "8"), ("height", "5"), ("alt", "color"), ("alt", "gray")}


def test_everything_said_is_on_the_page(page: Page) -> None:
    text = Outline(page.html()).text
    for said in ("Motion", "what moved", "mind this", "Pictures", "color", "error over steps", "tiny", "4.2 M"):
        assert said in text


def test_the_first_row_of_a_table_is_its_head(page: Page) -> None:
    html = page.html()
    assert "<tr><th>name</th><th>size</th></tr><tr><td>tiny</td><td>0.4 M</td></tr>" in html


def test_text_is_never_markup() -> None:
    section = Section(HOSTILE, HOSTILE, (Figure(PIXELS, HOSTILE),), ((HOSTILE,), (HOSTILE,)))
    outline = Outline(Page(HOSTILE, HOSTILE, HOSTILE, (section,)).html())
    assert "script" not in outline.tags
    assert outline.text.count(HOSTILE) == 9
    assert ("img", "alt", HOSTILE) in outline.attributes


def test_without_a_notice_there_is_none() -> None:
    assert 'class="notice"' not in Page("a", "b").html()
    assert 'class="notice"' in Page("a", "b", "c").html()
