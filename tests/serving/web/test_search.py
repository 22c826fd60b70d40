"""The search for a plant says what a name is to the model; the real service gives the answers."""

import pytest


@pytest.fixture
def search(client, page):
    def call(query, limit=20):
        found = client.get("/species", params={"q": query, "limit": limit}).json()
        return page("sentences.js", "searchSentence", found, limit), found["species"]

    return call


def test_unknown_name_is_said_to_be_unknown(search):
    assert "This model cannot name 'oak'" in search("oak")[0]


def test_synonym_is_said_to_be_one(page, search):
    told, [found] = search("Rosa ferox")
    assert "Rosa ferox is a synonym of Rosa rugosa" in told
    assert page("sentences.js", "foundByWords", found) == "also named Rosa ferox"


def test_start_of_names_counts_the_plants(search):
    assert search("cro")[0] == "2 plants."
    assert search("ro", limit=2)[0] == "The first 2 matches; type more to narrow the search."


@pytest.mark.parametrize("query", ["Rosa canina", "dog rose", "Rosaceae", "Crocus", "ro"])
def test_name_that_is_shown_anyway_is_not_repeated(page, search, query):
    _, [found, *_] = search(query)
    assert page("sentences.js", "foundByWords", found) == ""


def test_search_of_the_first_interface_is_shown(page):
    entry = {"scientific_name": "Rosa canina", "common_names": [], "genus": "Rosa", "family": "Rosaceae"}
    assert page("sentences.js", "searchSentence", {"species": [entry], "total": 5}, 20) == "1 plant."
    assert page("sentences.js", "foundByWords", entry) == ""
