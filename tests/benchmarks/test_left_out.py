import csv

import pytest

from benchmarks.left_out import LIST, LeaveOut, leave_out
from models.errors import DataError
from tests.training.small import FLOWERS, write_pictures
from training.dataset.manifest import Manifest
from training.prepare import Folder, prepare


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    pictures, out = tmp_path_factory.mktemp("pictures"), tmp_path_factory.mktemp("data")
    write_pictures(pictures, per_class=6)
    prepare(Folder(pictures=pictures, out=out, workers=1, test_share=0.2, validation_share=0.2))
    return out


def test_the_smaller_data_has_neither_the_taxon_nor_its_photographs(data, tmp_path):
    leave_out(LeaveOut(data=data, out=tmp_path / "smaller", taxa=1))
    before, after = Manifest(data), Manifest(tmp_path / "smaller")
    (gone,) = {each.scientific_name for each in before.taxonomy.taxa} - {
        each.scientific_name for each in after.taxonomy.taxa
    }
    with (tmp_path / "smaller" / LIST).open(newline="") as stream:
        listed = list(csv.DictReader(stream))
    assert {row["scientific_name"] for row in listed} == {gone}
    assert len(listed) == len(before) - len(after) == 6
    assert all(after.place(row).file != listed[0]["path"] for row in range(len(after)))


@pytest.mark.parametrize("flags", [{}, {"taxa": len(FLOWERS)}, {"source": "another"}])
def test_all_taxa_or_none_cannot_be_left_out(data, tmp_path, flags):
    with pytest.raises(DataError, match="no taxa to leave out, or all"):
        leave_out(LeaveOut(data=data, out=tmp_path, **flags))
