"""Candidate sets nest, are never empty, ignore the order of pictures, and include the right taxon as often as asked."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.candidates import candidate_set, conformal_table

KINDS = st.sampled_from(["marginal", "macro"])
NUM_TAXA = 5337


def some_table(generator, num_taxa=12, num_plants=40):
    taxa_NT = generator.dirichlet(np.full(num_taxa, 0.3), num_plants)
    prior_T = generator.dirichlet(np.ones(num_taxa)) + 1e-6
    return conformal_table(taxa_NT, generator.integers(0, num_taxa, num_plants), prior_T / prior_T.sum())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_pictures=st.integers(1, 5), kind=KINDS)
def test_sets_of_higher_coverage_contain_sets_of_lower_coverage(seed, num_pictures, kind):
    generator = np.random.default_rng(seed)
    table, taxa_BT = some_table(generator), generator.dirichlet(np.full(12, 0.3), num_pictures)
    sets = [set(candidate_set(table, taxa_BT, coverage, kind).tolist()) for coverage in np.linspace(0.01, 0.99, 25)]
    assert all(sets)
    assert all(smaller <= larger for smaller, larger in pairwise(sets))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=KINDS)
def test_the_order_of_pictures_does_not_matter(seed, kind):
    generator = np.random.default_rng(seed)
    table, taxa_BT = some_table(generator), generator.dirichlet(np.full(12, 0.3), 4)
    np.testing.assert_allclose(table.p_values(taxa_BT, kind), table.p_values(taxa_BT[::-1], kind), atol=1e-12)


def test_the_best_conformity_stands_first():
    table = conformal_table(np.array([[0.6, 0.3, 0.1]] * 4), np.array([0, 0, 1, 2]), np.array([0.8, 0.1, 0.1]))
    assert candidate_set(table, np.array([[0.5, 0.3, 0.2]]), 0.9).tolist() == [1, 2, 0]


def test_a_single_picture_counts_itself_among_the_plants():
    # Conformities 0.2, 0.4, 0.6 and 0.8: of five plants, the picture's own included, at most one is below 0.2.
    taxa_NT = np.array([[0.2, 0.8], [0.4, 0.6], [0.6, 0.4], [0.8, 0.2]]) / 2
    table = conformal_table(taxa_NT, np.zeros(4, dtype=np.intp), np.array([0.5, 0.5]))
    np.testing.assert_allclose(table.p_values(np.array([[0.25, 0.05]]), "marginal"), [3 / 5, 1 / 5])


def test_macro_weights_of_every_taxon_sum_to_the_same():
    labels = np.array([0, 0, 0, 1, 3])
    table = conformal_table(np.tile([0.4, 0.3, 0.2, 0.1], (5, 1)), labels, np.full(4, 0.25))
    assert sorted(table.macro_weight_N) == pytest.approx([1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 3])


class LongTail:
    """Generated answers over 5,337 taxa whose shares fall as 1 / rank, with eight rivals of each right taxon."""

    def __init__(self):
        generator = np.random.default_rng(0)
        share_T = 1 / np.arange(1, NUM_TAXA + 1)
        self.share_T = generator.permutation(share_T / share_T.sum())

    def draw(self, num_plants, seed):
        generator = np.random.default_rng(seed)
        labels_N, rows = generator.choice(NUM_TAXA, num_plants, p=self.share_T), np.arange(num_plants)
        logits_NT = generator.normal(0, 1, (num_plants, NUM_TAXA)).astype(np.float32)
        logits_NT[rows, labels_N] += generator.gamma(3, 1.2, num_plants) + 1.5
        for rival in range(1, 8):
            logits_NT[rows, (labels_N + rival) % NUM_TAXA] += 0.8 * generator.gamma(2, 1.2, num_plants)
        logits_NT += np.log(self.share_T)
        logits_NT -= logits_NT.max(axis=1, keepdims=True)
        exponentials_NT = np.exp(logits_NT)
        return exponentials_NT / exponentials_NT.sum(axis=1, keepdims=True), labels_N


@pytest.fixture(scope="module")
def long_tail():
    tail = LongTail()
    return tail.share_T, tail.draw(4000, seed=1), tail.draw(4000, seed=2)


def covered(table, taxa_NT, labels_N, coverage, kind):
    """Coverage of the mean plant and of the mean taxon, and the mean size of the sets."""
    held_NT = np.stack([table.p_values(taxa_NT[row : row + 1], kind) for row in range(len(taxa_NT))]) > 1 - coverage
    hits_N = held_NT[np.arange(len(labels_N)), labels_N]
    macro = np.mean([hits_N[labels_N == taxon].mean() for taxon in np.unique(labels_N)])
    return hits_N.mean(), macro, held_NT.sum(axis=1).mean()


@pytest.mark.parametrize("coverage", [0.80, 0.90, 0.95])
def test_coverage_is_within_a_point_or_its_sampling_error(long_tail, coverage):
    prior_T, calibration, fresh = long_tail
    marginal, _, _ = covered(conformal_table(*calibration, prior_T), *fresh, coverage, "marginal")
    deviation = np.sqrt(2 * coverage * (1 - coverage) / 4000)  # both splits are samples
    assert abs(marginal - coverage) <= max(0.01, 3 * deviation)


def test_macro_coverage_holds_for_the_mean_taxon(long_tail):
    prior_T, calibration, fresh = long_tail
    _, macro, _ = covered(conformal_table(*calibration, prior_T), *fresh, 0.9, "macro")
    assert macro == pytest.approx(0.9, abs=0.03)


def test_the_prior_covers_rare_taxa_at_hardly_larger_sets(long_tail):
    prior_T, calibration, fresh = long_tail
    uniform_T = np.full(NUM_TAXA, 1 / NUM_TAXA)
    _, plain, plain_size = covered(conformal_table(*calibration, uniform_T), *fresh, 0.9, "marginal")
    _, macro, size = covered(conformal_table(*calibration, prior_T), *fresh, 0.9, "marginal")
    assert macro >= plain + 0.10
    assert size <= 1.7 * plain_size
