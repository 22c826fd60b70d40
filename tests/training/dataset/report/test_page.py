import html
import json
from html.parser import HTMLParser

import msgspec
import pytest

from tests.training.dataset.report.sample_report import LEFT_OUT, make_report, picture
from training.atomic_file import replace_together
from training.dataset.report import HTML_FILE, JSON_FILE, Report, report_files
from training.dataset.report.page import render_page
from training.dataset.report.plots import plots
from training.dataset.report.reasons import MEANINGS
from training.dataset.sources.record import LeftOut

VOID = {"meta", "img", "br", "link", "hr", "input"}


def write(folder, report, sheets):
    replace_together(folder, report_files(report, sheets))


class Page(HTMLParser):
    """Parses a page, and checks that its elements are nested properly."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


SHEETS = {"wild": b"\xff\xd8\xff", "house": b"\xff\xd8\xff"}
NO_PLOTS = {"pictures": [], "splits": []}  # they take most of a page's time


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "new"
    write(folder, make_report(), SHEETS)
    return folder


@pytest.fixture(scope="module")
def text(written):
    return (written / HTML_FILE).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_json_reads_back_as_the_same_report(written):
    assert msgspec.json.decode((written / JSON_FILE).read_bytes(), type=Report) == make_report()


def test_everything_left_out_is_in_page_and_json_with_reason_and_remedy(written, page):
    expected = json.loads((written / JSON_FILE).read_text())["left_out"]
    for entry in LEFT_OUT:
        assert entry.picture in page.text
        assert entry.reason in page.text
        assert MEANINGS[entry.code].remedy in page.text
        assert {"picture": entry.picture, "code": entry.code, "reason": entry.reason, "num_pictures": 1} in expected


def test_what_a_data_set_wrote_is_text_and_never_markup(page):
    assert not page.all("b")  # the names that were left out have such a tag
    assert "house: <Rose>" in page.text
    assert "May not be <sold>." in page.text
    assert "Small & green" in page.text


def test_the_page_loads_no_other_file(text, page):
    assert not page.all("script")
    assert not page.all("link")
    assert all(image["src"].startswith("data:image/jpeg;base64,") for image in page.all("img"))
    targets = [
        value for _, element in page.elements for name, value in element.items() if name in ("href", "xlink:href")
    ]
    assert all(target.startswith("#") for target in targets)
    assert "@import" not in text
    assert "url(http" not in text


def test_every_link_has_a_target_and_every_id_is_unique(page):
    ids = [element["id"] for _, element in page.elements if "id" in element]
    assert len(ids) == len(set(ids))
    assert {anchor["href"].removeprefix("#") for anchor in page.all("a")} <= set(ids)
    assert {element["aria-labelledby"] for element in page.all("section")} <= set(ids)


def test_pictures_plots_and_tables_have_labels_for_a_screen_reader(page):
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    assert len(page.all("img")) == 2
    assert all(image["alt"] for image in page.all("img"))
    plots = [element for element in page.all("div") if element.get("role") == "img"]
    assert len(plots) == len(page.all("svg")) == 5
    assert all(plot["aria-label"] for plot in plots)
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(header["scope"] in ("row", "col") for header in page.all("th"))


def test_the_totals_come_first(page):
    assert (
        "Result: 5 pictures in 3 classes (3 taxa) from 2 sources: 3 train, 1 validation, 1 test; "
        f"{len(MEANINGS)} pictures were left out." in page.text
    )


def test_names_and_licenses_are_shown(page):
    for words in ("Rosa alba", "wild: Rosa alba L.", "Crocus spp.", "Iris luteus", "May not be used commercially."):
        assert words in page.text
    assert "CC BY-NC 3 unknown 1" in page.text
    assert "house Nothing is known of its licenses" in page.text


def test_a_long_list_is_cut_on_the_page_and_whole_in_json(tmp_path):
    many = [LeftOut(picture=f"wild:{number:04}.jpg", code="copy", reason="as another") for number in range(450)]
    write(tmp_path, make_report(left_out=many, **NO_PLOTS), {})
    shown = (tmp_path / HTML_FILE).read_text()
    assert "wild:0199.jpg" in shown
    assert "wild:0200.jpg" not in shown
    assert "The first 200 of 450 entries" in shown
    assert len(json.loads((tmp_path / JSON_FILE).read_text())["left_out"]) == 450


def test_an_unknown_code_is_on_the_page():
    left_out = [LeftOut(picture="wild:a.jpg", code="<solar flare>", reason="too bright")]
    shown = render_page(make_report(left_out=left_out, **NO_PLOTS), {})
    assert html.escape("<solar flare>") in shown
    assert "too bright" in Page(shown).text


def test_a_clean_collection_has_a_page_too():
    shown = Page(render_page(make_report(left_out=[], licenses={}, **NO_PLOTS), {})).text
    assert "every picture of the sources is used" in shown
    assert "Nothing is known of its licenses" in shown


def test_a_report_without_pictures_has_no_plots():
    page = Page(render_page(make_report(**NO_PLOTS), {}))
    assert page.all("svg") == []


def test_any_source_name_is_drawn_as_it_is_and_small_classes_are_marked():
    names = ['<script>"&', "_植物", "a$植$"]
    report = make_report(pictures=[picture()], splits=["train"])
    sources = tuple(msgspec.structs.replace(report.sources[0], name=name) for name in names)
    drawn = plots(msgspec.structs.replace(report, curves=dict.fromkeys(names, (3, 2)), sources=sources))
    shown = {name: Page(svg) for name, svg in drawn.items()}
    assert all(name in shown[plot].text for plot in ("sources", "splits", "classes") for name in names)
    assert not any(plot.all("script") for plot in shown.values())
    assert "2 pictures" in shown["classes"].text


def test_the_same_findings_give_the_same_bytes(text):
    assert render_page(make_report(), SHEETS) == text


def test_pictures_with_two_names_are_listed_apart_from_near_copies():
    groups = (("wild:a.jpg (Rosa alba)", "wild:b.jpg (Iris lutea)"),)
    page = Page(render_page(make_report(two_names=groups, **NO_PLOTS), {}))
    assert "Same picture, two names: 1 group" in page.text
    assert "Near copies: 0 groups" in page.text
    assert "wild:b.jpg (Iris lutea)" in page.text
