import json
from xml.etree import ElementTree

import msgspec
import pytest

from models.errors import DataError
from tests.training.insight.studies.planted import MACHINE, epoch
from training.insight.studies.plots import Bars, Curves
from training.insight.studies.report import (
    Finding,
    Page,
    Study,
    Table,
    hold_machine,
    read_study,
    require_same_machine,
    spread,
    table,
    write_page,
    write_study,
)
from training.insight.studies.results import Arm, ArmResult
from training.insight.studies.rounds import describe_data, without_paths
from training.machine import Gpu, this_machine

RESULT = ArmResult(Arm("first", ("--amp", "off"), "What the first shows."), 0, [epoch(1, 2.0, 50.0, 0.5)])
PLOTS = (
    Curves("epochs", "Epochs", "epoch", "s", {"first": [[(1, 2.0), (2, 1.0)], [(1, 3.0), (2, 1.5)]], "second": []}),
    Bars("speed", "Speeds", "times", {"first": [1.0, 1.2], "second": []}, mark=1.0),
)
STUDY = Study(
    name="small",
    title="A small study",
    about="One arm.",
    machine=MACHINE,
    measured_on="Drawn GPU",
    recipe="tiny",
    data="drawn",
    flags=("--workers", "0"),
    arms=[RESULT],
    tables=[Table("Speeds", ["arm", "pictures/s"], [["first", "50.0"]])],
    findings=[Finding("fastest", "It is the only one.")],
    plots=list(PLOTS),
)


def test_a_study_becomes_a_page_json_and_plots(tmp_path):
    write_study(tmp_path, STUDY)
    page = (tmp_path / "small.md").read_text()
    for told in ("Drawn GPU (8 GB)", "It is the only one.", "| first | 50.0 |", "`--workers 0`", "commit 0123456"):
        assert told in page
    assert "* first: What the first shows." in page
    assert read_study(tmp_path / "small.json") == STUDY
    for plot in PLOTS:
        file = tmp_path / f"small-{plot.name}.svg"
        assert f"({file.name})" in page
        assert ElementTree.parse(file).getroot().tag.endswith("svg")


def test_the_page_of_a_result_can_be_written_again(tmp_path):
    write_study(tmp_path, STUDY)
    write_page(Page(result=tmp_path / "small.json", out=tmp_path / "docs" / "first.md"))
    page = (tmp_path / "small.md").read_text()
    assert (tmp_path / "docs" / "first.md").read_text() == page.replace("small-", "first-")
    assert {path.name for path in (tmp_path / "docs").iterdir()} == {"first.md", "first-epochs.svg", "first-speed.svg"}


def test_a_study_that_cannot_be_drawn_leaves_the_old_one_whole(tmp_path):
    write_study(tmp_path, STUDY)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    broken = Curves("epochs", "Epochs", "epoch", "s", {"first": [[(1, 1.0)], [(1, "no number")]]})
    with pytest.raises(TypeError):
        write_study(tmp_path, msgspec.structs.replace(STUDY, title="Another", plots=[broken]))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_figures_of_another_gpu_are_refused():
    other = msgspec.structs.replace(MACHINE, gpus=(Gpu("Other GPU", 24.0),))
    with pytest.raises(DataError, match=r"gpus Drawn GPU 8 GB and Other GPU 24 GB.*on one machine"):
        require_same_machine(MACHINE, other, "the comparison")


def test_results_of_another_commit_may_be_compared():
    other = msgspec.structs.replace(MACHINE, git_commit="fedcba9", driver="600.1")
    require_same_machine(MACHINE, other, "the comparison")
    assert MACHINE.other_software(other) == ["git_commit 0123456 and fedcba9", "driver none and 600.1"]


def test_a_study_resumes_only_on_its_machine(tmp_path):
    assert hold_machine(tmp_path) == hold_machine(tmp_path) == this_machine()
    kept = json.loads((tmp_path / "machine.json").read_text())
    (tmp_path / "machine.json").write_text(json.dumps(kept | {"num_cores": kept["num_cores"] + 1}))
    with pytest.raises(DataError, match="num_cores"):
        hold_machine(tmp_path)


def test_a_study_that_resumed_with_another_commit_says_so(tmp_path):
    machine = hold_machine(tmp_path)
    newer = msgspec.structs.replace(machine, git_commit="fedcba9")
    write_study(tmp_path, msgspec.structs.replace(STUDY, machine=newer))
    told = [finding.text for finding in read_study(tmp_path / "small.json").findings if finding.about == "software"]
    assert told == [f"The software changed during the study: git_commit {machine.git_commit} and fedcba9."]


def test_this_machine_has_a_card_only_where_it_has_a_driver():
    machine = this_machine()
    assert machine.num_cores >= 1
    assert bool(machine.gpus) == bool(machine.driver) == bool(machine.cuda)


def test_a_file_that_is_no_study_is_one_error(tmp_path):
    (tmp_path / "other.json").write_text('{"name": "other"}')
    for name in ("other.json", "missing.json"):
        with pytest.raises(DataError, match=name):
            read_study(tmp_path / name)


def test_a_study_of_another_format_is_refused(tmp_path):
    write_study(tmp_path, msgspec.structs.replace(STUDY, format=1))
    with pytest.raises(DataError, match=r"another format.*format 1.*format 3"):
        read_study(tmp_path / "small.json")


def test_a_table_aligns_figures_and_keeps_its_columns():
    assert table(["arm", "s"], [["a|b", "1"]]).splitlines() == ["| arm | s |", "| --- | ---: |", "| a/b | 1 |"]


def test_spread_is_median_and_range():
    assert spread([3.0, 1.0, None, 2.0]) == "2.0 [1.0 to 3.0]"
    assert spread([1234.5], digits=0, unit=" s") == "1,234 s"
    assert spread([None]) == "–"


def test_flags_of_a_result_have_no_paths():
    assert without_paths(("--weights", "/some/where/last.pt", "--erase", "0")) == (
        "--weights",
        "last.pt",
        "--erase",
        "0",
    )


def test_data_is_described_without_its_path(data, manifest):
    told = describe_data(data)
    assert told == f"data, 3 outputs, 36 pictures, manifest {manifest.sha256[:12]}"
