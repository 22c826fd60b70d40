"""The description of the model says what was measured of it, with what is known of the error."""

import pytest

from tests.serving.web.examples import MODEL

ECE = {"name": "ece", "value": 0.08, "data": "flowers17, test split", "num_pictures": 272, "interval_95": None}


@pytest.fixture
def measured(page):
    return lambda model: {fact["name"]: fact["text"] for fact in page("facts.js", "measuredFacts", model)}


def test_figures_have_their_interval_and_their_pictures(measured):
    facts = measured(MODEL)
    assert facts["First name right"] == "81% (95% interval 76 to 86), on 272 pictures of flowers17, test split"
    told = facts["Average distance of the scores from the share of right names"]
    assert told.startswith("3.4 percentage points (95% interval 2.1 to 6), on 272 pictures")


def test_calibration_error_is_the_one_of_the_network_that_runs(measured):
    facts = measured({**MODEL, "calibration": {**MODEL["calibration"], "ece": ECE}})
    assert facts["Average distance of the scores from the share of right names"].startswith("8 percentage points, on")
    assert len(facts) == len(MODEL["metrics"])
    facts = measured({**MODEL, "calibration": {**MODEL["calibration"], "ece": None}})
    assert not [name for name in facts if name.startswith("Average distance")]


def test_figure_that_is_no_share_has_no_unit(measured):
    metrics = [{**ECE, "name": "things_auroc", "value": 0.98765}]
    facts = measured({**MODEL, "calibration": None, "metrics": metrics})
    assert facts == {"things auroc": "0.988, on 272 pictures of flowers17, test split"}


def test_promises_name_their_tests_and_the_calibration_its_pictures(page):
    facts = page("facts.js", "provedFacts", MODEL)
    assert facts[0].startswith("In a test, 812 plants were named by species, and 21 wrongly.")
    assert facts[1:] == [
        "Lists of candidates for 90% held the right plant in 93% of cases (95% interval 89 to 95), "
        "on 272 pictures of flowers17, test split.",
        "The scores were calibrated on 153 pictures of 150 plants: flowers17, calibration split, 2026-11-22.",
    ]


@pytest.mark.parametrize("promises", [{}, {"species": None, "genus": None, "family": None}])
def test_nothing_is_proved_of_a_model_without_tables(page, promises):
    assert page("facts.js", "provedFacts", {**MODEL, "calibration": None, "promises": promises}) == []
