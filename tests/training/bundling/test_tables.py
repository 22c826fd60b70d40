import numpy as np
import pytest
from msgspec.structs import replace

from models.answer import AnswerModel, Question, answer_plant
from models.ranking import Promises
from tests.training.bundling.drawn_outputs import (
    NOISE,
    NUM_FEATURES,
    TAXONOMY,
    draw_outputs,
    draw_plants,
    draw_things,
    table_data,
)
from tests.training.small import make_taxonomy
from training.bundling.tables import fit_tables, training_prior
from training.evaluation.stored_rows import Outputs, store_outputs


@pytest.fixture(scope="module")
def fitted():
    return fit_tables(table_data(), 1.0, {})


def answers(fitted, outputs, question=None):
    limits = fitted.thresholds
    model = AnswerModel(TAXONOMY, 1.0, limits.thresholds, limits.promises, fitted.calibration)
    return [
        answer_plant(logits[None], features[None], model, question or Question())
        for logits, features in zip(*outputs, strict=True)
    ]


def test_95_percent_of_new_plants_are_kept_and_named_as_promised(fitted):
    plants = draw_plants(40, seed=11)
    found = answers(fitted, plants.outputs)
    rejected = np.mean([each.verdict.rank == "not_a_plant" for each in found])
    assert rejected < 0.08
    named = [
        each.verdict.name == TAXONOMY.taxa[label].scientific_name
        for each, label in zip(found, plants.labels, strict=True)
        if each.verdict.rank == "species"
    ]
    assert fitted.thresholds.species.promise is not None
    assert len(named) > 300
    assert np.mean(named) > 0.94


def test_new_things_are_named_as_often_as_cross_validation_says(fitted):
    found = answers(fitted, draw_things(400, seed=12))
    named = np.mean([each.verdict.name is not None for each in found])
    low, high = fitted.rejection.named.interval_95
    assert low - 0.05 <= named <= high + 0.05
    assert fitted.rejection.named.value <= fitted.rejection.accepted.value


def test_plants_of_taxa_that_were_never_known_are_named_about_as_rarely_as_the_fit_says(fitted):
    """The network of these draws knows its taxa by the same directions, so leaving one out equals never having it."""
    new = np.random.default_rng(99).normal(size=(40, NUM_FEATURES)).repeat(10, axis=0)
    noise = np.random.default_rng(14).normal(0, NOISE, new.shape)
    found = answers(fitted, draw_outputs(new + noise))
    named = np.mean([each.verdict.rank == "species" for each in found])
    low, high = fitted.left_out.named_species.interval_95
    assert low - 0.05 <= named <= high + 0.05
    assert named < 0.2
    assert fitted.left_out.auroc > 0.8


def test_with_one_taxon_nothing_can_be_left_out():
    taxonomy, plants = make_taxonomy(1), draw_plants(10, seed=1)
    one = replace(
        plants,
        outputs=Outputs(plants.outputs.logits[:, :1], plants.outputs.features),
        labels=np.zeros(len(plants.labels), dtype=np.int64),
    )
    data = table_data(taxonomy=taxonomy, calibration=one, training=one, with_negatives=False, prior_T=np.ones(1))
    assert fit_tables(data, 1.0, {}).left_out is None


def test_candidate_sets_hold_the_right_taxon_as_often_as_asked(fitted):
    plants = draw_plants(40, seed=13)
    found = answers(fitted, plants.outputs, Question(coverage=0.9))
    held = [
        TAXONOMY.taxa[label] in [each.taxon for each in answer.candidates.taxa]
        for answer, label in zip(found, plants.labels, strict=True)
    ]
    assert np.mean(held) == pytest.approx(0.9, abs=0.04)


def test_without_pictures_of_other_things_nothing_is_said_about_them():
    fitted = fit_tables(table_data(with_negatives=False), 1.0, {})
    assert fitted.rejection is None
    assert fitted.calibration.plant_head is None
    assert fitted.calibration.cutoffs.plant == 0
    assert fitted.calibration.fitted_on.num_negatives == 0
    assert answers(fitted, draw_things(3, seed=1))[0].plant_score is None


def test_plants_that_the_network_may_have_been_trained_on_promise_nothing(fitted):
    other = fit_tables(table_data(with_negatives=False, other_data=True), 1.0, {}).thresholds
    same = fit_tables(table_data(with_negatives=False), 1.0, {}).thresholds
    assert same.promises.species is not None
    assert (other.promises, other.thresholds) == (Promises(), same.thresholds)


def test_the_figures_of_rejection_say_what_they_were_measured_on(fitted):
    assert fitted.rejection.data == "pictures without a plant"


def test_the_fit_says_when_and_on_what(fitted):
    facts = fitted.calibration.fitted_on
    assert (facts.data, facts.num_plants, facts.num_pictures, facts.num_negatives) == ("drawn", 800, 900, 300)
    assert len(facts.date) == len("2026-11-22")


def test_a_taxon_without_training_pictures_has_a_prior():
    prior = training_prior(np.array([0, 0, 0, 1]), make_taxonomy(3))
    assert prior.tolist() == pytest.approx([3 / 5, 1 / 5, 1 / 5])


def test_tables_of_outputs_on_disk_are_the_plain_ones(fitted, tmp_path, monkeypatch):
    plain, drawn = fitted, table_data()
    monkeypatch.setattr("training.evaluation.stored_rows._VALUES_AT_ONCE", 300)
    on_disk = {
        name: replace(getattr(drawn, name), outputs=store_outputs([getattr(drawn, name).outputs], tmp_path))
        for name in ("calibration", "training")
    }
    stored = fit_tables(replace(drawn, **on_disk, negatives=store_outputs([drawn.negatives])), 1.0, {})
    assert (stored.thresholds, stored.rejection) == (plain.thresholds, plain.rejection)
    for name in ("conformal", "features", "familiarity", "plant_head", "cutoffs"):
        tables = [getattr(fit.calibration, name) for fit in (stored, plain)]
        for field in tables[0].__struct_fields__:
            found, expected = (getattr(table, field) for table in tables)
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-5), f"{name} {field}"
