"""The verdicts on many pictures are those that the service gives on each alone."""

from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.answer import AnswerModel, Question, answer_plant
from models.ranking import RANKS, Thresholds
from tests.training.bundling.drawn_outputs import TAXONOMY, draw_plants, draw_things, table_data
from training.bundling.tables import fit_tables
from training.evaluation.answer_metrics import is_right
from training.evaluation.picture_scores import distances, score_pictures, verdicts_of
from training.evaluation.stored_rows import Outputs, store_outputs

FITTED = fit_tables(table_data(), 1.0, {})
PLANTS, THINGS = draw_plants(2, seed=51), draw_things(20, seed=52)
LABELS = np.concatenate([PLANTS.labels, np.zeros(20, dtype=np.int64)])
PICTURES = Outputs(*(np.concatenate(pair) for pair in zip(PLANTS.outputs, THINGS, strict=True)))
WITH_FAMILIES = msgspec.structs.replace(
    TAXONOMY,
    taxa=tuple(
        msgspec.structs.replace(
            taxon,
            genus=f"Genus{at // 3}",
            family="" if at % 7 == 3 else f"Family{at // 6}",
            rank="genus" if at in {2, 9} else "species",
        )
        for at, taxon in enumerate(TAXONOMY.taxa)
    ),
)


def alone(model):
    """The verdicts of the service on each picture."""
    return [
        answer_plant(logits[None], features[None], model, Question(top_k=1)).verdict
        for logits, features in zip(*PICTURES, strict=True)
    ]


@settings(max_examples=25, deadline=None)
@given(
    thresholds=st.builds(Thresholds, *[st.sampled_from([0.0, 0.05, 0.3, 0.6, 0.9, 1.0])] * 3),
    left_out=st.sets(st.sampled_from(["plant_head", "familiarity", "cutoffs", "features"])),
    temperature=st.floats(0.3, 5),
    taxonomy=st.sampled_from([TAXONOMY, WITH_FAMILIES]),
    values_at_once=st.integers(1, 4000),
)
def test_verdicts_on_many_pictures_are_those_of_the_service(
    thresholds, left_out, temperature, taxonomy, values_at_once
):
    tables = msgspec.structs.replace(FITTED.calibration, **dict.fromkeys(left_out))
    model = AnswerModel(taxonomy, temperature, thresholds, calibration=tables)
    with mock.patch("training.evaluation.stored_rows._VALUES_AT_ONCE", values_at_once):
        found = verdicts_of(score_pictures(PICTURES, LABELS, model), model)
    expected = alone(model)
    assert found.rank_N.tolist() == [verdict.rank for verdict in expected]
    taxa = [taxonomy.taxa[taxonomy.taxon_of_output[label]] for label in LABELS]
    assert found.right_N.tolist() == [is_right(*pair) for pair in zip(expected, taxa, strict=True)]
    assert sum(found.count(rank) for rank in (*RANKS, "uncertain", "not_a_plant")) == len(LABELS)


def test_distances_of_chunks_on_disk_are_those_of_all_pictures(monkeypatch):
    plain = FITTED.calibration.features.distances(PICTURES.features)
    monkeypatch.setattr("training.evaluation.stored_rows._VALUES_AT_ONCE", 300)
    found = distances(FITTED.calibration.features, store_outputs([PICTURES]).features)
    assert found == pytest.approx(plain, rel=1e-4)
