"""A bundle of data with coordinates has a prior of place, and the service's answers use it."""

import numpy as np
import pytest
from msgspec.structs import replace

from models.answer import Question, answer_plant
from models.bundle import WITH_PLACE
from models.place import Where
from tests.training.small import with_columns
from training.export import export
from training.fit import place

BERLIN, SYDNEY = (52.5, 13.4), (-33.9, 151.2)


@pytest.fixture
def placed(exporting, manifest, monkeypatch):
    """Every second class was photographed in Berlin, the others in Sydney; few pictures suffice."""
    is_east = manifest.taxonomy.taxon_of_output[manifest.labels] % 2 == 1
    monkeypatch.setattr(place, "LEAST_RECORDS", 1)
    monkeypatch.setattr(place, "LEAST_PLANTS", 1)
    monkeypatch.setattr(place, "MOST_LOST", 1.0)
    columns = {
        name: np.where(is_east, *values).tolist()
        for name, values in (("latitude", (SYDNEY[0], BERLIN[0])), ("longitude", (SYDNEY[1], BERLIN[1])))
    }
    # Enough calibration plants for two halves.
    columns["split"] = np.where(np.arange(len(is_east)) % 3 == 0, "calibration", manifest.table["split"]).tolist()
    data = with_columns(manifest, exporting.out.with_name("data"), **columns)
    return export(replace(exporting, data=data, out=exporting.out.with_name("placed")))


def test_a_bundle_of_data_with_places_has_a_prior_and_answers_with_it(placed):
    network = placed.network("fp32")
    assert network.place is not None
    assert placed.calibration(f"fp32{WITH_PLACE}").conformal is not None
    assert {"top1_taxon_place_off", "top1_taxon_place_on", "ece_place_off", "ece_place_on"} <= {
        metric.name for metric in placed.record.metrics
    }
    assert "Place and season: learned from" in (placed.folder / "MODEL_CARD.md").read_text()
    model = placed.answer_model("fp32")
    logits, features = np.zeros((1, len(placed.taxonomy.outputs))), np.ones((1, 256))
    named = {}
    for where in (None, Where(*BERLIN), Where(*SYDNEY)):
        answer = answer_plant(logits, features, model, Question(where=where))
        named[where] = placed.taxonomy.taxa.index(answer.taxa[0].taxon)
    assert named[Where(*BERLIN)] % 2 == 0
    assert named[Where(*SYDNEY)] % 2 == 1


def test_a_bundle_of_data_without_places_has_none(bundle):
    assert bundle.network("fp32").place is None
    assert "place" not in bundle.record.parts
