import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.training.small import make_taxonomy, write_data
from training.dataset.manifest import Manifest
from training.evaluation.plants import one_picture_each, picture_weights, plants_of

MANY_PLANTS = st.lists(st.integers(0, 8), min_size=1, max_size=40).map(np.array)


def test_pictures_of_one_group_show_one_plant(tmp_path):
    taxonomy = make_taxonomy(2)
    key = taxonomy.output_keys[0]
    pictures = [(f"{number}.jpg", key, "test") for number in range(4)]
    folder = write_data(tmp_path / "data", tmp_path, pictures, taxonomy, groups=["a", "b", "a", "c"])
    first, second, third = plants_of(Manifest(folder), np.array([0, 1, 2]))
    assert first == third != second
    assert sorted({first, second}) == [0, 1]


@given(MANY_PLANTS)
def test_every_plant_weighs_1(plants):
    weights = picture_weights(plants)
    for plant in np.unique(plants):
        assert np.isclose(weights[plants == plant].sum(), 1.0)


@given(MANY_PLANTS, st.integers(0, 3))
def test_one_picture_of_each_plant_is_drawn(plants, seed):
    chosen = one_picture_each(plants, seed)
    assert sorted(plants[chosen]) == sorted(set(plants.tolist()))
    assert (np.diff(chosen) > 0).all()
    assert (chosen == one_picture_each(plants, seed)).all()


def test_any_picture_of_a_plant_may_be_drawn():
    plants = np.zeros(3, dtype=np.int64)
    assert {int(one_picture_each(plants, seed)[0]) for seed in range(40)} == {0, 1, 2}
