import pytest

from training.insight.studies.plots import Bars, Curves, draw

PLOTS = (
    Curves("epochs", "Epochs", "epoch", "s", {"first": [[(1, 2.0), (2, 1.0)], [(1, 3.0), (2, 1.5)]], "second": []}),
    Bars("speed", "Speeds", "times", {"first": [1.0, 1.2], "second": []}, mark=1.0),
)


@pytest.mark.parametrize("plot", PLOTS)
def test_the_same_figures_give_the_same_bytes(plot):
    assert draw(plot) == draw(plot)


def test_a_band_shows_the_spread_of_the_repeats():
    one = Curves("a", "A", "x", "y", {"arm": [[(1, 2.0), (2, 3.0)]]})
    two = Curves("a", "A", "x", "y", {"arm": [[(1, 2.0), (2, 3.0)], [(1, 4.0), (2, 5.0)]]})
    assert b"FillBetween" not in draw(one)
    assert b"FillBetween" in draw(two)


@pytest.mark.parametrize("plot", [Curves("a", "A", "x", "y", {}), Bars("a", "A", "x", {})])
def test_a_study_that_has_just_begun_is_drawn_too(plot):
    assert b"<svg" in draw(plot)
