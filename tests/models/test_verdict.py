"""The verdict names the most precise rank that reaches its threshold, and says why."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.ranking import Promise, Promises, Thresholds, comparison, decide, not_a_plant, rank, unknown_plant
from tests.models.tiny import common_only, genus_only, species, taxonomy_of

WOOD = taxonomy_of(
    species("Quercus robur", "Fagaceae"),
    species("Quercus petraea", "Fagaceae"),
    species("Fagus sylvatica", "Fagaceae"),
    species("Acer campestre", "Sapindaceae"),
)


def verdict_of(taxonomy, *probabilities, promises=None, top_k=5, shared=(), **thresholds):
    """The verdict for probabilities of the taxa."""
    ranking = rank(np.array(probabilities), taxonomy, top_k)
    return decide(ranking, Thresholds(**thresholds), promises or Promises(), shared)


@pytest.mark.parametrize(
    ("probabilities", "named"),
    [
        ((0.70, 0.10, 0.10, 0.10), ("species", "Quercus robur", 0.70)),
        ((0.40, 0.40, 0.10, 0.10), ("genus", "Quercus", 0.80)),
        ((0.30, 0.15, 0.40, 0.15), ("family", "Fagaceae", 0.85)),
        ((0.20, 0.15, 0.10, 0.55), ("species", "Acer campestre", 0.55)),
    ],
)
def test_verdict_is_the_most_precise_rank_that_reaches_its_threshold(probabilities, named):
    verdict = verdict_of(WOOD, *probabilities)
    assert (verdict.rank, verdict.name) == named[:2]
    assert verdict.score == pytest.approx(named[2])


def test_nothing_is_named_when_no_rank_reaches_its_threshold():
    verdict = verdict_of(WOOD, 0.30, 0.25, 0.25, 0.20, species=0.9, genus=0.9, family=0.9)
    assert (verdict.rank, verdict.name) == ("uncertain", None)
    assert verdict.score == pytest.approx(0.30)


def test_each_rank_has_its_own_threshold():
    probabilities = (0.45, 0.15, 0.20, 0.20)
    assert verdict_of(WOOD, *probabilities, species=0.4).rank == "species"
    assert verdict_of(WOOD, *probabilities, genus=0.6 - 1e-9).rank == "genus"
    assert verdict_of(WOOD, *probabilities, genus=0.61).rank == "family"
    assert verdict_of(WOOD, *probabilities, genus=0.61, family=0.81).rank == "uncertain"


def test_a_rank_with_a_threshold_of_1_names_nothing():
    found = verdict_of(WOOD, 1.0, 0.0, 0.0, 0.0, species=1.0, genus=1.0, family=1.0)
    assert found.rank == "uncertain"
    assert "this model names no species" in found.reason


def test_threshold_that_is_just_reached_counts():
    verdict = verdict_of(taxonomy_of(species("Rosa canina"), species("Malus alba")), 0.5, 0.5, species=0.5)
    assert (verdict.rank, verdict.score, verdict.reason) == ("species", 0.5, "species 0.50 reaches 0.50.")


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


def test_no_genus_is_named_where_no_allowed_taxon_has_one():
    verdict = verdict_of(FIELD, 0.45, 0.55, 0.0, 0.0, species=0.6, genus=0.0, shared={"genus", "family"})
    assert verdict.reason == "species 0.55 is below 0.60; no genus is known; no family is known."
    assert verdict_of(taxonomy_of(common_only("Maize")), 0.4).rank == "uncertain"


def test_list_length_does_not_change_the_verdict():
    for top_k in (1, 2, 50):
        assert verdict_of(WOOD, 0.30, 0.15, 0.40, 0.15, top_k=top_k).name == "Fagaceae"


def test_the_reason_compares_every_rank_that_was_tried():
    verdict = verdict_of(WOOD, 0.41, 0.52, 0.05, 0.02, species=0.7, genus=0.85)
    assert verdict.reason == "species 0.52 is below 0.70; genus Quercus 0.93 reaches 0.85."


def test_a_verdict_carries_the_promise_of_its_rank():
    promises = Promises(species=Promise(0.05, 0.95, 400, 9), genus=Promise(0.05, 0.95, 310, 7))
    assert verdict_of(WOOD, 0.9, 0.1, 0, 0, promises=promises).promise == promises.species
    assert verdict_of(WOOD, 0.5, 0.5, 0, 0, species=0.6, promises=promises).promise == promises.genus
    assert verdict_of(WOOD, 0.4, 0.1, 0.4, 0.1, species=0.6, genus=0.6, promises=promises).promise is None


def test_rejections_say_what_is_below_what():
    best = rank(np.array([0.9, 0.1, 0, 0]), WOOD).taxa[0]
    shoe, stranger = not_a_plant(best, 0.04, 0.31), unknown_plant(best, 0.012, 0.05)
    assert (shoe.rank, shoe.name, shoe.score, shoe.promise) == ("not_a_plant", None, 0.9, None)
    assert shoe.reason == "plant score 0.04 is below 0.31."
    assert (stranger.rank, stranger.name) == ("uncertain", None)
    assert (shoe.unknown_plant, stranger.unknown_plant) == (False, True)
    assert "familiarity 0.01 is below 0.05" in stranger.reason


def test_a_name_that_all_allowed_taxa_share_is_no_verdict():
    verdict = verdict_of(WOOD, 0.4, 0.6, 0, 0, species=0.7, shared={"genus", "family"})
    assert (verdict.rank, verdict.name, verdict.score) == ("uncertain", None, 0.6)
    assert verdict.reason == (
        "species 0.60 is below 0.70; every allowed taxon is of the genus Quercus; "
        "every allowed taxon is of the family Fagaceae."
    )
    assert verdict_of(WOOD, 0.2, 0.8, 0, 0, species=0.7, shared={"genus", "family"}).name == "Quercus petraea"
    assert verdict_of(WOOD, 0.4, 0.4, 0.2, 0, species=0.7, shared={"family"}).name == "Quercus"


def test_a_family_without_any_probability_is_not_named():
    taxonomy = taxonomy_of(species("Rosa canina"), species("Malus alba"), species("Acer campestre", "Sapindaceae"))
    verdict = verdict_of(taxonomy, 0.5, 0.5, 0, species=0.9, genus=0.9, family=0)
    assert (verdict.rank, verdict.reason.rpartition("; ")[2]) == ("uncertain", "no family is known.")


@settings(max_examples=200, deadline=None)
@given(
    score=st.floats(0, 1),
    threshold=st.floats(0, 1),
)
def test_a_comparison_never_shows_equal_figures_as_below(score, threshold):
    words = comparison(score, threshold).split()
    assert ("reaches" in words) == (score >= threshold)
    if abs(score - threshold) > 1e-15:
        assert (float(words[0]) >= float(words[-1])) == (score >= threshold)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), loose=st.floats(0, 1), strict=st.floats(0, 1))
def test_a_stricter_species_threshold_never_names_more_species(seed, loose, strict):
    loose, strict = sorted((loose, strict))
    taxa_T = np.random.default_rng(seed).dirichlet(np.full(4, 0.5))
    if verdict_of(WOOD, *taxa_T, species=strict).rank == "species":
        assert verdict_of(WOOD, *taxa_T, species=loose).rank == "species"
