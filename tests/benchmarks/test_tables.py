"""The pages show what the results hold, and README nothing that is older than the last release."""

import json
import re

import pytest

from benchmarks.result import spread, table
from benchmarks.tables import PAGES, RESULTS, check_pages, require_recent, with_tables
from models.errors import DataError

LOADER = "Before.\n\n<!-- table: loader -->\nanything\n<!-- end of table -->\n\nAfter.\n"


@pytest.fixture
def results(tmp_path):
    for device in ("one", "two/data"):
        (tmp_path / device).mkdir(parents=True)
        content = {"measured_on": "2026-11-20", "markdown": f"| {device} |"}
        (tmp_path / device / "loader.json").write_text(json.dumps(content))
    return tmp_path


def test_pages_show_what_the_results_hold():
    check_pages()


def test_every_result_with_a_table_is_on_the_page_of_all_results():
    page = PAGES[0].read_text(encoding="utf-8")
    stems = {path.stem for path in RESULTS.rglob("*.json") if "markdown" in json.loads(path.read_bytes())}
    assert {"loader", "scale"} <= stems
    assert [stem for stem in sorted(stems) if f"<!-- table: {stem} -->" not in page] == []


def test_a_page_shows_the_table_of_every_device_with_a_link_and_is_otherwise_left_alone(results):
    page = with_tables(LOADER, results, results)
    assert "[Result](one/loader.json). | one |\n\n[Result](two/data/loader.json). | two/data |\n\n<!-- end" in page
    assert (page.splitlines()[0], page.splitlines()[-1]) == ("Before.", "After.")
    assert "anything" not in page
    assert with_tables(page, results, results) == page


def test_a_marker_that_names_no_result_is_told(results):
    with pytest.raises(DataError, match="does not exist"):
        with_tables(LOADER.replace("loader", "loaders"), results, results)


def test_a_result_without_a_table_is_told(results):
    (results / "one" / "loader.json").write_text("{}")
    with pytest.raises(DataError, match="no result with a table"):
        with_tables(LOADER, results, results)


@pytest.mark.parametrize(("released_on", "stale"), [("2026-11-20", False), ("2026-11-21", True)])
def test_a_figure_of_readme_is_not_older_than_the_last_release(released_on, stale, results):
    (results / "benchmarks").mkdir()
    (results / "one").rename(results / "benchmarks" / "results")
    readme = "Fast: [measured](benchmarks/results/loader.json)."
    if stale:
        with pytest.raises(DataError, match=r"older than the last release \(got 2026-11-20"):
            require_recent(readme, results, released_on)
    else:
        require_recent(readme, results, released_on)


def test_every_result_was_made_on_a_clean_commit():
    text = {path.relative_to(RESULTS): path.read_text(encoding="utf-8") for path in RESULTS.rglob("*.json")}
    commits = [(path, commit) for path in text for commit in re.findall(r'"git_commit":\s*"([^"]*)"', text[path])]
    assert len(commits) > 10
    assert [(path, commit) for path, commit in commits if not re.fullmatch("[0-9a-f]{40}", commit)] == []


def test_a_table_is_markdown_and_a_spread_has_median_and_range():
    assert table(["a", "b"], [["x|y", spread([3.0, 1.0, 2.0], 0)]]).splitlines() == [
        "| a | b |", "| --- | ---: |", "| x/y | 2 [1 to 3] |",
    ]  # fmt: skip
    assert spread([None]) == "–"
