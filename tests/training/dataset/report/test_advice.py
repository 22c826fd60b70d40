import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.training.dataset.report.sample_report import PICTURES, collection, make_report, picture
from training.dataset.report.advice import advice
from training.dataset.report.schema import NameFinding, NameFindings
from training.dataset.splits import Shares, draw_splits


def named(*names):
    return make_report(names=NameFindings(common=tuple(NameFinding(name=name) for name in names)))


def of_size(number, share=0.1, **record):
    """The report on one class with so many pictures, each of its own plant."""
    pictures = [picture(f"rose/{each}.jpg", **record) for each in range(number)]
    names = [str(each) for each in range(number)]
    splits = draw_splits(pictures, np.arange(number), names, Shares(validation=share), seed=0)
    return make_report(pictures, splits, rules=collection(validation_share=share))


def test_names_that_are_no_plants_are_counted_and_ten_are_shown():
    (sentence,) = [each for each in advice(named(*"abcdefghijkl")) if "read as plants" in each]
    assert "have no genus: 12 (a, b, c, d, e, f, g, h, i, j, and 2 more). " in sentence
    (sentence,) = [each for each in advice(named("Maize")) if "read as plants" in each]
    assert "have no genus: 1 (Maize). " in sentence
    assert "Common (Scientific)" in sentence


def test_misspelt_genera_are_told_with_the_ones_that_may_be_meant():
    finding = NameFinding(name="Qercus robur", explanation="no listed genus; perhaps Quercus")
    sentences = advice(make_report(names=NameFindings(misspelt=(finding,))))
    assert "Genera that may be misspelt: 1 (Qercus robur: no listed genus; perhaps Quercus)." in sentences


@given(st.integers(2, 30))
def test_the_share_that_is_advised_gives_the_class_a_validation_picture(number):
    sentences = advice(of_size(number))
    if number >= 6:
        assert sentences == []
        return
    (sentence,) = sentences
    assert f"too small for a validation picture, with their training pictures: 1 (Rosa × alba {number}). " in sentence
    share = float(sentence.partition("--validation-share ")[2].partition(" ")[0])
    assert advice(of_size(number, share)) == []


def test_a_class_with_one_picture_needs_another():
    (sentence,) = advice(of_size(1))
    assert sentence.endswith("(Rosa × alba 1). A class needs two pictures or more for that.")


def test_no_share_helps_where_the_data_set_publishes_its_validation_split():
    published = [picture(f"iris/{each}.jpg", "wild:iris-lutea", split="validation") for each in range(2)]
    report = make_report([*PICTURES, *published], ["train"] * len(PICTURES) + ["validation"] * 2)
    assert report.sources[0].published == ("validation",)
    (sentence,) = advice(report)
    assert "1 (Crocus 1)" in sentence


def test_nothing_is_said_where_no_validation_is_wanted():
    assert advice(of_size(3, share=0.0)) == []


def test_pictures_with_two_names_are_counted_and_three_are_shown():
    report = make_report(two_names=tuple((f"s:{each}.jpg (Rosa)", f"s:{each}2.jpg (Iris)") for each in "abcd"))
    (sentence,) = [each for each in advice(report) if "two names" in each]
    assert "two names: 4 (s:a.jpg (Rosa) = s:a2.jpg (Iris), s:b.jpg" in sentence
    assert "and 1 more)" in sentence
