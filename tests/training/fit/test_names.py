import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from models.outputs import RankScores
from models.ranking import Promises, Thresholds
from training.fit.names import (
    CONFIDENCE,
    GRID,
    LEAST_NAMED,
    MAX_RISK,
    MIN_NAMED,
    fit_threshold,
    fit_thresholds,
)

NUM_DRAWS = 200
# Of 200 draws in which each promise fails with a chance of 5 %, this many fail in one of 10,000 repetitions.
MOST_FAILURES = int(binom.ppf(0.9999, NUM_DRAWS, 1 - CONFIDENCE))
# Scores of plants and whether their names are right, each for twelve plants.
KNOWN = st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60).map(
    lambda plants: tuple(np.repeat(column, 12) for column in np.array(plants).reshape(-1, 2).T)
)


def draw(num_plants, gap, seed):
    """Scores of one rank whose names are wrong with probability 1 - score + gap."""
    random = np.random.default_rng(seed)
    score = random.beta(4, 0.6, num_plants)
    return RankScores(score, random.random(num_plants) >= np.clip(1 - score + gap, 0, 1))


def true_risk(scores, threshold, above=None):
    """Share of wrong names in a large sample; `above` gives the species' scores and threshold of a verdict."""
    named = scores.score_N >= threshold
    if above is not None:
        named &= above[0].score_N < above[1]
    return (~scores.right_N[named]).mean()


@pytest.mark.parametrize(("num_plants", "gap", "promised"), [
    (3000, -0.05, True), (3000, 0.0, True), (3000, 0.03, False), (400, -0.05, True), (400, 0.0, False),
])  # fmt: skip
def test_the_promise_holds_in_95_percent_of_all_draws(num_plants, gap, promised):
    population = draw(200_000, gap, seed=12345)
    found = [fit_threshold(draw(num_plants, gap, seed)) for seed in range(NUM_DRAWS)]
    kept = [each for each in found if each.promise is not None]
    assert (len(kept) > NUM_DRAWS / 2) == promised
    assert sum(true_risk(population, each.threshold) > MAX_RISK + 0.001 for each in kept) <= MOST_FAILURES


def draw_hierarchy(num_plants, gap, genus_gap, seed):
    """Both ranks are wrong with probability 1 - score + gap; a right species has a right genus."""
    random = np.random.default_rng(seed)
    species = random.beta(2, 1, num_plants)
    genus = species + (1 - species) * random.beta(3, 1, num_plants)
    wrong = np.clip(1 - species + gap, 1e-9, 1)
    right = random.random(num_plants) >= wrong
    rescued = random.random(num_plants) >= np.clip(1 - genus + genus_gap, 0, 1) / wrong
    scores = RankScores(species, right), RankScores(genus, right | rescued), RankScores(genus, right | rescued)
    return dict(zip(("species", "genus", "family"), scores, strict=True))


@pytest.mark.slow
# With a gap of 0.03 the species gets its threshold without a promise: from all labels.
@pytest.mark.parametrize(("num_plants", "gap", "genus_gap"), [(3000, 0, 0), (1500, 0.03, -0.02), (3000, 0.02, 0.01)])
def test_the_promise_of_the_genus_holds_although_the_same_plants_chose_the_species_threshold(
    num_plants, gap, genus_gap
):
    population = draw_hierarchy(200_000, gap, genus_gap, seed=12345)
    found = [fit_thresholds(draw_hierarchy(num_plants, gap, genus_gap, seed)) for seed in range(NUM_DRAWS)]
    kept = [each for each in found if each.genus.promise is not None]
    assert len(kept) > NUM_DRAWS / 20
    risks = [
        true_risk(population["genus"], each.genus.threshold, (population["species"], each.species.threshold))
        for each in kept
    ]
    assert sum(risk > MAX_RISK + 0.001 for risk in risks) <= MOST_FAILURES


def test_of_300_named_plants_at_most_8_may_be_wrong():
    right = np.arange(300) >= 8
    found = fit_threshold(RankScores(np.full(300, 0.9995), right))
    assert (found.promise.num_named, found.promise.num_wrong) == (300, 8)
    assert (found.promise.max_risk, found.promise.confidence) == (0.05, 0.95)
    assert found.threshold == GRID[-1]
    right[8] = False
    assert fit_threshold(RankScores(np.full(300, 0.9995), right)).promise is None


def test_too_few_plants_get_the_empirical_threshold_and_no_promise():
    score = np.linspace(0.5, 0.99, 100)
    found = fit_threshold(RankScores(score, score > 0.6))
    named = score >= found.threshold
    assert found.promise is None
    assert (found.num_named, found.num_wrong) == (named.sum(), (score[named] <= 0.6).sum())
    assert found.num_wrong <= 0.05 * found.num_named
    looser = score >= found.threshold - 0.01
    assert (score[looser] <= 0.6).sum() > 0.05 * looser.sum()


@pytest.mark.parametrize("count", [LEAST_NAMED, MIN_NAMED])
def test_a_score_that_equals_a_threshold_reaches_it(count):
    score = np.repeat([0.5, 0.499], count)
    found = fit_threshold(RankScores(score, score == 0.5))
    assert (found.threshold, found.num_named, found.num_wrong) == (0.5, count, 0)


def test_a_threshold_is_at_least_a_half_however_many_names_are_right():
    score, right = np.linspace(0.001, 1, 2000), np.arange(2000) % 40 > 0  # 97.5 % right at every score
    found = fit_threshold(RankScores(score, right))
    assert (found.threshold, found.promise is not None, found.num_named) == (0.5, True, (score >= 0.5).sum())
    assert fit_threshold(RankScores(score[::10], np.ones(200, dtype=bool))).threshold == 0.5  # too few for a promise


def test_fewer_than_20_plants_give_a_threshold_of_0_9_and_a_warning():
    few = RankScores(np.append(np.full(LEAST_NAMED - 1, 0.95), np.full(50, 0.4)), np.zeros(69, dtype=bool))
    unnamed = RankScores(np.full(69, -1.0), few.right_N)
    found = fit_thresholds({"species": few, "genus": few, "family": unnamed})
    assert (found.thresholds, found.promises) == (Thresholds(0.9, 0.9, 0.9), Promises())
    assert (found.species.num_named, found.genus.num_named) == (19, 0)
    guesses, *unfitted = found.warnings
    assert guesses.startswith("Names are guesses: ")
    assert "A promise needs 300 of them that get a name" in guesses
    assert [warning.split(" is 0.9")[0] for warning in unfitted] == [
        "The threshold of species",
        "The threshold of genus",
    ]


@pytest.mark.parametrize(("num_wrong", "threshold"), [(1, 0.5), (2, 0.9), (5, 1.0)])
def test_few_plants_name_from_0_9_unless_they_refute_that_such_names_are_right(num_wrong, threshold):
    found = fit_threshold(RankScores(np.ones(LEAST_NAMED), np.arange(LEAST_NAMED) >= num_wrong))
    assert (found.threshold, found.has_few_plants) == (threshold, threshold == 0.9)
    assert found.num_named == (0 if threshold == 1.0 else LEAST_NAMED)  # a score of exactly 1 is no exception


def test_many_plants_without_a_threshold_that_holds_are_not_named():
    right = np.arange(MIN_NAMED) % 14 > 0  # 93 % right at every score
    assert fit_threshold(RankScores(np.full(MIN_NAMED, 0.95), right)).threshold == 1.0


def test_a_bundle_that_names_next_to_nothing_is_not_sealed_in_silence():
    unsure = RankScores(np.full(240, 0.45), np.ones(240, dtype=bool))
    found = fit_thresholds({"species": unsure, "genus": unsure, "family": unsure})
    assert any(warning.startswith("Only 0 of 240 calibration plants get a name, so") for warning in found.warnings)


def test_a_threshold_that_is_given_is_kept_and_has_no_promise():
    scores = {rank: draw(3000, -0.05, seed) for seed, rank in enumerate(("species", "genus", "family"))}
    fitted, given = fit_thresholds(scores), fit_thresholds(scores, {"species": 0.97})
    assert fitted.promises.species is not None
    assert (given.thresholds.species, given.promises.species) == (0.97, None)
    assert given.genus != fitted.genus  # other plants are left for it


@pytest.mark.parametrize("mistaken_N", [None, np.arange(3000) % 4 == 0])
def test_finer_ranks_leave_fewer_plants(mistaken_N):
    scores = draw_hierarchy(3000, 0.0, 0.0, seed=1)
    found = fit_thresholds(scores, mistaken_N=mistaken_N)
    limit_N = np.full(3000, found.thresholds.species)
    if mistaken_N is not None:
        limit_N[mistaken_N] = found.mistaken.threshold
    named = scores["species"].score_N >= limit_N
    left = scores["genus"].subset(~named)
    assert found.genus.num_named == (left.score_N >= found.thresholds.genus).sum()
    assert found.species.num_named + found.genus.num_named + found.family.num_named <= 3000


@given(KNOWN, st.integers(0, 59))
def test_more_right_names_never_take_a_promise_away_nor_raise_its_threshold(plants, at):
    score, right = plants[0], plants[1].astype(bool)
    before = fit_threshold(RankScores(score, right))
    right[12 * at : 12 * at + 12] = True
    after = fit_threshold(RankScores(score, right))
    if before.promise is not None:
        assert after.promise is not None
        assert after.threshold <= before.threshold
    elif after.promise is None:
        assert after.threshold <= before.threshold


@given(KNOWN)
def test_a_promise_states_what_was_counted(plants):
    score, right = plants[0], plants[1].astype(bool)
    found = fit_threshold(RankScores(score, right))
    named = (score >= found.threshold) & (found.threshold < 1)
    assert (found.num_named, found.num_wrong) == (named.sum(), (named & ~right).sum())
    if found.promise is not None:
        assert found.num_named >= MIN_NAMED
        assert binom.cdf(found.num_wrong, found.num_named, MAX_RISK) <= 1 - CONFIDENCE
