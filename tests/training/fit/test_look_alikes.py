"""Taxa that are taken for each other on the calibration plants are look-alikes, and others are not."""

import numpy as np
import pytest

from models.outputs import Outputs
from models.scoring import AnswerModel
from tests.models.tiny import genus_only, species, taxonomy_of
from training.fit.names import look_alikes

NAMES = ("Toxicodendron radicans", "Parthenocissus quinquefolia", "Vitis riparia", "Planta una", "Planta altera")
IVY, CREEPER, GRAPE, UNA, ALTERA = NAMES
PLANTS = taxonomy_of(*map(species, NAMES))


def found(taken, per_taxon=20, taxonomy=PLANTS):
    """Look-alikes if of so many plants of each taxon, some are taken for another: (right, named) -> how many."""
    names = [taxon.scientific_name for taxon in taxonomy.taxa]
    labels = np.repeat(np.arange(len(names)), per_taxon)
    ranked_first = labels.copy()
    for (right, other), number in taken.items():
        still = np.flatnonzero((labels == names.index(right)) & (ranked_first == labels))
        ranked_first[still[:number]] = names.index(other)
    logits = 9 * np.eye(len(names), dtype=np.float32)[ranked_first]
    similar = look_alikes(Outputs(logits, labels=labels).score(AnswerModel(taxonomy, 1.0)), taxonomy)
    return {names[one]: [names[other] for other in others] for one, others in similar.items()}


@pytest.mark.parametrize("taken", [{(IVY, CREEPER): 3}, {(CREEPER, IVY): 3}, {(IVY, CREEPER): 2, (CREEPER, IVY): 1}])
def test_three_plants_in_either_direction_make_a_pair_of_both(taken):
    assert found(taken) == {IVY: [CREEPER], CREEPER: [IVY]}


def test_two_plants_make_none():
    assert found({(IVY, CREEPER): 2, (IVY, GRAPE): 1}) == {}
    assert found({(IVY, CREEPER): 1, (CREEPER, IVY): 1}) == {}


@pytest.mark.parametrize(("per_taxon", "is_pair"), [(60, True), (61, False)])
def test_a_pair_is_5_percent_of_the_plants_of_one_of_the_two(per_taxon, is_pair):
    assert bool(found({(IVY, CREEPER): 3}, per_taxon)) is is_pair


def test_a_taxon_keeps_its_three_most_frequent_look_alikes_the_most_frequent_first():
    taken = {(IVY, CREEPER): 4, (IVY, GRAPE): 3, (UNA, IVY): 6, (ALTERA, IVY): 5}
    similar = found(taken)
    assert similar[IVY] == [UNA, ALTERA, CREEPER]
    assert similar[GRAPE] == [IVY]


def test_a_genus_is_no_look_alike_of_its_own_species():
    crocuses = taxonomy_of(species("Crocus vernus"), genus_only("Crocus"), species("Colchicum autumnale"))
    taken = {("Crocus vernus", "Crocus"): 5, ("Colchicum autumnale", "Crocus"): 5}
    assert found(taken, taxonomy=crocuses) == {"Crocus": ["Colchicum autumnale"], "Colchicum autumnale": ["Crocus"]}
