"""The page for many photographs: its rows as data, in Node.js, and the page in a browser."""

import csv
import io
from pathlib import Path

import pytest

from tests.serving.tiny import GREEN, RED, SIDE_PX, WHITE, jpeg
from tests.serving.web.conftest import address_of
from tests.serving.web.tab import VIEWS, accessibility_faults, file, scrolls_sideways

ANSWER = {
    "verdict": {"rank": "species", "name": "Rosa canina", "score": 0.9, "reason": "", "promise": None},
    "predictions": [{"scientific_name": "Rosa canina", "score": 0.9}],
}
UNCERTAIN = {
    "verdict": {"rank": "uncertain", "name": None, "score": 0.4, "reason": "", "promise": None},
    "predictions": [{"scientific_name": "Bellis perennis", "score": 0.3}],
}


def rows_of(page):
    return [
        page("table.js", "rowOf", "rose.jpg", ANSWER),
        page("table.js", "rowOf", "daisy.jpg", UNCERTAIN),
        page("table.js", "failedRow", "broken.jpg", "The picture cannot be decoded."),
    ]


def test_a_row_has_the_verdict_and_the_best_candidate(page):
    rose, daisy, broken = rows_of(page)
    assert (rose["verdict_name"], rose["verdict_score"], rose["best_name"]) == ("Rosa canina", 0.9, "Rosa canina")
    assert (daisy["verdict_rank"], daisy["verdict_name"], daisy["best_name"]) == ("uncertain", "", "Bellis perennis")
    assert (broken["error"], broken["best_score"]) == ("The picture cannot be decoded.", None)


def test_the_least_certain_come_first_and_failures_before_them(page):
    rows = rows_of(page)
    found = page("table.js", "byUncertainty", rows)
    assert [row["photograph"] for row in found] == ["broken.jpg", "daisy.jpg", "rose.jpg"]


def test_the_csv_is_read_back_and_no_cell_is_a_formula(page):
    rows = rows_of(page)
    rows[0]["photograph"] = '=HYPERLINK("x"), 1.jpg'
    text = page("table.js", "csvOf", rows)
    assert text.startswith("\ufeff")
    read = list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline="")))
    assert [row["photograph"] for row in read] == ['\'=HYPERLINK("x"), 1.jpg', "daisy.jpg", "broken.jpg"]
    assert [row["best_score"] for row in read] == ["0.9", "0.3", ""]
    assert read[2]["error"] == "The picture cannot be decoded."


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("view", VIEWS)
def test_each_photograph_gets_a_row_that_outlives_a_reload(new_page, running, view):
    page = new_page(view)
    page.goto(f"{address_of(running)}/web/many.html")
    chosen = [file(f"{number}.jpg", jpeg(color)) for number, color in enumerate((RED, GREEN, WHITE))]
    chosen[1]["name"] = "1.heic"  # the service looks at the bytes, the page at the name
    page.set_input_files("#files", [*chosen, file("text.jpg", b"no picture")])
    page.get_by_text("4 photographs answered. 1 of them has no answer.").wait_for()
    preview = page.locator("#rows img[src^='data:image/webp']")
    assert preview.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == SIDE_PX
    assert accessibility_faults(page) == []
    assert not scrolls_sideways(page)
    page.get_by_role("button", name="Least certain first").press("Enter")
    assert page.inner_text("#rows tr:first-child td").strip() == "text.jpg"
    page.reload()
    page.get_by_text("4 photographs answered").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    text = Path(download.value.path()).read_text(encoding="utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert {row["photograph"] for row in rows} == {"0.jpg", "1.heic", "2.jpg", "text.jpg"}
    page.get_by_role("button", name="Clear").click()
    assert page.locator("#rows tr").count() == 0
    page.reload()
    assert page.locator("#rows tr").count() == 0
