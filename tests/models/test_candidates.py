"""Candidate sets nest, are never empty, ignore the order of pictures, and include the right taxon as often as asked."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.calibration import candidate_set, conformal_table_of
from tests.models.long_tail import NUM_TAXA, LongTail, set_figures
from tests.models.tiny import conformal_table

KINDS = st.sampled_from(["marginal", "macro"])


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


def test_an_empty_set_is_filled_with_the_taxon_that_conforms_best():
    table = conformal_table(np.array([[0.6, 0.3, 0.1]] * 4), np.array([0, 0, 1, 2]), np.array([0.8, 0.1, 0.1]))
    taxa_BT = np.array([[0.9, 0.06, 0.04]])  # conformities 1.125, 0.6 and 0.4, against 0.75, 0.75, 1 and 3
    assert table.p_values(taxa_BT, "marginal") == pytest.approx([0.8, 0.2, 0.2])
    assert candidate_set(table, taxa_BT, 0.9).tolist() == [0, 1, 2]
    assert candidate_set(table, taxa_BT, 0.1).tolist() == [0]


def test_a_taxon_whose_p_value_equals_the_risk_is_left_out():
    table = conformal_table(np.array([[0.4, 0.6], [0.4, 0.6], [0.8, 0.2]]), np.zeros(3, np.intp), np.array([0.5, 0.5]))
    taxa_BT = np.array([[0.9, 0.4]])  # p-values 1 and 3/4
    assert table.p_values(taxa_BT, "marginal").tolist() == [1, 0.75]
    assert candidate_set(table, taxa_BT, 0.25).tolist() == [0]
    assert candidate_set(table, taxa_BT, 0.26).tolist() == [0, 1]


def test_a_single_picture_counts_itself_among_the_plants():
    # Conformities 0.2, 0.4, 0.6 and 0.8: of five plants, the picture's own included, at most one is below 0.2.
    taxa_NT = np.array([[0.2, 0.8], [0.4, 0.6], [0.6, 0.4], [0.8, 0.2]]) / 2
    table = conformal_table(taxa_NT, np.zeros(4, dtype=np.intp), np.array([0.5, 0.5]))
    np.testing.assert_allclose(table.p_values(np.array([[0.25, 0.05]]), "marginal"), [3 / 5, 1 / 5])


def test_p_values_of_two_pictures_are_twice_their_mean():
    table = conformal_table_of(np.array([0.2, 0.4, 0.6, 0.8]), np.zeros(4, dtype=np.intp), np.ones(1))
    taxa_BT = np.array([[0.3, 0.1, 0.9], [0.1, 0.1, 0.5]])  # alone 2/5, 1/5 and 1; 1/5, 1/5 and 3/5
    np.testing.assert_allclose(table.p_values(taxa_BT, "marginal"), [3 / 5, 2 / 5, 1])
    np.testing.assert_allclose(table.p_values(taxa_BT, "macro"), [3 / 4, 2 / 4, 1])  # alone 2/4, 1/4 and 5/4


def test_two_pictures_are_covered_even_if_one_is_good_where_the_other_is_bad():
    generator = np.random.default_rng(0)
    table = conformal_table_of(generator.random(999), np.zeros(999, dtype=np.intp), np.ones(1))
    first_T = generator.random(10_000)
    second_T = np.where(first_T < 0.19, 0.19 - first_T, first_T)  # as often as the first below any value
    assert (table.p_values(np.stack([first_T, second_T]), "marginal") > 0.1).mean() >= 0.9


def test_macro_weights_of_every_taxon_sum_to_the_same_and_are_in_the_order_of_conformity():
    table = conformal_table_of(np.array([0.4, 0.1, 0.3, 0.2, 0.05]), np.array([0, 1, 0, 0, 3]), np.ones(4))
    assert table.macro_weight_N == pytest.approx([1 / 3, 1 / 3, 1 / 9, 1 / 9, 1 / 9])


@pytest.mark.parametrize("num_plants", [(1, 1, 1), (1, 2, 6), (5, 1, 1)])
@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
def test_macro_coverage_holds_with_few_plants_of_each_taxon(num_plants, spread):
    """The taxa lie apart by `spread`, so the mean over plants and the mean over taxa differ."""
    generator, labels, num_draws = np.random.default_rng(0), np.repeat(np.arange(3), num_plants), 1000
    p_values = np.empty((num_draws, 3))
    for draw in range(num_draws):
        table = conformal_table(
            np.tile((generator.random(len(labels)) + spread * labels)[:, None], 3), labels, np.ones(3)
        )
        p_values[draw] = table.p_values((generator.random(3) + spread * np.arange(3))[None], "macro")
    for coverage in (0.5, 0.6, 0.8):
        covered = (p_values > 1 - coverage).mean()
        assert covered >= coverage - 4 * np.sqrt(coverage * (1 - coverage) / (3 * num_draws))


@pytest.fixture(scope="module")
def long_tail():
    tail = LongTail()
    return tail.share_T, tail.draw(4000, seed=1), tail.draw(4000, seed=2)


@pytest.fixture(scope="module")
def table(long_tail):
    prior_T, calibration, _ = long_tail
    return conformal_table(*calibration, prior_T)


@pytest.mark.parametrize(
    "coverage", [pytest.param(0.80, marks=pytest.mark.slow), 0.90, pytest.param(0.95, marks=pytest.mark.slow)]
)
def test_coverage_is_within_a_point_or_its_sampling_error(long_tail, table, coverage):
    _, _, fresh = long_tail
    marginal, _, _ = set_figures(table, *fresh, "marginal", coverage)
    deviation = np.sqrt(2 * coverage * (1 - coverage) / 4000)  # both splits are samples
    assert abs(marginal - coverage) <= max(0.01, 3 * deviation)


def test_macro_coverage_holds_for_the_mean_taxon(long_tail, table):
    _, _, fresh = long_tail
    _, macro, _ = set_figures(table, *fresh, "macro", 0.9)
    assert macro == pytest.approx(0.9, abs=0.03)


def test_the_prior_covers_rare_taxa_at_hardly_larger_sets(long_tail, table):
    _, calibration, fresh = long_tail
    uniform_T = np.full(NUM_TAXA, 1 / NUM_TAXA)
    _, plain, plain_size = set_figures(conformal_table(*calibration, uniform_T), *fresh, "marginal", 0.9)
    _, macro, size = set_figures(table, *fresh, "marginal", 0.9)
    assert macro >= plain + 0.10
    assert size <= 1.7 * plain_size


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=KINDS, coverage=st.floats(0.01, 0.99))
def test_the_set_of_one_picture_holds_the_taxa_from_the_least_conformity_on(seed, kind, coverage):
    generator = np.random.default_rng(seed)
    table, taxa_T = some_table(generator), generator.dirichlet(np.full(12, 0.3))
    conformity_T = taxa_T / table.prior_T
    chosen = np.flatnonzero(conformity_T >= table.least_conformity(coverage, kind)).tolist()
    assert candidate_set(table, taxa_T[None], coverage, kind).tolist() == (chosen or [conformity_T.argmax()])
