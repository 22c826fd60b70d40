from html.parser import HTMLParser

import msgspec
import pytest

from models.metrics import share
from tests.training.comparison.color_bundles import good_weights, seal_color_bundle
from training.comparison.compare import Comparing, compare
from training.comparison.page import HTML_FILE, JSON_FILE, comparison_files, render_page
from training.comparison.schema import (
    CandidateSets,
    ChangedVerdict,
    Comparison,
    NameChanges,
    Rejection,
    Rename,
)
from training.dataset.manifest import Manifest


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def measured(flowers, tmp_path_factory):
    folder, manifest = tmp_path_factory.mktemp("page"), Manifest(flowers)
    weights = good_weights(manifest)[:, [1, 0, 2]]
    old = seal_color_bundle(folder / "old", flowers, version="1", trained_on="")
    new = seal_color_bundle(folder / "new", flowers, version="<2>", weights=weights)
    return compare(old, new, Comparing(manifest=manifest, num_speed_pairs=1, few_shot_limit=20))


@pytest.fixture(scope="module")
def full(measured):
    """Every section has content, and names that are markup."""
    sets = (CandidateSets(coverage=0.9, covered=share(9, 10), macro_covered=0.8, mean_size=2.5),)
    rejection = Rejection(things_named=share(1, 10), plants_kept=share(19, 20), has_table=True)
    changed = ChangedVerdict(picture="<b>a.jpg", right="Rosa & alba", old="species Rosa", new="uncertain")
    renamed = Rename(taxon_id="rosa-alba", old="Rosa alba", new="Rosa <i>nova</i>")
    return msgspec.structs.replace(
        measured,
        candidate_sets=((), sets),
        num_things=10,
        num_left_out=3,
        rejection=(rejection, rejection),
        crossings=msgspec.structs.replace(measured.crossings, pictures=(changed,) * 201),
        names=NameChanges(added=("<script>alert(1)</script>",), removed=("Bellis alba",), renamed=(renamed,)),
    )


@pytest.fixture(scope="module", params=["measured", "full"])
def page(request, measured, full):
    return Page(render_page({"measured": measured, "full": full}[request.param]))


def test_json_reads_back_as_the_same_comparison(full):
    assert msgspec.json.decode(comparison_files(full)[JSON_FILE], type=Comparison) == full


def test_page_loads_nothing_and_runs_nothing(page, full):
    assert not page.all("script")
    assert not page.all("link")
    assert not page.all("img")
    assert all(anchor["href"].startswith("#") for anchor in page.all("a"))
    text = comparison_files(full)[HTML_FILE].decode()
    assert "url(" not in text
    assert "default-src 'none'" in text


def test_every_link_has_a_target_and_every_section_a_title(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {anchor["href"].removeprefix("#") for anchor in page.all("a")} <= set(ids)
    assert {section["aria-labelledby"] for section in page.all("section")} <= set(ids)


def test_tables_have_captions_and_header_cells_for_a_screen_reader(page):
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    assert len(page.all("caption")) == len(page.all("table")) > 5
    assert all(cell.get("scope") in ("col", "row") for cell in page.all("th"))


def test_names_are_text_and_never_markup(full):
    page = Page(render_page(full))
    assert "<script>alert(1)</script>" in page.text
    assert "Rosa <i>nova</i>" in page.text
    assert "colors <2>" in page.text
    assert not page.all("b")


def test_shares_and_calibration_error_are_shown_with_their_intervals(full):
    page = Page(render_page(full))
    assert "90.0\xa0% (59.6\xa0% to 98.2\xa0%)" in page.text
    ece = full.calibration[0].ece
    assert f"{ece.value:.3f} ({ece.interval_95[0]:.3f} to {ece.interval_95[1]:.3f})" in page.text


def test_long_lists_are_cut_with_a_note(full):
    assert "The first 200 of 201 pictures" in Page(render_page(full)).text


def test_reasons_to_refuse_are_on_the_page(measured):
    page = Page(render_page(measured))
    assert len(measured.refusals) == 3
    for reason in measured.refusals:
        assert reason in page.text
    assert "Nothing speaks against" in Page(render_page(msgspec.structs.replace(measured, refusals=()))).text
