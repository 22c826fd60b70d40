"""The description of the model says what was measured of it, with what is known of the error."""

import pytest

from tests.serving.web.examples import MODEL

ECE = {"name": "ece", "value": 0.08, "data": "flowers17, test split", "num_pictures": 272, "interval_95": None}


@pytest.fixture
def measured(page):
    return lambda model: {fact["name"]: fact["text"] for fact in page("facts.js", "measuredFacts", model)}


def test_calibration_error_is_the_one_of_the_network_that_runs(measured):
    facts = measured({**MODEL, "calibration": {**MODEL["calibration"], "ece": ECE}})
    assert facts["Average distance of the scores from the share of right names"].startswith("8 percentage points, on")
    assert len(facts) == len(MODEL["metrics"])
    facts = measured({**MODEL, "calibration": {**MODEL["calibration"], "ece": None}})
    assert not [name for name in facts if name.startswith("Average distance")]


@pytest.mark.parametrize("promises", [{}, {"species": None, "genus": None, "family": None}])
def test_nothing_is_proved_of_a_model_without_tables(page, promises):
    assert page("facts.js", "provedFacts", {**MODEL, "calibration": None, "promises": promises}) == []
