"""The tables of a bundle survive being written and read, and a damaged file gives one clear error."""

import numpy as np
import pytest

from models.calibration import (
    Calibration,
    Cutoffs,
    FamiliarityTable,
    FeatureTable,
    FittedOn,
    PlantHead,
    read_calibration,
    write_calibration,
)
from models.errors import BundleError
from tests.models.tiny import conformal_table

FITTED = FittedOn("drawn, calibration split", "2026-11-22", num_plants=3, num_pictures=4)


def full_calibration():
    features = FeatureTable(np.zeros(2), np.eye(2), np.ones(2), np.eye(2), np.ones((3, 2)))
    taxa_NT = np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    return Calibration(
        conformal=conformal_table(taxa_NT, np.array([0, 1]), np.array([0.5, 0.3, 0.2])),
        features=features,
        familiarity=FamiliarityTable(np.array([0.1, 0.2]), np.array([0.3, 0.4])),
        plant_head=PlantHead(np.ones(2, "f4"), 0.1, -0.2, 0.3),
        cutoffs=Cutoffs(plant=0.4, familiar=0.05),
        fitted_on=FITTED,
    )


def test_tables_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "calibration.npz"
    write_calibration(path, {"fp32": full_calibration(), "int8": Calibration(fitted_on=FITTED)})
    found = read_calibration(path)
    assert found.keys() == {"fp32", "int8"}
    assert found["int8"] == Calibration(fitted_on=FITTED)
    for table in ("conformal", "features", "familiarity", "plant_head"):
        written, read = (getattr(each, table) for each in (full_calibration(), found["fp32"]))
        for field in written.__struct_fields__:
            np.testing.assert_array_equal(getattr(read, field), getattr(written, field))
    assert (found["fp32"].cutoffs, found["fp32"].fitted_on) == (Cutoffs(plant=0.4, familiar=0.05), FITTED)


def test_the_same_tables_give_the_same_bytes(tmp_path):
    for name in ("a.npz", "b.npz"):
        write_calibration(tmp_path / name, {"fp32": full_calibration()})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_tables_and_fields_of_later_versions_are_ignored(tmp_path):
    path = tmp_path / "calibration.npz"
    np.savez(path, **{"fp32/later/field": np.ones(2), "fp32/cutoffs/plant": 0.5, "fp32/cutoffs/later": 1.0})
    assert read_calibration(path) == {"fp32": Calibration(cutoffs=Cutoffs(plant=0.5))}


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 half"])
def test_a_damaged_file_gives_one_clear_error(tmp_path, content):
    path = tmp_path / "calibration.npz"
    path.write_bytes(content)
    with pytest.raises(BundleError, match="cannot be read"):
        read_calibration(path)


def test_a_single_array_gives_one_clear_error(tmp_path):
    path = tmp_path / "calibration.npz"
    with path.open("wb") as stream:
        np.save(stream, np.ones(3))
    with pytest.raises(BundleError, match="cannot be read"):
        read_calibration(path)


def test_a_table_without_a_field_gives_one_clear_error(tmp_path):
    path = tmp_path / "calibration.npz"
    np.savez(path, **{"fp32/plant_head/bias": 0.5})
    with pytest.raises(BundleError, match="cannot be read"):
        read_calibration(path)


def with_changed(path, field, change):
    """Writes full tables in which one field is changed."""
    write_calibration(path, {"fp32": full_calibration()})
    arrays = dict(np.load(path))
    np.savez(path, **arrays | {f"fp32/{field}": np.asarray(change(arrays[f"fp32/{field}"]))})
    return path


def last_replaced(array, value):
    changed = np.array(array)
    changed.flat[-1] = value
    return changed


FIELDS = [
    f"{table}/{field}"
    for table in ("conformal", "features", "familiarity", "plant_head", "cutoffs")
    for field in getattr(full_calibration(), table).__struct_fields__
]


@pytest.mark.parametrize("field", [field for field in FIELDS if field != "conformal/num_plants_T"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused(tmp_path, field, value):
    path = with_changed(tmp_path / "calibration.npz", field, lambda array: last_replaced(array, value))
    with pytest.raises(BundleError, match=field.partition("/")[2]):
        read_calibration(path)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "change", [lambda array: array.astype("U"), lambda array: array.astype(complex), lambda array: array[None]]
)
def test_a_field_of_another_type_or_shape_is_refused(tmp_path, field, change):
    with pytest.raises(BundleError, match=field.partition("/")[2]):
        read_calibration(with_changed(tmp_path / "calibration.npz", field, change))


@pytest.mark.parametrize("field", [field for field in FIELDS if field.rpartition("_")[2].isupper()])
def test_arrays_that_are_empty_or_differ_in_length_are_refused(tmp_path, field):
    path = tmp_path / "calibration.npz"
    with pytest.raises(BundleError, match="does not fit its table"):
        read_calibration(with_changed(path, field, lambda array: array[:0]))
    if field not in {"features/mean_TD", "plant_head/weight_F"}:  # no other array of the table has their first length
        with pytest.raises(BundleError, match="does not fit its table"):
            read_calibration(with_changed(path, field, lambda array: np.concatenate([array, array])))


@pytest.mark.parametrize("field", ["cutoffs/plant", "cutoffs/familiar"])
@pytest.mark.parametrize("value", [-0.01, 1.01])
def test_a_cutoff_that_no_score_can_have_is_refused(tmp_path, field, value):
    with pytest.raises(BundleError, match=field.partition("/")[2]):
        read_calibration(with_changed(tmp_path / "calibration.npz", field, lambda _: value))


def test_pickled_objects_are_refused(tmp_path):
    path = tmp_path / "calibration.npz"
    np.savez(path, **{"fp32/conformal/prior_T": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(BundleError, match="cannot be read"):
        read_calibration(path)
