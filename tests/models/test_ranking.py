"""Logits become probabilities, ranked names, and the most precise verdict that they support."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.calibration import Calibration, Cutoffs
from models.explanation import explain
from models.ranking import (
    MistakenTaxa,
    Promise,
    Promises,
    Thresholds,
    best_groups,
    best_names,
    best_taxa,
    combine_pictures,
    comparison,
    output_probabilities,
    taxon_probabilities,
)
from models.scoring import AnswerModel, Scores, decide
from tests.make import cases
from tests.models.tiny import TAXONOMY, WOOD, common_only, genus_only, species, taxonomy_of


def rank(taxa_T, taxonomy, top_k=5):
    groups = taxonomy.genera, taxonomy.families
    genera, families = (best_groups(taxa_T, each, top_k) for each in groups)
    return SimpleNamespace(taxa=best_taxa(taxa_T, taxonomy, top_k), genera=genera, families=families)


def ranked(taxonomy, *probabilities, top_k=5):
    """The ranking for probabilities of the outputs, which sum to 1."""
    assert sum(probabilities) == pytest.approx(1)
    return rank(taxon_probabilities(np.array(probabilities), taxonomy), taxonomy, top_k)


# ---- probabilities


@pytest.mark.parametrize("shift", [0, 1e4, -1e4, 3e38, -3e38])
def test_huge_logits_do_not_overflow(shift):
    logits = np.array([0.0, 1.0, 2.0]) * max(1.0, abs(shift) * 1e-12) + shift
    probabilities = output_probabilities(logits, 1.0)
    assert np.isfinite(probabilities).all()
    assert probabilities.sum() == pytest.approx(1)
    assert probabilities.argmax() == 2


def test_softmax_is_the_textbook_one():
    expected = np.random.default_rng(1).dirichlet(np.ones(333), (7, 5))
    found = output_probabilities(np.log(expected), 1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert output_probabilities(np.zeros(3, np.float32), 1.0).dtype == np.float64


def test_temperature_divides_the_logits():
    logits = np.array([0.0, 2.0])
    np.testing.assert_allclose(output_probabilities(logits, 2.0), output_probabilities(logits / 2, 1.0))
    certain = [output_probabilities(logits, temperature)[1] for temperature in (0.5, 1.0, 2.0, 100.0)]
    assert certain == sorted(certain, reverse=True)
    assert certain[-1] == pytest.approx(0.5, abs=0.01)


def test_outputs_of_one_taxon_are_summed():
    np.testing.assert_allclose(taxon_probabilities(np.array([0.1, 0.2, 0.3, 0.4]), TAXONOMY), [0.1, 0.5, 0.4])
    batch = np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]], dtype=np.float32)
    np.testing.assert_allclose(taxon_probabilities(batch, TAXONOMY), [[0.1, 0.5, 0.4], [0.4, 0.5, 0.1]], rtol=1e-6)


def test_no_score_ever_passes_one():
    taxonomy = taxonomy_of(*(species(f"Rosa {number:03d}", "Rosaceae") for number in range(150)))
    generator = np.random.default_rng(3)
    for _ in range(40):
        answer = rank(output_probabilities(generator.normal(0, 2, 150), 1.0), taxonomy)
        scores = [entry.score for entry in (*answer.taxa, *answer.genera, *answer.families)]
        assert all(0 <= score <= 1 for score in scores)
        assert answer.genera[0].score == pytest.approx(1, abs=1e-12)


# ---- several pictures


def test_pictures_of_one_plant_are_combined_by_the_weighted_mean_of_their_logits():
    logits = np.array([[1.0, 3.0], [2.0, -1.0], [4.0, 4.0]], dtype=np.float32)
    np.testing.assert_allclose(combine_pictures(logits, np.array([0.5, 0.5, 0.0])), [1.5, 1.0])
    np.testing.assert_allclose(combine_pictures(logits, np.full(3, 1 / 3)), [7 / 3, 2.0])
    assert combine_pictures(logits, np.full(3, 1 / 3)).dtype == np.float64


# ---- genera and families


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(0.01, 30))
def test_a_genus_or_family_is_at_least_as_probable_as_each_of_its_taxa(seed, spread):
    generator = np.random.default_rng(seed)
    names = [(f"Genus{number % 17} s{number}", f"Family{number % 17 % 4}") for number in generator.permutation(90)]
    taxonomy = taxonomy_of(*(species(*name) for name in names))
    taxa_T = taxon_probabilities(output_probabilities(generator.normal(0, spread, 90), 1.0), taxonomy)
    answer = rank(taxa_T, taxonomy, top_k=90)
    genus_of = {group.name: group.score for group in answer.genera}
    family_of = {group.name: group.score for group in answer.families}
    for entry in answer.taxa:
        assert entry.score <= genus_of[entry.taxon.genus] <= family_of[entry.taxon.family]


def test_taxon_of_rank_genus_counts_for_its_genus():
    taxonomy = taxonomy_of(genus_only("Crocus"), species("Crocus vernus"), species("Rosa canina"))
    answer = ranked(taxonomy, 0.30, 0.30, 0.40)
    assert [(group.name, pytest.approx(group.score)) for group in answer.genera] == [("Crocus", 0.6), ("Rosa", 0.4)]


def test_spread_genus_and_family_sum_the_full_distribution():
    spread = [species(f"Salix {number}", "Salicaceae") for number in range(20)]
    alone = [
        species(name, f"{name.split()[0]}aceae") for name in ("Rosa a", "Malus a", "Acer a", "Bellis a", "Fagus a")
    ]
    answer = ranked(taxonomy_of(*alone, *spread), *[0.08] * 5, *[0.03] * 20, top_k=5)
    assert "Salix" not in {entry.taxon.genus for entry in answer.taxa}, "a roll-up of the listed taxa would miss it"
    assert (answer.genera[0].name, answer.families[0].name) == ("Salix", "Salicaceae")
    assert answer.genera[0].score == answer.families[0].score == pytest.approx(0.6)


# ---- lists


def test_equal_scores_keep_the_order_of_the_taxonomy():
    names = ["Malus a", "Acer b", "Rosa c", "Bellis d", "Fagus e"]
    taxonomy = taxonomy_of(*(species(name) for name in names))
    answer = rank(np.full(5, 0.2), taxonomy)
    assert [entry.taxon.scientific_name for entry in answer.taxa] == names
    assert [group.name for group in answer.genera] == sorted(name.split()[0] for name in names)


def test_lists_are_the_beginning_of_the_whole_ranking():
    """Only the best are sorted; ties at the limit and the family "" must not change the result."""
    random = np.random.default_rng(0)
    names = [(f"Genus{number % 7} s{number}", ("", "Aceae", "Beae")[number % 3]) for number in range(60)]
    taxonomy = taxonomy_of(*(species(*name) for name in names))
    for _ in range(20):
        scores = random.integers(0, 4, 60) / 240
        whole, first = (rank(scores, taxonomy, top_k) for top_k in (60, 5))
        assert first.taxa == whole.taxa[:5]
        assert first.taxa == sorted(whole.taxa, key=lambda entry: -entry.score)[:5]
        assert (first.genera, first.families) == (whole.genera[:5], whole.families)
        assert rank(scores, taxonomy, 1).families == whole.families[:1]


def verdict_of(taxonomy, *probabilities, promises=None, mistaken=None, plant=None, familiar=None, **thresholds):
    """The verdict for probabilities of the taxa; the cutoffs are 0.31 and 0.05."""
    tables = Calibration(cutoffs=Cutoffs(0.31, 0.05))
    model = AnswerModel(taxonomy, 1.0, Thresholds(**thresholds), promises or Promises(), tables, mistaken=mistaken)
    taxa_T = np.array(probabilities)
    plant_N, familiar_N = (None if each is None else np.array([each]) for each in (plant, familiar))
    scores = Scores(*best_names(taxa_T[None], taxonomy), plant_N, familiar_N, None)
    return explain(scores, decide(scores, model), taxa_T, model)


@pytest.mark.parametrize(("probabilities", "named"), cases(__file__, "verdicts"))
def test_verdict_is_the_most_precise_rank_that_reaches_its_threshold(probabilities, named):
    verdict = verdict_of(WOOD, *probabilities)
    assert [verdict.rank, verdict.name] == named[:2]
    assert verdict.score == pytest.approx(named[2])


def test_nothing_is_named_when_no_rank_reaches_its_threshold():
    verdict = verdict_of(WOOD, 0.30, 0.25, 0.25, 0.20, species=0.9, genus=0.9, family=0.9)
    assert (verdict.rank, verdict.name) == ("uncertain", None)
    assert verdict.score == pytest.approx(0.30)


def test_a_rank_with_a_threshold_of_1_names_nothing():
    found = verdict_of(WOOD, 1.0, 0.0, 0.0, 0.0, species=1.0, genus=1.0, family=1.0)
    assert found.rank == "uncertain"
    assert "this model names no species" in found.reason


def test_a_taxon_that_is_too_often_mistaken_is_not_named_but_others_are():
    mistaken = MistakenTaxa((WOOD.taxa[0].taxon_id,), 1.0)
    found = verdict_of(WOOD, 1.0, 0.0, 0.0, 0.0, mistaken=mistaken)
    assert (found.rank, found.reason) == (
        "genus",
        "Quercus robur is too often mistaken for this model to name it; genus Quercus 1.00 reaches 0.50.",
    )
    assert verdict_of(WOOD, 0.0, 1.0, 0.0, 0.0, mistaken=mistaken).name == "Quercus petraea"


def test_taxon_of_rank_genus_is_never_named_a_species():
    taxonomy = taxonomy_of(genus_only("Crocus", "Iridaceae"), species("Rosa canina", "Rosaceae"))
    verdict = verdict_of(taxonomy, 0.999, 0.001)
    assert (verdict.rank, verdict.name) == ("genus", "Crocus")
    assert verdict.reason.startswith("the most likely taxon, Crocus, is a genus and not a species; genus Crocus")
    verdict = verdict_of(taxonomy, 0.999, 0.001, genus=1.0)
    assert (verdict.rank, verdict.name) == ("family", "Iridaceae")


def test_unknown_family_is_never_named():
    taxonomy = taxonomy_of(species("Rosa canina"), species("Malus alba"), species("Acer campestre", "Sapindaceae"))
    assert verdict_of(taxonomy, 0.45, 0.45, 0.10).rank == "uncertain"
    taxonomy = taxonomy_of(species("Rosa canina"), species("Malus alba"))
    verdict = verdict_of(taxonomy, 0.51, 0.49, species=0.9, genus=0.9)
    assert verdict.rank == "uncertain"
    assert verdict.reason.endswith("; no family is known.")


FIELD = taxonomy_of(
    common_only("Common wheat"), common_only("Common nettle"), species("Quercus robur"), species("Quercus suber")
)


def test_classes_known_by_a_common_name_alone_add_up_to_no_genus_and_no_family():
    verdict = verdict_of(FIELD, 0.45, 0.45, 0.05, 0.05)
    assert (verdict.rank, verdict.name) == ("uncertain", None)
    assert verdict.reason == "species 0.45 is below 0.50; genus Quercus 0.10 is below 0.50; no family is known."
    assert verdict_of(FIELD, 0.45, 0.05, 0.25, 0.25).name == "Quercus"


def test_a_class_known_by_its_common_name_alone_is_named_like_a_species():
    verdict = verdict_of(FIELD, 0.8, 0.1, 0.05, 0.05)
    assert (verdict.rank, verdict.name) == ("species", "Common wheat")


def test_no_genus_is_named_where_no_likely_taxon_has_one():
    verdict = verdict_of(FIELD, 0.45, 0.55, 0.0, 0.0, species=0.6, genus=0.0)
    assert verdict.reason == "species 0.55 is below 0.60; no genus is known; no family is known."
    assert verdict_of(taxonomy_of(common_only("Maize")), 0.4).rank == "uncertain"


def test_the_reason_compares_every_rank_that_was_tried():
    verdict = verdict_of(WOOD, 0.41, 0.52, 0.05, 0.02, species=0.7, genus=0.85)
    assert verdict.reason == "species 0.52 is below 0.70; genus Quercus 0.93 reaches 0.85."


def test_a_verdict_carries_the_promise_of_its_rank():
    promises = Promises(species=Promise(0.05, 0.95, 400, 9), genus=Promise(0.05, 0.95, 310, 7))
    assert verdict_of(WOOD, 0.9, 0.1, 0, 0, promises=promises).promise == promises.species
    assert verdict_of(WOOD, 0.5, 0.5, 0, 0, species=0.6, promises=promises).promise == promises.genus
    assert verdict_of(WOOD, 0.4, 0.1, 0.4, 0.1, species=0.6, genus=0.6, promises=promises).promise is None


IVY = taxonomy_of(
    species("Parthenocissus quinquefolia", "Vitaceae"),
    species("Rhus typhina", "Anacardiaceae"),
    species("Toxicodendron radicans", "Anacardiaceae"),
    species("Toxicodendron vernix", "Anacardiaceae"),
)


@pytest.mark.parametrize(("probabilities", "rank_", "name"), cases(__file__, "harmful_verdicts"))
def test_no_name_leaves_out_a_harmful_genus_that_is_likely(probabilities, rank_, name):
    verdict = verdict_of(IVY, *probabilities)
    assert (verdict.rank, verdict.name or "") == (rank_, name)


def test_a_family_without_the_harmful_genus_is_no_verdict_either():
    vines = taxonomy_of(species("Vitis vinifera", "Vitaceae"), *IVY.taxa)
    assert verdict_of(vines, 0.48, 0.48, 0.01, 0.03, 0.0).rank == "uncertain"
    assert verdict_of(vines, 0.49, 0.49, 0.01, 0.01, 0.0).name == "Vitaceae"


def test_the_reason_names_the_harmful_genus_once_and_what_leaves_it_out():
    promises = Promises(family=Promise(0.05, 0.95, 400, 9))
    verdict = verdict_of(IVY, 0.01, 0.96, 0.03, 0.0, promises=promises)
    assert verdict.reason == (
        "may be Toxicodendron radicans or the like, which can blister the skin: 0.03 reaches 0.02; species Rhus "
        "typhina leaves it out; genus Rhus leaves it out; family Anacardiaceae 0.99 reaches 0.50."
    )
    assert verdict.promise == promises.family
    verdict = verdict_of(IVY, 0.9799, 0.0, 0.0201, 0.0, species=0.99)
    assert verdict.reason.startswith("species 0.98 is below 0.99; may be Toxicodendron")
    assert ": 0.0201 reaches 0.0200; genus Parthenocissus leaves it out; family Vitaceae leaves" in verdict.reason
    assert verdict.score == pytest.approx(0.9799)


def test_a_name_below_its_threshold_is_not_said_to_leave_out_a_harmful_genus():
    verdict = verdict_of(IVY, 0.4, 0.0, 0.3, 0.3)
    assert verdict.reason == "species 0.40 is below 0.50; genus Toxicodendron 0.60 reaches 0.50."


def test_a_model_without_the_harmful_genus_answers_as_before():
    others = taxonomy_of(*IVY.taxa[:2], species("Acer negundo", "Sapindaceae"), species("Acer rubrum", "Sapindaceae"))
    assert verdict_of(others, 0.96, 0.01, 0.03, 0.0).name == "Parthenocissus quinquefolia"


def test_rejections_say_what_is_below_what():
    shoe = verdict_of(WOOD, 0.9, 0.1, 0, 0, plant=0.04, familiar=0.012)
    stranger = verdict_of(WOOD, 0.9, 0.1, 0, 0, plant=0.31, familiar=0.012)
    assert (shoe.rank, shoe.name, shoe.score, shoe.promise) == ("not_a_plant", None, 0.9, None)
    assert shoe.reason == "plant score 0.04 is below 0.31."
    assert (stranger.rank, stranger.name) == ("uncertain", None)
    assert (shoe.unknown_plant, stranger.unknown_plant) == (False, True)
    assert "familiarity 0.01 is below 0.05" in stranger.reason


def test_a_family_without_any_probability_is_not_named():
    taxonomy = taxonomy_of(species("Rosa canina"), species("Malus alba"), species("Acer campestre", "Sapindaceae"))
    verdict = verdict_of(taxonomy, 0.5, 0.5, 0, species=0.9, genus=0.9, family=0)
    assert (verdict.rank, verdict.reason.rpartition("; ")[2]) == ("uncertain", "no family is known.")


@settings(max_examples=200)
@given(
    score=st.floats(0, 1),
    threshold=st.floats(0, 1),
)
def test_a_comparison_never_shows_equal_figures_as_below(score, threshold):
    words = comparison(score, threshold).split()
    assert ("reaches" in words) == (score >= threshold)
    if abs(score - threshold) > 1e-15:
        assert (float(words[0]) >= float(words[-1])) == (score >= threshold)
