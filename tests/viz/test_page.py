"""A page is one file that needs nothing else."""

import base64
import re
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from protoformer.viz.html import Figure, Page, Section
from protoformer.viz.plots import Curve, line_plot

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


def test_pictures_inside_are_the_pictures_given(page: Page) -> None:
    sources = [value for _, name, value in Outline(page.html()).attributes if name == "src"]
    shown = [np.asarray(Image.open(BytesIO(base64.b64decode(source.split(",")[1])))) for source in sources]
    assert np.array_equal(shown[0], PIXELS)
    assert np.array_equal(shown[1], PIXELS[..., 0])


def test_pictures_have_their_size_and_a_description(page: Page) -> None:
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
