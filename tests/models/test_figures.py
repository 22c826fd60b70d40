"""The figures of a network on a split: shares with intervals, curves, classes, mistakes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.figures import auroc, class_metrics, cutoff, measure, risk_coverage, split_metrics
from models.metrics import share
from models.outputs import Outputs, RankScores
from models.scoring import AnswerModel
from tests.models.tiny import species, taxonomy_of

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


def test_the_interval_of_the_calibration_error_is_of_draws_of_plants():
    """Of 205 sure names those of five pictures are wrong: of five plants, or of one."""
    named_N = np.repeat([1, 0], [5, 200])
    logits = 5 * np.eye(2, dtype=np.float32)[named_N]
    model = AnswerModel(taxonomy_of(species("Rosa canina"), species("Rosa rugosa")), 1.0)
    widths = []
    for plants in (np.arange(205), np.append(np.zeros(5, np.int64), np.arange(1, 201))):
        found = split_metrics(Outputs(logits, plants=plants).score(model)).ece
        assert found.value == pytest.approx(1 / (1 + np.exp(-5)) - 200 / 205)
        widths.append(found.interval_95[1] - found.interval_95[0])
    assert widths == pytest.approx([0.040, 0.057], abs=0.005)


ANSWERS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=300)


def curve(answers):
    score, right = (np.array(column) for column in zip(*answers, strict=True))
    return risk_coverage(RankScores(score, right))


def test_the_surest_are_named_first():
    found = curve([(0.2, False), (0.9, True), (0.8, True), (0.3, True)])
    assert found.coverage == [0.25, 0.5, 0.75, 1.0]
    assert found.risk == [0, 0, 0, 0.25]
    assert found.area == pytest.approx(0.25 / 4)


def test_equal_scores_have_the_same_risk_in_any_order():
    assert curve([(0.5, True), (0.5, False)]).risk == [0.5, 0.5]
    assert curve([(0.5, False), (0.5, True)]).area == 0.5


@given(ANSWERS)
def test_at_full_coverage_the_risk_is_the_share_of_wrong_names(answers):
    found = curve(answers)
    assert found.coverage[-1] == 1
    assert found.risk[-1] == pytest.approx(np.mean([not right for _, right in answers]))
    assert 0 <= found.area <= 1
    assert len(found.risk) == len(found.coverage) <= 100


# Two data sets contain the rose: three outputs, two taxa.
TAXONOMY = taxonomy_of(
    species("Rosa alba"), species("Iris alba"), outputs=[("a", "Iris alba"), ("a", "Rosa alba"), ("b", "Rosa alba")]
)
# Probabilities of iris, rose of a, rose of b.
SPREAD = [0.4, 0.35, 0.25]
CERTAIN_IRIS = [0.8, 0.1, 0.1]


def predictions(probabilities, labels, **plants):
    logits = np.log(np.array(probabilities, dtype=np.float32))
    return Outputs(logits, labels=np.array(labels), **plants).score(AnswerModel(TAXONOMY, 1.0))


SHARES = ("top1_output", "top1_taxon", "top5_taxon", "macro_top1_taxon")


def test_outputs_of_one_taxon_are_summed():
    found = split_metrics(predictions([SPREAD], [1]))
    assert found.top1_output.value == 0.0  # the iris is the likeliest output
    assert found.top1_taxon.value == 1.0  # but the summed probability of the rose is higher


def test_every_share_carries_its_number_and_interval():
    found = split_metrics(predictions([SPREAD, CERTAIN_IRIS, SPREAD], [1, 0, 0]))
    for name in (*SHARES, "ece"):
        figure = getattr(found, name)
        assert figure.num_pictures == 3
        assert 0 <= figure.interval_95[0] <= figure.value <= figure.interval_95[1] <= 1
    assert found.top1_taxon.value == pytest.approx(2 / 3)
    assert found.macro_top1_taxon.value == pytest.approx((1 + 1 / 2) / 2)


def test_ten_pictures_of_each_plant_prove_no_more_than_one():
    answers, labels = [CERTAIN_IRIS, SPREAD, SPREAD, CERTAIN_IRIS, SPREAD], [0, 0, 1, 2, 2]
    once = split_metrics(predictions(answers, labels))
    again = split_metrics(
        predictions(np.repeat(answers, 10, axis=0), np.repeat(labels, 10), plants=np.repeat(np.arange(5), 10))
    )
    for name in SHARES:
        first, second = getattr(once, name), getattr(again, name)
        assert (second.num_pictures, second.value) == (50, pytest.approx(first.value))
        assert second.interval_95 == pytest.approx(first.interval_95)


def test_with_one_picture_of_each_plant_a_share_has_wilsons_interval():
    found = split_metrics(predictions([SPREAD, CERTAIN_IRIS, SPREAD], [1, 0, 0]))
    assert (found.top1_taxon, found.top5_taxon) == (share(2, 3), share(3, 3))


def test_figures_are_computed_for_all_pictures_and_each_source():
    found = measure(predictions([CERTAIN_IRIS, SPREAD, CERTAIN_IRIS], [1, 2, 0]), TAXONOMY, ["a", "b", "a"])
    assert found.all.top1_taxon.value == pytest.approx(2 / 3)
    assert {name: (f.top1_taxon.value, f.top1_taxon.num_pictures) for name, f in found.by_source.items()} == {
        "a": (0.5, 2),
        "b": (1.0, 1),
    }
    assert {name: sum(each.num_pictures for each in bins) for name, bins in found.reliability.items()} == {
        "all": 3,
        "a": 2,
        "b": 1,
    }
    assert found.risk_coverage["species"].risk[-1] == pytest.approx(1 / 3)
    (confusion,) = found.confusions
    assert (confusion.right, confusion.named, confusion.count) == ("Rosa alba", "Iris alba", 1)


def test_the_class_with_the_lowest_accuracy_comes_first():
    rows = list(class_metrics(predictions([CERTAIN_IRIS, SPREAD, CERTAIN_IRIS], [1, 2, 0]), TAXONOMY))
    assert [(row.scientific_name, row.num_pictures, row.top1, row.top5) for row in rows] == [
        ("Rosa alba", 2, 0.5, 1.0),
        ("Iris alba", 1, 1.0, 1.0),
    ]
