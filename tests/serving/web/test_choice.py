"""The control that restricts the answer suggests names that the service understands."""

import pytest


def entry(name, family, *common_names):
    genus, _, epithet = name.partition(" ")
    rank = "species" if epithet else "genus"
    return {"scientific_name": name, "genus": genus, "family": family, "common_names": common_names, "rank": rank}


SPECIES = [entry("Rosa canina", "Rosaceae", "dog rose"), entry("Rosa rugosa", "Rosaceae"), entry("Crocus", "")]


@pytest.fixture
def names(page):
    return lambda text, species=SPECIES: [found["name"] for found in page("choice.js", "suggestionsFor", text, species)]


def test_family_and_genus_come_before_their_species(names):
    assert names("ros")[:3] == ["Rosaceae", "Rosa", "Rosa canina"]


def test_common_name_suggests_the_species_only(names):
    assert names("dog", SPECIES[:1]) == ["Rosa canina"]


def test_every_name_is_suggested_once(names):
    assert names("crocus") == ["Crocus", "Rosa canina", "Rosa rugosa"]


def test_suggestions_are_few(names):
    many = [{**SPECIES[1], "scientific_name": f"Rosa numero{number}"} for number in range(50)]
    assert len(names("rosa", many)) == 8
