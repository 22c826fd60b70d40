"""The program that lists, reviews, exports and reports corrections."""

import csv
import hashlib
import itertools
import os
import resource
import shutil
import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from models.atomic_file import locked
from serving.corrections.__main__ import TABLE_FILE, main
from serving.corrections.record import Correction
from serving.corrections.store import DATABASE_FILE, Store
from tests.serving.tiny import BLUE, GREEN, draw, encode, jpeg
from tests.waiting import wait_until
from training.dataset.sources.table import read_table
from training.prepare import Table, prepare

ROSE, DAISY, CROCUS = jpeg(), jpeg(GREEN), jpeg(BLUE)


def correction(number, name="Rosa rugosa", **more):
    fields = {
        "correction_id": f"{number:032x}",
        "created": f"2026-10-{number + 1:02}T12:00:00+00:00",
        "person": "",
        "model": "tiny 0.0.1",
        "label_hash": "",
        "verdict_rank": "species",
        "predicted": "rosa-canina",
        "score": 0.9,
        "predictions": "[]",
        "taxon_id": name.lower().replace(" ", "-"),
        "name": name,
        "certain": True,
    }
    return Correction(**(fields | more))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "kept"


def fill(folder, *entries):
    with Store(folder) as store:
        for each, *pictures in entries:
            store.put(each, pictures)


def run(capsys, *arguments):
    main([*map(str, arguments)])
    return capsys.readouterr().out


def refused(capsys, *arguments):
    """What the program says before it ends with an error."""
    with pytest.raises(SystemExit):
        main([*map(str, arguments)])
    return capsys.readouterr().err


@pytest.fixture
def exported(folder, tmp_path, capsys):
    """Exports by these flags; returns what was said, the names with their pictures, and the groups."""

    def export(*flags):
        out = tmp_path / "out"
        said = run(capsys, "export", folder, "--out", out, *(flags or ("--reviewer", "ann")))
        with (out / TABLE_FILE).open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        pictures = [(row["scientific_name"], (out / row["path"]).read_bytes()) for row in rows]
        return said, pictures, [row["group"] for row in rows]

    return export


def test_what_a_reviewer_found_right_is_exported_and_prepared(folder, tmp_path, exported, capsys):
    fill(folder, (correction(0), ROSE), (correction(1, "Crocus vernus"), CROCUS), (correction(2), DAISY))
    assert "2 of 2" in run(capsys, "review", folder, f"{0:032x}", f"{1:032x}", "--reviewer", "ann")
    assert "1 of 1" in run(capsys, "review", folder, f"{2:032x}", "--reviewer", "ann", "--wrong")
    said, pictures, _ = exported()
    assert "prepare.py table" in said
    assert pictures == [("Rosa rugosa", ROSE), ("Crocus vernus", CROCUS)]
    report = prepare(Table(table=tmp_path / "out" / TABLE_FILE, out=tmp_path / "data", workers=1))
    assert (report.num_pictures, report.num_outputs) == (2, 2)
    assert (tmp_path / "out" / TABLE_FILE).read_text().count(",train,") == 2  # of what tests a network nothing changes


def test_a_named_reviewer_needs_no_review_of_their_own_corrections(folder, exported):
    fill(folder, (correction(0, person="ann"), ROSE), (correction(1, person="bob"), DAISY))
    assert exported()[1] == [("Rosa rugosa", ROSE)]


def test_people_agree_only_as_different_keys_about_one_picture(folder, exported):
    same = [correction(number, person=person) for number, person in enumerate(("ann", "bob", "ann", "ann", "", ""))]
    fill(folder, *((each, ROSE) for each in same[:2]), *((each, DAISY) for each in same[2:]))
    assert exported("--people", "2")[1] == [("Rosa rugosa", ROSE)]


def test_a_reviewer_confirms_neither_what_they_took_back_nor_what_they_are_not_certain_of(folder, exported, capsys):
    mine = [correction(number, person="ann", certain=number != 1) for number in range(3)]
    fill(folder, (mine[0], ROSE), (mine[1], DAISY), (mine[2], CROCUS))
    run(capsys, "review", folder, f"{0:032x}", "--reviewer", "ann", "--wrong")
    assert exported()[1] == [("Rosa rugosa", CROCUS)]


def test_a_picture_with_two_names_is_left_out(folder, exported, capsys):
    named = [correction(0), correction(1, "Crocus vernus"), correction(2)]
    fill(folder, (named[0], ROSE), (named[1], ROSE), (named[2], DAISY))
    run(capsys, "review", folder, *(each.correction_id for each in named), "--reviewer", "ann")
    said, rows, _ = exported()
    assert "1 with two names" in said
    assert rows == [("Rosa rugosa", DAISY)]


def test_corrections_that_share_a_picture_are_one_group_which_is_no_id(folder, exported):
    ids = [correction(number, person="ann") for number in range(4)]
    fill(
        folder,
        (ids[0], ROSE, DAISY),
        (ids[1], jpeg((1, 2, 3))),
        (ids[2], CROCUS, jpeg((9, 9, 9))),
        (ids[3], DAISY, CROCUS),
    )
    _, _, found = exported()
    assert sorted(found.count(each) for each in set(found)) == [1, 4]
    assert not {each.correction_id for each in ids} & {*found}


def test_an_export_of_disputed_pictures_alone_fails_and_leaves_nothing(folder, tmp_path, capsys):
    fill(
        folder, *((correction(at, name, person="ann"), ROSE) for at, name in enumerate(("Rosa rugosa", "Rosa canina")))
    )
    assert "1 with two names" in refused(capsys, "export", folder, "--reviewer", "ann", "--out", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "@SUM(1)", "-1", "+ Laburnocytisus adamii"])
def test_no_spreadsheet_runs_a_name_and_training_reads_it_as_it_was(folder, tmp_path, exported, name):
    fill(folder, (correction(0, name, person="ann"), ROSE))
    assert exported()[1] == [(f"'{name}", ROSE)]
    assert read_table("corrections", tmp_path / "out" / TABLE_FILE).records[0].plant.name == name


@pytest.mark.parametrize("command", ["list", "report", "export"])
def test_a_damaged_database_is_one_line(folder, tmp_path, capsys, command):
    fill(folder, (correction(0, person="ann"), ROSE))
    with sqlite3.connect(folder / DATABASE_FILE) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'corrections'").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    with (folder / DATABASE_FILE).open("r+b") as stream:
        stream.seek((page - 1) * size)
        stream.write(b"x" * size)
    flags = ["--reviewer", "ann", "--out", tmp_path / "out"] if command == "export" else []
    said = refused(capsys, command, folder, *flags)
    assert said.startswith("error (bad_input): the store of corrections cannot be used")
    assert "malformed" in said


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ((), "--reviewer NAME or --people N"),
        (("--reviewer", "zoe"), "no confirmed"),
        (("--people", "3"), "no confirmed"),
    ],
)
def test_an_export_of_nothing_says_why(folder, tmp_path, capsys, flags, what):
    fill(folder, (correction(0, person="ann"), ROSE))
    assert what in refused(capsys, "export", folder, "--out", tmp_path / "out", *flags)
    assert not (tmp_path / "out").exists()


def test_the_report_counts_what_people_are_certain_of(folder, capsys):
    right = [correction(number, "Rosa canina") for number in range(6)]
    wrong = [correction(number, "Crocus vernus", score=0.3) for number in range(6, 10)]
    unsure = correction(10, certain=False)
    fill(folder, *((each,) for each in (*right, *wrong, unsure)))
    said = run(capsys, "report", folder)
    assert "all: 60.0% (31.3% to 83.2%) of 10 right" in said
    assert "Crocus vernus: 0.0% (0.0% to 49.0%) of 4 right" in said
    assert "2026-W40: 100.0% (51.0% to 100.0%) of 4 right" in said
    assert "0.27 to 0.33: 0.0% of 4" in said
    assert "No correction is certain." in run(capsys, "report", folder, "--model", "other 1")


def test_corrections_are_listed_and_deleted_with_their_pictures(folder, capsys):
    fill(folder, (correction(0), ROSE), (correction(1), DAISY))
    assert "1 of 1 corrections are deleted" in run(capsys, "delete", folder, f"{0:032x}")
    (line,) = run(capsys, "list", folder).splitlines()
    assert f"{1:032x}" in line
    assert [path.read_bytes() for path in folder.glob("pictures/*/*")] == [DAISY]


def test_a_heic_is_exported_too(folder, tmp_path, exported):
    fill(folder, (correction(0, person="ann"), encode(draw(GREEN), "HEIF")))
    exported()
    assert [path.suffix for path in tmp_path.glob("out/pictures/*")] == [".heif"]
    report = prepare(Table(table=tmp_path / "out" / TABLE_FILE, out=tmp_path / "data", workers=1))
    assert report.num_pictures == 1


def test_more_corrections_than_a_statement_holds_are_reviewed_and_deleted(folder, monkeypatch):
    monkeypatch.setattr("serving.corrections.store._AT_ONCE", 3)
    many = [correction(number, created="2020-01-01T00:00:00+00:00") for number in range(10)]
    fill(folder, *((each,) for each in many))
    with Store(folder) as store:
        ids = [each.correction_id for each in many]
        assert store.review(ids, "ann", accepted=True) == len(many)
        assert store.purge(365) == len(many)
        assert list(store.all()) == []


@pytest.mark.parametrize("num_backups", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_backups_beside_a_writer_are_whole_and_have_what_was_accepted_before(folder, tmp_path, capsys, num_backups):
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
                assert "To restore, start the service" in run(capsys, "backup", folder, "--out", out)
                with Store(out) as store:
                    copied = {int(each.correction_id, 16): each.pictures for each in store.all()}
                hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.glob("pictures/*/*")}
                assert all(name == sha256 for name, sha256 in hashes.items())
                assert {*hashes} == set().union(*copied.values())
                assert before - deleting <= {number for number, found in copied.items() if len(found) == 2}
        finally:
            has_backups.set()
        writing.result()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("ends", ["killed", "full"])
def test_a_backup_that_does_not_end_leaves_no_copy_and_the_next_one_is_whole(folder, tmp_path, capfd, ends):
    fill(folder, *((correction(number), ROSE, b"%d" % number) for number in range(3)))
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
    run(capfd, "backup", folder, "--out", out)
    assert [path.name for path in out.parent.iterdir()] == ["monday"]
    with Store(out) as store:
        assert [len(each.pictures) for each in store.all()] == [2, 2, 2]
    assert "exists already" in refused(capfd, "backup", folder, "--out", out)


def test_two_backups_into_one_folder_do_not_mix(folder, tmp_path, capsys):
    fill(folder, (correction(0), ROSE))
    with locked(tmp_path / ".monday.draft", "", remedy=""):
        assert "another process is writing" in refused(capsys, "backup", folder, "--out", tmp_path / "monday")
    assert not (tmp_path / "monday").exists()


def test_a_backup_has_what_is_in_the_write_ahead_log_and_not_a_picture_that_is_gone(folder, tmp_path, capsys):
    with Store(folder) as store:  # an open connection keeps the log
        store.put(correction(0), [b"a", b"b"])
        store.path(hashlib.sha256(b"a").hexdigest()).unlink()
        assert (folder / f"{DATABASE_FILE}-wal").stat().st_size
        run(capsys, "backup", folder, "--out", tmp_path / "backup")
    with Store(tmp_path / "backup") as store:
        assert [each.pictures for each in store.all()] == [(hashlib.sha256(b"b").hexdigest(),)]


def test_a_folder_that_is_not_there_is_one_line(tmp_path, capsys):
    said = refused(capsys, "list", tmp_path / "nosuch")
    assert said.startswith("error (bad_input): no such folder of corrections")
