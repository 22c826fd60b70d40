import numpy as np

from models.answer import AnswerModel
from tests.training.bundling.drawn_outputs import TAXONOMY, draw_plants
from training.evaluation.several_pictures import several_pictures
from training.evaluation.stored_rows import Outputs

BARE = AnswerModel(TAXONOMY, 1.0)


def test_more_pictures_of_a_species_are_right_more_often():
    plants = draw_plants(10, seed=31)
    found = several_pictures(plants.outputs, plants.labels, BARE)
    assert [each.num_pictures for each in found] == [1, 2, 3, 5]
    top1 = [each.top1.value for each in found]
    assert top1[0] < top1[1] < top1[3]
    assert found[0].top1.num_pictures == found[3].top1.num_pictures == 200


def test_one_picture_alone_is_right_as_often_as_in_the_split():
    plants = draw_plants(10, seed=31)
    (single, *_) = several_pictures(plants.outputs, plants.labels, BARE)
    assert single.top1.value == (plants.outputs.logits.argmax(axis=1) == plants.labels).mean()


def test_taxa_with_fewer_than_five_pictures_are_left_out():
    labels = np.array([0] * 4 + [1] * 6)
    outputs = Outputs(np.eye(20, dtype=np.float32)[labels], np.ones((10, 3), dtype=np.float32))
    found = several_pictures(outputs, labels, BARE)
    assert {each.top1.num_pictures for each in found} == {6}
    assert several_pictures(Outputs(*(each[:4] for each in outputs)), labels[:4], BARE) == []


def test_the_same_seed_draws_the_same_questions():
    plants = draw_plants(6, seed=33)
    first, second, other = (several_pictures(plants.outputs, plants.labels, BARE, seed) for seed in (0, 0, 1))
    assert first == second
    assert first != other
