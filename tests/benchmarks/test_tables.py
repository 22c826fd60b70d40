"""Published tables follow from the figures of their files; the pages show them and the commits that were measured."""

import json
import re

import pytest

from benchmarks import loader, same_photographs
from benchmarks.result import in_turns, read_result, spread, table, write_result
from benchmarks.serving import compare, memory, overload
from benchmarks.serving.load import Load, Outcome, percentile
from benchmarks.tables import RESULTS, check_pages, require_commits, require_figures, results_page, results_with_tables
from models.errors import DataError
from tests.make import from_table, ran

TABLES = [
    ("amd-epyc-2-cores/loader", loader.Result, loader.markdown),
    ("intel-xeon-2-cores/same_photographs", same_photographs.Result, same_photographs.markdown),
    ("amd-epyc-2-cores/serving", compare.Comparison, compare.markdown),
    ("intel-xeon-2-cores/serving", compare.Comparison, compare.markdown),
    ("amd-epyc-2-cores/serving_memory", memory.MemoryResult, memory.markdown),
    ("amd-epyc-2-cores/serving_overload", overload.OverloadResult, overload.markdown),
]


@pytest.fixture
def results(tmp_path):
    for device in ("one", "two/data"):
        (tmp_path / "results" / device).mkdir(parents=True)
        content = {"machine": {"git_commit": "0123456789"}, "markdown": f"| {device} | 1,250 pictures, 3.5 |"}
        (tmp_path / "results" / device / "loader.json").write_text(json.dumps(content))
    return tmp_path


def test_pages_show_what_the_results_hold_and_every_result_with_a_table_is_on_the_page_of_benchmarks():
    check_pages()
    page = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    links = [path.relative_to(RESULTS.parent).as_posix() for path, _ in results_with_tables()]
    assert len(links) > 10
    assert [link for link in links if f"({link})" not in page] == []


def test_the_page_of_results_has_the_table_of_every_device_with_a_link(results):
    page = results_page(results, results / "results")
    assert "## loader\n\n[Result](results/one/loader.json) at commit `0123456`.\n\n| one |" in page
    assert "3.5 |\n\n[Result](results/two/data/loader.json) at commit `0123456`.\n\n| two/data |" in page
    assert page.count("## ") == 1


@from_table
def test_a_page_names_the_commit_of_each_result_and_only_its_figures(right, wrong, told, results):
    page, check = "| loader, 9 | 2 cores | {} | [result](results/one/loader.json), 7 |", require_figures
    if "commit" in told:
        check = require_commits
    check(page.format(right), results)
    with pytest.raises(DataError, match=told):
        check(page.format(wrong), results)


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
        assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0, commit


@pytest.mark.parametrize(("stem", "kind", "markdown"), TABLES, ids=[stem for stem, *_ in TABLES])
def test_a_program_makes_the_published_table_again_from_the_figures_of_its_file(stem, kind, markdown, tmp_path, capsys):
    path = RESULTS / f"{stem}.json"
    result = read_result(path, kind)
    published = json.loads(path.read_bytes())
    write_result(result, markdown(result), tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_bytes())
    capsys.readouterr()
    assert again["markdown"] == published["markdown"]


@from_table
def test_a_percentile_is_a_measured_value(percent, expected):
    assert percentile(list(range(100, 0, -1)), percent) == expected


def test_the_rate_counts_good_answers_in_the_window_only():
    ends = [(0.4, 200), (0.5, 200), (0.7, 503), (0.9, 200), (0.99, 200), (1.0, 200)]
    outcomes = [Outcome("answered", at - 0.2, at - 0.2, at, status) for at, status in ends]
    load = Load(outcomes, (0.5, 1.0), 0.1, num_good=5)
    assert (load.per_s, load.words, len(load.good)) == (3 / 0.5, {"200": 5, "503": 1}, 5)


def test_the_order_of_turns_changes_from_round_to_round_and_is_the_same_in_each_run():
    turns = [name for _, name in in_turns(range(3), 6)]
    before = {name: {turns[at - 1] for at in range(1, len(turns)) if turns[at] == name} for name in range(3)}
    assert min(len(followed) for followed in before.values()) > 1
    assert turns == [name for _, name in in_turns(range(3), 6)]


def test_a_table_is_markdown_and_a_spread_has_median_and_range():
    assert table(["a", "b"], [["x|y", spread([3.0, 1.0, 2.0], 0)]]).splitlines() == [
        "| a | b |", "| --- | ---: |", "| x/y | 2 [1 to 3] |",
    ]  # fmt: skip
    assert spread([None]) == "–"
