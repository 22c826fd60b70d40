import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.bundling.plant_head import HeadInputs, fit_logistic, fit_plant_head

NUM_FEATURES = 12


def draw(num_pictures, is_plant, seed, shift=1.0):
    """Pictures whose first feature and both scores tell plants from others."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(num_pictures, NUM_FEATURES))
    features[:, 0] += shift * (1 if is_plant else -1)
    confidence = random.beta(4, 2, num_pictures) if is_plant else random.beta(2, 3, num_pictures)
    return HeadInputs(features, confidence, random.normal(-1 if is_plant else 1, 2, num_pictures))


def fit(shift=1.0, num_negatives=100, groups=None):
    negatives = draw(num_negatives, False, 3, shift)
    groups = np.arange(num_negatives) if groups is None else groups
    return fit_plant_head(draw(300, True, 1, shift), draw(200, True, 2, shift), negatives, groups)


def test_the_cutoff_keeps_95_percent_of_plants_where_things_are_near_them():
    fitted = fit()
    calibration = draw(200, True, 2)
    assert (calibration.scores(fitted.head) >= fitted.cutoff).mean() >= 0.95
    kept = (draw(4000, True, 9).scores(fitted.head) >= fitted.cutoff).mean()
    assert kept == pytest.approx(0.95, abs=0.04)


def test_where_plants_and_things_are_far_apart_the_cutoff_lies_between_them():
    fitted = fit(shift=6)
    assert fitted.auroc > 0.999
    assert fitted.cutoff == pytest.approx(0.5, abs=0.01)
    assert (draw(4000, True, 9, 6).scores(fitted.head) >= fitted.cutoff).mean() > 0.995


def test_things_that_look_like_plants_raise_the_cutoff_until_5_percent_of_plants_are_stopped():
    far, alike = draw(300, False, 3, 6), draw(12, True, 5, 6)
    things = HeadInputs(
        *(np.concatenate([getattr(each, name) for each in (far, alike)]) for name in far.__struct_fields__)
    )
    plants = draw(200, True, 2, 6)
    fitted = fit_plant_head(draw(300, True, 1, 6), plants, things, np.arange(len(things)))
    assert fitted.cutoff > 0.5
    assert (plants.scores(fitted.head) >= fitted.cutoff).mean() == pytest.approx(0.95, abs=0.006)


def test_cross_validation_tells_what_new_things_show():
    fitted = fit()
    unseen, plants = draw(4000, False, 8), draw(200, True, 2)
    accepted = (unseen.scores(fitted.head) >= fitted.cutoff).mean()
    assert fitted.accepted_M.mean() == pytest.approx(accepted, abs=0.12)
    from_pairs = (plants.scores(fitted.head)[:, None] > unseen.scores(fitted.head)).mean()
    assert fitted.auroc == pytest.approx(from_pairs, abs=0.05)


def test_pictures_of_one_group_are_left_out_together():
    """Each group is its own spot among the features: seen without its group, a picture looks like a plant."""
    random = np.random.default_rng(0)
    spots = random.normal(size=(5, 400))
    groups = np.repeat(np.arange(5), 20)
    features = spots[groups] + random.normal(0, 0.05, (100, 400))
    flat = np.full(100, 0.5)
    negatives = HeadInputs(features, flat, flat)
    plants = [HeadInputs(random.normal(size=(200, 400)), np.full(200, 0.5), np.full(200, 0.5)) for _ in range(2)]
    together = fit_plant_head(*plants, negatives, groups)
    apart = fit_plant_head(*plants, negatives, np.arange(100))
    assert apart.auroc > 0.99
    assert together.auroc < 0.9


def test_plants_and_other_things_weigh_the_same():
    plants, others = draw(300, True, 1), draw(30, False, 2)
    repeated = HeadInputs(*(np.concatenate([getattr(others, name)] * 9) for name in HeadInputs.__struct_fields__))
    # With nine times as many negatives the data weigh more against the penalty, so that is made up for.
    few = fit_logistic(plants, others, strength=570 / 330)
    many = fit_logistic(plants, repeated, strength=1.0)
    found, expected = (draw(50, True, 5).scores(head) for head in (few, many))
    np.testing.assert_allclose(found, expected, atol=0.06)


@settings(deadline=None, max_examples=6)
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
