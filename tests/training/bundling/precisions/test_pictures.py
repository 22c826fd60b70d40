"""Which split each step of an export reads."""

import pytest

from models.preprocess import InputSpec
from tests.training.small import make_taxonomy, write_data
from training.bundling.precisions import pictures
from training.dataset.manifest import Manifest

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
