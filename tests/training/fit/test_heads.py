import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from models.figures import auroc
from models.taxonomy import Groups
from training.fit.heads import (
    HeadInputs,
    distances_to_others,
    familiar_cutoff,
    fit_features,
    fit_head,
    fit_logistic,
    towards_genera,
)


def draw_features(num_taxa, per_taxon, noise, seed, num_features=40):
    """Features of pictures: their taxon's direction, and noise in all dimensions."""
    directions = np.random.default_rng(7).normal(size=(num_taxa, num_features))
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(num_taxa), per_taxon)
    return directions[labels] + random.normal(0, noise, (len(labels), num_features)), labels


def draw_others(seed):
    return np.random.default_rng(seed).normal(size=(200, 40))


def reduced(table, features):
    """The principal components of features of length 1."""
    return (features / np.linalg.norm(features, axis=1, keepdims=True) - table.center_F) @ table.basis_FD


def from_their_taxa(points, labels):
    """How far each picture lies from the mean of its taxon."""
    return np.concatenate([points[labels == each] - points[labels == each].mean(axis=0) for each in np.unique(labels)])


@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_unseen_pictures_of_known_taxa_are_nearer_than_others(noise):
    """With little noise the training pictures have collapsed, and the unseen ones have more of it."""
    table = fit_features(*draw_features(10, 20, noise, seed=0))
    unseen, _ = draw_features(10, 20, max(noise, 0.4), seed=1)
    assert auroc(-table.distances(unseen), -table.distances(draw_others(2))) > 0.95


def test_the_table_has_one_dimension_less_than_there_are_taxa_and_at_most_256():
    assert fit_features(*draw_features(10, 5, 0.5, seed=0)).basis_FD.shape == (40, 9)
    many = fit_features(*draw_features(300, 2, 0.5, seed=0, num_features=280))
    assert (many.basis_FD.shape, many.mean_TD.shape) == ((280, 256), (300, 256))


def test_after_the_projections_the_covariances_are_the_identity():
    features, labels = draw_features(6, 400, 0.6, seed=0)
    table = fit_features(features, labels)
    points = reduced(table, features)
    np.testing.assert_allclose(np.cov((points * table.whole_D).T, bias=True), np.eye(5), atol=0.01)
    residual = from_their_taxa(points @ table.within_DD, labels)
    np.testing.assert_allclose(np.cov(residual.T, bias=True), np.eye(5), atol=0.12)  # 5 % is added to the variances


@pytest.mark.parametrize("per_taxon", [2, 3, 60])
def test_the_covariance_within_taxa_has_the_size_of_that_of_new_pictures(per_taxon):
    table = fit_features(*draw_features(120, per_taxon, 0.6, seed=0))
    unseen, labels = draw_features(120, 60, 0.6, seed=1)
    residual = from_their_taxa(reduced(table, unseen), labels)
    covariance = residual.T @ residual / (len(residual) - 120)
    fitted = np.linalg.inv(table.within_DD @ table.within_DD.T)
    assert np.trace(fitted) / 1.05 == pytest.approx(np.trace(covariance), rel=0.05)  # a twentieth is added


def test_a_twentieth_of_the_mean_variance_is_added_within_taxa():
    features, labels = draw_features(6, 400, 0.6, seed=0)
    features *= np.linspace(0.5, 2, 40)
    table = fit_features(features, labels)
    residual = from_their_taxa(reduced(table, features), labels)
    covariance = residual.T @ residual / (len(residual) - 6)
    variances = np.linalg.eigvalsh(covariance)
    found = np.linalg.eigvalsh(table.within_DD.T @ covariance @ table.within_DD)
    assert found == pytest.approx(np.sort(variances / (variances + 0.05 * variances.mean())), rel=1e-3)


def test_the_mean_of_few_pictures_is_drawn_towards_its_genus():
    """Species vary by 1 around their genus; the best estimate of one from a picture of variance 1 goes half the way."""
    random = np.random.default_rng(0)
    genera, counts = np.repeat(np.arange(100), 5), np.tile([1, 1, 4, 4, 400], 100)
    species = 5 * random.normal(size=(100, 30))[genera] + random.normal(size=(500, 30))
    plain = species + random.normal(size=(500, 30)) / np.sqrt(counts)[:, None]
    drawn = towards_genera(plain, counts, genera)
    errors = [((means - species) ** 2).mean(axis=1).reshape(100, 5).mean(axis=0) for means in (plain, drawn)]
    assert errors[0] == pytest.approx([1, 1, 0.25, 0.25, 0.0025], rel=0.1)
    # The genus is known to about a third of the species' variance.
    assert errors[1][:4] == pytest.approx([0.57, 0.57, 0.21, 0.21], rel=0.1)
    assert drawn[4::5] == pytest.approx(plain[4::5], abs=0.05)
    assert towards_genera(plain, counts, np.arange(500)) == pytest.approx(plain)  # each alone in its genus


# By hand, of pictures 1, 4 and 2: species vary by 8 - 0.625 around their genus, whose mean is 2.09375; or not at all.
@pytest.mark.parametrize(("means", "drawn"), [((0, 4, 7), (0.25, 3.9375, 7)), ((0, 0.1, 7), (0.08, 0.08, 7))])
def test_a_genus_counts_its_species_by_how_well_they_are_known(means, drawn):
    found = towards_genera(np.array(means)[:, None], np.array([1, 4, 2]), np.array([0, 0, 1]))
    assert found[:, 0] == pytest.approx(drawn)


@pytest.mark.parametrize(("names", "moves"), [(("Rosa",), True), (("",), False)])
def test_taxa_without_a_known_genus_stay_where_they_are(names, moves):
    features, labels = draw_features(10, 2, 2.0, seed=0)
    one_genus = Groups(names, np.zeros(10, dtype=np.intp))
    plain, found = (fit_features(features, labels, genera).mean_TD for genera in (None, one_genus))
    assert np.allclose(plain, found) != moves


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 3))
def test_few_pictures_give_finite_distances(num_taxa, per_taxon):
    table = fit_features(*draw_features(num_taxa, per_taxon, 0.5, seed=0))
    assert np.isfinite(table.distances(draw_others(1))).all()


def test_without_its_taxon_a_plant_is_as_far_as_the_table_of_the_others_says():
    features, labels = draw_features(10, 20, 0.5, seed=0)
    table = fit_features(features, labels)
    unseen, taxa = draw_features(10, 3, 0.5, seed=1)
    found = distances_to_others(table, np.arange(10), unseen, taxa)
    third = replace(table, mean_TD=np.delete(table.mean_TD, 3, axis=0))
    assert found[taxa == 3] == pytest.approx(third.distances(unseen[taxa == 3]))
    assert auroc(found, table.distances(unseen)) > 0.95


def test_the_cutoff_of_familiarity_lies_where_90_percent_of_strangers_are_stopped():
    strange = np.linspace(0, 0.5, 101)
    cut = familiar_cutoff(np.linspace(0.4, 1, 1000), strange)
    assert (strange >= cut).mean() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(("strange", "kept"), [(np.ones(100), 0.85), (np.zeros(100), 0.95), (np.zeros(0), 0.95)])
def test_the_cutoff_of_familiarity_keeps_85_to_95_percent_of_known_plants(strange, kept):
    known = np.random.default_rng(0).random(10_000)
    assert (known >= familiar_cutoff(known, strange)).mean() == pytest.approx(kept, abs=0.001)


NUM_FEATURES = 12


def draw(num_pictures, is_plant, seed, shift=1.0):
    """Pictures whose first feature and both scores tell plants from others."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(num_pictures, NUM_FEATURES))
    features[:, 0] += shift * (1 if is_plant else -1)
    confidence = random.beta(4, 2, num_pictures) if is_plant else random.beta(2, 3, num_pictures)
    return HeadInputs(features, confidence, random.normal(-1 if is_plant else 1, 2, num_pictures))


def with_features(features):
    """Pictures whose scores say nothing."""
    flat = np.full(len(features), 0.5)
    return HeadInputs(features, flat, flat)


def fit(shift=1.0, num_negatives=100):
    return fit_head(draw(300, True, 1, shift), draw(num_negatives, False, 3, shift), np.arange(num_negatives))


def test_the_cutoff_keeps_95_percent_of_plants_where_things_are_near_them():
    fitted = fit()
    kept = (draw(4000, True, 9).scores(fitted.head) >= fitted.cutoff).mean()
    assert kept == pytest.approx(0.95, abs=0.04)


def test_where_plants_and_things_are_far_apart_the_cutoff_lies_between_them():
    fitted = fit(shift=6)
    assert fitted.auroc > 0.999
    assert fitted.cutoff == pytest.approx(0.5, abs=0.01)
    assert (draw(4000, True, 9, 6).scores(fitted.head) >= fitted.cutoff).mean() > 0.995


def test_things_that_look_like_plants_raise_the_cutoff_until_5_percent_of_plants_are_stopped():
    far, alike = draw(300, False, 3, 6), draw(12, True, 5, 6)
    things = HeadInputs.join([far, alike])
    plants = draw(200, True, 2, 6)
    fitted = fit_head(plants, things, np.arange(len(things)))
    assert fitted.cutoff > 0.5
    assert 0.95 <= (draw(4000, True, 9, 6).scores(fitted.head) >= fitted.cutoff).mean() < 0.995


def test_cross_validation_tells_what_new_things_show():
    fitted = fit()
    unseen, plants = draw(4000, False, 8), draw(4000, True, 2)
    accepted = (unseen.scores(fitted.head) >= fitted.cutoff).mean()
    assert (fitted.other_M >= fitted.cutoff).mean() == pytest.approx(accepted, abs=0.12)
    assert fitted.auroc == pytest.approx(auroc(plants.scores(fitted.head), unseen.scores(fitted.head)), abs=0.05)


def test_plants_that_the_fit_can_learn_by_heart_do_not_raise_the_cutoff():
    """With 400 features and 60 plants each fit tells its own plants from the things, and no others."""
    random = np.random.default_rng(10)
    plants, things, unseen = (with_features(random.normal(size=(number, 400))) for number in (60, 60, 2000))
    fitted = fit_head(plants, things, np.arange(60))
    assert fitted.auroc == pytest.approx(0.5, abs=0.15)
    assert (unseen.scores(fitted.head) >= fitted.cutoff).mean() > 0.9


def test_pictures_of_one_group_are_left_out_together():
    """Each group is its own spot among the features: seen without its group, a picture looks like a plant."""
    random = np.random.default_rng(0)
    spots = random.normal(size=(5, 400))
    groups = np.repeat(np.arange(5), 20)
    negatives = with_features(spots[groups] + random.normal(0, 0.05, (100, 400)))
    plants = with_features(random.normal(size=(200, 400)))
    together = fit_head(plants, negatives, groups)
    apart = fit_head(plants, negatives, np.arange(100))
    assert apart.auroc > 0.99
    assert together.auroc < 0.9


def test_plants_and_other_things_weigh_the_same():
    plants, others = draw(300, True, 1), draw(30, False, 2)
    repeated = HeadInputs.join([others] * 9)
    # With nine times as many negatives the data weigh more against the penalty, so that is made up for.
    few = fit_logistic(plants, others, 570 / 330, np.ones(30))
    many = fit_logistic(plants, repeated, 1.0, np.ones(270))
    found, expected = (draw(50, True, 5).scores(head) for head in (few, many))
    np.testing.assert_allclose(found, expected, atol=0.06)


@settings(max_examples=6)
@given(st.integers(2, 12), st.floats(0, 4))
def test_scores_are_probabilities_and_the_log_loss_beats_a_coin(num_negatives, shift):
    fitted = fit(shift, num_negatives)
    scores = draw(100, True, 4, shift).scores(fitted.head)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert 0 <= fitted.cutoff <= 1
    training = np.concatenate(
        [draw(300, True, 1, shift).scores(fitted.head), 1 - draw(num_negatives, False, 3, shift).scores(fitted.head)]
    )
    weights = np.repeat([1 / 300, 1 / num_negatives], [300, num_negatives])
    assert np.average(-np.log(training.clip(1e-12)), weights=weights) <= np.log(2) + 1e-6
