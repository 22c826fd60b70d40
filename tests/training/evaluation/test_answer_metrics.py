import numpy as np
import pytest

from models.answer import AnswerModel
from models.calibration import candidate_set
from models.metrics import macro_mean, share
from models.ranking import Thresholds, Verdict, output_probabilities, taxon_probabilities
from tests.training.bundling.drawn_outputs import TAXONOMY, draw_plants, draw_things, table_data
from training.bundling.tables import fit_tables
from training.evaluation.answer_metrics import (
    coverage_figures,
    is_right,
    thing_figures,
    unknown_plant_figures,
    verdict_figures,
)
from training.evaluation.picture_scores import Verdicts, score_pictures

ROSE = TAXONOMY.taxa[0]


@pytest.fixture(scope="module")
def model():
    fitted = fit_tables(table_data(), 1.0, {})
    limits = fitted.thresholds
    return AnswerModel(TAXONOMY, 1.0, limits.thresholds, limits.promises, fitted.calibration)


@pytest.fixture(scope="module")
def plants():
    return draw_plants(20, seed=21)


def scores_of(outputs, model):
    return score_pictures(outputs, np.zeros(len(outputs.logits), dtype=np.int64), model)


def test_a_name_is_right_at_its_own_rank_only():
    assert is_right(Verdict("species", ROSE.scientific_name, 0.9, ""), ROSE)
    assert is_right(Verdict("genus", ROSE.genus, 0.9, ""), ROSE)
    assert not is_right(Verdict("species", ROSE.genus, 0.9, ""), ROSE)
    assert not is_right(Verdict("family", ROSE.family or None, 0.9, ""), ROSE)
    assert not is_right(Verdict("uncertain", None, 0.9, ""), ROSE)


def test_verdicts_are_counted_by_rank():
    ranks, right = np.array(["species", "species", "genus", "not_a_plant"]), np.array([True, False, True, False])
    found = verdict_figures(Verdicts(ranks, right))
    assert (found.num_pictures, found.num_uncertain, found.num_not_a_plant) == (4, 0, 1)
    assert (found.by_rank["species"].num_named, found.by_rank["species"].right.value) == (2, 0.5)
    assert found.by_rank["genus"].right.value == 1
    assert found.by_rank["family"].right is None


def test_candidate_sets_cover_what_was_asked_and_nest(model, plants):
    found = coverage_figures(plants.outputs.logits, plants.labels, model)
    assert [(each.kind, each.coverage) for each in found] == [
        (kind, coverage) for kind in ("marginal", "macro") for coverage in (0.8, 0.9, 0.95)
    ]
    for three in (found[:3], found[3:]):
        assert sorted(each.mean_size for each in three) == [each.mean_size for each in three]
    for each in found:
        assert each.covered.value == pytest.approx(each.coverage, abs=0.06)
        assert each.macro_covered == pytest.approx(each.covered.value, abs=1e-9)  # equally many pictures of each taxon


def test_other_things_and_unknown_plants_are_told_by_their_scores(model, plants):
    known, strange = (scores_of(outputs, model) for outputs in (plants.outputs, draw_things(200, seed=22)))
    things, unknown = (measure(known, strange, model) for measure in (thing_figures, unknown_plant_figures))
    assert (things.score, unknown.score) == ("plant score", "familiarity")
    for found in (things, unknown):
        assert found.auroc > 0.75
        assert found.named_species.value <= found.named.value <= 1
        assert found.fpr95.num_pictures == 200
    assert things.fpr95.value < 0.4


def test_a_bundle_without_tables_is_measured_by_its_largest_softmax(plants):
    bare = AnswerModel(TAXONOMY, 1.0, Thresholds())
    known, strange = (scores_of(outputs, bare) for outputs in (plants.outputs, draw_things(50, seed=23)))
    for measure in (thing_figures, unknown_plant_figures):
        assert measure(known, strange, bare).score == "largest softmax"
    assert coverage_figures(plants.outputs.logits, plants.labels, bare) == []


@pytest.mark.parametrize("values_at_once", [1, 150, 2**18])
def test_candidate_sets_of_many_pictures_are_those_of_each_alone(model, plants, values_at_once, monkeypatch):
    monkeypatch.setattr("training.evaluation.stored_rows._VALUES_AT_ONCE", values_at_once)
    logits, labels, table = plants.outputs.logits, plants.labels, model.calibration.conformal
    taxa = taxon_probabilities(output_probabilities(logits, 1.0), TAXONOMY)
    for found in coverage_figures(logits, labels, model):
        sets = [candidate_set(table, each[None], found.coverage, found.kind) for each in taxa]
        held = np.array([label in chosen for label, chosen in zip(labels, sets, strict=True)])
        assert found.covered == share(int(held.sum()), len(held))
        assert found.macro_covered == macro_mean(held, labels)
        assert found.mean_size == np.mean([len(chosen) for chosen in sets])
