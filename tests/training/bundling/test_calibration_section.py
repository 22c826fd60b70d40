from training.bundling.calibration_section import calibration_section
from training.evaluation.reliability import ReliabilityBin

SURE = ReliabilityBin(low=14 / 15, num_pictures=40, confidence=0.97, accuracy=0.5)


def test_few_pictures_are_said_to_be_few():
    few = calibration_section(999, 900, "flowers, calibration split", {"all": [SURE]})
    many = calibration_section(1000, 900, "flowers, calibration split", {"all": [SURE]})
    assert "fitted on 999 pictures of 900 plants (flowers, calibration split)" in few
    assert "These are few" in few
    assert "These are few" not in many


def test_a_bar_shows_accuracy_and_confidence():
    section = calibration_section(5, 5, "data", {"all": [SURE]})
    assert "| 0.93 to 1.00 | 40 | 0.970 | 0.500 | `##########.........!` |" in section


def test_sources_are_drawn_where_there_are_several():
    assert calibration_section(5, 5, "data", {"all": [SURE], "a": [SURE]}).count("Reliability") == 1
    assert calibration_section(5, 5, "data", {"all": [SURE], "a": [SURE], "b": [SURE]}).count("Reliability") == 3
