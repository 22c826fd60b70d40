import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.evaluation.separation import auroc, cutoff

SCORES = st.lists(st.integers(0, 20).map(lambda value: value / 20), min_size=1, max_size=30).map(np.array)


@given(SCORES, SCORES)
def test_auroc_counts_the_pairs_in_the_right_order(plants, others):
    pairs = (plants[:, None] > others).mean() + (plants[:, None] == others).mean() / 2
    assert auroc(plants, others) == pytest.approx(pairs)


@given(SCORES)
def test_the_cutoff_keeps_95_percent_and_the_next_score_does_not(plants):
    found = cutoff(plants)
    assert (plants >= found).mean() >= 0.95
    higher = plants[plants > found]
    assert len(higher) == 0 or (plants >= higher.min()).mean() < 0.95 + 1 / len(plants)
