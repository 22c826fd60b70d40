import copy
import shutil

import pytest

from models.errors import DataError
from tests.training.small import make_taxonomy, write_data
from training.dataset.manifest import INDEX_FILE, MANIFEST_FILE, Manifest


@pytest.fixture
def copied(data, tmp_path):
    return shutil.copytree(data, tmp_path / "data")


def test_labels_are_positions_of_outputs_not_of_the_order_in_the_file(tmp_path):
    taxonomy = make_taxonomy(4)
    keys = [taxonomy.output_keys[at] for at in (3, 0, 2, 3)]
    pictures = [(f"{at}.jpg", key, "train") for at, key in enumerate(keys)]
    manifest = Manifest(write_data(tmp_path / "data", tmp_path, pictures, taxonomy))
    assert manifest.labels.tolist() == [3, 0, 2, 3]
    assert manifest.path(2) == tmp_path / "2.jpg"


def test_an_empty_split_is_an_error(tmp_path):
    taxonomy = make_taxonomy(1)
    pictures = [("a.jpg", taxonomy.output_keys[0], "train")]
    manifest = Manifest(write_data(tmp_path / "data", tmp_path, pictures, taxonomy))
    with pytest.raises(DataError, match="no validation pictures"):
        manifest.rows_of("validation")


def test_a_folder_that_was_never_prepared_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"run training/prepare\.py first"):
        Manifest(tmp_path)


def test_a_damaged_table_is_an_error(copied):
    (copied / MANIFEST_FILE).write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match="damaged"):
        Manifest(copied)


def test_damaged_taxa_are_an_error(copied):
    (copied / "taxa.json").write_text('{"taxonomy_version": "1", "taxa": [], "outputs": [], "typo": 1}')
    with pytest.raises(DataError, match="typo"):
        Manifest(copied)


def test_taxa_of_other_data_are_refused(copied, tmp_path):
    other = write_data(tmp_path / "other", tmp_path, [], make_taxonomy(3))
    shutil.copy(other / "taxa.json", copied / "taxa.json")
    with pytest.raises(DataError, match="do not belong together"):
        Manifest(copied)


def test_another_process_never_reads_other_rows_than_the_one_that_started_it(copied, tmp_path):
    reopen, arguments = Manifest(copied).__reduce__()  # what travels to another process
    assert reopen(*arguments).sha256 == Manifest(copied).sha256
    taxonomy = Manifest(copied).taxonomy
    write_data(copied, tmp_path, [("a.jpg", taxonomy.output_keys[0], "train")], taxonomy)
    assert len(reopen(*arguments)) == 36  # still mapped
    assert len(Manifest(copied)) == 1
    with pytest.raises(DataError, match="prepared again"):
        reopen(*arguments)


def test_a_read_only_folder_is_read(copied, monkeypatch):
    (copied / INDEX_FILE).unlink(missing_ok=True)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("training.dataset.manifest.replaced", refuse)
    assert len(Manifest(copied)) == 36
    assert len(copy.copy(Manifest(copied))) == 36
    assert not (copied / INDEX_FILE).exists()


def test_a_damaged_index_is_rewritten(copied):
    (copied / INDEX_FILE).write_bytes(b"half of it")
    assert len(Manifest(copied)) == 36
    assert (copied / INDEX_FILE).stat().st_size > 1000


def test_a_corrected_name_needs_no_new_manifest(copied, manifest):
    taxa = copied / "taxa.json"
    taxa.write_text(taxa.read_text().replace("Rosa rubra", "Rosa rubiginosa"))
    assert Manifest(copied).sha256 == manifest.sha256
    assert "Rosa rubiginosa" in [taxon.scientific_name for taxon in Manifest(copied).taxonomy.taxa]
