import numpy as np
import pytest

from models.taxonomy import Output, Taxon, Taxonomy
from tests.training.small import write_data
from training.dataset.manifest import Manifest
from training.evaluation.predictions import calibrated_predictions
from training.evaluation.split_metrics import class_metrics, evaluate_predictions, split_metrics

ROSE, IRIS = (
    Taxon(taxon_id=name.lower(), rank="species", scientific_name=f"{name} alba", genus=name)
    for name in ("Rosa", "Iris")
)
# Two data sets contain the rose: three outputs, two taxa.
KEYS = ("a:iris", "a:rosa", "b:rosa")
TAXONOMY = Taxonomy(
    taxonomy_version="test",
    taxa=(ROSE, IRIS),
    outputs=tuple(Output(key=key, source=key[0], taxon_id=key[2:]) for key in KEYS),
)
# Probabilities of iris, rose of a, rose of b.
SPREAD = [0.4, 0.35, 0.25]
CERTAIN_IRIS = [0.8, 0.1, 0.1]


def predictions(probabilities, labels):
    logits = np.log(np.array(probabilities, dtype=np.float32))
    rows = np.arange(len(labels))
    return calibrated_predictions(logits, np.array(labels), rows, TAXONOMY, temperature=1.0)


def test_outputs_of_one_taxon_are_summed():
    found = split_metrics(predictions([SPREAD], [1]))
    assert found.top1_output.value == 0.0  # the iris is the likeliest output
    assert found.top1_taxon.value == 1.0  # but the summed probability of the rose is higher


def test_every_share_carries_its_number_and_interval():
    found = split_metrics(predictions([SPREAD, CERTAIN_IRIS, SPREAD], [1, 0, 0]))
    for name in ("top1_output", "top1_taxon", "top5_taxon", "macro_top1_taxon", "ece"):
        figure = getattr(found, name)
        assert figure.num_pictures == 3
        assert 0 <= figure.interval_95[0] <= figure.value <= figure.interval_95[1] <= 1
    assert found.top1_taxon.value == pytest.approx(2 / 3)
    assert found.macro_top1_taxon.value == pytest.approx((1 + 1 / 2) / 2)


def test_the_temperature_changes_confidence_and_not_the_most_likely_taxon():
    logits = np.log(np.array([CERTAIN_IRIS], dtype=np.float32))
    sharp, soft = (calibrated_predictions(logits, np.array([0]), np.array([0]), TAXONOMY, t) for t in (0.5, 2.0))
    assert sharp.confidence_N[0] == sharp.right_N[0] == pytest.approx(0.64 / 0.66)
    assert sharp.named_N[0] == soft.named_N[0] == 1
    assert soft.confidence_N[0] < 0.8 < sharp.confidence_N[0]


@pytest.fixture
def two_sources(tmp_path):
    pictures = [("1.jpg", "a:rosa", "test"), ("2.jpg", "b:rosa", "test"), ("3.jpg", "a:iris", "test")]
    return Manifest(write_data(tmp_path / "data", tmp_path, pictures, TAXONOMY))


def test_metrics_are_computed_for_all_pictures_and_each_source(two_sources):
    found = predictions([CERTAIN_IRIS, SPREAD, CERTAIN_IRIS], two_sources.labels)
    evaluation = evaluate_predictions(found, two_sources, network="checkpoint", split="test", temperature=1.0)
    assert evaluation.all.top1_taxon.value == pytest.approx(2 / 3)
    assert {name: (f.top1_taxon.value, f.top1_taxon.num_pictures) for name, f in evaluation.by_source.items()} == {
        "a": (0.5, 2),
        "b": (1.0, 1),
    }
    assert {name: sum(each.num_pictures for each in bins) for name, bins in evaluation.reliability.items()} == {
        "all": 3,
        "a": 2,
        "b": 1,
    }
    assert evaluation.risk_coverage["species"].risk[-1] == pytest.approx(1 / 3)
    (confusion,) = evaluation.confusions
    assert (confusion.right, confusion.named, confusion.count) == ("Rosa alba", "Iris alba", 1)


def test_the_class_with_the_lowest_accuracy_comes_first():
    rows = list(class_metrics(predictions([CERTAIN_IRIS, SPREAD, CERTAIN_IRIS], [1, 2, 0]), TAXONOMY))
    assert [(row.scientific_name, row.num_pictures, row.top1, row.top5) for row in rows] == [
        ("Rosa alba", 2, 0.5, 1.0),
        ("Iris alba", 1, 1.0, 1.0),
    ]
