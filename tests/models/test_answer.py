"""The answer about one plant: weights of pictures, rejections, candidates, and allowed taxa."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from models.answer import Question, answer_plant
from models.calibration import (
    Calibration,
    Cutoffs,
    FamiliarityTable,
    FeatureTable,
    LogisticHead,
    conformal_table_of,
)
from models.harmful import harms_of
from models.ranking import RANKS, MistakenTaxa, Promise, Promises, Thresholds, output_probabilities
from models.scoring import AnswerModel, GuessShare, JointRule, picture_weights
from tests.make import from_table
from tests.models.tiny import WOOD, common_only, conformal_table, species, taxonomy_of

TAXONOMY = taxonomy_of(*(species(f"Genus{number // 2} s{number}", f"Family{number // 4}") for number in range(8)))
NUM_TAXA, NUM_FEATURES = 8, 5
SOME_TAXA = st.lists(st.booleans(), min_size=NUM_TAXA, max_size=NUM_TAXA).filter(any).map(np.array)


def some_tables():
    generator = np.random.default_rng(0)

    def normal(*shape):
        return generator.normal(size=shape).astype(np.float32)

    taxa_NT = generator.dirichlet(np.full(NUM_TAXA, 0.3), 60)
    return Calibration(
        conformal=conformal_table(taxa_NT, generator.integers(0, NUM_TAXA, 60), np.full(NUM_TAXA, 1 / NUM_TAXA)),
        features=FeatureTable(
            center_F=normal(NUM_FEATURES) * 0.1,
            basis_FD=normal(NUM_FEATURES, 3),
            whole_D=normal(3),
            within_DD=normal(3, 3),
            mean_TD=normal(NUM_TAXA, 3),
        ),
        familiarity=FamiliarityTable(np.sort(generator.random(50)), np.sort(generator.normal(size=50))),
        # The first feature says how much a picture looks like a plant.
        plant_head=LogisticHead(np.eye(NUM_FEATURES, dtype=np.float32)[0] * 12, 0.0, 0.0, -2.0),
        cutoffs=Cutoffs(plant=0.5, familiar=0.0),
    )


def some_model(**changes):
    return AnswerModel(**({"taxonomy": TAXONOMY, "temperature": 1.3, "calibration": some_tables()} | changes))


def some_pictures(seed, num_pictures, plants=None):
    """Logits and features; `plants` says which pictures look like plants, all by default."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(num_pictures, NUM_FEATURES)) * 0.2
    features[:, 0] = np.where(np.ones(num_pictures, bool) if plants is None else plants, 1.0, -1.0)
    return generator.normal(0, 2, (num_pictures, NUM_TAXA)).astype(np.float32), features.astype(np.float32)


def answer_about(pictures, model=None, **question):
    return answer_plant(*pictures, model or some_model(), Question(**question))


def scores_of(answer):
    return {entry.taxon.taxon_id: entry.score for entry in answer.taxa}


@given(seed=st.integers(0, 2**32 - 1), num_pictures=st.integers(2, 5), things=st.integers(0, 31))
def test_the_order_of_pictures_does_not_matter(seed, num_pictures, things):
    plants = np.array([not things >> index & 1 for index in range(num_pictures)])
    logits, features = some_pictures(seed, num_pictures, plants)
    order = np.random.default_rng(seed).permutation(num_pictures)
    question = {"top_k": NUM_TAXA, "coverage": 0.9}
    first = answer_about((logits, features), **question)
    second = answer_about((logits[order], features[order]), **question)
    assert scores_of(first) == pytest.approx(scores_of(second), abs=1e-6)
    assert first.plant_score == pytest.approx(second.plant_score, abs=1e-6)
    assert (first.verdict.rank, first.verdict.name) == (second.verdict.rank, second.verdict.name)
    assert {entry.taxon.taxon_id for entry in first.candidates.taxa} == {
        entry.taxon.taxon_id for entry in second.candidates.taxa
    }


@given(seed=st.integers(0, 2**32 - 1))
def test_a_picture_of_something_else_among_good_ones_changes_nothing(seed):
    logits, features = some_pictures(seed, 3, [True, True, False])
    good, mixed = (answer_about((logits[:n], features[:n]), top_k=NUM_TAXA) for n in (2, 3))
    assert scores_of(mixed) == pytest.approx(scores_of(good), abs=1e-9)
    assert mixed.verdict == good.verdict
    assert mixed.pictures[2].weight == 0
    assert sum(picture.weight for picture in mixed.pictures) == pytest.approx(1)


@settings(max_examples=100)
@given(scores=st.lists(st.floats(0, 1), min_size=1, max_size=5), cutoff=st.floats(0, 1))
def test_weights_sum_to_1_and_rise_with_the_plant_score(scores, cutoff):
    weight_B = picture_weights(np.array(scores), cutoff)
    assert weight_B.sum() == pytest.approx(1)
    order = np.argsort(scores)
    assert (np.diff(weight_B[order]) >= -1e-12).all()


def test_a_picture_at_the_cutoff_keeps_its_weight():
    np.testing.assert_allclose(picture_weights(np.array([0.5, 1.0]), 0.5), [1 / 3, 2 / 3])


JOINT = tuple(JointRule(number, 1.3 / number, Thresholds(0.6, 0.6, 0.6), 0.0) for number in (2, 3, 4))


@given(seed=st.integers(0, 2**32 - 1), num_pictures=st.integers(2, 5))
def test_the_mean_of_several_pictures_has_its_own_temperature_and_thresholds(seed, num_pictures):
    logits, features = some_pictures(seed, num_pictures)
    features[:] = features[0]  # so that each has the same weight
    model = some_model(joint=JOINT, thresholds=Thresholds(1, 1, 1))
    answer = answer_about((logits, features), model, top_k=NUM_TAXA)
    expected = output_probabilities(logits.mean(axis=0), 1.3 / min(num_pictures, 4))
    assert scores_of(answer) == pytest.approx(
        {taxon.taxon_id: score for taxon, score in zip(TAXONOMY.taxa, expected, strict=True)}, abs=1e-5
    )
    assert (answer.verdict.rank == "species") == (expected.max() >= 0.6)
    alone = output_probabilities(logits, 1.3).max(axis=1)
    assert [picture.taxa[0].score for picture in answer.pictures] == pytest.approx(alone, abs=1e-5)


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32 - 1), repeats=st.integers(2, 5), noise=st.sampled_from([0, 1e-3]))
def test_one_more_photograph_of_the_same_output_never_lowers_the_verdict(seed, repeats, noise):
    logits, features = some_pictures(seed, 1)
    model = some_model(joint=JOINT, thresholds=Thresholds(0.6, 0.6, 0.6))
    alone = answer_about((logits, features), model)
    first = alone.taxa[0].taxon  # where another genus is likelier than that of the likeliest taxon, its share may fall
    assume((alone.genera[0].name, alone.families[0].name) == (first.genus, first.family))
    further = logits + noise * np.arange(repeats, dtype=np.float32)[:, None] * np.eye(1, NUM_TAXA, dtype=np.float32)
    verdicts = [
        answer_about((further[:number], np.repeat(features, number, axis=0)), model).verdict
        for number in range(1, repeats + 1)
    ]
    ranks = [[*RANKS, "uncertain"].index(verdict.rank) for verdict in verdicts]
    assert ranks == sorted(ranks, reverse=True)
    of_species = [verdict.score for verdict in verdicts if verdict.rank == "species"]
    assert of_species == pytest.approx(sorted(of_species), abs=2e-3)  # the noise


def test_a_photograph_that_is_sent_twice_says_nothing_new():
    logits, features = some_pictures(1, 1)
    once, twice = (
        answer_about((np.repeat(logits, number, axis=0), np.repeat(features, number, axis=0)), some_model(joint=JOINT))
        for number in (1, 2)
    )
    assert (scores_of(twice), twice.verdict) == (pytest.approx(scores_of(once)), once.verdict)


def test_pictures_without_any_plant_score_weigh_the_same():
    np.testing.assert_array_equal(picture_weights(np.zeros(4), 0.5), [0.25] * 4)


def test_pictures_that_show_no_plant_are_not_named():
    answer = answer_about(some_pictures(1, 2, [False, False]))
    assert (answer.verdict.rank, answer.verdict.name) == ("not_a_plant", None)
    assert answer.plant_score < 0.5
    assert len(answer.taxa) == 5, "the list is still there"
    chosen = answer_about(some_pictures(1, 2, [False, False]), allowed_T=np.arange(NUM_TAXA) == 7)
    assert (chosen.discarded_mass > 0.9, chosen.verdict.reason) == (True, answer.verdict.reason)


@settings(max_examples=200)
@given(bias=st.floats(-4, 4), num_pictures=st.integers(1, 5))
def test_pictures_whose_plant_score_is_the_cutoff_are_named(bias, num_pictures):
    pictures = some_pictures(1, num_pictures)
    head = LogisticHead(np.zeros(NUM_FEATURES, np.float32), 0.0, 0.0, bias)
    cutoff = float(head.scores(pictures[1][:1], np.ones(1), np.zeros(1))[0])
    changed = replace(some_tables(), plant_head=head, cutoffs=Cutoffs(plant=cutoff))
    answer = answer_about(pictures, some_model(calibration=changed))
    assert answer.plant_score == cutoff
    assert answer.verdict.rank != "not_a_plant"


def test_a_plant_unlike_those_that_are_known_is_uncertain():
    logits, features = some_pictures(1, 1)
    changed = replace(some_tables(), conformal=None, cutoffs=Cutoffs(plant=0.5, familiar=1.01))
    for allowed_T in (None, np.arange(NUM_TAXA) == 7):
        verdict = answer_about((logits * 9, features), some_model(calibration=changed), allowed_T=allowed_T).verdict
        assert (verdict.rank, verdict.name) == ("uncertain", None)
        assert verdict.reason.startswith("unlike the plants")


@pytest.mark.parametrize("num_pictures", [1, 2])
def test_a_plant_whose_familiarity_is_the_cutoff_is_named(num_pictures):
    known = FamiliarityTable(confidence_N=np.zeros(2), distance_N=np.full(2, 1e9))  # each picture has the score 1
    changed = replace(some_tables(), familiarity=known, cutoffs=Cutoffs(plant=0.5, familiar=1.0))
    answer = answer_about(some_pictures(1, num_pictures), some_model(calibration=changed))
    assert not answer.verdict.unknown_plant


def test_a_model_without_tables_answers_with_equal_weights():
    pictures = some_pictures(3, 4, [True, False, True, False])
    answer = answer_about(pictures, some_model(calibration=Calibration()), coverage=0.9)
    assert (answer.plant_score, answer.candidates) == (None, None)
    assert [picture.weight for picture in answer.pictures] == [0.25] * 4
    assert answer.pictures[0].plant_score is None


@given(seed=st.integers(0, 2**32 - 1), allowed_T=SOME_TAXA)
def test_allowed_taxa_share_the_whole_probability(seed, allowed_T):
    pictures = some_pictures(seed, 2)
    free = scores_of(answer_about(pictures, top_k=NUM_TAXA))
    answer = answer_about(pictures, top_k=NUM_TAXA, allowed_T=allowed_T, coverage=0.8)
    kept = {taxon.taxon_id for taxon, allowed in zip(TAXONOMY.taxa, allowed_T, strict=True) if allowed}
    found = scores_of(answer)
    assert sum(found.values()) == pytest.approx(1)
    assert all(score == 0 for name, score in found.items() if name not in kept)
    assert answer.discarded_mass == pytest.approx(1 - sum(free[name] for name in kept), abs=1e-9)
    for name in kept:
        assert found[name] == pytest.approx(free[name] / (1 - answer.discarded_mass), rel=1e-6)
    assert {entry.taxon.taxon_id for entry in answer.candidates.taxa} <= kept
    assert (answer.candidates.guarantee, answer.verdict.promise) == (None, None)


@given(seed=st.integers(0, 2**32 - 1), allowed_T=SOME_TAXA, threshold=st.floats(0.5, 1))
def test_a_choice_that_has_the_species_never_costs_its_name(seed, allowed_T, threshold):
    model = some_model(thresholds=Thresholds(threshold, 1, 1))
    free, chosen = (answer_about(some_pictures(seed, 2), model, allowed_T=each) for each in (None, allowed_T))
    if free.verdict.name in {each.taxon.scientific_name for each in chosen.taxa if each.score > 0}:
        assert chosen.verdict.name == free.verdict.name


def about_wood(*probabilities, allowed):
    """The verdict on one picture."""
    model = AnswerModel(WOOD, 1.0, Thresholds(0.8, 0.9, 0.95))
    pictures = np.log([probabilities]), np.ones((1, NUM_FEATURES))
    verdict = answer_about(pictures, model, allowed_T=np.isin(np.arange(4), allowed)).verdict
    return verdict.rank, verdict.name, round(verdict.score, 3), verdict.reason


OUTSIDE = "0.{} of the probability is on plants that the request does not allow."


@from_table
def test_a_plant_outside_of_the_choice_counts_a_fifth(probabilities, allowed, verdict):
    assert about_wood(*probabilities, allowed=allowed) == verdict


def test_a_genus_that_no_allowed_taxon_has_is_not_named():
    field = taxonomy_of(common_only("Maize"), common_only("Wheat"), species("Quercus robur"), species("Quercus suber"))
    pictures = np.log([[0.3, 0.1, 0.3, 0.3]]), np.ones((1, NUM_FEATURES))
    model = AnswerModel(field, 1.0, Thresholds(0.8))
    verdict = answer_about(pictures, model, allowed_T=np.arange(4) < 2).verdict
    assert verdict.reason.startswith("species 0.58 is below 0.80; no genus is known; no family is known. 0.60 of")


def test_taxa_whose_probability_is_lost_to_rounding_can_still_be_asked_for():
    logits, features = np.zeros((1, NUM_TAXA)), np.ones((1, NUM_FEATURES))
    logits[0, 0] = 5000.0
    answer = answer_about((logits, features), allowed_T=np.arange(NUM_TAXA) >= 6)
    assert [entry.score for entry in answer.taxa[:2]] == pytest.approx([0.5, 0.5])
    assert (answer.discarded_mass, answer.verdict.reason) == (1, OUTSIDE.replace("0.{}", "1.00"))


def test_a_restricted_answer_keeps_no_promise():
    pictures = some_pictures(5, 1)
    promise = Promise(0.05, 0.95, 400, 3)
    model = some_model(thresholds=Thresholds(species=0.0), promises=Promises(species=promise))
    assert answer_about(pictures, model).verdict.promise == promise
    assert answer_about(pictures, model, allowed_T=np.ones(NUM_TAXA, bool)).verdict.promise is None


def answer_with_look_alikes(likeliest=0, allowed=None, **changes):
    """The taxon 0 is often taken for 5 and 3, of which 3 is likelier; equal others rank behind both."""
    logits = np.zeros((1, NUM_TAXA))
    logits[0, [likeliest, 3, 5]] = 8, 2, 1
    model = some_model(look_alikes={0: (5, 3)}, calibration=Calibration(), **changes)
    return answer_about((logits, np.zeros((1, NUM_FEATURES))), model, allowed_T=allowed)


def test_a_named_species_is_shown_with_what_it_is_often_taken_for():
    answer = answer_with_look_alikes()
    assert answer.verdict.name == "Genus0 s0"
    assert [each.taxon for each in answer.look_alikes] == [TAXONOMY.taxa[3], TAXONOMY.taxa[5]]
    assert answer.look_alikes == answer.taxa[1:3]
    assert answer.verdict.reason.endswith(" reaches 0.50. It is often taken for Genus1 s3 or Genus2 s5.")


def test_a_look_alike_that_the_client_ruled_out_is_not_told():
    answer = answer_with_look_alikes(allowed=np.arange(NUM_TAXA) != 3)
    assert [each.taxon for each in answer.look_alikes] == [TAXONOMY.taxa[5]]
    assert answer.verdict.reason.endswith("It is often taken for Genus2 s5.")
    assert answer_with_look_alikes(allowed=np.isin(np.arange(NUM_TAXA), [0, 1])).look_alikes == []


@pytest.mark.parametrize(
    ("rank", "changes"),
    [("genus", {"thresholds": Thresholds(species=1.0)}), ("species", {"likeliest": 1})],
    ids=["genus", "another species"],
)
def test_a_genus_and_a_species_without_look_alikes_have_none(rank, changes):
    answer = answer_with_look_alikes(**changes)
    assert (answer.verdict.rank, answer.look_alikes) == (rank, [])
    assert "often taken" not in answer.verdict.reason


def test_candidates_guarantee_nothing_if_the_network_was_trained_on_the_calibration_plants():
    for is_held_out, guarantee in ((True, "marginal"), (False, None)):
        answer = answer_about(some_pictures(6, 1), some_model(is_held_out=is_held_out), coverage=0.9)
        assert answer.candidates.guarantee == guarantee


def test_a_candidate_set_says_what_it_guarantees():
    for kind in ("marginal", "macro"):
        candidates = answer_about(some_pictures(6, 1), coverage=0.9, coverage_kind=kind).candidates
        assert (candidates.guarantee, bool(candidates.taxa)) == (kind, True)
        assert candidates.taxa == sorted(candidates.taxa, key=lambda entry: -entry.score)
    assert answer_about(some_pictures(6, 1)).candidates is None


@from_table
def test_a_candidate_set_guarantees_nothing_if_a_picture_was_left_out_or_none_shows_a_plant(plants, guarantee):
    answer = answer_about(some_pictures(6, 2, np.array(plants, bool)), coverage=0.9)
    assert answer.candidates.guarantee == guarantee


def test_a_candidate_set_guarantees_nothing_about_an_unknown_plant():
    strange = replace(
        some_tables(), cutoffs=Cutoffs(familiar=1.0), familiarity=FamiliarityTable(np.ones(1), np.array([-99.0]))
    )
    answer = answer_about(some_pictures(6, 1), some_model(calibration=strange), coverage=0.9)
    assert answer.verdict.unknown_plant
    assert (answer.candidates.guarantee, bool(answer.candidates.taxa)) == (None, True)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_picture_that_was_left_out_does_not_change_the_candidate_set(seed):
    logits, features = some_pictures(seed, 2, [True, False])
    alone, both = (answer_about((logits[:n], features[:n]), coverage=0.8) for n in (1, 2))
    assert [each.taxon for each in both.candidates.taxa] == [each.taxon for each in alone.candidates.taxa]


@from_table
def test_a_taxon_that_is_often_mistaken_is_a_candidate_by_the_table_of_these(conformities, listed, uncalibrated):
    labels = np.arange(2, 4).repeat(30), np.zeros(60, np.intp)
    quarter_T = np.full(4, 0.25)
    tables = [
        conformal_table_of(np.full(60, each / 4), of, quarter_T) for each, of in zip(conformities, labels, strict=False)
    ]
    model = AnswerModel(
        IVY,
        1.0,
        calibration=Calibration(**dict(zip(("conformal", "conformal_mistaken"), tables, strict=False))),
        mistaken=MistakenTaxa((IVY.taxa[0].taxon_id,), 0.9) if len(tables) == 2 else None,
    )
    found = answer_about((np.log([quarter_T]), np.ones((1, NUM_FEATURES))), model, coverage=0.9).candidates
    assert {IVY.taxa.index(each.taxon) for each in found.taxa} == {*listed}
    assert found.num_uncalibrated_taxa == uncalibrated


IVY = taxonomy_of(
    species("Parthenocissus quinquefolia", "Vitaceae"),
    species("Toxicodendron radicans", "Anacardiaceae"),
    species("Toxicodendron vernix", "Anacardiaceae"),
    species("Acer negundo", "Sapindaceae"),
)


def named(*probabilities, allowed=None):
    allowed_T = None if allowed is None else np.isin(np.arange(4), allowed)
    pictures = np.log([probabilities]), np.ones((1, NUM_FEATURES))
    verdict = answer_about(pictures, AnswerModel(IVY, 1.0), allowed_T=allowed_T).verdict
    return verdict.name or verdict.reason


def test_a_harmless_plant_is_not_named_while_a_harmful_genus_is_likely():
    assert named(0.96, 0.015, 0.015, 0.01).startswith(
        "may be Toxicodendron radicans or the like, which can blister the skin: 0.03"
    )
    assert named(0.96, 0.005, 0.005, 0.03) == "Parthenocissus quinquefolia"
    assert named(0.03, 0.95, 0.01, 0.01) == "Toxicodendron radicans"


def harmful(*pictures, coverage=None, **changes):
    """Row, taxon and score of each grave harm in the answer about the pictures with these probabilities."""
    features = np.ones((len(pictures), NUM_FEATURES))
    answer = answer_about((np.log(pictures), features), AnswerModel(IVY, 1.0, **changes), coverage=coverage)
    return [(each.harm.taxon, each.taxon.taxon.scientific_name, round(each.score, 3)) for each in answer.harmful]


def test_an_answer_tells_a_harmful_genus_that_is_likely_whatever_it_names():
    assert harmful((0.96, 0.015, 0.015, 0.01)) == [("Toxicodendron", "Toxicodendron radicans", 0.03)]
    assert harmful((0.02, 0.02, 0.95, 0.01)) == [("Toxicodendron", "Toxicodendron vernix", 0.97)]
    assert harmful((0.96, 0.005, 0.005, 0.03)) == []


def test_a_deadly_double_costs_a_harmless_name_but_no_name_that_is_deadly_itself():
    umbels = taxonomy_of(
        species("Daucus carota", "Apiaceae"),
        species("Conium maculatum", "Apiaceae"),
        species("Digitalis purpurea", "Plantaginaceae"),
    )

    def answer(*probabilities):
        pictures = np.log([probabilities]), np.ones((1, NUM_FEATURES))
        return answer_about(pictures, AnswerModel(umbels, 1.0, thresholds=Thresholds(0.5, 0.5, 1)))

    carrot = answer(0.95, 0.04, 0.01)
    assert carrot.verdict.name is None
    assert carrot.verdict.reason.startswith(
        "may be Conium maculatum or the like, which can kill who eats it: 0.05 reaches 0.02"
    )
    assert [(each.harm.severity, each.is_likely) for each in carrot.harmful] == [("deadly", False)]
    hemlock = answer(0.02, 0.9, 0.08)
    assert (hemlock.verdict.name, hemlock.harmful[0].is_likely) == ("Conium maculatum", True)


@from_table
def test_a_row_of_a_species_counts_in_place_of_that_of_its_genus(name, harms):
    assert [f"{harm.kind} {harm.severity}" for harm in harms_of(name, name.split()[0])] == [*harms]


def test_an_answer_that_there_is_no_plant_tells_no_harm():
    tables = replace(some_tables(), conformal=None, cutoffs=Cutoffs(plant=1.0))
    assert harmful((0.02, 0.02, 0.95, 0.01), calibration=tables) == []


def test_an_answer_tells_a_harmful_genus_that_one_picture_shows_or_that_is_a_look_alike():
    rare = (0.9, 0.0001, 0.0001, 0.0998)
    assert harmful(rare, (0.2, 0.05, 0.0001, 0.7499), rare) == [("Toxicodendron", "Toxicodendron radicans", 0.05)]
    assert harmful(rare, look_alikes={0: (2, 3)}) == [("Toxicodendron", "Toxicodendron radicans", 0.0)]
    assert harmful(rare, look_alikes={0: (3,)}) == []


def test_an_answer_tells_a_harmful_genus_that_is_a_candidate():
    table = conformal_table_of(np.full(60, 1e-9), np.zeros(60, np.intp), np.full(4, 0.25))
    for coverage, found in ((0.9, [("Toxicodendron", "Toxicodendron radicans", 0.0)]), (None, [])):
        rare = (0.9, 0.0001, 0.0001, 0.0998)
        assert harmful(rare, coverage=coverage, calibration=Calibration(conformal=table)) == found


def test_a_client_can_rule_a_harmful_genus_out():
    assert named(0.96, 0.015, 0.015, 0.01, allowed=(0, 3)) == "Parthenocissus quinquefolia"


@from_table
def test_a_picture_that_is_sure_of_another_plant_looks_different(pictures, different):
    features = np.ones((len(pictures), NUM_FEATURES))
    answer = answer_about((np.log(pictures), features), AnswerModel(IVY, 1.0))
    assert [picture.looks_different for picture in answer.pictures] == [*different]


GUESSES = (GuessShare(0.0, 0.4, 0.7, 60), GuessShare(0.5, 0.6, 0.8, 60))


@pytest.mark.parametrize(("first", "guess"), [(0.45, GUESSES[0]), (0.55, GUESSES[1]), (0.97, None)])
def test_doubt_says_how_often_such_answers_are_right(first, guess):
    rest = (1 - first) / 3
    pictures = np.log([(rest, rest, rest, first)]), np.ones((1, NUM_FEATURES))
    never = Thresholds(0.9, 1, 1)
    model = AnswerModel(taxonomy_of(*TAXONOMY.taxa[:4]), 1.0, thresholds=never, guesses=GUESSES)
    assert answer_about(pictures, model).guess == guess
    assert answer_about(pictures, model, allowed_T=np.ones(4, bool)).guess is None
