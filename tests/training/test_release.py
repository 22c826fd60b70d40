import json

import msgspec
import pytest
import tyro

from models.bundle import load_bundle
from models.errors import BundleError, DataError, RecipeError
from tests.training.comparison.color_bundles import good_weights, prepare_flowers, seal_color_bundle
from tests.training.small import require_one_line, start_program
from training.actions.release import run
from training.commands.release import Command
from training.dataset.manifest import Manifest


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    return prepare_flowers(tmp_path_factory.mktemp("flowers"))


@pytest.fixture(scope="module")
def bundles(flowers, tmp_path_factory):
    """The folders of a bundle that confuses two flowers, and of a good one."""
    folder, good = tmp_path_factory.mktemp("bundles"), good_weights(Manifest(flowers))
    bad = seal_color_bundle(folder / "bad", flowers, version="1", weights=good[:, [1, 0, 2]])
    return bad.folder, seal_color_bundle(folder / "good", flowers, version="2", weights=good).folder


def release(*arguments):
    run(tyro.cli(Command, args=[str(argument) for argument in arguments]))


def test_compare_writes_page_and_json(bundles, flowers, tmp_path, capsys):
    options = ["--data", flowers, "--out", tmp_path / "out", "--workers", 0, "--speed-pairs", 1]
    release("compare", *bundles, *options)
    facts = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert facts["accuracy"]["micro_top1"]["new"] == pytest.approx(1)
    assert (tmp_path / "out" / "comparison.html").read_text().startswith("<!doctype html>")
    printed = capsys.readouterr().out
    assert "micro top1" in printed
    assert "would be refused" not in printed


def test_compare_says_what_a_promotion_would_say(bundles, flowers, capsys):
    release("compare", *reversed(bundles), "--data", flowers, "--workers", 0, "--speed-pairs", 0)
    assert capsys.readouterr().out.count("A promotion would be refused.") == 2


def test_things_are_read_from_the_test_rows_of_a_list(bundles, flowers, tmp_path):
    manifest = Manifest(flowers)
    rows = [f"{manifest.path(row)},{split}" for row, split in enumerate(["fit", "test", "test"])]
    (tmp_path / "labels.csv").write_text("\n".join(["path,split", *rows]))
    options = ["--data", flowers, "--out", tmp_path, "--workers", 0, "--speed-pairs", 0, "--negatives", tmp_path]
    release("compare", *bundles, *options)
    assert json.loads((tmp_path / "comparison.json").read_text())["num_things"] == 2


def test_registry_from_first_promotion_to_rollback(bundles, flowers, tmp_path, capsys):
    registry, options = tmp_path / "registry", ["--data", flowers, "--workers", 0, "--speed-pairs", 0]
    release("promote", bundles[0], registry)
    release("promote", bundles[1], registry, *options)
    assert load_bundle(registry / "current").record.version == "2"
    with pytest.raises(BundleError, match="not promoted"):
        release("promote", bundles[0], registry, *options)
    release("rollback", registry)
    assert load_bundle(registry / "current").record.version == "1"
    capsys.readouterr()
    release("list", registry)
    printed = capsys.readouterr().out
    assert printed.count("promote: ") == 2
    assert printed.count("rollback: ") == 1
    assert "interrupted" not in printed


def test_small_set_and_other_taxa_leave_the_decision_to_a_person_who_sees_the_figures(
    bundles, flowers, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "400")
    manifest, registry = Manifest(flowers), tmp_path / "registry"
    taxonomy = manifest.taxonomy
    other = msgspec.structs.replace(taxonomy.taxa[2], taxon_id="bellis-perennis", scientific_name="Bellis perennis")
    outputs = (*taxonomy.outputs[:2], msgspec.structs.replace(taxonomy.outputs[2], taxon_id=other.taxon_id))
    taxonomy = msgspec.structs.replace(taxonomy, taxa=(*taxonomy.taxa[:2], other), outputs=outputs)
    new = seal_color_bundle(tmp_path / "new", flowers, version="3", taxonomy=taxonomy).folder
    options = ["--data", flowers, "--workers", 0, "--speed-pairs", 0]
    release("promote", bundles[1], registry)
    with pytest.raises(BundleError, match="--accept-uncertain"):
        release("promote", new, registry, *options)
    printed = capsys.readouterr().out
    num_compared = len(manifest.rows_of("test")) - 10
    assert f"Compared on {num_compared} pictures of 2 taxa that both bundles know" in printed
    assert "New taxa (1): Bellis perennis." in printed
    assert "Gone taxa (1): " in printed
    assert "10 pictures were left out" in printed
    assert "micro top1" in printed
    release("promote", new, registry, *options, "--accept-uncertain", "daisies matter")
    release("list", registry)
    assert "(accepted: daisies matter)" in capsys.readouterr().out


def test_a_damaged_bundle_does_not_hide_the_others(bundles, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    release("promote", bundles[0], tmp_path / "registry")
    (entry,) = (path for path in (tmp_path / "registry").glob("*-*") if path.is_dir())
    (entry / "taxa.json").write_text("{}")
    capsys.readouterr()
    release("list", tmp_path / "registry")
    printed = capsys.readouterr().out
    assert "damaged" in printed
    assert "SHA-256 of taxa.json differs" in printed
    assert "promote: none ->" in printed


def test_list_needs_a_registry(tmp_path):
    with pytest.raises(DataError, match="no registry"):
        release("list", tmp_path / "nothing")


def test_flag_out_of_range_is_an_error(bundles, flowers):
    with pytest.raises(RecipeError, match="few_shot"):
        release("compare", *bundles, "--data", flowers, "--few-shot", 0)


@pytest.mark.slow
def test_refusal_is_one_line_and_an_exit_code(tmp_path):
    done = start_program("release.py", "rollback", tmp_path / "nothing")
    assert done.returncode == 1
    require_one_line(done.stderr, "bad_data")
