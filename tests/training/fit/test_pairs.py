"""Paired losses of two networks: the interval is the published one, and holds the true loss as often as it says."""

import numpy as np
import pytest
from scipy.stats import binom, multinomial

from tests.make import cases
from training.fit.pairs import paired_loss, tango_interval


def chances(total, lost, won):
    """Every pair of counts that is not very unlikely, with its exact probability."""
    most = [int(binom.ppf(1 - 1e-9, total, share)) for share in (lost, won)]
    shares = [lost, won, 1 - lost - won]
    for first in range(most[0] + 1):
        for second in range(most[1] + 1):
            yield first, second, multinomial.pmf([first, second, total - first - second], total, shares)


def test_a_published_interval_is_reproduced():
    # Airway reactivity before and after stem cell transplantation, as in Fagerland, Lydersen and Laake 2014.
    assert tango_interval(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)


@pytest.mark.parametrize(("total", "lost", "won"), cases(__file__, "paired_losses"))
def test_a_true_loss_of_half_a_point_passes_in_at_most_2_5_percent(total, lost, won):
    released = sum(chance for a, b, chance in chances(total, lost, won) if tango_interval(a, b, total)[1] < 0.005)
    assert released <= 0.0255


@pytest.mark.parametrize(("lost", "won"), cases(__file__, "paired_shares"))
def test_95_percent_of_the_intervals_hold_the_true_loss(lost, won):
    covered = 0.0
    for a, b, chance in chances(500, lost, won):
        low, high = tango_interval(a, b, 500)
        covered += chance * (low <= lost - won <= high)
    assert 0.94 <= covered <= 0.985


def test_fewer_than_765_pictures_can_show_no_loss_under_half_a_point():
    assert tango_interval(0, 0, 764)[1] >= 0.005
    assert tango_interval(0, 0, 765)[1] < 0.005


@pytest.mark.parametrize("counts", cases(__file__, "paired_counts"))
def test_extreme_counts_give_an_interval_around_what_was_found(counts):
    lost, won, total = counts
    low, high = tango_interval(*counts)
    assert -1 <= low <= (lost - won) / total <= high <= 1
    assert high > low


def test_only_pictures_that_a_single_network_answers_correctly_count():
    first = np.array([True, True, True, False, False, True])
    second = np.array([True, False, False, True, False, True])
    loss = paired_loss(first, second)
    assert loss.num_pictures == 6
    assert loss.value == pytest.approx(1 / 6)
    assert loss.interval_95 == tango_interval(2, 1, 6)
