"""The pages show what the results hold and the commits that were measured, which are in the history."""

import json
import re
import subprocess

import pytest

from benchmarks.result import spread, table
from benchmarks.tables import PAGES, RESULTS, check_pages, require_commits, with_tables
from models.errors import DataError

LOADER = "Before.\n\n<!-- table: loader -->\nanything\n<!-- end of table -->\n\nAfter.\n"


@pytest.fixture
def results(tmp_path):
    for device in ("one", "two/data"):
        (tmp_path / device).mkdir(parents=True)
        content = {"machine": {"git_commit": "0123456789"}, "markdown": f"| {device} |"}
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
    assert (
        "[Result](one/loader.json) at commit `0123456`.\n\n| one |\n\n[Result](two/data/loader.json) at commit" in page
    )
    assert "| two/data |\n\n<!-- end" in page
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


@pytest.mark.parametrize("named", ["", "at 0123456", "at `0123457`"])
def test_readme_names_the_commit_of_each_result(named, results):
    (results / "benchmarks").mkdir()
    (results / "one").rename(results / "benchmarks" / "results")
    readme = "Fast: [measured](benchmarks/results/loader.json) {}.\n\n`0123456` is the commit."
    require_commits(readme.format("at `0123456`"), results)
    with pytest.raises(DataError, match="without the commit that was measured"):
        require_commits(readme.format(named), results)


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=RESULTS, capture_output=True, text=True, check=False)


@pytest.mark.skipif(
    git("rev-parse", "--is-shallow-repository").stdout != "false\n", reason="no git, or no full history"
)
def test_the_commit_of_each_result_is_in_the_history():
    text = {
        path: path.read_text(encoding="utf-8") for path in RESULTS.rglob("*.json*") if path.parent.name != "structure"
    }
    commits = {path: re.findall(r'"git_commit":\s*"([^"]*)"', text[path]) for path in text}
    assert [path for path, found in commits.items() if not found] == []
    for commit in {commit for found in commits.values() for commit in found}:
        assert git("cat-file", "-e", f"{commit}^{{commit}}").returncode == 0, commit
        assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0, commit


def test_a_table_is_markdown_and_a_spread_has_median_and_range():
    assert table(["a", "b"], [["x|y", spread([3.0, 1.0, 2.0], 0)]]).splitlines() == [
        "| a | b |", "| --- | ---: |", "| x/y | 2 [1 to 3] |",
    ]  # fmt: skip
    assert spread([None]) == "–"
