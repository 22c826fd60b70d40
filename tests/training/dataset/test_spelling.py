import time

import pytest

from training.dataset.classes import similar_pairs


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("hieraciifolius", "hieracifolius"),  # a letter is missing
        ("sylvestris", "silvestris"),  # another letter
        ("thunbergii", "thunbergi"),
        ("albus", "alba"),  # another ending
        ("chinensis", "chinense"),
        ("hieraciifolius", "hieracifolia"),  # both
    ],
)
def test_epithets_one_letter_or_one_ending_apart_are_similar(first, second):
    assert similar_pairs(["vulgaris", first, "repens", second]) == [(1, 3)]


@pytest.mark.parametrize("pair", [("alpina", "alba"), ("alba", "nigra"), ("major", "minor"), ("alba", "alba")])
def test_other_epithets_are_not(pair):
    assert similar_pairs(pair) == []


@pytest.mark.slow
def test_a_genus_of_thousands_is_compared_quickly():
    letters = "abcdefghijklmnopqrst"
    epithets = [f"{a}{b}{c}orix{c}{a}{b}x" for a in letters for b in letters for c in letters]
    start = time.process_time()
    assert similar_pairs(epithets) == []
    assert time.process_time() - start < 20
