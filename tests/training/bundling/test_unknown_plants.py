"""Plants that a bundle does not know: what is known of their names, what they teach, and what judges the bundle."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from models.errors import DataError
from models.outputs import Outputs, RankScores
from models.scoring import AnswerModel
from tests.models.tiny import species, taxonomy_of
from tests.training.bundling.drawn_outputs import (
    NOISE,
    NUM_FEATURES,
    TAXONOMY,
    answers,
    draw_outputs,
    draw_plants,
    table_data,
)
from tests.training.small import make_taxonomy
from training.bundling.bundle_description import _network_file
from training.bundling.candidates import Candidate
from training.bundling.mistakes import mistaken_taxa
from training.bundling.rejection import HeadInputs, familiar_cutoff, fit_head
from training.bundling.tables import fit_tables
from training.bundling.thresholds import MIN_NAMED, FittedThreshold, fit_thresholds
from training.bundling.unknown_plants import (
    UnknownNames,
    UnknownPlants,
    drawn_among,
    names_of,
)
from training.loading.negatives import Negatives

KNOWN = taxonomy_of(species("Quercus robur", "Fagaceae"), species("Rosa canina", "Rosaceae"))


def looked_up(*names):
    paths = tuple(Path(f"{name}/a.jpg") for name in names)
    return names_of(Negatives(paths=paths, scientific_names=names, sources=(0,) * len(names)), KNOWN)


def test_genus_and_family_of_a_stranger_are_known_or_not():
    _, found = looked_up("Quercus suber", "Fagus sylvatica", "Musa acuminata", "")
    assert (found.near_M.tolist(), found.kin_M.tolist()) == ([True, False, False, False], [True, True, False, False])
    assert found.label_M[:2].tolist() == [0, 0]


def test_a_genus_stands_on_one_side_of_fit_and_judgment_and_both_sides_have_some():
    genera = [f"Genus{number} alba" for number in range(200)]
    _, found = looked_up(*genera, *(name.replace("alba", "rubra") for name in genera))
    assert np.array_equal(found.judges_M[:200], found.judges_M[200:])
    assert np.array_equal(found.group_M[:200], found.group_M[200:])
    assert 0.15 < found.judges_M.mean() < 0.35


@pytest.mark.parametrize("name", ["Rosa canina L.", "Rosa_canina", "Rosa canina subsp. canina"])
def test_a_stranger_that_the_bundle_knows_is_refused(name):
    with pytest.raises(DataError, match=rf"shows one that the bundle knows .*{name}.*--unknown"):
        looked_up("Quercus suber", name)


def some_names(source_M, near=False, group_M=None):
    flags, numbers = np.zeros(len(source_M), dtype=bool), np.zeros(len(source_M), dtype=np.intp)
    groups = numbers if group_M is None else group_M
    return UnknownNames(source_M, groups, flags, numbers, flags | near, flags | near)


@pytest.mark.parametrize(("sources", "folds"), [([0, 0, 1], [0, 0, 1]), ([0, 0, 0], [4, 4, 5])])
def test_a_source_is_left_out_as_a_whole_or_a_genus_if_there_is_one_source(sources, folds):
    assert some_names(np.array(sources), group_M=np.array([4, 4, 5])).folds().tolist() == folds


def test_every_fourth_plant_is_a_stranger_and_small_sources_count_as_much_as_large_ones():
    names = some_names(np.repeat([0, 1, 2], [1000, 30, 5]))
    chosen_M = drawn_among(names, 300)
    assert np.bincount(names.source_M[chosen_M]).tolist() == [65, 30, 5]  # 100 of 400


@pytest.mark.parametrize(("near", "num_near"), [([True, False], 12), ([True, True], 100)])
def test_one_stranger_in_eight_is_of_a_known_genus_unless_all_are(near, num_near):
    names = some_names(np.repeat([0, 1], 500), np.repeat(near, 500))
    chosen_M = drawn_among(names, 300)
    assert (chosen_M.sum(), (chosen_M & names.near_M).sum()) == (100, num_near)


def test_a_photograph_named_by_a_known_genus_or_family_alone_is_left_out():
    paths, found = looked_up("Rosa", "Rosa sp.", "Rosaceae", "Rosa gallica", "Musa", "")
    assert paths == (Path("Rosa gallica/a.jpg"), Path("Musa/a.jpg"), Path("/a.jpg"))
    assert found.near_M.tolist() == [True, False, False]


def drawn_strangers(seed):
    """Ten plants of each of 60 directions that the network never had."""
    random = np.random.default_rng(seed)
    directions = random.normal(size=(60, NUM_FEATURES)).repeat(10, axis=0)
    noise = random.normal(0, NOISE, directions.shape)
    number = np.arange(60).repeat(10)
    return UnknownPlants(draw_outputs(directions + noise), some_names(number % 3, group_M=number), "drawn strangers")


def test_a_name_of_a_stranger_is_right_at_the_ranks_that_the_bundle_knows():
    _, names = looked_up("Quercus suber", "Fagus sylvatica", "Musa acuminata")
    outputs = Outputs(9 * np.eye(2, dtype=np.float32)[[0, 0, 0]], np.zeros((3, 1)))
    found = UnknownPlants(outputs, names, "drawn").predictions(AnswerModel(KNOWN, 1.0))
    assert found.rank_right_NR.tolist() == [[False, True, True], [False, False, True], [False, False, False]]


def share_named(fitted, outputs):
    return np.mean([each.verdict.rank == "species" for each in answers(fitted, outputs)])


def test_with_strangers_familiarity_is_a_head_that_names_fewer_new_strangers():
    with_some, without = (fit_tables(table_data(unknown_plants=each), 1.0, {}) for each in (drawn_strangers(1), None))
    assert with_some.model.calibration.familiarity is None
    assert without.model.calibration.known_head is None
    assert "left_out_auroc" not in {each.name for each in with_some.metrics}
    assert with_some.model.calibration.fitted_on.num_strangers == 600
    new = drawn_strangers(2).outputs
    assert share_named(with_some, new) <= share_named(without, new)
    assert share_named(with_some, new) < 0.1


def test_strangers_count_among_the_names_as_heads_judge_them_that_have_not_seen_their_source():
    """They look like known plants but for the style of their source, which a head knows by heart."""
    calibration = table_data().calibration
    features = calibration.features[::20].copy()
    features[np.arange(40), np.arange(40) % 2] += 15
    outputs = Outputs(calibration.logits[::20], features)
    names = replace(some_names(np.arange(40) % 2), label_M=(calibration.labels[::20] + 1) % 20)
    strangers = UnknownPlants(outputs, names, "drawn strangers")
    data = table_data(unknown_plants=strangers, validation=draw_plants(2, seed=5))
    fitted = fit_tables(data, 1.0, {"species": 0.6})
    tables, cutoffs = fitted.model.calibration, fitted.model.calibration.cutoffs

    def seen(outputs):
        found = outputs.score(AnswerModel(TAXONOMY, 1.0))
        return HeadInputs(outputs.features[:], found.confidence_N, tables.features.distances(outputs.features[:]))

    known, strangers = seen(calibration), seen(outputs)
    head = fit_head(seen(data.validation), strangers, names.source_M, names.source_M)
    known_N = known.scores(head.head)
    assert cutoffs.familiar == pytest.approx(familiar_cutoff(known_N, head.other_M), abs=1e-12)
    kept_N = (known_N >= cutoffs.familiar) & (known.scores(tables.plant_head) >= cutoffs.plant)
    kept_M = (head.other_M >= cutoffs.familiar) & (strangers.scores(tables.plant_head) >= cutoffs.plant)
    kept_M &= drawn_among(names, len(kept_N))
    wrong_N = (calibration.logits.argmax(axis=1) != calibration.labels) & (known.confidence >= 0.6) & kept_N
    assert fitted.thresholds.num_plants == kept_N.sum() + kept_M.sum()
    assert fitted.thresholds.species.num_wrong == wrong_N.sum() + (kept_M & (strangers.confidence >= 0.6)).sum()


def sure_names(named_N, labels_N):
    return Outputs(9 * np.eye(4, dtype=np.float32)[named_N], labels=labels_N).score(AnswerModel(make_taxonomy(4), 1.0))


def test_taxa_whose_names_are_often_wrong_are_found_and_few_plants_say_little():
    named_N = np.repeat([0, 1, 2], [100, 100, 4])
    labels_N = named_N.copy()
    labels_N[100:120] = 0  # a fifth of taxon 1
    labels_N[-1] = 0  # one of four of taxon 2
    validation = sure_names(named_N, labels_N)
    enough_N = np.repeat([0, 1], 2 * MIN_NAMED)
    found = mistaken_taxa(validation, sure_names(enough_N, enough_N), 4)
    assert found.tolist() == [False, True, True, False]  # of taxon 3 nothing is known
    for few_N in (enough_N[1:], enough_N[:-1]):
        assert not mistaken_taxa(validation, sure_names(few_N, few_N), 4).any()


def test_taxa_that_are_often_mistaken_have_a_threshold_of_their_own():
    random = np.random.default_rng(0)
    score_N = random.uniform(0.5, 1, 4000)
    mistaken_N = np.arange(4000) < 2000
    right_N = random.random(4000) < np.where(mistaken_N, score_N**2, 0.99)
    nothing = RankScores(np.full(4000, -1.0), np.zeros(4000, dtype=bool))
    scores = {"species": RankScores(score_N, right_N), "genus": nothing, "family": nothing}
    apart, together = fit_thresholds(scores, {}, mistaken_N), fit_thresholds(scores)
    assert isinstance(apart.mistaken, FittedThreshold)
    assert apart.species.threshold < together.species.threshold < apart.mistaken.threshold
    assert fit_thresholds(scores, {"species": 0.7}, mistaken_N).mistaken is None


FOUR = make_taxonomy(4)


def mistaken_data(validation, calibration):
    """Of 400 plants of each of 4 taxa every fifth of 0 and 1 is named as the other, or every fifth of 0 as 2."""
    labels_N = np.arange(4).repeat(400)
    features = np.random.default_rng(0).normal(size=(1600, NUM_FEATURES)).astype(np.float32)
    fifth_N = np.arange(1600) % 5 == 0
    named_N = {
        "each other": np.where(fifth_N & (labels_N < 2), labels_N ^ 1, labels_N),
        "a third": np.where(fifth_N & (labels_N == 0), 2, labels_N),
    }

    def split(name):
        return Outputs(9 * np.eye(4, dtype=np.float32)[named_N[name]], features, labels_N)

    return table_data(
        taxonomy=FOUR,
        calibration=split(calibration),
        training=split("a third"),
        validation=split(validation),
        with_negatives=False,
    )


@pytest.fixture(scope="module")
def mistaken():
    return fit_tables(mistaken_data("each other", "a third"), 1.0, {})


def test_the_mistaken_taxa_are_those_of_the_validation_plants(mistaken):
    assert mistaken.model.mistaken.taxon_ids == tuple(taxon.taxon_id for taxon in FOUR.taxa[:2])
    for data, fixed in (
        (mistaken_data("a third", "each other"), {}),
        (mistaken_data("each other", "a third"), {"species": 0.7}),
    ):
        model = fit_tables(data, 1.0, fixed).model
        assert (model.mistaken, model.calibration.conformal_mistaken) == (None, None)


def test_a_network_file_of_a_bundle_has_the_mistaken_taxa(mistaken):
    made = Candidate(Path("model.fp32.onnx"), None, mistaken, None, None, (), ())
    assert _network_file(made, True).mistaken == mistaken.model.mistaken


def test_a_model_knows_the_limits_and_promises_of_its_mistaken_taxa(mistaken):
    model = mistaken.model
    assert (model.mistaken.threshold, model.thresholds.species) == (0.5, 1.0)
    assert model.threshold("species", np.array([0, 2])).tolist() == [0.5, 1.0]
    assert (model.mistaken.promise.num_wrong, model.promises.species) == (0, None)
    assert [model.promise("species", taxon) for taxon in FOUR.taxa[1:3]] == [model.mistaken.promise, None]


def test_a_calibration_plant_stands_in_the_table_of_its_right_taxon(mistaken):
    tables = mistaken.model.calibration
    assert tables.conformal.num_plants_T.tolist() == [0, 0, 400, 400]
    assert tables.conformal_mistaken.num_plants_T.tolist() == [400, 400, 0, 0]
