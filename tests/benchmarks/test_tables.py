import json
import re
from pathlib import Path

import msgspec
import pytest

from benchmarks.tables import FOLDER_ROW, TABLES, Tables, python_lines, with_tables, write_tables
from models.errors import DataError

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
LOADER = "Before.\n\n<!-- table: loader -->\nanything\n<!-- end of table -->\n\nAfter.\n"


def tables_of(page):
    return Tables(page=page, folders=page.parent / "architecture.md", results=page.parent / "results")


@pytest.fixture
def page(tmp_path):
    """A page below which a copy of one result lies."""
    (tmp_path / "results" / "a-cpu").mkdir(parents=True)
    source = RESULTS / "intel-xeon-2-cores-2500" / "loader.json"
    (tmp_path / "results" / "a-cpu" / "loader.json").write_bytes(source.read_bytes())
    (tmp_path / "measurements.md").write_text(LOADER)
    (tmp_path / "architecture.md").write_text("| `models/` | 1 | what |\n")
    return tmp_path / "measurements.md"


def test_measurements_page_shows_what_the_results_hold():
    write_tables(Tables(check=True))


def test_every_result_that_has_a_table_is_on_the_measurements_page():
    page = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    kept = {path.stem for path in RESULTS.rglob("*.json")} & set(TABLES)
    assert {"loader", "scale"} <= kept
    assert [name for name in sorted(kept) if f"<!-- table: {name} -->" not in page] == []


def test_a_row_is_the_medians_of_its_rounds(page):
    write_tables(tables_of(page))
    result = json.loads((page.parent / "results" / "a-cpu" / "loader.json").read_text())
    lines = page.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ")][2:]
    assert len(rows) == len(result["comparisons"])
    first = {rate["variant"]: sorted(rate["per_core_s"])[2] for rate in result["comparisons"][0]["rates"]}
    cells = [cell.strip() for cell in rows[0].split("|")[1:-1]]
    assert cells[:3] == ["small, 0.25 to 0.48 MP", "320", "crop and flip"]
    assert cells[3:7] == [f"{first[name]:.0f}" for name in ("torchvision", "timm", "files", "shards")]
    machine = f"{result['machine']['processor']}, {result['machine']['num_cores']} cores"
    assert any("(results/a-cpu/loader.json)" in line and machine in line for line in lines)
    assert (lines[0], lines[-1]) == ("Before.", "After.")
    assert "anything" not in lines


def test_writing_again_changes_nothing(page):
    command = tables_of(page)
    write_tables(command)
    written = page.read_text()
    write_tables(command)
    assert page.read_text() == written
    write_tables(msgspec.structs.replace(command, check=True))


def test_a_page_that_shows_other_figures_fails_the_check_and_is_left_alone(page):
    command = tables_of(page)
    write_tables(command)
    before = page.read_text().replace("| small, 0.25 to 0.48 MP | 320 |", "| small, 0.25 to 0.48 MP | 321 |", 1)
    page.write_text(before)
    with pytest.raises(DataError, match=r"other figures than the results \(got loader\)"):
        write_tables(msgspec.structs.replace(command, check=True))
    assert page.read_text() == before


def test_every_result_was_made_on_a_clean_commit():
    text = {path.relative_to(RESULTS): path.read_text(encoding="utf-8") for path in RESULTS.rglob("*.json")}
    commits = [(path, commit) for path in text for commit in re.findall(r'"git_commit":\s*"([^"]*)"', text[path])]
    assert len(commits) > 10
    assert [(path, commit) for path, commit in commits if not re.fullmatch("[0-9a-f]{40}", commit)] == []


def test_every_device_with_a_result_is_shown_and_no_other(tmp_path):
    page = "<!-- table: train_speed -->\n<!-- end of table -->\n"
    assert with_tables(page, tmp_path, tmp_path) == page
    result = (RESULTS / "intel-xeon-2-cores-2500" / "train_speed.json").read_bytes()
    for folder in ("one", "two/herbarium", "three"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("one", "two/herbarium"):
        (tmp_path / folder / "train_speed.json").write_bytes(result)
    shown = with_tables(page, tmp_path, tmp_path)
    assert shown.count("| ours |") == 2
    assert "(one/train_speed.json)" in shown
    assert "(two/herbarium/train_speed.json)" in shown


def test_two_results_of_one_device_stand_one_below_the_other(tmp_path):
    page = "<!-- table: train_speed -->\n<!-- end of table -->\n"
    result = (RESULTS / "intel-xeon-2-cores-2500" / "train_speed.json").read_bytes()
    for folder in ("one", "one/data"):  # as benchmarks/gpu/1_speed.sh brings them home
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train_speed.json").write_bytes(result)
    shown = with_tables(page, tmp_path, tmp_path)
    assert shown.count("| ours |") == 2
    assert "(one/train_speed.json)" in shown
    assert "(one/data/train_speed.json)" in shown


def test_a_marker_that_names_no_table_is_told(tmp_path):
    with pytest.raises(DataError, match="no such table"):
        with_tables("<!-- table: loaders -->\n<!-- end of table -->\n", tmp_path, tmp_path)


def test_a_result_of_another_version_is_told(page):
    path = page.parent / "results" / "a-cpu" / "loader.json"
    path.write_text(path.read_text().replace('"rounds"', '"turns"'))
    with pytest.raises(DataError, match="no result of this version"):
        write_tables(tables_of(page))
    assert page.read_text() == LOADER


def test_lines_of_a_folder_are_counted(page):
    write_tables(tables_of(page))
    row = (page.parent / "architecture.md").read_text()
    assert row == f"| `models/` | {python_lines(ROOT / 'models'):,} | what |\n"
    assert python_lines(ROOT / "models") > 1000


def test_lines_of_the_folders_are_those_on_disk_within_a_sixth():
    rows = FOLDER_ROW.finditer((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    shown = {row["folder"]: int(row["lines"].replace(",", "")) for row in rows}
    rooms = {f"training/{path.parent.name}" for path in (ROOT / "training").glob("*/__init__.py")}
    assert set(shown) == {"models", "serving"} | rooms
    stale = [
        folder for folder, lines in shown.items() if abs(lines - python_lines(ROOT / folder)) > max(lines / 6, 100)
    ]
    assert not stale, f"run `make tables`: {stale}"
