from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from models.answer import Question, answer_plant
from models.outputs import Outputs
from models.ranking import output_probabilities, taxon_probabilities
from tests.models.tiny import taxonomy_of
from tests.training.fit.drawn_outputs import (
    NOISE,
    NUM_FEATURES,
    TAXONOMY,
    Drawn,
    answers,
    draw_outputs,
    draw_plants,
    draw_things,
    drawn_sets,
    fit_drawn,
    on_disk,
)
from tests.training.small import make_taxonomy
from training.fit.model import fit_model, groups_of
from training.fit.names import (
    fit_temperature,
    plants_drawn,
    right_probabilities,
)


def planted(temperature, num_pictures=20_000, num_outputs=10):
    """Logits that are calibrated once divided by the temperature."""
    random = np.random.default_rng(3)
    true_logits = random.normal(0, 1.5, (num_pictures, num_outputs))
    chance = random.gumbel(size=true_logits.shape)
    return (true_logits * temperature).astype(np.float32), (true_logits + chance).argmax(axis=1)


@pytest.mark.parametrize("temperature", [0.3, 0.85, 1.0, 1.7, 6.0])
def test_a_known_temperature_is_recovered(temperature):
    logits, labels = planted(temperature)
    found = fit_temperature(Outputs(logits, labels=labels), make_taxonomy(10))
    assert found == pytest.approx(temperature, rel=0.05)


def test_a_plant_with_many_pictures_counts_as_one():
    sure, unsure = planted(0.5, 400), planted(4.0, 400)
    logits = np.concatenate([sure[0], *[unsure[0][:40]] * 10])
    labels = np.concatenate([sure[1], *[unsure[1][:40]] * 10])
    repeated = np.concatenate([np.arange(400), np.tile(np.arange(400, 440), 10)])
    found = fit_temperature(Outputs(logits, labels=labels, plants=repeated), make_taxonomy(10))
    once = fit_temperature(Outputs(logits[:440], labels=labels[:440]), make_taxonomy(10))
    assert found == pytest.approx(once, rel=1e-6)
    assert found < 0.9 * fit_temperature(Outputs(logits, labels=labels), make_taxonomy(10))


def of_sources(sources, taxonomy):
    """The taxonomy with an output of each source for each taxon."""
    names = [taxon.scientific_name for taxon in taxonomy.taxa]
    return taxonomy_of(*taxonomy.taxa, outputs=[(source, name) for source in sources for name in names])


def test_outputs_of_one_taxon_are_calibrated_as_one():
    taxonomy = make_taxonomy(5)
    doubled = of_sources("ab", taxonomy)
    logits, labels = planted(2.0, num_outputs=5)
    # Both outputs are the same plant, so it must not matter which of them is the label.
    spread = np.concatenate([logits, logits], axis=1)
    every = np.arange(len(labels))
    found = fit_temperature(Outputs(spread, labels=labels + 5 * (every % 2)), doubled)
    assert found == pytest.approx(2.0, rel=0.05)
    assert taxon_probabilities(output_probabilities(spread, found), doubled).shape == (len(labels), 5)


def test_the_temperature_stays_within_its_bounds():
    certain = np.array([[0.3, 0.0]] * 5, dtype=np.float32)
    for label, bound in enumerate((0.05, 20)):
        outputs = Outputs(certain, labels=np.full(5, label))
        assert fit_temperature(outputs, make_taxonomy(2)) == pytest.approx(bound, rel=1e-6)


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 300), st.floats(0.3, 4))
def test_the_likelihood_of_chunks_is_the_plain_one(num_pictures, values_at_once, temperature):
    taxonomy = make_taxonomy(7)
    tripled = of_sources("abc", taxonomy)
    random = np.random.default_rng(num_pictures)
    logits = random.normal(0, 3, (num_pictures, 21)).astype(np.float32)
    taxa = random.integers(0, 7, num_pictures)
    with mock.patch("models.outputs._VALUES_AT_ONCE", values_at_once):
        found = right_probabilities(logits, taxa, tripled, temperature)
    plain = taxon_probabilities(output_probabilities(logits, temperature), tripled)[np.arange(num_pictures), taxa]
    assert found == pytest.approx(plain, rel=1e-14)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.integers(1, 220))
def test_plants_are_drawn_whole_and_as_many_as_fit(plants, most):
    plants = np.array(plants)
    chosen = plants_drawn(plants, most)
    assert np.array_equal(chosen, plants_drawn(plants, most))
    assert len(chosen) <= most or len(np.unique(plants[chosen])) == 1
    assert np.array_equal(np.flatnonzero(np.isin(plants, plants[chosen])), chosen)
    if len(chosen) < len(plants):
        assert len(chosen) + np.bincount(plants).max() > most  # the next plant did not fit in


@pytest.fixture(scope="module")
def fitted():
    return fit_drawn(drawn_sets())


def figures_of(fitted):
    return {figure.name: figure for figure in fitted.metrics}


def test_95_percent_of_new_plants_are_kept_and_named_as_promised(fitted):
    plants = draw_plants(40, seed=11)
    found = answers(fitted, plants)
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
    figures = figures_of(fitted)
    low, high = figures["things_named"].interval_95
    assert low - 0.05 <= named <= high + 0.05
    assert figures["things_named"].value <= figures["things_accepted"].value


def test_plants_of_taxa_that_were_never_known_are_named_about_as_rarely_as_the_fit_says(fitted):
    """The network of these draws knows its taxa by the same directions, so leaving one out equals never having it."""
    new = np.random.default_rng(99).normal(size=(40, NUM_FEATURES)).repeat(10, axis=0)
    noise = np.random.default_rng(14).normal(0, NOISE, new.shape)
    found = answers(fitted, draw_outputs(new + noise))
    named = np.mean([each.verdict.rank == "species" for each in found])
    figures = figures_of(fitted)
    low, high = figures["left_out_named_species"].interval_95
    assert low - 0.05 <= named <= high + 0.05
    assert named < 0.2
    assert figures["left_out_auroc"].value > 0.8


def test_a_choice_without_the_plant_names_no_more_species_than_strangers_get(fitted):
    plants = draw_plants(10, seed=21)
    unknown = np.random.default_rng(99).normal(size=(40, NUM_FEATURES)).repeat(5, axis=0)
    strangers = draw_outputs(unknown + np.random.default_rng(14).normal(0, NOISE, unknown.shape))
    assert sum(each.verdict.rank == "species" for each in answers(fitted, strangers)) == 26
    random = np.random.default_rng(0)

    def num_named(num_others, own):
        """Species that are named for the 200 plants, and how many of these are right."""
        named = []
        for logits, features, label in zip(plants.logits, plants.features, plants.labels, strict=True):
            others = random.choice(np.delete(np.arange(20), label), num_others, replace=False)
            question = Question(allowed_T=np.isin(np.arange(20), [*others, *[label] * own]))
            verdict = answer_plant(logits[None], features[None], fitted.model, question).verdict
            named += [verdict.name == TAXONOMY.taxa[label].scientific_name] * (verdict.rank == "species")
        return len(named), sum(named)

    assert [num_named(num_others, own=False)[0] for num_others in (1, 2, 19)] == [0, 2, 10]
    assert num_named(19, own=True) == (106, 101)
    assert num_named(2, own=True) == (130, 128)


def test_with_one_taxon_nothing_can_be_left_out():
    taxonomy, plants = make_taxonomy(1), draw_plants(10, seed=1)
    one = Outputs(plants.logits[:, :1], plants.features)
    drawn = Drawn(one, manifest=SimpleNamespace(taxonomy=taxonomy))
    sets = drawn_sets(calibration=drawn, plants=np.arange(100), training=drawn, with_negatives=False)
    fitted = fit_drawn(sets)
    assert (fitted.metrics, fitted.model.calibration.fitted_on.num_plants) == ((), 100)  # of 200 pictures


def test_candidate_sets_hold_the_right_taxon_as_often_as_asked(fitted):
    plants = draw_plants(40, seed=13)
    found = answers(fitted, plants, Question(coverage=0.9))
    held = [
        TAXONOMY.taxa[label] in [each.taxon for each in answer.candidates.taxa]
        for answer, label in zip(found, plants.labels, strict=True)
    ]
    assert np.mean(held) == pytest.approx(0.9, abs=0.04)


def test_a_taxon_without_training_pictures_has_a_prior():
    kept = np.arange(570)  # all of 30 pictures but those of the last taxon
    fitted = fit_drawn(drawn_sets(training=Drawn(draw_plants(30, seed=0).choose(kept)), with_negatives=False))
    assert fitted.model.calibration.conformal.prior_T == pytest.approx(np.array([30] * 19 + [1]) / 571)


def test_tables_of_outputs_on_disk_are_the_plain_ones(fitted, tmp_path, monkeypatch):
    plain, drawn = fitted, drawn_sets()
    monkeypatch.setattr("models.outputs._VALUES_AT_ONCE", 300)
    for part in (drawn.calibration, drawn.training, drawn.negatives):
        part.outputs = on_disk(part.outputs, tmp_path)
    stored = fit_drawn(drawn)
    assert (stored.thresholds, stored.metrics[-2:]) == (plain.thresholds, plain.metrics[-2:])
    for name in ("conformal", "features", "familiarity", "plant_head", "cutoffs"):
        tables = [getattr(fit.model.calibration, name) for fit in (stored, plain)]
        for field in tables[0].__struct_fields__:
            found, expected = (getattr(table, field) for table in tables)
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-5), f"{name} {field}"


def test_guesses_count_the_calibration_plants_that_are_answered_so(monkeypatch):
    monkeypatch.setattr("training.fit.model.LEAST_IN_DOUBT", 10)
    families = [replace(taxon, family=f"Family{at // 5}") for at, taxon in enumerate(TAXONOMY.taxa)]
    taxonomy = replace(TAXONOMY, taxa=tuple(families))
    plants = draw_plants(40, seed=1)
    fitted = fit_drawn(drawn_sets(calibration=Drawn(plants, manifest=SimpleNamespace(taxonomy=taxonomy))))
    given = {guess: [] for guess in fitted.model.guesses}
    for answer, label in zip(answers(fitted, plants, Question(top_k=3)), plants.labels, strict=True):
        if (guess := answer.guess) is not None:
            taxon = families[label]
            likeliest = [each.taxon for each in answer.taxa]
            first = answer.families[0].name == taxon.family if guess.rank == "family" else likeliest[0] == taxon
            given[guess].append([first, taxon in likeliest])
    assert {guess.rank for guess in given} == {"species", "family"}
    for guess, hits in given.items():
        first, three = np.mean(hits, axis=0)
        one = 1 / guess.num_plants  # the score of the plant on the limit may round to either side
        assert (guess.num_plants, guess.first) == (pytest.approx(len(hits), abs=1), pytest.approx(first, abs=one))
        assert guess.three == (None if guess.rank == "family" else pytest.approx(three, abs=one))


# ---- several pictures


def test_independent_pictures_add_up():
    """The drawn logits are log-likelihoods, so that those of n pictures are their sum, n times their mean."""
    sets = drawn_sets(with_negatives=False, calibration=Drawn(draw_plants(60, seed=1)), plants=np.arange(1200))
    model = fit_model(lambda pictures, **_: pictures.outputs, sets, {}).model
    assert [rule.num_pictures for rule in model.joint] == [2, 3, 4]
    ratios = [model.temperature / rule.temperature for rule in model.joint]
    assert ratios == pytest.approx([2, 3, 4], rel=0.2)
    assert ratios[2] == pytest.approx(4), "no group of four is mistaken, which proves no more than independence"
    assert not any(rule.of_one_plant for rule in model.joint)


@pytest.mark.parametrize("per_plant", [2, 5])  # the 240 plants of five pictures have 480 groups of two
def test_groups_are_of_one_plant_where_there_are_enough_and_share_no_picture(per_plant):
    sets = drawn_sets(
        with_negatives=False,
        calibration=Drawn(replace(draw_plants(60, seed=1), plants=np.arange(1200) // per_plant)),
        plants=np.arange(0, 1200, per_plant),
    )
    found = fit_model(lambda pictures, **_: pictures.outputs, sets, {}).model.joint
    assert [rule.of_one_plant for rule in found] == [per_plant == 2, False, False]
    keys = np.array([5, 7, 5, 5, 7, 5, 9])
    groups = groups_of(keys, 2)
    assert sorted(groups.ravel().tolist()) == [0, 1, 2, 3, 4, 5]
    assert (keys[groups] == keys[groups[:, :1]]).all()


def test_too_few_groups_have_no_rule():
    sets = drawn_sets(with_negatives=False)  # 800 pictures: 266 groups of three
    assert [rule.num_pictures for rule in fit_drawn(sets).model.joint] == [2]
