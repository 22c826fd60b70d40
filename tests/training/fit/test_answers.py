from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from models.figures import (
    _questions,
    coverage_figures,
    judge_answers,
    rejection_figures,
    several_pictures,
    verdict_figures,
)
from models.outputs import Outputs
from models.scoring import AnswerModel, Decisions
from tests.training.fit.drawn_outputs import TAXONOMY, answers, draw_plants, draw_things, drawn_sets, fit_drawn, on_disk
from training.evaluate import _in_words

FITTED = fit_drawn(drawn_sets()).model
BARE = AnswerModel(TAXONOMY, 1.0)
PLANTS, THINGS = draw_plants(2, seed=51), draw_things(20, seed=52)
PICTURES = Outputs(
    *(np.concatenate([getattr(each, name) for each in (PLANTS, THINGS)]) for name in ("logits", "features"))
)


def test_distances_of_chunks_on_disk_are_those_of_all_pictures(monkeypatch):
    plain = FITTED.calibration.features.distances(PICTURES.features)
    monkeypatch.setattr("models.outputs._VALUES_AT_ONCE", 300)
    found = on_disk(PICTURES).score(AnswerModel(TAXONOMY, 1.0, calibration=FITTED.calibration)).distance_N
    assert found == pytest.approx(plain, rel=1e-4, abs=1e-5)


SCORES = ("plant score", "familiarity")


@pytest.fixture(scope="module")
def plants():
    return draw_plants(20, seed=21)


def test_verdicts_are_counted_by_rank():
    ranks, right = np.array(["species", "species", "genus", "not_a_plant"]), np.array([True, False, True, False])
    found = verdict_figures(Decisions(ranks, np.zeros(4, bool)), right)
    assert (found.num_pictures, found.num_uncertain, found.num_not_a_plant) == (4, 0, 1)
    assert (found.by_rank["species"].num_named, found.by_rank["species"].right.value) == (2, 0.5)
    assert found.by_rank["genus"].right.value == 1
    assert found.by_rank["family"].right is None


def test_candidate_sets_cover_what_was_asked_and_nest(plants):
    found = coverage_figures(plants.logits, plants.labels, FITTED)
    assert [(each.kind, each.coverage) for each in found] == [
        (kind, coverage) for kind in ("marginal", "macro") for coverage in (0.8, 0.9, 0.95)
    ]
    for three in (found[:3], found[3:]):
        assert sorted(each.mean_size for each in three) == [each.mean_size for each in three]
    for each in found:
        assert each.covered.value == pytest.approx(each.coverage, abs=0.06)
        assert each.macro_covered == pytest.approx(each.covered.value, abs=1e-9)  # equally many pictures of each taxon


def test_other_things_and_unknown_plants_are_told_by_their_scores(plants):
    known, strange = (outputs.score(FITTED) for outputs in (plants, draw_things(200, seed=22)))
    things, unknown = (rejection_figures(score, known, strange, FITTED) for score in SCORES)
    assert (things.score, unknown.score) == SCORES
    for found in (things, unknown):
        assert found.auroc > 0.75
        assert found.named_species.value <= found.named.value <= 1
        assert found.fpr95.num_pictures == 200
    assert things.fpr95.value < 0.4


def test_the_shares_of_all_ranks_in_words_are_of_all_pictures(plants):
    found = judge_answers(FITTED, plants)
    species = found.verdicts.by_rank["species"]
    lines = [line for line in _in_words(found) if line.startswith("  ")]
    total = len(plants.labels)
    assert [line.count(f" of {total}") for line in lines] == [2, 2, 0]  # no family is named
    right = species.right.value * species.num_named / total
    assert lines[0].startswith(f"  species: {species.num_named / total:.1%} of {total}, right {right:.1%} ")


def test_a_bundle_without_tables_is_measured_by_its_largest_softmax(plants):
    known, strange = (outputs.score(BARE) for outputs in (plants, draw_things(50, seed=23)))
    for score in SCORES:
        assert rejection_figures(score, known, strange, BARE).score == "largest softmax"
    assert coverage_figures(plants.logits, plants.labels, BARE) == []


def test_more_pictures_of_a_species_are_right_more_often():
    plants = draw_plants(10, seed=31)
    found = several_pictures(plants, plants.labels, BARE)
    assert [each.num_pictures for each in found] == [1, 2, 3, 5]
    top1 = [each.top1.value for each in found]
    assert top1[0] < top1[1] < top1[3]
    assert found[0].top1.num_pictures == found[3].top1.num_pictures == 200
    alone = answers(SimpleNamespace(model=BARE), plants)
    named = [answer.verdict.rank in ("species", "genus") for answer in alone]
    right = [
        answer.verdict.name in (TAXONOMY.taxa[label].scientific_name, TAXONOMY.taxa[label].genus)
        for answer, label in zip(alone, plants.labels, strict=True)
    ]
    assert (found[0].named.value, found[0].right.value) == (np.mean(named), sum(right) / sum(named))


def test_taxa_with_fewer_than_five_pictures_are_left_out():
    labels = np.array([0] * 4 + [1] * 6)
    outputs = Outputs(np.eye(20, dtype=np.float32)[labels], np.ones((10, 3), dtype=np.float32))
    found = several_pictures(outputs, labels, BARE)
    assert {each.top1.num_pictures for each in found} == {6}
    assert several_pictures(outputs.choose(np.arange(4)), labels[:4], BARE) == []


def test_the_pictures_of_a_question_are_distinct_and_of_one_taxon():
    labels = np.repeat([0, 1, 2], [5, 6, 4])
    questions = _questions(labels)
    assert sorted(chosen[0] for chosen in questions) == list(range(11))  # every picture of a taxon with five opens one
    for chosen in questions:
        assert (len(set(chosen)), len(set(labels[chosen]))) == (5, 1)


def test_the_taxa_of_the_bundle_count_whatever_their_order():
    plants = draw_plants(6, seed=4)
    turned = replace(TAXONOMY, taxa=TAXONOMY.taxa[::-1])  # corrected names may come in another order
    found = []
    for taxonomy in (TAXONOMY, turned):
        model = AnswerModel(taxonomy, 1.0)
        found.append(judge_answers(model, plants))
    assert found[0].several_pictures[-1].top1.value > 0.9
    assert found[0].verdicts == found[1].verdicts
    assert found[0].several_pictures == found[1].several_pictures
