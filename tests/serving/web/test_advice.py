"""The page says which pictures would help next."""

import pytest

from tests.serving.web.examples import UNCERTAIN, picture


@pytest.fixture
def advice(page):
    return lambda whole: page("advice.js", "adviceFor", whole)


def test_unclear_plant_needs_another_part_and_a_closer_sharper_picture(advice):
    told = advice(UNCERTAIN)
    assert "another part: a flower, a leaf or the whole plant" in told[0]
    assert "Go closer" in told[1]
    assert "sharp" in told[1]


def test_at_most_three_pieces_of_advice(advice):
    images = [picture(0, 0.0, 0.1, size=(9, 9)), picture(1, 0.5, 0.9), picture(2, 0.5, 0.9, best=3)]
    assert len(advice({**UNCERTAIN, "images": images})) == 3
