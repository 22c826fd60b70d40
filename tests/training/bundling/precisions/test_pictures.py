"""Which split each step of an export reads."""

import numpy as np
import pytest

from models.preprocess import InputSpec
from tests.training.small import make_taxonomy, write_data
from training.bundling.precisions import pictures
from training.bundling.precisions.evaluated_network import _table_data
from training.dataset.manifest import Manifest
from training.evaluation.stored_rows import Outputs

SPEC = InputSpec(height=32, width=32, train_px=32)


def sets_of(folder, *splits):
    """The sets of data with three pictures of each split, and the split of each row."""
    taxonomy = make_taxonomy(2)
    keys = taxonomy.output_keys
    rows = [(f"{split}{at}.png", keys[at % 2], split) for split in splits for at in range(3)]
    manifest = Manifest(write_data(folder / "data", folder, rows, taxonomy))
    sets = pictures.picture_sets([manifest], SPEC, calibration_pictures=2, feature_pictures=2, workers=0)
    return sets, manifest.table["split"].to_pylist()


@pytest.mark.parametrize("calibration", [("calibration",), ()])
def test_nothing_is_fitted_on_the_test_split(tmp_path, calibration):
    sets, split_of_row = sets_of(tmp_path, "train", "validation", "test", *calibration)
    found = {
        name: {split_of_row[row] for row in part.rows}
        for name, part in (
            ("ranges", sets.ranges),
            ("features", sets.features),
            ("validation", sets.validation),
            ("temperature", sets.temperature),
            ("test", sets.tests[0]),
        )
    }
    assert found == {
        "ranges": {"train"},
        "features": {"train"},
        "validation": {"validation"},
        "temperature": set(calibration) or {"validation"},
        "test": {"test"},
    }
    assert [len(each) for each in (sets.ranges, sets.features, sets.validation, sets.temperature)] == [2, 2, 3, 3]


def test_of_each_calibration_plant_one_picture_counts_in_the_tables(tmp_path):
    taxonomy = make_taxonomy(2)
    rows = [(f"{at}.png", taxonomy.output_keys[at % 2], "train" if at < 2 else "calibration") for at in range(12)]
    rows += [("validation.png", taxonomy.output_keys[0], "validation"), ("test.png", taxonomy.output_keys[0], "test")]
    groups = [
        "t0",
        "t1",
        "a",
        "b",
        "a",
        "b",
        "a",
        "b",
        "a",
        "b",
        "c",
        "d",
        "v",
        "w",
    ]  # four plants, two with 4 pictures
    manifest = Manifest(write_data(tmp_path / "data", tmp_path, rows, taxonomy, groups))
    sets = pictures.picture_sets([manifest], SPEC, calibration_pictures=2, feature_pictures=2, workers=0)

    class Rows:
        """Stands for a network file; the only feature of a picture is its row."""

        def outputs(self, of):
            return Outputs(np.eye(2, dtype="f4")[of.labels], of.rows[:, None].astype("f4"))

    data = _table_data(Rows(), sets)
    chosen = data.calibration.outputs.features[:][:, 0].astype(int)
    assert sorted(groups[row] for row in chosen) == ["a", "b", "c", "d"]
    assert data.calibration.labels.tolist() == manifest.labels[chosen].tolist()
    assert data.num_pictures == 10


def test_many_pictures_are_counted_on_standard_error_while_they_run(manifest, monkeypatch, capsys):
    validation = pictures.pictures_of(manifest, "validation", SPEC, 0)
    assert len(list(validation.pixels(2))) == 2
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(pictures, "_FEW_PICTURES", 0)
    assert len(list(validation.pixels(2))) == 2
    written, shown = capsys.readouterr()
    assert written == ""
    assert "validation split" in shown
    assert "100%" in shown
