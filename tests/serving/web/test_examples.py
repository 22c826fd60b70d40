"""The answers that the tests of the page use have the fields that the service gives."""

import msgspec
import pytest

from serving.model_card import CalibrationFacts, ModelCard, UploadLimits
from serving.schemas import Identification
from tests.serving.web.examples import MODEL, STATES


@pytest.mark.parametrize("state", STATES)
def test_answer_has_exactly_the_fields_of_the_interface(state):
    whole = STATES[state]
    assert msgspec.json.decode(msgspec.json.encode(msgspec.convert(whole, Identification))) == whole


def test_description_of_the_model_has_fields_of_the_interface():
    assert MODEL.keys() <= set(ModelCard.__struct_fields__)
    assert MODEL["calibration"].keys() == set(CalibrationFacts.__struct_fields__)
    assert MODEL["limits"].keys() == set(UploadLimits.__struct_fields__)
