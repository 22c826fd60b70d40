"""Logits become calibrated probabilities, and probabilities become ranked taxa, genera and families."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.ranking import (
    combine_pictures,
    output_probabilities,
    rank,
    sum_groups,
    taxon_probabilities,
)
from tests.models.tiny import TAXONOMY, genus_only, species, taxonomy_of


def logits_of(*probabilities):
    return np.log(np.array(probabilities))


def ranked(taxonomy, *probabilities, top_k=5):
    """The ranking for probabilities of the outputs, which sum to 1."""
    assert sum(probabilities) == pytest.approx(1)
    return rank(taxon_probabilities(np.array(probabilities), taxonomy), taxonomy, top_k)


WOOD = taxonomy_of(
    species("Quercus robur", "Fagaceae"),
    species("Quercus petraea", "Fagaceae"),
    species("Fagus sylvatica", "Fagaceae"),
    species("Acer campestre", "Sapindaceae"),
)


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


def test_one_picture_combines_to_itself():
    np.testing.assert_array_equal(combine_pictures(np.array([[0.25, -7.0]]), np.ones(1)), [0.25, -7.0])


def test_combined_pictures_are_the_geometric_mean_of_their_probabilities():
    first, second = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.6, 0.1])
    geometric = np.sqrt(first * second)
    combined = output_probabilities(combine_pictures(np.log([first, second]), np.array([0.5, 0.5])), 1.0)
    np.testing.assert_allclose(combined, geometric / geometric.sum())


# ---- genera and families


@settings(max_examples=60, deadline=None)
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


def test_unknown_family_is_not_listed():
    taxonomy = taxonomy_of(species("Rosa canina"), species("Malus alba"), species("Acer campestre", "Sapindaceae"))
    answer = ranked(taxonomy, 0.45, 0.45, 0.10)
    assert [(group.name, pytest.approx(group.score)) for group in answer.families] == [("Sapindaceae", 0.10)]


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
