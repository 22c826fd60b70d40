"""A run: every photograph has one row, whatever happens, and the program says how far it is."""

import hashlib
import io
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import fsspec
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.answer import Question, answer_plant
from models.bundle import file_sha256
from models.errors import DataError, InputError
from models.exif import Capture
from models.program import read_flags
from models.ranking import NAMES_ARE_GUESSES, Promises
from models.scoring import AnswerModel, GuessShare
from serving.folder import Outcome, run
from serving.folder.command import IdentifyFolder
from serving.folder.photographs import Photograph
from serving.folder.plants import Plant
from serving.folder.rows import Failure, Seen, answered
from serving.folder.run import Progress
from serving.schemas import PLACE_REASONS
from tests.docs.pages import DOCS, text_of
from tests.make import cases
from tests.models.test_exif import DATED, PLACED, packet
from tests.models.tiny import species, taxonomy_of
from tests.serving.folder.photograph_folder import COLORS, NAMES, draw_photographs, parts, rows_of, write_list, written
from tests.serving.test_place import PRIOR, RULE, SYDNEY, photograph
from tests.serving.test_questions import PROMISE
from tests.serving.tiny import BLUE, GREEN, RED, WHITE, jpeg, tables


def test_an_empty_text_for_a_path_is_not_set_and_the_results_have_no_default():
    flags = ("photographs", "--bundle", "", "--list=", "--taxa", "rosa", "")
    command = read_flags(IdentifyFolder, [*flags, "--out", "out"])
    assert (command.photographs, command.bundle, command.list, command.taxa) == ("photographs", None, None, ("rosa",))
    with pytest.raises(InputError, match="--out is empty"):
        read_flags(IdentifyFolder, [*flags, "--out", ""])


def test_no_file_of_a_run_and_no_line_has_the_password_of_an_address(identify, out, capfd):
    fsspec.filesystem("memory").pipe("/me:secret@garden/a.jpg", jpeg(RED))
    identify("memory://me:secret@garden")
    identify("memory://me:secret@garden", "memory://me:secret@results")
    assert "secret" not in Failure.of(OSError("away: memory://me:secret@garden")).message
    assert written(out)["options"]["photographs"] == "memory://garden"
    with pytest.raises(DataError, match=r"memory://none\b"):
        identify("memory://me:secret@none", out.with_name("other"))
    content = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert b"secret" not in content + "".join(capfd.readouterr()).encode()


def test_the_place_of_a_photograph_counts_only_if_that_is_asked_for(
    identify, sealed, photographs, out, tmp_path, capsys
):
    bundle = sealed(place=(PRIOR, RULE))
    (photographs / "a.jpg").write_bytes(photograph(SYDNEY))
    identify(bundle=bundle)
    identify(out=tmp_path / "placed", bundle=bundle, place="exif")
    plain, placed = (rows_of(each)["a.jpg"] for each in (out, tmp_path / "placed"))
    assert (plain["name_1"], placed["name_1"]) == ("Rosa canina", "Rosa rugosa")
    assert "Place or season decided" in placed["reason"]
    identify(out=tmp_path / "unknown", place="exif")  # of a bundle that knows no places
    assert capsys.readouterr().err.count(f"warning: {PLACE_REASONS['no_prior']}\n") == 1


def test_a_share_cannot_change_the_work_of_all():
    with pytest.raises(InputError, match="once without --part"):
        IdentifyFolder(out="out", part="0/2", retry_failed=True)


OK, FAILED = {"status": "ok", "num_photographs": 1}, {"status": "failed", "num_photographs": 2}


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(run, "time", clock)
    return clock


def test_a_line_a_minute_with_rate_and_time_left(clock):
    stream = io.StringIO()
    progress = Progress(1000, 50, stream)
    for _ in range(240):
        clock.now += 0.5
        progress.add(OK)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0] == "170 of 1,050 plants, 2.0 a second, 7 min left"


def test_failures_are_counted(clock):
    stream = io.StringIO()
    progress = Progress(10, 0, stream)
    progress.add(FAILED)
    clock.now += 61
    progress.add(OK)
    clock.now += 5  # the table is joined: that is not counted
    progress.end()
    assert "2 of 10 plants, 1 failed" in stream.getvalue()
    assert (progress.num_done, progress.num_photographs, progress.seconds) == (2, 3, 61)


def test_every_photograph_has_a_row_with_its_answer(identify, out):
    assert identify() == Outcome.COMPLETE
    rows = rows_of(out)
    assert list(rows) == list(COLORS)
    row = rows["b.jpg"]
    assert row["verdict_name"] == row["name_1"] == "Bellis perennis"
    assert (row["taxon_id"], row["verdict_rank"], row["status"]) == ("bellis-perennis", "species", "ok")
    assert (row["width"], row["height"], row["bundle_name"]) == (64, 48, "tiny")
    assert row["score_1"] >= row["score_2"] >= row["score_5"]


def test_a_file_that_is_no_photograph_is_a_row_and_not_the_end(identify, photographs, out):
    (photographs / "a.jpg").write_bytes(b"nothing")
    (photographs / "b.jpg").unlink()
    (photographs / "b.jpg").symlink_to("nowhere")
    (photographs / "c.jpg").write_bytes(jpeg(RED)[:200])
    assert identify() == Outcome.SOME_FAILED
    rows = rows_of(out)
    codes = [rows[name]["error_code"] for name in ("a.jpg", "b.jpg", "c.jpg")]
    assert codes == ["unsupported_format", "bad_data", "unreadable_image"]
    assert rows["deep/d.jpg"]["status"] == "ok"
    assert written(out)["counts"] == {"ok": 2, "failed": 3}


def test_what_was_left_out_is_told_in_one_line(identify, photographs, capsys):
    for number, letter in enumerate("abcdefghijzz"):
        (photographs / f"{number}.{letter}").write_bytes(b"II*\0")
    assert identify() == Outcome.COMPLETE
    told = ".z 2, .a 1, .b 1, .c 1, .d 1, .e 1, .f 1, .g 1, .h 1, .i 1 and 1 more"
    assert capsys.readouterr().err.count(f"\nleft out, as no photographs by their first bytes: {told}\n") == 1


def test_time_and_place_come_from_the_xmp_file_if_the_photograph_has_none(identify, photographs, out):
    (photographs / "b.jpg").write_bytes(photograph((52.5, 13.4)))
    for name in ("a.xmp", "b.jpg.xmp"):
        (photographs / name).write_bytes(packet(PLACED, DATED))
    identify()
    rows = rows_of(out)
    told = {name: (rows[name]["taken_at"], rows[name]["latitude"]) for name in ("a.jpg", "b.jpg", "c.jpg")}
    assert told == {
        "a.jpg": ("2026-07-04T12:30:01+02:00", pytest.approx(48.51)),
        "b.jpg": ("2026-07-04T12:30:01+02:00", 52.5),
        "c.jpg": (None, None),
    }
    (photographs / "a.xmp").write_bytes(packet('exif:GPSLatitude="48,36N" exif:GPSLongitude="2,15E"'))
    identify()
    row = rows_of(out)["a.jpg"]
    assert (row["taken_at"], row["latitude"], row["longitude"]) == (None, pytest.approx(48.6), pytest.approx(2.25))


def test_a_name_that_is_not_utf_8_is_a_row_and_not_the_end(identify, photographs, out):
    folder = photographs / os.fsdecode(b"gar\xe7on")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has no such names")
    literal = r"caf\xe9.jpg"  # these eight characters are the name of another file
    for path in (folder / "d.jpg", photographs / os.fsdecode(b"caf\xe9.jpg"), photographs / literal):
        path.hardlink_to(photographs / "a.jpg")
    for _ in range(2):
        assert identify() == Outcome.SOME_FAILED
        rows = rows_of(out)
        failed = {path: row["error"] for path, row in rows.items() if row["status"] == "failed"}
        assert list(failed) == [r"./caf\xe9.jpg", r"./gar\xe7on/d.jpg"]
        assert all("not UTF-8" in error for error in failed.values())
        assert rows.keys() - failed.keys() == COLORS.keys() | {literal}
    assert len(parts(out)) == 1


def test_a_root_and_a_list_may_have_names_that_are_not_utf_8(identify, photographs, out, tmp_path):
    root = tmp_path / os.fsdecode(b"gar\xe7on")
    try:
        photographs.rename(root)
    except OSError:
        pytest.skip("this file system has no such names")
    listed = write_list(root / os.fsdecode(b"caf\xe9.csv"), ("path",), ("a.jpg",))
    for flags in ({}, {"list": listed}):
        assert identify(root, **flags) == Outcome.COMPLETE
    assert list(rows_of(out)) == ["a.jpg"]


@pytest.mark.parametrize("flags", [{"taxa": ("caf\udce9",)}, {"group_by": "regex:caf\udce9"}])
def test_a_flag_that_is_not_utf_8_is_one_error(identify, flags):
    with pytest.raises(InputError, match=r"taxa|pattern of --group-by"):
        identify(**flags)


def test_photographs_of_a_folder_can_be_one_plant(identify, photographs, out):
    draw_photographs(photographs, {"deep/f.jpg": GREEN})
    (photographs / "deep" / "b.jpg").write_bytes(b"nothing")
    assert identify(group_by="folder") == Outcome.COMPLETE
    row = rows_of(out)["deep"]
    assert row["path"] == "deep/d.jpg", "the size and the time are those of the path"
    assert (row["num_photographs"], row["num_failed"], row["status"]) == (4, 1, "ok")
    assert row["name_1"] == "Bellis perennis"


def test_shares_of_several_machines_make_one_table(identify, photographs, out):
    draw_photographs(photographs, {f"{number:02d}.jpg": RED for number in range(40)})
    (photographs / "00.jpg").write_bytes(b"nothing")  # for which no scheduler is to start a machine again
    assert identify(part="1/2", part_rows=4) == Outcome.COMPLETE
    assert not (out / "results.parquet").exists()
    before = parts(out)
    assert identify(part="0/2", part_rows=4) == Outcome.COMPLETE
    assert parts(out).items() > before.items()
    assert list(rows_of(out)) == [*(f"{number:02d}.jpg" for number in range(40)), *COLORS]


def test_a_broken_disk_ends_the_run_early(identify, photographs, out):
    for number in range(300):
        (photographs / f"{number:03d}.jpg").write_bytes(b"nothing")
    assert identify(part_rows=50, max_failure_rate=0.1) == Outcome.TOO_MANY_FAILED
    assert 1 <= len(parts(out)) < 6


@pytest.mark.parametrize(("num_failing", "num_rows", "outcome"), cases(__file__, "failure_rates"))
def test_failures_up_to_the_given_share_do_not_end_a_run(identify, tmp_path, num_failing, num_rows, outcome):
    folder = draw_photographs(tmp_path / "others", {f"{number:03d}.jpg": RED for number in range(num_rows)})
    for number in range(num_failing):
        (folder / f"{number:03d}.jpg").write_bytes(b"nothing")
    assert identify(folder, max_failure_rate=0.5) == outcome


def test_list_names_the_photographs_and_its_columns_are_copied(identify, listed, out):
    rows = [("path", "place", "bed"), ("a.jpg", "north", "1"), ("c.jpg", "north", "1"), ("gone.jpg", "south", "2")]
    assert identify(list=listed(*rows), group_by="column:bed") == Outcome.SOME_FAILED
    table = rows_of(out)
    assert (table["1"]["list_place"], table["1"]["num_photographs"]) == ("north", 2)
    assert (table["2"]["status"], table["2"]["error_code"]) == ("failed", "bad_data")


def test_candidates_taxa_and_least_score(identify, sealed, photographs, out, tmp_path):
    bundle = sealed(calibration=tables())
    (photographs / "white.jpg").write_bytes(jpeg(WHITE))
    identify(bundle=bundle, coverage=0.9, taxa=("Rosa",), min_score=0.999)
    rows = rows_of(out)
    assert rows["white.jpg"]["verdict_rank"] == "not_a_plant"
    assert 0 <= rows["white.jpg"]["plant_score"] <= 1
    candidates = rows["a.jpg"]["candidates"]
    assert set(candidates) <= {"Rosa canina", "Rosa rugosa"}
    assert (rows["a.jpg"]["num_candidates"], rows["a.jpg"]["candidates_guarantee"]) == (len(candidates), None)
    assert rows["a.jpg"]["verdict_name"] is None
    assert rows["a.jpg"]["name_1"].startswith("Rosa")
    assert rows["a.jpg"]["discarded_mass"] == pytest.approx(0.039, abs=0.001)
    assert (rows["b.jpg"]["name_1"], rows["b.jpg"]["verdict_rank"]) == ("Rosa rugosa", "uncertain")
    assert rows["b.jpg"]["discarded_mass"] == pytest.approx(0.989, abs=0.001)
    assert rows["b.jpg"]["verdict_score"] == pytest.approx(0.0359, abs=0.0001)
    identify(out=tmp_path / "all", bundle=bundle, coverage=0.9)
    row = rows_of(tmp_path / "all")["a.jpg"]
    assert (row["candidates_guarantee"], row["discarded_mass"]) == ("marginal", None)


def test_a_photograph_that_is_cut_off_is_told_in_the_reason_of_its_row(identify, photographs, out):
    (photographs / "deep/e.jpg").write_bytes(jpeg(GREEN)[:-2])
    identify(group_by="folder")
    reasons = {group: row["reason"] for group, row in rows_of(out).items()}
    assert reasons["deep"].endswith(". deep/e.jpg is cut off at its end.")
    assert "cut off" not in reasons["."]


def test_a_verdict_with_exactly_the_least_score_is_kept(identify, out, tmp_path):
    identify()
    row = rows_of(out)["a.jpg"]
    for least, rank in ((row["verdict_score"], "species"), (row["verdict_score"] + 1e-9, "uncertain")):
        identify(out=tmp_path / rank, min_score=least)
        assert rows_of(tmp_path / rank)["a.jpg"]["verdict_rank"] == rank


@pytest.mark.parametrize("promises", [Promises(), Promises(genus=PROMISE)])
def test_names_that_nothing_proves_are_guesses_before_the_first_row_and_after_the_last(
    promises, identify, sealed, capsys
):
    identify(bundle=sealed(promises=promises))
    told = capsys.readouterr().err.splitlines()
    assert [line == NAMES_ARE_GUESSES for line in (told[0], told[-1])] == [not promises.genus] * 2


def test_the_lines_of_the_page_sort_the_photographs(identify, photographs, out, tmp_path, monkeypatch):
    (photographs / "damaged.jpg").write_bytes(b"nothing")
    draw_photographs(photographs, {"white.jpg": WHITE})
    identify()
    out.rename(tmp_path / "names")
    photographs.rename(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", text_of(DOCS / "folders.md"), re.DOTALL)[1], {})
    found = {path.relative_to("sorted").as_posix() for path in Path("sorted").glob("*/*")}
    assert found == {
        *(f"{NAMES[color]}/{path.replace('/', '__')}" for path, color in COLORS.items()),
        "failed/damaged.jpg",
        "uncertain/white.jpg",
    }


def test_true_names_of_a_list_give_figures_also_afterwards(identify, listed, out, capsys):
    rows = [("path", "species"), ("a.jpg", "dog rose"), ("b.jpg", "Rosa canina"), ("gone.jpg", "Bellis perennis")]
    flags = {"list": listed(*rows)}
    assert identify(**flags) == Outcome.SOME_FAILED
    before = parts(out)
    assert identify(truth="species", **flags) == Outcome.SOME_FAILED
    assert parts(out) == before
    report = written(out, "truth")
    assert (report["num_rows"], report["num_failed"]) == (3, 1)
    assert report["by_rank"]["species"]["right"]["value"] == 1 / 3
    assert report["confusions"] == [{"right": "Rosa canina", "named": "Bellis perennis", "count": 1}]
    assert "species: 33.3% (6.1% to 79.2%) of 3 rows right" in capsys.readouterr().err


@pytest.mark.parametrize("changed", [False, True])
def test_photographs_that_the_model_was_trained_with_are_told(
    identify, out, bundle_folder, tmp_path, monkeypatch, capsys, changed
):
    colors = {"Rosa canina/a.jpg": RED, "Rosa canina/new.jpg": BLUE, "Crocus spp/c.jpg": WHITE, "Bellis/d.jpg": GREEN}
    photographs = draw_photographs(tmp_path / "others", colors)
    splits = {"Rosa canina/a.jpg": "train", "Crocus spp/c.jpg": "validation", "Bellis/d.jpg": "test"}
    hashes = [hashlib.sha256((photographs / path).read_bytes()).hexdigest() for path in splits]
    manifest = tmp_path / "data" / "mine" / "manifest.parquet"
    manifest.parent.mkdir(parents=True)
    pq.write_table(pa.table({"sha256": [*hashes, "0" * 64], "split": [*splits.values(), "train"]}), manifest)
    bundle = shutil.copytree(bundle_folder, tmp_path / "bundle")
    record = json.loads((bundle / "bundle.json").read_bytes())
    record |= {"recipe": {"data": {"data": "data/mine"}}, "manifest_sha256": file_sha256(manifest)}
    (bundle / "bundle.json").write_text(json.dumps(record))
    if changed:
        manifest.write_bytes(b"another one")
    monkeypatch.chdir(tmp_path)
    assert identify(photographs, bundle=bundle, truth="folder") == Outcome.COMPLETE
    report = written(out, "truth")
    assert report["num_rows"] == 4
    assert report["trained_on"] == (None if changed else {"train": 1, "validation": 1, "test": 1})
    assert ("2 of the photographs helped to make the model" in capsys.readouterr().err) == (not changed)


def test_a_column_without_true_names_is_refused_before_the_run(identify, listed, out):
    with pytest.raises(DataError, match="the column genus"):
        identify(truth="genus", list=listed(("path", "species"), ("a.jpg", "")))
    with pytest.raises(InputError, match="--truth needs --list"):
        identify(truth="species")
    assert not (out / "results.parquet").exists()


def test_a_genus_that_the_likeliest_taxon_is_not_of_has_no_family_of_that():
    taxonomy = taxonomy_of(
        species("Quercus robur", "Fagaceae"), species("Rosa canina", "Rosaceae"), species("Rosa rugosa", "Rosaceae")
    )
    answer = answer_plant(np.log([[0.4, 0.3, 0.3]]), np.zeros((1, 1)), AnswerModel(taxonomy, 1.0), Question())
    answer = msgspec.structs.replace(answer, guess=GuessShare(0.0, 0.6, None, 50, "family"))
    photograph = Photograph("a.jpg", 1, "1")
    row = answered(Plant("a", (photograph,)), answer, [Seen(photograph, 1, 1, Capture(), False)], [], None)
    assert (row["verdict_name"], row["name_1"], row["genus"], row["family"]) == ("Rosa", "Quercus robur", "Rosa", None)
    assert row["taxon_id"] is None  # nor its id
    assert (row["guess_rank"], row["guess_first"], row["guess_three"]) == ("family", 0.6, None)
