"""The page about true names says what truth.json says, and nothing from a list becomes markup."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle import load_bundle
from models.metrics import ReliabilityBin
from serving.folder.truth import judge
from serving.folder.truth_page import diagram, truth_page
from tests.serving.folder.test_truth import row


@pytest.fixture(scope="module")
def bundle(bundle_folder):
    return load_bundle(bundle_folder)


def test_the_page_has_every_figure(bundle):
    rows = [row("Rosa canina"), row("Rosa rugosa", score=0.9), row("<b>&"), row("Rosa", status="failed"), row("")]
    page = truth_page(judge(rows, "truth", bundle))
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    for words in (
        "of 4 rows.", "without a true name: 1 row.", "could be read: 1 row.", "know the true name: 1 row,",
        "&lt;b&gt;&amp; 1", "33.3% (6.1 to 79.2) of 3", "50.0% (9.5 to 90.5) of 2", "Rosa rugosa Rosa canina 1",
    ):  # fmt: skip
        assert words in text
    assert "<b>" not in page


def test_a_table_without_known_names_has_a_page(bundle):
    page = truth_page(judge([row("plant 7")], "truth", bundle))
    assert "<svg" not in page
    assert "plant 7" in page


BINS = st.builds(
    lambda at, number, hits, place: ReliabilityBin(at / 15, number, (at + place) / 15, min(hits, number) / number),
    st.integers(0, 14), st.integers(1, 10**6), st.integers(0, 10**6), st.floats(0, 1),
)  # fmt: skip


@given(st.lists(BINS, min_size=1, max_size=15))
def test_the_diagram_is_well_formed_and_stays_within_its_frame(bins):
    svg = ElementTree.fromstring(diagram(bins))
    width, height = (float(side) for side in svg.get("viewBox").split()[2:])
    points = svg.findall(".//circle")
    assert len(points) == len(bins)
    assert all(0 <= float(point.get("cx")) <= width and 0 <= float(point.get("cy")) <= height for point in points)
    assert all(float(bar.get("height")) >= 0 for bar in svg.findall(".//rect"))
