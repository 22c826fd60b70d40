import pytest

from tests.models.tiny import bundle_record
from tests.training.comparison.color_bundles import prepare_flowers
from training.comparison.frozen_set import frozen_set
from training.comparison.held_out import held_out
from training.dataset.manifest import Manifest
from training.prepare import Folder, prepare


@pytest.fixture(scope="module")
def manifest(flowers):
    return Manifest(flowers)


@pytest.fixture(scope="module")
def same_pictures(flowers, tmp_path_factory):
    """The same files in another manifest, with other splits."""
    folder = tmp_path_factory.mktemp("again") / "data"
    prepare(Folder(pictures=flowers.parent / "flowers", out=folder, test_share=0.3, seed=7, workers=1))
    return Manifest(folder)


@pytest.fixture(scope="module")
def other_pictures(tmp_path_factory):
    return Manifest(prepare_flowers(tmp_path_factory.mktemp("others"), per_class=6))


def pictures_of(manifest, split="test"):
    return frozen_set(manifest, split, manifest.taxonomy, manifest.taxonomy)


def trained_with(sha256):
    return bundle_record(manifest_sha256=sha256)


def test_test_split_of_the_bundles_own_manifest_is_held_out(manifest):
    assert held_out(trained_with(manifest.sha256), pictures_of(manifest), ()).state == "verified"


def test_tables_of_other_data_are_named(manifest):
    record = bundle_record(manifest_sha256=manifest.sha256, other_data=True)
    assert "other data" in held_out(record, pictures_of(manifest), ()).explanation


@pytest.mark.parametrize("split", ["train", "validation"])
def test_other_splits_of_the_bundles_own_manifest_are_not(manifest, split):
    found = held_out(trained_with(manifest.sha256), pictures_of(manifest, split), ())
    assert (found.state, found.num_seen) == ("seen", len(manifest.rows_of(split)))


def test_calibration_pictures_of_the_bundle_are_not_held_out(flowers, tmp_path):
    prepare(Folder(pictures=flowers.parent / "flowers", out=tmp_path / "data", calibration_share=0.3, workers=1))
    manifest = Manifest(tmp_path / "data")
    found = held_out(trained_with(manifest.sha256), pictures_of(manifest, "calibration"), ())
    assert (found.state, found.num_seen) == ("seen", len(manifest.rows_of("calibration")))


def test_other_manifest_must_be_given(manifest, other_pictures):
    record = trained_with("a" * 64)
    assert held_out(record, pictures_of(manifest), ()).state == "unknown"
    assert held_out(record, pictures_of(manifest), [other_pictures]).state == "unknown"


def test_other_manifest_is_searched_for_the_pictures(manifest, same_pictures):
    found = held_out(trained_with(same_pictures.sha256), pictures_of(manifest), [same_pictures])
    used = {
        digest
        for digest, split in zip(
            same_pictures.table["sha256"].to_pylist(), same_pictures.table["split"].to_pylist(), strict=True
        )
        if split != "test"
    }
    tested = {manifest.table["sha256"][int(row)].as_py() for row in manifest.rows_of("test")}
    assert (found.state, found.num_seen) == ("seen", len(used & tested))
    assert 0 < found.num_seen < len(tested)


def test_bundle_that_records_no_manifest_is_taken_at_its_word(manifest, same_pictures, other_pictures):
    record = trained_with("")
    assert held_out(record, pictures_of(manifest), ()).state == "unknown"
    assert held_out(record, pictures_of(manifest), [same_pictures]).state == "seen"
    assert held_out(record, pictures_of(manifest), [manifest]).state == "stated"
