"""The page says which pictures would help next."""

import pytest

from tests.serving.web.examples import GENUS, NOT_A_PLANT, SPECIES, THREE_PICTURES, UNCERTAIN, UNKNOWN_PLANT, picture


@pytest.fixture
def advice(page):
    return lambda whole: page("advice.js", "adviceFor", whole)


def test_clear_answer_needs_no_advice(advice):
    assert advice(SPECIES) == []


def test_picture_of_a_thing_needs_less_around_the_plant(advice):
    assert advice(NOT_A_PLANT) == ["Leave out the pot, hands and other things, and take a plain background."]


def test_unclear_plant_needs_another_part_and_a_closer_sharper_picture(advice):
    told = advice(UNCERTAIN)
    assert "another part: a flower, a leaf or the whole plant" in told[0]
    assert "Go closer" in told[1]
    assert "sharp" in told[1]


def test_genus_needs_the_parts_in_which_its_species_differ(advice):
    assert "flower, a fruit or a leaf" in advice(GENUS)[0]


def test_unknown_plant_may_be_looked_up(advice):
    assert "Known plants" in advice(UNKNOWN_PLANT)[0]


def test_unused_picture_should_be_replaced(advice):
    assert advice(THREE_PICTURES) == ["Replace picture 2 by one that the plant fills."]
    images = [picture(0, 0.0, 0.1), picture(1, 1.0, 0.9), picture(2, 0.0, 0.1)]
    assert "pictures 1 and 3 by others" in advice({**SPECIES, "images": images})[0]


def test_pictures_of_two_plants_are_noticed(advice):
    images = [picture(0, 0.5, 0.9), picture(1, 0.5, 0.9, best=3)]
    assert "only pictures of one plant" in advice({**UNCERTAIN, "images": images})[0]


def test_unused_picture_is_no_second_plant(advice):
    assert not any("one plant" in told for told in advice(THREE_PICTURES))


def test_five_pictures_cannot_become_six(advice):
    told = advice({**UNCERTAIN, "images": [picture(index, 0.2, 0.9) for index in range(5)]})
    assert told[0].startswith("Replace one picture by a picture of another part")


def test_small_picture_is_named(advice):
    whole = {**UNCERTAIN, "images": [picture(0, 0.5, 0.9), picture(1, 0.5, 0.9, size=(120, 900))]}
    assert "Picture 2 is small: send it in full size." in advice(whole)


def test_at_most_three_pieces_of_advice(advice):
    images = [picture(0, 0.0, 0.1, size=(9, 9)), picture(1, 0.5, 0.9), picture(2, 0.5, 0.9, best=3)]
    assert len(advice({**UNCERTAIN, "images": images})) == 3
