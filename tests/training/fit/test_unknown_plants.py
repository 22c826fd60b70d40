"""Plants that a bundle does not know: what is known of their names, what they teach, and what judges the bundle."""

from pathlib import Path

import numpy as np
import pytest

from models.errors import DataError
from models.outputs import Outputs
from models.scoring import AnswerModel
from tests.models.tiny import species, taxonomy_of
from tests.training.small import make_taxonomy
from training.fit.names import MIN_NAMED, mistaken_taxa
from training.fit.unknown_plants import (
    UnknownNames,
    UnknownPlants,
    drawn_among,
    names_of,
)
from training.loading.negatives import Negatives

KNOWN = taxonomy_of(species("Quercus robur", "Fagaceae"), species("Rosa canina", "Rosaceae"))


def looked_up(*names):
    paths = tuple(Path(f"{name}/a.jpg") for name in names)
    return names_of(Negatives(paths=paths, scientific_names=names, sources=(0,) * len(names)), KNOWN)


def test_genus_and_family_of_a_stranger_are_known_or_not():
    _, found = looked_up("Quercus suber", "Fagus sylvatica", "Musa acuminata", "")
    assert (found.near_M.tolist(), found.kin_M.tolist()) == ([True, False, False, False], [True, True, False, False])
    assert found.label_M[:2].tolist() == [0, 0]


def test_a_genus_stands_on_one_side_of_fit_and_judgment_and_both_sides_have_some():
    genera = [f"Genus{number} alba" for number in range(200)]
    _, found = looked_up(*genera, *(name.replace("alba", "rubra") for name in genera))
    assert np.array_equal(found.judges_M[:200], found.judges_M[200:])
    assert np.array_equal(found.group_M[:200], found.group_M[200:])
    assert 0.15 < found.judges_M.mean() < 0.35


@pytest.mark.parametrize("name", ["Rosa canina L.", "Rosa_canina", "Rosa canina subsp. canina"])
def test_a_stranger_that_the_bundle_knows_is_refused(name):
    with pytest.raises(DataError, match=rf"shows one that the bundle knows .*{name}.*--unknown"):
        looked_up("Quercus suber", name)


def some_names(source_M, near=False, group_M=None):
    flags, numbers = np.zeros(len(source_M), dtype=bool), np.zeros(len(source_M), dtype=np.intp)
    groups = numbers if group_M is None else group_M
    return UnknownNames(source_M, groups, flags, numbers, flags | near, flags | near)


@pytest.mark.parametrize(("sources", "folds"), [([0, 0, 1], [0, 0, 1]), ([0, 0, 0], [4, 4, 5])])
def test_a_source_is_left_out_as_a_whole_or_a_genus_if_there_is_one_source(sources, folds):
    assert some_names(np.array(sources), group_M=np.array([4, 4, 5])).folds().tolist() == folds


def test_every_fourth_plant_is_a_stranger_and_small_sources_count_as_much_as_large_ones():
    names = some_names(np.repeat([0, 1, 2], [1000, 30, 5]))
    chosen_M = drawn_among(names, 300)
    assert np.bincount(names.source_M[chosen_M]).tolist() == [65, 30, 5]  # 100 of 400


@pytest.mark.parametrize(("near", "num_near"), [([True, False], 12), ([True, True], 100)])
def test_one_stranger_in_eight_is_of_a_known_genus_unless_all_are(near, num_near):
    names = some_names(np.repeat([0, 1], 500), np.repeat(near, 500))
    chosen_M = drawn_among(names, 300)
    assert (chosen_M.sum(), (chosen_M & names.near_M).sum()) == (100, num_near)


def test_a_photograph_named_by_a_known_genus_or_family_alone_is_left_out():
    paths, found = looked_up("Rosa", "Rosa sp.", "Rosaceae", "Rosa gallica", "Musa", "")
    assert paths == (Path("Rosa gallica/a.jpg"), Path("Musa/a.jpg"), Path("/a.jpg"))
    assert found.near_M.tolist() == [True, False, False]


def test_a_name_of_a_stranger_is_right_at_the_ranks_that_the_bundle_knows():
    _, names = looked_up("Quercus suber", "Fagus sylvatica", "Musa acuminata")
    outputs = Outputs(9 * np.eye(2, dtype=np.float32)[[0, 0, 0]], np.zeros((3, 1)))
    found = UnknownPlants(outputs, names).predictions(AnswerModel(KNOWN, 1.0))
    assert found.rank_right_NR.tolist() == [[False, True, True], [False, False, True], [False, False, False]]


def sure_names(named_N, labels_N):
    return Outputs(9 * np.eye(4, dtype=np.float32)[named_N], labels=labels_N).score(AnswerModel(make_taxonomy(4), 1.0))


def test_taxa_whose_names_are_often_wrong_are_found_and_few_plants_say_little():
    named_N = np.repeat([0, 1, 2], [100, 100, 4])
    labels_N = named_N.copy()
    labels_N[100:120] = 0  # a fifth of taxon 1
    labels_N[-1] = 0  # one of four of taxon 2
    validation = sure_names(named_N, labels_N)
    enough_N = np.repeat([0, 1], 2 * MIN_NAMED)
    found = mistaken_taxa(validation, sure_names(enough_N, enough_N), 4)
    assert found.tolist() == [False, True, True, False]  # of taxon 3 nothing is known
    for few_N in (enough_N[1:], enough_N[:-1]):
        assert not mistaken_taxa(validation, sure_names(few_N, few_N), 4).any()
