"""The program that lists, reviews, exports and reports corrections."""

import csv
import hashlib
import itertools
import json
import os
import resource
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from models.atomic_file import locked
from serving.corrections.__main__ import TABLE_FILE, main
from serving.corrections.store import DATABASE_FILE, Store
from tests.serving.corrections.kept import CROCUS, DAISY, ROSE, correction, database, files, kept
from tests.serving.tiny import GREEN, draw, encode, jpeg
from tests.waiting import wait_until
from training.dataset.sources.table import read_table
from training.prepare import Table, prepare

EXPORTS = json.loads(Path(__file__).with_name("exports.json").read_text())
PICTURES = {"rose": ROSE, "daisy": DAISY, "crocus": CROCUS, "dark": jpeg((1, 2, 3)), "gray": jpeg((9, 9, 9))}


@pytest.fixture
def keep(folder):
    """Puts a correction with these pictures into the store."""

    def put(number, *pictures, **fields):
        with Store(folder) as store:
            store.put(correction(number, **fields), pictures)

    return put


@pytest.fixture
def run(folder, capfd):
    """Runs a command over the folder; returns what it said."""

    def call(command, *words):
        main([command, str(folder), *map(str, words)])
        return capfd.readouterr().out

    return call


@pytest.fixture
def refused(run, capfd):
    """What a command says before it ends with an error."""

    def call(*words):
        with pytest.raises(SystemExit):
            run(*words)
        return capfd.readouterr().err

    return call


@pytest.fixture
def exported(run, tmp_path):
    """Exports by these flags; returns what was said, the names with their pictures, and the groups."""

    def export(*flags):
        out = tmp_path / "out"
        said = run("export", "--out", out, *(flags or ("--reviewer", "ann")))
        with (out / TABLE_FILE).open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        pictures = [(row["scientific_name"], (out / row["path"]).read_bytes()) for row in rows]
        return said, pictures, [row["group"] for row in rows]

    return export


def prepared(folder):
    """What training makes of an export."""
    return prepare(Table(table=folder / "out" / TABLE_FILE, out=folder / "data", workers=1))


def test_what_a_reviewer_found_right_is_exported_and_prepared(keep, run, exported, tmp_path):
    keep(0, ROSE)
    keep(1, CROCUS, name="Crocus vernus")
    keep(2, DAISY)
    assert "2 of 2" in run("review", f"{0:032x}", f"{1:032x}", "--reviewer", "ann")
    assert "1 of 1" in run("review", f"{2:032x}", "--reviewer", "ann", "--wrong")
    said, pictures, _ = exported()
    assert "prepare.py table" in said
    assert pictures == [("Rosa rugosa", ROSE), ("Crocus vernus", CROCUS)]
    report = prepared(tmp_path)
    assert (report.num_pictures, report.num_outputs) == (2, 2)
    assert (tmp_path / "out" / TABLE_FILE).read_text().count(",train,") == 2  # of what tests a network nothing changes


@pytest.mark.parametrize("row", EXPORTS, ids=lambda row: row["fact"])
def test_an_export_has_what_the_reviewer_confirms(keep, run, exported, refused, folder, tmp_path, row):
    for number, (pictures, fields) in enumerate(row["kept"]):
        keep(number, *(PICTURES[each] for each in pictures), **fields)
    for number in row.get("wrong", ()):
        run("review", f"{number:032x}", "--reviewer", "ann", "--wrong")
    if "refused" in row:
        assert row["refused"] in refused("export", "--out", tmp_path / "out", "--reviewer", row.get("reviewer", "ann"))
        assert [*tmp_path.iterdir()] == [folder]
    else:
        said, pictures, groups = exported()
        assert row["says"] in said
        assert sorted(pictures) == sorted((name, PICTURES[each]) for name, each in row["exported"])
        assert sorted(groups.count(each) for each in set(groups)) == row["groups"]
        assert not {each.correction_id for each in kept(folder)} & {*groups}


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "@SUM(1)", "-1", "+ Laburnocytisus adamii"])
def test_no_spreadsheet_runs_a_name_and_training_reads_it_as_it_was(keep, exported, tmp_path, name):
    keep(0, ROSE, name=name, person="ann")
    assert exported()[1] == [(f"'{name}", ROSE)]
    assert read_table("corrections", tmp_path / "out" / TABLE_FILE).records[0].plant.name == name


@pytest.mark.parametrize("command", ["list", "report", "export"])
def test_a_damaged_database_is_one_line(keep, refused, folder, tmp_path, command):
    keep(0, ROSE, person="ann")
    with database(folder) as other:
        (page,) = other.execute("SELECT rootpage FROM sqlite_master WHERE name = 'corrections'").fetchone()
        (size,) = other.execute("PRAGMA page_size").fetchone()
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (folder / DATABASE_FILE).open("r+b") as stream:
        stream.seek((page - 1) * size)
        stream.write(b"x" * size)
    flags = ["--reviewer", "ann", "--out", tmp_path / "out"] if command == "export" else []
    said = refused(command, *flags)
    assert said.startswith("error (bad_input): the store of corrections cannot be used")
    assert "malformed" in said


def test_the_report_counts_what_people_are_certain_of(keep, run):
    for number in range(6):
        keep(number, name="Rosa canina")
    for number in range(6, 10):
        keep(number, name="Crocus vernus", score=0.3)
    keep(10, certain=False)
    keep(11, name="Rosa canina")
    run("review", f"{11:032x}", "--reviewer", "ann", "--wrong")
    said = run("report")
    assert "all: 60.0% (31.3% to 83.2%) of 10 right" in said
    assert "Crocus vernus: 0.0% (0.0% to 49.0%) of 4 right" in said
    assert "No correction is certain." in run("report", "--model", "other 1")


def test_corrections_are_listed_and_deleted_with_their_pictures(keep, run, folder):
    keep(0, ROSE)
    keep(1, DAISY)
    assert "1 of 1 corrections are deleted" in run("delete", f"{0:032x}")
    (line,) = run("list").splitlines()
    assert f"{1:032x}" in line
    assert files(folder) == {hashlib.sha256(DAISY).hexdigest()}


def test_a_heic_is_exported_too(keep, exported, tmp_path):
    keep(0, encode(draw(GREEN), "HEIF"), person="ann")
    exported()
    assert prepared(tmp_path).num_pictures == 1
    assert [path.suffix for path in tmp_path.glob("out/pictures/*")] == [".heif"]


def test_more_corrections_than_a_statement_holds_are_reviewed_and_deleted(keep, folder, monkeypatch):
    monkeypatch.setattr("serving.corrections.store._AT_ONCE", 3)
    for number in range(10):
        keep(number)
    with Store(folder) as store:
        ids = [each.correction_id for each in store.all()]
        assert store.review(ids, "ann", accepted=True) == 10
        assert store.delete(ids) == 10
        assert list(store.all()) == []


@pytest.mark.parametrize("num_backups", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_backups_beside_a_writer_are_whole_and_have_what_was_accepted_before(folder, tmp_path, run, num_backups):
    accepted, deleting = set(), set()  # a number is in `deleting` before it is deleted
    has_backups = threading.Event()

    def write_and_delete():
        with Store(folder) as store:
            for number in itertools.count():
                store.put(correction(number), [b"%d" % number, ROSE])
                accepted.add(number)
                if number >= 30:
                    deleting.add(number - 30)
                    store.delete([f"{number - 30:032x}"])
                if has_backups.is_set():
                    return

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(write_and_delete)
        try:
            for backup in range(num_backups):
                wait_until(lambda number=40 + 10 * backup: writing.done() or len(accepted) >= number)
                out, before = tmp_path / str(backup), set(accepted)
                assert "To restore, start the service" in run("backup", "--out", out)
                copied = {int(each.correction_id, 16): each.pictures for each in kept(out)}
                hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.glob("pictures/*/*")}
                assert all(name == sha256 for name, sha256 in hashes.items())
                assert {*hashes} == set().union(*copied.values())
                assert before - deleting <= {number for number, found in copied.items() if len(found) == 2}
        finally:
            has_backups.set()
        writing.result()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("ends", ["killed", "full"])
def test_a_backup_that_does_not_end_leaves_no_copy_and_the_next_one_is_whole(
    keep, folder, tmp_path, run, refused, capfd, ends
):
    for number in range(3):
        keep(number, ROSE, b"%d" % number)
    out = tmp_path / "backups" / "monday"
    child = os.fork()
    if child == 0:  # pragma: no cover
        if ends == "full":
            # Less than the database; Python ignores the signal: as a full disk.
            resource.setrlimit(resource.RLIMIT_FSIZE, (33_000, 33_000))
        else:
            shutil.copyfile = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        code = None
        try:
            main(["backup", str(folder), "--out", str(out)])
        except SystemExit as error:
            code = error.code
        finally:
            os._exit(code or 99)
    status = os.waitpid(child, 0)[1]
    assert not out.exists()
    if ends == "full":
        assert os.waitstatus_to_exitcode(status) == 1
        assert "the backup cannot be made" in capfd.readouterr().err
        assert not list(out.parent.iterdir())
    else:
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    run("backup", "--out", out)
    assert [path.name for path in out.parent.iterdir()] == ["monday"]
    assert [len(each.pictures) for each in kept(out)] == [2, 2, 2]
    assert "exists already" in refused("backup", "--out", out)


@pytest.mark.parametrize("content", ["precious", "monday/precious", ".lock/precious"])
def test_a_folder_in_the_place_of_a_draft_stays_as_it_is(keep, refused, tmp_path, content):
    keep(0, ROSE)
    precious = tmp_path / ".monday.draft" / content
    precious.parent.mkdir(parents=True)
    precious.touch()
    for command in (("backup",), ("export", "--reviewer", "ann")):
        assert "has something else" in refused(*command, "--out", tmp_path / "monday")
    assert [path for path in (tmp_path / ".monday.draft").rglob("*") if path.is_file()] == [precious]


@pytest.mark.parametrize("out", [".", "/", "..", "new/..", "link"])
def test_a_backup_into_a_place_that_is_taken_is_one_error(keep, refused, tmp_path, monkeypatch, out):
    keep(0, ROSE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("nowhere")
    assert refused("backup", "--out", out) == (
        f"error (bad_input): the folder exists already (got {out}): choose a new one with --out.\n"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"corrections", "link"}


def test_two_backups_into_one_folder_do_not_mix(keep, refused, tmp_path):
    keep(0, ROSE)
    with locked(tmp_path / ".monday.draft", "", remedy=""):
        assert "another process is writing" in refused("backup", "--out", tmp_path / "monday")
    assert not (tmp_path / "monday").exists()


def test_a_backup_has_what_is_in_the_write_ahead_log_and_not_a_picture_that_is_gone(folder, tmp_path, run):
    with Store(folder) as store:  # an open connection keeps the log
        store.put(correction(0), [b"a", b"b"])
        store.path(hashlib.sha256(b"a").hexdigest()).unlink()
        assert (folder / f"{DATABASE_FILE}-wal").stat().st_size
        run("backup", "--out", tmp_path / "backup")
    assert [each.pictures for each in kept(tmp_path / "backup")] == [(hashlib.sha256(b"b").hexdigest(),)]


def test_a_folder_that_is_not_there_is_one_line(refused):
    assert refused("list").startswith("error (bad_input): no such folder of corrections")
