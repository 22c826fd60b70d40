import numpy as np
import pytest

from models.answer import AnswerModel, Question, answer_plant
from tests.training.bundling.drawn_outputs import TAXONOMY, draw_plants, table_data
from training.bundling.tables import fit_tables
from training.evaluation.picture_scores import score_pictures
from training.evaluation.several_pictures import _questions, several_pictures
from training.evaluation.stored_rows import Outputs

BARE = AnswerModel(TAXONOMY, 1.0)


def measure(outputs, labels, model, seed=0):
    return several_pictures(outputs.logits, score_pictures(outputs, labels, model), model, seed)


def test_more_pictures_of_a_species_are_right_more_often():
    plants = draw_plants(10, seed=31)
    found = measure(plants.outputs, plants.labels, BARE)
    assert [each.num_pictures for each in found] == [1, 2, 3, 5]
    top1 = [each.top1.value for each in found]
    assert top1[0] < top1[1] < top1[3]
    assert found[0].top1.num_pictures == found[3].top1.num_pictures == 200


def test_the_pictures_of_a_question_are_distinct_and_of_one_taxon():
    labels = np.repeat([0, 1, 2], [5, 6, 4])
    questions = _questions(labels, seed=0)
    assert sorted(chosen[0] for chosen in questions) == list(range(11))  # every picture of a taxon with five opens one
    for chosen in questions:
        assert (len(set(chosen)), len(set(labels[chosen]))) == (5, 1)


def test_one_picture_alone_is_right_as_often_as_in_the_split():
    plants = draw_plants(10, seed=31)
    (single, *_) = measure(plants.outputs, plants.labels, BARE)
    assert single.top1.value == (plants.outputs.logits.argmax(axis=1) == plants.labels).mean()


def test_taxa_with_fewer_than_five_pictures_are_left_out():
    labels = np.array([0] * 4 + [1] * 6)
    outputs = Outputs(np.eye(20, dtype=np.float32)[labels], np.ones((10, 3), dtype=np.float32))
    found = measure(outputs, labels, BARE)
    assert {each.top1.num_pictures for each in found} == {6}
    assert measure(Outputs(*(each[:4] for each in outputs)), labels[:4], BARE) == []


def test_the_same_seed_draws_the_same_questions():
    plants = draw_plants(6, seed=33)
    first, second, other = (measure(plants.outputs, plants.labels, BARE, seed) for seed in (0, 0, 1))
    assert first == second
    assert first != other


@pytest.mark.parametrize("with_tables", [False, True])
def test_questions_are_answered_as_the_service_does(with_tables):
    plants, tables = draw_plants(6, seed=35), fit_tables(table_data(), 1.0, {}).calibration
    model = AnswerModel(TAXONOMY, 0.7, calibration=tables) if with_tables else BARE
    for found in measure(plants.outputs, plants.labels, model):
        asked = [chosen[: found.num_pictures] for chosen in _questions(plants.labels, seed=0)]
        answers = [
            answer_plant(plants.outputs.logits[chosen], plants.outputs.features[chosen], model, Question())
            for chosen in asked
        ]
        right = [
            answer.taxa[0].taxon is TAXONOMY.taxa[plants.labels[chosen[0]]]
            for answer, chosen in zip(answers, asked, strict=True)
        ]
        assert found.top1.value == np.mean(right)
