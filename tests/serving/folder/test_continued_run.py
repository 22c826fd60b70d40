"""The same command again: it continues, adds what is new, and refuses what would mix two runs."""

import json
import os
import shutil

import pytest

from models.errors import DataError, InputError
from serving.folder import Outcome
from serving.folder.results import PartFiles
from tests.serving.folder.photograph_folder import COLORS, draw_photographs, parts, rows_of, written
from tests.serving.tiny import BLUE, GREEN, RED, jpeg


@pytest.mark.parametrize("paths", [None, [("path",), ("a.jpg",), ("deep/d.jpg",)]])
def test_the_same_command_answers_nothing_again(identify, listed, out, paths):
    flags = {"part_rows": 2, "list": paths and listed(*paths)}
    identify(**flags)
    before = parts(out)
    table = (out / "results.csv").read_bytes()
    assert len(before) == (1 if paths else 3)
    for more in ({}, {"retry_failed": True}):
        assert identify(**flags, **more) == Outcome.COMPLETE
        assert parts(out) == before
        assert (out / "results.csv").read_bytes() == table


def test_results_among_the_photographs_are_no_photographs(identify, photographs, monkeypatch):
    monkeypatch.chdir(photographs)
    draw_photographs(photographs, {"names/no.jpg": RED, "deep/names/yes.jpg": RED})
    for _ in range(2):
        assert identify(".", photographs / "names") == Outcome.COMPLETE
    assert len(parts(photographs / "names")) == 1
    assert rows_of(photographs / "names").keys() == COLORS.keys() | {"deep/names/yes.jpg"}


def test_missing_parts_are_written_and_others_left_alone(identify, out):
    identify(part_rows=2)
    before, table = parts(out), rows_of(out)
    lost = sorted(before)[1]
    (out / "parts" / lost).unlink()
    assert identify(part_rows=2) == Outcome.COMPLETE
    assert parts(out) == before | {lost: parts(out)[lost]}
    assert list(rows_of(out).items()) == list(table.items())


def test_new_and_changed_photographs_are_answered(identify, photographs, out):
    identify()
    (photographs / "a.jpg").write_bytes(jpeg(GREEN))
    assert identify() == Outcome.COMPLETE
    assert rows_of(out)["a.jpg"]["name_1"] == "Bellis perennis"
    draw_photographs(photographs, {"new.jpg": BLUE})
    assert identify() == Outcome.COMPLETE
    assert len(rows_of(out)) == 6
    assert len(parts(out)) == 3


def rewrite(file, content):
    """Replaces the content of a file, and keeps its time."""
    times = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_failed_photographs_are_tried_again_if_asked(identify, photographs, out):
    rewrite(photographs / "a.jpg", bytes(len(jpeg(RED))))
    assert identify() == Outcome.SOME_FAILED
    rewrite(photographs / "a.jpg", jpeg(RED))
    assert identify() == Outcome.SOME_FAILED
    assert identify(retry_failed=True) == Outcome.COMPLETE
    assert {row["status"] for row in rows_of(out).values()} == {"ok"}


def test_a_plant_of_which_one_photograph_failed_is_tried_again(identify, photographs, out):
    file = photographs / "deep" / "d.jpg"
    rewrite(file, bytes(len(jpeg(BLUE))))
    assert identify(group_by="folder") == Outcome.COMPLETE
    assert (rows_of(out)["deep"]["status"], rows_of(out)["deep"]["num_failed"]) == ("ok", 1)
    rewrite(file, jpeg(BLUE))
    assert identify(retry_failed=True, group_by="folder") == Outcome.COMPLETE
    assert rows_of(out)["deep"]["num_failed"] == 0


def test_a_failed_photograph_that_was_repaired_has_one_row(identify, listed, photographs, out):
    (photographs / "a.jpg").write_bytes(b"nothing")
    paths = listed(("path",), ("a.jpg",), ("b.jpg",), ("gone.jpg",))
    assert identify(list=paths) == Outcome.SOME_FAILED
    draw_photographs(photographs, {"a.jpg": RED, "gone.jpg": BLUE})
    assert identify(list=paths, retry_failed=True, part_rows=1) == Outcome.COMPLETE
    assert {name: (row["status"], row["num_photographs"]) for name, row in rows_of(out).items()} == {
        "a.jpg": ("ok", 1),
        "b.jpg": ("ok", 1),
        "gone.jpg": ("ok", 1),
    }
    assert len(parts(out)) == 3


def test_other_options_and_bundles_cannot_continue(identify, sealed, out):
    identify()
    with pytest.raises(InputError, match=r"changed: k \(5 before\); .*remove the results"):
        identify(k=2)
    with pytest.raises(InputError, match=r"bundle \(tiny 0.0.1 with the hash [0-9a-f]{8} before\)"):
        identify(bundle=sealed("0.0.2"))
    assert len(rows_of(out)) == 5
    shutil.rmtree(out)
    assert identify(k=2) == Outcome.COMPLETE
    assert "name_3" not in next(iter(rows_of(out).values()))


def test_a_run_that_an_older_version_began_is_refused_and_left_as_it_is(identify, out):
    identify()
    record = written(out)
    del record["format"]
    (out / "run.json").write_text(json.dumps(record))
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    with pytest.raises(InputError, match=r"another version .*got format 1; expected format 3.*another --out"):
        identify()
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.parametrize("content", [b"x", b"", b"\x1f\x8b\x08\x00" + bytes(20)])
def test_damaged_results_are_one_error_and_a_damaged_part_can_be_removed(identify, out, content):
    identify()
    (part,) = out.glob("parts/*")
    part.write_bytes(content)
    with pytest.raises(DataError, match=rf"parts/{part.name} of the results is damaged .*: remove this file, and run"):
        identify(darwin_core=True)
    part.unlink()
    assert identify(darwin_core=True) == Outcome.COMPLETE


def test_a_run_whose_parts_are_removed_writes_no_table(identify, out, monkeypatch):
    monkeypatch.setattr(PartFiles, "write", lambda *_: None)
    with pytest.raises(InputError, match="removed during the run"):
        identify()
    monkeypatch.undo()
    assert not (out / "results.parquet").exists()
    assert identify() == Outcome.COMPLETE
    assert len(rows_of(out)) == len(COLORS)


def test_a_run_that_ends_removes_what_killed_ones_had_begun(identify, out):
    unfinished = [f"{name}.{'0' * 32}.part" for name in (".results.csv", "parts/.0123.parquet")]
    for name in (*unfinished, ".garden.part"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(b"")
    assert identify() == Outcome.COMPLETE
    assert [path.name for path in out.rglob("*.part")] == [".garden.part"]


@pytest.mark.parametrize(
    "wrong", [{"taxa": ("Roza",)}, {"taxa": ("list:gone",)}, {"precision": "int8"}, {"list": "gone.csv"}]
)
def test_a_mistake_does_not_start_a_run(identify, wrong, tmp_path):
    paths = {name: tmp_path / value for name, value in wrong.items() if name == "list"}
    with pytest.raises(InputError, match=r"^(?!.*another run)"):
        identify(**wrong | paths)
    assert identify(taxa=("Rosa",)) == Outcome.COMPLETE


def test_another_root_cannot_continue(identify, photographs, tmp_path, monkeypatch):
    identify()
    with pytest.raises(InputError, match=rf"changed: photographs \({photographs} before\)"):
        identify(draw_photographs(tmp_path / "others", {"a.jpg": BLUE}))
    monkeypatch.chdir(photographs)
    assert identify("../photographs/.") == Outcome.COMPLETE


def test_the_table_holds_what_is_listed_now(identify, listed, photographs, out, tmp_path):
    identify(part_rows=2)
    before = parts(out)
    (photographs / "a.jpg").rename(tmp_path / "a.jpg")
    identify()
    assert rows_of(out).keys() == COLORS.keys() - {"a.jpg"}
    identify(list=listed(("path",), ("b.jpg",)))
    assert list(rows_of(out)) == ["b.jpg"]
    (tmp_path / "a.jpg").rename(photographs / "a.jpg")
    identify()
    assert rows_of(out).keys() == COLORS.keys()
    assert parts(out) == before


def test_the_precision_of_the_device_and_the_names_in_a_list_are_options(identify, out, tmp_path):
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "garden.txt").write_text("Rosa\n")
    flags = {"taxa": ("list:garden",), "taxa_lists": lists}
    identify(**flags)
    options = written(out)["options"]
    assert (options["precision"], list(options["taxa_lists"])) == ("fp32", ["garden"])
    (lists / "garden.txt").write_text("# mine\nRosa\n")
    (lists / "other.txt").write_text("Bellis\n")
    assert identify(precision="fp32", **flags) == Outcome.COMPLETE
    (lists / "garden.txt").write_text("Bellis\n")
    with pytest.raises(InputError, match="changed: taxa_lists"):
        identify(**flags)
