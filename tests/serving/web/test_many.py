"""The page for many photographs: its rows as data, in Node.js."""

import csv
import io

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
