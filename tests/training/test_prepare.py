import csv
import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from PIL import ExifTags, Image, ImageDraw

from tests.make import from_table, ran
from tests.training.small import (
    FLOWERS,
    draw,
    prepare_folder,
    require_one_line,
    run_main,
    start_program,
    write_pictures,
)
from training.dataset.manifest import Manifest
from training.dataset.report.page import JSON_FILE
from training.prepare import Table, main, prepare


def write_table(path, rows, columns=("path", "scientific_name")):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([columns, *rows])
    return path


def prepare_table(folder, rows, more_columns=(), **options):
    """Prepares pictures of a folder by a list; returns the report."""
    table = write_table(folder / "list.csv", rows, ("path", "scientific_name", *more_columns))
    return prepare(Table(table=table, out=folder / "data", workers=1, **options))


def split_of_each(data):
    manifest = Manifest(data)
    return dict(zip(manifest.table["path"].to_pylist(), manifest.table["split"].to_pylist(), strict=True))


def rejected(data):
    report = json.loads((data / JSON_FILE).read_text())
    return {entry["picture"].rpartition("/")[2]: entry for entry in report["left_out"]}


def test_the_columns_of_path_and_name_can_be_named(tmp_path, monkeypatch):
    draw("crimson", "ellipse", 1).save(tmp_path / "a.png")
    write_table(tmp_path / "list.csv", [("a.png", "Rosa rubra")], ("filename", "label"))
    flags = ["--path-column", "filename", "--name-column", "label", "--out", str(tmp_path / "data"), "--workers", "1"]
    monkeypatch.setattr("sys.argv", ["prepare.py", "table", str(tmp_path / "list.csv"), *flags])
    main()
    assert Manifest(tmp_path / "data").taxonomy.taxa[0].scientific_name == "Rosa rubra"


def test_a_copy_of_a_test_picture_takes_its_whole_observation_out_of_training(tmp_path):
    for number, name in enumerate("tuvw"):
        draw("gold", "ellipse", 10 * number).save(tmp_path / f"{name}.png")
    shutil.copy(tmp_path / "t.png", tmp_path / "copy.png")
    rows = [
        ("t.png", "Rosa rubra", "test", "one"),
        ("copy.png", "Rosa rubra", "train", "two"),
        ("u.png", "Rosa rubra", "train", "two"),
        ("v.png", "Rosa rubra", "train", "three"),
        ("w.png", "Rosa rubra", "train", "four"),
    ]
    prepare_table(tmp_path, rows, ["split", "group"], source="mine", validation_share=0, near_copy_bits=0)
    assert split_of_each(tmp_path / "data") == {"t.png": "test", "v.png": "train", "w.png": "train"}
    found = {name.removeprefix("mine:"): entry["code"] for name, entry in rejected(tmp_path / "data").items()}
    assert found == {"copy.png": "copy", "u.png": "near_copy"}


def leaf_on_paper(width_px, left=0):
    """A green leaf of this width on white paper; leaves of similar widths have near perceptual hashes."""
    paper = Image.new("RGB", (256, 256), (250, 250, 248))
    pen = ImageDraw.Draw(paper)
    edge = [(100 + left, 20), (130 + width_px + left, 150), (110 + left, 225), (70 - width_px // 2 + left, 120)]
    pen.polygon(edge, fill=(60, 110, 40))
    pen.line([(100 + left, 20), (150 + left, 250)], fill=(180, 200, 120), width=6)
    return paper


def test_leaves_on_paper_of_another_species_stay_and_are_told_as_one_picture_with_two_names(tmp_path, capsys):
    pictures = {
        "test.png": (leaf_on_paper(40), "Rosa rubra", "test"),
        "same.webp": (leaf_on_paper(40), "Iris lutea", "train"),
        "alike.png": (leaf_on_paper(44), "Iris lutea", "train"),
        "own.png": (leaf_on_paper(40, left=2), "Rosa rubra", "train"),
        "other.png": (leaf_on_paper(90, left=20), "Rosa rubra", "train"),
    }
    for name, (picture, _, _) in pictures.items():
        picture.save(tmp_path / name, **({"lossless": True} if name.endswith("webp") else {}))
    rows = [(path, *others) for path, (_, *others) in pictures.items()]
    report = prepare_table(tmp_path, rows, ["split"], source="mine", validation_share=0)
    assert {name: entry["code"] for name, entry in rejected(tmp_path / "data").items()} == {"mine:own.png": "near_copy"}
    assert len(report.two_names) == 1
    names = [f"mine:{path} ({pictures[path][1]})" for path in sorted({*pictures} - {"other.png"})]
    assert f"Same picture, or nearly, with two names: 1 ({' = '.join(names)})" in capsys.readouterr().out


def test_a_picture_that_is_known_to_a_family_or_tribe_is_left_out_unless_its_genus_is_given(tmp_path, capsys):
    plants = {"a.png": "Asteraceae sp.", "b.png": "Cichorieae", "c.png": "Xerophyta", "d.png": "Rosaceae"}
    for seed, name in enumerate(plants):
        draw("gold", "ellipse", 10 * seed).save(tmp_path / name)
    rows = [(path, name, "Rosa" if path == "d.png" else "") for path, name in plants.items()]
    prepare_table(tmp_path, rows, ["genus"], source="mine", validation_share=0, test_share=0, near_copy_bits=0)
    assert {name: entry["code"] for name, entry in rejected(tmp_path / "data").items()} == {
        "mine:Asteraceae sp.": "above_genus",
        "mine:Cichorieae": "above_genus",
    }
    assert [taxon.genus for taxon in Manifest(tmp_path / "data").taxonomy.taxa] == ["Rosa", "Xerophyta"]
    assert "left out (above_genus): mine:Cichorieae: " in capsys.readouterr().out


def test_pictures_of_one_plant_share_a_split(pictures, tmp_path):
    paths = sorted(pictures.rglob("*.jpg"))
    rows = [(path, path.parent.name, f"plant {at // 3}") for at, path in enumerate(paths)]
    prepare_table(tmp_path, rows, ["group"], test_share=0.3, validation_share=0.3, near_copy_bits=0)
    manifest = Manifest(tmp_path / "data")
    pairs = set(zip(manifest.table["group"].to_pylist(), manifest.table["split"].to_pylist(), strict=True))
    assert len(pairs) == len(paths) / 3
    assert {split for _, split in pairs} == {"train", "validation", "test"}


def test_pictures_may_lie_outside_the_folder_of_a_relative_list(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    for number in range(3):
        draw("gold", "ellipse", number).save(tmp_path / "photos" / f"{number}.png")
    write_table(tmp_path / "lists" / "list.csv", [(f"../photos/{number}.png", "Rosa rubra") for number in range(3)])
    monkeypatch.chdir(tmp_path / "lists")
    prepare(Table(table=Path("list.csv"), out=tmp_path / "data", workers=1))
    monkeypatch.chdir("/")
    manifest = Manifest(tmp_path / "data")
    assert len(manifest) == 3
    assert all(manifest.path(row).is_file() for row in range(3))


def test_photographs_of_a_moment_are_one_plant_and_folders_have_dates_places_and_families(tmp_path, capsys):
    for number, (taken, north) in enumerate([("10:00:00", 48.0), ("10:00:40", 48.0), ("10:00:50", 49.0)]):
        exif = Image.Exif()
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = f"2024:05:31 {taken}"
        exif.get_ifd(ExifTags.IFD.GPSInfo).update({1: "N", 2: (north, 0.0, 0.0), 3: "E", 4: (9.0, 0.0, 0.0)})
        path = tmp_path / "archive" / "plants" / "train" / "Quercus robur" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw("gold", "ellipse", 10 * number).save(path, exif=exif)
    report = prepare_folder(tmp_path / "archive", tmp_path / "data", near_copy_bits=0)
    manifest = Manifest(tmp_path / "data")
    assert len(set(manifest.table["group"].to_pylist())) == 2
    assert (report.sources[0].num_dated, report.sources[0].num_placed) == (3, 3)
    assert manifest.taxonomy.taxa[0].family == "Fagaceae"
    assert (
        "archive: the classes are the folders in plants, since archive holds nothing else." in capsys.readouterr().out
    )


@from_table
def test_a_source_that_cannot_be_prepared_is_one_line_and_leaves_nothing(
    files, arguments, expected, code, tmp_path, monkeypatch, capsys
):
    draw("gold", "ellipse", 1).save(tmp_path / "a.png")
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    exit_code, stderr = run_main(main, capsys, *arguments.split(), "--out", "data", "--workers", 1)
    assert exit_code == 1
    require_one_line(stderr, code)
    assert expected in stderr
    assert not (tmp_path / "data").exists()


def test_a_source_of_which_nothing_decodes_leaves_no_manifest_and_a_file_in_the_way_is_one_line(tmp_path, capsys):
    (tmp_path / "flowers" / "Rosa").mkdir(parents=True)
    (tmp_path / "flowers" / "Rosa" / "a.jpg").write_text("no picture")
    arguments = ("folder", tmp_path / "flowers", "--workers", 1, "--out")
    code, stderr = run_main(main, capsys, *arguments, tmp_path / "data")
    assert code == 1
    assert "error (bad_data): no picture of the sources can be used" in stderr
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"audit.sqlite"}  # nothing is decoded twice
    (tmp_path / "file").write_text("in the way")
    code, stderr = run_main(main, capsys, *arguments, tmp_path / "file")
    assert code == 1
    require_one_line(stderr, "file_system")


@pytest.mark.untraced
@pytest.mark.slow
@pytest.mark.parametrize(("limit_kb", "is_cached"), [(4, False), (8, True)])
def test_a_full_disk_is_one_line_and_leaves_the_old_manifest(limit_kb, is_cached, pictures, data, tmp_path):
    """A limit on the file size, which the cache or the manifest exceeds."""
    shutil.copytree(data, tmp_path / "data")
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir() if path.suffix != ".sqlite"}
    if not is_cached:
        (tmp_path / "data" / "audit.sqlite").unlink()
    program = [sys.executable, "training/prepare.py", "folder", str(pictures), "--workers=1", "--seed=1"]
    limited = ["bash", "-c", f'ulimit -f {limit_kb}; exec "$@"', "bash", *program, "--out", tmp_path / "data"]
    ended = ran(*limited)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(("error (file_system): ", "error (bad_data): ")), ended.stderr
    assert "Traceback" not in ended.stderr
    left = {path.name for path in (tmp_path / "data").iterdir()}
    assert not [name for name in left if name.endswith(".part")]
    for name in ("manifest.parquet", "taxa.json", "report.json", "report.html"):
        assert (tmp_path / "data" / name).read_bytes() == before[name], name


@pytest.mark.slow
def test_the_program_runs_as_a_file_from_anywhere_and_as_a_module(pictures, tmp_path):
    ended = start_program("prepare.py", "folder", pictures, "--out", "as_file", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    ran(sys.executable, "-m", "training.prepare", "folder", pictures, "--out", tmp_path / "as_module", check=True)
    assert split_of_each(tmp_path / "as_file") == split_of_each(tmp_path / "as_module")


def test_official_splits_common_names_and_small_classes_are_told_on_the_terminal(tmp_path, capsys):
    root = tmp_path / "flowers"
    flowers = {f"{number}. {name}": look for number, (name, look) in enumerate(FLOWERS.items())}
    write_pictures(root / "train", per_class=7, flowers=flowers)
    for picture in (root / "train").glob("*/0[456].jpg"):
        moved = root / "test" / picture.relative_to(root / "train")
        moved.parent.mkdir(parents=True, exist_ok=True)
        picture.rename(moved)
    prepare_folder(root, tmp_path / "data", near_copy_bits=0)
    printed = capsys.readouterr().out
    assert "21 pictures of 3 classes: 12 train, 9 test" in printed
    assert "cannot be read as plants, and so have no genus: 1 (Buttercup). " in printed
    assert "training pictures: 3 (" in printed
    assert "--validation-share 0.13 " in printed
    prepare_folder(root, tmp_path / "data", near_copy_bits=0, validation_share=0.13)
    printed = capsys.readouterr().out
    assert "21 pictures of 3 classes: 9 train, 3 validation, 9 test" in printed
    assert "too small for a validation picture" not in printed
    assert "Names will be guesses: a promise of how often they are right needs 300 calibration plants" in printed


def test_a_folder_with_train_and_val_alone_gets_its_test_pictures_from_train(tmp_path):
    root = write_pictures(tmp_path / "flowers" / "train", per_class=14)
    (root.parent / "val").mkdir()
    for name in FLOWERS:
        (root.parent / "val" / name).mkdir()
        for picture in ("10.jpg", "11.jpg", "12.jpg", "13.jpg"):
            (root / name / picture).rename(root.parent / "val" / name / picture)
    prepare_folder(root.parent, tmp_path / "data", near_copy_bits=0)
    found = Counter((path.partition("/")[0], split) for path, split in split_of_each(tmp_path / "data").items())
    assert found == {("train", "train"): 27, ("train", "test"): 3, ("val", "validation"): 12}


def test_the_next_command_is_printed_on_one_line_whatever_the_path_holds(tmp_path, capsys):
    root = write_pictures(tmp_path / "old [bold] pictures", per_class=4)
    (root / "Buttercup" / "page.jpg").write_bytes(b"<html>")
    out = tmp_path / ("a long name " * 12)
    prepare_folder(root, out)
    printed = capsys.readouterr().out
    assert f"training/train.py RECIPE --data {out}\n" in printed
    assert "Buttercup/page.jpg" in printed
