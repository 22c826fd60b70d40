"""Logits become calibrated probabilities, taxa, genera, families, and a verdict."""

import numpy as np
import pytest

from models.ranking import (
    Thresholds,
    combine_pictures,
    output_probabilities,
    rank,
    sum_groups,
    taxon_probabilities,
)
from tests.models.tiny import TAXONOMY, genus_only, species, taxonomy_of


def logits_of(*probabilities):
    return np.log(np.array(probabilities))


def ranked(taxonomy, *probabilities, top_k=5, **thresholds):
    """The ranking for probabilities of the outputs, which sum to 1."""
    assert sum(probabilities) == pytest.approx(1)
    return rank(logits_of(*probabilities), taxonomy, 1.0, Thresholds(**thresholds), top_k)


# ---- probabilities


def test_probabilities_sum_to_one():
    generator = np.random.default_rng(1)
    for temperature in (0.3, 1.0, 4.0):
        probabilities = output_probabilities(generator.normal(0, 10, (7, 5, 333)).astype(np.float32), temperature)
        assert (probabilities.shape, probabilities.dtype) == ((7, 5, 333), np.float64)
        assert (probabilities >= 0).all()
        np.testing.assert_allclose(probabilities.sum(axis=-1), 1, rtol=1e-12)


@pytest.mark.parametrize("shift", [0, 1e4, -1e4, 3e38, -3e38])
def test_huge_logits_do_not_overflow(shift):
    logits = np.array([0.0, 1.0, 2.0]) * max(1.0, abs(shift) * 1e-12) + shift
    probabilities = output_probabilities(logits, 1.0)
    assert np.isfinite(probabilities).all()
    assert probabilities.sum() == pytest.approx(1)
    assert probabilities.argmax() == 2


def test_shifted_logits_give_the_same_probabilities():
    logits = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(output_probabilities(logits + 1000, 0.7), output_probabilities(logits, 0.7), rtol=1e-9)


def test_softmax_is_the_textbook_one():
    np.testing.assert_allclose(output_probabilities(logits_of(0.2, 0.3, 0.5), 1.0), [0.2, 0.3, 0.5], rtol=1e-12)


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


def test_groups_are_summed_over_the_last_axis():
    values = np.arange(24.0).reshape(2, 3, 4)
    summed = sum_groups(values, np.array([2, 0, 2, 2]), 4)
    assert summed.shape == (2, 3, 4)
    np.testing.assert_array_equal(summed[..., 0], values[..., 1])
    np.testing.assert_array_equal(summed[..., 2], values[..., 0] + values[..., 2] + values[..., 3])
    np.testing.assert_array_equal(summed[..., [1, 3]], 0)


def test_taxon_of_two_outputs_beats_a_stronger_single_output():
    answer = ranked(TAXONOMY, 0.40, 0.30, 0.25, 0.05)
    assert [entry.taxon.scientific_name for entry in answer.taxa] == ["Bellis perennis", "Rosa canina", "Crocus"]
    assert [entry.score for entry in answer.taxa] == pytest.approx([0.55, 0.40, 0.05])


def test_no_score_ever_passes_one():
    taxonomy = taxonomy_of(*(species(f"Rosa {number:03d}", "Rosaceae") for number in range(150)))
    generator = np.random.default_rng(3)
    for _ in range(40):
        answer = rank(generator.normal(0, 2, 150), taxonomy, 1.0, Thresholds(species=1.0, genus=1.0))
        scores = [entry.score for entry in (*answer.taxa, *answer.genera, *answer.families, answer.verdict)]
        assert all(0 <= score <= 1 for score in scores)
        assert answer.genera[0].score == pytest.approx(1, abs=1e-12)


# ---- several pictures


def test_pictures_of_one_plant_are_combined_by_the_mean_of_their_logits():
    logits = np.array([[1.0, 3.0], [2.0, -1.0], [3.0, 4.0]], dtype=np.float32)
    np.testing.assert_allclose(combine_pictures(logits), [2.0, 2.0])
    assert combine_pictures(logits).dtype == np.float64


def test_one_picture_combines_to_itself():
    np.testing.assert_array_equal(combine_pictures(np.array([[0.25, -7.0]])), [0.25, -7.0])


def test_combined_pictures_are_the_geometric_mean_of_their_probabilities():
    first, second = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.6, 0.1])
    geometric = np.sqrt(first * second)
    combined = output_probabilities(combine_pictures(np.log([first, second])), 1.0)
    np.testing.assert_allclose(combined, geometric / geometric.sum())


# ---- verdict

WOOD = taxonomy_of(
    species("Quercus robur", "Fagaceae"),
    species("Quercus petraea", "Fagaceae"),
    species("Fagus sylvatica", "Fagaceae"),
    species("Acer campestre", "Sapindaceae"),
)


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
    verdict = ranked(WOOD, *probabilities).verdict
    assert (verdict.rank, verdict.name) == named[:2]
    assert verdict.score == pytest.approx(named[2])
    assert named[0] in verdict.reason


def test_nothing_is_named_when_no_rank_reaches_its_threshold():
    verdict = ranked(WOOD, 0.30, 0.25, 0.25, 0.20, species=0.9, genus=0.9, family=0.9).verdict
    assert (verdict.rank, verdict.name) == ("uncertain", None)
    assert verdict.score == pytest.approx(0.30)
    assert verdict.reason


def test_each_rank_has_its_own_threshold():
    probabilities = (0.45, 0.15, 0.20, 0.20)
    assert ranked(WOOD, *probabilities, species=0.4).verdict.rank == "species"
    assert ranked(WOOD, *probabilities, genus=0.6 - 1e-9).verdict.rank == "genus"
    assert ranked(WOOD, *probabilities, genus=0.61).verdict.rank == "family"
    assert ranked(WOOD, *probabilities, genus=0.61, family=0.81).verdict.rank == "uncertain"


def test_threshold_that_is_just_reached_counts():
    taxonomy = taxonomy_of(species("Rosa canina"), species("Malus alba"))
    answer = rank(np.zeros(2), taxonomy, 1.0, Thresholds(species=0.5))
    assert (answer.verdict.rank, answer.verdict.score) == ("species", 0.5)


def test_taxon_of_rank_genus_is_never_named_a_species():
    taxonomy = taxonomy_of(genus_only("Crocus", "Iridaceae"), species("Rosa canina", "Rosaceae"))
    verdict = ranked(taxonomy, 0.999, 0.001).verdict
    assert (verdict.rank, verdict.name) == ("genus", "Crocus")
    verdict = ranked(taxonomy, 0.999, 0.001, genus=1.0).verdict
    assert (verdict.rank, verdict.name) == ("family", "Iridaceae")


def test_taxon_of_rank_genus_counts_for_its_genus():
    taxonomy = taxonomy_of(genus_only("Crocus"), species("Crocus vernus"), species("Rosa canina"))
    answer = ranked(taxonomy, 0.30, 0.30, 0.40)
    assert [(group.name, pytest.approx(group.score)) for group in answer.genera] == [("Crocus", 0.6), ("Rosa", 0.4)]
    assert (answer.verdict.rank, answer.verdict.name) == ("genus", "Crocus")


def test_spread_genus_and_family_sum_the_full_distribution():
    spread = [species(f"Salix {number}", "Salicaceae") for number in range(20)]
    alone = [
        species(name, f"{name.split()[0]}aceae") for name in ("Rosa a", "Malus a", "Acer a", "Bellis a", "Fagus a")
    ]
    taxonomy = taxonomy_of(*alone, *spread)
    answer = ranked(taxonomy, *[0.08] * 5, *[0.03] * 20, top_k=5)
    assert "Salix" not in {entry.taxon.genus for entry in answer.taxa}, "a roll-up of the listed taxa would miss it"
    assert (answer.genera[0].name, answer.families[0].name) == ("Salix", "Salicaceae")
    assert answer.genera[0].score == answer.families[0].score == pytest.approx(0.6)
    assert (answer.verdict.rank, answer.verdict.name) == ("genus", "Salix")


def test_unknown_family_is_neither_listed_nor_named():
    taxonomy = taxonomy_of(species("Rosa canina"), species("Malus alba"), species("Acer campestre", "Sapindaceae"))
    answer = ranked(taxonomy, 0.45, 0.45, 0.10)
    assert [(group.name, pytest.approx(group.score)) for group in answer.families] == [("Sapindaceae", 0.10)]
    assert answer.verdict.rank == "uncertain"


def test_taxonomy_without_families_has_an_answer():
    taxonomy = taxonomy_of(species("Rosa canina"), species("Malus alba"))
    answer = ranked(taxonomy, 0.51, 0.49, species=0.9, genus=0.9)
    assert (answer.families, answer.verdict.rank) == ([], "uncertain")


# ---- lists


def test_asking_for_more_than_there_is_lists_everything():
    answer = ranked(WOOD, 0.4, 0.3, 0.2, 0.1, top_k=50)
    assert [len(answer.taxa), len(answer.genera), len(answer.families)] == [4, 3, 2]
    assert sum(entry.score for entry in answer.taxa) == pytest.approx(1)
    assert sum(group.score for group in answer.genera) == pytest.approx(1)
    assert sum(group.score for group in answer.families) == pytest.approx(1)


def test_lists_are_cut_at_the_wanted_length_and_run_from_the_best():
    answer = ranked(WOOD, 0.1, 0.2, 0.3, 0.4, top_k=2)
    assert [entry.taxon.scientific_name for entry in answer.taxa] == ["Acer campestre", "Fagus sylvatica"]
    assert [len(answer.genera), len(answer.families)] == [2, 2]
    assert [group.name for group in answer.families] == ["Fagaceae", "Sapindaceae"]


def test_equal_scores_keep_the_order_of_the_taxonomy():
    names = ["Malus a", "Acer b", "Rosa c", "Bellis d", "Fagus e"]
    taxonomy = taxonomy_of(*(species(name) for name in names))
    answer = rank(np.zeros(5), taxonomy, 1.0, Thresholds())
    assert [entry.taxon.scientific_name for entry in answer.taxa] == names
    assert [group.name for group in answer.genera] == sorted(name.split()[0] for name in names)


def test_lists_are_the_beginning_of_the_whole_ranking():
    """Only the best are sorted; ties at the limit and the family "" must not change the result."""
    random = np.random.default_rng(0)
    names = [(f"Genus{number % 7} s{number}", ("", "Aceae", "Beae")[number % 3]) for number in range(60)]
    taxonomy = taxonomy_of(*(species(*name) for name in names))
    for _ in range(20):
        logits = random.integers(0, 4, 60).astype(float)
        whole, first = (rank(logits, taxonomy, 1.0, Thresholds(), top_k) for top_k in (60, 5))
        assert first.taxa == whole.taxa[:5]
        assert first.taxa == sorted(whole.taxa, key=lambda entry: -entry.score)[:5]
        assert (first.genera, first.families) == (whole.genera[:5], whole.families)
        assert rank(logits, taxonomy, 1.0, Thresholds(), 1).families == whole.families[:1]


def test_list_length_does_not_change_the_verdict():
    for top_k in (1, 2, 50):
        assert ranked(WOOD, 0.30, 0.15, 0.40, 0.15, top_k=top_k).verdict.name == "Fagaceae"


def test_temperature_reaches_the_answer():
    logits = logits_of(0.6, 0.2, 0.1, 0.1)
    sharp, flat = (rank(logits, WOOD, temperature, Thresholds()) for temperature in (0.5, 3.0))
    assert sharp.taxa[0].score > 0.6 > flat.taxa[0].score
    assert (sharp.verdict.rank, flat.verdict.rank) == ("species", "genus")
