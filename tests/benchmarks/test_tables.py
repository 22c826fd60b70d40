"""The pages show what the results hold and the commits that were measured, which are in the history."""

import json
import re

import pytest

from benchmarks.result import spread, table
from benchmarks.tables import RESULTS, check_pages, require_commits, require_figures, results_page, results_with_tables
from models.errors import DataError
from tests.make import ran


@pytest.fixture
def results(tmp_path):
    for device in ("one", "two/data"):
        (tmp_path / "results" / device).mkdir(parents=True)
        content = {"machine": {"git_commit": "0123456789"}, "markdown": f"| {device} | 1,250 pictures, 3.5 |"}
        (tmp_path / "results" / device / "loader.json").write_text(json.dumps(content))
    (tmp_path / "results" / "one" / "merge.json").write_text(json.dumps({"machine": {"git_commit": "0123456789"}}))
    return tmp_path


def test_pages_show_what_the_results_hold():
    check_pages()


def test_every_result_with_a_table_is_on_the_page_of_benchmarks():
    page = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    links = [path.relative_to(RESULTS.parent).as_posix() for path, _ in results_with_tables()]
    assert len(links) > 10
    assert [link for link in links if f"({link})" not in page] == []


def test_the_page_of_results_has_the_table_of_every_device_with_a_link(results):
    page = results_page(results, results / "results")
    assert "## loader\n\n[Result](results/one/loader.json) at commit `0123456`.\n\n| one |" in page
    assert "3.5 |\n\n[Result](results/two/data/loader.json) at commit `0123456`.\n\n| two/data |" in page
    assert page.count("## ") == 1


@pytest.mark.parametrize("named", ["", "at 0123456", "at `0123457`"])
def test_a_page_names_the_commit_of_each_result(named, results):
    page = "Fast: [measured](results/one/loader.json) {}.\n\n`0123456` is the commit."
    require_commits(page.format("at `0123456`"), results)
    with pytest.raises(DataError, match="without the commit that was measured"):
        require_commits(page.format(named), results)


@pytest.mark.parametrize("figure", ["1,251 pictures", "125 pictures", "3.50 times", "250"])
def test_a_figure_that_the_result_does_not_have_is_told(figure, results):
    page = "| loader, 9 | 2 cores | {} | [result](results/one/loader.json), 7 |"
    require_figures(page.format("1,250 pictures in 3.5 s"), results)
    with pytest.raises(DataError, match="shows a number that its result does not have"):
        require_figures(page.format(figure), results)


def git(*arguments):
    return ran("git", *arguments, cwd=RESULTS)


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
