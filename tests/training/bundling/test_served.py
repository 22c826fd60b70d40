"""Figures of the answers of a bundle, from drawn outputs of its network."""

from types import SimpleNamespace

from msgspec.structs import replace

from models.answer import AnswerModel
from tests.training.bundling.drawn_outputs import TAXONOMY, draw_plants
from training.bundling.served import FurtherPictures, served_answers


def test_the_taxa_of_the_bundle_count_whatever_their_order():
    plants = draw_plants(6, seed=4)
    turned = replace(TAXONOMY, taxa=TAXONOMY.taxa[::-1])  # corrected names may come in another order
    found = []
    for taxonomy in (TAXONOMY, turned):
        model = AnswerModel(taxonomy, 1.0)
        bundle = SimpleNamespace(
            taxonomy=taxonomy, answer_model=lambda _, model=model: model, network_path=lambda _: None
        )
        found.append(served_answers(bundle, "fp32", plants.outputs, plants.labels, further=FurtherPictures()))
    assert found[0].several_pictures[-1].top1.value > 0.9
    assert found[0].verdicts == found[1].verdicts
    assert found[0].several_pictures == found[1].several_pictures
