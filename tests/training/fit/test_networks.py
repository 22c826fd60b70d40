"""Release checks: which networks pass, and which split each step of an export reads."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from models.bundle_record import NetworkFile
from models.outputs import Outputs
from models.place import Where
from models.scoring import AnswerModel
from models.session import NetworkOutput
from tests.models.pictures import SPEC
from tests.training.small import make_taxonomy, write_data
from training.dataset.manifest import Manifest
from training.fit.model import picture_sets
from training.fit.networks import (
    PARITY_LIMIT,
    Candidate,
    agreement_check,
    difference_check,
    make_bf16,
    overflow_check,
)
from training.fit.record import describe_check


def predictions(named):
    """Predictions of pictures of the first of five taxa, with these taxa as the most likely."""
    logits = 2 * np.eye(5, dtype=np.float32)[named]
    return Outputs(logits).score(AnswerModel(make_taxonomy(5), 1.0))


def test_fp16_may_disagree_once_in_a_thousand_over_all_pictures():
    single = [predictions([0] * 600), predictions([1] * 400)]
    one, two = [0] * 600, [0] * 600
    one[5] = two[5] = two[6] = 1
    assert agreement_check([predictions(one), predictions([1] * 400)], single).passed
    check = agreement_check([predictions(two), predictions([1] * 400)], single)
    assert (check.passed, check.value, check.limit, check.at_least, check.num_pictures) == (
        False,
        0.998,
        0.999,
        True,
        1000,
    )


@pytest.mark.parametrize("name", NetworkOutput._fields)
def test_outputs_that_are_not_finite_fail(name):
    finite, other = (NetworkOutput(np.zeros((num, 5), "f4"), np.zeros((num, 2), "f4")) for num in (6, 4))
    assert overflow_check([finite, other]).passed
    overflowed = getattr(other, name)
    overflowed[1, 1], overflowed[3] = np.nan, np.inf
    check = overflow_check([finite, other])
    assert (check.passed, check.value, check.limit, check.num_pictures) == (False, 2, 0, 10)


@pytest.mark.parametrize(("logit", "difference"), [(0.0, 0.0), (np.log(0.51 / 0.49), 0.01), (np.nan, np.nan)])
def test_parity_is_that_of_the_picture_that_differs_most_and_nan_fails(logit, difference):
    exact, other = np.zeros((2, 2), dtype=np.float32), np.array([[0, 0], [logit, 0]], dtype=np.float32)
    check = difference_check("parity", other, exact, PARITY_LIMIT)
    assert check.value == pytest.approx(difference, abs=1e-6, nan_ok=True)
    assert check.passed == (difference == 0)


def sets_of(folder, *splits):
    """The sets of data with three pictures of each split, and the split of each row."""
    taxonomy = make_taxonomy(2)
    keys = taxonomy.output_keys
    rows = [(f"{split}{at}.png", keys[at % 2], split) for split in splits for at in range(3)]
    manifest = Manifest(write_data(folder / "data", folder, rows, taxonomy))
    sets = picture_sets(manifest, SPEC, workers=0)
    return sets, manifest.table["split"].to_pylist()


@pytest.mark.parametrize("calibration", [("calibration",), ()])
def test_nothing_is_fitted_on_the_test_split(tmp_path, calibration):
    sets, split_of_row = sets_of(tmp_path, "train", "validation", "test", *calibration)
    found = {
        name: {split_of_row[row] for row in part.rows}
        for name, part in (
            ("training", sets.training),
            ("validation", sets.validation),
            ("calibration", sets.calibration),
            ("test", sets.test),
        )
    }
    assert found == {
        "training": {"train"},
        "validation": {"validation"},
        "calibration": set(calibration) or {"validation"},
        "test": {"test"},
    }
    assert [len(each) for each in (sets.training, sets.validation, sets.calibration)] == [3, 3, 3]


@pytest.mark.parametrize("other_data", [False, True])
@pytest.mark.parametrize("calibration", [("calibration",), ()])
def test_only_plants_that_neither_trained_the_network_nor_chose_it_prove_something(tmp_path, calibration, other_data):
    sets, _ = sets_of(tmp_path, "train", "validation", "test", *calibration)
    assert replace(sets, other_data=other_data).proves == (bool(calibration) and not other_data)


GROUPS = list("rsababababcdvvw")  # of the calibration pictures those of four plants, two with 4 pictures


def several_pictures_of_a_plant(tmp_path, **columns):
    """Two training pictures, ten of the calibration plants, one plant for validation, and one for the test."""
    keys = make_taxonomy(2).output_keys
    splits = ["train"] * 2 + ["calibration"] * 10 + ["validation"] * 2 + ["test"]
    given = [(f"{at}.png", keys[at % 2], split) for at, split in enumerate(splits)]
    manifest = Manifest(write_data(tmp_path / "data", tmp_path, given, make_taxonomy(2), GROUPS, **columns))
    return picture_sets(manifest, SPEC, workers=0)


def test_of_each_plant_one_picture_counts_in_tables_and_heads(tmp_path):
    sets = several_pictures_of_a_plant(tmp_path)
    assert sets.training.rows.tolist() == [0, 1]
    assert sorted(GROUPS[row] for row in sets.calibration.rows[sets.plants]) == ["a", "b", "c", "d"]
    assert len(sets.calibration) == 10
    assert len(sets.heads) == 1
    assert set(sets.heads.rows) < {12, 13}
    assert sets.place is None


def test_the_prior_counts_training_pictures_and_a_plant_stands_where_its_picture_was_taken(tmp_path, monkeypatch):
    """Training in Berlin, calibration in Paris, test in Sydney; each calibration picture has a longitude of its own."""
    monkeypatch.setattr("training.fit.place.LEAST_RECORDS", 2)
    longitude = [13.4, 13.4, *(2.25 + number / 32 for number in range(10)), 151.2, 151.2, 151.2]
    longitude[10] = None  # the only picture of plant c
    latitude = [52.5] * 2 + [48.9] * 10 + [-33.9] * 3
    sets = several_pictures_of_a_plant(tmp_path, latitude=latitude, longitude=longitude)
    prior = sets.place.prior
    assert [prior.records(Where(*place), 0) for place in ((52.5, 13.4), (48.9, 2.4), (-33.9, 151.2))] == [
        (1, 2),
        (0, 0),
        (0, 0),
    ]
    assert prior.counts.tolist() == [1, 1]
    chosen = sets.calibration.rows[sets.plants]
    assert sets.place.has_place_N.tolist() == [GROUPS[row] != "c" for row in chosen]
    assert sets.place.records.longitude_N.tolist() == [longitude[row] for row in chosen if row != 10]


def test_the_description_says_whether_the_limit_is_a_minimum_or_maximum():
    one = [predictions([0] * 4)]
    assert "1 (at least 0.999, 4 pictures)" in describe_check(agreement_check(one, one))
    assert "0 (at most 0.001, 1 pictures)" in describe_check(
        difference_check("parity", *[np.zeros((1, 2), "f4")] * 2, PARITY_LIMIT)
    )


@pytest.mark.parametrize(("wins", "passes"), [(False, False), (True, True)])
def test_bf16_may_win_20_of_1000_pictures_but_not_lose_them(wins, passes, monkeypatch):
    all_right, some_wrong = predictions([0] * 1000), predictions([1] * 20 + [0] * 980)
    single, half = (some_wrong, all_right) if wins else (all_right, some_wrong)

    def network(_):
        return Outputs(np.zeros((1, 5), "f4"))

    file = NetworkFile("model.onnx", 1.0)
    one, other = (  # on test pictures bf16 loses, which is told and does not decide
        Candidate(Path("model.onnx"), network, None, found, None, file) for found in (all_right, some_wrong)
    )
    monkeypatch.setattr("training.fit.networks.evaluate_network", lambda *_: other)
    monkeypatch.setattr(Candidate, "predictions_on", lambda candidate, _: half if candidate is other else single)
    pictures = SimpleNamespace(name="drawn")
    made = make_bf16(one, SimpleNamespace(validation=pictures, test=pictures), Path(), {})
    assert isinstance(made, Candidate) == passes
    (lost,) = made.network.metrics if passes else made.metrics
    assert (lost.name, lost.value) == ("top1_taxon_lost_against_fp32", 0.02)
