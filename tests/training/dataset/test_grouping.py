from datetime import datetime, timedelta

import numpy as np

from tests.models.tiny import genus_only, species, taxonomy_of
from tests.training.dataset.labeled import picture
from training.dataset.splits import (
    group_names,
    join_groups,
    name_codes,
    observation_codes,
)


def test_a_species_has_the_name_of_its_genus_only_where_a_class_has_no_other():
    names = ("Crocus vernus", "Rosa rubra", "Rosa alba")
    taxonomy = taxonomy_of(genus_only("Crocus"), *map(species, names))
    codes = name_codes([picture(key, key) for key in taxonomy.output_keys], taxonomy).tolist()
    assert codes[0] == codes[1]
    assert len(set(codes)) == 3


def test_equal_observation_numbers_of_two_sources_are_two_observations():
    codes = observation_codes(
        [picture("a:1", group="7"), picture("b:1", group="7"), picture("a:2", group="7"), picture("a:3")]
    )
    assert codes.tolist() == [0, 1, 0, -1]


def at(second, place=None, **fields):
    taken_at = datetime.fromisoformat("2024-05-31T10:00") + timedelta(seconds=second)
    return picture(f"s:{second}", facts={"taken_at": taken_at, "coordinates": place}, **fields)


def test_pictures_of_a_class_within_a_minute_at_one_place_are_one_plant():
    here, near, there = (50.0, 8.0), (50.0001, 8.0001), (50.0, 8.001)
    codes = observation_codes([at(0, here), at(60, near), at(121, here), at(122, there), picture("s:no time")]).tolist()
    assert codes[0] == codes[1]
    assert codes[4] == -1
    assert len(set(codes)) == 4


def test_a_degree_of_longitude_is_half_as_long_at_60_degrees_north():
    for latitude, num_plants in ((60.0, 1), (0.0, 2)):
        codes = observation_codes([at(0, (latitude, 8.0)), at(1, (latitude, 8.00035))])
        assert len(set(codes.tolist())) == num_plants


def test_a_photograph_between_two_others_without_a_place_or_late_in_a_row_keeps_them_one_plant():
    here = (50.0, 8.0)
    lost = observation_codes([at(0, here), at(10), at(20, here)]).tolist()
    assert lost[0] == lost[2] != lost[1]
    assert len(set(observation_codes([at(0), at(50), at(70)]).tolist())) == 1


def test_pictures_without_a_place_are_one_plant_with_their_like_and_not_with_other_classes_or_named_ones():
    pictures = [at(0), at(30), at(30, (50.0, 8.0)), at(31, label="s:iris"), at(20, group="7"), at(21, group="7")]
    codes = observation_codes(pictures).tolist()
    assert codes[0] == codes[1]
    assert codes[4] == codes[5]
    assert len(set(codes)) == 4


def test_groups_join_over_a_shared_picture():
    observations = np.array([0, 0, -1, -1, 1, 1])
    copies = np.array([-1, 0, 0, -1, -1, -1])
    assert join_groups(observations, copies).tolist() == [0, 0, 0, 1, 2, 2]


def test_a_group_is_named_after_its_smallest_picture_id_in_any_order():
    assert group_names(np.array([0, 1, 0]), ["s:b", "s:c", "s:a"]) == ["s:a", "s:c", "s:a"]
    assert group_names(np.array([5, 5, 2]), ["s:a", "s:b", "s:c"]) == ["s:a", "s:a", "s:c"]
